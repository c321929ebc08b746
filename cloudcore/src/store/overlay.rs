//! What a node reported, laid over what the cloud says: how an object reads.
//!
//! A report is the status as its node sees it, and is kept as it came. The conditions that are the cloud's own stay
//! the cloud's, whatever a report says of them.

use std::collections::BTreeSet;

use proto::object::Kind;
use proto::value::{Map, Value};

/// Conditions of a Pod that only the cloud sets. Readiness gates join them, pod by pod.
const POD_CONDITIONS: [&str; 2] = ["DisruptionTarget", "PodScheduled"];

/// The object with its report: fields of the report stand in the status, and the cloud's conditions are merged in by type.
pub fn overlay(kind: &Kind, mut body: Value, report: Option<&Value>) -> Value {
    let Some(Value::Map(report)) = report else {
        return body;
    };
    let ours = conditions_of_the_cloud(kind, &body);
    let Value::Map(object) = &mut body else {
        return body;
    };
    let mut status = match object.remove("status") {
        Some(Value::Map(status)) => status,
        _ => Map::new(),
    };
    let from_cloud = taken(&mut status, "conditions");
    for (field, value) in report {
        status.insert(field, value.clone());
    }
    let from_node = taken(&mut status, "conditions");
    let merged = match kind.as_str() {
        "Node" => node_conditions(from_cloud, from_node),
        "Pod" => pod_conditions(from_cloud, from_node, &ours),
        // Of other kinds a report says all there is to say, where it says anything.
        _ if from_node.is_empty() => from_cloud,
        _ => from_node,
    };
    if !merged.is_empty() {
        status.insert("conditions".to_owned(), Value::List(merged));
    }
    object.insert("status".to_owned(), Value::Map(status));
    body
}

fn taken(status: &mut Map, field: &str) -> Vec<Value> {
    match status.remove(field) {
        Some(Value::List(list)) => list,
        _ => Vec::new(),
    }
}

/// The types of conditions that a node has no say in.
fn conditions_of_the_cloud(kind: &Kind, body: &Value) -> BTreeSet<String> {
    if kind.as_str() != "Pod" {
        return BTreeSet::new();
    }
    let gates = body.list_at(&["spec", "readinessGates"]).iter();
    gates
        .filter_map(|gate| gate.text_at(&["conditionType"]))
        .chain(POD_CONDITIONS)
        .map(str::to_owned)
        .collect()
}

fn of_type(condition: &Value) -> &str {
    condition.text_at(&["type"]).unwrap_or_default()
}

fn pod_conditions(from_cloud: Vec<Value>, from_node: Vec<Value>, ours: &BTreeSet<String>) -> Vec<Value> {
    let node = from_node
        .into_iter()
        .filter(|condition| !ours.contains(of_type(condition)));
    let cloud = from_cloud
        .into_iter()
        .filter(|condition| ours.contains(of_type(condition)));
    node.chain(cloud).collect()
}

/// Ready is the cloud's, and so is every condition that it has set to Unknown because it lost sight of the node. The
/// others are the node's, with the cloud's time of the last heartbeat.
fn node_conditions(from_cloud: Vec<Value>, from_node: Vec<Value>) -> Vec<Value> {
    let wins = |condition: &Value| of_type(condition) == "Ready" || condition.text_at(&["status"]) == Some("Unknown");
    let mut merged = Vec::new();
    for mut condition in from_node {
        match from_cloud.iter().find(|cloud| of_type(cloud) == of_type(&condition)) {
            Some(cloud) if wins(cloud) => continue,
            Some(cloud) => {
                if let Some(beat) = cloud.get("lastHeartbeatTime") {
                    condition.set(&["lastHeartbeatTime"], beat.clone());
                }
            }
            None => {}
        }
        // Without a word from the cloud nobody has vouched for the node yet.
        if of_type(&condition) != "Ready" {
            merged.push(condition);
        }
    }
    merged.extend(from_cloud.into_iter().filter(wins));
    merged
}

#[cfg(test)]
mod tests {
    use proto::value::json;

    use super::*;

    fn check(kind: &str, body: &str, report: Option<&str>, read: &str) {
        let parse = |text: &str| json::parse(text.as_bytes()).unwrap();
        let report = report.map(parse);
        let value = overlay(&Kind::from(kind), parse(body), report.as_ref());
        assert_eq!(json::write(&value), json::write(&parse(read)));
    }

    #[test]
    fn without_a_report_the_cloud_has_the_word() {
        let pod = r#"{"status":{"phase":"Pending","conditions":[{"type":"Ready"}]}}"#;
        check("Pod", pod, None, pod);
        check("Pod", "{}", None, "{}");
    }

    #[test]
    fn a_pod_keeps_the_conditions_of_the_cloud() {
        check(
            "Pod",
            r#"{"spec":{"readinessGates":[{"conditionType":"lb"}]},"status":{"phase":"Pending","qosClass":"Burstable",
                "conditions":[{"type":"PodScheduled","status":"True"},{"type":"lb","status":"True"},
                              {"type":"Ready","status":"False"}]}}"#,
            Some(
                r#"{"phase":"Running","conditions":[{"type":"Ready","status":"True"},
                    {"type":"PodScheduled","status":"False"},{"type":"lb","status":"False"}]}"#,
            ),
            r#"{"spec":{"readinessGates":[{"conditionType":"lb"}]},"status":{"phase":"Running","qosClass":"Burstable",
                "conditions":[{"type":"Ready","status":"True"},{"type":"PodScheduled","status":"True"},
                              {"type":"lb","status":"True"}]}}"#,
        );
    }

    #[test]
    fn a_node_does_not_vouch_for_itself() {
        let report = r#"{"capacity":{"cpu":"4"},"conditions":[{"type":"Ready","status":"True"},
            {"type":"DiskPressure","status":"False","reason":"enough"}]}"#;
        check(
            "Node",
            r#"{"status":{"conditions":[{"type":"Ready","status":"Unknown"},
                {"type":"DiskPressure","status":"False","lastHeartbeatTime":"t"}]}}"#,
            Some(report),
            r#"{"status":{"capacity":{"cpu":"4"},"conditions":[
                {"type":"DiskPressure","status":"False","reason":"enough","lastHeartbeatTime":"t"},
                {"type":"Ready","status":"Unknown"}]}}"#,
        );
        check(
            "Node",
            r#"{"status":{"conditions":[{"type":"DiskPressure","status":"Unknown"}]}}"#,
            Some(report),
            r#"{"status":{"capacity":{"cpu":"4"},"conditions":[{"type":"DiskPressure","status":"Unknown"}]}}"#,
        );
    }

    #[test]
    fn other_kinds_take_the_report_field_by_field() {
        check(
            "Device.devices.kubeedge.io",
            r#"{"status":{"a":1,"b":2,"conditions":[{"type":"x"}]}}"#,
            Some(r#"{"b":3}"#),
            r#"{"status":{"a":1,"b":3,"conditions":[{"type":"x"}]}}"#,
        );
    }
}
