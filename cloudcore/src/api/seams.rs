//! What the API asks of the node sessions: logs, and when a node was last heard.

use std::sync::Arc;

use hyper::body::Bytes;
use proto::time::{Mono, Wall};
use tokio::sync::mpsc;

use super::body::BoxFuture;
use crate::controllers::node_life;
use crate::controllers::sessions::{self, SessionState};
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

/// Pieces of a log. It ends when the sender is dropped; dropping the receiver ends the sender.
pub type LogStream = mpsc::Receiver<Bytes>;

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

/// The hub's board says it: a node in contact is heard now, a silent one was when it was last heard.
impl Sessions for sessions::Sessions {
    fn contact(&self, node: &str) -> Option<Contact> {
        let state = self.get(node)?;
        Some(contact(state, daemon::clock::mono(), daemon::clock::wall()))
    }
}

fn contact(state: SessionState, now: Mono, wall: Wall) -> Contact {
    let ago = match state.contact {
        sessions::Contact::Connected { .. } => 0,
        sessions::Contact::Silent { since } => i64::try_from(now.since(since).as_millis()).unwrap_or(i64::MAX),
    };
    Contact {
        at: Wall { ms: wall.ms.saturating_sub(ago), trusted: wall.trusted },
        grace_s: u32::try_from(node_life::grace(state.beat).as_secs()).unwrap_or(u32::MAX),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_silent_node_was_heard_when_it_was_heard() {
        let wall = Wall { ms: 100_000, trusted: true };
        let check = |state: sessions::Contact, beat_s: u64, ms: i64, grace_s: u32| {
            let beat = Duration::from_secs(beat_s);
            let found = contact(SessionState { contact: state, beat }, Mono(50_000), wall);
            assert_eq!((found.at.ms, found.grace_s), (ms, grace_s));
        };
        check(sessions::Contact::Connected { since: Mono(1) }, 5, 100_000, 40);
        check(sessions::Contact::Silent { since: Mono(20_000) }, 30, 70_000, 70);
    }
}
