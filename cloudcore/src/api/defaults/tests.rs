use proto::value::json;

use super::*;
use crate::api::codec::{self, FieldValidation};
use crate::api::{kinds, schema};

fn defaulted(body: &str) -> Value {
    let named = json::parse(body.as_bytes()).unwrap();
    let schema = schema::kind_of(
        named.text_at(&["apiVersion"]).unwrap(),
        named.text_at(&["kind"]).unwrap(),
    )
    .unwrap();
    let kind = kinds::kind(schema.group, schema.version, schema.kind).unwrap();
    let mut object = codec::decode(None, body.as_bytes(), schema, FieldValidation::Strict)
        .unwrap()
        .value;
    apply_defaults(kind, &mut object);
    let once = object.clone();
    apply_defaults(kind, &mut object);
    assert_eq!(once, object, "defaults are idempotent");
    object
}

#[test]
fn what_is_set_stays() {
    let pod = defaulted(
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"restartPolicy":"Never",
            "terminationGracePeriodSeconds":0,"enableServiceLinks":false,"containers":[{"name":"c","image":"x:latest",
            "imagePullPolicy":"Never","resources":{"limits":{"cpu":"1"},"requests":{"cpu":"500m"}}}]}}"#,
    );
    assert_eq!(pod.text_at(&["spec", "restartPolicy"]), Some("Never"));
    assert_eq!(pod.int_at(&["spec", "terminationGracePeriodSeconds"]), Some(0));
    assert_eq!(pod.at(&["spec", "enableServiceLinks"]), Some(&Value::Bool(false)));
    assert_eq!(
        pod.text_at(&["spec", "containers", "0", "imagePullPolicy"]),
        Some("Never")
    );
    assert_eq!(
        pod.text_at(&["spec", "containers", "0", "resources", "requests", "cpu"]),
        Some("500m")
    );
    assert_eq!(qos_class(&pod), "Burstable");
}

#[test]
fn images_without_a_fixed_tag_are_pulled_always() {
    for (image, policy) in [
        ("nginx", "Always"),
        ("nginx:latest", "Always"),
        ("host:5000/nginx", "Always"),
        ("host:5000/nginx:1", "IfNotPresent"),
        ("nginx@sha256:0", "IfNotPresent"),
    ] {
        let pod = defaulted(&format!(
            r#"{{"apiVersion":"v1","kind":"Pod","spec":{{"containers":[{{"name":"c","image":"{image}"}}]}}}}"#
        ));
        assert_eq!(
            pod.text_at(&["spec", "containers", "0", "imagePullPolicy"]),
            Some(policy),
            "{image}"
        );
    }
}

#[test]
fn kinds_get_their_defaults() {
    let daemons = defaulted(
        r#"{"apiVersion":"apps/v1","kind":"DaemonSet","spec":{"selector":{"matchLabels":{"a":"b"}},"template":{}}}"#,
    );
    assert_eq!(
        daemons.int_at(&["spec", "updateStrategy", "rollingUpdate", "maxUnavailable"]),
        Some(1)
    );
    assert_eq!(daemons.int_at(&["spec", "revisionHistoryLimit"]), Some(10));
    let namespace = defaulted(r#"{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"n"}}"#);
    assert_eq!(
        namespace.text_at(&["metadata", "labels", "kubernetes.io/metadata.name"]),
        Some("n")
    );
    assert_eq!(namespace.text_at(&["spec", "finalizers", "0"]), Some("kubernetes"));
    let secret = defaulted(r#"{"apiVersion":"v1","kind":"Secret","data":{"a":"YQ=="},"stringData":{"a":"b"}}"#);
    assert_eq!(json::write(secret.get("data").unwrap()), r#"{"a":"Yg=="}"#);
    let zero = defaulted(r#"{"apiVersion":"apps/v1","kind":"Deployment","spec":{"replicas":0}}"#);
    assert_eq!(zero.int_at(&["spec", "replicas"]), Some(0));
}

#[test]
fn a_new_node_takes_no_pods() {
    let kind = kinds::kind("", "v1", "Node").unwrap();
    let mut node = Value::map();
    admit(kind, &mut node);
    admit(kind, &mut node);
    assert_eq!(node.list_at(&["spec", "taints"]).len(), 1);
}
