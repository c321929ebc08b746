//! What a manifest leaves out: the defaults of each kind, set before validation and after every change.
//!
//! Pure and idempotent; a field that is set is never touched. Expects objects as `codec` gives them.

mod pod;
#[cfg(test)]
mod tests;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proto::value::Value;

pub use self::pod::qos_class;
use super::kinds::KindData;

/// Sets the defaults of an object.
pub fn apply_defaults(kind: &KindData, object: &mut Value) {
    match (kind.group, kind.kind) {
        ("", "Pod") => {
            if let Some(spec) = object.get("spec").is_some().then(|| at(object, "spec")) {
                pod::spec(spec);
                pod::spec_of_pod(spec);
            }
        }
        ("", "Secret") => secret(object),
        ("", "Service") => service(at(object, "spec")),
        ("", "Namespace") => namespace(object),
        ("apps", "Deployment") => {
            let spec = at(object, "spec");
            default(spec, "replicas", 1);
            default(spec, "revisionHistoryLimit", 10);
            default(spec, "progressDeadlineSeconds", 600);
            let strategy = at(spec, "strategy");
            default(strategy, "type", "RollingUpdate");
            if strategy.text_at(&["type"]) == Some("RollingUpdate") {
                let rolling = at(strategy, "rollingUpdate");
                default(rolling, "maxUnavailable", "25%");
                default(rolling, "maxSurge", "25%");
            }
            template(spec);
        }
        ("apps", "ReplicaSet") => {
            let spec = at(object, "spec");
            default(spec, "replicas", 1);
            template(spec);
        }
        ("apps", "DaemonSet") => {
            let spec = at(object, "spec");
            default(spec, "revisionHistoryLimit", 10);
            let strategy = at(spec, "updateStrategy");
            default(strategy, "type", "RollingUpdate");
            if strategy.text_at(&["type"]) == Some("RollingUpdate") {
                let rolling = at(strategy, "rollingUpdate");
                default(rolling, "maxUnavailable", 1);
                default(rolling, "maxSurge", 0);
            }
            template(spec);
        }
        ("discovery.k8s.io", "EndpointSlice") => {
            each(object, "ports", |port| {
                default(port, "name", "");
                default(port, "protocol", "TCP");
            });
        }
        _ => {}
    }
}

/// What admission adds to a new object beyond its kind's defaults.
pub fn admit(kind: &KindData, object: &mut Value) {
    match (kind.group, kind.kind) {
        ("", "Pod") => pod::admit(at(object, "spec")),
        ("", "Node") => {
            // Until its session is there, nothing is scheduled to a node.
            let taint = Value::from([("key", "node.kubernetes.io/not-ready"), ("effect", "NoSchedule")]);
            let spec = at(object, "spec");
            let there = spec.list_at(&["taints"]).iter().any(|one| {
                one.text_at(&["key"]) == taint.text_at(&["key"]) && one.text_at(&["effect"]) == Some("NoSchedule")
            });
            if !there {
                push(spec, "taints", taint);
            }
        }
        _ => {}
    }
}

fn secret(object: &mut Value) {
    default(object, "type", "Opaque");
    if let Some(Value::Map(texts)) = object.remove(&["stringData"]) {
        for (name, value) in texts {
            let text = value.as_text().unwrap_or_default();
            let encoded = STANDARD.encode(text);
            object.set(&["data", &name], encoded);
        }
    }
}

fn namespace(object: &mut Value) {
    if let Some(name) = object.text_at(&["metadata", "name"]).map(ToOwned::to_owned)
        && !name.is_empty()
    {
        object.set(&["metadata", "labels", "kubernetes.io/metadata.name"], name);
    }
    default(at(object, "spec"), "finalizers", Value::from_iter(["kubernetes"]));
}

fn service(spec: &mut Value) {
    default(spec, "sessionAffinity", "None");
    default(spec, "type", "ClusterIP");
    if spec.text_at(&["sessionAffinity"]) == Some("ClientIP") {
        default(
            at(at(spec, "sessionAffinityConfig"), "clientIP"),
            "timeoutSeconds",
            10_800,
        );
    }
    each(spec, "ports", |port| {
        default(port, "protocol", "TCP");
        let unset = match port.get("targetPort") {
            None | Some(Value::Null) => true,
            Some(Value::I64(number)) => *number == 0,
            Some(Value::Text(text)) => text.is_empty(),
            Some(_) => false,
        };
        if let (true, Some(number)) = (unset, port.get("port").cloned()) {
            port.set(&["targetPort"], number);
        }
    });
    let kind = spec.text_at(&["type"]).unwrap_or_default().to_owned();
    if matches!(kind.as_str(), "NodePort" | "LoadBalancer") {
        default(spec, "externalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        default(spec, "allocateLoadBalancerNodePorts", true);
    }
    if kind != "ExternalName" {
        default(spec, "internalTrafficPolicy", "Cluster");
        default(spec, "ipFamilyPolicy", "SingleStack");
        default(spec, "ipFamilies", Value::from_iter(["IPv4"]));
        if let Some(address) = spec.text_at(&["clusterIP"]).filter(|address| !address.is_empty()) {
            let addresses = Value::from_iter([address]);
            default(spec, "clusterIPs", addresses);
        }
    }
}

fn template(spec: &mut Value) {
    if spec.at(&["template", "spec"]).is_some() {
        pod::spec(at(at(spec, "template"), "spec"));
    }
}

/// Sets a field that is absent, null or an empty text.
fn default(object: &mut Value, field: &str, value: impl Into<Value>) {
    let unset = match object.get(field) {
        None | Some(Value::Null) => true,
        Some(Value::Text(text)) => text.is_empty(),
        Some(_) => false,
    };
    if unset {
        object.set(&[field], value);
    }
}

/// The message at a field, made if it is not there.
fn at<'o>(object: &'o mut Value, field: &str) -> &'o mut Value {
    if !matches!(object, Value::Map(_)) {
        *object = Value::map();
    }
    let Value::Map(map) = object else { return object };
    let slot = map.get_or_insert_with(field, Value::map);
    if slot.is_null() {
        *slot = Value::map();
    }
    slot
}

/// Does something to every element of a list.
fn each(object: &mut Value, field: &str, mut change: impl FnMut(&mut Value)) {
    if let Some(Value::List(list)) = object.as_map_mut().and_then(|map| map.get_mut(field)) {
        list.iter_mut().for_each(&mut change);
    }
}

fn push(object: &mut Value, field: &str, element: Value) {
    match object.as_map_mut().and_then(|map| map.get_mut(field)) {
        Some(Value::List(list)) => list.push(element),
        _ => object.set(&[field], Value::List(vec![element])),
    }
}
