//! `edgectl logs`: what containers wrote.
//!
//! A pod is named, or found by what it belongs to, or by labels; a container is named, or is the pod's only one, or the
//! one that `kubectl` would take. Whatever was chosen is said on standard error.

use serde_json::Value;
use tokio::task::JoinSet;

use crate::cli;
use crate::failure::{Failure, all_of};
use crate::lines::Lines;
use crate::near::{closest, explained};
use crate::output::{print, remark};
use crate::resources::{Catalogue, Resource, checked};
use crate::server::{Server, get, with_query};

/// How many logs are followed at once: each holds a place at the cloud core and a tunnel to a node.
const FOLLOWED_MAX: usize = 8;

/// Lines of each log where pods are chosen by labels and nobody says how many.
const TAIL_OF_MANY: u64 = 10;

/// How much of a line is held back until it ends, where several logs are followed.
const LINE_MAX: usize = 64 * 1024;

/// The pod's own word on which container is meant, as `kubectl` reads it.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// One log.
struct Source {
    pod: String,
    container: String,
    path: String,
}

pub(crate) async fn run(server: &Server, args: &cli::Logs) -> Result<(), Failure> {
    let mut sources = Vec::new();
    for pod in pods(server, args).await? {
        let name = text(&pod, "/metadata/name");
        for container in containers(&pod, args)? {
            let path = path(server, args, name, &container);
            sources.push(Source { pod: name.to_owned(), container, path });
        }
    }
    let total = sources.len();
    if args.follow && total > 1 {
        return follow(server, args, sources).await;
    }
    let mut failures = Vec::new();
    for source in &sources {
        if let Err(error) = one(server, source, args.prefix).await {
            if error.is_closed_pipe() {
                return Err(error);
            }
            failures.push(error);
        }
    }
    all_of(failures, total)
}

fn path(server: &Server, args: &cli::Logs, pod: &str, container: &str) -> String {
    let yes = |flag: bool| flag.then_some("true");
    let tail = args.tail.or_else(|| args.selector.as_ref().map(|_| TAIL_OF_MANY));
    let (tail, since) = (
        tail.map(|lines| lines.to_string()),
        args.since.map(|age| age.to_string()),
    );
    let parts = [
        ("container", Some(container)),
        ("follow", yes(args.follow)),
        ("previous", yes(args.previous)),
        ("timestamps", yes(args.timestamps)),
        ("tailLines", tail.as_deref()),
        ("sinceSeconds", since.as_deref()),
        ("sinceTime", args.since_time.as_deref()),
    ];
    with_query(
        &format!("/api/v1/namespaces/{}/pods/{pod}/log", server.namespace),
        &parts,
    )
}

async fn one(server: &Server, source: &Source, prefixed: bool) -> Result<(), Failure> {
    let request = get(&source.path, "*/*")?;
    if !prefixed {
        return server.pieces(request, |piece| print(piece)).await;
    }
    lines_of(server, source, true).await
}

/// Prints whole lines only, for others are printing, too.
async fn lines_of(server: &Server, source: &Source, prefixed: bool) -> Result<(), Failure> {
    let prefix = if prefixed {
        format!("[pod/{}/{}] ", source.pod, source.container)
    } else {
        String::new()
    };
    let line = |line: &[u8]| print([prefix.as_bytes(), line].concat());
    let mut lines = Lines::default();
    let request = get(&source.path, "*/*")?;
    let ended = server.pieces(request, |piece| {
        lines.add(piece, line)?;
        if lines.begun() > LINE_MAX {
            line(&[&lines.take()[..], b"\n"].concat())?;
        }
        Ok(())
    });
    ended.await?;
    match lines.take() {
        rest if rest.is_empty() => Ok(()),
        rest => line(&[&rest[..], b"\n"].concat()),
    }
}

async fn follow(server: &Server, args: &cli::Logs, sources: Vec<Source>) -> Result<(), Failure> {
    let total = sources.len();
    if total > FOLLOWED_MAX {
        return Err(Failure::Usage(format!(
            "{total} logs are meant and {FOLLOWED_MAX} at most are followed at once: choose with --container, or name pods"
        )));
    }
    let (mut tasks, mut failures) = (JoinSet::new(), Vec::new());
    for source in sources {
        let (server, prefixed) = (server.clone(), args.prefix);
        tasks.spawn(async move { lines_of(&server, &source, prefixed).await });
    }
    while let Some(ended) = tasks.join_next().await {
        match ended.map_err(Failure::Task)? {
            Ok(()) => {}
            Err(error) if error.is_closed_pipe() => return Err(error),
            Err(error) => failures.push(error),
        }
    }
    all_of(failures, total)
}

