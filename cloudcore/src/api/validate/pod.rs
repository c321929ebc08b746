//! The rules of pods and of pod templates.

use std::collections::{BTreeMap, BTreeSet};

use proto::value::Value;

use crate::api::kinds::KindData;
use crate::api::quote::Quoted;

use super::container::{self, Ports};
use super::{Faults, list, meta, names, node, selector, text, volume};

/// What an update of a pod may change.
const MUTABLE: &str = "pod updates may not change fields other than \
    `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only \
    additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was \
    previously negative)";

const CONTAINER_LISTS: [&str; 2] = ["containers", "initContainers"];

pub(super) fn body(object: &Value, faults: &mut Faults) {
    let nothing = Value::map();
    spec(object.get("spec").unwrap_or(&nothing), "spec", faults);
}

/// A pod specification at a path.
pub(super) fn spec(spec: &Value, field: &str, faults: &mut Faults) {
    let at = |part: &str| format!("{field}.{part}");
    let volumes = volume::all(list(spec, "volumes"), &at("volumes"), faults);
    containers(spec, field, &volumes, faults);
    let policies = ["Always", "OnFailure", "Never"];
    faults.one_of(at("restartPolicy"), text(spec, "restartPolicy"), &policies);
    let policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    faults.one_of(at("dnsPolicy"), text(spec, "dnsPolicy"), &policies);
    meta::labels(
        spec.at(&["nodeSelector"]).and_then(Value::as_map),
        &at("nodeSelector"),
        faults,
    );
    if let Some(security) = spec.get("securityContext") {
        container::identity(security, &at("securityContext"), faults);
        faults.not_negative(at("securityContext.fsGroup"), security.get("fsGroup"));
    }
    for (index, secret) in list(spec, "imagePullSecrets").iter().enumerate() {
        if text(secret, "name").is_empty() {
            faults.required(format_args!("{field}.imagePullSecrets[{index}].name"), "");
        }
    }
    affinity(spec, field, faults);
    dns(spec, field, faults);
    for (index, gate) in list(spec, "readinessGates").iter().enumerate() {
        let name = text(gate, "conditionType");
        faults.invalid_texts(
            format_args!("{field}.readinessGates[{index}].conditionType"),
            name,
            names::qualified(name),
        );
    }
    for part in ["serviceAccountName", "nodeName"] {
        let name = text(spec, part);
        if !name.is_empty() {
            faults.invalid_texts(at(part), name, names::subdomain(name));
        }
    }
    if let Some(deadline) = spec.get("activeDeadlineSeconds")
        && !deadline
            .as_i64()
            .is_some_and(|seconds| (1..=i64::from(i32::MAX)).contains(&seconds))
    {
        faults.invalid(
            at("activeDeadlineSeconds"),
            deadline,
            "must be between 1 and 2147483647, inclusive",
        );
    }
    for part in ["hostname", "subdomain"] {
        let name = text(spec, part);
        if !name.is_empty() {
            faults.invalid_texts(at(part), name, names::label(name));
        }
    }
    tolerations(spec, field, faults);
    host_aliases(spec, field, faults);
    for part in ["priorityClassName", "runtimeClassName"] {
        let name = text(spec, part);
        if !name.is_empty() {
            faults.invalid_texts(at(part), name, names::subdomain(name));
        }
    }
    spread(spec, field, faults);
}

fn containers(spec: &Value, field: &str, volumes: &BTreeSet<&str>, faults: &mut Faults) {
    let host_network = spec.flag_at(&["hostNetwork"]);
    let mut seen = BTreeSet::new();
    let mut ports = Ports::default();
    if list(spec, "containers").is_empty() {
        faults.required(format_args!("{field}.containers"), "");
    }
    for part in ["containers", "initContainers", "ephemeralContainers"] {
        for (index, one) in list(spec, part).iter().enumerate() {
            let field = format!("{field}.{part}[{index}]");
            let rules = container::Rules {
                host_network,
                volumes,
                with_probes: part == "containers" || text(one, "restartPolicy") == "Always",
                init: part == "initContainers",
                counts_ports: part == "containers",
            };
            container::name(one, &field, &mut seen, faults);
            container::body(one, &field, &rules, &mut ports, faults);
        }
    }
}

