//! The rules of deployments, replica sets and daemon sets.

use proto::value::Value;

use super::{Faults, meta, names, pod, selector, text};
use crate::api::kinds::KindData;

pub(super) fn body(kind: &KindData, object: &Value, faults: &mut Faults) {
    let nothing = Value::map();
    let spec = object.get("spec").unwrap_or(&nothing);
    match kind.kind {
        "Deployment" => deployment(spec, faults),
        "ReplicaSet" => {
            faults.not_negative("spec.replicas", spec.get("replicas"));
            faults.not_negative("spec.minReadySeconds", spec.get("minReadySeconds"));
            chosen(spec, "deployment", faults);
            template(spec, "ReplicaSet", faults);
        }
        "DaemonSet" => daemon_set(spec, faults),
        _ => {}
    }
}

pub(super) fn update(kind: &KindData, old: &Value, new: &Value, faults: &mut Faults) {
    body(kind, new, faults);
    let now = new.at(&["spec", "selector"]).cloned().unwrap_or_default();
    if old.at(&["spec", "selector"]) != Some(&now) {
        faults.invalid("spec.selector", &now, "field is immutable");
    }
}

fn deployment(spec: &Value, faults: &mut Faults) {
    faults.not_negative("spec.replicas", spec.get("replicas"));
    chosen(spec, "deployment", faults);
    template(spec, "Deployment", faults);
    strategy(spec, faults);
    faults.not_negative("spec.minReadySeconds", spec.get("minReadySeconds"));
    faults.not_negative("spec.revisionHistoryLimit", spec.get("revisionHistoryLimit"));
    if let Some(deadline) = spec.get("progressDeadlineSeconds") {
        faults.not_negative("spec.progressDeadlineSeconds", Some(deadline));
        let ready = spec.int_at(&["minReadySeconds"]).unwrap_or(0);
        if deadline.as_i64().is_some_and(|deadline| deadline <= ready) {
            faults.invalid(
                "spec.progressDeadlineSeconds",
                deadline,
                "must be greater than minReadySeconds",
            );
        }
    }
}

fn strategy(spec: &Value, faults: &mut Faults) {
    let nothing = Value::map();
    let strategy = spec.get("strategy").unwrap_or(&nothing);
    let rolling = strategy.get("rollingUpdate");
    match text(strategy, "type") {
        "Recreate" => {
            if rolling.is_some() {
                let words = "may not be specified when strategy `type` is 'Recreate'";
                faults.forbidden("spec.strategy.rollingUpdate", words);
            }
        }
        "RollingUpdate" => match rolling {
            None => faults.required(
                "spec.strategy.rollingUpdate",
                "this should be defaulted and never be nil",
            ),
            Some(rolling) => rolling_update(rolling, faults),
        },
        other => faults.not_supported("spec.strategy.type", other, &["Recreate", "RollingUpdate"]),
    }
}

fn rolling_update(rolling: &Value, faults: &mut Faults) {
    let unavailable = "spec.strategy.rollingUpdate.maxUnavailable";
    count(rolling.get("maxUnavailable"), unavailable, faults);
    count(rolling.get("maxSurge"), "spec.strategy.rollingUpdate.maxSurge", faults);
    let zero = |part: &str| match rolling.get(part) {
        None => true,
        Some(Value::Text(text)) => names::percent(text) == Some(0),
        Some(number) => number.as_i64() == Some(0),
    };
    if let (true, true, Some(value)) = (zero("maxUnavailable"), zero("maxSurge"), rolling.get("maxUnavailable")) {
        faults.invalid(unavailable, value, "may not be 0 when `maxSurge` is 0");
    }
    if let Some(Value::Text(text)) = rolling.get("maxUnavailable")
        && names::percent(text).is_some_and(|percent| percent > 100)
    {
        faults.invalid_text(unavailable, text, "must not be greater than 100%");
    }
}

