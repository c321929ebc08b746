//! ReplicaSets: as many pods as asked for.
//!
//! A pod on a silent node takes its place, and so does a deleted one until its node says that it is gone: a second copy
//! is never made for them.

use std::cmp::Reverse;

use proto::object::selector::Selector;
use proto::object::{Key, Kind};
use proto::value::Value;
use reconcile::{Lane, Outcome};

use super::owner;
use super::plan::{Edit, Note, Plan, Write};
use super::pods::{self, Contact, Failures, Member, ReadySince};
use super::view::{Change, Now, Object, View};
use super::{Controller, WRITES_MAX, at_once, conditions};

pub const KIND: &str = "ReplicaSet.apps";

/// Set by a Deployment on a ReplicaSet that it scales down in a rollout: its pods on silent nodes go last, so that they
/// wait for their nodes instead of being deleted unseen.
pub const SPARE_SILENT: &str = "edgehold.dev/spare-silent";

/// How many finished pods of one ReplicaSet are kept for people to look at; past it the oldest go.
pub const FINISHED_MAX: usize = 5;

const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// The controller of ReplicaSets.
#[derive(Debug, Default)]
pub struct ReplicaSets {
    ready: ReadySince,
    failures: Failures,
}

impl Controller for ReplicaSets {
    fn name(&self) -> &'static str {
        "replicaset-controller"
    }

    fn plans(&self) -> &'static [&'static str] {
        &[KIND]
    }

    fn watches(&self) -> &'static [&'static str] {
        &[KIND, "Pod", "Node"]
    }

    fn wake(&mut self, change: &Change, view: &dyn View, _now: Now) -> Vec<(Key, Lane)> {
        wake(change, view, KIND)
    }

    fn plan(&mut self, key: &Key, view: &dyn View, now: Now) -> Plan {
        let Some(set) = view.get(key) else {
            self.ready.forget(key);
            self.failures.forget(key);
            return Plan::nothing();
        };
        plan(&set, view, self, now)
    }
}

/// The owners of `kind` that a change of themselves, of a pod, or of a node's contact concerns.
pub(crate) fn wake(change: &Change, view: &dyn View, kind: &'static str) -> Vec<(Key, Lane)> {
    let Some(latest) = change.latest() else {
        return Vec::new();
    };
    match latest.key.kind.as_str() {
        "Pod" => {
            let owners = || view.list(&kind.into(), Some(&latest.key.namespace)).into_objects();
            let both = change.states().flat_map(|pod| owner::interested(pod, kind, owners));
            let mut keys: Vec<_> = both.collect();
            keys.sort();
            keys.dedup();
            at_once(keys)
        }
        "Node" => {
            let unknown = |node: Option<&Object>| node.is_none_or(|node| pods::is_unknown(&node.value));
            if unknown(change.before.as_ref()) == unknown(change.after.as_ref()) {
                return Vec::new();
            }
            let pods = view.pods_on(&latest.key.name).into_objects();
            let mut keys: Vec<_> = pods.iter().filter_map(|pod| owner::controller_key(pod, kind)).collect();
            keys.sort();
            keys.dedup();
            at_once(keys)
        }
        _ => at_once([latest.key.clone()]),
    }
}

fn plan(set: &Object, view: &dyn View, memory: &mut ReplicaSets, now: Now) -> Plan {
    let selector = Selector::of_labels(set.value.at(&["spec", "selector"]).unwrap_or(&Value::Null));
    let Ok(Some(selector)) = selector else {
        // Validation lets no such object in; without a selector nothing can be said to be its own.
        return Plan { outcome: Outcome::Terminal, ..Plan::nothing() };
    };
    let candidates = view.list(&Kind::from("Pod"), Some(&set.key.namespace)).into_objects();
    let claim = owner::claim(set, &selector, candidates);
    let min_ready = pods::seconds(&set.value, &["spec", "minReadySeconds"]);
    let mut contact = Contact::new(view);
    let (members, mut next) = memory
        .ready
        .members(&set.key, claim.owned, &mut contact, min_ready, now);
    let wanted = usize::try_from(set.value.int_at(&["spec", "replicas"]).unwrap_or(1)).unwrap_or(0);
    let mut plan = Plan::of(claim.writes);
    if !plan.writes.is_empty() {
        // Adopted and released pods change the count: count again when they are.
        plan.writes.truncate(WRITES_MAX);
        return plan;
    }
    if !set.is_deleting() {
        let wait = memory
            .failures
            .wait((set.key.clone(), String::new()), members.iter(), now);
        let present = members.iter().filter(|member| member.is_present()).count();
        if present < wanted && !wait.is_zero() {
            next = Some(next.map_or(wait, |next| next.min(wait)));
        } else {
            scale(set, &members, wanted, &mut plan);
        }
        plan.writes.extend(finished_past_limit(&members));
        plan.writes.truncate(WRITES_MAX - 1);
    }
    plan.writes.extend(status(set, &members));
    if let Some(left) = next {
        plan.outcome = Outcome::Again(left);
    }
    plan
}

