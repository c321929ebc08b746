//! What every node offers and what is taken of it, reservations included.
//!
//! A decision reserves; the binding then confirms the reservation or gives it back. A pod takes its place under its
//! uid exactly once, so giving back twice, or after the pod was seen deleted, changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use proto::object::Uid;
use proto::object::quantity::Quantity;
use proto::value::Value;

use super::need::{Amounts, HostPort, Need, Taint, add, quantity};
use crate::controllers::pods;
use crate::controllers::view::{Change, Object};

/// A node as the scheduler sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    /// With what the node says about itself filled in where its owner set no label.
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    pub allocatable: Amounts,
    pub cordoned: bool,
    /// Whether it is in contact.
    pub known: bool,
}

impl Node {
    /// Whether a change of a Node changes anything that placing looks at. What nodes report otherwise wakes nobody.
    pub fn changed(change: &Change) -> bool {
        let facts = |node: &Option<Object>| {
            let node = node.as_ref()?;
            Some((node.uid, node.is_deleting(), Self::of(&node.key.name, &node.value)))
        };
        facts(&change.before) != facts(&change.after)
    }

    pub fn of(name: &str, node: &Value) -> Self {
        let mut labels: BTreeMap<String, String> = node
            .at(&["metadata", "labels"])
            .and_then(Value::as_map)
            .into_iter()
            .flatten()
            .filter_map(|(name, value)| Some((name.to_owned(), value.as_text()?.to_owned())))
            .collect();
        let mut fill = |label: &str, value: Option<&str>| {
            if let Some(value) = value {
                labels.entry(label.to_owned()).or_insert_with(|| value.to_owned());
            }
        };
        fill(
            "kubernetes.io/arch",
            node.text_at(&["status", "nodeInfo", "architecture"]),
        );
        fill(
            "kubernetes.io/os",
            node.text_at(&["status", "nodeInfo", "operatingSystem"]),
        );
        fill("kubernetes.io/hostname", Some(name));
        let allocatable = node.at(&["status", "allocatable"]).and_then(Value::as_map);
        Self {
            name: name.to_owned(),
            labels,
            taints: node.list_at(&["spec", "taints"]).iter().map(Taint::of).collect(),
            allocatable: allocatable
                .into_iter()
                .flatten()
                .map(|(name, amount)| (name.to_owned(), quantity(amount)))
                .collect(),
            cordoned: node.flag_at(&["spec", "unschedulable"]),
            known: !pods::is_unknown(node),
        }
    }
}

/// What is taken of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    pub requests: Amounts,
    pub guessed: Amounts,
    pub ports: BTreeMap<HostPort, usize>,
    pub pods: usize,
    /// How many pods of each owner.
    pub owners: BTreeMap<String, usize>,
}

impl Usage {
    fn take(&mut self, need: &Need) {
        add(&mut self.requests, &need.requests);
        add(&mut self.guessed, &need.guessed);
        for port in &need.ports {
            *self.ports.entry(port.clone()).or_default() += 1;
        }
        self.pods += 1;
        if let Some(owner) = &need.owner {
            *self.owners.entry(owner.clone()).or_default() += 1;
        }
    }

    fn give(&mut self, need: &Need) {
        subtract(&mut self.requests, &need.requests);
        subtract(&mut self.guessed, &need.guessed);
        for port in &need.ports {
            fewer(&mut self.ports, port);
        }
        self.pods = self.pods.saturating_sub(1);
        if let Some(owner) = &need.owner {
            fewer(&mut self.owners, owner);
        }
    }

    pub fn ports(&self) -> BTreeSet<HostPort> {
        self.ports.keys().cloned().collect()
    }
}

fn subtract(sum: &mut Amounts, less: &Amounts) {
    for (name, amount) in less {
        if let Some(known) = sum.get_mut(name) {
            *known = *known - *amount;
            if *known == Quantity::default() {
                sum.remove(name);
            }
        }
    }
}

fn fewer<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[derive(Debug)]
struct Placed {
    node: String,
    need: Need,
    /// Decided, but not yet seen in the store.
    reserved: bool,
}

/// All nodes and all places taken on them.
#[derive(Debug, Default)]
pub struct Cache {
    nodes: BTreeMap<String, Node>,
    placed: BTreeMap<Uid, Placed>,
    usage: BTreeMap<String, Usage>,
}

impl Cache {
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.get(name)
    }

    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    pub fn usage(&self, node: &str) -> Usage {
        self.usage.get(node).cloned().unwrap_or_default()
    }

    pub(super) fn usage_of(&self, node: &str) -> Option<&Usage> {
        self.usage.get(node)
    }

    /// Takes in a node as it is now; `None` when it is gone. Its pods keep their places: they may still run.
    pub fn node_changed(&mut self, name: &str, node: Option<&Value>) {
        match node {
            Some(node) => drop(self.nodes.insert(name.to_owned(), Node::of(name, node))),
            None => drop(self.nodes.remove(name)),
        }
    }

    /// Takes in a pod as it is now; `None` when it is gone. Whether a place came free.
    pub fn pod_changed(&mut self, uid: Uid, pod: Option<&Value>) -> bool {
        let bound = pod
            .filter(|pod| !pods::is_finished(pod))
            .and_then(|pod| Some((pod, pods::node(pod)?)));
        match bound {
            Some((pod, node)) => {
                let moved = self.placed.get(&uid).is_some_and(|placed| placed.node != node);
                self.remove(uid);
                self.place(uid, node, Need::of(pod), false);
                moved
            }
            // Not bound in the store: what is reserved stays so until its binding has ended.
            None if pod.is_some_and(|pod| !pods::is_finished(pod)) => false,
            None => self.remove(uid),
        }
    }

    /// Takes a place for a pod that is about to be bound.
    pub fn reserve(&mut self, uid: Uid, node: &str, need: Need) {
        self.remove(uid);
        self.place(uid, node, need, true);
    }

    /// Ends the reservation: kept if the binding was committed, given back if not. Whether a place came free.
    pub fn settle(&mut self, uid: Uid, committed: bool) -> bool {
        match self.placed.get_mut(&uid) {
            Some(placed) if placed.reserved && committed => {
                placed.reserved = false;
                false
            }
            Some(placed) if placed.reserved => self.remove(uid),
            Some(_) | None => false,
        }
    }

    fn place(&mut self, uid: Uid, node: &str, need: Need, reserved: bool) {
        self.usage.entry(node.to_owned()).or_default().take(&need);
        self.placed
            .insert(uid, Placed { node: node.to_owned(), need, reserved });
    }

    fn remove(&mut self, uid: Uid) -> bool {
        let Some(placed) = self.placed.remove(&uid) else {
            return false;
        };
        if let Some(usage) = self.usage.get_mut(&placed.node) {
            usage.give(&placed.need);
            if usage.pods == 0 {
                self.usage.remove(&placed.node);
            }
        }
        true
    }
}
