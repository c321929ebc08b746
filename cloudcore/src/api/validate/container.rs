//! The rules of containers: ports, environment, mounts, probes, resources.

use std::collections::BTreeSet;

use proto::object::quantity::Quantity;
use proto::value::Value;

use super::{Faults, list, names, text};

/// Resources that need no domain.
const STANDARD_RESOURCES: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];
pub(super) const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];

/// Pod fields that variables may hold.
const POD_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// What holds for the containers of one list.
#[derive(Debug)]
pub(super) struct Rules<'p> {
    pub(super) host_network: bool,
    pub(super) volumes: &'p BTreeSet<&'p str>,
    pub(super) with_probes: bool,
    pub(super) init: bool,
    /// Host ports are counted over these containers only.
    pub(super) counts_ports: bool,
}

/// The ports of the host that a pod takes.
#[derive(Debug, Default)]
pub(super) struct Ports {
    taken: BTreeSet<String>,
}

pub(super) fn name<'p>(container: &'p Value, field: &str, seen: &mut BTreeSet<&'p str>, faults: &mut Faults) {
    let name = text(container, "name");
    let field = format!("{field}.name");
    if name.is_empty() {
        faults.required(field, "");
        return;
    }
    faults.invalid_texts(&field, name, names::label(name));
    if !seen.insert(name) {
        faults.duplicate(field, &Value::from(name));
    }
}

pub(super) fn body(container: &Value, field: &str, rules: &Rules<'_>, ports: &mut Ports, faults: &mut Faults) {
    let image = text(container, "image");
    if image.is_empty() {
        faults.required(format_args!("{field}.image"), "");
    } else if image.trim() != image {
        faults.invalid_text(
            format_args!("{field}.image"),
            image,
            "must not have leading or trailing whitespace",
        );
    }
    for hook in ["postStart", "preStop"] {
        if let Some(hook_value) = container.at(&["lifecycle", hook]) {
            let actions = ["exec", "httpGet", "tcpSocket", "sleep"];
            handler(hook_value, &format!("{field}.lifecycle.{hook}"), &actions, faults);
        }
    }
    if rules.with_probes {
        probes(container, field, faults);
    } else if rules.init {
        for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
            if container.get(probe).is_some() {
                let words = "may not be set for init containers without restartPolicy=Always";
                faults.forbidden(format_args!("{field}.{probe}"), words);
            }
        }
    }
    container_ports(container, field, rules, ports, faults);
    environment(container, field, faults);
    mounts(container, field, rules, faults);
    let policy = text(container, "imagePullPolicy");
    faults.one_of(format_args!("{field}.imagePullPolicy"), policy, &PULL_POLICIES);
    resources(container, field, faults);
    if let Some(security) = container.get("securityContext") {
        identity(security, &format!("{field}.securityContext"), faults);
    }
    let policy = text(container, "terminationMessagePolicy");
    let policies = ["FallbackToLogsOnError", "File"];
    faults.one_of(format_args!("{field}.terminationMessagePolicy"), policy, &policies);
}

fn container_ports(container: &Value, field: &str, rules: &Rules<'_>, taken: &mut Ports, faults: &mut Faults) {
    let mut seen = BTreeSet::new();
    for (index, port) in list(container, "ports").iter().enumerate() {
        let field = format!("{field}.ports[{index}]");
        let name = text(port, "name");
        if !name.is_empty() {
            let wrong = names::port_name(name);
            if !wrong.is_empty() {
                faults.invalid_texts(format_args!("{field}.name"), name, wrong);
            } else if !seen.insert(name) {
                faults.duplicate(format_args!("{field}.name"), &Value::from(name));
            }
        }
        let number = port.int_at(&["containerPort"]).unwrap_or(0);
        if number == 0 {
            faults.required(format_args!("{field}.containerPort"), "");
        } else {
            for words in names::port_number(number) {
                faults.invalid(format_args!("{field}.containerPort"), &Value::I64(number), &words);
            }
        }
        let host = port.int_at(&["hostPort"]).unwrap_or(0);
        if host != 0 {
            for words in names::port_number(host) {
                faults.invalid(format_args!("{field}.hostPort"), &Value::I64(host), &words);
            }
            if rules.host_network && host != number {
                let words = "must match `containerPort` when `hostNetwork` is true";
                faults.invalid(format_args!("{field}.hostPort"), &Value::I64(host), words);
            }
        }
        let protocol = text(port, "protocol");
        faults.one_of(format_args!("{field}.protocol"), protocol, &PROTOCOLS);
        if host != 0 && rules.counts_ports {
            let taking = format!("{protocol}/{}/{host}", text(port, "hostIP"));
            if !taken.taken.insert(taking.clone()) {
                faults.duplicate(format_args!("{field}.hostPort"), &Value::from(taking));
            }
        }
    }
}

