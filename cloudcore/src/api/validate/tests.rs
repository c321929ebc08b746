use super::*;
use crate::api::codec::{self, FieldValidation};
use crate::api::{defaults, kinds, schema};

fn read(body: &str) -> (&'static KindData, Value) {
    let named = json::parse(body.as_bytes()).unwrap();
    let schema = schema::kind_of(
        named.text_at(&["apiVersion"]).unwrap(),
        named.text_at(&["kind"]).unwrap(),
    )
    .unwrap();
    let kind = kinds::kind(schema.group, schema.version, schema.kind).unwrap();
    let mut object = codec::decode(None, body.as_bytes(), schema, FieldValidation::Strict)
        .unwrap_or_else(|error| panic!("{body}: {error}"))
        .value;
    defaults::apply_defaults(kind, &mut object);
    (kind, object)
}

fn lines(faults: &[FieldError]) -> Vec<String> {
    faults.iter().map(FieldError::line).collect()
}

/// The one fault of a pod with something added to its specification, or to its container.
fn pod(spec: &str, container: &str) -> Vec<String> {
    let (kind, pod) = read(&format!(
        r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"p"}},"spec":{{"containers":[
            {{"name":"c","image":"i"{container}}}]{spec}}}}}"#
    ));
    lines(&validate_create(kind, &pod))
}