fn affinity(spec: &Value, field: &str, faults: &mut Faults) {
    let required = [
        "affinity",
        "nodeAffinity",
        "requiredDuringSchedulingIgnoredDuringExecution",
    ];
    let node = format!("{field}.affinity.nodeAffinity");
    if let Some(required) = spec.at(&required) {
        let field = format!("{node}.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms");
        selector::node_terms(list(required, "nodeSelectorTerms"), &field, faults);
    }
    let preferred = [
        "affinity",
        "nodeAffinity",
        "preferredDuringSchedulingIgnoredDuringExecution",
    ];
    for (index, term) in spec.list_at(&preferred).iter().enumerate() {
        let field = format!("{node}.preferredDuringSchedulingIgnoredDuringExecution[{index}]");
        weight(term, &field, faults);
        if let Some(preference) = term.get("preference") {
            selector::node_term(preference, &format!("{field}.preference"), faults);
        }
    }
    for sort in ["podAffinity", "podAntiAffinity"] {
        let required = ["affinity", sort, "requiredDuringSchedulingIgnoredDuringExecution"];
        for (index, term) in spec.list_at(&required).iter().enumerate() {
            let field = format!("{field}.affinity.{sort}.requiredDuringSchedulingIgnoredDuringExecution[{index}]");
            pod_term(term, &field, faults);
        }
        let preferred = ["affinity", sort, "preferredDuringSchedulingIgnoredDuringExecution"];
        for (index, term) in spec.list_at(&preferred).iter().enumerate() {
            let field = format!("{field}.affinity.{sort}.preferredDuringSchedulingIgnoredDuringExecution[{index}]");
            weight(term, &field, faults);
            if let Some(term) = term.get("podAffinityTerm") {
                pod_term(term, &format!("{field}.podAffinityTerm"), faults);
            }
        }
    }
}

fn weight(term: &Value, field: &str, faults: &mut Faults) {
    let weight = term.get("weight").cloned().unwrap_or(Value::I64(0));
    if !weight.as_i64().is_some_and(|weight| (1..=100).contains(&weight)) {
        faults.invalid(format_args!("{field}.weight"), &weight, "must be in the range 1-100");
    }
}

fn pod_term(term: &Value, field: &str, faults: &mut Faults) {
    if let Some(labels) = term.get("labelSelector") {
        selector::labels(labels, &format!("{field}.labelSelector"), faults);
    }
    let topology = text(term, "topologyKey");
    if topology.is_empty() {
        faults.required(format_args!("{field}.topologyKey"), "can not be empty");
    } else {
        faults.invalid_texts(
            format_args!("{field}.topologyKey"),
            topology,
            names::qualified(topology),
        );
    }
}

fn dns(spec: &Value, field: &str, faults: &mut Faults) {
    if text(spec, "dnsPolicy") == "None" && spec.list_at(&["dnsConfig", "nameservers"]).is_empty() {
        let words = "must provide at least one DNS nameserver when `dnsPolicy` is None";
        let part = if spec.get("dnsConfig").is_some() {
            "dnsConfig.nameservers"
        } else {
            "dnsConfig"
        };
        faults.required(format_args!("{field}.{part}"), words);
    }
    for (index, server) in spec.list_at(&["dnsConfig", "nameservers"]).iter().enumerate() {
        let address = server.as_text().unwrap_or_default();
        if address.parse::<std::net::IpAddr>().is_err() {
            let words = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
            faults.invalid_text(format_args!("{field}.dnsConfig.nameservers[{index}]"), address, words);
        }
    }
}

