//! What administrators ask beside the Kubernetes API: tokens, nodes as sessions, back-ups.

use std::path::Path;

use http::Method;
use proto::admin::{Answer, NodeLine, PATH, Request, TokenLine};
use serde::Serialize;

use crate::cli;
use crate::failure::Failure;
use crate::near::explained;
use crate::output::{Format, json, print, remark, yaml};
use crate::resources::{Catalogue, checked};
use crate::server::{JSON, Server, with_body};
use crate::table::aligned;

async fn ask(server: &Server, request: &Request) -> Result<Answer, Failure> {
    let what = || PATH.to_owned();
    let body = serde_json::to_value(request).map_err(|source| Failure::Answer { what: what(), source })?;
    let answer = server.read(with_body(Method::POST, PATH, JSON, &body)?).await;
    match answer {
        Ok(Answer::Error(error)) => Err(Failure::Admin(error)),
        Ok(answer) => Ok(answer),
        // A refusal comes as an answer too, under a code that is one.
        Err(Failure::Refused(status)) => match serde_json::from_str(&status.message) {
            Ok(Answer::Error(error)) => Err(Failure::Admin(error)),
            _ => Err(Failure::Refused(status)),
        },
        Err(error) => Err(error),
    }
}

pub(crate) async fn token(server: &Server, command: cli::Token) -> Result<(), Failure> {
    let (deleted, format) = match &command {
        cli::Token::Delete { id } => (Some(id.clone()), None),
        cli::Token::List(listing) => (None, listing.output),
        cli::Token::Create { .. } => (None, None),
    };
    match ask(server, &token_request(command)).await? {
        Answer::Token(token) => print(format!("{token}\n")),
        Answer::Tokens(tokens) => {
            let none = "there are no join tokens; `edgectl token create` makes one";
            let names = tokens.iter().map(|token| token.id.as_str());
            listed(format, &tokens, names, &token_lines(&tokens), none)
        }
        Answer::Done(true) => print(format!("token {} deleted\n", deleted.unwrap_or_default())),
        other => Err(unexpected(&other)),
    }
}

/// Prints a list as it was asked for. That there is nothing in it is remarked where people read.
fn listed<'a>(
    format: Option<Format>,
    items: &impl Serialize,
    mut names: impl ExactSizeIterator<Item = &'a str>,
    lines: &[Vec<String>],
    none: &str,
) -> Result<(), Failure> {
    let whole = || serde_json::to_value(items).map_err(|error| Failure::Output(error.into()));
    match format {
        Some(Format::Json) => print(json(&whole()?)),
        Some(Format::Yaml) => print(yaml(&whole()?)?),
        Some(Format::Name) => names.try_for_each(|name| print(format!("{name}\n"))),
        None | Some(Format::Wide) if names.len() == 0 => {
            remark(none);
            Ok(())
        }
        None | Some(Format::Wide) => print(aligned(lines)),
    }
}

fn token_request(command: cli::Token) -> Request {
    match command {
        cli::Token::Create { ttl, uses, name, label, replace } => Request::CreateToken {
            ttl_s: ttl,
            uses,
            name: name.or_else(|| replace.clone()),
            labels: label.into_iter().collect(),
            replace: replace.is_some(),
        },
        cli::Token::List(_) => Request::Tokens,
        cli::Token::Delete { id } => Request::DeleteToken { id },
    }
}

fn token_lines(tokens: &[TokenLine]) -> Vec<Vec<String>> {
    let title = ["ID", "ENDS", "USES", "REPLACES", "NAME", "LABELS"]
        .map(str::to_owned)
        .to_vec();
    let lines = tokens.iter().map(|token| {
        let labels: Vec<String> = token
            .labels
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        vec![
            token.id.clone(),
            proto::time::rfc3339(token.ends_ms.div_euclid(1000)),
            token.uses_left.to_string(),
            if token.replace { "yes" } else { "no" }.to_owned(),
            token.name.clone().unwrap_or_else(|| "any".to_owned()),
            if labels.is_empty() {
                "<none>".to_owned()
            } else {
                labels.join(",")
            },
        ]
    });
    std::iter::once(title).chain(lines).collect()
}

