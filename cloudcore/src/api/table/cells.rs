//! One row of cells for an object, in the order of its kind's columns.

use proto::object::selector::{Requirement, Selector, Test};
use proto::time::Wall;
use proto::value::Value;

use super::{age, pod};
use crate::api::kinds::KindData;

const NONE: &str = "<none>";
const UNKNOWN: &str = "<unknown>";

/// The cells of a row. Cells are found by the name of their column, so that a column is never off by one.
pub(super) fn cells(kind: &KindData, object: &Value, now: Wall) -> Vec<Value> {
    let of_pod = (kind.kind == "Pod").then(|| pod::summary(object, now));
    kind.columns
        .iter()
        .map(|column| match column.name {
            "Name" => text(object, &["metadata", "name"]).into(),
            "Age" => age::since(object.at(&["metadata", "creationTimestamp"]), now).into(),
            name => match (kind.kind, &of_pod) {
                ("Pod", Some(summary)) => of_a_pod(name, object, summary),
                ("ConfigMap" | "Secret", _) => of_data(name, object),
                ("Namespace", _) => text(object, &["status", "phase"]).into(),
                ("Node", _) => of_a_node(name, object),
                ("Service", _) => of_a_service(name, object),
                ("Deployment" | "ReplicaSet" | "DaemonSet", _) => of_a_workload(kind.kind, name, object),
                ("Event", _) => of_an_event(name, object, now),
                ("Lease", _) => text(object, &["spec", "holderIdentity"]).into(),
                ("EndpointSlice", _) => of_endpoints(name, object),
                _ => Value::from(""),
            },
        })
        .collect()
}

fn text<'a>(object: &'a Value, path: &[&str]) -> &'a str {
    object.text_at(path).unwrap_or_default()
}

fn or<'a>(text: &'a str, instead: &'a str) -> &'a str {
    if text.is_empty() { instead } else { text }
}

fn number(object: &Value, path: &[&str]) -> Value {
    object.int_at(path).unwrap_or(0).into()
}

fn count(list: usize) -> i64 {
    i64::try_from(list).unwrap_or(i64::MAX)
}

fn joined<'a>(parts: impl Iterator<Item = &'a str>) -> String {
    parts.collect::<Vec<_>>().join(",")
}

fn of_a_pod(column: &str, object: &Value, summary: &pod::Summary) -> Value {
    match column {
        "Ready" => summary.ready.as_str().into(),
        "Status" => summary.status.as_str().into(),
        "Restarts" => summary.restarts.as_str().into(),
        "IP" => or(text(object, &["status", "podIP"]), NONE).into(),
        "Node" => or(text(object, &["spec", "nodeName"]), NONE).into(),
        "Nominated Node" => or(text(object, &["status", "nominatedNodeName"]), NONE).into(),
        "Readiness Gates" => {
            let gates = object.list_at(&["spec", "readinessGates"]);
            let met = gates.iter().filter(|gate| {
                let kind = gate.text_at(&["conditionType"]);
                object.list_at(&["status", "conditions"]).iter().any(|condition| {
                    condition.text_at(&["type"]) == kind && condition.text_at(&["status"]) == Some("True")
                })
            });
            match gates.len() {
                0 => NONE.into(),
                all => format!("{}/{all}", met.count()).into(),
            }
        }
        _ => "".into(),
    }
}

fn of_data(column: &str, object: &Value) -> Value {
    let entries = |field: &str| object.get(field).and_then(Value::as_map).map_or(0, |map| map.len());
    match column {
        "Data" => count(entries("data") + entries("binaryData")).into(),
        _ => text(object, &["type"]).into(),
    }
}

fn of_a_node(column: &str, node: &Value) -> Value {
    let address = |kind: &str| {
        let mut addresses = node.list_at(&["status", "addresses"]).iter();
        let found = addresses.find(|address| address.text_at(&["type"]) == Some(kind));
        found
            .and_then(|address| address.text_at(&["address"]))
            .unwrap_or(NONE)
            .to_owned()
    };
    let info = |field: &str| text(node, &["status", "nodeInfo", field]);
    match column {
        "Status" => {
            let mut conditions = node.list_at(&["status", "conditions"]).iter();
            let ready = conditions.find(|condition| condition.text_at(&["type"]) == Some("Ready"));
            let mut status = match ready.and_then(|ready| ready.text_at(&["status"])) {
                Some("True") => "Ready",
                Some(_) => "NotReady",
                None => "Unknown",
            }
            .to_owned();
            if node.flag_at(&["spec", "unschedulable"]) {
                status.push_str(",SchedulingDisabled");
            }
            status.into()
        }
        "Roles" => {
            let labels = node.at(&["metadata", "labels"]).and_then(Value::as_map);
            let mut roles: Vec<&str> = labels
                .into_iter()
                .flatten()
                .filter_map(|(label, value)| match label {
                    "kubernetes.io/role" => value.as_text(),
                    label => label.strip_prefix("node-role.kubernetes.io/"),
                })
                .filter(|role| !role.is_empty())
                .collect();
            roles.sort_unstable();
            or(&roles.join(","), NONE).into()
        }
        "Version" => info("kubeletVersion").into(),
        "Internal-IP" => address("InternalIP").into(),
        "External-IP" => address("ExternalIP").into(),
        "OS-Image" => or(info("osImage"), UNKNOWN).into(),
        "Kernel-Version" => match (info("kernelVersion"), info("architecture")) {
            ("", _) => UNKNOWN.into(),
            (kernel, "") => kernel.into(),
            (kernel, architecture) => format!("{kernel} ({architecture})").into(),
        },
        "Container-Runtime" => or(info("containerRuntimeVersion"), UNKNOWN).into(),
        _ => "".into(),
    }
}

