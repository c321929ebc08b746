//! The roll of enrolments, in memory for the verifiers of both doors; the ledger keeps it.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use proto::enrol::EnrolmentId;
use proto::object::Uid;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// How many serial numbers of its certificates an enrolment remembers, the newest last.
const SERIALS_MAX: usize = 4;

/// Enrolments on the roll, revoked ones too. Who comes after is told to try later, and the log says why.
pub const ENROLMENTS_MAX: usize = 250_000;

/// Revoked enrolments of one node that are remembered. A key that was forgotten is unknown, which bars it as well.
pub(super) const REVOKED_MAX: usize = 4;

/// One key that was let in, for one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enrolment {
    pub id: EnrolmentId,
    pub node: String,
    pub node_uid: Uid,
    /// SHA-256 over the SubjectPublicKeyInfo.
    pub key: [u8; 32],
    /// The token that let it in.
    pub token: String,
    pub created_ms: i64,
    pub serials: Vec<String>,
    pub revoked: bool,
}

impl Enrolment {
    /// Remembers a certificate.
    pub(super) fn certified(&mut self, serial: String) {
        if self.serials.len() >= SERIALS_MAX {
            self.serials.remove(0);
        }
        self.serials.push(serial);
    }
}

/// Every enrolment, by what it is looked up by.
#[derive(Debug)]
pub struct Roll {
    entries: RwLock<Entries>,
    changes: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Entries {
    by_id: BTreeMap<EnrolmentId, Arc<Enrolment>>,
    by_key: BTreeMap<[u8; 32], EnrolmentId>,
    /// Of a node's enrolments at most one is not revoked.
    by_node: BTreeMap<String, EnrolmentId>,
}

impl Roll {
    pub(super) fn new(enrolments: impl IntoIterator<Item = Enrolment>) -> Self {
        let roll = Self { entries: RwLock::default(), changes: watch::Sender::new(()) };
        roll.apply(enrolments);
        roll
    }

    /// An enrolment, also a revoked one.
    pub fn get(&self, id: EnrolmentId) -> Option<Arc<Enrolment>> {
        self.read().by_id.get(&id).cloned()
    }

    /// The enrolment of a key, also a revoked one.
    pub fn by_key(&self, key: [u8; 32]) -> Option<Arc<Enrolment>> {
        let entries = self.read();
        entries.by_id.get(entries.by_key.get(&key)?).cloned()
    }

    /// The enrolment that stands for a node now.
    pub fn of_node(&self, node: &str) -> Option<Arc<Enrolment>> {
        let entries = self.read();
        entries.by_id.get(entries.by_node.get(node)?).cloned()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.read().by_id.len()
    }

    /// Which revoked enrolments of a node to forget once another is revoked: the oldest beyond the limit.
    pub(super) fn to_forget(&self, node: &str) -> Vec<EnrolmentId> {
        let entries = self.read();
        let revoked = entries
            .by_id
            .values()
            .filter(|other| other.revoked && other.node == node);
        let mut revoked: Vec<_> = revoked.map(|enrolment| (enrolment.created_ms, enrolment.id)).collect();
        revoked.sort_unstable();
        let keep = REVOKED_MAX - 1;
        revoked.truncate(revoked.len().saturating_sub(keep));
        revoked.into_iter().map(|(_, id)| id).collect()
    }

    /// Whether this enrolment may not connect: because it was revoked, or was never there.
    pub fn is_revoked(&self, id: EnrolmentId) -> bool {
        self.get(id).is_none_or(|enrolment| enrolment.revoked)
    }

    /// Wakes whenever an enrolment changed; what changed is to be looked up.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Takes over what was committed.
    pub(super) fn apply(&self, enrolments: impl IntoIterator<Item = Enrolment>) {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        for enrolment in enrolments {
            let (id, node) = (enrolment.id, &enrolment.node);
            if !enrolment.revoked {
                entries.by_node.insert(node.clone(), id);
            } else if entries.by_node.get(node) == Some(&id) {
                entries.by_node.remove(node);
            }
            entries.by_key.insert(enrolment.key, id);
            entries.by_id.insert(id, Arc::new(enrolment));
        }
        drop(entries);
        self.changes.send_replace(());
    }

    /// Takes over what was deleted.
    pub(super) fn forget(&self, ids: &[EnrolmentId]) {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        for id in ids {
            if let Some(enrolment) = entries.by_id.remove(id) {
                entries.by_key.remove(&enrolment.key);
            }
        }
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Entries> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner)
    }
}
