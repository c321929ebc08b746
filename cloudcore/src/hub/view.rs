//! A node's view: a pure function of the store, computed from its indexes.
//!
//! The view holds the node's own object, the pods bound to it, and what those refer to. A [`Snapshot`] is the view at
//! one moment, for the session machine to look at; what it may need of the past is fetched before, since the machine
//! cannot wait.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use proto::digest::{EntryHash, Inventory};
use proto::object::references::references;
use proto::object::{Epoch, Key, Revision, Uid};
use proto::session::cloud::{Entry, View};
use proto::value::Value;

use crate::store::projection::project;
use crate::store::{At, Scope, Store, Stored};

/// Where the hub keeps, per node, which of the node's events it has.
pub(super) const RECEIVED: &str = "hub/received";

/// Bytes of superseded versions that are kept as bases for patches. Past that the oldest go, and full objects travel.
const BASES_BYTES_MAX: usize = 8 << 20;

/// How often a snapshot that the store outran is taken again before it is used as it is: then a digest may not fit and
/// the node compares.
const SNAPSHOT_TRIES: usize = 4;

/// Kinds in the order in which a node should get them: what pods need comes before the pods.
const ORDER: [&str; 5] = ["Node", "ConfigMap", "Secret", "ServiceAccount", "Pod"];

/// The view of one node at one moment.
#[derive(Debug)]
pub(super) struct Snapshot {
    node: String,
    epoch: Epoch,
    revision: Revision,
    now_ms: i64,
    objects: Vec<Arc<Stored>>,
    /// What the pods refer to, there or not.
    pub(super) references: BTreeSet<Key>,
    received: Option<([u8; 8], u64)>,
    bases: Arc<Bases>,
    past: Option<Arc<Past>>,
}

/// The view at the revision that a node named in its hello.
#[derive(Debug)]
pub(super) struct Past {
    revision: Revision,
    objects: Vec<Arc<Stored>>,
}

impl Snapshot {
    /// The view as it is now.
    pub(super) async fn now(
        store: &Store,
        node: &str,
        bases: &Arc<Bases>,
        past: Option<Arc<Past>>,
    ) -> Self {
        let mut snapshot = Self::take(store, node, bases, past.clone()).await;
        for _ in 1..SNAPSHOT_TRIES {
            if store.revision() == snapshot.revision {
                break;
            }
            snapshot = Self::take(store, node, bases, past.clone()).await;
        }
        snapshot
    }

    async fn take(store: &Store, node: &str, bases: &Arc<Bases>, past: Option<Arc<Past>>) -> Self {
        let (epoch, revision) = (store.epoch(), store.revision());
        // The latest page comes from memory and cannot fail.
        let pods = store.list(&Scope::pods_of(node), At::Latest, None, None).await;
        let pods = pods.map(|page| page.items).unwrap_or_default();
        let references: BTreeSet<_> = pods.iter().flat_map(|pod| references(&pod.key.namespace, &pod.body())).collect();
        let mut objects: Vec<_> = store.get(&Key::new("Node", "", node)).into_iter().collect();
        objects.extend(references.iter().filter_map(|key| store.get(key)));
        objects.extend(pods);
        objects.sort_by_key(|object| rank(object));
        let received = store.record(RECEIVED, node).and_then(|bytes| {
            let (incarnation, number) = bytes.split_first_chunk::<8>()?;
            Some((*incarnation, u64::from_le_bytes(number.try_into().ok()?)))
        });
        Self {
            node: node.to_owned(),
            epoch,
            revision,
            now_ms: daemon::clock::wall().ms,
            objects,
            references,
            received,
            bases: Arc::clone(bases),
            past,
        }
    }

    /// The object with this uid, if the view holds it.
    pub(super) fn object(&self, uid: Uid) -> Option<&Arc<Stored>> {
        self.objects.iter().find(|object| object.uid == uid)
    }

    /// The revision it is of.
    pub(super) fn at(&self) -> Revision {
        self.revision
    }
}

impl Past {
    /// The view as it was at a revision; `None` when the store no longer knows.
    pub(super) async fn load(store: &Store, node: &str, revision: Revision) -> Option<Self> {
        let pods = store.list(&Scope::pods_of(node), At::Exact(revision), None, None).await.ok()?.items;
        let keys: BTreeSet<_> = pods.iter().flat_map(|pod| references(&pod.key.namespace, &pod.body())).collect();
        let mut objects = pods;
        for key in keys.into_iter().chain([Key::new("Node", "", node)]) {
            objects.extend(store.get_at(&key, revision).await.ok()?);
        }
        Some(Self { revision, objects })
    }
}

fn rank(object: &Stored) -> usize {
    ORDER.iter().position(|kind| *kind == object.key.kind.as_str()).unwrap_or(ORDER.len())
}

fn entry(object: &Arc<Stored>) -> Option<Entry> {
    Some(Entry {
        uid: object.uid,
        key: object.key.clone(),
        revision: object.projected,
        hash: EntryHash(object.projection?),
    })
}

impl View for Snapshot {
    fn epoch(&self) -> Epoch {
        self.epoch
    }

    fn revision(&self) -> Revision {
        self.revision
    }

    fn now_ms(&self) -> i64 {
        self.now_ms
    }

    fn entries(&self) -> Vec<Entry> {
        self.objects.iter().filter_map(entry).collect()
    }

    fn entries_at(&self, revision: Revision) -> Option<Vec<Entry>> {
        let past = self.past.as_ref().filter(|past| past.revision == revision)?;
        Some(past.objects.iter().filter_map(entry).collect())
    }

    fn projection(&self, _: &Key, uid: Uid, revision: Revision) -> Option<Value> {
        let past = self.past.iter().flat_map(|past| &past.objects);
        let known = self.objects.iter().chain(past);
        let mut of_revision = known.filter(|object| object.uid == uid && object.projected == revision);
        match of_revision.next() {
            Some(object) => project(&object.body()),
            None => project(&self.bases.get(uid, revision)?.body()),
        }
    }

    fn report(&self, uid: Uid) -> Option<Value> {
        self.object(uid)?.report()
    }

    fn reports(&self) -> Inventory {
        let reported = self.objects.iter();
        reported.filter_map(|object| Some((object.uid, EntryHash::of_report(object.uid, &object.report()?)))).collect()
    }

    fn received(&self) -> Option<([u8; 8], u64)> {
        self.received
    }
}

impl Snapshot {
    /// Whose view it is.
    pub(super) fn node(&self) -> &str {
        &self.node
    }
}

/// Versions that were just superseded: the bases of patches to nodes that are connected. Shared by all of them.
#[derive(Debug, Default)]
pub(super) struct Bases {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    versions: BTreeMap<(Uid, Revision), Arc<Stored>>,
    order: VecDeque<((Uid, Revision), usize)>,
    bytes: usize,
}

impl Bases {
    pub(super) fn insert(&self, version: &Arc<Stored>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = (version.uid, version.projected);
        if kept.versions.insert(at, Arc::clone(version)).is_some() {
            return;
        }
        let size = version.size();
        kept.order.push_back((at, size));
        kept.bytes += size;
        while kept.bytes > BASES_BYTES_MAX {
            let Some((oldest, size)) = kept.order.pop_front() else { break };
            kept.versions.remove(&oldest);
            kept.bytes -= size;
        }
    }

    fn get(&self, uid: Uid, revision: Revision) -> Option<Arc<Stored>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.versions.get(&(uid, revision)).cloned()
    }
}