pub(crate) async fn node(server: &Server, command: cli::Node) -> Result<(), Failure> {
    match command {
        cli::Node::List(listing) => match ask(server, &Request::Nodes).await? {
            Answer::Nodes(nodes) => {
                let none =
                    "there are no nodes; `edgectl token create` makes a token with which `edgecore join` adds one";
                let names = nodes.iter().map(|node| node.name.as_str());
                listed(listing.output, &nodes, names, &node_lines(&nodes), none)
            }
            other => Err(unexpected(&other)),
        },
        cli::Node::Revoke { name } => {
            present(server, &name).await?;
            revoke(server, &name).await?;
            print(format!(
                "node {name} revoked: its key is barred and its session ends within seconds\n"
            ))
        }
        cli::Node::Delete { name } => {
            let path = format!("/api/v1/nodes/{}", checked(&name)?);
            // A node that is not there has no key to bar; one without a key can be deleted all the same.
            present(server, &name).await?;
            let barred = match revoke(server, &name).await {
                Ok(()) => "; its key is barred",
                Err(Failure::Admin(_)) => "",
                Err(error) => return Err(error),
            };
            crate::delete::delete(server, &path, &serde_json::json!({"propagationPolicy": "Background"})).await?;
            print(format!("node {name} deleted{barred}\n"))
        }
    }
}

/// Fails where there is no such node, with what may have been meant.
async fn present(server: &Server, name: &str) -> Result<(), Failure> {
    let catalogue = Catalogue::of_server(server).await?;
    let node = catalogue.find("nodes")?;
    match server.get(&node.path(None, Some(&checked(name)?))).await {
        Ok(_) => Ok(()),
        Err(error) => Err(explained(server, node, None, name, error).await),
    }
}

async fn revoke(server: &Server, name: &str) -> Result<(), Failure> {
    match ask(server, &Request::Revoke { node: name.to_owned() }).await? {
        Answer::Done(_) => Ok(()),
        other => Err(unexpected(&other)),
    }
}

fn node_lines(nodes: &[NodeLine]) -> Vec<Vec<String>> {
    let title = [
        "NAME",
        "LINK",
        "FOR",
        "PENDING",
        "SENT",
        "RECEIVED",
        "REACHABLE-WITHIN",
        "ENROLLED",
    ];
    let lines = nodes.iter().map(|node| {
        let unknown = || "-".to_owned();
        let link = match (node.connected, node.since_ms) {
            (true, _) => "connected",
            (false, Some(_)) => "silent",
            (false, None) => "not seen",
        };
        vec![
            node.name.clone(),
            link.to_owned(),
            node.since_ms.map_or_else(unknown, age),
            node.pending.map_or_else(unknown, |pending| pending.to_string()),
            node.bytes.map_or_else(unknown, |(sent, _)| bytes(sent)),
            node.bytes.map_or_else(unknown, |(_, received)| bytes(received)),
            node.reachable_within_ms.map_or_else(unknown, short),
            if node.enrolled { "yes" } else { "no" }.to_owned(),
        ]
    });
    std::iter::once(title.map(str::to_owned).to_vec())
        .chain(lines)
        .collect()
}

/// A duration in its two largest units: `5s`, `3m20s`, `7h5m`, `40d2h`.
fn age(ms: u64) -> String {
    let seconds = ms / 1000;
    let two = |large: u64, large_unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{large}{large_unit}"),
        small => format!("{large}{large_unit}{small}{small_unit}"),
    };
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => two(seconds / 60, "m", seconds % 60, "s"),
        3600..86_400 => two(seconds / 3600, "h", seconds % 3600 / 60, "m"),
        _ => two(seconds / 86_400, "d", seconds % 86_400 / 3600, "h"),
    }
}

