use std::time::Duration;

use super::*;
use crate::controllers::conditions;
use crate::controllers::model::{Model, text};
use crate::controllers::replicaset::ReplicaSets;
use crate::scheduler::Scheduler;

struct Bench {
    model: Model,
    deployments: Deployments,
    sets: ReplicaSets,
    scheduler: Scheduler,
    key: Key,
    /// Pods of this image never become ready.
    sick: Option<&'static str>,
}

impl Bench {
    fn new(replicas: i64, strategy: &str) -> Self {
        let mut model = Model::default();
        for node in ["a", "b", "c"] {
            model.node(node, true);
        }
        let key = model.create(&format!(
            r#"{{"apiVersion":"apps/v1","kind":"Deployment","metadata":{{"name":"web","namespace":"shop",
                "annotations":{{"kubernetes.io/change-cause":"first"}}}},
                "spec":{{"replicas":{replicas},"selector":{{"matchLabels":{{"app":"web"}}}},"strategy":{strategy},
                "progressDeadlineSeconds":600,
                "template":{{"metadata":{{"labels":{{"app":"web"}}}},"spec":{{"containers":[{{"name":"c","image":"v1"}}]}}}}}}}}"#
        ));
        Self {
            model,
            deployments: Deployments::default(),
            sets: ReplicaSets::default(),
            scheduler: Scheduler::default(),
            key,
            sick: None,
        }
    }

    /// One look of everybody; whether anything was written.
    fn round(&mut self) -> bool {
        let mut wrote = !self.model.step(&mut self.deployments, &self.key).writes.is_empty();
        for set in self.replica_sets() {
            wrote |= !self.model.step(&mut self.sets, &set.key).writes.is_empty();
        }
        self.model.schedule(&mut self.scheduler);
        self.model.finish_deletions();
        let mut contact = Contact::new(&self.model);
        let mut fresh = self.model.pods("shop");
        fresh.retain(|pod| {
            pods::node(&pod.value).is_some() && pods::phase(&pod.value) == "Pending" && !contact.is_silent(pod)
        });
        for pod in fresh {
            let ready = self.sick != pod.value.text_at(&["spec", "containers", "0", "image"]);
            self.model.report("shop", &pod.key.name, "Running", ready);
            wrote = true;
        }
        wrote
    }

    fn settle(&mut self) {
        for _ in 0..60 {
            if !self.round() {
                return;
            }
        }
        panic!("it never settles");
    }

    fn replica_sets(&self) -> Vec<Object> {
        let mut sets = self.model.list(&replicaset::KIND.into(), Some("shop")).into_objects();
        sets.sort_by_key(|set| {
            set.annotation(revision::REVISION)
                .and_then(|text| text.parse::<i64>().ok())
        });
        sets
    }

    fn image(&mut self, image: &str) {
        let containers = vec![Value::from([("name", "c"), ("image", image)])];
        self.model.edit(
            &self.key.clone(),
            &["spec", "template", "spec", "containers"],
            containers,
        );
    }

    fn scale(&mut self, replicas: i64) {
        self.model.edit(&self.key.clone(), &["spec", "replicas"], replicas);
    }

    /// Images of all pods, those being deleted marked.
    fn images(&self) -> Vec<String> {
        let mut images: Vec<_> = self
            .model
            .pods("shop")
            .iter()
            .map(|pod| {
                let image = pod.value.text_at(&["spec", "containers", "0", "image"]).unwrap();
                format!("{image}{}", if pod.is_deleting() { "-" } else { "" })
            })
            .collect();
        images.sort();
        images
    }

    fn int(&self, field: &str) -> i64 {
        self.model
            .get(&self.key)
            .unwrap()
            .value
            .int_at(&["status", field])
            .unwrap_or(0)
    }

    fn condition(&self, kind: &str) -> (String, String) {
        let deployment = self.model.get(&self.key).unwrap();
        let condition = conditions::get(&deployment.value, kind).unwrap();
        let field = |name: &str| condition.text_at(&[name]).unwrap().to_owned();
        (field("reason"), field("message"))
    }

    /// The node of one pod of an image.
    fn node_of(&self, image: &str) -> String {
        let pods = self.model.pods("shop");
        let pod = pods
            .iter()
            .find(|pod| pod.value.text_at(&["spec", "containers", "0", "image"]) == Some(image));
        pods::node(&pod.unwrap().value).unwrap().to_owned()
    }
}

