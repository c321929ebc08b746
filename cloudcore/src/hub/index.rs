//! Which nodes an object concerns, without looking at all of them: kept from the views that were last computed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proto::object::Key;
use proto::session::Carrier;
use quinn::Connection;
use tokio::sync::Notify;

/// By key, the nodes whose pods refer to it, there or not; by node, whom to ring.
#[derive(Debug, Default)]
pub(super) struct Index {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    nodes_of: BTreeMap<Key, BTreeSet<Arc<str>>>,
    /// Without nodes whose pods refer to nothing.
    keys_of: BTreeMap<Arc<str>, BTreeSet<Key>>,
    bells: BTreeMap<Arc<str>, Arc<Notify>>,
}

impl Index {
    /// A node's task lives: it is rung from now on.
    pub(super) fn enter(&self, node: &Arc<str>, bell: Arc<Notify>) {
        self.lock().bells.insert(Arc::clone(node), bell);
    }

    /// Replaces what a node's pods refer to.
    pub(super) fn set(&self, node: &Arc<str>, keys: &BTreeSet<Key>) {
        let mut inner = self.lock();
        let is_same = match inner.keys_of.get(node) {
            Some(before) => before == keys,
            None => keys.is_empty(),
        };
        if is_same {
            return;
        }
        inner.unlink(node);
        for key in keys {
            inner.nodes_of.entry(key.clone()).or_default().insert(Arc::clone(node));
        }
        if !keys.is_empty() {
            inner.keys_of.insert(Arc::clone(node), keys.clone());
        }
    }

    pub(super) fn forget(&self, node: &str) {
        let mut inner = self.lock();
        inner.unlink(node);
        inner.bells.remove(node);
    }

    /// Rings the nodes that refer to an object.
    pub(super) fn ring_referring(&self, key: &Key) {
        let inner = self.lock();
        let nodes = inner.nodes_of.get(key).into_iter().flatten();
        nodes
            .filter_map(|node| inner.bells.get(node))
            .for_each(|bell| bell.notify_one());
    }

    pub(super) fn ring(&self, node: &str) {
        if let Some(bell) = self.lock().bells.get(node) {
            bell.notify_one();
        }
    }

    pub(super) fn ring_all(&self) {
        self.lock().bells.values().for_each(|bell| bell.notify_one());
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn unlink(&mut self, node: &str) {
        for key in self.keys_of.remove(node).into_iter().flatten() {
            if let Some(nodes) = self.nodes_of.get_mut(&key) {
                nodes.remove(node);
                if nodes.is_empty() {
                    self.nodes_of.remove(&key);
                }
            }
        }
    }
}

/// By node, the connections over which it can be reached; the newest is used.
#[derive(Debug, Default)]
pub(super) struct Connected {
    nodes: Mutex<BTreeMap<Arc<str>, Reach>>,
}

/// How one node is reached.
#[derive(Debug, Default)]
struct Reach {
    /// One nearly always; some more while dead ones are not known to be.
    connections: Vec<(Carrier, Connection)>,
    /// Frames that it has not acknowledged.
    pending: usize,
}

impl Connected {
    pub(super) fn insert(&self, node: &Arc<str>, carrier: Carrier, connection: Connection) {
        let mut nodes = self.lock();
        let connections = &mut nodes.entry(Arc::clone(node)).or_default().connections;
        connections.reserve_exact(1);
        connections.push((carrier, connection));
    }

    /// How many frames the node has to acknowledge.
    pub(super) fn set_pending(&self, node: &str, pending: usize) {
        if let Some(reach) = self.lock().get_mut(node) {
            reach.pending = pending;
        }
    }

    pub(super) fn pending(&self, node: &str) -> usize {
        self.lock().get(node).map_or(0, |reach| reach.pending)
    }

    pub(super) fn lost(&self, node: &str, carrier: Carrier) {
        let mut nodes = self.lock();
        if let Some(of_node) = nodes.get_mut(node) {
            of_node.connections.retain(|(other, _)| *other != carrier);
            if of_node.connections.is_empty() {
                nodes.remove(node);
            }
        }
    }

    /// The newest connection of a node.
    pub(super) fn of(&self, node: &str) -> Option<Connection> {
        let nodes = self.lock();
        let connections = nodes.get(node)?.connections.iter();
        connections
            .max_by_key(|(carrier, _)| *carrier)
            .map(|(_, connection)| connection.clone())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Reach>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_refers_is_rung() {
        let index = Index::default();
        let bells: Vec<_> = (0..2).map(|_| Arc::new(Notify::new())).collect();
        let (a, b) = (Arc::from("a"), Arc::from("b"));
        index.enter(&a, Arc::clone(&bells[0]));
        index.enter(&b, Arc::clone(&bells[1]));
        let (one, two) = (Key::new("ConfigMap", "n", "one"), Key::new("ConfigMap", "n", "two"));
        index.set(&a, &[one.clone()].into());
        index.set(&b, &[one.clone(), two.clone()].into());
        let rung = |bell: &Notify| {
            let mut notified = std::pin::pin!(bell.notified());
            notified.as_mut().enable()
        };
        index.ring_referring(&two);
        assert_eq!((rung(&bells[0]), rung(&bells[1])), (false, true));
        index.ring_referring(&one);
        assert_eq!((rung(&bells[0]), rung(&bells[1])), (true, true));
        index.set(&b, &BTreeSet::new());
        index.ring_referring(&one);
        assert_eq!((rung(&bells[0]), rung(&bells[1])), (true, false));
        index.forget("a");
        index.ring_referring(&one);
        index.ring_all();
        assert_eq!((rung(&bells[0]), rung(&bells[1])), (false, true));
        let inner = index.lock();
        assert!(inner.nodes_of.is_empty() && inner.keys_of.is_empty());
    }
}
