//! What the engine knows of each kind that is not in its schema: names, verbs, subresources, and how writes behave.
//!
//! Data only. A kind is added by a row here (and by its types in `schema`); no code names a kind to find its rules.
//! Where one stored object has two spellings (`v1` and `events.k8s.io/v1` events), both rows name the same storage.

use proto::value::Value;

/// What clients may do with a resource, in the order discovery lists it.
pub const VERBS_ALL: &[&str] = &[
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];

/// [`VERBS_ALL`] for a kind whose objects are deleted one by one only.
const VERBS_SINGLE: &[&str] = &["create", "delete", "get", "list", "patch", "update", "watch"];

/// What can be done with a part of an object that is read and written like an object.
const VERBS_PART: &[&str] = &["get", "patch", "update"];

/// One served resource.
#[derive(Debug)]
pub struct KindData {
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
    pub singular: &'static str,
    pub short_names: &'static [&'static str],
    pub categories: &'static [&'static str],
    pub namespaced: bool,
    pub verbs: &'static [&'static str],
    pub subresources: &'static [Subresource],
    /// The opaque word that legacy discovery shows; empty where it shows none.
    pub storage_hash: &'static str,
    /// Group and version of the spelling that is stored.
    pub storage: (&'static str, &'static str),
    /// A PUT to a name that is free creates the object.
    pub create_on_update: bool,
    /// A PUT without a resource version overwrites whatever is there.
    pub unconditional_update: bool,
    /// A DELETE answers with the object, not with a `Status`.
    pub delete_returns_object: bool,
    /// A DELETE leaves the object for its grace period.
    pub graceful: bool,
    pub generation: Generation,
    /// What field selectors may name beside `metadata.name` and `metadata.namespace`.
    pub selectable: &'static [Selectable],
    pub columns: &'static [Column],
}

/// A part of a resource under its own path.
#[derive(Debug)]
pub struct Subresource {
    pub name: &'static str,
    /// Group and version of its kind; empty when they are those of the resource.
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub verbs: &'static [&'static str],
}

/// When `metadata.generation` grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generation {
    /// It is never set.
    None,
    /// 1 at creation, then with every change of `spec`.
    Spec,
    /// 1 at creation, then with every change outside `metadata` and `status`.
    Body,
}

/// A field that field selectors may name.
#[derive(Debug)]
pub struct Selectable {
    pub name: &'static str,
    /// Where its text stands; the first that is set counts.
    pub paths: &'static [&'static [&'static str]],
    /// What an unset field reads as.
    pub unset: &'static str,
}

/// A column of the server-side table of a kind. Cells are made where tables are.
#[derive(Debug)]
pub struct Column {
    pub name: &'static str,
    pub kind: &'static str,
    pub format: &'static str,
    /// 0 is always shown, 1 only with `-o wide`.
    pub priority: u8,
}

impl KindData {
    /// `v1` for the core group, `group/version` for every other.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    pub fn subresource(&self, name: &str) -> Option<&'static Subresource> {
        self.subresources.iter().find(|one| one.name == name)
    }
}

impl Selectable {
    /// The text of the field in an object, as a field selector compares it.
    pub fn text(&self, object: &Value) -> String {
        let set = self.paths.iter().find_map(|path| match object.at(path)? {
            Value::Text(text) if text.is_empty() => None,
            Value::Text(text) => Some(text.to_string()),
            Value::Bool(flag) => Some(flag.to_string()),
            Value::I64(number) => Some(number.to_string()),
            _ => None,
        });
        set.unwrap_or_else(|| self.unset.to_owned())
    }
}

/// The row of a resource by its path names.
pub fn resource(group: &str, version: &str, plural: &str) -> Option<&'static KindData> {
    KINDS
        .iter()
        .find(|one| one.plural == plural && one.group == group && one.version == version)
}

/// The row of a kind.
pub fn kind(group: &str, version: &str, kind: &str) -> Option<&'static KindData> {
    KINDS
        .iter()
        .find(|one| one.kind == kind && one.group == group && one.version == version)
}

const fn column(name: &'static str, priority: u8) -> Column {
    Column { name, kind: "string", format: "", priority }
}

const fn count(name: &'static str) -> Column {
    Column { name, kind: "integer", format: "", priority: 0 }
}