#[test]
fn from_nothing_to_available() {
    let mut bench = Bench::new(3, "{}");
    bench.settle();
    assert_eq!(bench.images(), ["v1", "v1", "v1"]);
    let sets = bench.replica_sets();
    assert_eq!(sets.len(), 1);
    let hash = sets[0].label("pod-template-hash").unwrap().to_owned();
    assert_eq!(sets[0].key.name, format!("web-{hash}"));
    assert_eq!(
        sets[0]
            .value
            .text_at(&["spec", "selector", "matchLabels", "pod-template-hash"]),
        Some(hash.as_str())
    );
    assert_eq!(sets[0].annotation("kubernetes.io/change-cause"), Some("first"));
    let deployment = bench.model.get(&bench.key).unwrap();
    assert_eq!(deployment.annotation(revision::REVISION), Some("1"));
    for field in ["replicas", "updatedReplicas", "readyReplicas", "availableReplicas"] {
        assert_eq!(bench.int(field), 3, "{field}");
    }
    assert_eq!(
        (bench.int("unavailableReplicas"), bench.int("observedGeneration")),
        (0, 1)
    );
    assert_eq!(bench.condition("Available").0, "MinimumReplicasAvailable");
    assert_eq!(
        bench.condition("Progressing"),
        (
            "NewReplicaSetAvailable".to_owned(),
            format!("ReplicaSet \"web-{hash}\" has successfully progressed.")
        )
    );
    assert_eq!(
        bench.model.told[0],
        format!("ScalingReplicaSet Scaled up replica set web-{hash} from 0 to 3")
    );
}