fn tolerations(spec: &Value, field: &str, faults: &mut Faults) {
    for (index, one) in list(spec, "tolerations").iter().enumerate() {
        let field = format!("{field}.tolerations[{index}]");
        let (key, value, effect) = (text(one, "key"), text(one, "value"), text(one, "effect"));
        let operator = text(one, "operator");
        if !key.is_empty() {
            faults.invalid_texts(format_args!("{field}.key"), key, names::qualified(key));
        } else if operator != "Exists" {
            let words = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            faults.invalid_text(format_args!("{field}.operator"), operator, words);
        }
        if let Some(seconds) = one.get("tolerationSeconds")
            && effect != "NoExecute"
            && !seconds.is_null()
        {
            let words = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            faults.invalid_text(format_args!("{field}.effect"), effect, words);
        }
        match operator {
            "" | "Equal" => faults.invalid_texts(format_args!("{field}.operator"), value, names::label_value(value)),
            "Exists" if value.is_empty() => {}
            "Exists" => {
                let words = "value must be empty when `operator` is 'Exists'";
                faults.invalid(format_args!("{field}.operator"), one, words);
            }
            other => faults.not_supported(format_args!("{field}.operator"), other, &["Equal", "Exists"]),
        }
        if !effect.is_empty() {
            faults.one_of(format_args!("{field}.effect"), effect, &node::EFFECTS);
        }
    }
}

fn host_aliases(spec: &Value, field: &str, faults: &mut Faults) {
    for (index, alias) in list(spec, "hostAliases").iter().enumerate() {
        let field = format!("{field}.hostAliases[{index}]");
        let address = text(alias, "ip");
        if address.parse::<std::net::IpAddr>().is_err() {
            let words = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
            faults.invalid_text(format_args!("{field}.ip"), address, words);
        }
        for (index, name) in list(alias, "hostnames").iter().enumerate() {
            let name = name.as_text().unwrap_or_default();
            faults.invalid_texts(format_args!("{field}.hostnames[{index}]"), name, names::subdomain(name));
        }
    }
}

fn spread(spec: &Value, field: &str, faults: &mut Faults) {
    for (index, one) in list(spec, "topologySpreadConstraints").iter().enumerate() {
        let field = format!("{field}.topologySpreadConstraints[{index}]");
        let skew = one.get("maxSkew").cloned().unwrap_or(Value::I64(0));
        if skew.as_i64().is_none_or(|skew| skew <= 0) {
            faults.invalid(format_args!("{field}.maxSkew"), &skew, "must be greater than zero");
        }
        if text(one, "topologyKey").is_empty() {
            faults.required(format_args!("{field}.topologyKey"), "can not be empty");
        }
        let when = text(one, "whenUnsatisfiable");
        faults.one_of(
            format_args!("{field}.whenUnsatisfiable"),
            when,
            &["DoNotSchedule", "ScheduleAnyway"],
        );
    }
}