fn environment(container: &Value, field: &str, faults: &mut Faults) {
    for (index, variable) in list(container, "env").iter().enumerate() {
        let field = format!("{field}.env[{index}]");
        let name = text(variable, "name");
        if name.is_empty() {
            faults.required(format_args!("{field}.name"), "");
        } else {
            faults.invalid_texts(format_args!("{field}.name"), name, names::variable(name));
        }
        if let Some(source) = variable.get("valueFrom") {
            value_from(
                source,
                !text(variable, "value").is_empty(),
                &format!("{field}.valueFrom"),
                faults,
            );
        }
    }
    for (index, source) in list(container, "envFrom").iter().enumerate() {
        let field = format!("{field}.envFrom[{index}]");
        let prefix = text(source, "prefix");
        if !prefix.is_empty() {
            faults.invalid_texts(format_args!("{field}.prefix"), prefix, names::variable(prefix));
        }
        let set: Vec<&str> = ["configMapRef", "secretRef"]
            .into_iter()
            .filter(|one| source.get(one).is_some())
            .collect();
        for one in &set {
            if source.text_at(&[one, "name"]).unwrap_or_default().is_empty() {
                faults.required(format_args!("{field}.{one}.name"), "");
            }
        }
        match set.len() {
            0 => faults.invalid_text(&field, "", "must specify one of: `configMapRef` or `secretRef`"),
            1 => {}
            _ => faults.invalid_text(&field, "", "may not have more than one field specified at a time"),
        }
    }
}

