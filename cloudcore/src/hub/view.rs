//! A node's view: a pure function of the store, computed from its indexes.
//!
//! The view holds the node's own object, the pods bound to it, and what those refer to. A [`Snapshot`] is the view at
//! one moment, for the session machine to look at; what it needs of the past the store answers at once.

use std::collections::BTreeSet;
use std::sync::Arc;

use proto::digest::{EntryHash, Inventory};
use proto::object::references::references;
use proto::object::{Epoch, Key, Revision, Uid};
use proto::session::cloud::{Entry, View};
use proto::value::Value;

use crate::store::projection::project;
use crate::store::{At, Scope, Store, Stored};

/// Where the hub keeps, per node, which of the node's events it has.
pub(super) const RECEIVED: &str = "hub/received";

/// How often a snapshot that the store outran is taken again before it is used as it is: then a digest may not fit and
/// the node compares.
const SNAPSHOT_TRIES: usize = 4;

/// Kinds in the order in which a node should get them: what pods need comes before the pods.
const ORDER: [&str; 5] = ["Node", "ConfigMap", "Secret", "ServiceAccount", "Pod"];

/// The view of one node at one moment.
#[derive(Debug)]
pub(super) struct Snapshot {
    store: Store,
    node: String,
    epoch: Epoch,
    revision: Revision,
    now_ms: i64,
    objects: Vec<Arc<Stored>>,
    /// What the pods refer to, there or not.
    pub(super) references: BTreeSet<Key>,
    received: Option<([u8; 8], u64)>,
}

impl Snapshot {
    /// The view as it is now.
    pub(super) async fn now(store: &Store, node: &str) -> Self {
        let mut snapshot = Self::take(store, node).await;
        for _ in 1..SNAPSHOT_TRIES {
            if store.revision() == snapshot.revision {
                break;
            }
            snapshot = Self::take(store, node).await;
        }
        snapshot
    }

    async fn take(store: &Store, node: &str) -> Self {
        let (epoch, revision) = (store.epoch(), store.revision());
        // The latest page comes from memory and cannot fail.
        let pods = store.list(&Scope::pods_of(node), At::Latest, None, None).await;
        let pods = pods.map(|page| page.items).unwrap_or_default();
        let references = referred(&pods);
        let mut objects: Vec<_> = store.get(&Key::new("Node", "", node)).into_iter().collect();
        objects.extend(references.iter().filter_map(|key| store.get(key)));
        objects.extend(pods);
        objects.sort_by_key(|object| rank(object));
        let received = store.record(RECEIVED, node).and_then(|bytes| {
            let (incarnation, number) = bytes.split_first_chunk::<8>()?;
            Some((*incarnation, u64::from_le_bytes(number.try_into().ok()?)))
        });
        Self {
            store: store.clone(),
            node: node.to_owned(),
            epoch,
            revision,
            now_ms: daemon::clock::wall().ms,
            objects,
            references,
            received,
        }
    }

    /// Whose view it is.
    pub(super) fn node(&self) -> &str {
        &self.node
    }

    /// The object with this uid, if the view holds it.
    pub(super) fn object(&self, uid: Uid) -> Option<&Arc<Stored>> {
        self.objects.iter().find(|object| object.uid == uid)
    }
}

fn referred(pods: &[Arc<Stored>]) -> BTreeSet<Key> {
    pods.iter()
        .flat_map(|pod| references(&pod.key.namespace, &pod.body()))
        .collect()
}

fn rank(object: &Stored) -> usize {
    ORDER
        .iter()
        .position(|kind| *kind == object.key.kind.as_str())
        .unwrap_or(ORDER.len())
}

fn entry(object: &Arc<Stored>) -> Option<Entry> {
    Some(Entry {
        uid: object.uid,
        key: object.key.clone(),
        revision: object.projected,
        hash: object.projection?,
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
        let pods = self.store.pods_held(&self.node, revision)?;
        let keys = referred(&pods)
            .into_iter()
            .chain([Key::new("Node", "", self.node.as_str())]);
        // An object that is no longer known looks like one that was not there; the digest tells.
        let others: Vec<_> = keys.filter_map(|key| self.store.held(&key, revision)).collect();
        Some(others.iter().chain(&pods).filter_map(entry).collect())
    }

    fn projection(&self, key: &Key, uid: Uid, revision: Revision) -> Option<Value> {
        let own = self.object(uid).filter(|object| object.projected == revision).cloned();
        let object = own.or_else(|| self.store.held(key, revision).filter(|object| object.uid == uid))?;
        project(&object.body())
    }

    fn report(&self, uid: Uid) -> Option<Value> {
        self.object(uid)?.report()
    }

    fn reports(&self) -> Inventory {
        let reported = self.objects.iter();
        reported
            .filter_map(|object| Some((object.uid, EntryHash::of_report(object.uid, &object.report()?))))
            .collect()
    }

    fn received(&self) -> Option<([u8; 8], u64)> {
        self.received
    }
}
