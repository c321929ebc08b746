//! Facts about pods that several controllers count by.
//!
//! Silence is not death: a pod on a node that is not in contact is *present* and *unavailable*. It takes its place, so
//! that nothing replaces it, and even its deletion frees that place only when the node has said that it is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proto::object::{Key, Uid};
use proto::time::Mono;
use proto::value::Value;
use reconcile::Backoff;

use super::conditions;
use super::view::{Now, Object, View};

/// Which nodes are not in contact, looked up once per node.
pub struct Contact<'a> {
    view: &'a dyn View,
    known: BTreeMap<String, bool>,
}

impl std::fmt::Debug for Contact<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Contact")
            .field("known", &self.known)
            .finish_non_exhaustive()
    }
}

impl<'a> Contact<'a> {
    pub fn new(view: &'a dyn View) -> Self {
        Self { view, known: BTreeMap::new() }
    }

    /// Whether the node that a pod is bound to is silent. A node that does not exist cannot speak either.
    pub fn is_silent(&mut self, pod: &Object) -> bool {
        let Some(name) = node(&pod.value) else { return false };
        if let Some(known) = self.known.get(name) {
            return *known;
        }
        let found = self.view.get(&Key::new("Node", "", name));
        let silent = found.is_none_or(|node| is_unknown(&node.value));
        self.known.insert(name.to_owned(), silent);
        silent
    }
}

/// Whether a node is not in contact. One that never was counts too.
pub fn is_unknown(node: &Value) -> bool {
    !matches!(conditions::status(node, "Ready"), Some("True" | "False"))
}

/// The node that a pod is bound to.
pub fn node(pod: &Value) -> Option<&str> {
    pod.text_at(&["spec", "nodeName"]).filter(|node| !node.is_empty())
}

pub fn phase(pod: &Value) -> &str {
    pod.text_at(&["status", "phase"]).unwrap_or("Pending")
}

/// Whether all its containers have ended for good.
pub fn is_finished(pod: &Value) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// One pod of an owner, with what the owner counts by.
#[derive(Debug, Clone)]
pub struct Member {
    pub pod: Object,
    pub silent: bool,
    pub ready: bool,
    pub available: bool,
}

impl Member {
    pub fn is_deleting(&self) -> bool {
        self.pod.is_deleting()
    }

    /// Whether the pod takes a place: it does until it has finished, and a deleted one does as long as its node is
    /// silent, for nobody knows whether it still runs.
    pub fn is_present(&self) -> bool {
        !is_finished(&self.pod.value) && (!self.pod.is_deleting() || self.silent)
    }

    /// Whether the pod takes a place and nobody has asked it to leave.
    pub fn is_active(&self) -> bool {
        !is_finished(&self.pod.value) && !self.pod.is_deleting()
    }
}

/// Since when the pods of each owner have been seen ready, on the clock that decisions use.
///
/// A pod's own times come from its node's clock, which nobody may trust, so availability after `minReadySeconds` counts
/// from when this process saw it; a restart of the process only makes it wait again.
#[derive(Debug, Default)]
pub struct ReadySince {
    owners: BTreeMap<Key, BTreeMap<Uid, Mono>>,
}

impl ReadySince {
    /// Judges the pods of an owner and returns when the next of them becomes available by waiting alone.
    pub fn members(
        &mut self,
        owner: &Key,
        pods: Vec<Object>,
        contact: &mut Contact<'_>,
        min_ready: Duration,
        now: Now,
    ) -> (Vec<Member>, Option<Duration>) {
        let mut since = BTreeMap::new();
        let known = self.owners.remove(owner).unwrap_or_default();
        let mut next: Option<Duration> = None;
        let members = pods
            .into_iter()
            .map(|pod| {
                let silent = contact.is_silent(&pod);
                let ready = !silent && !is_finished(&pod.value) && conditions::is_true(&pod.value, "Ready");
                let mut available = ready;
                if ready && !min_ready.is_zero() {
                    let seen = known.get(&pod.uid).copied().unwrap_or(now.mono);
                    since.insert(pod.uid, seen);
                    let age = now.mono.since(seen);
                    available = age >= min_ready;
                    if !available {
                        let left = min_ready.saturating_sub(age);
                        next = Some(next.map_or(left, |next| next.min(left)));
                    }
                }
                Member { pod, silent, ready, available }
            })
            .collect();
        if !since.is_empty() {
            self.owners.insert(owner.clone(), since);
        }
        (members, next)
    }

    pub fn forget(&mut self, owner: &Key) {
        self.owners.remove(owner);
    }
}

/// How long the replacement of failed pods waits, so that a pod that can only fail is not made over and over.
const REPLACE: Backoff = Backoff {
    first: Duration::from_secs(10),
    cap: Duration::from_secs(300),
};

/// After so long without a failure the next one is the first again.
const FORGIVEN: Duration = Duration::from_secs(600);

/// The failures of each place that a pod is made for: a ReplicaSet, a DaemonSet on one node.
#[derive(Debug, Default)]
pub struct Failures {
    places: BTreeMap<(Key, String), Failing>,
}

#[derive(Debug)]
struct Failing {
    seen: BTreeSet<Uid>,
    count: u32,
    last: Mono,
}

impl Failures {
    /// How long the next pod of a place has to wait: not after the first failure, then 10 s, doubled up to 5 minutes.
    ///
    /// The first that is seen is never counted: after a restart it may be an old one. Nor is one that was told to end:
    /// how a program takes that says nothing about the next.
    pub fn wait<'a>(&mut self, place: (Key, String), members: impl Iterator<Item = &'a Member>, now: Now) -> Duration {
        let failed = members.filter(|member| phase(&member.pod.value) == "Failed" && !member.is_deleting());
        let failed: BTreeSet<_> = failed.map(|member| member.pod.uid).collect();
        let known =
            self.places
                .entry(place)
                .or_insert_with(|| Failing { seen: failed.clone(), count: 0, last: now.mono });
        if now.mono.since(known.last) >= FORGIVEN {
            known.count = 0;
        }
        let fresh = failed.difference(&known.seen).count();
        known.seen = failed;
        if fresh > 0 {
            known.count = known.count.saturating_add(1);
            known.last = now.mono;
        }
        let full = known
            .count
            .checked_sub(2)
            .map_or(Duration::ZERO, |before| REPLACE.full(before));
        full.saturating_sub(now.mono.since(known.last))
    }

    pub fn forget(&mut self, owner: &Key) {
        self.places.retain(|(place, _), _| place != owner);
    }
}

/// Seconds of a field as a wait, zero when it is absent or negative.
pub fn seconds(object: &Value, path: &[&str]) -> Duration {
    Duration::from_secs(
        object
            .int_at(path)
            .and_then(|seconds| u64::try_from(seconds).ok())
            .unwrap_or(0),
    )
}

/// The new pod of an owner from a template.
pub fn from_template(template: &Value, owner: &Object, prefix: &str) -> Value {
    let mut metadata = Value::from([("generateName", prefix), ("namespace", owner.key.namespace.as_str())]);
    for field in ["labels", "annotations", "finalizers"] {
        if let Some(value) = template.at(&["metadata", field]) {
            metadata.set(&[field], value.clone());
        }
    }
    metadata.set(&["ownerReferences"], vec![super::owner::controller_reference(owner)]);
    Value::from([
        ("apiVersion", Value::from("v1")),
        ("kind", "Pod".into()),
        ("metadata", metadata),
        ("spec", template.get("spec").cloned().unwrap_or_default()),
        ("status", [("phase", "Pending")].into()),
    ])
}
