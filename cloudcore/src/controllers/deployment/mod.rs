//! Deployments: a ReplicaSet per template, and the way from one to the next.
//!
//! The decisions are in `rolling` (how many pods each ReplicaSet may have), `revision` (which ReplicaSet is the
//! current one, the history) and `status`; this file puts them together.
//!
//! Pods on silent nodes hold their places: a rollout counts them, leaves them alone, goes on with the others and says
//! how many wait.

mod revision;
mod rolling;

pub(crate) use rolling::share;
mod status;

use std::collections::BTreeMap;

use proto::object::selector::Selector;
use proto::object::{Key, Kind, Uid};
use proto::time::Mono;
use proto::value::Value;
use reconcile::{Lane, Outcome};

use super::owner;
use super::plan::{Edit, Note, Plan, Write};
use super::pods::{self, Contact, Member, ReadySince};
use super::replicaset::{self, SPARE_SILENT, changes};
use super::view::{Change, Now, Object, View};
use super::{Controller, WRITES_MAX, at_once};

pub const KIND: &str = "Deployment.apps";

const COMPONENT: &str = "deployment-controller";

/// The controller of Deployments.
#[derive(Debug, Default)]
pub struct Deployments {
    ready: ReadySince,
    progress: BTreeMap<Key, Progress>,
}

/// Since when a rollout has looked as it looks now.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Progress {
    uid: Uid,
    signature: u64,
    since: Mono,
}

impl Controller for Deployments {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn plans(&self) -> &'static [&'static str] {
        &[KIND]
    }

    fn watches(&self) -> &'static [&'static str] {
        &[KIND, replicaset::KIND, "Pod", "Node"]
    }

    fn wake(&mut self, change: &Change, view: &dyn View, _now: Now) -> Vec<(Key, Lane)> {
        let Some(latest) = change.latest() else {
            return Vec::new();
        };
        match latest.key.kind.as_str() {
            "Pod" | "Node" => {
                // A pod concerns the Deployment through its ReplicaSet.
                let sets = replicaset::wake(change, view, replicaset::KIND);
                let owners = sets
                    .into_iter()
                    .filter_map(|(set, _)| owner::controller_key(&view.get(&set)?, KIND));
                let mut keys: Vec<_> = owners.collect();
                keys.sort();
                keys.dedup();
                at_once(keys)
            }
            replicaset::KIND => {
                let owners = || view.list(&KIND.into(), Some(&latest.key.namespace)).into_objects();
                let mut keys: Vec<_> = change
                    .states()
                    .flat_map(|set| owner::interested(set, KIND, owners))
                    .collect();
                keys.sort();
                keys.dedup();
                at_once(keys)
            }
            _ => {
                if change.after.is_none() {
                    self.progress.remove(&latest.key);
                }
                at_once([latest.key.clone()])
            }
        }
    }

    fn plan(&mut self, key: &Key, view: &dyn View, now: Now) -> Plan {
        let Some(deployment) = view.get(key) else {
            self.progress.remove(key);
            self.ready.forget(key);
            return Plan::nothing();
        };
        self.plan_one(&deployment, view, now)
    }
}

/// One ReplicaSet of a Deployment with its pods counted.
#[derive(Debug, Clone)]
struct Set {
    object: Object,
    counts: Counts,
}

/// What a rollout counts by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    /// `spec.replicas`.
    wanted: usize,
    /// Pods that take a place: also those on silent nodes, also deleted ones there.
    present: usize,
    /// Those of them on silent nodes.
    silent: usize,
    ready: usize,
    available: usize,
    /// Deleted ones whose node will say when they are gone.
    ending: usize,
}

impl Counts {
    fn of(set: &Object, members: &[Member]) -> Self {
        let count = |test: &dyn Fn(&Member) -> bool| members.iter().filter(|member| test(member)).count();
        Self {
            wanted: replicas(&set.value),
            present: count(&Member::is_present),
            silent: count(&|member| member.is_present() && member.silent),
            ready: count(&|member| member.is_active() && member.ready),
            available: count(&|member| member.is_active() && member.available),
            ending: count(&|member| member.is_deleting() && !member.silent),
        }
    }

