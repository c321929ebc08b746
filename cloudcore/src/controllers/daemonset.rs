//! DaemonSets: one pod on every node that suits.
//!
//! Each pod names its node by an affinity of its own, and the scheduler binds it. A node that is not in contact keeps
//! its pod and gets a new one bound for its return; a rolling update passes it by and goes on with the others.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use proto::object::selector::Selector;
use proto::object::{Key, Kind};
use proto::value::{Value, canonical};
use reconcile::{Lane, Outcome};

use super::deployment::share;
use super::owner;
use super::plan::{Edit, Note, Plan, Write, letters};
use super::pods::{self, Contact, Failures, Member, ReadySince};
use super::replicaset::changes;
use super::view::{Change, Now, Object, View};
use super::{Controller, WRITES_MAX, at_once};
use crate::scheduler::cache::Node;
use crate::scheduler::decision::suits;
use crate::scheduler::need::Need;

pub const KIND: &str = "DaemonSet.apps";

const HASH: &str = "controller-revision-hash";
const COMPONENT: &str = "daemonset-controller";

/// What every daemon pod puts up with, as in Kubernetes: it belongs to its node, whatever the node's troubles.
const TOLERATIONS: &[(&str, &str)] = &[
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];
const TOLERATION_HOST_NETWORK: (&str, &str) = ("node.kubernetes.io/network-unavailable", "NoSchedule");

/// The controller of DaemonSets.
#[derive(Debug, Default)]
pub struct DaemonSets {
    ready: ReadySince,
    failures: Failures,
}

impl Controller for DaemonSets {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn plans(&self) -> &'static [&'static str] {
        &[KIND]
    }

    fn watches(&self) -> &'static [&'static str] {
        &[KIND, "Pod", "Node"]
    }

    fn wake(&mut self, change: &Change, view: &dyn View, _now: Now) -> Vec<(Key, Lane)> {
        let is_node = change.latest().is_some_and(|latest| latest.key.kind.as_str() == "Node");
        if is_node && Node::changed(change) {
            let all = view.list(&KIND.into(), None).into_objects();
            return at_once(all.into_iter().map(|set| set.key));
        }
        if is_node {
            return Vec::new();
        }
        super::replicaset::wake(change, view, KIND)
    }

    fn plan(&mut self, key: &Key, view: &dyn View, now: Now) -> Plan {
        let Some(set) = view.get(key) else {
            self.ready.forget(key);
            self.failures.forget(key);
            return Plan::nothing();
        };
        let selector = Selector::of_labels(set.value.at(&["spec", "selector"]).unwrap_or(&Value::Null));
        let Ok(Some(selector)) = selector else {
            return Plan { outcome: Outcome::Terminal, ..Plan::nothing() };
        };
        let candidates = view.list(&Kind::from("Pod"), Some(&key.namespace)).into_objects();
        let claim = owner::claim(&set, &selector, candidates);
        if !claim.writes.is_empty() {
            let mut plan = Plan::of(claim.writes);
            plan.writes.truncate(WRITES_MAX);
            return plan;
        }
        let min_ready = pods::seconds(&set.value, &["spec", "minReadySeconds"]);
        let mut contact = Contact::new(view);
        let (members, mut next) = self.ready.members(key, claim.owned, &mut contact, min_ready, now);
        let rollout = Rollout::new(&set, view, members);
        let mut plan = Plan::of(Vec::new());
        if !set.is_deleting() {
            let wait = rollout.act(&mut plan, &mut self.failures, now);
            next = next.into_iter().chain(wait).min();
        }
        plan.writes.truncate(WRITES_MAX - 1);
        plan.writes.extend(rollout.status());
        if let Some(left) = next {
            plan.outcome = Outcome::Again(left);
        }
        plan
    }
}

/// Everything that one look at a DaemonSet sees.
struct Rollout<'a> {
    set: &'a Object,
    template: Value,
    hash: String,
    nodes: BTreeMap<String, Place>,
}

#[derive(Default)]
struct Place {
    /// Whether the node should run the pod; false also where there is no such node.
    wanted: bool,
    exists: bool,
    silent: bool,
    members: Vec<Member>,
}

