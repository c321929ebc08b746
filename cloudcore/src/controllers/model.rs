//! A store in memory for tests: the shapes of the real one, with a crash between any two commits at hand.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proto::object::{Key, Kind, Revision, Uid};
use proto::time::{Mono, Wall};
use proto::value::{Value, json};
use reconcile::Jitter;

use super::plan::{self, Edit, Plan, Resolved, Write};
use super::view::{Change, Now, Object, View, WholeList};
use super::{Controller, conditions};

pub(crate) struct Model {
    /// Each as stored, with the report, and as it reads.
    objects: BTreeMap<Key, (Object, Option<Value>, Object)>,
    revision: u64,
    random: Jitter,
    kinds: BTreeSet<Kind>,
    pub(crate) now: Now,
    /// Every change since they were last taken.
    pub(crate) changes: Vec<Change>,
    /// Reasons and messages of all notes.
    pub(crate) told: Vec<String>,
}

impl Default for Model {
    fn default() -> Self {
        let kinds = [
            "Pod",
            "Node",
            "Namespace",
            "ConfigMap",
            "Secret",
            "ServiceAccount",
            "Service",
            "Event",
            "Deployment.apps",
            "ReplicaSet.apps",
            "DaemonSet.apps",
            "EndpointSlice.discovery.k8s.io",
        ];
        Self {
            objects: BTreeMap::new(),
            revision: 0,
            random: Jitter::new(1),
            kinds: kinds.map(Kind::from).into(),
            now: Now {
                mono: Mono(1_000_000),
                wall: Wall { ms: 1_700_000_000_000, trusted: true },
            },
            changes: Vec::new(),
            told: Vec::new(),
        }
    }
}

impl View for Model {
    fn get(&self, key: &Key) -> Option<Object> {
        self.objects.get(key).map(|(.., read)| read.clone())
    }

    fn list(&self, kind: &Kind, namespace: Option<&str>) -> WholeList {
        let from = Key::new(kind.clone(), namespace.unwrap_or_default(), "");
        let all = self.objects.range(from..).map(|(.., (.., read))| read);
        self.whole(all.take_while(|read| {
            read.key.kind == *kind && namespace.is_none_or(|namespace| read.key.namespace == namespace)
        }))
    }

    fn pods_on(&self, node: &str) -> WholeList {
        let all = self
            .objects
            .range(Key::new("Pod", "", "")..)
            .map(|(.., (.., read))| read);
        let pods = all.take_while(|read| read.key.kind.as_str() == "Pod");
        self.whole(pods.filter(|pod| super::pods::node(&pod.value) == Some(node)))
    }

    fn body(&self, key: &Key) -> Option<Object> {
        self.objects.get(key).map(|(body, ..)| body.clone())
    }

    fn kinds(&self) -> &BTreeSet<Kind> {
        &self.kinds
    }
}

fn overlaid(body: &Object, report: Option<&Value>) -> Object {
    let mut object = body.clone();
    if let Some(report) = report {
        let own = body.value.list_at(&["status", "conditions"]).to_vec();
        let mut value = Value::clone(&body.value);
        value.set(&["status"], report.clone());
        let mut all = report.list_at(&["conditions"]).to_vec();
        all.extend(own);
        value.set(&["status", "conditions"], all);
        object.value = Arc::new(value);
    }
    object
}

