//! Whether a node is let in: a pure decision over the request and what is known.

use std::collections::BTreeMap;
use std::sync::Arc;

use proto::enrol::{Refused, Request};
use proto::object::Uid;
use proto::time::rfc3339;
use proto::value::{Map, Value};

use super::roll::Enrolment;
use super::tokens::{ANY, Token, is_label_value, is_node_name};

/// What the decision depends on.
pub(super) struct Known<'a> {
    /// The token the request names.
    pub token: Option<&'a Token>,
    /// The enrolment of the request's key, revoked or not.
    pub same_key: Option<Arc<Enrolment>>,
    /// The enrolment that holds a node's name, and the Node object of that name.
    pub holder: &'a dyn Fn(&str) -> Option<Arc<Enrolment>>,
    pub node: &'a dyn Fn(&str) -> Option<Uid>,
    pub now_ms: i64,
}

/// What follows from a request that is admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Admitted {
    pub node: String,
    pub entry: Entry,
    /// The Node object to keep, or none: it is to be made.
    pub keep_node: Option<Uid>,
    pub labels: BTreeMap<String, String>,
}

/// How the node comes in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Entry {
    /// By a key that is known: the same enrolment, which costs the token nothing. So an answer that was lost can be
    /// asked for again.
    Again(Arc<Enrolment>),
    /// By the token: a new enrolment, and with `Some` the end of the one that held the name.
    New(Option<Arc<Enrolment>>),
}

/// Why a node is not let in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("the request cannot be read: {0}")]
    Malformed(String),
    #[error("no such join token, or not its secret; create one with `cloudcore token create`")]
    TokenUnknown,
    #[error("the join token ended at {}; create a new one with `cloudcore token create`", rfc3339(*.0 / 1000))]
    TokenExpired(i64),
    #[error("the join token was used as often as it may be; create a new one with `cloudcore token create`")]
    TokenUsedUp,
    #[error("node: {0:?} is no node name: at most 63 of a-z, 0-9, - and .; pass another with --name")]
    Name(String),
    #[error("node: the join token gives the name {given}, not {wanted:?}")]
    NameNotGiven { given: String, wanted: String },
    #[error("labels: the join token does not give {0:?}")]
    Label(String),
    #[error(
        "node: {0} exists and this is not its key; choose another name, or let an admin create a token with \
         `cloudcore token create --replace {0}`"
    )]
    NameTaken(String),
    #[error("this node's key was revoked; remove node.key and enrolment.json from its data folder and join again")]
    KeyRevoked,
    #[error(
        "this node's key belongs to the node {0}; remove node.key and enrolment.json from its data folder to join under another name"
    )]
    KeyInUse(String),
    #[error("the cloud cannot enrol nodes now: {0}; try again later")]
    Unavailable(String),
}

impl Refusal {
    /// The HTTP status.
    pub(super) fn status(&self) -> u16 {
        match self {
            Self::Malformed(_) => 400,
            Self::TokenUnknown | Self::TokenExpired(_) | Self::TokenUsedUp => 401,
            Self::NameNotGiven { .. } | Self::Label(_) | Self::KeyRevoked => 403,
            Self::NameTaken(_) | Self::KeyInUse(_) => 409,
            Self::Name(_) => 422,
            Self::Unavailable(_) => 503,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "Malformed",
            Self::TokenUnknown => "TokenUnknown",
            Self::TokenExpired(_) => "TokenExpired",
            Self::TokenUsedUp => "TokenUsedUp",
            Self::Name(_) => "NameInvalid",
            Self::NameNotGiven { .. } => "NameNotGiven",
            Self::Label(_) => "LabelNotGiven",
            Self::NameTaken(_) => "NameTaken",
            Self::KeyRevoked => "KeyRevoked",
            Self::KeyInUse(_) => "KeyInUse",
            Self::Unavailable(_) => "Unavailable",
        }
    }

    pub(super) fn body(&self) -> Refused {
        Refused { reason: self.reason().to_owned(), message: self.to_string() }
    }
}