/// A short duration, to the millisecond below ten seconds.
fn short(ms: u64) -> String {
    if ms < 10_000 { format!("{ms}ms") } else { age(ms) }
}

/// A count of bytes, as data plans count them: powers of ten, one digit after the point.
fn bytes(count: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    match UNITS.iter().find(|(size, _)| count >= *size) {
        Some((size, unit)) => format!("{}.{}{unit}", count / size, count % size / (size / 10)),
        None => format!("{count}B"),
    }
}

pub(crate) async fn backup(server: &Server, file: &Path) -> Result<(), Failure> {
    if !file.is_absolute() {
        let text = format!(
            "{}: the path is of the cloud core's host, so it has to be absolute",
            file.display()
        );
        return Err(Failure::Usage(text));
    }
    match ask(server, &Request::Backup { file: file.to_owned() }).await? {
        Answer::Revision(revision) => print(format!(
            "backed up at revision {revision} to {} on the cloud core's host\n",
            file.display()
        )),
        other => Err(unexpected(&other)),
    }
}

pub(crate) fn own_version() -> Result<(), Failure> {
    print(format!("edgectl     {}\n", env!("CARGO_PKG_VERSION")))
}

pub(crate) async fn version(server: &Server) -> Result<(), Failure> {
    own_version()?;
    let version = server.get("/version").await?;
    let said = |field: &str| version[field].as_str().unwrap_or("unknown").to_owned();
    print(format!("cloud core  {} on {}\n", said("gitVersion"), said("platform")))
}

fn unexpected(answer: &Answer) -> Failure {
    Failure::Admin(format!(
        "the cloud core answered something else ({answer:?}); compare `edgectl version` with the cloud core's"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_lines() {
        let connected = NodeLine {
            name: "edge-1".to_owned(),
            connected: true,
            since_ms: Some(200_999),
            reachable_within_ms: Some(31),
            pending: Some(2),
            bytes: Some((1_234_567, 999)),
            enrolled: true,
        };
        let unseen = NodeLine {
            name: "b".to_owned(),
            connected: false,
            since_ms: None,
            reachable_within_ms: None,
            pending: None,
            bytes: None,
            enrolled: false,
        };
        let lines = node_lines(&[connected, unseen]);
        assert_eq!(
            lines[1],
            ["edge-1", "connected", "3m20s", "2", "1.2MB", "999B", "31ms", "yes"]
        );
        assert_eq!(lines[2], ["b", "not seen", "-", "-", "-", "-", "-", "no"]);
    }

    #[test]
    fn ages_have_two_units() {
        for (ms, expected) in [
            (0, "0s"),
            (59_999, "59s"),
            (60_000, "1m"),
            (3_599_000, "59m59s"),
            (3_600_000, "1h"),
            (86_399_000, "23h59m"),
            (40 * 86_400_000 + 7_200_000, "40d2h"),
        ] {
            assert_eq!(age(ms), expected);
        }
        assert_eq!((short(9_999), short(10_000)), ("9999ms".to_owned(), "10s".to_owned()));
    }

    #[test]
    fn bytes_are_counted_as_data_plans_do() {
        for (count, expected) in [
            (0, "0B"),
            (999, "999B"),
            (1_000, "1.0kB"),
            (1_590_000, "1.5MB"),
            (u64::MAX, "18446744073.7GB"),
        ] {
            assert_eq!(bytes(count), expected);
        }
    }

    #[test]
    fn tokens_are_asked_for_in_full() {
        let command = cli::Token::Create {
            ttl: 7200,
            uses: 2,
            name: None,
            label: vec![("k".to_owned(), "v".to_owned())],
            replace: Some("a".to_owned()),
        };
        let expected = Request::CreateToken {
            ttl_s: 7200,
            uses: 2,
            name: Some("a".to_owned()),
            labels: [("k".to_owned(), "v".to_owned())].into(),
            replace: true,
        };
        assert_eq!(token_request(command), expected);
    }
}