fn of_a_service(column: &str, service: &Value) -> Value {
    match column {
        "Type" => text(service, &["spec", "type"]).into(),
        "Cluster-IP" => or(text(service, &["spec", "clusterIP"]), NONE).into(),
        "External-IP" => {
            let external = service.list_at(&["spec", "externalIPs"]).iter();
            let mut all: Vec<&str> = external.filter_map(Value::as_text).collect();
            let ingress = service.list_at(&["status", "loadBalancer", "ingress"]);
            let ingress = ingress
                .iter()
                .filter_map(|one| one.text_at(&["ip"]).or_else(|| one.text_at(&["hostname"])));
            let nothing = match text(service, &["spec", "type"]) {
                "ExternalName" => return text(service, &["spec", "externalName"]).into(),
                "LoadBalancer" => {
                    all.splice(0..0, ingress);
                    "<pending>"
                }
                _ => NONE,
            };
            or(&all.join(","), nothing).into()
        }
        "Port(s)" => {
            let ports = service.list_at(&["spec", "ports"]).iter().map(|port| {
                let number = port.int_at(&["port"]).unwrap_or(0);
                let protocol = text(port, &["protocol"]);
                match port.int_at(&["nodePort"]).unwrap_or(0) {
                    0 => format!("{number}/{protocol}"),
                    outside => format!("{number}:{outside}/{protocol}"),
                }
            });
            or(&ports.collect::<Vec<_>>().join(","), NONE).into()
        }
        "Selector" => or(&labels(service.at(&["spec", "selector"])), NONE).into(),
        _ => "".into(),
    }
}

fn of_a_workload(kind: &str, column: &str, object: &Value) -> Value {
    let containers = object.list_at(&["spec", "template", "spec", "containers"]);
    let status = |field: &str| number(object, &["status", field]);
    match (kind, column) {
        (_, "Containers") => joined(containers.iter().map(|one| text(one, &["name"]))).into(),
        (_, "Images") => joined(containers.iter().map(|one| text(one, &["image"]))).into(),
        (_, "Selector") => selector(object.at(&["spec", "selector"])).into(),
        (_, "Node Selector") => {
            let chosen = object.at(&["spec", "template", "spec", "nodeSelector"]);
            or(&labels(chosen), NONE).into()
        }
        ("Deployment", "Ready") => format!(
            "{}/{}",
            object.int_at(&["status", "readyReplicas"]).unwrap_or(0),
            object.int_at(&["spec", "replicas"]).unwrap_or(0)
        )
        .into(),
        ("Deployment", "Up-to-date") => status("updatedReplicas"),
        ("Deployment", "Available") => status("availableReplicas"),
        ("ReplicaSet", "Desired") => number(object, &["spec", "replicas"]),
        ("ReplicaSet", "Current") => status("replicas"),
        ("ReplicaSet", "Ready") => status("readyReplicas"),
        ("DaemonSet", "Desired") => status("desiredNumberScheduled"),
        ("DaemonSet", "Current") => status("currentNumberScheduled"),
        ("DaemonSet", "Ready") => status("numberReady"),
        ("DaemonSet", "Up-to-date") => status("updatedNumberScheduled"),
        ("DaemonSet", "Available") => status("numberAvailable"),
        _ => "".into(),
    }
}

