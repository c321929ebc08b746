//! The defaults of pods and of the templates of pods.

use proto::object::quantity::Quantity;
use proto::value::Value;

use super::{at, default, each, push};

/// `0644`, what files of volumes are made with.
const FILE_MODE: i64 = 0o644;

/// The sources of a volume that have a default themselves.
const SOURCES_WITH_MODE: [&str; 4] = ["secret", "configMap", "downwardAPI", "projected"];

/// How long a pod stays on a node that is not ready or not reachable.
const TOLERATION_SECONDS: i64 = 300;

/// Names of priorities that are always there.
const PRIORITIES: [(&str, i64); 2] = [
    ("system-node-critical", 2_000_001_000),
    ("system-cluster-critical", 2_000_000_000),
];

/// The defaults of every pod specification.
pub(super) fn spec(spec: &mut Value) {
    default(spec, "dnsPolicy", "ClusterFirst");
    default(spec, "restartPolicy", "Always");
    default(spec, "terminationGracePeriodSeconds", 30);
    default(spec, "schedulerName", "default-scheduler");
    at(spec, "securityContext");
    each(spec, "volumes", volume);
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        each(spec, list, container);
    }
    let account = spec.text_at(&["serviceAccountName"]).unwrap_or_default().to_owned();
    let deprecated = spec.text_at(&["serviceAccount"]).unwrap_or_default().to_owned();
    match (account.is_empty(), deprecated.is_empty()) {
        (false, _) => spec.set(&["serviceAccount"], account),
        (true, false) => spec.set(&["serviceAccountName"], deprecated),
        (true, true) => {}
    }
}

/// The defaults of pods that templates do not have.
pub(super) fn spec_of_pod(spec: &mut Value) {
    default(spec, "enableServiceLinks", true);
    let host_network = spec.flag_at(&["hostNetwork"]);
    for list in ["initContainers", "containers"] {
        each(spec, list, |container| {
            if host_network {
                each(container, "ports", |port| {
                    if let Some(number) = port.get("containerPort").cloned() {
                        default(port, "hostPort", number);
                    }
                });
            }
            let limits = container.at(&["resources", "limits"]).and_then(Value::as_map).cloned();
            for (name, amount) in limits.into_iter().flatten() {
                let resources = at(container, "resources");
                default(at(resources, "requests"), &name, amount);
            }
        });
    }
}

/// What admission gives a pod: an account, tolerations, a priority.
pub(super) fn admit(spec: &mut Value) {
    default(spec, "serviceAccountName", "default");
    default(spec, "serviceAccount", "default");
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let tolerated = spec.list_at(&["tolerations"]).iter().any(|one| {
            let key_matches = one.text_at(&["key"]).is_none_or(|own| own == key);
            let effect_matches = one.text_at(&["effect"]).is_none_or(|own| own == "NoExecute");
            key_matches && effect_matches
        });
        if !tolerated {
            let toleration = Value::from([
                ("key", Value::from(key)),
                ("operator", Value::from("Exists")),
                ("effect", Value::from("NoExecute")),
                ("tolerationSeconds", Value::from(TOLERATION_SECONDS)),
            ]);
            push(spec, "tolerations", toleration);
        }
    }
    let class = spec.text_at(&["priorityClassName"]).unwrap_or_default();
    let known = PRIORITIES.iter().find(|(name, _)| *name == class);
    let priority = known.map_or(0, |(_, priority)| *priority);
    default(spec, "priority", priority);
    default(spec, "preemptionPolicy", "PreemptLowerPriority");
}