const fn name_column(priority: u8) -> Column {
    Column { name: "Name", kind: "string", format: "name", priority }
}

const NAME: Column = name_column(0);
const AGE: Column = column("Age", 0);

const fn part(name: &'static str, kind: &'static str) -> Subresource {
    Subresource { name, group: "", version: "", kind, verbs: VERBS_PART }
}

const SCALE: Subresource = Subresource {
    name: "scale",
    group: "autoscaling",
    version: "v1",
    kind: "Scale",
    verbs: VERBS_PART,
};

const fn selectable(name: &'static str, paths: &'static [&'static [&'static str]]) -> Selectable {
    Selectable { name, paths, unset: "" }
}

/// What most kinds have in common; a row says what is different.
const PLAIN: KindData = KindData {
    group: "",
    version: "v1",
    kind: "",
    plural: "",
    singular: "",
    short_names: &[],
    categories: &[],
    namespaced: true,
    verbs: VERBS_ALL,
    subresources: &[],
    storage_hash: "",
    storage: ("", "v1"),
    create_on_update: false,
    unconditional_update: true,
    delete_returns_object: false,
    graceful: false,
    generation: Generation::None,
    selectable: &[],
    columns: &[NAME, AGE],
};

const EVENT_COLUMNS: &[Column] = &[
    column("Last Seen", 0),
    column("Type", 0),
    column("Reason", 0),
    column("Object", 0),
    column("Subobject", 1),
    column("Source", 1),
    column("Message", 0),
    column("First Seen", 1),
    column("Count", 1),
    name_column(1),
];