fn of_an_event(column: &str, event: &Value, now: Wall) -> Value {
    // The two spellings of events differ in their field names only.
    let first = |paths: &[&[&str]]| {
        let mut found = paths.iter().filter_map(|path| event.at(path));
        found
            .find(|value| !value.is_null() && value.as_text() != Some(""))
            .cloned()
    };
    let field = |paths: &[&[&str]]| match first(paths) {
        Some(Value::Text(text)) => text.into(),
        _ => String::new(),
    };
    match column {
        "Last Seen" => {
            let last = first(&[
                &["series", "lastObservedTime"],
                &["lastTimestamp"],
                &["deprecatedLastTimestamp"],
                &["firstTimestamp"],
                &["eventTime"],
            ]);
            age::since(last.as_ref(), now).into()
        }
        "First Seen" => {
            let first = first(&[&["firstTimestamp"], &["deprecatedFirstTimestamp"], &["eventTime"]]);
            age::since(first.as_ref(), now).into()
        }
        "Type" => text(event, &["type"]).into(),
        "Reason" => text(event, &["reason"]).into(),
        "Object" => {
            let kind = field(&[&["involvedObject", "kind"], &["regarding", "kind"]]).to_lowercase();
            let name = field(&[&["involvedObject", "name"], &["regarding", "name"]]);
            (if name.is_empty() {
                kind
            } else {
                format!("{kind}/{name}")
            })
            .into()
        }
        "Subobject" => field(&[&["involvedObject", "fieldPath"], &["regarding", "fieldPath"]]).into(),
        "Source" => {
            let component = field(&[
                &["source", "component"],
                &["deprecatedSource", "component"],
                &["reportingComponent"],
                &["reportingController"],
            ]);
            let host = field(&[&["source", "host"], &["deprecatedSource", "host"]]);
            (if host.is_empty() {
                component
            } else {
                format!("{component}, {host}")
            })
            .into()
        }
        "Message" => field(&[&["message"], &["note"]]).trim().to_owned().into(),
        "Count" => {
            let count = first(&[&["series", "count"], &["count"], &["deprecatedCount"]]);
            count
                .and_then(|count| count.as_i64())
                .filter(|count| *count > 0)
                .unwrap_or(1)
                .into()
        }
        _ => "".into(),
    }
}

fn of_endpoints(column: &str, slice: &Value) -> Value {
    const SHOWN_MAX: usize = 3;
    let shortened = |all: Vec<String>| {
        let more = all.len().saturating_sub(SHOWN_MAX);
        let shown = all.into_iter().take(SHOWN_MAX).collect::<Vec<_>>().join(",");
        match more {
            0 => or(&shown, "<unset>").to_owned(),
            more => format!("{shown} + {more} more..."),
        }
    };
    match column {
        "AddressType" => text(slice, &["addressType"]).into(),
        "Ports" => {
            let ports = slice
                .list_at(&["ports"])
                .iter()
                .map(|port| match port.int_at(&["port"]) {
                    Some(number) => number.to_string(),
                    None => text(port, &["name"]).to_owned(),
                });
            shortened(ports.collect()).into()
        }
        _ => {
            let endpoints = slice.list_at(&["endpoints"]).iter();
            let addresses = endpoints.flat_map(|endpoint| endpoint.list_at(&["addresses"]));
            shortened(addresses.filter_map(Value::as_text).map(str::to_owned).collect()).into()
        }
    }
}

/// `a=b,c=d`
fn labels(map: Option<&Value>) -> String {
    let map = map.and_then(Value::as_map).into_iter().flatten();
    map.map(|(key, value)| format!("{key}={}", value.as_text().unwrap_or_default()))
        .collect::<Vec<_>>()
        .join(",")
}

/// A label selector as one line, requirements in the order of their keys.
pub fn selector(object: Option<&Value>) -> String {
    let selector = object.map(Selector::of_labels);
    let Some(Ok(Some(Selector(mut requirements)))) = selector else {
        return NONE.to_owned();
    };
    requirements.sort_by(|one, other| one.key.cmp(&other.key));
    or(
        &requirements.iter().map(requirement).collect::<Vec<_>>().join(","),
        NONE,
    )
    .to_owned()
}

fn requirement(Requirement { key, test }: &Requirement) -> String {
    match test {
        Test::In(values) => match values.as_slice() {
            [one] => format!("{key}={one}"),
            many => format!("{key} in ({})", many.join(",")),
        },
        Test::NotIn(values) => format!("{key} notin ({})", values.join(",")),
        Test::Exists => key.clone(),
        Test::Absent => format!("!{key}"),
        Test::Above(bound) => format!("{key}>{bound}"),
        Test::Below(bound) => format!("{key}<{bound}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::kinds::KINDS;

    #[test]
    fn every_column_of_every_kind_has_a_cell() {
        for kind in KINDS {
            let row = cells(kind, &Value::map(), Wall::default());
            assert_eq!(row.len(), kind.columns.len(), "{}", kind.kind);
        }
    }

    #[test]
    fn selectors_as_text() {
        let check = |json: &str, line: &str| {
            let object = proto::value::json::parse(json.as_bytes()).unwrap();
            assert_eq!(selector(Some(&object)), line);
        };
        check("{}", NONE);
        check(
            r#"{"matchLabels":{"b":"1"},"matchExpressions":[{"key":"a","operator":"Exists"},{"key":"c","operator":"NotIn","values":["x","y"]}]}"#,
            "a,b=1,c notin (x,y)",
        );
    }
}