impl<'a> Rollout<'a> {
    fn new(set: &'a Object, view: &dyn View, members: Vec<Member>) -> Self {
        let template = template(set);
        let hash = letters(super::hash(&canonical::encode(&template)), 10);
        let need = Need::of(&Value::from([(
            "spec",
            template.get("spec").cloned().unwrap_or_default(),
        )]));
        let mut nodes: BTreeMap<String, Place> = BTreeMap::new();
        for node in view.list(&Kind::from("Node"), None).objects() {
            let facts = Node::of(&node.key.name, &node.value);
            let place = Place {
                wanted: suits(&need, &facts) && !node.is_deleting(),
                exists: true,
                silent: !facts.known,
                members: Vec::new(),
            };
            nodes.insert(node.key.name.clone(), place);
        }
        for member in members {
            if let Some(node) = place_of(&member.pod.value) {
                nodes.entry(node.to_owned()).or_default().members.push(member);
            }
        }
        Self { set, template, hash, nodes }
    }

    fn is_current(&self, member: &Member) -> bool {
        member.pod.label(HASH) == Some(&self.hash)
    }

    /// The writes, and when a failed pod that has to wait for its replacement is looked at again.
    fn act(&self, plan: &mut Plan, failures: &mut Failures, now: Now) -> Option<Duration> {
        let mut next: Option<Duration> = None;
        for (name, place) in &self.nodes {
            let wait = failures.wait((self.set.key.clone(), name.clone()), place.members.iter(), now);
            if place.wanted && !wait.is_zero() {
                next = Some(next.map_or(wait, |next| next.min(wait)));
            } else {
                self.settle(name, place, plan);
            }
        }
        if self.set.value.text_at(&["spec", "updateStrategy", "type"]) != Some("OnDelete") {
            self.roll(plan);
        }
        next
    }

    /// One pod where one is wanted, none elsewhere.
    fn settle(&self, name: &str, place: &Place, plan: &mut Plan) {
        if !place.wanted {
            // A pod of a node that no longer exists goes with the node, not by this decision.
            if place.exists {
                plan.writes.extend(
                    place
                        .members
                        .iter()
                        .filter(|m| !m.is_deleting())
                        .map(|m| Write::delete(&m.pod)),
                );
            }
            return;
        }
        for failed in place
            .members
            .iter()
            .filter(|m| pods::is_finished(&m.pod.value) && !m.is_deleting())
        {
            plan.writes.push(Write::delete(&failed.pod));
            plan.notes.push(Note {
                about: self.set.key.clone(),
                uid: self.set.uid,
                warning: true,
                reason: "FailedDaemonPod",
                message: format!(
                    "Found failed daemon pod {} on node {name}, will try to kill it",
                    failed.pod.key
                ),
                component: COMPONENT,
            });
        }
        // A pod that is going still runs: its successor waits for it.
        if place.members.is_empty() {
            plan.writes.push(Write::Create(self.pod(name)));
        }
        let mut active: Vec<_> = place.members.iter().filter(|member| member.is_active()).collect();
        let surging = self.surge() > 0 && active.iter().any(|member| self.is_current(member));
        if active.len() > 1 && !surging {
            active.sort_by_key(|m| {
                (
                    Reverse(m.ready),
                    pods::node(&m.pod.value).is_none(),
                    m.pod.created().to_owned(),
                    m.pod.uid,
                )
            });
            plan.writes
                .extend(active[1..].iter().map(|member| Write::delete(&member.pod)));
        }
    }

    fn desired(&self) -> usize {
        self.nodes.values().filter(|place| place.wanted).count()
    }

    fn field(&self, name: &str, default: &Value) -> usize {
        let value = self.set.value.at(&["spec", "updateStrategy", "rollingUpdate", name]);
        share(value.unwrap_or(default), self.desired(), true)
    }

    fn surge(&self) -> usize {
        self.field("maxSurge", &Value::from(0))
    }

