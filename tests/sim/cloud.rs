//! The model of the cloud's store, and the real machines on top of it.
//!
//! Objects are whole, as the API shows them: what a node reported is laid over them and each change has its revision.
//! What of it reaches nodes is the real projection's to say.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cloudcore::store::overlay::overlay;
use cloudcore::store::projection::project;
use proto::digest::{EntryHash, Inventory};
use proto::object::{Epoch, Key, Revision, Uid};
use proto::session::CommitError;
use proto::session::cloud::{Batch, Cloud, Entry, View};
use proto::value::Value;

use crate::random::Random;

/// Revisions that the model's history reaches back.
const HISTORY: u64 = 80;

/// An object and the nodes whose views it belongs to.
#[derive(Debug, Clone)]
pub(crate) struct Object {
    pub(crate) key: Key,
    pub(crate) nodes: BTreeSet<usize>,
    /// What people and controllers say.
    pub(crate) body: Value,
    /// What a node says.
    report: Option<Value>,
    pub(crate) projection: Value,
    pub(crate) hash: EntryHash,
    /// That at which the projection last changed.
    projected: Revision,
}

impl Object {
    pub(crate) fn is_deleting(&self) -> bool {
        self.body.at(&["metadata", "deletionTimestamp"]).is_some()
    }

    fn entry(&self, uid: Uid) -> Entry {
        Entry {
            uid,
            key: self.key.clone(),
            revision: self.projected,
            hash: self.hash,
        }
    }

    /// As the API shows it at a revision.
    fn shown(&self, revision: Revision) -> Value {
        let mut shown = overlay(&self.key.kind, self.body.clone(), self.report.as_ref());
        shown.set(&["metadata", "resourceVersion"], revision.0.to_string());
        shown
    }
}

/// What an object was from a revision on; `None` once it is deleted.
#[derive(Debug, Clone)]
struct Version {
    from: Revision,
    object: Option<Arc<Object>>,
}

/// What is durable at the cloud.
#[derive(Debug, Clone, Default)]
pub(crate) struct Store {
    pub(crate) epoch: Epoch,
    pub(crate) revision: Revision,
    objects: BTreeMap<Uid, Arc<Object>>,
    /// Every version, also those that [`View`] no longer shows.
    versions: BTreeMap<Uid, Vec<Version>>,
    reports: BTreeMap<(usize, Uid), (Value, EntryHash)>,
    pub(crate) events: BTreeMap<usize, Vec<Value>>,
    received: BTreeMap<usize, ([u8; 8], u64)>,
}

impl Store {
    fn put(&mut self, uid: Uid, mut object: Object) {
        self.revision.0 += 1;
        object.projection = project(&object.shown(self.revision)).expect("only kinds that nodes get are made here");
        object.hash = EntryHash::of(&object.key, uid, &object.projection);
        if self.objects.get(&uid).is_none_or(|before| before.hash != object.hash) {
            object.projected = self.revision;
        }
        let object = Arc::new(object);
        let versions = self.versions.entry(uid).or_default();
        versions.push(Version { from: self.revision, object: Some(Arc::clone(&object)) });
        self.objects.insert(uid, object);
    }

    /// Creates an object in the views of these nodes.
    pub(crate) fn create(&mut self, uid: Uid, key: Key, nodes: BTreeSet<usize>, mut body: Value) {
        body.set(&["apiVersion"], "v1");
        body.set(&["kind"], key.kind.as_str());
        body.set(&["metadata", "name"], key.name.as_str());
        body.set(&["metadata", "namespace"], key.namespace.as_str());
        body.set(&["metadata", "uid"], uid.to_string());
        let object = Object {
            key,
            nodes,
            body,
            report: None,
            projection: Value::default(),
            hash: EntryHash::default(),
            projected: self.revision,
        };
        self.put(uid, object);
    }

    pub(crate) fn edit(&mut self, uid: Uid, edit: impl FnOnce(&mut Object)) {
        if let Some(object) = self.objects.get(&uid) {
            let mut object = Object::clone(object);
            edit(&mut object);
            self.put(uid, object);
        }
    }

    pub(crate) fn delete(&mut self, uid: Uid) {
        if self.objects.remove(&uid).is_some() {
            self.revision.0 += 1;
            let versions = self.versions.entry(uid).or_default();
            versions.push(Version { from: self.revision, object: None });
            self.reports.retain(|(_, of), _| *of != uid);
        }
    }