/// Creates what is missing or deletes what is too much.
fn scale(set: &Object, members: &[Member], wanted: usize, plan: &mut Plan) {
    let present = members.iter().filter(|member| member.is_present()).count();
    let active: Vec<_> = members.iter().filter(|member| member.is_active()).collect();
    let template = set.value.at(&["spec", "template"]).unwrap_or(&Value::Null);
    for _ in present..wanted.min(present + WRITES_MAX - 1) {
        let pod = pods::from_template(template, set, &format!("{}-", set.key.name));
        plan.writes.push(Write::Create(pod));
    }
    if active.len() > wanted {
        let excess = (active.len() - wanted).min(WRITES_MAX - 1);
        for member in deletion_order(set, active).into_iter().take(excess) {
            plan.writes.push(Write::delete(&member.pod));
            plan.notes.push(Note {
                about: set.key.clone(),
                uid: set.uid,
                warning: false,
                reason: "SuccessfulDelete",
                message: format!("Deleted pod: {}", member.pod.key.name),
                component: "replicaset-controller",
            });
        }
    }
}

fn finished_past_limit(members: &[Member]) -> impl Iterator<Item = Write> {
    let mut finished: Vec<_> = members
        .iter()
        .map(|member| &member.pod)
        .filter(|pod| pods::is_finished(&pod.value) && !pod.is_deleting())
        .collect();
    finished.sort_by_key(|pod| Reverse((pod.created().to_owned(), pod.uid)));
    finished.into_iter().skip(FINISHED_MAX).map(Write::delete)
}

/// Those that are missed least come first: unbound, not running, not ready, cheap by annotation, young.
fn deletion_order<'a>(set: &Object, mut members: Vec<&'a Member>) -> Vec<&'a Member> {
    let spare = set.annotation(SPARE_SILENT).is_some();
    let phase_rank = |pod: &Value| match pods::phase(pod) {
        "Pending" => 0,
        "Running" => 2,
        _ => 1,
    };
    members.sort_by_cached_key(|member| {
        let pod = &member.pod;
        let cost = pod.annotation(DELETION_COST).and_then(|cost| cost.parse::<i32>().ok());
        (
            spare && member.silent,
            pods::node(&pod.value).is_some(),
            phase_rank(&pod.value),
            member.ready,
            cost.unwrap_or(0),
            member.available,
            Reverse(pod.created().to_owned()),
            pod.uid,
        )
    });
    members
}

fn status(set: &Object, members: &[Member]) -> Option<Write> {
    let labels = set
        .value
        .at(&["spec", "template", "metadata", "labels"])
        .unwrap_or(&Value::Null);
    let template = Selector::of_map(labels);
    let counted: Vec<_> = members.iter().filter(|member| member.is_present()).collect();
    let count = |test: &dyn Fn(&Member) -> bool| counted.iter().filter(|member| test(member)).count();
    let edits = vec![
        // Kubernetes always writes this one, also when it is zero.
        Edit::set(
            &["status", "replicas"],
            i64::try_from(counted.len()).unwrap_or(i64::MAX),
        ),
        Edit::count(
            &["status", "fullyLabeledReplicas"],
            count(&|member| template.matches_object(&member.pod.value)),
        ),
        Edit::count(
            &["status", "readyReplicas"],
            count(&|member| member.ready && !member.is_deleting()),
        ),
        Edit::count(
            &["status", "availableReplicas"],
            count(&|member| member.available && !member.is_deleting()),
        ),
        Edit::set(&["status", "observedGeneration"], set.generation()),
    ];
    changes(set, edits)
}

/// An edit of an object, unless it is all there already.
pub(crate) fn changes(object: &Object, edits: Vec<Edit>) -> Option<Write> {
    let holds = |edit: &Edit| match edit {
        Edit::Set(path, value) => {
            let path: Vec<_> = path.iter().map(String::as_str).collect();
            object.value.at(&path) == Some(value)
        }
        Edit::Remove(path) => {
            let path: Vec<_> = path.iter().map(String::as_str).collect();
            object.value.at(&path).is_none()
        }
        Edit::Condition(condition) => {
            let known = conditions::get(&object.value, condition.text_at(&["type"]).unwrap_or_default());
            let same = |field: &str| known.and_then(|known| known.get(field)) == condition.get(field);
            known.is_some() && same("status") && same("reason") && same("message")
        }
    };
    let edits: Vec<_> = edits.into_iter().filter(|edit| !holds(edit)).collect();
    (!edits.is_empty()).then(|| Write::edit(object, edits))
}

#[cfg(test)]
mod tests {
    use super::super::model::{Model, names, text};
    use super::*;

