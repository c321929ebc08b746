//! Manifests that are wrong, in every way that people and programs get them wrong, for every kind: each is refused with
//! the field that is meant, and nothing changes.

use cloudcore::api::kinds::{KINDS, KindData};
use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use tests::api_server::{ApiServer, TOKEN};
use tests::http::{Answer, Client};

/// What the `Status` must say: its code, the field of a cause, and a part of the message. The real server names no cause
/// where a body cannot be read; the message then holds the path.
#[derive(Debug, Clone, Copy)]
struct Refusal {
    code: u16,
    field: &'static str,
    says: &'static str,
}

const fn unreadable(says: &'static str) -> Refusal {
    Refusal { code: 400, field: "", says }
}

const fn invalid(field: &'static str, says: &'static str) -> Refusal {
    Refusal { code: 422, field, says }
}

const TOO_LARGE: Refusal = Refusal { code: 413, field: "", says: "too large" };

/// The least that a real server takes of each kind.
fn valid(kind: &KindData) -> Value {
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "x:1"}]}});
    let workload = json!({"selector": {"matchLabels": {"a": "b"}}, "template": template});
    let (field, content) = match kind.kind {
        "Pod" => ("spec", template["spec"].clone()),
        "Deployment" | "ReplicaSet" | "DaemonSet" => ("spec", workload),
        "Service" => ("spec", json!({"ports": [{"port": 80}]})),
        "Lease" => ("spec", json!({"holderIdentity": "me"})),
        "EndpointSlice" => ("addressType", json!("IPv4")),
        "ConfigMap" => ("data", json!({"a": "b"})),
        "Secret" => ("data", json!({"a": "Yg=="})),
        "Event" if kind.group.is_empty() => ("involvedObject", json!({"namespace": "default"})),
        "Event" => ("regarding", json!({"namespace": "default"})),
        _ => ("metadata", json!({})),
    };
    let mut object = json!({"apiVersion": kind.api_version(), "kind": kind.kind});
    object[field] = content;
    object["metadata"]["name"] = json!("valid");
    if (kind.kind, kind.group) == ("Event", "events.k8s.io") {
        let more = json!({"eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "a.b/c",
            "reportingInstance": "i", "action": "a", "reason": "r", "type": "Normal"});
        object
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
    }
    object
}

/// An object with one thing set to something else, or taken away by null.
fn with(mut object: Value, path: &str, value: Value) -> String {
    let (parents, last) = path.rsplit_once('/').unwrap();
    let mut place = &mut object;
    for step in parents.split('/').filter(|step| !step.is_empty()) {
        place = match step.parse::<usize>() {
            Ok(index) => &mut place[index],
            Err(_) => &mut place[step],
        };
    }
    place[last] = value;
    object.to_string()
}

