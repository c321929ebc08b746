//! The model of the cloud's store, and the real machines on top of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use proto::digest::{EntryHash, Inventory};
use proto::object::{Epoch, Key, Revision, Uid};
use proto::session::CommitError;
use proto::session::cloud::{Batch, Cloud, Entry, View};
use proto::value::Value;

use crate::random::Random;

/// Revisions that the model's history reaches back.
const HISTORY: u64 = 40;

/// An object and the nodes whose views it belongs to.
#[derive(Debug, Clone)]
pub(crate) struct Object {
    pub(crate) key: Key,
    pub(crate) nodes: BTreeSet<usize>,
    pub(crate) body: Value,
    pub(crate) deleting: bool,
    revision: Revision,
}

impl Object {
    fn projection(&self) -> Value {
        let mut projection = self.body.clone();
        if self.deleting {
            projection.set(&["metadata", "deletionTimestamp"], "2026-01-01T00:00:00Z");
        }
        projection
    }
}

/// What is durable at the cloud.
#[derive(Debug, Clone, Default)]
pub(crate) struct Store {
    pub(crate) epoch: Epoch,
    pub(crate) revision: Revision,
    pub(crate) objects: BTreeMap<Uid, Object>,
    /// Every version, also those that [`View`] no longer shows; a deletion is `None`.
    versions: BTreeMap<Uid, Vec<(Revision, Option<Object>)>>,
    pub(crate) reports: BTreeMap<(usize, Uid), Value>,
    pub(crate) events: BTreeMap<usize, Vec<Value>>,
    received: BTreeMap<usize, ([u8; 8], u64)>,
}

impl Store {
    pub(crate) fn put(&mut self, uid: Uid, mut object: Object) {
        self.revision.0 += 1;
        object.revision = self.revision;
        self.versions
            .entry(uid)
            .or_default()
            .push((self.revision, Some(object.clone())));
        self.objects.insert(uid, object);
    }

    pub(crate) fn create(&mut self, uid: Uid, key: Key, nodes: BTreeSet<usize>, body: Value) {
        self.put(
            uid,
            Object { key, nodes, body, deleting: false, revision: self.revision },
        );
    }

    pub(crate) fn delete(&mut self, uid: Uid) {
        if self.objects.remove(&uid).is_some() {
            self.revision.0 += 1;
            self.versions.entry(uid).or_default().push((self.revision, None));
            self.reports.retain(|(_, of), _| *of != uid);
        }
    }

    pub(crate) fn view(&self, node: usize) -> BTreeMap<Uid, (Key, Value)> {
        let mine = self.objects.iter().filter(|(_, object)| object.nodes.contains(&node));
        mine.map(|(uid, object)| (*uid, (object.key.clone(), object.projection())))
            .collect()
    }

    pub(crate) fn inventory(&self, node: usize) -> Inventory {
        let view = self.view(node).into_iter();
        view.map(|(uid, (key, body))| (uid, EntryHash::of(&key, uid, &body)))
            .collect()
    }

    /// Begins a new life beyond `revision`, as a restore does.
    pub(crate) fn new_epoch(&mut self, random: &mut Random, revision: Revision) {
        self.epoch = Epoch(random.next());
        self.revision = Revision(self.revision.0.max(revision.0) + 1000);
    }

    fn version_at(&self, uid: Uid, revision: Revision) -> Option<&Object> {
        let versions = self.versions.get(&uid)?;
        versions.iter().rev().find(|(at, _)| *at <= revision)?.1.as_ref()
    }

    /// The view of a node as of a revision, from all versions ever.
    pub(crate) fn entries_at_ever(&self, node: usize, revision: Revision) -> Vec<Entry> {
        let uids = self.versions.keys().copied();
        uids.filter_map(|uid| {
            let object = self.version_at(uid, revision)?;
            object.nodes.contains(&node).then(|| entry(uid, object))
        })
        .collect()
    }
}

fn entry(uid: Uid, object: &Object) -> Entry {
    let hash = EntryHash::of(&object.key, uid, &object.projection());
    Entry {
        uid,
        key: object.key.clone(),
        revision: object.revision,
        hash,
    }
}

/// The store as one node's session sees it.
#[derive(Debug, Clone)]
pub(crate) struct NodeView {
    pub(crate) store: Arc<Mutex<Store>>,
    pub(crate) node: usize,
}

impl NodeView {
    fn with<T>(&self, look: impl FnOnce(&Store) -> T) -> T {
        look(&self.store.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl View for NodeView {
    fn epoch(&self) -> Epoch {
        self.with(|store| store.epoch)
    }

    fn revision(&self) -> Revision {
        self.with(|store| store.revision)
    }

    fn now_ms(&self) -> i64 {
        0
    }

    fn entries(&self) -> Vec<Entry> {
        self.with(|store| store.entries_at_ever(self.node, store.revision))
    }

    fn entries_at(&self, revision: Revision) -> Option<Vec<Entry>> {
        self.with(|store| {
            let known = revision <= store.revision && revision.0 + HISTORY >= store.revision.0;
            known.then(|| store.entries_at_ever(self.node, revision))
        })
    }

    fn projection(&self, _: &Key, uid: Uid, revision: Revision) -> Option<Value> {
        self.with(|store| store.version_at(uid, revision).map(Object::projection))
    }

    fn report(&self, uid: Uid) -> Option<Value> {
        self.with(|store| store.reports.get(&(self.node, uid)).cloned())
    }

    fn reports(&self) -> Inventory {
        self.with(|store| {
            let mine = store.reports.iter().filter(|((node, uid), _)| {
                *node == self.node && store.objects.get(uid).is_some_and(|object| object.nodes.contains(node))
            });
            mine.map(|((_, uid), report)| (*uid, EntryHash::of_report(*uid, report)))
                .collect()
        })
    }

    fn received(&self) -> Option<([u8; 8], u64)> {
        self.with(|store| store.received.get(&self.node).copied())
    }
}

/// Makes a batch of one node durable in the model, or fails, or crashes: `None` is a crash, before or after.
pub(crate) fn commit(store: &mut Store, node: usize, batch: Batch) -> Result<(), CommitError> {
    for (uid, report) in batch.reports {
        // A node writes only what its own view contains.
        if store
            .objects
            .get(&uid)
            .is_some_and(|object| object.nodes.contains(&node))
        {
            store.reports.insert((node, uid), report);
        }
    }
    for uid in batch.gone {
        let deleting = store
            .objects
            .get(&uid)
            .is_some_and(|object| object.deleting && object.nodes.contains(&node));
        if deleting {
            store.delete(uid);
        }
    }
    store
        .events
        .entry(node)
        .or_default()
        .extend(batch.events.into_iter().map(|(_, event)| event));
    if let Some(received) = batch.received {
        store.received.insert(node, received);
    }
    Ok(())
}

/// The cloud core: volatile machines over a durable store.
#[derive(Debug)]
pub(crate) struct CloudCore {
    pub(crate) store: Arc<Mutex<Store>>,
    pub(crate) machines: Vec<Cloud>,
    pub(crate) up: bool,
}

impl CloudCore {
    pub(crate) fn store(&self) -> std::sync::MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