/// A change of a pod: images may change, tolerations may be added, the deadline may shrink.
pub(super) fn update(old: &Value, new: &Value, faults: &mut Faults) {
    let nothing = Value::map();
    let (before, after) = (old.get("spec").unwrap_or(&nothing), new.get("spec").unwrap_or(&nothing));
    let count = faults.found.len();
    spec(after, "spec", faults);
    for part in CONTAINER_LISTS {
        if list(before, part).len() != list(after, part).len() {
            faults.forbidden(
                format_args!("spec.{part}"),
                "pod updates may not add or remove containers",
            );
            return;
        }
        for (index, (then, now)) in list(before, part).iter().zip(list(after, part)).enumerate() {
            if !text(then, "image").is_empty() && text(now, "image").is_empty() && faults.found.len() == count {
                faults.required(format_args!("spec.{part}[{index}].image"), "");
            }
        }
    }
    let deadline = |spec: &Value| spec.int_at(&["activeDeadlineSeconds"]);
    match (deadline(before), deadline(after)) {
        (Some(then), Some(now)) if now > then => {
            let words = "must be less than or equal to previous value";
            faults.invalid("spec.activeDeadlineSeconds", &Value::I64(now), words);
        }
        (Some(_), None) => {
            let words = "must not update from a positive integer to nil value";
            faults.invalid("spec.activeDeadlineSeconds", &Value::Null, words);
        }
        _ => {}
    }
    if !list(before, "tolerations")
        .iter()
        .all(|one| kept(one, list(after, "tolerations")))
    {
        let words = "existing toleration can not be modified except its tolerationSeconds";
        faults.forbidden("spec.tolerations", words);
    }
    let mut comparable = after.clone();
    for part in ["activeDeadlineSeconds", "tolerations"] {
        match before.get(part) {
            Some(then) => comparable.set(&[part], then.clone()),
            None => {
                comparable.remove(&[part]);
            }
        }
    }
    if before
        .int_at(&["terminationGracePeriodSeconds"])
        .is_some_and(|grace| grace < 0)
        && after.int_at(&["terminationGracePeriodSeconds"]) == Some(1)
        && let Some(grace) = before.get("terminationGracePeriodSeconds")
    {
        comparable.set(&["terminationGracePeriodSeconds"], grace.clone());
    }
    // A node is given by binding; it only ever appears.
    if text(before, "nodeName").is_empty() && !text(after, "nodeName").is_empty() {
        comparable.remove(&["nodeName"]);
    }
    for part in CONTAINER_LISTS {
        let Some(Value::List(now)) = comparable.as_map_mut().and_then(|map| map.get_mut(part)) else {
            continue;
        };
        for (now, then) in now.iter_mut().zip(list(before, part)) {
            now.set(&["image"], text(then, "image"));
        }
    }
    if comparable != *before {
        let mut changed = Vec::new();
        differences(before, &comparable, "spec", &mut changed);
        faults.forbidden("spec", &format!("{MUTABLE}\n{}", changed.join("\n")));
    }
}

/// Whether a toleration is still there, but for its time.
fn kept(toleration: &Value, among: &[Value]) -> bool {
    among.iter().any(|one| {
        ["key", "operator", "value", "effect"]
            .iter()
            .all(|part| text(toleration, part) == text(one, part))
    })
}

/// Most changed fields that are named.
const DIFFERENCES_MAX: usize = 16;

/// The paths at which two trees differ.
fn differences(before: &Value, after: &Value, path: &str, changed: &mut Vec<String>) {
    if before == after || changed.len() >= DIFFERENCES_MAX {
        return;
    }
    match (before, after) {
        (Value::Map(then), Value::Map(now)) => {
            let names: BTreeSet<&str> = then.keys().chain(now.keys()).collect();
            let nothing = Value::Null;
            for name in names {
                let (then, now) = (then.get(name).unwrap_or(&nothing), now.get(name).unwrap_or(&nothing));
                differences(then, now, &format!("{path}.{name}"), changed);
            }
        }
        (Value::List(then), Value::List(now)) if then.len() == now.len() => {
            for (index, (then, now)) in then.iter().zip(now).enumerate() {
                differences(then, now, &format!("{path}[{index}]"), changed);
            }
        }
        _ => changed.push(path.to_owned()),
    }
}

/// What is odd about a pod without being wrong: texts for `Warning` headers.
pub fn warnings(kind: &KindData, object: &Value) -> Vec<String> {
    let (spec, field) = match (kind.group, kind.kind) {
        ("", "Pod") => (object.get("spec"), "spec"),
        ("apps", _) => (object.at(&["spec", "template", "spec"]), "spec.template.spec"),
        _ => (None, ""),
    };
    let Some(spec) = spec else { return Vec::new() };
    let mut said = Vec::new();
    for part in ["initContainers", "containers"] {
        for (index, one) in list(spec, part).iter().enumerate() {
            let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
            for (at, variable) in list(one, "env").iter().enumerate() {
                let name = text(variable, "name");
                if seen.insert(name, at).is_some() {
                    said.push(format!(
                        "{field}.{part}[{index}].env[{at}]: hides previous definition of {}, which may be \
                         dropped when using apply",
                        Quoted(name)
                    ));
                }
            }
        }
    }
    said
}
