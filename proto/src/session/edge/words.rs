//! What the machine is told, what it asks for, and what it keeps.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::delta::DeltaError;
use crate::digest::{EntryHash, Inventory};
use crate::frame::Refusal;
use crate::object::{Epoch, Key, Revision, Uid};
use crate::session::{Carrier, CommitError, Violation};
use crate::value::{Value, canonical};

/// What a node reported of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub hash: EntryHash,
    /// The canonical form.
    pub form: Vec<u8>,
}

impl Report {
    pub fn new(uid: Uid, value: &Value) -> Self {
        Self {
            hash: EntryHash::of_report(uid, value),
            form: canonical::encode(value),
        }
    }

    pub(super) fn value(&self) -> Value {
        canonical::decode(&self.form).unwrap_or_default()
    }
}

/// The latest report of an object and the last one that the cloud acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reported {
    pub latest: Arc<Report>,
    pub acked: Option<Arc<Report>>,
}

/// What was durable when the machine last stopped.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Recovered {
    pub epoch: Epoch,
    pub applied: Revision,
    pub incarnation: [u8; 8],
    /// The number of the last event, also when it was acknowledged and dropped.
    pub number: u64,
    pub held: Inventory,
    pub reports: BTreeMap<Uid, Reported>,
    pub gone: BTreeSet<Uid>,
    /// Events not acknowledged, as canonical forms, by number.
    pub events: VecDeque<(u64, Vec<u8>)>,
}

/// What is to be made durable, all or nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// To be done in this order.
    pub desired: Vec<Desired>,
    /// `reports`, `gone` and `events` are all there is: whatever else is stored of them goes.
    pub whole: bool,
    /// Replaces what is stored of these; `None` removes.
    pub reports: BTreeMap<Uid, Option<Reported>>,
    /// Whether these are to be told as gone.
    pub gone: BTreeMap<Uid, bool>,
    pub events: Vec<(u64, Vec<u8>)>,
    /// Events up to this number are no longer needed.
    pub events_done: Option<u64>,
    pub mark: Option<(Epoch, Revision)>,
    pub incarnation: Option<[u8; 8]>,
}

/// One change of the desired state.
#[derive(Debug, Clone, PartialEq)]
pub enum Desired {
    Upsert {
        uid: Uid,
        /// Given for an entry that is new here.
        key: Option<Key>,
        revision: Revision,
        change: Change,
    },
    Delete {
        uid: Uid,
    },
}

/// The new content of an entry.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    Full(Value),
    /// What `patch` makes of the stored content of `base`.
    Patch {
        base: Uid,
        patch: crate::delta::Patch,
    },
}

/// What a commit did: for each upsert in order the hash of what is now stored, or why it was left as it was.
pub type Outcome = Vec<Result<EntryHash, DeltaError>>;

impl Change {
    /// The content, given what is stored of the base.
    pub fn apply(self, base: impl FnOnce(Uid) -> Option<Value>) -> Result<Value, DeltaError> {
        match self {
            Self::Full(value) => Ok(value),
            Self::Patch { base: uid, patch } => patch.apply(&base(uid).ok_or(DeltaError::NoField)?),
        }
    }
}

/// What others want to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// These entries changed, came or went, durably.
    Changed(Vec<Uid>),
    /// A session is up; the cloud's time is this.
    Up {
        now_ms: i64,
    },
    /// The view of this revision is held whole.
    Synced(Revision),
    Refused(Refusal),
    /// The other end broke the protocol.
    Violated(Violation),
    /// A commit failed; what it held is tried again later.
    NotDurable(CommitError),
    /// New [`crate::enrol::Credentials`], as JSON.
    Certificate(Vec<u8>),
    /// So many events were dropped unsent.
    EventsDropped(u64),
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// A carrier to the cloud is there. It replaces the one before.
    Connected(Carrier),
    /// It is gone. Says nothing of a newer one.
    Lost(Carrier),
    Frame(Vec<u8>),
    /// What the node now sees of these objects.
    Reports(Vec<(Uid, Value)>),
    /// Nothing of this object, which is being deleted, is left here.
    Gone(Uid),
    Event(Value),
    /// A certificate signing request to send, PEM; kept until the session is up.
    Request(Vec<u8>),
    /// Save what waits for the next commit: the process is about to end.
    Flush,
}
