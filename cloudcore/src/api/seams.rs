//! What the API asks of the node sessions: logs, and when a node was last heard.

use std::sync::Arc;

use hyper::body::Bytes;
use proto::time::Wall;
use tokio::sync::mpsc;

use super::body::{BoxFuture, Cut};
use crate::store::Stored;

/// Which part of a container's log is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogOptions {
    pub container: String,
    pub follow: bool,
    /// The log of the attempt before.
    pub previous: bool,
    pub timestamps: bool,
    pub tail_lines: Option<u64>,
    pub limit_bytes: Option<u64>,
    /// Only what is younger than this many seconds.
    pub since_s: Option<u64>,
    /// Only what is younger than this RFC 3339 time.
    pub since: Option<String>,
}

/// Pieces of a log. It ends when the sender is dropped, or was cut off; dropping the receiver ends the sender.
pub type LogStream = mpsc::Receiver<Result<Bytes, Cut>>;

/// Why there is no log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogsError {
    /// The node has no session, or lost it before it answered.
    #[error("node {node} cannot be reached: {why}")]
    Unreachable { node: String, why: String },
    /// The node answered that there is none (yet, or any more).
    #[error("{0}")]
    Refused(String),
}

/// Opens logs on nodes.
pub trait Logs: Send + Sync + 'static {
    /// Opens the log of a container of a pod that is bound to a node.
    fn open(&self, pod: Arc<Stored>, options: LogOptions) -> BoxFuture<'_, Result<LogStream, LogsError>>;
}

/// The last sign of life of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contact {
    pub at: Wall,
    /// How long it may stay silent before it counts as Unknown.
    pub grace_s: u32,
}

/// What is known of sessions.
pub trait Sessions: Send + Sync + 'static {
    /// The last contact with a node; `None` for one that has never had a session.
    fn contact(&self, node: &str) -> Option<Contact>;
}
