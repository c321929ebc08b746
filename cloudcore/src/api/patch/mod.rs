//! The three kinds of patches, applied to a tree: JSON patch, merge patch, strategic merge patch.
//!
//! Pure: the target is not touched, the result is not yet checked against the schema (`codec::conform` does that).
//! The quirks are those of a real server, since clients were written against it.

mod json_patch;
mod merge;
mod strategic;
#[cfg(test)]
mod tests;

use proto::value::{Value, json};

use super::codec::{BODY_BYTES_MAX, json_words};
use super::schema::KindSchema;

/// Most operations of one JSON patch.
pub const OPERATIONS_MAX: usize = 10_000;

/// How a patch is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchKind {
    Json,
    Merge,
    Strategic,
}

impl PatchKind {
    /// By the content type of the request; `None` when it is none of a patch.
    pub fn of_content_type(content_type: &str) -> Option<Self> {
        let media = content_type.split(';').next().unwrap_or_default().trim();
        match media.to_ascii_lowercase().as_str() {
            "application/json-patch+json" => Some(Self::Json),
            "application/merge-patch+json" => Some(Self::Merge),
            "application/strategic-merge-patch+json" => Some(Self::Strategic),
            _ => None,
        }
    }
}

/// A patch that cannot be applied. The text is the message of the `Status`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    #[error("error decoding patch: {0}")]
    Decode(String),
    #[error("Request entity too large: limit is {BODY_BYTES_MAX}")]
    TooLarge,
    #[error("The allowed maximum operations in a JSON patch is {OPERATIONS_MAX}, got {0}")]
    TooMany(usize),
    /// A JSON patch that does not apply; a real server does not say why.
    #[error("the server rejected our request due to an error in our request")]
    Rejected,
    #[error("invalid patch format of {0}")]
    Directive(&'static str),
    /// A strategic merge patch that contradicts the schema.
    #[error("{0}")]
    Strategic(String),
}

impl PatchError {
    /// The HTTP status.
    pub fn code(&self) -> u16 {
        match self {
            Self::Decode(_) | Self::Directive(_) => 400,
            Self::TooLarge | Self::TooMany(_) => 413,
            Self::Rejected => 422,
            Self::Strategic(_) => 500,
        }
    }

    /// The reason of the `Status`; a real server gives none for its own failures.
    pub fn reason(&self) -> Option<&'static str> {
        match self {
            Self::Decode(_) | Self::Directive(_) => Some("BadRequest"),
            Self::TooLarge | Self::TooMany(_) => Some("RequestEntityTooLarge"),
            Self::Rejected => Some("Invalid"),
            Self::Strategic(_) => None,
        }
    }
}

/// The target with a patch applied. `schema` is that of the target.
pub fn apply(kind: PatchKind, schema: &KindSchema, target: &Value, patch: &[u8]) -> Result<Value, PatchError> {
    if patch.len() > BODY_BYTES_MAX {
        return Err(PatchError::TooLarge);
    }
    let patch = json::parse(patch).map_err(|_| PatchError::Decode(json_words(patch)))?;
    let go_type = match kind {
        PatchKind::Json => "[]handlers.jsonPatchOp",
        PatchKind::Merge | PatchKind::Strategic => "map[string]interface {}",
    };
    let mismatch = |found: &Value| {
        let found = match found {
            Value::Null => "null",
            Value::Bool(_) => "bool",
            Value::I64(_) | Value::U64(_) | Value::F64(_) => "number",
            Value::Text(_) | Value::Bytes(_) => "string",
            Value::List(_) => "array",
            Value::Map(_) => "object",
        };
        PatchError::Decode(format!(
            "json: cannot unmarshal {found} into Go value of type {go_type}"
        ))
    };
    match (kind, patch) {
        (PatchKind::Json, Value::List(operations)) => json_patch::apply(target.clone(), &operations),
        (PatchKind::Merge, patch @ Value::Map(_)) => Ok(merge::apply(target.clone(), patch)),
        (PatchKind::Strategic, Value::Map(patch)) => strategic::apply(target.clone(), patch, schema.root()),
        (_, Value::Null) => Ok(target.clone()),
        (_, other) => Err(mismatch(&other)),
    }
}
