//! What the hub knows of each node's session: the input of node life.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use daemon::reconcile::Handle;
use proto::object::Key;
use proto::time::Mono;
use reconcile::Lane;

/// A node's session, as the hub sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionState {
    pub contact: Contact,
    /// How often the node promised to be heard.
    pub beat: Duration,
}

/// Whether there is a session, and since when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contact {
    Connected {
        since: Mono,
    },
    /// `since` is when it was last heard, not when that was noticed.
    Silent {
        since: Mono,
    },
    /// Its key was revoked: it is not let in, and that is known at once.
    Barred {
        since: Mono,
    },
}

impl Contact {
    /// Since when it is as it is.
    pub fn since(self) -> Mono {
        match self {
            Self::Connected { since } | Self::Silent { since } | Self::Barred { since } => since,
        }
    }
}

/// The board of all sessions. The hub writes it, node life reads it; bounded by the nodes, which are objects.
#[derive(Debug, Clone, Default)]
pub struct Sessions {
    board: Arc<Mutex<Board>>,
}

#[derive(Debug, Default)]
struct Board {
    nodes: BTreeMap<String, SessionState>,
    woken: Option<Handle<Key>>,
}

impl Sessions {
    /// The hub has something new about a node.
    pub fn set(&self, node: &str, state: SessionState, now: Mono) {
        let woken = {
            let mut board = self.lock();
            let before = board.nodes.insert(node.to_owned(), state);
            board.woken.clone().filter(|_| before != Some(state))
        };
        if let Some(handle) = woken {
            handle.add(Key::new("Node", "", node), Lane::Fast, now);
        }
    }

    /// What is known of a node; `None` when it has had no session since this process started.
    pub fn get(&self, node: &str) -> Option<SessionState> {
        self.lock().nodes.get(node).copied()
    }

    /// Forgets a node that was deleted.
    pub fn forget(&self, node: &str) {
        self.lock().nodes.remove(node);
    }

    /// Whom to wake when something is new: node life's queue.
    pub fn wake(&self, handle: Handle<Key>) {
        self.lock().woken = Some(handle);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
