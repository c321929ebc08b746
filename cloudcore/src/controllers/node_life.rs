//! Node life: is a node in contact, and what follows from that. Which is little.
//!
//! Silence sets Ready to Unknown and keeps new work away by a NoSchedule taint. Nothing is evicted, nothing is moved,
//! and no NoExecute taint is ever set here: moving work is for an explicit policy. So it makes no difference whether
//! one node is silent or all are, as when the cloud's own uplink is lost.

use std::time::Duration;

use proto::object::Key;
use proto::time::Mono;
use proto::value::Value;
use reconcile::{Lane, Outcome};

use super::conditions::{self, condition};
use super::plan::{Edit, Note, Plan};
use super::replicaset::changes;
use super::sessions::{Contact, SessionState, Sessions};
use super::view::{Change, Now, Object, View};
use super::{Controller, at_once};

/// The least silence after which a node is Unknown.
const GRACE_MIN: Duration = Duration::from_secs(40);
/// What two missed beats may be late.
const GRACE_SLACK: Duration = Duration::from_secs(10);

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const COMPONENT: &str = "node-controller";

/// The condition by which a node says that it cannot run pods although it is in contact.
pub const RUNTIME_READY: &str = "RuntimeReady";

/// How long a node may be silent before it is Unknown.
pub fn grace(beat: Duration) -> Duration {
    beat.saturating_mul(2).saturating_add(GRACE_SLACK).max(GRACE_MIN)
}

/// The controller of nodes.
#[derive(Debug)]
pub struct NodeLife {
    sessions: Sessions,
    /// When this process began to listen: a node that it never heard has been silent since then, not longer.
    started: Mono,
}

impl NodeLife {
    pub fn new(sessions: Sessions, started: Mono) -> Self {
        Self { sessions, started }
    }
}

impl Controller for NodeLife {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn plans(&self) -> &'static [&'static str] {
        &["Node"]
    }

    fn watches(&self) -> &'static [&'static str] {
        &["Node"]
    }

    fn wake(&mut self, change: &Change, _view: &dyn View, _now: Now) -> Vec<(Key, Lane)> {
        at_once(change.latest().map(|node| node.key.clone()))
    }

    fn plan(&mut self, key: &Key, view: &dyn View, now: Now) -> Plan {
        match view.get(key) {
            Some(node) => plan(&node, self.sessions.get(&key.name), self.started, now.mono),
            None => {
                self.sessions.forget(&key.name);
                Plan::nothing()
            }
        }
    }
}

/// What a node's Ready condition and taints should be.
fn plan(node: &Object, session: Option<SessionState>, started: Mono, now: Mono) -> Plan {
    let known = conditions::status(&node.value, "Ready");
    let (since, grace) = match session {
        Some(SessionState { contact: Contact::Connected { .. }, .. }) => {
            return settle(node, &in_contact(&node.value), known);
        }
        Some(SessionState { contact: Contact::Silent { since }, beat }) => (since, grace(beat)),
        Some(SessionState { contact: Contact::Barred { .. }, .. }) => {
            let barred = condition(
                "Ready",
                "Unknown",
                "NodeRevoked",
                "The node's key was revoked, so it is not let in; its pods are taken to be running. To let it in again: \
                 cloudcore token create --replace NODE, and join.",
            );
            return settle(node, &barred, known);
        }
        None if known.is_none() => {
            let never = condition(
                "Ready",
                "Unknown",
                "NodeStatusNeverUpdated",
                "The node has never been in contact.",
            );
            return settle(node, &never, known);
        }
        None => (started, grace(Duration::ZERO)),
    };
    let silence = now.since(since);
    if silence < grace && known.is_some() {
        // Not yet: what was last known stands.
        return Plan {
            outcome: Outcome::Again(grace.saturating_sub(silence)),
            ..Plan::nothing()
        };
    }
    let unknown = condition(
        "Ready",
        "Unknown",
        "NodeStatusUnknown",
        "The node is not in contact; its pods are taken to be running.",
    );
    settle(node, &unknown, known)
}

