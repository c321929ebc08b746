//! The rules of metadata, the same for every kind but for the name.

use proto::value::{Map, Value};

use super::{Faults, list, names, text};
use crate::api::kinds::KindData;
use crate::api::quote::Quoted;

/// Most bytes of all annotations together.
pub(super) const ANNOTATIONS_BYTES_MAX: usize = 256 * 1024;

/// Finalizers that need no domain.
const PLAIN_FINALIZERS: [&str; 3] = ["foregroundDeletion", "kubernetes", "orphan"];

pub(super) fn create(kind: &KindData, object: &Value, faults: &mut Faults) {
    let nothing = Value::map();
    let metadata = object.get("metadata").unwrap_or(&nothing);
    name(kind, metadata, faults);
    labels(
        metadata.at(&["labels"]).and_then(Value::as_map),
        "metadata.labels",
        faults,
    );
    annotations(
        metadata.at(&["annotations"]).and_then(Value::as_map),
        "metadata.annotations",
        faults,
    );
    references(metadata, faults);
}

/// A real server checks labels and annotations four times on the way of an update, and each time counts as a cause.
const UPDATE_CHECKS: usize = 4;

pub(super) fn update(kind: &KindData, old: &Value, new: &Value, faults: &mut Faults) {
    let nothing = Value::map();
    let (before, metadata) = (
        old.get("metadata").unwrap_or(&nothing),
        new.get("metadata").unwrap_or(&nothing),
    );
    for field in [
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        let (then, now) = (before.get(field), metadata.get(field));
        if let (Some(then), Some(now)) = (then, now)
            && then != now
        {
            faults.invalid(format_args!("metadata.{field}"), now, "field is immutable");
        }
    }
    name(kind, metadata, faults);
    for _ in 0..UPDATE_CHECKS {
        labels(
            metadata.at(&["labels"]).and_then(Value::as_map),
            "metadata.labels",
            faults,
        );
        annotations(
            metadata.at(&["annotations"]).and_then(Value::as_map),
            "metadata.annotations",
            faults,
        );
    }
    references(metadata, faults);
    if before.get("deletionTimestamp").is_some() {
        let late: Vec<String> = list(metadata, "finalizers")
            .iter()
            .filter(|one| !list(before, "finalizers").contains(one))
            .map(|one| Quoted(one.as_text().unwrap_or_default()).to_string())
            .collect();
        if !late.is_empty() {
            let words = "no new finalizers can be added if the object is being deleted, found new finalizers";
            faults.forbidden(
                "metadata.finalizers",
                &format!("{words} []string{{{}}}", late.join(", ")),
            );
        }
    }
}

fn name(kind: &KindData, metadata: &Value, faults: &mut Faults) {
    let rule = match (kind.group, kind.kind) {
        ("", "Namespace") => names::label,
        ("", "Service") => names::label_1035,
        _ => names::subdomain,
    };
    let prefix = text(metadata, "generateName");
    if !prefix.is_empty() {
        // What follows is letters, so a dash or a dot at the end is fine.
        let whole = format!("{prefix}a");
        faults.invalid_texts("metadata.generateName", prefix, rule(&whole));
    }
    match text(metadata, "name") {
        "" if prefix.is_empty() => faults.required("metadata.name", "name or generateName is required"),
        "" => {}
        name => faults.invalid_texts("metadata.name", name, rule(name)),
    }
}

/// Labels, wherever they stand.
pub(super) fn labels(labels: Option<&Map>, field: &str, faults: &mut Faults) {
    for (key, value) in labels.into_iter().flatten() {
        faults.invalid_texts(field, key, names::qualified(key));
        let value = value.as_text().unwrap_or_default();
        faults.invalid_texts(field, value, names::label_value(value));
    }
}

/// Annotations, wherever they stand.
pub(super) fn annotations(annotations: Option<&Map>, field: &str, faults: &mut Faults) {
    let mut bytes = 0;
    for (key, value) in annotations.into_iter().flatten() {
        faults.invalid_texts(field, key, names::qualified(&key.to_lowercase()));
        bytes += key.len() + value.as_text().map_or(0, str::len);
    }
    if bytes > ANNOTATIONS_BYTES_MAX {
        faults.too_long(field, ANNOTATIONS_BYTES_MAX);
    }
}

fn references(metadata: &Value, faults: &mut Faults) {
    let mut controller: Option<&str> = None;
    for (at, owner) in list(metadata, "ownerReferences").iter().enumerate() {
        let field = format!("metadata.ownerReferences[{at}]");
        for (part, words) in [
            ("apiVersion", "version must not be empty"),
            ("kind", "must not be empty"),
            ("name", "must not be empty"),
            ("uid", "must not be empty"),
        ] {
            if text(owner, part).is_empty() {
                faults.invalid_text(format_args!("{field}.{part}"), "", words);
            }
        }
        if owner.flag_at(&["controller"]) {
            let name = text(owner, "name");
            match controller {
                Some(first) => faults.invalid(
                    "metadata.ownerReferences",
                    &Value::List(list(metadata, "ownerReferences").to_vec()),
                    &format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} \
                         and {name}"
                    ),
                ),
                None => controller = Some(name),
            }
        }
    }
    for (at, finalizer) in list(metadata, "finalizers").iter().enumerate() {
        finalizer_name(&format!("metadata.finalizers[{at}]"), finalizer, faults);
    }
}

/// One of the names that Kubernetes itself uses, or a qualified one.
pub(super) fn finalizer_name(field: &str, finalizer: &Value, faults: &mut Faults) {
    let finalizer = finalizer.as_text().unwrap_or_default();
    let wrong = names::qualified(finalizer);
    if wrong.is_empty() && !finalizer.contains('/') && !PLAIN_FINALIZERS.contains(&finalizer) {
        faults.invalid_text(
            field,
            finalizer,
            "name is neither a standard finalizer name nor is it fully qualified",
        );
    } else {
        faults.invalid_texts(field, finalizer, wrong);
    }
}
