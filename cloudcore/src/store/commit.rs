//! What can be written, and why a write is refused.

use std::sync::Arc;

use proto::digest::EntryHash;
use proto::object::{Key, Kind, Revision, Uid};
use proto::value::Value;

use super::projection;
use super::stored::Form;

/// The largest object, report or record, in its stored form.
pub const OBJECT_BYTES_MAX: usize = 3 << 19;

/// The most writes of one commit.
pub const OPS_MAX: usize = 1000;

/// One write. The operations of a commit see each other in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// The value carries `metadata.uid`; it is the caller who makes it, with time and generation.
    Create {
        key: Key,
        value: Value,
    },
    /// The same body as before changes nothing and takes no revision.
    Replace {
        key: Key,
        value: Value,
        when: When,
    },
    Delete {
        key: Key,
        when: When,
    },
    /// What `node` says of an object; `None` takes its report back. The newest one wins. Of a Pod only the node that it
    /// is bound to has a say, of a Node only itself. A report on what is gone comes to nothing: it was under way too long.
    Report {
        uid: Uid,
        node: String,
        value: Option<Value>,
    },
    PutRecord {
        space: &'static str,
        id: String,
        bytes: Vec<u8>,
    },
    DeleteRecord {
        space: &'static str,
        id: String,
    },
    /// Writes nothing: the commit fails unless the record is as given, or absent.
    ExpectRecord {
        space: &'static str,
        id: String,
        bytes: Option<Vec<u8>>,
    },
}

/// What must hold of the object as it is, beside that it exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct When {
    pub uid: Option<Uid>,
    pub revision: Option<Revision>,
}

impl When {
    /// No condition.
    pub const ANY: Self = Self { uid: None, revision: None };

    /// Exactly the version that somebody has read.
    pub fn unchanged(object: &super::Stored) -> Self {
        Self { uid: Some(object.uid), revision: Some(object.revision) }
    }
}

/// A commit of which nothing was done.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CommitError {
    #[error("{0} exists already")]
    Exists(Key),
    #[error("{0} does not exist")]
    NotFound(Key),
    #[error("{key} is at revision {found}, not {wanted}")]
    Conflict { key: Key, wanted: Revision, found: Revision },
    #[error("{key} has the uid {found}, not {wanted}")]
    Uid { key: Key, wanted: Uid, found: Uid },
    #[error("the uid {uid} belongs to {key}")]
    UidTaken { uid: Uid, key: Key },
    #[error("node {node} has no say about {key}")]
    NotItsNode { key: Key, node: String },
    #[error("{field} of {key} is missing or does not fit its place")]
    Malformed { key: Key, field: &'static str },
    #[error("the record {space}/{id} is not as expected")]
    Record { space: &'static str, id: String },
    #[error("{what} has {bytes} bytes, more than {OBJECT_BYTES_MAX}")]
    TooLarge { what: String, bytes: usize },
    #[error("{0} operations in one commit are more than {OPS_MAX}")]
    TooMany(usize),
    #[error("the store has no room left")]
    Full,
    #[error("the store is closed")]
    Closed,
    #[error("writing to the store")]
    Failed(#[source] Arc<rusqlite::Error>),
}

impl CommitError {
    /// The same commit may pass when the caller has read again what it is based on.
    pub fn is_conflict(&self) -> bool {
        matches!(
            self,
            Self::Exists(_) | Self::NotFound(_) | Self::Conflict { .. } | Self::Uid { .. } | Self::Record { .. }
        )
    }

    /// The same commit may pass later, unchanged.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Full | Self::Failed(_))
    }
}

/// An operation that is encoded and measured: what callers do for themselves before they queue for the writer.
#[derive(Debug)]
pub(super) enum Prepared {
    Create { key: Key, body: Body },
    Replace { key: Key, body: Body, when: When },
    Delete { key: Key, when: When },
    Report { uid: Uid, node: Arc<str>, form: Option<Form> },
    PutRecord { space: &'static str, id: String, bytes: Arc<[u8]> },
    DeleteRecord { space: &'static str, id: String },
    ExpectRecord { space: &'static str, id: String, bytes: Option<Vec<u8>> },
}

/// What an object's value comes down to.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) uid: Uid,
    pub(super) form: Form,
    pub(super) node: Option<Arc<str>>,
    pub(super) projection: Option<EntryHash>,
}

impl Prepared {
    pub(super) fn new(op: Op) -> Result<Self, CommitError> {
        Ok(match op {
            Op::Create { key, value } => Self::Create { body: body(&key, value)?, key },
            Op::Replace { key, value, when } => Self::Replace { body: body(&key, value)?, key, when },
            Op::Delete { key, when } => Self::Delete { key, when },
            Op::Report { uid, node, value } => {
                let form = value.as_ref().map(Form::of);
                fits(|| format!("the report on {uid}"), form.as_ref().map_or(0, Form::len))?;
                Self::Report { uid, node: node.into(), form }
            }
            Op::PutRecord { space, id, bytes } => {
                fits(|| format!("the record {space}/{id}"), bytes.len())?;
                Self::PutRecord { space, id, bytes: bytes.into() }
            }
            Op::DeleteRecord { space, id } => Self::DeleteRecord { space, id },
            Op::ExpectRecord { space, id, bytes } => Self::ExpectRecord { space, id, bytes },
        })
    }

    /// What it adds to a group; see [`super::lanes::GROUP_COST_MAX`].
    pub(super) fn cost(&self) -> u32 {
        let bytes = match self {
            Self::Create { body, .. } | Self::Replace { body, .. } => body.form.len(),
            Self::Report { form, .. } => form.as_ref().map_or(0, Form::len),
            Self::PutRecord { bytes, .. } => bytes.len(),
            Self::Delete { .. } | Self::DeleteRecord { .. } | Self::ExpectRecord { .. } => 0,
        };
        u32::try_from(bytes / 1024).unwrap_or(u32::MAX - 1) + 1
    }
}

fn fits(what: impl FnOnce() -> String, bytes: usize) -> Result<(), CommitError> {
    if bytes > OBJECT_BYTES_MAX {
        return Err(CommitError::TooLarge { what: what(), bytes });
    }
    Ok(())
}

fn body(key: &Key, mut value: Value) -> Result<Body, CommitError> {
    let malformed = |field| CommitError::Malformed { key: key.clone(), field };
    if value.text_at(&["metadata", "name"]) != Some(&key.name) {
        return Err(malformed("metadata.name"));
    }
    if value.text_at(&["metadata", "namespace"]).unwrap_or_default() != key.namespace {
        return Err(malformed("metadata.namespace"));
    }
    if Kind::of(&value).as_ref() != Some(&key.kind) {
        return Err(malformed("kind"));
    }
    let uid = Uid::of(&value).ok_or_else(|| malformed("metadata.uid"))?;
    // A revision is where an object is kept, not what it says.
    value.remove(&["metadata", "resourceVersion"]);
    let form = Form::of(&value);
    fits(|| key.to_string(), form.len())?;
    let node = match key.kind.as_str() {
        "Pod" => value.text_at(&["spec", "nodeName"]).filter(|node| !node.is_empty()),
        _ => None,
    };
    Ok(Body {
        uid,
        node: node.map(Arc::from),
        projection: projection::entry_hash(key, uid, &value),
        form,
    })
}
