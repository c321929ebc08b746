//! The model of a node: its disk, what it runs, and the real machine in between.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use proto::digest::{EntryHash, Inventory};
use proto::object::{Epoch, Key, Revision, Uid};
use proto::session::CommitError;
use proto::session::edge::{Batch, Desired, Edge, Outcome, Recovered, Reported};
use proto::time::BootId;
use proto::value::Value;

/// What is durable on a node.
#[derive(Debug, Clone, Default)]
pub(crate) struct Disk {
    pub(crate) desired: BTreeMap<Uid, (Key, Revision, Value)>,
    reports: BTreeMap<Uid, Reported>,
    gone: BTreeSet<Uid>,
    events: VecDeque<(u64, Vec<u8>)>,
    number: u64,
    mark: (Epoch, Revision),
    incarnation: [u8; 8],
}

impl Disk {
    pub(crate) fn commit(&mut self, batch: Batch) -> Result<Outcome, CommitError> {
        let mut outcome = Outcome::new();
        for desired in batch.desired {
            match desired {
                Desired::Upsert { uid, key, revision, change } => {
                    let stored = change.apply(|base| self.desired.get(&base).map(|(_, _, value)| value.clone()));
                    let key = key.or_else(|| self.desired.get(&uid).map(|(key, _, _)| key.clone()));
                    outcome.push(match (stored, key) {
                        (Ok(value), Some(key)) => {
                            let hash = EntryHash::of(&key, uid, &value);
                            self.desired.insert(uid, (key, revision, value));
                            Ok(hash)
                        }
                        (Ok(_), None) => Err(proto::delta::DeltaError::NoField),
                        (Err(error), _) => Err(error),
                    });
                }
                Desired::Delete { uid } => {
                    self.desired.remove(&uid);
                }
            }
        }
        if batch.whole {
            self.reports.clear();
            self.gone.clear();
            self.events.clear();
        }
        for (uid, row) in batch.reports {
            match row {
                Some(row) => self.reports.insert(uid, row),
                None => self.reports.remove(&uid),
            };
        }
        for (uid, gone) in batch.gone {
            if gone {
                self.gone.insert(uid)
            } else {
                self.gone.remove(&uid)
            };
        }
        for (number, event) in batch.events {
            if self.events.back().is_none_or(|(last, _)| *last < number) {
                self.events.push_back((number, event));
                self.number = number;
            }
        }
        if let Some(done) = batch.events_done {
            self.events.retain(|(number, _)| *number > done);
        }
        self.mark = batch.mark.unwrap_or(self.mark);
        self.incarnation = batch.incarnation.unwrap_or(self.incarnation);
        Ok(outcome)
    }

    pub(crate) fn inventory(&self) -> Inventory {
        let held = self.desired.iter();
        held.map(|(uid, (key, _, value))| (*uid, EntryHash::of(key, *uid, value)))
            .collect()
    }

    fn recover(&self) -> Recovered {
        Recovered {
            epoch: self.mark.0,
            applied: self.mark.1,
            incarnation: self.incarnation,
            number: self.number,
            held: self.inventory(),
            reports: self.reports.clone(),
            gone: self.gone.clone(),
            events: self.events.clone(),
        }
    }
}

/// One running workload.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Container {
    pub(crate) key: Key,
    pub(crate) spec: Value,
    pub(crate) ready: bool,
}

/// A node.
#[derive(Debug)]
pub(crate) struct EdgeCore {
    pub(crate) disk: Disk,
    /// Copies of the disk that may be put back.
    pub(crate) copies: Vec<Disk>,
    pub(crate) disk_full: bool,
    /// `None` while the edge core is down.
    pub(crate) machine: Option<Edge>,
    boots: u64,
    /// What runs: it lives on when the edge core dies, and is gone after a reboot.
    pub(crate) runtime: BTreeMap<Uid, Container>,
    pub(crate) starts: u64,
    /// The disk was replaced: what the cloud knows of it holds again from the next session on.
    pub(crate) replaced: bool,
    pub(crate) commits: u64,
}

impl EdgeCore {
    pub(crate) fn new() -> Self {
        Self {
            disk: Disk::default(),
            copies: Vec::new(),
            disk_full: false,
            machine: None,
            boots: 0,
            runtime: BTreeMap::new(),
            starts: 0,
            replaced: false,
            commits: 0,
        }
    }

    /// Starts the edge core from its disk.
    pub(crate) fn start(&mut self, node: usize, seed: u64) {
        let mut boot = [0; 16];
        boot[..8].copy_from_slice(&self.boots.to_le_bytes());
        boot[8] = u8::try_from(node).unwrap_or(u8::MAX);
        self.machine = Some(Edge::new(BootId(boot), 30, seed, self.disk.recover()));
    }

    /// Power off: nothing runs any more.
    pub(crate) fn power_off(&mut self) {
        self.machine = None;
        self.boots += 1;
        self.runtime.clear();
    }

    /// Brings the runtime to what the disk says, and returns what there is to report and what is gone.
    ///
    /// `removed` tells whether the cloud ever took an object out of this node's view: nothing else justifies stopping.
    pub(crate) fn reconcile(&mut self, removed: impl Fn(Uid) -> bool) -> (Vec<(Uid, Value)>, Vec<Uid>) {
        let unknown: Vec<_> = self
            .runtime
            .keys()
            .copied()
            .filter(|uid| !self.disk.desired.contains_key(uid))
            .collect();
        for uid in unknown {
            assert!(removed(uid), "{uid} was stopped and the cloud never took it away");
            self.runtime.remove(&uid);
        }
        let (mut reports, mut gone) = (Vec::new(), Vec::new());
        let pods = self
            .disk
            .desired
            .iter()
            .filter(|(_, (key, _, _))| key.kind.as_str() == "Pod");
        let (deleting, wanted): (Vec<_>, Vec<_>) =
            pods.partition(|(_, (_, _, body))| body.at(&["metadata", "deletionTimestamp"]).is_some());
        for (uid, _) in deleting {
            self.runtime.remove(uid);
            gone.push(*uid);
        }
        for (uid, (key, _, body)) in wanted {
            let spec = body.get("spec").cloned().unwrap_or_default();
            let runs = self.runtime.get(uid).is_some_and(|container| container.spec == spec);
            if !runs {
                let other = self
                    .runtime
                    .iter()
                    .find(|(other, container)| *other != uid && container.key == *key);
                assert!(other.is_none(), "{key} would run twice");
                self.runtime
                    .insert(*uid, Container { key: key.clone(), spec: spec.clone(), ready: true });
                self.starts += 1;
            }
            reports.push((*uid, status(&self.runtime[uid])));
        }
        let own = self
            .disk
            .desired
            .iter()
            .filter(|(_, (key, _, _))| key.kind.as_str() == "Node");
        reports.extend(own.map(|(uid, _)| (*uid, Value::from([("boots", Value::from(self.boots))]))));
        (reports, gone)
    }
}

/// What a node says of one workload.
pub(crate) fn status(container: &Container) -> Value {
    Value::from([
        ("phase", Value::from("Running")),
        ("ready", container.ready.into()),
        ("observed", container.spec.clone()),
        (
            "conditions",
            Value::from_iter([Value::from([("type", "Ready"), ("status", "True")])]),
        ),
    ])
}

/// The reports that a node's machine takes for acknowledged, by their hashes.
pub(crate) fn acked(disk: &Disk) -> impl Iterator<Item = (Uid, EntryHash)> + '_ {
    disk.reports
        .iter()
        .filter_map(|(uid, row)| Some((*uid, row.acked.as_ref().map(Arc::as_ref)?.hash)))
}