    /// How many places the set takes or may take before it is looked at again.
    fn places(self) -> usize {
        self.wanted.max(self.present)
    }

    /// Available pods that are not already on their way out because the set was scaled down.
    fn keeps_available(self) -> usize {
        self.available.min(self.wanted.saturating_sub(self.silent))
    }
}

fn replicas(value: &Value) -> usize {
    usize::try_from(value.int_at(&["spec", "replicas"]).unwrap_or(1)).unwrap_or(0)
}

fn int(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl Deployments {
    fn plan_one(&mut self, deployment: &Object, view: &dyn View, now: Now) -> Plan {
        let selector = Selector::of_labels(deployment.value.at(&["spec", "selector"]).unwrap_or(&Value::Null));
        let Ok(Some(selector)) = selector else {
            return Plan { outcome: Outcome::Terminal, ..Plan::nothing() };
        };
        let namespace = Some(deployment.key.namespace.as_str());
        let candidates = view.list(&Kind::from(replicaset::KIND), namespace).into_objects();
        let claim = owner::claim(deployment, &selector, candidates);
        if !claim.writes.is_empty() {
            let mut plan = Plan::of(claim.writes);
            plan.writes.truncate(WRITES_MAX);
            return plan;
        }
        let (sets, next) = self.count(deployment, claim.owned, view, now);
        let (current, old) = revision::split(deployment, sets);
        let mut plan = Plan::of(Vec::new());
        let mut current = current;
        if !deployment.is_deleting() {
            act(deployment, &mut current, &old, view, &mut plan);
        }
        let signature = status::signature(current.as_ref(), &old);
        let stalled = self.stalled_for(deployment, signature, now);
        let wait = status::plan(deployment, current.as_ref(), &old, stalled, &mut plan);
        if let Some(wait) = [wait, next].into_iter().flatten().min() {
            plan.outcome = Outcome::Again(wait);
        }
        plan
    }

    /// The ReplicaSets with their pods counted, and when waiting alone changes a count.
    fn count(
        &mut self,
        deployment: &Object,
        sets: Vec<Object>,
        view: &dyn View,
        now: Now,
    ) -> (Vec<Set>, Option<std::time::Duration>) {
        let pods = view
            .list(&Kind::from("Pod"), Some(&deployment.key.namespace))
            .into_objects();
        let uids: Vec<_> = sets.iter().map(|set| Some(set.uid)).collect();
        let owned = pods
            .into_iter()
            .filter(|pod| uids.contains(&owner::controller_uid(&pod.value)));
        let min_ready = pods::seconds(&deployment.value, &["spec", "minReadySeconds"]);
        let mut contact = Contact::new(view);
        let (members, next) = self
            .ready
            .members(&deployment.key, owned.collect(), &mut contact, min_ready, now);
        let mut by_set: BTreeMap<Option<Uid>, Vec<Member>> = BTreeMap::new();
        for member in members {
            by_set
                .entry(owner::controller_uid(&member.pod.value))
                .or_default()
                .push(member);
        }
        let counted = sets.into_iter().map(|object| {
            let members = by_set.remove(&Some(object.uid)).unwrap_or_default();
            let counts = Counts::of(&object, &members);
            Set { object, counts }
        });
        (counted.collect(), next)
    }

    /// Since when nothing has moved.
    fn stalled_for(&mut self, deployment: &Object, signature: u64, now: Now) -> std::time::Duration {
        let fresh = Progress { uid: deployment.uid, signature, since: now.mono };
        let known = self
            .progress
            .entry(deployment.key.clone())
            .or_insert_with(|| fresh.clone());
        if (known.uid, known.signature) != (fresh.uid, fresh.signature) {
            *known = fresh;
        }
        now.mono.since(known.since)
    }
}

/// The writes that bring the ReplicaSets closer to what should be.
fn act(deployment: &Object, current: &mut Option<Set>, old: &[Set], view: &dyn View, plan: &mut Plan) {
    let budget = rolling::Budget::of(&deployment.value);
    let paused = deployment.value.flag_at(&["spec", "paused"]);
    if let Some(rescale) = rolling::rescale(&budget, current.as_ref(), old) {
        let all = current.iter().chain(old);
        for (set, target) in all.zip(rescale.sizes) {
            let edits = if rescale.whole {
                scaling(&budget, set, target, false)
            } else {
                // The annotations still say the old number, so the rest follows.
                vec![Edit::set(&["spec", "replicas"], int(target))]
            };
            if target != set.counts.wanted {
                plan.notes.push(scaled(deployment, set, target));
            }
            plan.writes.extend(changes(&set.object, edits));
        }
        return;
    }
    if paused {
        return;
    }
    let Some(current) = current else {
        let wanted = rolling::first(&budget, old);
        let set = revision::new_set(deployment, old, wanted, &budget, view);
        if wanted > 0 {
            plan.notes.push(Note {
                about: deployment.key.clone(),
                uid: deployment.uid,
                warning: false,
                reason: "ScalingReplicaSet",
                message: format!(
                    "Scaled up replica set {} from 0 to {wanted}",
                    set.text_at(&["metadata", "name"]).unwrap_or_default()
                ),
                component: COMPONENT,
            });
        }
        plan.writes.push(Write::Create(set));
        return;
    };
    let step = rolling::step(
        &budget,
        &current.counts,
        &old.iter().map(|set| set.counts).collect::<Vec<_>>(),
    );
    let mut edits = revision::sync(deployment, current, old);
    if step.current != current.counts.wanted {
        edits.extend(scaling(&budget, current, step.current, false));
        plan.notes.push(scaled(deployment, current, step.current));
    }
    plan.writes.extend(changes(&current.object, edits));
    for (set, target) in old.iter().zip(step.old) {
        plan.writes
            .extend(scale(deployment, &budget, set, target, &mut plan.notes));
    }
    plan.writes.extend(revision::expired(deployment, old));
}

/// The write that gives an old ReplicaSet its size, if it is another one.
fn scale(
    deployment: &Object,
    budget: &rolling::Budget,
    set: &Set,
    target: usize,
    notes: &mut Vec<Note>,
) -> Option<Write> {
    if target == set.counts.wanted {
        return None;
    }
    notes.push(scaled(deployment, set, target));
    changes(&set.object, scaling(budget, set, target, true))
}

fn scaling(budget: &rolling::Budget, set: &Set, target: usize, spare: bool) -> Vec<Edit> {
    let mut edits = vec![
        Edit::set(
            &["metadata", "annotations", revision::DESIRED],
            budget.replicas.to_string(),
        ),
        Edit::set(
            &["metadata", "annotations", revision::MAX],
            (budget.replicas + budget.surge).to_string(),
        ),
    ];
    if target != set.counts.wanted {
        edits.push(Edit::set(&["spec", "replicas"], int(target)));
    }
    edits.push(if spare {
        Edit::set(&["metadata", "annotations", SPARE_SILENT], "true")
    } else {
        Edit::remove(&["metadata", "annotations", SPARE_SILENT])
    });
    edits
}

fn scaled(deployment: &Object, set: &Set, target: usize) -> Note {
    let from = set.counts.wanted;
    let way = if target > from { "up" } else { "down" };
    Note {
        about: deployment.key.clone(),
        uid: deployment.uid,
        warning: false,
        reason: "ScalingReplicaSet",
        message: format!(
            "Scaled {way} replica set {} from {from} to {target}",
            set.object.key.name
        ),
        component: COMPONENT,
    }
}

#[cfg(test)]
mod tests;