    /// Replaces pods of an older template, as many at a time as allowed, among the nodes in contact.
    fn roll(&self, plan: &mut Plan) {
        let surge = self.surge();
        let unavailable_max = match (self.field("maxUnavailable", &Value::from(1)), surge) {
            (0, 0) => 1,
            (unavailable, _) => unavailable,
        };
        let in_contact: Vec<_> = self
            .nodes
            .iter()
            .filter(|(_, place)| place.wanted && !place.silent)
            .collect();
        let available = |place: &Place| place.members.iter().any(|m| m.available && m.is_active());
        let unavailable = in_contact.iter().filter(|(_, place)| !available(place)).count();
        let mut room = unavailable_max.saturating_sub(unavailable);
        let mut surge_room = surge.saturating_sub(in_contact.iter().filter(|(_, p)| p.members.len() > 1).count());
        for (name, place) in in_contact {
            let (current, old): (Vec<_>, Vec<_>) = place
                .members
                .iter()
                .filter(|m| m.is_active())
                .partition(|m| self.is_current(m));
            let Some(old) = old.first() else { continue };
            if surge > 0 {
                // The new pod beside the old one first; the old one leaves when the new one is available.
                if current.iter().any(|member| member.available) || !old.available && !current.is_empty() {
                    plan.writes.push(Write::delete(&old.pod));
                } else if current.is_empty() && place.members.len() == 1 && surge_room > 0 {
                    surge_room -= 1;
                    plan.writes.push(Write::Create(self.pod(name)));
                }
            } else if !old.available {
                // It is missing already, so replacing it costs nothing.
                plan.writes.push(Write::delete(&old.pod));
            } else if room > 0 {
                room -= 1;
                plan.writes.push(Write::delete(&old.pod));
            }
        }
    }

    /// The pod for one node.
    fn pod(&self, node: &str) -> Value {
        let mut pod = pods::from_template(&self.template, self.set, &format!("{}-", self.set.key.name));
        pod.set(&["metadata", "labels", HASH], self.hash.as_str());
        let field = Value::from([
            ("key", Value::from("metadata.name")),
            ("operator", "In".into()),
            ("values", Value::from_iter([node])),
        ]);
        let path = &[
            "spec",
            "affinity",
            "nodeAffinity",
            "requiredDuringSchedulingIgnoredDuringExecution",
            "nodeSelectorTerms",
        ];
        let mut terms = pod.list_at(path).to_vec();
        if terms.is_empty() {
            terms.push(Value::map());
        }
        for term in &mut terms {
            term.set(&["matchFields"], vec![field.clone()]);
        }
        pod.set(path, terms);
        pod
    }

    fn status(&self) -> Option<Write> {
        let wanted: Vec<_> = self.nodes.values().filter(|place| place.wanted).collect();
        let with = |test: &dyn Fn(&Member) -> bool| {
            let places = wanted
                .iter()
                .filter(|place| place.members.iter().any(|m| m.is_present() && test(m)));
            i64::try_from(places.count()).unwrap_or(i64::MAX)
        };
        let desired = i64::try_from(wanted.len()).unwrap_or(i64::MAX);
        let stray = |place: &&Place| !place.wanted && place.members.iter().any(Member::is_present);
        let stray = i64::try_from(self.nodes.values().filter(stray).count()).unwrap_or(i64::MAX);
        let available = with(&|member| member.available);
        let optional = |name: &str, number: i64| match number {
            0 => Edit::remove(&["status", name]),
            number => Edit::set(&["status", name], number),
        };
        changes(
            self.set,
            vec![
                Edit::set(&["status", "currentNumberScheduled"], with(&|_| true)),
                Edit::set(&["status", "desiredNumberScheduled"], desired),
                Edit::set(&["status", "numberMisscheduled"], stray),
                Edit::set(&["status", "numberReady"], with(&|member| member.ready)),
                optional("numberAvailable", available),
                optional("numberUnavailable", desired - available),
                optional("updatedNumberScheduled", with(&|member| self.is_current(member))),
                Edit::set(&["status", "observedGeneration"], self.set.generation()),
            ],
        )
    }
}

