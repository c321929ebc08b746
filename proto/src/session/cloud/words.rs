//! What the machine is told, what it looks at, and what it asks for.

use crate::digest::{EntryHash, Inventory};
use crate::object::{Epoch, Key, Revision, Uid};
use crate::session::{Carrier, CommitError, Violation};
use crate::time::BootId;
use crate::value::Value;

/// What a node should hold, as the store has it now. Every answer is of one moment.
pub trait View {
    fn epoch(&self) -> Epoch;

    /// The revision that [`View::entries`] is of.
    fn revision(&self) -> Revision;

    /// Milliseconds since 1970.
    fn now_ms(&self) -> i64;

    /// The whole view, in the order in which a node should get it.
    fn entries(&self) -> Vec<Entry>;

    /// The whole view as it was at a revision; `None` when that is no longer known.
    fn entries_at(&self, revision: Revision) -> Option<Vec<Entry>>;

    /// The projection of an object as of a revision; `None` when it is no longer known.
    fn projection(&self, key: &Key, uid: Uid, revision: Revision) -> Option<Value>;

    /// What the node reported of an object of its view.
    fn report(&self, uid: Uid) -> Option<Value>;

    /// The hashes of all that the node reported of objects of its view.
    fn reports(&self) -> Inventory;

    /// The incarnation of the node's store that events came from, and the number of the last one.
    fn received(&self) -> Option<([u8; 8], u64)>;
}

/// One entry of a view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub uid: Uid,
    pub key: Key,
    /// At which the projection last changed.
    pub revision: Revision,
    pub hash: EntryHash,
}

/// What is to be made durable, all or nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    pub reports: Vec<(Uid, Value)>,
    /// Objects of which nothing is left on the node: those being deleted can go.
    pub gone: Vec<Uid>,
    pub events: Vec<(u64, Value)>,
    /// What [`View::received`] is to say afterwards.
    pub received: Option<([u8; 8], u64)>,
}

/// What others want to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// A session is confirmed; it replaced one of another boot if `replaced`.
    Up {
        boot: BootId,
        beat_s: u16,
        replaced: bool,
    },
    /// The node holds the view of this revision: nothing older is needed for it.
    Acked(Revision),
    /// The node knows of a later revision than the store: the store must begin a new epoch beyond it.
    Behind(Revision),
    /// Another machine holds this node's key.
    Duplicate(BootId),
    /// The node was refused: it speaks none of our frame versions, or has another dictionary.
    Foreign {
        versions: (u8, u8),
    },
    Violated(Violation),
    NotDurable(CommitError),
    /// A certificate signing request, PEM.
    Request(Vec<u8>),
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    Frame(Carrier, Vec<u8>),
    /// The carrier is gone.
    Lost(Carrier),
    /// The node's view may have changed.
    Changed,
    /// The answer to [`News::Request`]: [`crate::enrol::Credentials`] as JSON.
    Certificate(Vec<u8>),
}