/// The pods that are meant.
async fn pods(server: &Server, args: &cli::Logs) -> Result<Vec<Value>, Failure> {
    let catalogue = Catalogue::of_server(server).await?;
    let pod = catalogue.find("pods")?;
    let namespace = Some(server.namespace.as_str());
    let Some(what) = &args.what else {
        let selector = args.selector.as_deref().unwrap_or_default();
        let pods = selected(server, pod, selector).await?;
        if pods.is_empty() {
            return Err(Failure::NoPods {
                what: format!("the labels {selector}"),
                namespace: server.namespace.clone(),
            });
        }
        return Ok(pods);
    };
    let (resource, name) = match what.split_once('/') {
        Some((word, name)) => (catalogue.find(word)?, checked(name)?),
        None => (pod, checked(what)?),
    };
    let path = resource.path(namespace, Some(&name));
    let object = match server.get(&path).await {
        Ok(object) => object,
        Err(error) => return Err(explained(server, resource, namespace, &name, error).await),
    };
    if resource == pod {
        return Ok(vec![object]);
    }
    let called = resource.full_name(&name);
    let Some(selector) = selector_of(&object) else {
        return Err(Failure::Usage(format!(
            "{called} has no pods of its own: name a pod, a Deployment, a ReplicaSet, a DaemonSet or a Service"
        )));
    };
    let mut found = selected(server, pod, &selector).await?;
    let count = found.len();
    found.sort_by_cached_key(rank);
    let Some(chosen) = found.into_iter().next() else {
        return Err(Failure::NoPods { what: called, namespace: server.namespace.clone() });
    };
    if count > 1 {
        remark(&format!(
            "Found {count} pods, using pod/{}",
            text(&chosen, "/metadata/name")
        ));
    }
    Ok(vec![chosen])
}

async fn selected(server: &Server, pod: &Resource, selector: &str) -> Result<Vec<Value>, Failure> {
    let path = pod.path(Some(&server.namespace), None);
    let mut list = server
        .get(&with_query(&path, &[("labelSelector", Some(selector))]))
        .await?;
    Ok(list["items"].as_array_mut().map(std::mem::take).unwrap_or_default())
}

/// The labels of an object's pods, as a query says them.
fn selector_of(object: &Value) -> Option<String> {
    let selector = object.pointer("/spec/selector")?.as_object()?;
    let equal = |labels: &Value| -> Vec<String> {
        let labels = labels.as_object().into_iter().flatten();
        labels
            .filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?)))
            .collect()
    };
    let is_labels = selector.values().all(Value::is_string);
    let mut parts = if is_labels {
        equal(&object["spec"]["selector"])
    } else {
        selector.get("matchLabels").map(equal).unwrap_or_default()
    };
    for one in selector
        .get("matchExpressions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let key = text(one, "/key");
        let values = one["values"].as_array().map_or(&[][..], Vec::as_slice);
        let values: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
        parts.push(match text(one, "/operator") {
            "In" => format!("{key} in ({})", values.join(",")),
            "NotIn" => format!("{key} notin ({})", values.join(",")),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_owned(),
        });
    }
    (!parts.is_empty()).then(|| parts.join(","))
}

/// Where a pod stands among those that may be meant: what runs and is ready first, then the oldest.
fn rank(pod: &Value) -> (bool, u8, bool, bool, String, String) {
    let phase = match text(pod, "/status/phase") {
        "Running" => 0,
        "Succeeded" | "Failed" => 1,
        "Unknown" => 2,
        _ => 3,
    };
    let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
    let ready = conditions.is_some_and(|conditions| {
        conditions
            .iter()
            .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
    });
    (
        text(pod, "/spec/nodeName").is_empty(),
        phase,
        !ready,
        pod.pointer("/metadata/deletionTimestamp").is_some(),
        text(pod, "/metadata/creationTimestamp").to_owned(),
        text(pod, "/metadata/name").to_owned(),
    )
}

