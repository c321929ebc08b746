//! What becomes of the parts of an object that the writer of a request does not own: `status`, the system's metadata,
//! the generation. Pure; the kind's row says what holds for it.

use proto::value::{Map, Value};

use super::codec;
use super::defaults::qos_class;
use super::kinds::{Generation, KindData};
use super::schema;

/// Metadata that only the system sets; an update never changes it.
const SYSTEM_METADATA: [&str; 7] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "namespace",
    "selfLink",
    "uid",
];

/// Brings the parts of a new object that its author does not write to their first state.
pub fn prepare_create(kind: &KindData, object: &mut Value) {
    // A node may come with its status.
    if kind.subresource("status").is_some() && kind.kind != "Node" {
        let schema = schema::kind(kind.group, kind.version, kind.kind);
        match schema.and_then(|schema| codec::unset(schema, "status")) {
            Some(status) => object.set(&["status"], status),
            None => {
                object.remove(&["status"]);
            }
        }
    }
    if kind.generation != Generation::None {
        object.set(&["metadata", "generation"], 1);
    }
    match (kind.group, kind.kind) {
        ("", "Pod") => {
            let class = qos_class(object);
            object.set(&["status", "phase"], "Pending");
            object.set(&["status", "qosClass"], class);
            if object
                .int_at(&["spec", "terminationGracePeriodSeconds"])
                .is_some_and(|grace| grace < 0)
            {
                object.set(&["spec", "terminationGracePeriodSeconds"], 1);
            }
        }
        ("", "Namespace") => object.set(&["status", "phase"], "Active"),
        _ => {}
    }
}

/// Takes back what an update may not change: through the main path the status, through `status` everything but it; the
/// system's metadata always. Sets the generation.
pub fn prepare_update(kind: &KindData, old: &Value, new: &mut Value, part: Option<&str>) {
    let (Value::Map(before), Value::Map(map)) = (old, &mut *new) else {
        return;
    };
    match part {
        Some("status") => {
            let status = map.remove("status");
            let metadata = map.remove("metadata");
            *map = before.clone();
            put(map, "status", status);
            put(map, "metadata", metadata);
        }
        _ if kind.subresource("status").is_some() => put(map, "status", before.get("status").cloned()),
        _ => {}
    }
    let system = before.get("metadata").and_then(Value::as_map);
    let metadata = map.get_or_insert_with("metadata", Value::map);
    for name in SYSTEM_METADATA {
        match system.and_then(|system| system.get(name)) {
            Some(value) => metadata.set(&[name], value.clone()),
            None => {
                metadata.remove(&[name]);
            }
        }
    }
    if (kind.group, kind.kind, part) == ("", "Service", None) {
        keep_allocated(old, new);
    }
    if let Some(generation) = next_generation(kind, old, new) {
        new.set(&["metadata", "generation"], generation);
    }
}

/// Addresses and node ports that were given to a service stay when an update does not name them.
fn keep_allocated(old: &Value, new: &mut Value) {
    let kind = |object: &Value| object.text_at(&["spec", "type"]).unwrap_or_default().to_owned();
    if kind(old) == "ExternalName" || kind(new) == "ExternalName" {
        return;
    }
    if new.text_at(&["spec", "clusterIP"]).unwrap_or_default().is_empty() {
        for field in ["clusterIP", "clusterIPs"] {
            if let Some(value) = old.at(&["spec", field]) {
                new.set(&["spec", field], value.clone());
            }
        }
    }
    if !matches!(kind(new).as_str(), "NodePort" | "LoadBalancer") {
        return;
    }
    let Some(Value::List(ports)) = new.as_map_mut().and_then(|map| {
        let spec = map.get_mut("spec")?.as_map_mut()?;
        spec.get_mut("ports")
    }) else {
        return;
    };
    for port in ports
        .iter_mut()
        .filter(|port| port.int_at(&["nodePort"]).unwrap_or(0) == 0)
    {
        let before = old.list_at(&["spec", "ports"]).iter();
        let mut same = before.filter(|one| ["port", "protocol"].iter().all(|part| one.get(part) == port.get(part)));
        if let Some(number) = same.next().and_then(|one| one.get("nodePort")).cloned() {
            port.set(&["nodePort"], number);
        }
    }
}