fn value_from(source: &Value, with_value: bool, field: &str, faults: &mut Faults) {
    let mut set = 0;
    if let Some(reference) = source.get("fieldRef") {
        set += 1;
        let path = text(reference, "fieldPath");
        if path.is_empty() {
            faults.required(format_args!("{field}.fieldRef.fieldPath"), "");
        } else if !POD_FIELDS.contains(&path) && !is_metadata_entry(path) {
            faults.not_supported(format_args!("{field}.fieldRef.fieldPath"), path, &POD_FIELDS);
        }
    }
    if let Some(reference) = source.get("resourceFieldRef") {
        set += 1;
        if text(reference, "resource").is_empty() {
            faults.required(format_args!("{field}.resourceFieldRef.resource"), "");
        }
    }
    for part in ["configMapKeyRef", "secretKeyRef"] {
        let Some(reference) = source.get(part) else { continue };
        set += 1;
        if text(reference, "name").is_empty() {
            faults.required(format_args!("{field}.{part}.name"), "");
        }
        let key = text(reference, "key");
        if key.is_empty() {
            faults.required(format_args!("{field}.{part}.key"), "");
        } else {
            faults.invalid_texts(format_args!("{field}.{part}.key"), key, names::config_key(key));
        }
    }
    set += usize::from(source.get("fileKeyRef").is_some());
    match set {
        0 => {
            let words = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`";
            faults.invalid_text(field, "", words);
        }
        _ if with_value => faults.invalid_text(field, "", "may not be specified when `value` is not empty"),
        1 => {}
        _ => faults.invalid_text(field, "", "may not have more than one field specified at a time"),
    }
}

/// `metadata.labels['x']` and `metadata.annotations['x']`.
fn is_metadata_entry(path: &str) -> bool {
    let entry = path
        .strip_prefix("metadata.labels['")
        .or_else(|| path.strip_prefix("metadata.annotations['"))
        .and_then(|rest| rest.strip_suffix("']"));
    entry.is_some_and(|key| names::qualified(key).is_empty())
}

fn mounts(container: &Value, field: &str, rules: &Rules<'_>, faults: &mut Faults) {
    let mut seen = BTreeSet::new();
    for (index, mount) in list(container, "volumeMounts").iter().enumerate() {
        let field = format!("{field}.volumeMounts[{index}]");
        let (name, path) = (text(mount, "name"), text(mount, "mountPath"));
        if name.is_empty() {
            faults.required(format_args!("{field}.name"), "");
        } else if !rules.volumes.contains(name) {
            faults.not_found(format_args!("{field}.name"), name);
        }
        if path.is_empty() {
            faults.required(format_args!("{field}.mountPath"), "");
        } else if !seen.insert(path) {
            faults.invalid_text(format_args!("{field}.mountPath"), path, "must be unique");
        }
        let below = text(mount, "subPath");
        if below.starts_with('/') {
            faults.invalid_text(format_args!("{field}.subPath"), below, "must be a relative path");
        }
        if below.split('/').any(|step| step == "..") {
            faults.invalid_text(format_args!("{field}.subPath"), below, "must not contain '..'");
        }
    }
}

fn probes(container: &Value, field: &str, faults: &mut Faults) {
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let Some(probe) = container.get(name) else { continue };
        let field = format!("{field}.{name}");
        handler(probe, &field, &["exec", "httpGet", "tcpSocket", "grpc"], faults);
        for number in [
            "initialDelaySeconds",
            "timeoutSeconds",
            "periodSeconds",
            "successThreshold",
            "failureThreshold",
        ] {
            faults.not_negative(format_args!("{field}.{number}"), probe.get(number));
        }
        if let Some(grace) = probe.get("terminationGracePeriodSeconds") {
            if name == "readinessProbe" {
                let words = "must not be set for readinessProbes";
                faults.invalid(format_args!("{field}.terminationGracePeriodSeconds"), grace, words);
            } else if grace.as_i64().is_none_or(|grace| grace <= 0) {
                let words = "must be greater than 0";
                faults.invalid(format_args!("{field}.terminationGracePeriodSeconds"), grace, words);
            }
        }
        if let Some(threshold) = probe.get("successThreshold")
            && name != "readinessProbe"
            && threshold.as_i64() != Some(1)
        {
            faults.invalid(format_args!("{field}.successThreshold"), threshold, "must be 1");
        }
    }
}

/// What a probe or a hook does: exactly one of a few things.
fn handler(handler: &Value, field: &str, actions: &[&str], faults: &mut Faults) {
    let mut set = 0;
    for name in actions {
        let Some(action) = handler.get(name) else { continue };
        let field = format!("{field}.{name}");
        set += 1;
        if set > 1 {
            faults.forbidden(field, "may not specify more than 1 handler type");
            continue;
        }
        match *name {
            "exec" if list(action, "command").is_empty() => faults.required(format_args!("{field}.command"), ""),
            "httpGet" => {
                if text(action, "path").is_empty() {
                    faults.required(format_args!("{field}.path"), "");
                }
                port(action.get("port"), &format!("{field}.port"), faults);
                faults.one_of(
                    format_args!("{field}.scheme"),
                    text(action, "scheme"),
                    &["HTTP", "HTTPS"],
                );
            }
            "tcpSocket" | "grpc" => port(action.get("port"), &format!("{field}.port"), faults),
            _ => {}
        }
    }
    if set == 0 {
        faults.required(field, "must specify a handler type");
    }
}

/// A port by number or name.
pub(super) fn port(port: Option<&Value>, field: &str, faults: &mut Faults) {
    match port {
        Some(Value::Text(name)) => faults.invalid_texts(field, name, names::port_name(name)),
        Some(value) => {
            for words in names::port_number(value.as_i64().unwrap_or(0)) {
                faults.invalid(field, value, &words);
            }
        }
        None => faults.invalid(field, &Value::I64(0), "must be between 1 and 65535, inclusive"),
    }
}

fn resources(container: &Value, field: &str, faults: &mut Faults) {
    let Some(resources) = container.get("resources") else {
        return;
    };
    let amounts = |part: &str| resources.at(&[part]).and_then(Value::as_map);
    for part in ["limits", "requests"] {
        for (name, amount) in amounts(part).into_iter().flatten() {
            let field = format!("{field}.resources.{part}");
            if !name.contains('/') && !STANDARD_RESOURCES.contains(&name) && !name.starts_with("hugepages-") {
                let field = format!("{field}[{name}]");
                faults.invalid_text(&field, name, "must be a standard resource type or fully qualified");
                faults.invalid_text(&field, name, "must be a standard resource for containers");
            } else {
                faults.invalid_texts(format_args!("{field}[{name}]"), name, names::qualified(name));
            }
            if quantity(amount).is_some_and(Quantity::is_negative) {
                let words = "must be greater than or equal to 0";
                faults.invalid(format_args!("{field}[{name}]"), amount, words);
            }
            let limit = amounts("limits").and_then(|limits| limits.get(name));
            if part == "requests"
                && let Some(limit) = limit
                && let (Some(request), Some(most)) = (quantity(amount), quantity(limit))
                && request > most
            {
                let shown = limit.as_text().unwrap_or_default();
                let words = format!("must be less than or equal to {name} limit of {shown}");
                faults.invalid(&field, amount, &words);
            }
        }
    }
}

fn quantity(amount: &Value) -> Option<Quantity> {
    amount.as_text()?.parse().ok()
}

/// The user and the group of a security context.
pub(super) fn identity(security: &Value, field: &str, faults: &mut Faults) {
    for part in ["runAsUser", "runAsGroup"] {
        if let Some(value) = security.get(part)
            && value
                .as_i64()
                .is_some_and(|id| !(0..=i64::from(i32::MAX)).contains(&id))
        {
            faults.invalid(
                format_args!("{field}.{part}"),
                value,
                "must be between 0 and 2147483647, inclusive",
            );
        }
    }
    if security.flag_at(&["privileged"]) && security.at(&["allowPrivilegeEscalation"]) == Some(&Value::Bool(false)) {
        let words = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
        faults.invalid(field, security, words);
    }
}