/// The Ready condition of a node in contact: it is, unless it says itself why not.
fn in_contact(node: &Value) -> Value {
    let reported = conditions::get(node, RUNTIME_READY).filter(|one| one.text_at(&["status"]) == Some("False"));
    match reported {
        Some(trouble) => condition(
            "Ready",
            "False",
            trouble.text_at(&["reason"]).unwrap_or("RuntimeNotReady"),
            trouble
                .text_at(&["message"])
                .unwrap_or("the node's container runtime is not ready"),
        ),
        None => condition("Ready", "True", "KubeletReady", "the node is in contact and runs pods"),
    }
}

fn settle(node: &Object, ready: &Value, known: Option<&str>) -> Plan {
    let status = ready.text_at(&["status"]).unwrap_or_default();
    let mut edits = vec![Edit::Condition(ready.clone())];
    let taint = |key: &str, wanted: bool| (key.to_owned(), wanted);
    edits.extend(taints(
        &node.value,
        &[
            taint(NOT_READY, status == "False"),
            taint(UNREACHABLE, status == "Unknown"),
        ],
    ));
    let mut plan = Plan::of(changes(node, edits).into_iter().collect());
    if known != Some(status) {
        let (warning, reason) = match status {
            "True" => (false, "NodeReady"),
            "False" => (true, "NodeNotReady"),
            _ => (true, "NodeUnknown"),
        };
        plan.notes.push(Note {
            about: node.key.clone(),
            uid: node.uid,
            warning,
            reason,
            message: format!("Node {} status is now: {reason}", node.key.name),
            component: COMPONENT,
        });
    }
    plan
}

/// The list of taints with these set or gone, if that changes it. Taints with other effects are not ours.
fn taints(node: &Value, wanted: &[(String, bool)]) -> Option<Edit> {
    let before = node.list_at(&["spec", "taints"]);
    let ours = |taint: &Value, key: &str| {
        taint.text_at(&["key"]) == Some(key) && taint.text_at(&["effect"]) == Some("NoSchedule")
    };
    let mut after = before.to_vec();
    for (key, wanted) in wanted {
        let there = after.iter().any(|taint| ours(taint, key));
        if there && !wanted {
            after.retain(|taint| !ours(taint, key));
        } else if !there && *wanted {
            after.push([("effect", "NoSchedule"), ("key", key.as_str())].into());
        }
    }
    if after == before {
        return None;
    }
    Some(if after.is_empty() {
        Edit::remove(&["spec", "taints"])
    } else {
        Edit::set(&["spec", "taints"], after)
    })
}

#[cfg(test)]
mod tests {
    use super::super::model::{Model, text};
    use super::*;

    const BEAT: Duration = Duration::from_secs(30);