fn put(map: &mut Map, name: &str, value: Option<Value>) {
    match value {
        Some(value) => {
            map.insert(name.to_owned(), value);
        }
        None => {
            map.remove(name);
        }
    }
}

/// The generation after an update, where it grows.
fn next_generation(kind: &KindData, old: &Value, new: &Value) -> Option<i64> {
    let grows = match kind.generation {
        Generation::None => false,
        Generation::Spec => old.get("spec") != new.get("spec"),
        Generation::Body => body(old).ne(body(new)),
    };
    let generation = old.int_at(&["metadata", "generation"]).unwrap_or(0);
    grows.then(|| generation.saturating_add(1))
}

/// What is neither metadata nor status.
fn body(object: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let fields = object.as_map().into_iter().flatten();
    fields.filter(|(name, _)| !matches!(*name, "metadata" | "status" | "apiVersion" | "kind"))
}

#[cfg(test)]
mod tests {
    use proto::value::json;

    use super::*;
    use crate::api::kinds;

    fn tree(text: &str) -> Value {
        json::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn each_path_writes_its_part() {
        let kind = kinds::kind("apps", "v1", "Deployment").unwrap();
        let old = tree(r#"{"metadata":{"uid":"u","generation":3},"spec":{"replicas":1},"status":{"replicas":1}}"#);
        let change = r#"{"metadata":{"uid":"x","labels":{"a":"b"}},"spec":{"replicas":2},"status":{"replicas":9}}"#;
        let mut main = tree(change);
        prepare_update(kind, &old, &mut main, None);
        assert_eq!(
            json::write(&main),
            r#"{"metadata":{"generation":4,"labels":{"a":"b"},"uid":"u"},"spec":{"replicas":2},"status":{"replicas":1}}"#
        );
        let mut status = tree(change);
        prepare_update(kind, &old, &mut status, Some("status"));
        assert_eq!(
            json::write(&status),
            r#"{"metadata":{"generation":3,"labels":{"a":"b"},"uid":"u"},"spec":{"replicas":1},"status":{"replicas":9}}"#
        );
    }

    #[test]
    fn a_service_keeps_what_it_was_given() {
        let kind = kinds::kind("", "v1", "Service").unwrap();
        let old = tree(
            r#"{"spec":{"clusterIP":"10.0.0.1","clusterIPs":["10.0.0.1"],"type":"NodePort",
                "ports":[{"port":80,"protocol":"TCP","nodePort":30000}]}}"#,
        );
        let mut new =
            tree(r#"{"spec":{"type":"NodePort","ports":[{"port":80,"protocol":"TCP"},{"port":81,"protocol":"TCP"}]}}"#);
        prepare_update(kind, &old, &mut new, None);
        assert_eq!(new.text_at(&["spec", "clusterIPs", "0"]), Some("10.0.0.1"));
        assert_eq!(new.int_at(&["spec", "ports", "0", "nodePort"]), Some(30_000));
        assert_eq!(new.at(&["spec", "ports", "1", "nodePort"]), None);
    }

    #[test]
    fn an_object_begins_in_its_first_state() {
        let kind = kinds::kind("apps", "v1", "ReplicaSet").unwrap();
        let mut object = tree(r#"{"metadata":{"name":"r"},"status":{"replicas":5,"observedGeneration":9}}"#);
        prepare_create(kind, &mut object);
        assert_eq!(
            json::write(&object),
            r#"{"metadata":{"generation":1,"name":"r"},"status":{"replicas":0}}"#
        );
        let slice = kinds::kind("discovery.k8s.io", "v1", "EndpointSlice").unwrap();
        let (old, mut new) = (tree(r#"{"ports":[]}"#), tree(r#"{"ports":[1]}"#));
        prepare_update(slice, &old, &mut new, None);
        assert_eq!(new.int_at(&["metadata", "generation"]), Some(1));
    }
}
