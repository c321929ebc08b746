//! Namespaces: those that are always there, what each of them holds from the start, and how one ends.

use proto::object::{Key, Kind};
use proto::value::Value;
use reconcile::{Lane, Outcome};

use super::conditions::condition;
use super::plan::{Edit, Plan, Write};
use super::replicaset::changes;
use super::view::{Change, Now, Object, View};
use super::{Controller, WRITES_MAX, at_once};

/// The namespaces that exist from the first start.
pub const ALWAYS: &[&str] = &["default", "kube-system", "kube-public"];

const FINALIZER: &str = "kubernetes";
const ROOT_CA: &str = "kube-root-ca.crt";

/// How long to wait before looking whether a namespace is empty; what is deleted with grace takes its time.
const EMPTYING_WAIT: std::time::Duration = std::time::Duration::from_secs(1);

/// The controller of namespaces.
#[derive(Debug)]
pub struct Namespaces {
    /// The certificate authority of this cloud core, as PEM; every namespace gets it as a config map.
    root_ca: String,
}

impl Namespaces {
    pub fn new(root_ca: String) -> Self {
        Self { root_ca }
    }
}

/// The keys to look at once at start, so that the namespaces that are always there come to be.
pub fn at_start() -> impl Iterator<Item = Key> {
    ALWAYS.iter().map(|name| Key::new("Namespace", "", *name))
}

impl Controller for Namespaces {
    fn name(&self) -> &'static str {
        "namespace-controller"
    }

    fn plans(&self) -> &'static [&'static str] {
        &["Namespace"]
    }

    fn watches(&self) -> &'static [&'static str] {
        &["Namespace", "ServiceAccount", "ConfigMap"]
    }

    fn wake(&mut self, change: &Change, _view: &dyn View, _now: Now) -> Vec<(Key, Lane)> {
        let Some(latest) = change.latest() else {
            return Vec::new();
        };
        let kept = match latest.key.kind.as_str() {
            "Namespace" => return at_once([latest.key.clone()]),
            "ServiceAccount" => latest.key.name == "default",
            _ => latest.key.name == ROOT_CA,
        };
        at_once(kept.then(|| Key::new("Namespace", "", latest.key.namespace.clone())))
    }

    fn plan(&mut self, key: &Key, view: &dyn View, _now: Now) -> Plan {
        match view.get(key) {
            Some(namespace) if namespace.is_deleting() => empty(&namespace, view),
            Some(namespace) => self.furnish(&namespace, view),
            None if ALWAYS.contains(&key.name.as_str()) => Plan::of(vec![Write::Create(new(&key.name))]),
            None => Plan::nothing(),
        }
    }
}

/// A namespace as the API makes it.
fn new(name: &str) -> Value {
    let labels = Value::from([("kubernetes.io/metadata.name", name)]);
    Value::from([
        ("apiVersion", Value::from("v1")),
        ("kind", "Namespace".into()),
        ("metadata", [("name", name.into()), ("labels", labels)].into()),
        ("spec", [("finalizers", Value::from_iter([FINALIZER]))].into()),
        ("status", [("phase", "Active")].into()),
    ])
}

impl Namespaces {
    /// The service account and the root certificate that every namespace has.
    fn furnish(&self, namespace: &Object, view: &dyn View) -> Plan {
        let name = namespace.key.name.as_str();
        let object = |kind: &str, own: &str| {
            Value::from([
                ("apiVersion", Value::from("v1")),
                ("kind", kind.into()),
                ("metadata", [("name", own), ("namespace", name)].into()),
            ])
        };
        let mut writes = Vec::new();
        if view.get(&Key::new("ServiceAccount", name, "default")).is_none() {
            writes.push(Write::Create(object("ServiceAccount", "default")));
        }
        if !self.root_ca.is_empty() {
            let data = Value::from([("ca.crt", self.root_ca.as_str())]);
            match view.get(&Key::new("ConfigMap", name, ROOT_CA)) {
                None => {
                    let mut map = object("ConfigMap", ROOT_CA);
                    map.set(&["data"], data);
                    writes.push(Write::Create(map));
                }
                Some(known) => writes.extend(changes(&known, vec![Edit::set(&["data"], data)])),
            }
        }
        Plan::of(writes)
    }
}

