//! The rules of small kinds: namespaces, config maps, secrets, events, leases, endpoint slices.

use proto::value::{Value, json};

use super::{Fault, Faults, list, meta, names, text};

/// Most bytes of the values of a config map or of a secret.
pub(super) const DATA_BYTES_MAX: usize = 1024 * 1024;

/// Most endpoints and addresses of one slice.
pub(super) const ENDPOINTS_MAX: usize = 1000;
pub(super) const ADDRESSES_MAX: usize = 100;

pub(super) fn namespace(object: &Value, faults: &mut Faults) {
    for finalizer in object.list_at(&["spec", "finalizers"]) {
        meta::finalizer_name("spec.finalizers", finalizer, faults);
    }
}

pub(super) fn config_map(object: &Value, faults: &mut Faults) {
    let mut bytes = 0;
    let binary = object.get("binaryData").and_then(Value::as_map);
    for (key, value) in object.get("data").and_then(Value::as_map).into_iter().flatten() {
        let field = format!("data[{key}]");
        faults.invalid_texts(&field, key, names::config_key(key));
        if binary.is_some_and(|binary| binary.contains_key(key)) {
            faults.invalid_text(&field, key, "duplicate of key present in binaryData");
        }
        bytes += value.as_text().map_or(0, str::len);
    }
    for (key, value) in binary.into_iter().flatten() {
        faults.invalid_texts(format_args!("binaryData[{key}]"), key, names::config_key(key));
        bytes += value.as_text().map_or(0, decoded_bytes);
    }
    if bytes > DATA_BYTES_MAX {
        faults.too_long("", DATA_BYTES_MAX);
    }
}

/// How many bytes a base64 text holds.
fn decoded_bytes(text: &str) -> usize {
    text.trim_end_matches('=').len() * 3 / 4
}

pub(super) fn secret(object: &Value, faults: &mut Faults) {
    let data = object.get("data").and_then(Value::as_map);
    let mut bytes = 0;
    for (key, value) in data.into_iter().flatten() {
        faults.invalid_texts(format_args!("data[{key}]"), key, names::config_key(key));
        bytes += value.as_text().map_or(0, decoded_bytes);
    }
    if bytes > DATA_BYTES_MAX {
        faults.too_long("data", DATA_BYTES_MAX);
    }
    let there = |key: &str| data.is_some_and(|data| data.contains_key(key));
    let need = |key: &str, faults: &mut Faults| {
        if !there(key) {
            faults.required(format_args!("data[{key}]"), "");
        }
    };
    match text(object, "type") {
        "kubernetes.io/service-account-token" => {
            let name = object.at(&["metadata", "annotations", "kubernetes.io/service-account.name"]);
            if name.and_then(Value::as_text).unwrap_or_default().is_empty() {
                faults.required("metadata.annotations[kubernetes.io/service-account.name]", "");
            }
        }
        "kubernetes.io/dockercfg" => json_document(object, ".dockercfg", faults),
        "kubernetes.io/dockerconfigjson" => json_document(object, ".dockerconfigjson", faults),
        "kubernetes.io/basic-auth" if !there("username") && !there("password") => {
            need("username", faults);
            need("password", faults);
        }
        "kubernetes.io/ssh-auth" => need("ssh-privatekey", faults),
        "kubernetes.io/tls" => {
            need("tls.crt", faults);
            need("tls.key", faults);
        }
        _ => {}
    }
}

/// A key whose value must be JSON; the value is never shown.
fn json_document(object: &Value, key: &str, faults: &mut Faults) {
    use base64::Engine as _;
    let field = format!("data[{key}]");
    match object.text_at(&["data", key]) {
        None => faults.required(field, ""),
        Some(text) => {
            let document = base64::engine::general_purpose::STANDARD
                .decode(text)
                .unwrap_or_default();
            if let Err(error) = json::parse(&document) {
                faults.invalid_text(field, "<secret contents redacted>", &error.detail());
            }
        }
    }
}

pub(super) fn secret_update(old: &Value, new: &Value, faults: &mut Faults) {
    unchanged(old, new, "type", faults);
    immutable(old, new, &["data"], faults);
    secret(new, faults);
}

/// A field that never changes.
pub(super) fn unchanged(old: &Value, new: &Value, field: &str, faults: &mut Faults) {
    if old.get(field) != new.get(field) {
        faults.invalid(field, new.get(field).unwrap_or(&Value::Null), "field is immutable");
    }
}

