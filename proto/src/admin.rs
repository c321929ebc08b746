//! What administrators ask of a cloud core beside the Kubernetes API: join tokens, nodes as sessions, back-ups.
//!
//! JSON both ways: a [`Request`] in the body of a POST to [`PATH`] with an admin's certificate, an [`Answer`] back.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Where the requests are taken on the API's port.
pub const PATH: &str = "/edgehold/v1/admin";

/// What may be asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "do")]
pub enum Request {
    CreateToken {
        #[serde(default = "hour")]
        ttl_s: u64,
        #[serde(default = "one")]
        uses: u32,
        #[serde(default)]
        name: Option<String>,
        #[serde(default)]
        labels: BTreeMap<String, String>,
        /// Whether the node that holds the name loses it.
        #[serde(default)]
        replace: bool,
    },
    Tokens,
    DeleteToken {
        id: String,
    },
    Nodes,
    /// Bars a node's key. Its sessions end within seconds.
    Revoke {
        node: String,
    },
    /// Copies the store to a file on the cloud core's host.
    Backup {
        file: PathBuf,
    },
}

fn hour() -> u64 {
    3600
}

fn one() -> u32 {
    1
}

/// The seconds in a length of time as it is typed: `90s`, `30m`, `1h`, `7d`.
pub fn seconds(text: &str) -> Result<u64, &'static str> {
    let parsed = || {
        let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
        let number: u64 = number.parse().ok()?;
        number.checked_mul(match unit {
            "s" => 1,
            "m" => 60,
            "h" => 3600,
            "d" => 86_400,
            _ => return None,
        })
    };
    parsed().ok_or("not a length of time, such as 90s, 30m, 1h, 7d")
}

/// A label as it is typed: `KEY=VALUE`.
pub fn label(text: &str) -> Result<(String, String), &'static str> {
    let (key, value) = text.split_once('=').ok_or("not KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// The text of a new token: it exists only here.
    Token(String),
    Tokens(Vec<TokenLine>),
    Nodes(Vec<NodeLine>),
    /// Whether there was something to do.
    Done(bool),
    /// The revision that a back-up holds.
    Revision(u64),
    /// What is wrong, and what to do.
    Error(String),
}

/// A token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenLine {
    pub id: String,
    pub ends_ms: i64,
    pub uses_left: u32,
    pub name: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub replace: bool,
}

/// A node as its session shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeLine {
    pub name: String,
    pub connected: bool,
    /// Since when it is connected or silent, in milliseconds ago; `None` when it was never seen in this life of the
    /// cloud core.
    pub since_ms: Option<u64>,
    /// How soon at the latest a change reaches it, while it is connected.
    pub reachable_within_ms: Option<u64>,
    /// Changes of its view that it has not acknowledged.
    pub pending: Option<usize>,
    /// Bytes by UDP of its connection so far, (sent, received) as the cloud sees it.
    pub bytes: Option<(u64, u64)>,
    pub enrolled: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_has_a_default() {
        let request: Request = serde_json::from_str(r#"{"do":"createToken"}"#).unwrap();
        let expected = Request::CreateToken {
            ttl_s: 3600,
            uses: 1,
            name: None,
            labels: BTreeMap::new(),
            replace: false,
        };
        assert_eq!(request, expected);
        assert!(serde_json::from_str::<Request>(r#"{"do":"somethingElse"}"#).is_err());
    }

    #[test]
    fn lengths_of_time() {
        for (text, expected) in [("90s", 90), ("30m", 1800), ("1h", 3600), ("7d", 604_800)] {
            assert_eq!(seconds(text), Ok(expected));
        }
        for text in ["", "h", "1", "1w", "-1h", "1é", "99999999999999999999d"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn labels_have_a_key_and_a_value() {
        assert!(label("a").is_err());
        assert_eq!(label("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
    }

    #[test]
    fn answers_read_as_they_write() {
        let line = NodeLine {
            name: "a".to_owned(),
            connected: true,
            since_ms: Some(1),
            reachable_within_ms: None,
            pending: Some(0),
            bytes: Some((2, 3)),
            enrolled: true,
        };
        for answer in [
            Answer::Nodes(vec![line]),
            Answer::Done(false),
            Answer::Error("no".to_owned()),
        ] {
            let text = serde_json::to_string(&answer).unwrap();
            assert_eq!(serde_json::from_str::<Answer>(&text).unwrap(), answer, "{text}");
        }
    }
}