impl Model {
    fn whole<'a>(&self, objects: impl Iterator<Item = &'a Object>) -> WholeList {
        let objects: Vec<_> = objects.cloned().collect();
        let count = objects.len();
        WholeList::new(Revision(self.revision), objects, count).unwrap()
    }

    pub(crate) fn uid(&mut self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.random.number().to_be_bytes());
        bytes[8..].copy_from_slice(&self.random.number().to_be_bytes());
        bytes
    }

    /// Time passes, on both clocks.
    pub(crate) fn pass(&mut self, ms: u64) {
        self.now.mono = Mono(self.now.mono.0 + ms);
        self.now.wall.ms += i64::try_from(ms).unwrap();
    }

    /// Makes an object as the API would.
    pub(crate) fn create(&mut self, text: &str) -> Key {
        let value = json::parse(text.as_bytes()).unwrap();
        let key = Key::of(&value).unwrap();
        assert!(self.commit(&[Write::Create(value)]), "{key} exists");
        key
    }

    pub(crate) fn edit(&mut self, key: &Key, path: &[&str], value: impl Into<Value>) {
        let object = self.body(key).unwrap();
        assert!(self.commit(&[Write::edit(&object, vec![Edit::set(path, value)])]));
    }

    pub(crate) fn apply(&mut self, key: &Key, edits: Vec<Edit>) {
        let object = self.body(key).unwrap();
        assert!(self.commit(&[Write::edit(&object, edits)]));
    }

    /// Plans and carries out one key.
    pub(crate) fn step(&mut self, controller: &mut dyn Controller, key: &Key) -> Plan {
        let plan = controller.plan(key, self, self.now);
        if !plan.writes.is_empty() {
            let committed = self.commit(&plan.writes);
            controller.ended(key, committed);
        }
        for note in &plan.notes {
            self.told.push(format!("{} {}", note.reason, note.message));
        }
        plan
    }

    /// All or none; whether all.
    pub(crate) fn commit(&mut self, writes: &[Write]) -> bool {
        let mut seeds: Vec<_> = (0..writes.len() * 2).map(|_| self.uid()).collect();
        let mut random = move || seeds.pop().unwrap();
        let now = self.now;
        let resolved: Vec<_> = writes
            .iter()
            .map(|write| plan::resolve(write, self, now, &mut random))
            .collect();
        let fits = |one: &Resolved| match one {
            Resolved::Create { key, .. } => !self.objects.contains_key(key),
            Resolved::Overtaken => false,
            Resolved::Replace { .. } | Resolved::Delete { .. } | Resolved::Nothing => true,
        };
        if !resolved.iter().all(fits) {
            return false;
        }
        for one in resolved {
            self.carry_out(one);
        }
        true
    }

    fn carry_out(&mut self, resolved: Resolved) {
        match resolved {
            Resolved::Create { key, value } => self.put(key, value, None),
            Resolved::Replace { key, value, .. } => {
                let report = self.objects.get(&key).and_then(|(_, report, _)| report.clone());
                self.put(key, value, report);
            }
            Resolved::Delete { key, .. } => {
                self.revision += 1;
                let before = self.get(&key);
                self.objects.remove(&key);
                self.changes.push(Change { before, after: None });
            }
            Resolved::Nothing | Resolved::Overtaken => {}
        }
    }

    fn put(&mut self, key: Key, value: Value, report: Option<Value>) {
        self.revision += 1;
        let before = self.get(&key);
        let uid = Uid::of(&value).unwrap();
        let object = Object {
            key: key.clone(),
            uid,
            revision: Revision(self.revision),
            value: Arc::new(value),
        };
        let read = overlaid(&object, report.as_ref());
        self.objects.insert(key.clone(), (object, report, read));
        let after = self.get(&key);
        self.changes.push(Change { before, after });
    }

    pub(crate) fn pods(&self, namespace: &str) -> Vec<Object> {
        let mut pods = self.list(&"Pod".into(), Some(namespace)).into_objects();
        pods.sort_by_key(|pod| (pod.created().to_owned(), pod.key.clone()));
        pods
    }

    /// A node that is in contact, new or back.
    pub(crate) fn node(&mut self, name: &str, ready: bool) {
        let key = Key::new("Node", "", name);
        if self.get(&key).is_none() {
            self.create(&format!(
                r#"{{"apiVersion":"v1","kind":"Node","metadata":{{"name":"{name}","labels":{{"kubernetes.io/hostname":"{name}"}}}},
                    "spec":{{}},"status":{{"allocatable":{{"cpu":"4","memory":"4Gi","pods":"110"}}}}}}"#
            ));
        }
        let status = if ready { "True" } else { "False" };
        self.apply(
            &key,
            vec![Edit::Condition(conditions::condition("Ready", status, "", ""))],
        );
    }

    pub(crate) fn silence(&mut self, name: &str) {
        let key = Key::new("Node", "", name);
        self.apply(
            &key,
            vec![Edit::Condition(conditions::condition("Ready", "Unknown", "", ""))],
        );
    }

    pub(crate) fn bind(&mut self, namespace: &str, pod: &str, node: &str) {
        self.edit(&Key::new("Pod", namespace, pod), &["spec", "nodeName"], node);
    }

    /// The node reports a pod.
    pub(crate) fn report(&mut self, namespace: &str, pod: &str, phase: &str, ready: bool) {
        let key = Key::new("Pod", namespace, pod);
        let ready = conditions::condition("Ready", if ready { "True" } else { "False" }, "", "");
        let report = Value::from([
            ("phase", Value::from(phase)),
            ("podIP", "10.0.0.9".into()),
            ("conditions", vec![ready].into()),
        ]);
        let body = Value::clone(&self.objects[&key].0.value);
        self.put(key, body, Some(report));
    }

    /// `kubectl delete pod`.
    pub(crate) fn delete(&mut self, namespace: &str, pod: &str) {
        let object = self.get(&Key::new("Pod", namespace, pod)).unwrap();
        assert!(self.commit(&[Write::delete(&object)]));
    }

    /// Feeds the scheduler all changes since the last time and lets it place what waits.
    pub(crate) fn schedule(&mut self, scheduler: &mut crate::scheduler::Scheduler) {
        let changes = std::mem::take(&mut self.changes);
        for change in changes {
            scheduler.observe(&change, self.now);
        }
        let pods = self.list(&"Pod".into(), None).into_objects();
        for pod in pods.iter().filter(|pod| super::pods::node(&pod.value).is_none()) {
            self.step(scheduler, &pod.key);
            let changes = std::mem::take(&mut self.changes);
            for change in changes {
                scheduler.observe(&change, self.now);
            }
        }
    }

    /// Every node in contact starts the pods bound to it; whether any was new.
    pub(crate) fn run_pods(&mut self, namespace: &str) -> bool {
        let fresh: Vec<_> = {
            let mut contact = super::pods::Contact::new(self);
            let mut pods = self.pods(namespace);
            pods.retain(|pod| {
                super::pods::node(&pod.value).is_some()
                    && !pod.is_deleting()
                    && !contact.is_silent(pod)
                    && super::pods::phase(&pod.value) == "Pending"
            });
            names(&pods)
        };
        for pod in &fresh {
            self.report(namespace, pod, "Running", true);
        }
        !fresh.is_empty()
    }

    /// Every node in contact ends the pods that are to end, and says so.
    pub(crate) fn finish_deletions(&mut self) {
        let pods = self.list(&"Pod".into(), None).into_objects();
        let ending: Vec<_> = {
            let mut contact = super::pods::Contact::new(self);
            pods.iter()
                .filter(|pod| pod.is_deleting() && !contact.is_silent(pod))
                .map(|pod| Write::Purge { key: pod.key.clone(), uid: pod.uid })
                .collect()
        };
        assert!(self.commit(&ending));
    }
}

pub(crate) fn names(objects: &[Object]) -> Vec<String> {
    objects.iter().map(|object| object.key.name.clone()).collect()
}

/// What stands at a path, as JSON.
pub(crate) fn text(object: &Object, path: &[&str]) -> String {
    object.value.at(path).map(json::write).unwrap_or_default()
}
