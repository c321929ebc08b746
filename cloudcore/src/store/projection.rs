//! What a node may get of an object.
//!
//! A projection leaves out what a node has no use for and what the node itself writes, so that its own status never
//! comes back to it. Only projections enter deltas and digests.

use proto::digest::EntryHash;
use proto::object::{Key, Kind, Uid};
use proto::value::{Map, Value};

/// Labels of a Node that the node sets itself: they say what the machine is, and no view sends them back.
pub const NODE_LABELS: [&str; 5] = [
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
];

/// What `kubectl apply` keeps for itself.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Whether nodes ever get objects of this kind (`Kind.group`).
pub fn reaches_nodes(kind: &str) -> bool {
    matches!(
        kind,
        "Node" | "Pod" | "ConfigMap" | "Secret" | "ServiceAccount" | "Service" | "EndpointSlice.discovery.k8s.io"
    )
}

/// What a node may get of an object; `None` for kinds that no node ever gets.
///
/// Kind, namespace, name and uid are no part of it: they stand beside it, in the key of its entry.
pub fn project(object: &Value) -> Option<Value> {
    let kind = Kind::of(object)?;
    if !reaches_nodes(kind.as_str()) {
        return None;
    }
    let Value::Map(mut fields) = object.clone() else {
        return None;
    };
    fields.remove("status");
    fields.remove("kind");
    if let Some(Value::Map(metadata)) = fields.get_mut("metadata") {
        for field in [
            "managedFields",
            "name",
            "namespace",
            "resourceVersion",
            "selfLink",
            "uid",
        ] {
            metadata.remove(field);
        }
        without(metadata, "annotations", &[LAST_APPLIED]);
        if kind.as_str() == "Node" {
            without(metadata, "labels", &NODE_LABELS);
        }
    }
    Some(Value::Map(fields))
}

/// Takes fields out of a map of a map; the inner map goes with its last field, as if it had never been there.
fn without(outer: &mut Map, inner: &str, fields: &[&str]) {
    if let Some(Value::Map(map)) = outer.get_mut(inner) {
        for field in fields {
            map.remove(field);
        }
        if map.is_empty() {
            outer.remove(inner);
        }
    }
}

/// The hash of the entry that an object is in a node's view; `None` for kinds that no node ever gets.
pub fn entry_hash(key: &Key, uid: Uid, object: &Value) -> Option<EntryHash> {
    project(object).map(|projection| EntryHash::of(key, uid, &projection))
}

#[cfg(test)]
mod tests {
    use proto::value::json;

    use super::*;

    fn check(object: &str, projection: Option<&str>) {
        let parse = |text: &str| json::parse(text.as_bytes()).unwrap();
        assert_eq!(project(&parse(object)), projection.map(parse), "{object}");
    }

    #[test]
    fn only_what_a_node_needs() {
        check(
            r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","uid":"u","resourceVersion":"7","generation":2,
                "managedFields":[{}],"labels":{"app":"a"},
                "annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{}","keep":"1"}},
                "spec":{"nodeName":"n"},"status":{"phase":"Running"}}"#,
            Some(
                r#"{"apiVersion":"v1","metadata":{"generation":2,
                "labels":{"app":"a"},"annotations":{"keep":"1"}},"spec":{"nodeName":"n"}}"#,
            ),
        );
        check(
            r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a",
                "annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{}"}},"data":{"status":"x"}}"#,
            Some(r#"{"apiVersion":"v1","metadata":{},"data":{"status":"x"}}"#),
        );
    }

    #[test]
    fn what_a_node_says_of_itself_does_not_come_back() {
        check(
            r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"n","labels":{"kubernetes.io/arch":"arm64",
                "kubernetes.io/hostname":"n","site":"x"}},"spec":{"unschedulable":true},"status":{"addresses":[]}}"#,
            Some(
                r#"{"apiVersion":"v1","metadata":{"labels":{"site":"x"}},
                "spec":{"unschedulable":true}}"#,
            ),
        );
        // The same labels mean nothing special on anything else.
        let pod = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"labels":{"kubernetes.io/arch":"arm64"}}}"#;
        let projection = r#"{"apiVersion":"v1","metadata":{"labels":{"kubernetes.io/arch":"arm64"}}}"#;
        check(pod, Some(projection));
    }

    #[test]
    fn some_kinds_never_leave() {
        check(r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{}}"#, None);
        check(r#"{"apiVersion":"v1","kind":"Event","metadata":{}}"#, None);
        // A kind of another group that has a name we know.
        check(r#"{"apiVersion":"example.com/v1","kind":"Pod","metadata":{}}"#, None);
        check("{}", None);
        check("[]", None);
    }
}