    fn bench() -> (Model, NodeLife, Sessions, Key) {
        let mut model = Model::default();
        let key = model.create(r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"a"},"spec":{}}"#);
        let sessions = Sessions::default();
        let life = NodeLife::new(sessions.clone(), model.now.mono);
        (model, life, sessions, key)
    }

    fn connected(model: &Model, sessions: &Sessions) {
        let contact = Contact::Connected { since: model.now.mono };
        sessions.set("a", SessionState { contact, beat: BEAT }, model.now.mono);
    }

    fn silent(model: &Model, sessions: &Sessions) {
        let contact = Contact::Silent { since: model.now.mono };
        sessions.set("a", SessionState { contact, beat: BEAT }, model.now.mono);
    }

    fn ready(model: &Model, key: &Key) -> (String, String) {
        let node = model.get(key).unwrap();
        let status = conditions::status(&node.value, "Ready").unwrap_or("-").to_owned();
        (status, text(&node, &["spec", "taints"]))
    }

    #[test]
    fn graces() {
        let check = |beat: u64, grace_s: u64| assert_eq!(grace(Duration::from_secs(beat)).as_secs(), grace_s);
        check(0, 40);
        check(15, 40);
        check(16, 42);
        check(300, 610);
        assert_eq!(grace(Duration::MAX), Duration::MAX);
    }

    #[test]
    fn a_revoked_node_is_unknown_at_once() {
        let (mut model, mut life, sessions, key) = bench();
        connected(&model, &sessions);
        model.step(&mut life, &key);
        assert_eq!(ready(&model, &key).0, "True");
        let contact = Contact::Barred { since: model.now.mono };
        sessions.set("a", SessionState { contact, beat: BEAT }, model.now.mono);
        assert_eq!(model.step(&mut life, &key).outcome, Outcome::Done);
        let (status, taints) = ready(&model, &key);
        assert_eq!(status, "Unknown");
        assert!(taints.contains(UNREACHABLE), "{taints}");
        // Let in again.
        connected(&model, &sessions);
        model.step(&mut life, &key);
        assert_eq!(ready(&model, &key), ("True".to_owned(), String::new()));
    }

    #[test]
    fn ready_then_unknown_after_the_grace_then_ready_again() {
        let (mut model, mut life, sessions, key) = bench();
        model.step(&mut life, &key);
        assert_eq!(ready(&model, &key).0, "Unknown", "never in contact");
        connected(&model, &sessions);
        model.step(&mut life, &key);
        assert_eq!(ready(&model, &key), ("True".to_owned(), String::new()));

        silent(&model, &sessions);
        let plan = model.step(&mut life, &key);
        assert_eq!(
            (plan.writes.len(), plan.outcome),
            (0, Outcome::Again(Duration::from_secs(70)))
        );
        model.pass(69_999);
        assert_eq!(
            model.step(&mut life, &key).outcome,
            Outcome::Again(Duration::from_millis(1))
        );
        model.pass(1);
        assert_eq!(model.step(&mut life, &key).outcome, Outcome::Done);
        let (status, taints) = ready(&model, &key);
        assert_eq!(status, "Unknown");
        assert_eq!(
            taints,
            r#"[{"effect":"NoSchedule","key":"node.kubernetes.io/unreachable"}]"#
        );
        assert!(model.step(&mut life, &key).writes.is_empty(), "said once");

        connected(&model, &sessions);
        model.step(&mut life, &key);
        assert_eq!(ready(&model, &key), ("True".to_owned(), String::new()));
    }

    #[test]
    fn a_restart_of_the_cloud_gives_every_node_its_grace() {
        let (mut model, mut life, sessions, key) = bench();
        connected(&model, &sessions);
        model.step(&mut life, &key);
        model.pass(1_000_000);
        let mut life = NodeLife::new(Sessions::default(), model.now.mono);
        assert_eq!(
            model.step(&mut life, &key).outcome,
            Outcome::Again(Duration::from_secs(40))
        );
        assert_eq!(ready(&model, &key).0, "True");
    }

    #[test]
    fn only_the_monotonic_clock_counts() {
        let (mut model, mut life, sessions, key) = bench();
        connected(&model, &sessions);
        model.step(&mut life, &key);
        silent(&model, &sessions);
        model.now.wall.ms += 10 * 365 * 86_400_000;
        model.step(&mut life, &key);
        assert_eq!(ready(&model, &key).0, "True");
    }

    #[test]
    fn a_node_in_contact_without_a_runtime_is_not_ready() {
        let (mut model, mut life, sessions, key) = bench();
        connected(&model, &sessions);
        let trouble = condition(
            RUNTIME_READY,
            "False",
            "ContainerdMissing",
            "containerd does not answer",
        );
        model.apply(&key, vec![Edit::Condition(trouble)]);
        model.step(&mut life, &key);
        let (status, taints) = ready(&model, &key);
        assert_eq!(status, "False");
        assert_eq!(
            taints,
            r#"[{"effect":"NoSchedule","key":"node.kubernetes.io/not-ready"}]"#
        );
    }

    #[test]
    fn silence_sets_no_execute_on_nothing_and_leaves_other_taints() {
        let (mut model, mut life, sessions, key) = bench();
        let taint = Value::from([("key", UNREACHABLE), ("effect", "NoExecute")]);
        model.edit(&key, &["spec", "taints"], vec![taint.clone()]);
        silent(&model, &sessions);
        model.pass(100_000);
        model.step(&mut life, &key);
        let node = model.get(&key).unwrap();
        let taints = node.value.list_at(&["spec", "taints"]);
        assert_eq!(taints.len(), 2);
        assert_eq!(taints[0], taint, "a person's taint is a person's");
        connected(&model, &sessions);
        model.step(&mut life, &key);
        assert_eq!(model.get(&key).unwrap().value.list_at(&["spec", "taints"]), [taint]);
    }
}