/// What may not change once `immutable` is set: that itself, and the contents.
pub(super) fn immutable(old: &Value, new: &Value, fields: &[&str], faults: &mut Faults) {
    if !old.flag_at(&["immutable"]) {
        return;
    }
    let words = "field is immutable when `immutable` is set";
    if !new.flag_at(&["immutable"]) {
        faults.forbidden("immutable", words);
    }
    for field in fields {
        if old.get(field) != new.get(field) {
            faults.forbidden(field, words);
        }
    }
}

pub(super) fn event(object: &Value, faults: &mut Faults) {
    let (name, reference) = match object.get("regarding") {
        Some(reference) => ("regarding", Some(reference)),
        None => ("involvedObject", object.get("involvedObject")),
    };
    let about = reference
        .map(|reference| text(reference, "namespace"))
        .unwrap_or_default();
    let own = object.text_at(&["metadata", "namespace"]).unwrap_or_default();
    // Events about what has no namespace stand in the default one.
    let matches = about == own || (about.is_empty() && matches!(own, "" | "default" | "kube-system"));
    if !matches {
        faults.invalid_text(
            format_args!("{name}.namespace"),
            about,
            "does not match event.namespace",
        );
    }
    // Only the newer spelling has rules of its own.
    if text(object, "apiVersion") != "events.k8s.io/v1" {
        return;
    }
    if object.get("eventTime").is_none_or(Value::is_null) {
        faults.required("eventTime", "");
    }
    let controller = text(object, "reportingController");
    if controller.is_empty() {
        faults.required("reportingController", "");
    } else {
        faults.invalid_texts("reportingController", controller, names::qualified(controller));
    }
    for (field, bytes_max) in [("reportingInstance", 128), ("action", 128), ("reason", 128)] {
        let value = text(object, field);
        if value.is_empty() {
            faults.required(field, "");
        } else if value.len() > bytes_max {
            faults.invalid_text(field, "", &format!("can have at most {bytes_max} characters"));
        }
    }
    if text(object, "note").len() > 1024 {
        faults.invalid_text("message", "", "can have at most 1024 characters");
    }
    let kind = text(object, "type");
    if !matches!(kind, "Normal" | "Warning") {
        faults.invalid_text("type", "", "has invalid value: ");
    }
}

pub(super) fn lease(object: &Value, faults: &mut Faults) {
    let Some(spec) = object.get("spec") else { return };
    if spec.text_at(&["holderIdentity"]) == Some("") {
        faults.invalid_text("spec.holderIdentity", "", "must not be empty");
    }
    if let Some(seconds) = spec.get("leaseDurationSeconds")
        && seconds.as_i64().is_some_and(|seconds| seconds <= 0)
    {
        faults.invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0");
    }
    faults.not_negative("spec.leaseTransitions", spec.get("leaseTransitions"));
}

pub(super) fn endpoint_slice(object: &Value, faults: &mut Faults) {
    let kind = text(object, "addressType");
    faults.one_of("addressType", kind, &["FQDN", "IPv4", "IPv6"]);
    let endpoints = list(object, "endpoints");
    if endpoints.len() > ENDPOINTS_MAX {
        let message = format!("Too many: {}: must have at most {ENDPOINTS_MAX} items", endpoints.len());
        faults.add(Fault::TooMany, "endpoints", message);
        return;
    }
    for (index, endpoint) in endpoints.iter().enumerate() {
        let field = format!("endpoints[{index}].addresses");
        let addresses = list(endpoint, "addresses");
        if addresses.is_empty() {
            faults.required(&field, "must contain at least 1 address");
        } else if addresses.len() > ADDRESSES_MAX {
            let message = format!("Too many: {}: must have at most {ADDRESSES_MAX} items", addresses.len());
            faults.add(Fault::TooMany, &field, message);
            continue;
        }
        for (index, address) in addresses.iter().enumerate() {
            let text = address.as_text().unwrap_or_default();
            let right = match kind {
                "IPv4" => text.parse::<std::net::Ipv4Addr>().is_ok(),
                "IPv6" => text.parse::<std::net::Ipv6Addr>().is_ok(),
                _ => true,
            };
            if !right {
                let version = if kind == "IPv4" { "IPv4" } else { "IPv6" };
                faults.invalid(
                    format_args!("{field}[{index}]"),
                    address,
                    &format!("must be a valid {version} address"),
                );
            }
        }
    }
    for (index, port) in list(object, "ports").iter().enumerate() {
        let protocol = text(port, "protocol");
        let name = text(port, "name");
        if !name.is_empty() {
            faults.invalid_texts(format_args!("ports[{index}].name"), name, names::label(name));
        }
        faults.one_of(
            format_args!("ports[{index}].protocol"),
            protocol,
            &super::container::PROTOCOLS,
        );
    }
}