/// Whether and as what the node is let in.
///
/// The token's secret comes first: who does not have it learns nothing about names and keys.
pub(super) fn decide(request: &Request, known: &Known<'_>) -> Result<Admitted, Refusal> {
    let token = known.token.filter(|token| token.is_secret(&request.token_secret));
    let token = token.ok_or(Refusal::TokenUnknown)?;
    if known.same_key.as_ref().is_some_and(|enrolment| enrolment.revoked) {
        return Err(Refusal::KeyRevoked);
    }
    let node = name(request, token, known.same_key.as_deref())?;
    let labels = labels(request, token)?;
    let keep_node = (known.node)(&node);
    if let Some(enrolment) = &known.same_key {
        return if enrolment.node == node {
            Ok(Admitted {
                node,
                entry: Entry::Again(enrolment.clone()),
                keep_node,
                labels,
            })
        } else {
            Err(Refusal::KeyInUse(enrolment.node.clone()))
        };
    }
    if token.ends_ms <= known.now_ms {
        return Err(Refusal::TokenExpired(token.ends_ms));
    }
    if token.uses_left == 0 {
        return Err(Refusal::TokenUsedUp);
    }
    let holder = (known.holder)(&node);
    if (holder.is_some() || keep_node.is_some()) && !token.replace {
        return Err(Refusal::NameTaken(node));
    }
    Ok(Admitted { node, entry: Entry::New(holder), keep_node, labels })
}

fn name(request: &Request, token: &Token, same_key: Option<&Enrolment>) -> Result<String, Refusal> {
    let name = match (&token.name, &request.node) {
        (Some(given), Some(wanted)) if given != wanted => {
            return Err(Refusal::NameNotGiven { given: given.clone(), wanted: wanted.clone() });
        }
        (Some(name), _) | (None, Some(name)) => name.clone(),
        // A host may be renamed; the node it is stays.
        (None, None) => same_key.map_or_else(|| request.hostname.to_ascii_lowercase(), |known| known.node.clone()),
    };
    if is_node_name(&name) {
        Ok(name)
    } else {
        Err(Refusal::Name(name))
    }
}

/// What the token gives, with the node's choice where it has one.
fn labels(request: &Request, token: &Token) -> Result<BTreeMap<String, String>, Refusal> {
    let mut labels = token.labels.clone();
    labels.retain(|_, value| value != ANY);
    for (key, value) in &request.labels {
        match token.labels.get(key) {
            Some(given) if given == value => {}
            Some(given) if given == ANY && is_label_value(value) => {
                labels.insert(key.clone(), value.clone());
            }
            Some(_) | None => return Err(Refusal::Label(format!("{key}={value}"))),
        }
    }
    Ok(labels)
}

/// The Node object of a node that comes in.
pub(super) fn node_object(admitted: &Admitted, request: &Request, uid: Uid, now_ms: i64) -> Value {
    let mut labels: Map = (admitted.labels.iter())
        .map(|(key, value)| (key.clone(), Value::from(value.as_str())))
        .collect();
    for (key, value) in [
        ("kubernetes.io/hostname", admitted.node.as_str()),
        ("kubernetes.io/arch", request.arch.as_str()),
        ("kubernetes.io/os", request.os.as_str()),
    ] {
        // Taken as told, and only if it is a label's value at all.
        if is_label_value(value) && !value.is_empty() {
            labels.insert(key.to_owned(), value.into());
        }
    }
    let mut node = Value::map();
    node.set(&["apiVersion"], "v1");
    node.set(&["kind"], "Node");
    node.set(&["metadata", "name"], admitted.node.as_str());
    node.set(&["metadata", "uid"], uid.to_string());
    node.set(&["metadata", "creationTimestamp"], rfc3339(now_ms.div_euclid(1000)));
    node.set(&["metadata", "labels"], Value::Map(labels));
    node.set(&["spec"], Value::map());
    node.set(&["status"], Value::map());
    node
}