#[test]
fn containers() {
    let check = |container: &str, fault: &str| assert_eq!(pod("", container), [fault], "{container}");
    assert!(pod("", "").is_empty());
    let c = "spec.containers[0]";
    check(
        r#","ports":[{"containerPort":0}]"#,
        &format!("{c}.ports[0].containerPort: Required value"),
    );
    check(
        r#","ports":[{"containerPort":1,"hostPort":65536}]"#,
        &format!("{c}.ports[0].hostPort: Invalid value: 65536: must be between 1 and 65535, inclusive"),
    );
    check(
        r#","ports":[{"containerPort":1,"name":"a"},{"containerPort":2,"name":"a"}]"#,
        &format!("{c}.ports[1].name: Duplicate value: \"a\""),
    );
    check(
        r#","ports":[{"containerPort":1,"hostPort":80},{"containerPort":2,"hostPort":80}]"#,
        &format!("{c}.ports[1].hostPort: Duplicate value: \"TCP//80\""),
    );
    check(r#","env":[{"name":""}]"#, &format!("{c}.env[0].name: Required value"));
    check(
        r#","env":[{"name":"A","value":"x","valueFrom":{"secretKeyRef":{"name":"s","key":"k"}}}]"#,
        &format!("{c}.env[0].valueFrom: Invalid value: \"\": may not be specified when `value` is not empty"),
    );
    check(
        r#","env":[{"name":"A","valueFrom":{"configMapKeyRef":{"name":"","key":"k"}}}]"#,
        &format!("{c}.env[0].valueFrom.configMapKeyRef.name: Required value"),
    );
    check(
        r#","envFrom":[{"secretRef":{}}]"#,
        &format!("{c}.envFrom[0].secretRef.name: Required value"),
    );
    check(
        r#","livenessProbe":{}"#,
        &format!("{c}.livenessProbe: Required value: must specify a handler type"),
    );
    check(
        r#","livenessProbe":{"exec":{"command":["x"]},"successThreshold":2}"#,
        &format!("{c}.livenessProbe.successThreshold: Invalid value: 2: must be 1"),
    );
    check(
        r#","readinessProbe":{"exec":{"command":["x"]},"tcpSocket":{"port":1}}"#,
        &format!("{c}.readinessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type"),
    );
    check(
        r#","readinessProbe":{"httpGet":{"port":0}}"#,
        &format!("{c}.readinessProbe.httpGet.port: Invalid value: 0: must be between 1 and 65535, inclusive"),
    );
    check(
        r#","startupProbe":{"exec":{},"periodSeconds":1}"#,
        &format!("{c}.startupProbe.exec.command: Required value"),
    );
    check(
        r#","livenessProbe":{"exec":{"command":["x"]},"initialDelaySeconds":-1}"#,
        &format!("{c}.livenessProbe.initialDelaySeconds: Invalid value: -1: must be greater than or equal to 0"),
    );
    check(
        r#","resources":{"requests":{"memory":"-1"}}"#,
        &format!("{c}.resources.requests[memory]: Invalid value: \"-1\": must be greater than or equal to 0"),
    );
    check(
        r#","securityContext":{"runAsUser":-1}"#,
        &format!("{c}.securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive"),
    );
    check(
        r#","lifecycle":{"preStop":{"exec":{}}}"#,
        &format!("{c}.lifecycle.preStop.exec.command: Required value"),
    );
}

#[test]
fn pod_specifications() {
    let check = |spec: &str, fault: &str| assert_eq!(pod(spec, ""), [fault], "{spec}");
    check(
        r#","volumes":[{"name":"v"},{"name":"v"}]"#,
        "spec.volumes[1].name: Duplicate value: \"v\"",
    );
    check(
        r#","volumes":[{"name":"v","secret":{}}]"#,
        "spec.volumes[0].secret.secretName: Required value",
    );
    check(
        r#","volumes":[{"name":"v","configMap":{}}]"#,
        "spec.volumes[0].configMap.name: Required value",
    );
    check(
        r#","volumes":[{"name":"v","hostPath":{"path":"/a/../b"}}]"#,
        "spec.volumes[0].hostPath.path: Invalid value: \"/a/../b\": must not contain '..'",
    );
    check(
        r#","volumes":[{"name":"v","secret":{"secretName":"s","defaultMode":512}}]"#,
        "spec.volumes[0].secret.defaultMode: Invalid value: 512: must be a number between 0 and 0777 (octal), both inclusive",
    );
    check(
        r#","volumes":[{"name":"v","configMap":{"name":"c","items":[{"key":"k","path":"/x"}]}}]"#,
        "spec.volumes[0].configMap.items[0].path: Invalid value: \"/x\": must be a relative path",
    );
    check(
        r#","activeDeadlineSeconds":0"#,
        "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive",
    );
    check(
        r#","tolerations":[{"key":"k","operator":"Exists","effect":"X"}]"#,
        "spec.tolerations[0].effect: Unsupported value: \"X\": supported values: \"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\"",
    );
    check(
        r#","tolerations":[{"key":"k","operator":"Exists","tolerationSeconds":5}]"#,
        "spec.tolerations[0].effect: Invalid value: \"\": effect must be 'NoExecute' when `tolerationSeconds` is set",
    );
    check(
        r#","tolerations":[{"operator":"Equal"}]"#,
        "spec.tolerations[0].operator: Invalid value: \"Equal\": operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
    );
    check(
        r#","affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"k","operator":"In"}]}]}}}"#,
        "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
    );
    check(
        r#","dnsPolicy":"None""#,
        "spec.dnsConfig: Required value: must provide at least one DNS nameserver when `dnsPolicy` is None",
    );
    check(
        r#","imagePullSecrets":[{}]"#,
        "spec.imagePullSecrets[0].name: Required value",
    );
    check(
        r#","hostAliases":[{"ip":"x"}]"#,
        "spec.hostAliases[0].ip: Invalid value: \"x\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
    );
    check(
        r#","initContainers":[{"name":"i","image":"i","livenessProbe":{"exec":{"command":["x"]}}}]"#,
        "spec.initContainers[0].livenessProbe: Forbidden: may not be set for init containers without restartPolicy=Always",
    );
}

fn create(body: &str) -> Vec<String> {
    let (kind, object) = read(body);
    lines(&validate_create(kind, &object))
}

#[test]
fn other_kinds() {
    let check = |body: &str, faults: &[&str]| assert_eq!(create(body), faults, "{body}");
    check(
        r#"{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"n1"}}"#,
        &[],
    );
    check(
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c","finalizers":["x"]}}"#,
        &[
            "metadata.finalizers[0]: Invalid value: \"x\": name is neither a standard finalizer name nor is it fully qualified",
        ],
    );
    check(
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c","ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"p","uid":""}]}}"#,
        &["metadata.ownerReferences[0].uid: Invalid value: \"\": must not be empty"],
    );
    check(
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":{"k":"v"},"binaryData":{"k":"YQ=="}}"#,
        &["data[k]: Invalid value: \"k\": duplicate of key present in binaryData"],
    );
    check(
        r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"},"type":"kubernetes.io/basic-auth"}"#,
        &["data[username]: Required value", "data[password]: Required value"],
    );
    check(
        r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"s"},"spec":{"type":"ExternalName"}}"#,
        &["spec.externalName: Required value"],
    );
    check(
        r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"s"},"spec":{"ports":[{"port":0}]}}"#,
        &[
            "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
            "spec.ports[0].targetPort: Invalid value: 0: must be between 1 and 65535, inclusive",
        ],
    );
    check(
        r#"{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"l"},"spec":{"leaseDurationSeconds":0}}"#,
        &["spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0"],
    );
    check(
        r#"{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"name":"e"},"addressType":"IPv4","endpoints":[{"addresses":["x"]}]}"#,
        &["endpoints[0].addresses[0]: Invalid value: \"x\": must be a valid IPv4 address"],
    );
    check(
        r#"{"apiVersion":"apps/v1","kind":"DaemonSet","metadata":{"name":"d"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}"#,
        &["spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\""],
    );
    check(
        r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"},"spec":{"strategy":{"rollingUpdate":{"maxSurge":0,"maxUnavailable":0}},"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}"#,
        &["spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0"],
    );
}

fn update(old: &str, new: &str) -> Vec<String> {
    let ((kind, old), (_, new)) = (read(old), read(new));
    lines(&validate_update(kind, &old, &new))
}

