//! Garbage: what is left when its owners are gone.
//!
//! Owners are meant by uid: an object of the same name and another uid is another owner. An owner counts as absent only
//! where the store can say so: its kind is one that the store holds, and at that key there is nothing or something of
//! another uid. Of a kind that is not known nothing is concluded.
//!
//! The index from owner to dependents is built from changes; losing it costs a resync, because each dependent is also
//! looked at by itself.

use std::collections::{BTreeMap, BTreeSet};

use proto::object::{Key, Kind, Uid};
use proto::value::Value;
use reconcile::{Lane, Outcome};

use super::owner::reference_key;
use super::plan::{Edit, Plan, Write};
use super::view::{Change, Now, Object, View};
use super::{Controller, WRITES_MAX, pods};

const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

/// How long the pods of a Node that was deleted are left: the deletion may be half of a replacement.
const NODE_GONE_WAIT: std::time::Duration = std::time::Duration::from_secs(40);

/// The kinds that this controller looks at: all that can own or be owned.
pub const KINDS: &[&str] = &[
    "Pod",
    "Node",
    "ConfigMap",
    "Secret",
    "ServiceAccount",
    "Service",
    "Namespace",
    "Deployment.apps",
    "ReplicaSet.apps",
    "DaemonSet.apps",
    "EndpointSlice.discovery.k8s.io",
    "Lease.coordination.k8s.io",
];

/// The garbage collector.
#[derive(Debug, Default)]
pub struct Garbage {
    dependents: BTreeMap<Uid, BTreeSet<Key>>,
    /// Pods whose node is missing, and since when that was seen.
    stranded: BTreeMap<Uid, proto::time::Mono>,
}

impl Controller for Garbage {
    fn name(&self) -> &'static str {
        "garbage-collector"
    }

    fn plans(&self) -> &'static [&'static str] {
        KINDS
    }

    fn watches(&self) -> &'static [&'static str] {
        KINDS
    }

    fn observe(&mut self, change: &Change, _now: Now) {
        if let Some(before) = &change.before {
            for owner in owners(before) {
                if let Some(keys) = self.dependents.get_mut(&owner.uid) {
                    keys.remove(&before.key);
                    if keys.is_empty() {
                        self.dependents.remove(&owner.uid);
                    }
                }
            }
        }
        if let Some(after) = &change.after {
            for owner in owners(after) {
                self.dependents.entry(owner.uid).or_default().insert(after.key.clone());
            }
        } else if let Some(before) = &change.before {
            self.stranded.remove(&before.uid);
        }
    }

    fn forget(&mut self) {
        self.dependents.clear();
    }

    fn wake(&mut self, change: &Change, view: &dyn View, _now: Now) -> Vec<(Key, Lane)> {
        let Some(latest) = change.latest() else {
            return Vec::new();
        };
        // What a pod reports, say, changes nothing here.
        if ties(change.before.as_ref()) == ties(change.after.as_ref()) {
            return Vec::new();
        }
        let mut keys = BTreeSet::new();
        // The owners look again whether they may go; its dependents whether they must.
        keys.extend(change.states().flat_map(owners).filter_map(|owner| owner.key));
        if change.after.as_ref().is_none_or(Object::is_deleting) {
            keys.extend(self.dependents.get(&latest.uid).into_iter().flatten().cloned());
        }
        let after = change.after.as_ref();
        if after.is_some_and(|after| after.is_deleting() || owners(after).next().is_some()) {
            keys.insert(latest.key.clone());
        }
        if change.after.is_none() && latest.key.kind.as_str() == "Node" {
            keys.extend(
                view.pods_on(&latest.key.name)
                    .objects()
                    .iter()
                    .map(|pod| pod.key.clone()),
            );
        }
        super::at_once(keys)
    }

    fn plan(&mut self, key: &Key, view: &dyn View, now: Now) -> Plan {
        let Some(object) = view.get(key) else {
            return Plan::nothing();
        };
        if let Some(plan) = self.stranded(&object, view, now) {
            return plan;
        }
        if object.is_deleting() {
            return self.finalize(&object, view);
        }
        dependent(&object, view)
    }
}