/// Deletes what a terminating namespace holds; when a whole look at every kind finds nothing, the namespace may go.
fn empty(namespace: &Object, view: &dyn View) -> Plan {
    let name = namespace.key.name.as_str();
    let (mut left, mut writes) = (0, Vec::new());
    for kind in view.kinds().iter().filter(|kind| **kind != Kind::from("Namespace")) {
        let content = view.list(kind, Some(name));
        left += content.objects().len();
        let room = WRITES_MAX - 1 - writes.len();
        let going = content.objects().iter().filter(|object| !object.is_deleting());
        writes.extend(going.take(room).map(Write::delete));
    }
    if left == 0 {
        let mut finalizers = namespace.value.list_at(&["spec", "finalizers"]).to_vec();
        finalizers.retain(|one| one.as_text() != Some(FINALIZER));
        let path = ["spec", "finalizers"];
        let edit = if finalizers.is_empty() {
            Edit::remove(&path)
        } else {
            Edit::set(&path, finalizers)
        };
        return Plan::of(vec![Write::edit(namespace, vec![edit])]);
    }
    // The count is left out on purpose: a message that moves with every object would be a write for each.
    let remaining = condition(
        "NamespaceContentRemaining",
        "True",
        "SomeResourcesRemain",
        "Some resources are remaining; pods on nodes that are not in contact go when their nodes are back.",
    );
    let edits = vec![
        Edit::set(&["status", "phase"], "Terminating"),
        Edit::Condition(remaining),
    ];
    writes.extend(changes(namespace, edits));
    Plan { outcome: Outcome::Again(EMPTYING_WAIT), ..Plan::of(writes) }
}

#[cfg(test)]
mod tests {
    use super::super::model::Model;
    use super::*;

    #[test]
    fn those_that_are_always_there_come_furnished() {
        let (mut model, mut spaces) = (Model::default(), Namespaces::new("PEM".to_owned()));
        for key in at_start() {
            model.step(&mut spaces, &key);
            model.step(&mut spaces, &key);
            assert!(model.step(&mut spaces, &key).writes.is_empty());
            let map = model.get(&Key::new("ConfigMap", key.name.clone(), ROOT_CA)).unwrap();
            assert_eq!(map.value.text_at(&["data", "ca.crt"]), Some("PEM"));
            assert!(
                model
                    .get(&Key::new("ServiceAccount", key.name.clone(), "default"))
                    .is_some()
            );
        }
        // The certificate follows a rotation.
        let mut spaces = Namespaces::new("PEM2".to_owned());
        model.step(&mut spaces, &Key::new("Namespace", "", "default"));
        let map = model.get(&Key::new("ConfigMap", "default", ROOT_CA)).unwrap();
        assert_eq!(map.value.text_at(&["data", "ca.crt"]), Some("PEM2"));
    }

    #[test]
    fn a_terminating_one_is_emptied_and_then_goes() {
        let (mut model, mut spaces) = (Model::default(), Namespaces::new(String::new()));
        model.node("a", true);
        assert!(model.commit(&[Write::Create(new("shop"))]));
        let key = Key::new("Namespace", "", "shop");
        model.step(&mut spaces, &key);
        for at in 0..WRITES_MAX + 40 {
            model.create(&format!(
                r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"m{at}","namespace":"shop"}}}}"#
            ));
        }
        model.create(
            r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"shop"},"spec":{"nodeName":"a"}}"#,
        );
        model.silence("a");
        let object = model.get(&key).unwrap();
        assert!(model.commit(&[Write::delete(&object)]));
        assert_eq!(
            model.get(&key).unwrap().value.text_at(&["status", "phase"]),
            Some("Terminating")
        );
        for _ in 0..5 {
            let plan = model.step(&mut spaces, &key);
            assert!(plan.writes.len() <= WRITES_MAX);
            model.finish_deletions();
        }
        assert!(model.get(&key).is_some(), "its pod may still run");
        assert_eq!(model.pods("shop").len(), 1);
        model.node("a", true);
        model.finish_deletions();
        model.step(&mut spaces, &key);
        assert!(model.get(&key).is_none());
    }
}