#[test]
fn what_never_changes() {
    let service = |address: &str| {
        format!(
            r#"{{"apiVersion":"v1","kind":"Service","metadata":{{"name":"s"}},"spec":{{"clusterIP":"{address}","ports":[{{"port":1}}]}}}}"#
        )
    };
    assert!(update(&service("10.0.0.1"), &service("10.0.0.1")).is_empty());
    assert_eq!(
        update(&service("10.0.0.1"), &service("10.0.0.2")),
        ["spec.clusterIPs[0]: Invalid value: [\"10.0.0.2\"]: may not change once set"]
    );
    let secret =
        |kind: &str| format!(r#"{{"apiVersion":"v1","kind":"Secret","metadata":{{"name":"s"}},"type":"{kind}"}}"#);
    assert_eq!(
        update(&secret("a"), &secret("b")),
        ["type: Invalid value: \"b\": field is immutable"]
    );
    let named =
        |uid: &str| format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"c","uid":"{uid}"}}}}"#);
    assert_eq!(
        update(&named("a"), &named("b")),
        ["metadata.uid: Invalid value: \"b\": field is immutable"]
    );
    let dying = |finalizer: &str| {
        format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"c","deletionTimestamp":"2026-01-01T00:00:00Z","finalizers":["a/b"{finalizer}]}}}}"#
        )
    };
    assert!(update(&dying(""), &dying("")).is_empty());
    assert_eq!(
        update(&dying(""), &dying(r#","a/c""#)),
        [
            "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{\"a/c\"}"
        ]
    );
    let pod = |spec: &str| {
        format!(
            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"p"}},"spec":{{"containers":[{{"name":"c","image":"i"}}]{spec}}}}}"#
        )
    };
    assert!(update(&pod(""), &pod(r#","activeDeadlineSeconds":5"#)).is_empty());
    assert_eq!(
        update(
            &pod(r#","activeDeadlineSeconds":5"#),
            &pod(r#","activeDeadlineSeconds":6"#)
        ),
        ["spec.activeDeadlineSeconds: Invalid value: 6: must be less than or equal to previous value"]
    );
    let changed = update(&pod(""), &pod(r#","hostname":"h""#));
    assert!(changed[0].ends_with("\nspec.hostname"), "{changed:?}");
}

#[test]
fn contents_have_limits() {
    let sized = |length: usize| {
        let value = "x".repeat(length);
        create(&format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"c"}},"data":{{"k":"{value}"}}}}"#
        ))
    };
    assert!(sized(misc::DATA_BYTES_MAX).is_empty());
    assert_eq!(
        sized(misc::DATA_BYTES_MAX + 1),
        [": Too long: may not be more than 1048576 bytes"]
    );
    let annotated = |length: usize| {
        let value = "x".repeat(length - 1);
        create(&format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"c","annotations":{{"k":"{value}"}}}}}}"#
        ))
    };
    assert!(annotated(meta::ANNOTATIONS_BYTES_MAX).is_empty());
    assert_eq!(annotated(meta::ANNOTATIONS_BYTES_MAX + 1).len(), 1);
    let labelled = |count: usize| {
        let labels: Vec<String> = (0..count).map(|at| format!(r#""{at} ":"""#)).collect();
        let labels = labels.join(",");
        create(&format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"c","labels":{{{labels}}}}}}}"#
        ))
    };
    assert_eq!(labelled(FAULTS_MAX).len(), FAULTS_MAX);
    assert_eq!(labelled(FAULTS_MAX + 1).len(), FAULTS_MAX);
}

#[test]
fn endpoint_slices_have_limits() {
    let sliced = |endpoints: usize, addresses: usize| {
        let addresses = vec![r#""10.0.0.1""#; addresses].join(",");
        let endpoints = vec![format!(r#"{{"addresses":[{addresses}]}}"#); endpoints].join(",");
        create(&format!(
            r#"{{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{{"name":"e"}},"addressType":"IPv4","endpoints":[{endpoints}]}}"#
        ))
    };
    assert!(sliced(misc::ENDPOINTS_MAX, 1).is_empty());
    assert_eq!(
        sliced(misc::ENDPOINTS_MAX + 1, 1),
        ["endpoints: Too many: 1001: must have at most 1000 items"]
    );
    assert!(sliced(1, misc::ADDRESSES_MAX).is_empty());
    assert_eq!(
        sliced(1, misc::ADDRESSES_MAX + 1),
        ["endpoints[0].addresses: Too many: 101: must have at most 100 items"]
    );
}

#[test]
fn faults_are_said_once_and_counted_all() {
    let fault = FieldError {
        fault: Fault::Required,
        field: "a".to_owned(),
        message: "Required value".to_owned(),
    };
    let twice = [fault.clone(), fault];
    assert_eq!(
        invalid_message("", "Pod", "p", &twice),
        "Pod \"p\" is invalid: a: Required value"
    );
    let [first, mut second] = twice;
    second.field = "b".to_owned();
    assert_eq!(
        invalid_message("apps", "Deployment", "d", &[first, second]),
        "Deployment.apps \"d\" is invalid: [a: Required value, b: Required value]"
    );
}