/// What of an object can change who must go or may go.
fn ties(object: Option<&Object>) -> Option<[Option<&Value>; 4]> {
    let object = object?;
    let fields = ["ownerReferences", "deletionTimestamp", "finalizers", "uid"];
    Some(fields.map(|field| object.value.at(&["metadata", field])))
}

#[derive(Debug)]
struct Owner {
    key: Option<Key>,
    uid: Uid,
    blocks: bool,
}

fn owners(object: &Object) -> impl Iterator<Item = Owner> + '_ {
    object
        .value
        .list_at(&["metadata", "ownerReferences"])
        .iter()
        .filter_map(|owner| {
            Some(Owner {
                key: reference_key(owner, &object.key.namespace),
                uid: owner.text_at(&["uid"])?.parse().ok()?,
                blocks: owner.flag_at(&["blockOwnerDeletion"]),
            })
        })
}

#[derive(Debug, PartialEq, Eq)]
enum Owned {
    /// By an object that is there, and whether that one waits for its dependents to go.
    There { foreground: bool },
    /// The owner is known to be gone.
    Absent,
    /// Nothing is known.
    Unclear,
}

/// Looks an owner up, in the dependent's namespace and among what has none.
fn look_up(owner: &Owner, view: &dyn View) -> Owned {
    let Some(key) = owner.key.as_ref().filter(|key| view.kinds().contains(&key.kind)) else {
        return Owned::Unclear;
    };
    let cluster = Key::new(key.kind.clone(), "", key.name.clone());
    let found = [key, &cluster]
        .into_iter()
        .filter_map(|key| view.get(key))
        .find(|found| found.uid == owner.uid);
    match found {
        Some(found) => Owned::There {
            foreground: found.is_deleting() && found.has_finalizer(FOREGROUND),
        },
        None => Owned::Absent,
    }
}

/// Deletes what only absent owners own; takes absent owners off what others still own.
fn dependent(object: &Object, view: &dyn View) -> Plan {
    let (mut absent, mut leaving, mut staying) = (Vec::new(), 0, 0);
    for owner in owners(object) {
        match look_up(&owner, view) {
            Owned::Absent => absent.push(owner.uid.to_string()),
            Owned::There { foreground: true } => leaving += 1,
            Owned::There { foreground: false } | Owned::Unclear => staying += 1,
        }
    }
    if staying == 0 && leaving + absent.len() > 0 {
        return Plan::of(vec![Write::delete(object)]);
    }
    if absent.is_empty() {
        return Plan::nothing();
    }
    let mut references = object.value.list_at(&["metadata", "ownerReferences"]).to_vec();
    references.retain(|one| !absent.iter().any(|uid| one.text_at(&["uid"]) == Some(uid)));
    Plan::of(vec![Write::edit(
        object,
        vec![Edit::set(&["metadata", "ownerReferences"], references)],
    )])
}

impl Garbage {
    /// What a deleted object still has to wait for because of its dependents.
    fn finalize(&self, object: &Object, view: &dyn View) -> Plan {
        let (foreground, orphan) = (object.has_finalizer(FOREGROUND), object.has_finalizer(ORPHAN));
        if !foreground && !orphan {
            return Plan::nothing();
        }
        let keys = self.dependents.get(&object.uid).into_iter().flatten();
        let dependents: Vec<_> = keys
            .filter_map(|key| view.get(key))
            .filter(|dependent| owners(dependent).any(|owner| owner.uid == object.uid))
            .collect();
        if orphan {
            let mut writes: Vec<_> = dependents
                .iter()
                .map(|one| super::owner::release(one, object.uid))
                .collect();
            if writes.is_empty() {
                writes.push(without_finalizer(object, ORPHAN));
            }
            writes.truncate(WRITES_MAX);
            return Plan::of(writes);
        }
        let blocks = |dependent: &Object| owners(dependent).any(|owner| owner.uid == object.uid && owner.blocks);
        let mut writes: Vec<_> = dependents
            .iter()
            .filter(|one| !one.is_deleting())
            .map(|one| match dependent(one, view).writes.pop() {
                Some(write) => write,
                // Others own it too: it stays, without this owner.
                None => super::owner::release(one, object.uid),
            })
            .collect();
        if writes.is_empty() && !dependents.iter().any(blocks) {
            writes.push(without_finalizer(object, FOREGROUND));
        }
        writes.truncate(WRITES_MAX);
        Plan::of(writes)
    }

