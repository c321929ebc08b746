//! The scheduler: which node a pod goes to.
//!
//! [`decision`] is pure over a [`cache`] of nodes and places taken; [`plugins`] holds the filters and scores. This file
//! is the controller around them: it keeps the cache, reserves before it binds, and says why a pod waits.

pub mod cache;
pub mod decision;
pub mod need;
pub mod plugins;

use std::collections::{BTreeMap, BTreeSet};

use proto::object::{Key, Uid};
use reconcile::Lane;

use crate::controllers::conditions::condition;
use crate::controllers::plan::{Edit, Note, Plan, Write};
use crate::controllers::pods;
use crate::controllers::replicaset::changes;
use crate::controllers::view::{Change, Now, Object, View};
use crate::controllers::{Controller, at_once};

use cache::{Cache, Node};
use decision::{Decision, schedule};
use need::Need;

/// The name by which pods ask for this scheduler.
pub const NAME: &str = "default-scheduler";

/// The scheduler as a controller of pods.
#[derive(Debug, Default)]
pub struct Scheduler {
    cache: Cache,
    /// Pods that no node would take when they were last looked at.
    waiting: BTreeSet<Key>,
    /// Whether a place came free, or a node changed, since those that wait were last woken.
    room: bool,
    /// The reservation of every binding under way.
    binding: BTreeMap<Key, Uid>,
}

impl Controller for Scheduler {
    fn name(&self) -> &'static str {
        NAME
    }

    fn plans(&self) -> &'static [&'static str] {
        &["Pod"]
    }

    fn watches(&self) -> &'static [&'static str] {
        &["Pod", "Node"]
    }

    fn observe(&mut self, change: &Change, _now: Now) {
        let Some(latest) = change.latest() else { return };
        let after = change.after.as_ref().map(|object| &*object.value);
        if latest.key.kind.as_str() == "Node" {
            self.cache.node_changed(&latest.key.name, after);
            self.room |= Node::changed(change);
            return;
        }
        if let Some(replaced) = change.before.as_ref().filter(|before| before.uid != latest.uid) {
            self.room |= self.cache.pod_changed(replaced.uid, None);
        }
        self.room |= self.cache.pod_changed(latest.uid, after);
        if after.is_none_or(|pod| pods::node(pod).is_some()) {
            self.waiting.remove(&latest.key);
        }
    }

    fn forget(&mut self) {
        self.cache = Cache::default();
        self.waiting.clear();
    }

    fn wake(&mut self, change: &Change, _view: &dyn View, _now: Now) -> Vec<(Key, Lane)> {
        let own = change.after.as_ref().filter(|after| is_ours(after));
        let mut keys: Vec<_> = own
            .filter(|pod| pod.key.kind.as_str() == "Pod")
            .map(|pod| pod.key.clone())
            .into_iter()
            .collect();
        if std::mem::take(&mut self.room) {
            keys.extend(self.waiting.iter().cloned());
        }
        at_once(keys)
    }

    fn plan(&mut self, key: &Key, view: &dyn View, _now: Now) -> Plan {
        let pod = view.get(key).filter(is_ours);
        let Some(pod) = pod else {
            self.waiting.remove(key);
            return Plan::nothing();
        };
        if !pod.value.list_at(&["spec", "schedulingGates"]).is_empty() {
            return said(
                &pod,
                "SchedulingGated",
                "Scheduling is blocked due to non-empty scheduling gates",
                None,
            );
        }
        let need = Need::of(&pod.value);
        match schedule(&need, &self.cache) {
            Decision::Bind { node, on_return } => {
                self.waiting.remove(key);
                self.cache.reserve(pod.uid, &node, need);
                self.binding.insert(key.clone(), pod.uid);
                bind(&pod, &node, on_return)
            }
            Decision::No { message } => {
                self.waiting.insert(key.clone());
                let note = Note {
                    about: key.clone(),
                    uid: pod.uid,
                    warning: true,
                    reason: "FailedScheduling",
                    message: message.clone(),
                    component: NAME,
                };
                said(&pod, "Unschedulable", &message, Some(note))
            }
        }
    }

    fn ended(&mut self, key: &Key, committed: bool) {
        if let Some(uid) = self.binding.remove(key) {
            self.room |= self.cache.settle(uid, committed);
        }
    }
}

impl Scheduler {
    /// What is taken of a node, reservations included.
    pub fn usage(&self, node: &str) -> cache::Usage {
        self.cache.usage(node)
    }
}

fn is_ours(pod: &Object) -> bool {
    pods::node(&pod.value).is_none()
        && !pod.is_deleting()
        && !pods::is_finished(&pod.value)
        && pod.value.text_at(&["spec", "schedulerName"]).unwrap_or(NAME) == NAME
}

fn bind(pod: &Object, node: &str, on_return: bool) -> Plan {
    let edits = vec![
        Edit::set(&["spec", "nodeName"], node),
        Edit::Condition(condition("PodScheduled", "True", "", "")),
    ];
    let wait = if on_return {
        ", which is not in contact: it is delivered on return"
    } else {
        ""
    };
    let mut plan = Plan::of(vec![Write::edit(pod, edits)]);
    plan.notes.push(Note {
        about: pod.key.clone(),
        uid: pod.uid,
        warning: false,
        reason: "Scheduled",
        message: format!(
            "Successfully assigned {}/{} to {node}{wait}",
            pod.key.namespace, pod.key.name
        ),
        component: NAME,
    });
    plan
}

/// Says on the pod why it waits; the event is told when that is news.
fn said(pod: &Object, reason: &str, message: &str, note: Option<Note>) -> Plan {
    let condition = condition("PodScheduled", "False", reason, message);
    let write = changes(pod, vec![Edit::Condition(condition)]);
    let mut plan = Plan::nothing();
    if let Some(write) = write {
        plan.writes.push(write);
        plan.notes.extend(note);
    }
    plan
}

#[cfg(test)]
mod tests;