fn container(container: &mut Value) {
    default(container, "terminationMessagePath", "/dev/termination-log");
    default(container, "terminationMessagePolicy", "File");
    let image = container.text_at(&["image"]).unwrap_or_default();
    let policy = if is_latest(image) { "Always" } else { "IfNotPresent" };
    default(container, "imagePullPolicy", policy);
    at(container, "resources");
    each(container, "ports", |port| default(port, "protocol", "TCP"));
    each(container, "env", |variable| {
        let Some(source) = variable.as_map_mut().and_then(|map| map.get_mut("valueFrom")) else {
            return;
        };
        downward(source, "resourceFieldRef");
    });
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let Some(probe) = container.as_map_mut().and_then(|map| map.get_mut(probe)) else {
            continue;
        };
        for (field, number) in [
            ("timeoutSeconds", 1),
            ("periodSeconds", 10),
            ("successThreshold", 1),
            ("failureThreshold", 3),
        ] {
            default(probe, field, number);
        }
        action(probe);
    }
    if let Some(lifecycle) = container.as_map_mut().and_then(|map| map.get_mut("lifecycle")) {
        for hook in ["postStart", "preStop"] {
            if let Some(hook) = lifecycle.as_map_mut().and_then(|map| map.get_mut(hook)) {
                action(hook);
            }
        }
    }
}

/// The defaults of what a probe or a hook does.
fn action(handler: &mut Value) {
    if let Some(get) = handler.as_map_mut().and_then(|map| map.get_mut("httpGet")) {
        default(get, "path", "/");
        default(get, "scheme", "HTTP");
    }
    if let Some(grpc) = handler.as_map_mut().and_then(|map| map.get_mut("grpc")) {
        default(grpc, "service", "");
    }
}

/// The defaults of a source that reads the pod's own fields.
fn downward(source: &mut Value, resource: &str) {
    if let Some(field) = source.as_map_mut().and_then(|map| map.get_mut("fieldRef")) {
        default(field, "apiVersion", "v1");
    }
    if let Some(field) = source.as_map_mut().and_then(|map| map.get_mut(resource)) {
        default(field, "divisor", "0");
    }
}

fn volume(volume: &mut Value) {
    if volume.as_map().is_none_or(|map| map.len() < 2) {
        volume.set(&["emptyDir"], Value::map());
    }
    let Some(map) = volume.as_map_mut() else { return };
    for source in SOURCES_WITH_MODE {
        if let Some(source) = map.get_mut(source) {
            default(source, "defaultMode", FILE_MODE);
        }
    }
    if let Some(path) = map.get_mut("hostPath")
        && path.get("type").is_none()
    {
        path.set(&["type"], "");
    }
    if let Some(source) = map.get_mut("downwardAPI") {
        each(source, "items", |item| downward(item, "resourceFieldRef"));
    }
    if let Some(projected) = map.get_mut("projected") {
        each(projected, "sources", |source| {
            let Some(source) = source.as_map_mut() else { return };
            if let Some(token) = source.get_mut("serviceAccountToken") {
                default(token, "expirationSeconds", 3600);
            }
            if let Some(files) = source.get_mut("downwardAPI") {
                each(files, "items", |item| downward(item, "resourceFieldRef"));
            }
        });
    }
}

/// Whether an image names no tag or `latest`, and no digest.
fn is_latest(image: &str) -> bool {
    if image.contains('@') {
        return false;
    }
    let last = image.rsplit('/').next().unwrap_or(image);
    match last.rsplit_once(':') {
        Some((_, tag)) => tag == "latest",
        None => true,
    }
}

/// The quality of service that follows from the resources of a pod's containers.
pub fn qos_class(pod: &Value) -> &'static str {
    let containers = pod.list_at(&["spec", "containers"]).iter();
    let (mut any, mut all) = (false, true);
    for container in containers.chain(pod.list_at(&["spec", "initContainers"])) {
        for resource in ["cpu", "memory"] {
            let amount = |list: &str| -> Option<Quantity> {
                let amount: Quantity = container.text_at(&["resources", list, resource])?.parse().ok()?;
                (amount.milli() != 0).then_some(amount)
            };
            let (request, limit) = (amount("requests"), amount("limits"));
            any |= request.is_some() || limit.is_some();
            all &= limit.is_some() && request.is_none_or(|request| Some(request) == limit);
        }
    }
    match (any, all) {
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
        (false, _) => "BestEffort",
    }
}