    fn set(model: &mut Model, replicas: i64) -> Key {
        model.create(&format!(
            r#"{{"apiVersion":"apps/v1","kind":"ReplicaSet","metadata":{{"name":"web","namespace":"shop"}},
                "spec":{{"replicas":{replicas},"selector":{{"matchLabels":{{"app":"web"}}}},
                "template":{{"metadata":{{"labels":{{"app":"web"}}}},"spec":{{"containers":[{{"name":"c"}}]}}}}}}}}"#
        ))
    }

    fn run(model: &mut Model, sets: &mut ReplicaSets, key: &Key) -> Plan {
        model.step(sets, key)
    }

    fn settle(model: &mut Model, sets: &mut ReplicaSets, key: &Key) {
        for _ in 0..10 {
            if run(model, sets, key).writes.is_empty() {
                return;
            }
        }
        panic!("it never settles");
    }

    #[test]
    fn creates_what_is_missing_and_counts_it() {
        let (mut model, mut sets) = (Model::default(), ReplicaSets::default());
        let key = set(&mut model, 3);
        settle(&mut model, &mut sets, &key);
        let pods = model.pods("shop");
        assert_eq!(pods.len(), 3);
        assert!(
            pods.iter()
                .all(|pod| pod.key.name.starts_with("web-") && pod.key.name.len() == 9)
        );
        assert_eq!(owner::controller_key(&pods[0], KIND), Some(key.clone()));
        let status = text(&model.get(&key).unwrap(), &["status"]);
        assert_eq!(
            status,
            r#"{"fullyLabeledReplicas":3,"observedGeneration":1,"replicas":3}"#
        );
    }

    #[test]
    fn more_than_one_batch_comes_in_batches() {
        let (mut model, mut sets) = (Model::default(), ReplicaSets::default());
        let key = set(&mut model, i64::try_from(WRITES_MAX).unwrap() + 40);
        let first = run(&mut model, &mut sets, &key);
        assert!(first.writes.len() <= WRITES_MAX);
        settle(&mut model, &mut sets, &key);
        assert_eq!(model.pods("shop").len(), WRITES_MAX + 40);
        model.edit(&key, &["spec", "replicas"], 0);
        assert!(run(&mut model, &mut sets, &key).writes.len() <= WRITES_MAX);
        settle(&mut model, &mut sets, &key);
        assert_eq!(model.pods("shop").len(), 0);
    }

    #[test]
    fn deletes_those_that_are_missed_least() {
        let (mut model, mut sets) = (Model::default(), ReplicaSets::default());
        model.node("a", true);
        let key = set(&mut model, 4);
        settle(&mut model, &mut sets, &key);
        let all = names(&model.pods("shop"));
        // One unbound, one pending, one running and one ready.
        model.bind("shop", &all[1], "a");
        model.bind("shop", &all[2], "a");
        model.bind("shop", &all[3], "a");
        model.report("shop", &all[2], "Running", false);
        model.report("shop", &all[3], "Running", true);
        for (replicas, left) in [(3, &all[1..]), (2, &all[2..]), (1, &all[3..])] {
            model.edit(&key, &["spec", "replicas"], replicas);
            settle(&mut model, &mut sets, &key);
            model.finish_deletions();
            assert_eq!(names(&model.pods("shop")), left);
        }
    }

    #[test]
    fn adopts_orphans_and_releases_what_no_longer_matches() {
        let (mut model, mut sets) = (Model::default(), ReplicaSets::default());
        let orphan = model.create(
            r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"o","namespace":"shop","labels":{"app":"web"}},"spec":{}}"#,
        );
        let key = set(&mut model, 2);
        settle(&mut model, &mut sets, &key);
        assert_eq!(
            owner::controller_key(&model.get(&orphan).unwrap(), KIND),
            Some(key.clone())
        );
        assert_eq!(model.pods("shop").len(), 2);
        model.edit(&orphan, &["metadata", "labels", "app"], "other");
        settle(&mut model, &mut sets, &key);
        assert_eq!(owner::controller_uid(&model.get(&orphan).unwrap().value), None);
        assert_eq!(
            model.pods("shop").len(),
            3,
            "the released pod lives on beside its replacement"
        );
    }

    #[test]
    fn a_failed_pod_is_replaced_and_a_silent_one_is_not() {
        let (mut model, mut sets) = (Model::default(), ReplicaSets::default());
        model.node("a", true);
        model.node("b", true);
        let key = set(&mut model, 2);
        settle(&mut model, &mut sets, &key);
        let all = names(&model.pods("shop"));
        model.bind("shop", &all[0], "a");
        model.bind("shop", &all[1], "b");
        model.report("shop", &all[0], "Running", true);
        model.report("shop", &all[1], "Running", true);
        settle(&mut model, &mut sets, &key);
        assert_eq!(
            model.get(&key).unwrap().value.int_at(&["status", "availableReplicas"]),
            Some(2)
        );

        model.silence("b");
        settle(&mut model, &mut sets, &key);
        assert_eq!(model.pods("shop").len(), 2, "nothing replaces it");
        let status = model.get(&key).unwrap();
        assert_eq!(status.value.int_at(&["status", "availableReplicas"]), Some(1));
        assert_eq!(status.value.int_at(&["status", "replicas"]), Some(2));

        // A deletion waits without a second copy.
        model.delete("shop", &all[1]);
        settle(&mut model, &mut sets, &key);
        assert_eq!(model.pods("shop").len(), 2);
        model.node("b", true);
        model.finish_deletions();
        settle(&mut model, &mut sets, &key);
        assert_eq!(model.pods("shop").len(), 2, "gone for certain, so replaced");

        model.report("shop", &all[0], "Failed", false);
        settle(&mut model, &mut sets, &key);
        assert_eq!(model.pods("shop").len(), 3);
    }

    #[test]
    fn a_pod_that_only_fails_is_made_again_ever_more_slowly() {
        let (mut model, mut sets) = (Model::default(), ReplicaSets::default());
        model.node("a", true);
        let key = set(&mut model, 1);
        settle(&mut model, &mut sets, &key);
        for wait_s in [0, 10, 20, 40, 80, 160, 300, 300] {
            let pods = model.pods("shop");
            let live = pods.iter().find(|pod| !pods::is_finished(&pod.value)).unwrap();
            model.bind("shop", &live.key.name, "a");
            model.report("shop", &live.key.name, "Failed", false);
            if wait_s > 0 {
                run(&mut model, &mut sets, &key);
                let plan = run(&mut model, &mut sets, &key);
                assert_eq!(plan.outcome, Outcome::Again(std::time::Duration::from_secs(wait_s)));
                model.pass(wait_s * 1000);
            }
            settle(&mut model, &mut sets, &key);
        }
    }

    #[test]
    fn a_pod_that_fails_because_it_was_told_to_end_is_replaced_at_once() {
        let (mut model, mut sets) = (Model::default(), ReplicaSets::default());
        model.node("a", true);
        let key = set(&mut model, 1);
        settle(&mut model, &mut sets, &key);
        for _ in 0..8 {
            let pod = names(&model.pods("shop")).remove(0);
            model.bind("shop", &pod, "a");
            model.report("shop", &pod, "Running", true);
            model.delete("shop", &pod);
            // Its program does not know the signal and is killed.
            model.report("shop", &pod, "Failed", false);
            let plan = run(&mut model, &mut sets, &key);
            assert_eq!(plan.outcome, Outcome::Done);
            settle(&mut model, &mut sets, &key);
            model.finish_deletions();
            settle(&mut model, &mut sets, &key);
            let pods = model.pods("shop");
            assert_eq!(pods.len(), 1);
            assert_ne!(pods[0].key.name, pod);
        }
    }

    #[test]
    fn finished_pods_are_kept_up_to_their_limit() {
        let (mut model, mut sets) = (Model::default(), ReplicaSets::default());
        model.node("a", true);
        let key = set(&mut model, 1);
        for count in 1..=FINISHED_MAX + 2 {
            settle(&mut model, &mut sets, &key);
            let pods = model.pods("shop");
            let finished = pods.iter().filter(|pod| pods::is_finished(&pod.value)).count();
            assert_eq!(finished, (count - 1).min(FINISHED_MAX));
            let live = pods.iter().find(|pod| !pods::is_finished(&pod.value)).unwrap();
            model.bind("shop", &live.key.name, "a");
            model.report("shop", &live.key.name, "Failed", false);
            model.step(&mut sets, &key);
            model.pass(300_000);
        }
    }

    #[test]
    fn ready_is_not_available_before_its_time() {
        let (mut model, mut sets) = (Model::default(), ReplicaSets::default());
        model.node("a", true);
        let key = set(&mut model, 1);
        model.edit(&key, &["spec", "minReadySeconds"], 10);
        settle(&mut model, &mut sets, &key);
        let pod = names(&model.pods("shop")).remove(0);
        model.bind("shop", &pod, "a");
        model.report("shop", &pod, "Running", true);
        let available = |model: &Model| model.get(&key).unwrap().value.int_at(&["status", "availableReplicas"]);
        let plan = run(&mut model, &mut sets, &key);
        assert_eq!(plan.outcome, Outcome::Again(std::time::Duration::from_secs(10)));
        assert_eq!(available(&model), None);
        model.pass(9_999);
        settle(&mut model, &mut sets, &key);
        assert_eq!(available(&model), None);
        model.pass(1);
        settle(&mut model, &mut sets, &key);
        assert_eq!(available(&model), Some(1));
    }
}