/// The template with what every daemon pod gets.
fn template(set: &Object) -> Value {
    let mut template = set.value.at(&["spec", "template"]).cloned().unwrap_or_default();
    let mut tolerations = template.list_at(&["spec", "tolerations"]).to_vec();
    let network = template
        .flag_at(&["spec", "hostNetwork"])
        .then_some(&TOLERATION_HOST_NETWORK);
    for (key, effect) in TOLERATIONS.iter().chain(network) {
        let same = |one: &Value| one.text_at(&["key"]) == Some(key) && one.text_at(&["effect"]) == Some(effect);
        if !tolerations.iter().any(same) {
            tolerations.push([("effect", *effect), ("key", key), ("operator", "Exists")].into());
        }
    }
    template.set(&["spec", "tolerations"], tolerations);
    template
}

/// The node that a daemon pod is for: bound to it, or named by its affinity.
fn place_of(pod: &Value) -> Option<&str> {
    let path = &[
        "spec",
        "affinity",
        "nodeAffinity",
        "requiredDuringSchedulingIgnoredDuringExecution",
        "nodeSelectorTerms",
    ];
    pods::node(pod).or_else(|| {
        let fields = pod.list_at(path).first()?.list_at(&["matchFields"]);
        fields.first()?.text_at(&["values", "0"])
    })
}

#[cfg(test)]
mod tests {
    use super::super::model::Model;
    use super::*;
    use crate::scheduler::Scheduler;

    struct Bench {
        model: Model,
        sets: DaemonSets,
        scheduler: Scheduler,
        key: Key,
    }

    impl Bench {
        fn new(nodes: &[&str]) -> Self {
            let mut model = Model::default();
            for node in nodes {
                model.node(node, true);
            }
            let key = model.create(
                r#"{"apiVersion":"apps/v1","kind":"DaemonSet","metadata":{"name":"log","namespace":"ops"},
                    "spec":{"selector":{"matchLabels":{"app":"log"}},"updateStrategy":{"type":"RollingUpdate"},
                    "template":{"metadata":{"labels":{"app":"log"}},"spec":{"containers":[{"name":"c","image":"a"}]}}}}"#,
            );
            Self {
                model,
                sets: DaemonSets::default(),
                scheduler: Scheduler::default(),
                key,
            }
        }

        /// Plans, schedules and runs until nothing changes; pods of `sick` images never get ready.
        fn settle(&mut self) {
            for _ in 0..40 {
                let quiet = self.model.step(&mut self.sets, &self.key).writes.is_empty();
                self.model.schedule(&mut self.scheduler);
                self.model.finish_deletions();
                let ran = self.model.run_pods("ops");
                if quiet && !ran {
                    return;
                }
            }
            panic!("it never settles");
        }

        fn by_node(&self) -> Vec<(String, String)> {
            let pods = self.model.pods("ops");
            let mut all: Vec<_> = pods
                .iter()
                .map(|pod| {
                    let image = pod
                        .value
                        .text_at(&["spec", "containers", "0", "image"])
                        .unwrap_or_default();
                    (pods::node(&pod.value).unwrap_or("-").to_owned(), image.to_owned())
                })
                .collect();
            all.sort();
            all
        }

        fn check(&self, expected: &[(&str, &str)]) {
            let all = self.by_node();
            let all: Vec<_> = all
                .iter()
                .map(|(node, image)| (node.as_str(), image.as_str()))
                .collect();
            assert_eq!(all, expected);
        }