/// The rows, groups in the order discovery lists them, resources by name.
pub static KINDS: &[KindData] = &[
    KindData {
        kind: "ConfigMap",
        plural: "configmaps",
        singular: "configmap",
        short_names: &["cm"],
        storage_hash: "qFsyl6wFWjQ=",
        columns: &[NAME, column("Data", 0), AGE],
        ..PLAIN
    },
    KindData {
        kind: "Event",
        plural: "events",
        singular: "event",
        short_names: &["ev"],
        storage_hash: "r2yiGXH7wu8=",
        create_on_update: true,
        selectable: &[
            selectable("involvedObject.kind", &[&["involvedObject", "kind"]]),
            selectable("involvedObject.namespace", &[&["involvedObject", "namespace"]]),
            selectable("involvedObject.name", &[&["involvedObject", "name"]]),
            selectable("involvedObject.uid", &[&["involvedObject", "uid"]]),
            selectable("involvedObject.apiVersion", &[&["involvedObject", "apiVersion"]]),
            selectable(
                "involvedObject.resourceVersion",
                &[&["involvedObject", "resourceVersion"]],
            ),
            selectable("involvedObject.fieldPath", &[&["involvedObject", "fieldPath"]]),
            selectable("reason", &[&["reason"]]),
            selectable("reportingComponent", &[&["reportingComponent"]]),
            selectable("source", &[&["source", "component"], &["reportingComponent"]]),
            selectable("type", &[&["type"]]),
        ],
        columns: EVENT_COLUMNS,
        ..PLAIN
    },
    KindData {
        kind: "Namespace",
        plural: "namespaces",
        singular: "namespace",
        short_names: &["ns"],
        namespaced: false,
        verbs: VERBS_SINGLE,
        subresources: &[
            Subresource {
                name: "finalize",
                group: "",
                version: "",
                kind: "Namespace",
                verbs: &["update"],
            },
            part("status", "Namespace"),
        ],
        storage_hash: "Q3oi5N2YM8M=",
        delete_returns_object: true,
        selectable: &[
            selectable("name", &[&["metadata", "name"]]),
            selectable("status.phase", &[&["status", "phase"]]),
        ],
        columns: &[NAME, column("Status", 0), AGE],
        ..PLAIN
    },
    KindData {
        kind: "Node",
        plural: "nodes",
        singular: "node",
        short_names: &["no"],
        namespaced: false,
        subresources: &[part("status", "Node")],
        storage_hash: "XwShjMxG9Fs=",
        selectable: &[Selectable {
            name: "spec.unschedulable",
            paths: &[&["spec", "unschedulable"]],
            unset: "false",
        }],
        columns: &[
            NAME,
            column("Status", 0),
            column("Roles", 0),
            AGE,
            column("Version", 0),
            column("Internal-IP", 1),
            column("External-IP", 1),
            column("OS-Image", 1),
            column("Kernel-Version", 1),
            column("Container-Runtime", 1),
        ],
        ..PLAIN
    },
    KindData {
        kind: "Pod",
        plural: "pods",
        singular: "pod",
        short_names: &["po"],
        categories: &["all"],
        subresources: &[
            Subresource {
                name: "binding",
                group: "",
                version: "",
                kind: "Binding",
                verbs: &["create"],
            },
            Subresource {
                name: "log",
                group: "",
                version: "",
                kind: "Pod",
                verbs: &["get"],
            },
            part("status", "Pod"),
        ],
        storage_hash: "xPOwRZ+Yhw8=",
        delete_returns_object: true,
        graceful: true,
        generation: Generation::Spec,
        selectable: &[
            selectable("spec.nodeName", &[&["spec", "nodeName"]]),
            selectable("spec.restartPolicy", &[&["spec", "restartPolicy"]]),
            selectable("spec.schedulerName", &[&["spec", "schedulerName"]]),
            selectable("spec.serviceAccountName", &[&["spec", "serviceAccountName"]]),
            Selectable {
                name: "spec.hostNetwork",
                paths: &[&["spec", "hostNetwork"]],
                unset: "false",
            },
            selectable("status.phase", &[&["status", "phase"]]),
            selectable("status.podIP", &[&["status", "podIP"]]),
            selectable("status.podIPs", &[&["status", "podIP"]]),
            selectable("status.nominatedNodeName", &[&["status", "nominatedNodeName"]]),
        ],
        columns: &[
            NAME,
            column("Ready", 0),
            column("Status", 0),
            column("Restarts", 0),
            AGE,
            column("IP", 1),
            column("Node", 1),
            column("Nominated Node", 1),
            column("Readiness Gates", 1),
        ],
        ..PLAIN
    },
    KindData {
        kind: "Secret",
        plural: "secrets",
        singular: "secret",
        storage_hash: "S6u1pOWzb84=",
        selectable: &[selectable("type", &[&["type"]])],
        columns: &[NAME, column("Type", 0), column("Data", 0), AGE],
        ..PLAIN
    },
    KindData {
        kind: "ServiceAccount",
        plural: "serviceaccounts",
        singular: "serviceaccount",
        short_names: &["sa"],
        storage_hash: "pbx9ZvyFpBE=",
        delete_returns_object: true,
        ..PLAIN
    },
    KindData {
        kind: "Service",
        plural: "services",
        singular: "service",
        short_names: &["svc"],
        categories: &["all"],
        subresources: &[part("status", "Service")],
        storage_hash: "0/CO1lhkEBI=",
        create_on_update: true,
        delete_returns_object: true,
        selectable: &[
            selectable("spec.clusterIP", &[&["spec", "clusterIP"]]),
            selectable("spec.type", &[&["spec", "type"]]),
        ],
        columns: &[
            NAME,
            column("Type", 0),
            column("Cluster-IP", 0),
            column("External-IP", 0),
            column("Port(s)", 0),
            AGE,
            column("Selector", 1),
        ],
        ..PLAIN
    },
    KindData {
        group: "apps",
        kind: "DaemonSet",
        plural: "daemonsets",
        singular: "daemonset",
        short_names: &["ds"],
        categories: &["all"],
        subresources: &[part("status", "DaemonSet")],
        storage_hash: "dd7pWHUlMKQ=",
        storage: ("apps", "v1"),
        generation: Generation::Spec,
        columns: &[
            NAME,
            count("Desired"),
            count("Current"),
            count("Ready"),
            count("Up-to-date"),
            count("Available"),
            column("Node Selector", 0),
            AGE,
            column("Containers", 1),
            column("Images", 1),
            column("Selector", 1),
        ],
        ..PLAIN
    },
    KindData {
        group: "apps",
        kind: "Deployment",
        plural: "deployments",
        singular: "deployment",
        short_names: &["deploy"],
        categories: &["all"],
        subresources: &[SCALE, part("status", "Deployment")],
        storage_hash: "8aSe+NMegvE=",
        storage: ("apps", "v1"),
        generation: Generation::Spec,
        columns: &[
            NAME,
            column("Ready", 0),
            column("Up-to-date", 0),
            column("Available", 0),
            AGE,
            column("Containers", 1),
            column("Images", 1),
            column("Selector", 1),
        ],
        ..PLAIN
    },
    KindData {
        group: "apps",
        kind: "ReplicaSet",
        plural: "replicasets",
        singular: "replicaset",
        short_names: &["rs"],
        categories: &["all"],
        subresources: &[SCALE, part("status", "ReplicaSet")],
        storage_hash: "P1RzHs8/mWQ=",
        storage: ("apps", "v1"),
        generation: Generation::Spec,
        selectable: &[Selectable {
            name: "status.replicas",
            paths: &[&["status", "replicas"]],
            unset: "0",
        }],
        columns: &[
            NAME,
            count("Desired"),
            count("Current"),
            count("Ready"),
            AGE,
            column("Containers", 1),
            column("Images", 1),
            column("Selector", 1),
        ],
        ..PLAIN
    },
    KindData {
        group: "events.k8s.io",
        kind: "Event",
        plural: "events",
        singular: "event",
        short_names: &["ev"],
        storage_hash: "r2yiGXH7wu8=",
        create_on_update: true,
        selectable: &[
            selectable("regarding.kind", &[&["regarding", "kind"]]),
            selectable("regarding.namespace", &[&["regarding", "namespace"]]),
            selectable("regarding.name", &[&["regarding", "name"]]),
            selectable("regarding.uid", &[&["regarding", "uid"]]),
            selectable("regarding.apiVersion", &[&["regarding", "apiVersion"]]),
            selectable("regarding.resourceVersion", &[&["regarding", "resourceVersion"]]),
            selectable("regarding.fieldPath", &[&["regarding", "fieldPath"]]),
            selectable("reason", &[&["reason"]]),
            selectable("reportingController", &[&["reportingController"]]),
            selectable("type", &[&["type"]]),
        ],
        columns: EVENT_COLUMNS,
        ..PLAIN
    },
    KindData {
        group: "coordination.k8s.io",
        kind: "Lease",
        plural: "leases",
        singular: "lease",
        storage_hash: "gqkMMb/YqFM=",
        storage: ("coordination.k8s.io", "v1"),
        create_on_update: true,
        unconditional_update: false,
        columns: &[NAME, column("Holder", 0), AGE],
        ..PLAIN
    },
    KindData {
        group: "discovery.k8s.io",
        kind: "EndpointSlice",
        plural: "endpointslices",
        singular: "endpointslice",
        storage_hash: "Nx3SIv6I0mE=",
        storage: ("discovery.k8s.io", "v1"),
        generation: Generation::Body,
        columns: &[
            NAME,
            column("AddressType", 0),
            column("Ports", 0),
            column("Endpoints", 0),
            AGE,
        ],
        ..PLAIN
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_and_unique() {
        assert_eq!(resource("", "v1", "pods").map(|one| one.kind), Some("Pod"));
        assert_eq!(
            kind("apps", "v1", "Deployment").map(|one| one.plural),
            Some("deployments")
        );
        assert!(resource("apps", "v1", "pods").is_none());
        for (index, one) in KINDS.iter().enumerate() {
            for other in &KINDS[index + 1..] {
                assert!((one.group, one.plural) != (other.group, other.plural), "{}", one.plural);
            }
        }
    }

    #[test]
    fn selectable_fields_are_read() {
        let event = kind("", "v1", "Event").unwrap();
        let source = event.selectable.iter().find(|one| one.name == "source").unwrap();
        let mut object = Value::map();
        assert_eq!(source.text(&object), "");
        object.set(&["reportingComponent"], "b");
        assert_eq!(source.text(&object), "b");
        object.set(&["source", "component"], "a");
        assert_eq!(source.text(&object), "a");
        let node = kind("", "v1", "Node").unwrap();
        assert_eq!(node.selectable[0].text(&Value::map()), "false");
    }

    #[test]
    fn parts_are_served_where_they_exist() {
        let deployment = kind("apps", "v1", "Deployment").unwrap();
        assert_eq!(
            deployment.subresource("scale").map(|part| part.group),
            Some("autoscaling")
        );
        assert!(deployment.subresource("log").is_none());
        assert_eq!(deployment.api_version(), "apps/v1");
        assert_eq!(kind("", "v1", "Pod").map(KindData::api_version).as_deref(), Some("v1"));
    }
}
