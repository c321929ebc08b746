//! The rules of services.

use std::collections::BTreeSet;

use proto::value::{Value, json};

use super::{Fault, Faults, container, list, meta, names, text};

const TYPES: [&str; 4] = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];

pub(super) fn body(object: &Value, faults: &mut Faults) {
    let nothing = Value::map();
    let spec = object.get("spec").unwrap_or(&nothing);
    let kind = text(spec, "type");
    let address = text(spec, "clusterIP");
    let headless = address == "None";
    if list(spec, "ports").is_empty() && !headless && kind != "ExternalName" {
        faults.required("spec.ports", "");
    }
    if kind == "LoadBalancer" && headless {
        faults.invalid_text(
            "spec.clusterIPs[0]",
            address,
            "may not be set to 'None' for LoadBalancer services",
        );
    }
    if kind == "NodePort" && headless {
        faults.invalid_text(
            "spec.clusterIPs[0]",
            address,
            "may not be set to 'None' for NodePort services",
        );
    }
    if kind == "ExternalName" {
        if !address.is_empty() {
            faults.forbidden("spec.clusterIPs", "may not be set when `type` is 'ExternalName'");
        }
        // A domain may end in its root.
        let name = text(spec, "externalName");
        let relative = name.strip_suffix('.').unwrap_or(name);
        if relative.is_empty() {
            faults.required("spec.externalName", "");
        } else {
            faults.invalid_texts("spec.externalName", name, names::subdomain(relative));
        }
    }
    ports(spec, kind, headless, faults);
    meta::labels(spec.at(&["selector"]).and_then(Value::as_map), "spec.selector", faults);
    faults.one_of(
        "spec.sessionAffinity",
        text(spec, "sessionAffinity"),
        &["ClientIP", "None"],
    );
    if let Some(seconds) = spec.at(&["sessionAffinityConfig", "clientIP", "timeoutSeconds"])
        && !seconds.as_i64().is_some_and(|seconds| (1..=86_400).contains(&seconds))
    {
        let field = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
        faults.invalid(field, seconds, "must be greater than 0 and less than 86400");
    }
    if !address.is_empty() && !headless && address.parse::<std::net::IpAddr>().is_err() {
        let words = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
        faults.invalid_text("spec.clusterIPs[0]", address, words);
    }
    for (index, one) in list(spec, "externalIPs").iter().enumerate() {
        let address = one.as_text().unwrap_or_default();
        if address.parse::<std::net::IpAddr>().is_err() {
            let words = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
            faults.invalid_text(format_args!("spec.externalIPs[{index}]"), address, words);
        }
    }
    faults.one_of("spec.type", kind, &TYPES);
    for (part, allowed) in [
        ("externalTrafficPolicy", ["Cluster", "Local"]),
        ("internalTrafficPolicy", ["Cluster", "Local"]),
    ] {
        let policy = text(spec, part);
        if !policy.is_empty() {
            faults.one_of(format_args!("spec.{part}"), policy, &allowed);
        }
    }
}

fn ports(spec: &Value, kind: &str, headless: bool, faults: &mut Faults) {
    let ports = list(spec, "ports");
    let (mut seen, mut taken, mut on_nodes) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (index, port) in ports.iter().enumerate() {
        let field = format!("spec.ports[{index}]");
        let name = text(port, "name");
        if name.is_empty() {
            if ports.len() > 1 {
                faults.required(format_args!("{field}.name"), "");
            }
        } else {
            faults.invalid_texts(format_args!("{field}.name"), name, names::label(name));
            if !seen.insert(name) {
                faults.duplicate(format_args!("{field}.name"), &Value::from(name));
            }
        }
        let number = port.int_at(&["port"]).unwrap_or(0);
        for words in names::port_number(number) {
            faults.invalid(format_args!("{field}.port"), &Value::I64(number), &words);
        }
        let protocol = text(port, "protocol");
        faults.one_of(format_args!("{field}.protocol"), protocol, &container::PROTOCOLS);
        if kind != "ExternalName" {
            container::port(port.get("targetPort"), &format!("{field}.targetPort"), faults);
        }
        let application = text(port, "appProtocol");
        if !application.is_empty() {
            faults.invalid_texts(
                format_args!("{field}.appProtocol"),
                application,
                names::qualified(application),
            );
        }
        if headless && kind != "ExternalName" && port.int_at(&["nodePort"]).is_some_and(|port| port != 0) {
            faults.forbidden(
                format_args!("{field}.nodePort"),
                "may not be used when `type` is 'ClusterIP'",
            );
        }
        if !taken.insert((protocol, number)) {
            let message = format!(
                "Duplicate value: {{\"Name\":\"\",\"Protocol\":{},\"AppProtocol\":null,\"Port\":{number},\
                 \"TargetPort\":0,\"NodePort\":0}}",
                json::write(&Value::from(protocol))
            );
            faults.add(Fault::Duplicate, &field, message);
        }
        let on_node = port.int_at(&["nodePort"]).unwrap_or(0);
        if on_node != 0 && kind == "ClusterIP" && !headless {
            faults.forbidden(
                format_args!("{field}.nodePort"),
                "may not be used when `type` is 'ClusterIP'",
            );
        } else if on_node != 0 && !on_nodes.insert((protocol, on_node)) {
            faults.duplicate(format_args!("{field}.nodePort"), &Value::I64(on_node));
        }
    }
}

pub(super) fn update(old: &Value, new: &Value, faults: &mut Faults) {
    let kind = |object: &Value| object.text_at(&["spec", "type"]).unwrap_or_default().to_owned();
    let address = |object: &Value| object.text_at(&["spec", "clusterIP"]).unwrap_or_default().to_owned();
    // An address stays for as long as the service has one.
    if kind(old) != "ExternalName"
        && kind(new) != "ExternalName"
        && !address(old).is_empty()
        && address(old) != address(new)
    {
        let now = new.at(&["spec", "clusterIPs"]).cloned();
        let now = now.unwrap_or_else(|| Value::from_iter([address(new)]));
        faults.invalid("spec.clusterIPs[0]", &now, "may not change once set");
    }
    body(new, faults);
}