        fn image(&mut self, image: &str) {
            let containers = vec![Value::from([("name", "c"), ("image", image)])];
            self.model.edit(
                &self.key.clone(),
                &["spec", "template", "spec", "containers"],
                containers,
            );
        }
    }

    #[test]
    fn one_pod_on_every_node_that_suits() {
        let mut bench = Bench::new(&["a", "b", "c"]);
        let taint = Value::from([("key", "x"), ("effect", "NoSchedule")]);
        bench
            .model
            .edit(&Key::new("Node", "", "c"), &["spec", "taints"], vec![taint]);
        bench
            .model
            .edit(&Key::new("Node", "", "b"), &["spec", "unschedulable"], true);
        bench.settle();
        bench.check(&[("a", "a"), ("b", "a")]);
        let status = bench.model.get(&bench.key).unwrap();
        assert_eq!(status.value.int_at(&["status", "desiredNumberScheduled"]), Some(2));
        assert_eq!(status.value.int_at(&["status", "numberAvailable"]), Some(2));
        assert_eq!(status.value.int_at(&["status", "updatedNumberScheduled"]), Some(2));
        // A new node gets one, a node that no longer suits loses it.
        bench.model.node("d", true);
        bench.model.edit(
            &bench.key.clone(),
            &["spec", "template", "spec", "nodeSelector"],
            [("kubernetes.io/hostname", "d")],
        );
        bench.settle();
        bench.check(&[("d", "a")]);
    }

    #[test]
    fn a_failed_pod_is_replaced_on_its_node() {
        let mut bench = Bench::new(&["a"]);
        bench.settle();
        let pod = bench.model.pods("ops").remove(0);
        bench.model.report("ops", &pod.key.name, "Failed", false);
        bench.settle();
        let fresh = bench.model.pods("ops");
        assert_eq!(fresh.len(), 1);
        assert_ne!(fresh[0].uid, pod.uid);
    }

    #[test]
    fn a_rolling_update_passes_silent_nodes_by_and_takes_them_in_on_return() {
        let mut bench = Bench::new(&["a", "b", "c"]);
        bench.settle();
        bench.model.silence("b");
        bench.image("new");
        bench.settle();
        bench.check(&[("a", "new"), ("b", "a"), ("c", "new")]);
        assert!(
            bench.model.pods("ops").iter().all(|pod| !pod.is_deleting()),
            "the silent one is untouched"
        );
        bench.model.node("b", true);
        bench.settle();
        bench.check(&[("a", "new"), ("b", "new"), ("c", "new")]);
    }

    #[test]
    fn a_rolling_update_keeps_its_budget() {
        let mut bench = Bench::new(&["a", "b", "c", "d"]);
        bench.settle();
        bench.image("new");
        bench.model.step(&mut bench.sets, &bench.key);
        let going = bench.model.pods("ops").iter().filter(|pod| pod.is_deleting()).count();
        assert_eq!(going, 1);
        bench.model.step(&mut bench.sets, &bench.key);
        let going = bench.model.pods("ops").iter().filter(|pod| pod.is_deleting()).count();
        assert_eq!(going, 1, "not before the first is back");
    }

    #[test]
    fn a_surge_starts_the_new_pod_first() {
        let mut bench = Bench::new(&["a", "b"]);
        let rolling = Value::from([("maxSurge", 1), ("maxUnavailable", 0)]);
        bench.model.edit(
            &bench.key.clone(),
            &["spec", "updateStrategy", "rollingUpdate"],
            rolling,
        );
        bench.settle();
        bench.image("new");
        bench.model.step(&mut bench.sets, &bench.key);
        assert_eq!(bench.model.pods("ops").len(), 3);
        assert!(bench.model.pods("ops").iter().all(|pod| !pod.is_deleting()));
        bench.settle();
        bench.check(&[("a", "new"), ("b", "new")]);
    }

    #[test]
    fn on_delete_waits_for_a_person() {
        let mut bench = Bench::new(&["a"]);
        bench
            .model
            .edit(&bench.key.clone(), &["spec", "updateStrategy"], [("type", "OnDelete")]);
        bench.settle();
        bench.image("new");
        bench.settle();
        bench.check(&[("a", "a")]);
        let name = bench.model.pods("ops").remove(0).key.name;
        bench.model.delete("ops", &name);
        bench.settle();
        bench.check(&[("a", "new")]);
    }

    #[test]
    fn a_pod_for_a_silent_node_is_bound_for_its_return() {
        let mut bench = Bench::new(&["a", "b"]);
        bench.model.silence("b");
        bench.settle();
        bench.check(&[("a", "a"), ("b", "a")]);
    }
}