/// What is wrong whatever the kind is.
fn of_every_kind(kind: &KindData) -> Vec<(Vec<u8>, &'static str, Refusal)> {
    let (object, json, yaml, protobuf) = (
        valid(kind),
        "application/json",
        "application/yaml",
        "application/vnd.kubernetes.protobuf",
    );
    let text = object.to_string();
    let doubled = text.replacen('{', r#"{"kind":"Pod","#, 1);
    let brackets = "[".repeat(20_000) + &"]".repeat(20_000);
    // The one place that takes anything.
    let deep = text.replacen(
        r#""metadata":{"#,
        &format!(r#""metadata":{{"managedFields":[{{"fieldsV1":{{"a":{brackets}}}}}],"#),
        1,
    );
    let deep_unknown = format!(r#"{{"nope":{brackets}}}"#);
    let deep_yaml = format!("nope: {brackets}");
    let at = |path: &str, value: Value| with(object.clone(), path, value).into_bytes();
    let mut wire = b"k8s\0".to_vec();
    wire.extend([0xff; 64]);
    vec![
        (at("/nope", json!(1)), json, unreadable(r#"unknown field "nope""#)),
        (
            at("/metadata/nope", json!({"a": 1})),
            json,
            unreadable(r#"unknown field "metadata.nope""#),
        ),
        (doubled.into_bytes(), json, unreadable(r#"duplicate field "kind""#)),
        (at("/metadata", json!("text")), json, unreadable("metadata")),
        (at("/metadata/name", json!(5)), json, unreadable("metadata.name")),
        (
            at("/metadata/labels", json!(["a"])),
            json,
            unreadable("metadata.labels"),
        ),
        (
            at("/metadata/labels", json!({"a": 1})),
            json,
            unreadable("metadata.labels"),
        ),
        (
            at("/metadata/name", json!("Not_A_Name")),
            json,
            invalid("metadata.name", "Not_A_Name"),
        ),
        (
            at("/metadata/name", json!("x".repeat(300))),
            json,
            invalid("metadata.name", "no more than"),
        ),
        (
            at("/metadata/labels", json!({"a b": "c"})),
            json,
            invalid("metadata.labels", "a b"),
        ),
        (
            at("/metadata/labels", json!({"a": "b c"})),
            json,
            invalid("metadata.labels", "b c"),
        ),
        (
            at("/metadata/annotations", json!({"a": "x".repeat(2 << 20)})),
            json,
            invalid("metadata.annotations", "Too long"),
        ),
        (at("/apiVersion", json!("v9")), json, unreadable("v9")),
        (at("/kind", json!("Nope")), json, unreadable("Nope")),
        (
            text.as_bytes()[..text.len() - 1].to_vec(),
            json,
            unreadable("unexpected"),
        ),
        (deep.into_bytes(), json, unreadable("depth")),
        (deep_unknown.into_bytes(), json, unreadable("nope")),
        (b"[]".to_vec(), json, unreadable("array")),
        (b"a: [b\n".to_vec(), yaml, unreadable("yaml")),
        (b"a: b\n\tc: d\n".to_vec(), yaml, unreadable("yaml")),
        (deep_yaml.into_bytes(), yaml, unreadable("recursion limit")),
        (wire, protobuf, unreadable("")),
        (text.into_bytes(), protobuf, unreadable("")),
        (b"k8s\0".to_vec(), protobuf, invalid("metadata.name", "Required value")),
    ]
}

/// What only one kind can have wrong: the place, what is put there, and what is said of it.
fn of_one_kind(kind: &KindData) -> Vec<(&'static str, Value, Refusal)> {
    let container = json!({"name": "c", "image": "x:1"});
    match kind.kind {
        "Pod" => vec![
            (
                "/spec/containers",
                json!([]),
                invalid("spec.containers", "Required value"),
            ),
            (
                "/spec/containers",
                json!([container, container]),
                invalid("spec.containers[1].name", "Duplicate value"),
            ),
            (
                "/spec/containers/0/name",
                json!("C_1"),
                invalid("spec.containers[0].name", "C_1"),
            ),
            (
                "/spec/containers/0/image",
                json!(""),
                invalid("spec.containers[0].image", "Required value"),
            ),
            (
                "/spec/containers/0/ports",
                json!([{"containerPort": -1}]),
                invalid("spec.containers[0].ports[0].containerPort", "between 1 and 65535"),
            ),
            (
                "/spec/containers/0/resources",
                json!({"requests": {"cpu": "-1"}}),
                invalid(
                    "spec.containers[0].resources.requests[cpu]",
                    "greater than or equal to 0",
                ),
            ),
            (
                "/spec/containers/0/resources",
                json!({"requests": {"cpu": "much"}}),
                unreadable("quantities must match"),
            ),
            ("/spec/containers", json!("c"), unreadable("spec.containers")),
            (
                "/spec/restartPolicy",
                json!("Sometimes"),
                invalid("spec.restartPolicy", "Sometimes"),
            ),
            ("/spec/hostNetwork", json!("yes"), unreadable("spec.hostNetwork")),
            (
                "/spec/containers/0/env",
                json!([{"name": "A", "value": "x".repeat(2 << 20)}]),
                TOO_LARGE,
            ),
        ],
        "Deployment" | "ReplicaSet" => vec![
            (
                "/spec/replicas",
                json!(-1),
                invalid("spec.replicas", "greater than or equal to 0"),
            ),
            ("/spec/replicas", json!("many"), unreadable("spec.replicas")),
            ("/spec/replicas", json!(1.5), unreadable("spec.replicas")),
            (
                "/spec/minReadySeconds",
                json!(-1),
                invalid("spec.minReadySeconds", "greater than or equal to 0"),
            ),
            (
                "/spec/template/metadata/labels",
                json!({"a": "c"}),
                invalid("spec.template.metadata.labels", "a"),
            ),
            (
                "/spec/template/spec/containers",
                json!([]),
                invalid("spec.template.spec.containers", "Required value"),
            ),
            (
                "/spec/template/spec/containers/0/env",
                json!([{"name": "A", "value": "x".repeat(2 << 20)}]),
                TOO_LARGE,
            ),
        ],
        "DaemonSet" => vec![
            (
                "/spec/minReadySeconds",
                json!(-1),
                invalid("spec.minReadySeconds", "greater than or equal to 0"),
            ),
            (
                "/spec/selector",
                json!(null),
                invalid("spec.selector", "Required value"),
            ),
            (
                "/spec/template/spec/containers",
                json!([]),
                invalid("spec.template.spec.containers", "Required value"),
            ),
        ],
        "Service" => vec![
            (
                "/spec/ports/0/port",
                json!(-1),
                invalid("spec.ports[0].port", "between 1 and 65535"),
            ),
            ("/spec/ports/0/port", json!("http"), unreadable("spec.ports")),
            ("/spec/ports", json!([]), invalid("spec.ports", "Required value")),
            ("/spec/type", json!("Some"), invalid("spec.type", "Some")),
            ("/spec/selector", json!({"a b": "c"}), invalid("spec.selector", "a b")),
        ],
        "ConfigMap" => vec![
            ("/data", json!({"a/b": "c"}), invalid("data[a/b]", "a/b")),
            ("/data", json!({"a": 1}), unreadable("data")),
            ("/data", json!({"a": "x".repeat(2 << 20)}), invalid("", "Too long")),
            ("/binaryData", json!({"b": "not base64"}), unreadable("base64")),
        ],
        "Secret" => vec![
            ("/data", json!({"a/b": "Yg=="}), invalid("data[a/b]", "a/b")),
            ("/data", json!({"a": "not base64"}), unreadable("base64")),
        ],
        "Lease" => vec![
            (
                "/spec/leaseDurationSeconds",
                json!(-1),
                invalid("spec.leaseDurationSeconds", "greater than 0"),
            ),
            ("/spec/renewTime", json!("yesterday"), unreadable("yesterday")),
        ],
        "EndpointSlice" => vec![
            ("/addressType", json!("Pigeon"), invalid("addressType", "Pigeon")),
            (
                "/endpoints",
                json!([{"addresses": []}]),
                invalid("endpoints[0].addresses", "Required value"),
            ),
        ],
        "Node" => vec![
            (
                "/spec",
                json!({"taints": [{"key": "a", "effect": "Perhaps"}]}),
                invalid("metadata.taints[0].effect", "Perhaps"),
            ),
            (
                "/status",
                json!({"capacity": {"cpu": "-1"}}),
                invalid("status.capacity.cpu", "greater than or equal to 0"),
            ),
        ],
        "Event" => vec![("/metadata/namespace", json!("other"), unreadable("namespace"))],
        "Namespace" => vec![(
            "/spec",
            json!({"finalizers": ["a b"]}),
            invalid("spec.finalizers", "a b"),
        )],
        "ServiceAccount" => vec![("/secrets", json!([1]), unreadable("secrets"))],
        other => panic!("no cases for {other}"),
    }
}

struct Bench {
    server: ApiServer,
    client: Client,
}

impl Bench {
    async fn send(&self, method: Method, path: &str, content: &str, body: Vec<u8>) -> Answer {
        let headers = [("Content-Type".to_owned(), content.to_owned())];
        self.client.call(&method, path, &headers, body).await.unwrap()
    }

    /// The revision that a list of the kind shows, and of the store.
    async fn revision(&self, path: &str) -> (String, u64) {
        let list = self.send(Method::GET, path, "application/json", Vec::new()).await;
        let list: Value = serde_json::from_slice(&list.body).unwrap();
        let shown = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        (shown, self.server.store.revision().0)
    }

    /// Sends it, and says what was not as it should be.
    async fn refused(
        &self,
        method: &Method,
        path: &str,
        content: &str,
        body: &[u8],
        wanted: Refusal,
    ) -> Option<String> {
        let strict = format!("{path}?fieldValidation=Strict");
        let answer = self.send(method.clone(), &strict, content, body.to_vec()).await;
        let status: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let causes = status["details"]["causes"].as_array().cloned().unwrap_or_default();
        let field = wanted.field.is_empty() || causes.iter().any(|cause| cause["field"] == wanted.field);
        let says = status["message"]
            .as_str()
            .is_some_and(|message| message.contains(wanted.says));
        if answer.status.as_u16() == wanted.code && status["kind"] == "Status" && field && says {
            return None;
        }
        let body = String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned();
        let text = String::from_utf8_lossy(&answer.body[..answer.body.len().min(600)]).into_owned();
        Some(format!(
            "{method} {path} {body}\n    wanted {wanted:?}\n    got {} {text}",
            answer.status
        ))
    }
}

#[tokio::test]
async fn a_malformed_manifest_of_any_kind_is_refused_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let server = ApiServer::start(folder.path()).await.unwrap();
    let client = server.client(TOKEN).unwrap();
    let bench = Bench { server, client };
    let mut wrong = Vec::new();
    for kind in KINDS.iter().filter(|kind| kind.verbs.contains(&"create")) {
        let path = path(kind);
        let content = "application/json";
        let made = bench
            .send(Method::POST, &path, content, valid(kind).to_string().into_bytes())
            .await;
        // Both spellings of events have one name between them.
        let there = [StatusCode::CREATED, StatusCode::CONFLICT].contains(&made.status);
        assert!(there, "{path}: {}", String::from_utf8_lossy(&made.body));
        let before = bench.revision(&path).await;
        let special = of_one_kind(kind).into_iter();
        let special =
            special.map(|(place, value, refusal)| (with(valid(kind), place, value).into_bytes(), content, refusal));
        for (body, content, refusal) in of_every_kind(kind).into_iter().chain(special) {
            let mut tries = vec![(Method::POST, path.clone())];
            if refusal.code == 400 {
                // What is not even read is refused in the same words as a change of what is there.
                tries.push((Method::PUT, format!("{path}/valid")));
            }
            for (method, path) in tries {
                wrong.extend(bench.refused(&method, &path, content, &body, refusal).await);
            }
            assert_eq!(bench.revision(&path).await, before);
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
    bench.server.stop().await;
}

fn path(kind: &KindData) -> String {
    let group = match kind.group {
        "" => format!("/api/{}", kind.version),
        group => format!("/apis/{group}/{}", kind.version),
    };
    let namespace = if kind.namespaced { "/namespaces/default" } else { "" };
    format!("{group}{namespace}/{}", kind.plural)
}