    /// Ends a pod whose node was deleted: an admin's act, unlike silence, and nobody is left to end the pod.
    fn stranded(&mut self, pod: &Object, view: &dyn View, now: Now) -> Option<Plan> {
        let node = pods::node(&pod.value).filter(|_| pod.key.kind.as_str() == "Pod")?;
        // Most nodes are there, which one look can say. That one is not there, only a whole list of nodes may say.
        let there = view.get(&Key::new("Node", "", node)).is_some()
            || view
                .list(&Kind::from("Node"), None)
                .objects()
                .iter()
                .any(|one| one.key.name == node);
        if there {
            self.stranded.remove(&pod.uid);
            return None;
        }
        let since = *self.stranded.entry(pod.uid).or_insert(now.mono);
        let waited = now.mono.since(since);
        if waited < NODE_GONE_WAIT {
            return Some(Plan {
                outcome: Outcome::Again(NODE_GONE_WAIT.saturating_sub(waited)),
                ..Plan::nothing()
            });
        }
        self.stranded.remove(&pod.uid);
        Some(Plan::of(vec![Write::Purge { key: pod.key.clone(), uid: pod.uid }]))
    }
}

fn without_finalizer(object: &Object, name: &str) -> Write {
    let mut finalizers = object.value.list_at(&["metadata", "finalizers"]).to_vec();
    finalizers.retain(|one| one.as_text() != Some(name));
    let path = ["metadata", "finalizers"];
    Write::edit(
        object,
        vec![if finalizers.is_empty() {
            Edit::remove(&path)
        } else {
            Edit::set(&path, Value::from(finalizers))
        }],
    )
}

#[cfg(test)]
mod tests {
    use super::super::model::Model;
    use super::*;

    struct Bench {
        model: Model,
        garbage: Garbage,
    }

    impl Bench {
        fn new() -> Self {
            Self { model: Model::default(), garbage: Garbage::default() }
        }

        /// Wakes and plans until nothing changes.
        fn settle(&mut self) {
            for _ in 0..50 {
                let changes = std::mem::take(&mut self.model.changes);
                if changes.is_empty() {
                    return;
                }
                for change in changes {
                    self.garbage.observe(&change, self.model.now);
                    for (key, _) in self.garbage.wake(&change, &self.model, self.model.now) {
                        self.model.step(&mut self.garbage, &key);
                    }
                }
            }
            panic!("it never settles");
        }

        fn map(&mut self, name: &str, owners: &[(&str, Uid)]) -> Key {
            let owners: Vec<_> = owners
                .iter()
                .map(|(name, uid)| {
                    format!(
                        r#"{{"apiVersion":"v1","kind":"ConfigMap","name":"{name}","uid":"{uid}","blockOwnerDeletion":true}}"#
                    )
                })
                .collect();
            self.model.create(&format!(
                r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}","namespace":"n","ownerReferences":[{}]}}}}"#,
                owners.join(",")
            ))
        }

        fn uid(&self, key: &Key) -> Uid {
            self.model.get(key).unwrap().uid
        }

        fn delete(&mut self, key: &Key, finalizer: Option<&str>) {
            if let Some(finalizer) = finalizer {
                self.model
                    .edit(key, &["metadata", "finalizers"], Value::from_iter([finalizer]));
            }
            let object = self.model.get(key).unwrap();
            assert!(self.model.commit(&[Write::delete(&object)]));
        }