#[test]
fn a_rollout_keeps_its_bounds_all_the_way() {
    for (strategy, surge, unavailable) in [
        (r#"{"rollingUpdate":{"maxSurge":1,"maxUnavailable":0}}"#, 1, 0),
        (r#"{"rollingUpdate":{"maxSurge":0,"maxUnavailable":1}}"#, 0, 1),
        (r#"{"rollingUpdate":{"maxSurge":"50%","maxUnavailable":"25%"}}"#, 2, 1),
    ] {
        let mut bench = Bench::new(4, strategy);
        bench.settle();
        bench.image("v2");
        for _ in 0..60 {
            let wrote = bench.round();
            let pods = bench.model.pods("shop");
            let active = pods.iter().filter(|pod| !pod.is_deleting()).count();
            let available = pods
                .iter()
                .filter(|pod| conditions::is_true(&pod.value, "Ready"))
                .count();
            assert!(active <= 4 + surge, "{strategy}: {active} pods");
            assert!(available >= 4 - unavailable, "{strategy}: {available} available");
            if !wrote {
                break;
            }
        }
        assert_eq!(bench.images(), ["v2"; 4]);
        assert_eq!(bench.condition("Progressing").0, "NewReplicaSetAvailable");
        assert_eq!(bench.replica_sets().len(), 2);
    }
}

#[test]
fn recreate_ends_the_old_before_the_new() {
    let mut bench = Bench::new(2, r#"{"type":"Recreate"}"#);
    bench.settle();
    bench.image("v2");
    for _ in 0..60 {
        let wrote = bench.round();
        let images = bench.images();
        assert!(!(images.iter().any(|one| one.starts_with("v1")) && images.iter().any(|one| one.starts_with("v2"))));
        if !wrote {
            break;
        }
    }
    assert_eq!(bench.images(), ["v2", "v2"]);
}

#[test]
fn recreate_waits_for_a_pod_on_a_silent_node() {
    let mut bench = Bench::new(2, r#"{"type":"Recreate"}"#);
    bench.settle();
    let node = bench.node_of("v1");
    bench.model.silence(&node);
    bench.image("v2");
    bench.settle();
    assert_eq!(
        bench.images(),
        ["v1-"],
        "two versions never run at once, so the new one waits"
    );
    assert!(
        bench
            .condition("Progressing")
            .1
            .contains("1 pod(s) of older revisions wait")
    );
    bench.model.node(&node, true);
    bench.settle();
    assert_eq!(bench.images(), ["v2", "v2"]);
}

#[test]
fn undo_takes_the_old_set_back_with_a_new_revision() {
    let mut bench = Bench::new(2, "{}");
    bench.settle();
    bench.image("v2");
    bench.settle();
    bench.image("v1");
    bench.settle();
    assert_eq!(bench.images(), ["v1", "v1"]);
    let sets = bench.replica_sets();
    assert_eq!(sets.len(), 2);
    assert_eq!(sets[1].annotation(revision::REVISION), Some("3"));
    assert_eq!(sets[1].annotation(revision::HISTORY), Some("1"));
    assert_eq!(sets[0].annotation(revision::REVISION), Some("2"));
    assert_eq!(
        bench.model.get(&bench.key).unwrap().annotation(revision::REVISION),
        Some("3")
    );
}

#[test]
fn a_restart_is_a_new_template() {
    let mut bench = Bench::new(1, "{}");
    bench.settle();
    let before = bench.model.pods("shop")[0].uid;
    let path = [
        "spec",
        "template",
        "metadata",
        "annotations",
        "kubectl.kubernetes.io/restartedAt",
    ];
    bench.model.edit(&bench.key.clone(), &path, "now");
    bench.settle();
    let pods = bench.model.pods("shop");
    assert_eq!(pods.len(), 1);
    assert_ne!(pods[0].uid, before);
}

#[test]
fn history_is_kept_up_to_its_limit() {
    let mut bench = Bench::new(1, "{}");
    bench
        .model
        .edit(&bench.key.clone(), &["spec", "revisionHistoryLimit"], 2);
    for image in ["v2", "v3", "v4", "v5"] {
        bench.settle();
        bench.image(image);
    }
    bench.settle();
    let revisions: Vec<_> = bench
        .replica_sets()
        .iter()
        .map(|set| set.annotation(revision::REVISION).unwrap().to_owned())
        .collect();
    assert_eq!(revisions, ["3", "4", "5"]);
}

#[test]
fn paused_scales_but_does_not_roll() {
    let mut bench = Bench::new(2, "{}");
    bench.settle();
    bench.model.edit(&bench.key.clone(), &["spec", "paused"], true);
    bench.image("v2");
    bench.scale(3);
    bench.settle();
    assert_eq!(bench.images(), ["v1", "v1", "v1"]);
    assert_eq!(bench.condition("Progressing").0, "DeploymentPaused");
    bench.model.edit(&bench.key.clone(), &["spec", "paused"], false);
    bench.settle();
    assert_eq!(bench.images(), ["v2", "v2", "v2"]);
}

#[test]
fn scaling_up_down_and_to_nothing() {
    let mut bench = Bench::new(2, "{}");
    for replicas in [2, 5, 1, 0, 3] {
        bench.scale(replicas);
        bench.settle();
        assert_eq!(bench.images().len(), usize::try_from(replicas).unwrap());
        assert_eq!(bench.int("availableReplicas"), replicas);
    }
    assert_eq!(bench.replica_sets().len(), 1);
}

#[test]
fn what_scales_nothing_tells_of_no_scaling() {
    let mut bench = Bench::new(0, "{}");
    bench.settle();
    bench.image("v2");
    bench.settle();
    assert_eq!(bench.replica_sets().len(), 2);
    let scalings = |bench: &Bench| -> Vec<String> {
        let told = bench.model.told.iter();
        told.filter(|told| told.starts_with("ScalingReplicaSet"))
            .cloned()
            .collect()
    };
    assert_eq!(scalings(&bench), Vec::<String>::new());
    bench.scale(2);
    bench.settle();
    bench.image("v3");
    bench.settle();
    bench.scale(0);
    bench.settle();
    // Up, over to another set, and down again: every event is of two different numbers.
    assert!(scalings(&bench).len() >= 4, "{:?}", scalings(&bench));
    for told in scalings(&bench) {
        let words: Vec<_> = told.split_whitespace().collect();
        let [.., "from", from, "to", to] = words.as_slice() else {
            panic!("not a scaling: {told}");
        };
        assert_ne!(from, to, "{told}");
    }
}

#[test]
fn a_rollout_that_gets_nowhere_says_so_after_its_deadline_and_keeps_the_old() {
    let mut bench = Bench::new(2, "{}");
    bench.settle();
    bench.sick = Some("v2");
    bench.image("v2");
    bench.settle();
    assert_eq!(bench.images(), ["v1", "v1", "v2"]);
    assert_eq!(bench.condition("Progressing").0, "ReplicaSetUpdated");
    let plan = bench.model.step(&mut bench.deployments, &bench.key);
    assert_eq!(plan.outcome, Outcome::Again(Duration::from_secs(600)));
    bench.model.pass(599_999);
    bench.settle();
    assert_eq!(bench.condition("Progressing").0, "ReplicaSetUpdated");
    bench.model.pass(1);
    bench.settle();
    assert_eq!(bench.condition("Progressing").0, "ProgressDeadlineExceeded");
    assert_eq!(bench.images(), ["v1", "v1", "v2"]);
    // A new template is a new try.
    bench.image("v3");
    bench.settle();
    assert_eq!(bench.images(), ["v3", "v3"]);
    assert_eq!(bench.condition("Progressing").0, "NewReplicaSetAvailable");
}

#[test]
fn a_rollout_goes_on_without_the_silent_node_and_says_how_many_wait() {
    let mut bench = Bench::new(3, "{}");
    bench.settle();
    let node = bench.node_of("v1");
    bench.model.silence(&node);
    bench.settle();
    assert_eq!(bench.images(), ["v1", "v1", "v1"], "silence alone moves nothing");
    assert_eq!(
        (bench.int("availableReplicas"), bench.int("unavailableReplicas")),
        (2, 1)
    );
    bench.image("v2");
    bench.settle();
    assert_eq!(
        bench.images(),
        ["v1", "v2", "v2"],
        "no second copy for the silent one, and it is not deleted"
    );
    assert_eq!((bench.int("replicas"), bench.int("updatedReplicas")), (3, 2));
    let (reason, message) = bench.condition("Progressing");
    assert_eq!(reason, "ReplicaSetUpdated");
    assert!(
        message.ends_with("1 pod(s) of older revisions wait on nodes that are not in contact."),
        "{message}"
    );
    // Waiting is not lateness.
    bench.model.pass(10_000_000);
    bench.settle();
    assert_eq!(bench.condition("Progressing").0, "ReplicaSetUpdated");
    bench.model.node(&node, true);
    bench.settle();
    assert_eq!(bench.images(), ["v2", "v2", "v2"]);
    assert_eq!(bench.condition("Progressing").0, "NewReplicaSetAvailable");
}

#[test]
fn mass_silence_moves_nothing() {
    let mut bench = Bench::new(4, "{}");
    bench.settle();
    let before: Vec<_> = bench.model.pods("shop").iter().map(|pod| pod.uid).collect();
    for node in ["a", "b", "c"] {
        bench.model.silence(node);
    }
    bench.model.pass(10_000_000);
    bench.settle();
    bench.image("v2");
    bench.settle();
    let after: Vec<_> = bench
        .model
        .pods("shop")
        .iter()
        .filter(|pod| !pod.is_deleting())
        .map(|pod| pod.uid)
        .collect();
    assert_eq!(after, before, "every pod is where it was, and no other was made");
    for node in ["a", "b", "c"] {
        bench.model.node(node, true);
    }
    bench.settle();
    assert_eq!(bench.images(), ["v2"; 4]);
}

#[test]
fn a_deletion_on_a_silent_node_waits_without_a_second_copy() {
    let mut bench = Bench::new(2, "{}");
    bench.settle();
    let pod = bench.model.pods("shop").remove(0);
    let node = pods::node(&pod.value).unwrap().to_owned();
    bench.model.silence(&node);
    bench.model.delete("shop", &pod.key.name);
    bench.settle();
    assert_eq!(bench.images(), ["v1", "v1-"]);
    bench.model.node(&node, true);
    bench.settle();
    assert_eq!(bench.images(), ["v1", "v1"]);
}

#[test]
fn sets_are_adopted_and_released_by_label() {
    let mut bench = Bench::new(1, "{}");
    bench.settle();
    let set = bench.replica_sets().remove(0);
    bench
        .model
        .apply(&set.key, vec![Edit::remove(&["metadata", "ownerReferences"])]);
    bench.settle();
    assert_eq!(
        owner::controller_key(&bench.model.get(&set.key).unwrap(), KIND),
        Some(bench.key.clone())
    );
    assert_eq!(bench.replica_sets().len(), 1);
    bench.model.edit(&set.key, &["metadata", "labels", "app"], "other");
    bench.settle();
    assert_eq!(owner::controller_uid(&bench.model.get(&set.key).unwrap().value), None);
    let status = text(&bench.model.get(&bench.key).unwrap(), &["status", "replicas"]);
    assert_eq!(status, "1", "a new one was made in its place");
}