/// The containers of a pod that are meant.
fn containers(pod: &Value, args: &cli::Logs) -> Result<Vec<String>, Failure> {
    let names = |field: &str| -> Vec<String> {
        let containers = pod["spec"][field].as_array().map_or(&[][..], Vec::as_slice);
        containers
            .iter()
            .filter_map(|container| container["name"].as_str())
            .map(str::to_owned)
            .collect()
    };
    let (init, own) = (names("initContainers"), names("containers"));
    let all = [init.clone(), own.clone()].concat();
    if args.all_containers {
        return Ok(all);
    }
    if let Some(named) = &args.container {
        return if all.contains(named) {
            Ok(vec![named.clone()])
        } else {
            Err(Failure::NoContainer {
                pod: text(pod, "/metadata/name").to_owned(),
                container: named.clone(),
                near: closest(named, all.iter().map(String::as_str)).map(str::to_owned),
                known: all.join(", "),
            })
        };
    }
    let said = pod["metadata"]["annotations"][DEFAULT_CONTAINER].as_str();
    let said = said.filter(|said| all.iter().any(|name| name == said));
    let Some(chosen) = said.or_else(|| own.first().map(String::as_str)) else {
        return Ok(all);
    };
    if said.is_none() && all.len() > 1 {
        let first = init.iter().map(|name| format!("{name} (init)"));
        let known: Vec<String> = own.iter().cloned().chain(first).collect();
        remark(&format!("Defaulted container {chosen:?} out of: {}", known.join(", ")));
    }
    Ok(vec![chosen.to_owned()])
}

fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_are_found_by_what_they_belong_to() {
        let check = |selector: Value, expected: Option<&str>| {
            assert_eq!(
                selector_of(&json!({"spec": {"selector": selector}})).as_deref(),
                expected
            );
        };
        check(json!({"matchLabels": {"a": "1", "b": "2"}}), Some("a=1,b=2"));
        // Of a service.
        check(json!({"a": "1"}), Some("a=1"));
        check(
            json!({"matchLabels": {"a": "1"}, "matchExpressions": [
                {"key": "k", "operator": "In", "values": ["x", "y"]}, {"key": "l", "operator": "NotIn", "values": ["z"]},
                {"key": "m", "operator": "Exists"}, {"key": "n", "operator": "DoesNotExist"}]}),
            Some("a=1,k in (x,y),l notin (z),m,!n"),
        );
        check(json!({}), None);
        check(json!(null), None);
    }

    #[test]
    fn what_runs_and_is_ready_comes_first() {
        let pod = |name: &str, node: &str, phase: &str, ready: &str, created: &str| {
            json!({
                "metadata": {"name": name, "creationTimestamp": created}, "spec": {"nodeName": node},
                "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]},
            })
        };
        let mut pods = [
            pod("waiting", "", "Pending", "False", "2020"),
            pod("pulling", "n", "Pending", "False", "2020"),
            pod("ended", "n", "Failed", "False", "2020"),
            pod("sick", "n", "Running", "False", "2020"),
            pod("young", "n", "Running", "True", "2022"),
            pod("old", "n", "Running", "True", "2021"),
        ];
        pods.sort_by_cached_key(rank);
        let names: Vec<&str> = pods.iter().map(|pod| text(pod, "/metadata/name")).collect();
        assert_eq!(names, ["old", "young", "sick", "ended", "pulling", "waiting"]);
    }

    #[test]
    fn a_container_is_chosen_as_kubectl_does() {
        let pod = |containers: &[&str], annotation: Option<&str>| {
            let named = |names: &[&str]| names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>();
            json!({
                "metadata": {"name": "p", "annotations": {DEFAULT_CONTAINER: annotation}},
                "spec": {"containers": named(containers), "initContainers": named(&["first"])},
            })
        };
        let check = |line: &str, pod: &Value, expected: &[&str]| {
            let cli::Command::Logs(args) = cli::parsed(&format!("edgectl logs p {line}")) else {
                panic!("not logs");
            };
            assert_eq!(containers(pod, &args).unwrap(), expected, "{line}");
        };
        let two = pod(&["web", "side"], None);
        check("", &two, &["web"]);
        check("-c side", &two, &["side"]);
        check("-c first", &two, &["first"]);
        check("--all-containers", &two, &["first", "web", "side"]);
        check("", &pod(&["web", "side"], Some("side")), &["side"]);
        check("", &pod(&["web", "side"], Some("gone")), &["web"]);
        let cli::Command::Logs(args) = cli::parsed("edgectl logs p -c wbe") else {
            panic!("not logs");
        };
        let said = containers(&two, &args).unwrap_err().to_string();
        assert_eq!(
            said,
            "pod p has no container wbe, it has first, web, side: did you mean web?"
        );
    }
}