        fn there(&self, key: &Key) -> bool {
            self.model.get(key).is_some()
        }
    }

    #[test]
    fn background_deletion_follows_owners_down() {
        let mut bench = Bench::new();
        let top = bench.map("top", &[]);
        let uid = bench.uid(&top);
        let middle = bench.map("middle", &[("top", uid)]);
        let uid = bench.uid(&middle);
        let low = bench.map("low", &[("middle", uid)]);
        bench.settle();
        assert!(bench.there(&top) && bench.there(&middle) && bench.there(&low));
        bench.delete(&top, None);
        bench.settle();
        assert!(!bench.there(&middle) && !bench.there(&low));
    }

    #[test]
    fn an_owner_is_meant_by_uid() {
        let mut bench = Bench::new();
        let owner = bench.map("owner", &[]);
        let stale = bench.map("stale", &[("owner", Uid([9; 16]))]);
        let good = bench.uid(&owner);
        let held = bench.map("held", &[("owner", good), ("gone", Uid([8; 16]))]);
        bench.settle();
        assert!(!bench.there(&stale), "its owner was another object of that name");
        let references = bench.model.get(&held).unwrap();
        assert_eq!(
            references.value.list_at(&["metadata", "ownerReferences"]).len(),
            1,
            "the dangling one is gone"
        );
    }

    #[test]
    fn of_an_unknown_kind_nothing_is_concluded() {
        let mut bench = Bench::new();
        let key = bench.model.create(
            r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","namespace":"n","ownerReferences":[
                {"apiVersion":"example.org/v1","kind":"Robot","name":"r","uid":"00000000-0000-4000-8000-000000000000"}]}}"#,
        );
        bench.settle();
        assert!(bench.there(&key));
    }

    #[test]
    fn foreground_deletion_waits_for_the_dependents() {
        let mut bench = Bench::new();
        let top = bench.map("top", &[]);
        let uid = bench.uid(&top);
        let low = bench.map("low", &[("top", uid)]);
        bench.model.edit(
            &low,
            &["metadata", "finalizers"],
            Value::from_iter(["example.org/busy"]),
        );
        bench.settle();
        bench.delete(&top, Some(FOREGROUND));
        bench.settle();
        assert!(bench.there(&top), "its dependent is still there");
        assert!(bench.model.get(&low).unwrap().is_deleting());
        let object = bench.model.get(&low).unwrap();
        assert!(bench.model.commit(&[without_finalizer(&object, "example.org/busy")]));
        bench.settle();
        assert!(!bench.there(&low) && !bench.there(&top));
    }

    #[test]
    fn orphans_lose_their_owner_and_stay() {
        let mut bench = Bench::new();
        let top = bench.map("top", &[]);
        let uid = bench.uid(&top);
        let low = bench.map("low", &[("top", uid)]);
        bench.settle();
        bench.delete(&top, Some(ORPHAN));
        bench.settle();
        assert!(!bench.there(&top));
        assert!(
            bench
                .model
                .get(&low)
                .unwrap()
                .value
                .at(&["metadata", "ownerReferences"])
                .is_none()
        );
    }

    #[test]
    fn a_pod_goes_with_its_deleted_node_and_not_with_a_silent_one() {
        let mut bench = Bench::new();
        bench.model.node("a", true);
        let pod = bench.model.create(
            r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"n"},"spec":{"nodeName":"a"}}"#,
        );
        bench.settle();
        bench.model.silence("a");
        bench.model.pass(10_000_000);
        bench.model.step(&mut bench.garbage, &pod);
        assert!(bench.there(&pod), "silence is not death");
        bench.delete(&Key::new("Node", "", "a"), None);
        bench.settle();
        let plan = bench.model.step(&mut bench.garbage, &pod);
        assert_eq!(plan.outcome, Outcome::Again(NODE_GONE_WAIT));
        bench.model.pass(40_000);
        bench.model.step(&mut bench.garbage, &pod);
        assert!(!bench.there(&pod));
    }
}