/// A number of pods, or of per cent of them.
fn count(value: Option<&Value>, field: &str, faults: &mut Faults) {
    match value {
        Some(Value::Text(text)) if names::percent(text).is_none() => faults.invalid_text(field, text, names::PERCENT),
        Some(Value::Text(_)) | None => {}
        Some(number) => faults.not_negative(field, Some(number)),
    }
}

fn daemon_set(spec: &Value, faults: &mut Faults) {
    let selector = spec.get("selector").unwrap_or(&Value::Null);
    if selector.is_null() {
        faults.required("spec.selector", "");
    } else {
        selector::labels(selector, "spec.selector", faults);
    }
    let labels = spec.at(&["template", "metadata", "labels"]);
    if !selector.is_null() && !selector::matches(selector, labels.and_then(Value::as_map)) {
        mismatch(labels, faults);
    }
    if !selector.is_null() && selector::is_empty(selector) {
        faults.invalid("spec.selector", selector, "empty selector is invalid for daemonset");
    }
    template_body(spec, "DaemonSet", faults);
    faults.not_negative("spec.minReadySeconds", spec.get("minReadySeconds"));
    let nothing = Value::map();
    let strategy = spec.get("updateStrategy").unwrap_or(&nothing);
    match text(strategy, "type") {
        "OnDelete" => {}
        "RollingUpdate" => match strategy.get("rollingUpdate") {
            None => faults.required("spec.updateStrategy.rollingUpdate", ""),
            Some(rolling) => {
                for part in ["maxUnavailable", "maxSurge"] {
                    count(
                        rolling.get(part),
                        &format!("spec.updateStrategy.rollingUpdate.{part}"),
                        faults,
                    );
                }
            }
        },
        other => faults.not_supported("spec.updateStrategy.type", other, &["RollingUpdate", "OnDelete"]),
    }
    faults.not_negative("spec.revisionHistoryLimit", spec.get("revisionHistoryLimit"));
}

/// The selector of a workload; `owner` is the word a real server uses for it.
fn chosen(spec: &Value, owner: &str, faults: &mut Faults) {
    match spec.get("selector") {
        None | Some(Value::Null) => faults.required("spec.selector", ""),
        Some(selector) => {
            selector::labels(selector, "spec.selector", faults);
            if selector::is_empty(selector) {
                faults.invalid(
                    "spec.selector",
                    selector,
                    &format!("empty selector is invalid for {owner}"),
                );
            }
        }
    }
}

fn template(spec: &Value, owner: &str, faults: &mut Faults) {
    let labels = spec.at(&["template", "metadata", "labels"]);
    let selector = spec.get("selector").unwrap_or(&Value::Null);
    // An empty selector is a fault of its own.
    let empty = !selector.is_null() && selector::is_empty(selector);
    if !empty && !selector::matches(selector, labels.and_then(Value::as_map)) {
        mismatch(labels, faults);
    }
    template_body(spec, owner, faults);
}

fn mismatch(labels: Option<&Value>, faults: &mut Faults) {
    let words = "`selector` does not match template `labels`";
    let labels = labels.cloned().unwrap_or_default();
    faults.invalid("spec.template.metadata.labels", &labels, words);
}

fn template_body(spec: &Value, owner: &str, faults: &mut Faults) {
    let nothing = Value::map();
    let template = spec.get("template").unwrap_or(&nothing);
    let metadata = |part: &str| template.at(&["metadata", part]).and_then(Value::as_map);
    meta::labels(metadata("labels"), "spec.template.labels", faults);
    meta::annotations(metadata("annotations"), "spec.template.annotations", faults);
    let inner = template.get("spec").unwrap_or(&nothing);
    pod::spec(inner, "spec.template.spec", faults);
    let policy = text(inner, "restartPolicy");
    // What is no policy at all was said already.
    if matches!(policy, "OnFailure" | "Never") {
        faults.not_supported("spec.template.spec.restartPolicy", policy, &["Always"]);
    }
    if inner.get("activeDeadlineSeconds").is_some() {
        let words = format!("activeDeadlineSeconds in {owner} is not Supported");
        faults.forbidden("spec.template.spec.activeDeadlineSeconds", &words);
    }
}