    pub(crate) fn object(&self, uid: Uid) -> Option<&Arc<Object>> {
        self.objects.get(&uid)
    }

    pub(crate) fn of_kind(&self, kind: &str) -> impl Iterator<Item = (Uid, &Arc<Object>)> {
        let objects = self.objects.iter();
        objects
            .filter(move |(_, object)| object.key.kind.as_str() == kind)
            .map(|(uid, object)| (*uid, object))
    }

    pub(crate) fn report(&self, node: usize, uid: Uid) -> Option<&Value> {
        self.reports.get(&(node, uid)).map(|(report, _)| report)
    }

    /// The object, if it belongs to the node's view.
    pub(crate) fn seen_by(&self, node: usize, uid: Uid) -> Option<&Arc<Object>> {
        self.objects.get(&uid).filter(|object| object.nodes.contains(&node))
    }

    pub(crate) fn view(&self, node: usize) -> impl Iterator<Item = (Uid, &Arc<Object>)> {
        let objects = self.objects.iter();
        objects
            .filter(move |(_, object)| object.nodes.contains(&node))
            .map(|(uid, object)| (*uid, object))
    }

    /// Begins a new life beyond `revision`, as a restore does.
    pub(crate) fn new_epoch(&mut self, random: &mut Random, revision: Revision) {
        self.epoch = Epoch(random.next());
        self.revision = Revision(self.revision.0.max(revision.0) + 1000);
    }

    fn version_at(&self, uid: Uid, revision: Revision) -> Option<&Arc<Object>> {
        let versions = self.versions.get(&uid)?;
        let later = versions.partition_point(|version| version.from <= revision);
        versions[..later].last()?.object.as_ref()
    }

    /// The view of a node as of a revision, from all versions ever.
    pub(crate) fn entries_at_ever(&self, node: usize, revision: Revision) -> Vec<Entry> {
        if revision >= self.revision {
            return self.view(node).map(|(uid, object)| object.entry(uid)).collect();
        }
        let uids = self.versions.keys().copied();
        uids.filter_map(|uid| {
            let object = self.version_at(uid, revision)?;
            object.nodes.contains(&node).then(|| object.entry(uid))
        })
        .collect()
    }

    /// Makes a batch of one node durable.
    pub(crate) fn commit(&mut self, node: usize, batch: Batch) -> Result<(), CommitError> {
        for (uid, report) in batch.reports {
            // A node writes only what its own view contains.
            if self.seen_by(node, uid).is_some() {
                let hash = EntryHash::of_report(uid, &report);
                self.edit(uid, |object| object.report = Some(report.clone()));
                self.reports.insert((node, uid), (report, hash));
            }
        }
        for uid in batch.gone {
            if self.seen_by(node, uid).is_some_and(|object| object.is_deleting()) {
                self.delete(uid);
            }
        }
        let events = batch.events.into_iter().map(|(_, event)| event);
        self.events.entry(node).or_default().extend(events);
        if let Some(received) = batch.received {
            self.received.insert(node, received);
        }
        Ok(())
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
        self.with(|store| Some(store.version_at(uid, revision)?.projection.clone()))
    }

    fn report(&self, uid: Uid) -> Option<Value> {
        self.with(|store| store.report(self.node, uid).cloned())
    }

    fn reports(&self) -> Inventory {
        self.with(|store| {
            let of_all = store
                .reports
                .range((self.node, Uid([0; 16]))..=(self.node, Uid([0xff; 16])));
            of_all
                .filter(|((node, uid), _)| store.seen_by(*node, *uid).is_some())
                .map(|((_, uid), (_, hash))| (*uid, *hash))
                .collect()
        })
    }

    fn received(&self) -> Option<([u8; 8], u64)> {
        self.with(|store| store.received.get(&self.node).copied())
    }
}

/// The cloud core: volatile machines over a durable store.
#[derive(Debug)]
pub(crate) struct CloudCore {
    pub(crate) store: Arc<Mutex<Store>>,
    pub(crate) machines: Vec<Cloud>,
    pub(crate) up: bool,
}

impl CloudCore {
    pub(crate) fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
