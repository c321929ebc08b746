//! The rules of label selectors and of requirements on nodes.

use proto::object::selector::Selector;
use proto::value::{Map, Value};

use super::{Faults, list, meta, names, text};

/// Whether the selector of an object matches a map of labels; null matches nothing.
pub(super) fn matches(selector: &Value, labels: Option<&Map>) -> bool {
    let read = Selector::of_labels(selector).ok().flatten();
    let label = |key: &str| labels.and_then(|labels| labels.get(key)).and_then(Value::as_text);
    read.is_some_and(|selector| selector.matches(label))
}

/// Whether a selector names nothing and so matches everything.
pub(super) fn is_empty(selector: &Value) -> bool {
    selector
        .at(&["matchLabels"])
        .and_then(Value::as_map)
        .is_none_or(Map::is_empty)
        && list(selector, "matchExpressions").is_empty()
}

/// A `LabelSelector`.
pub(super) fn labels(selector: &Value, field: &str, faults: &mut Faults) {
    let matched = selector.at(&["matchLabels"]).and_then(Value::as_map);
    meta::labels(matched, &format!("{field}.matchLabels"), faults);
    for (at, requirement) in list(selector, "matchExpressions").iter().enumerate() {
        let field = format!("{field}.matchExpressions[{at}]");
        operator(requirement, &field, false, faults);
        let key = text(requirement, "key");
        faults.invalid_texts(format_args!("{field}.key"), key, names::qualified(key));
    }
}

/// The terms of a node selector.
pub(super) fn node_terms(terms: &[Value], field: &str, faults: &mut Faults) {
    if terms.is_empty() {
        faults.required(field, "must have at least one node selector term");
    }
    for (at, term) in terms.iter().enumerate() {
        node_term(term, &format!("{field}[{at}]"), faults);
    }
}

pub(super) fn node_term(term: &Value, field: &str, faults: &mut Faults) {
    for (at, requirement) in list(term, "matchExpressions").iter().enumerate() {
        let field = format!("{field}.matchExpressions[{at}]");
        operator(requirement, &field, true, faults);
        let key = text(requirement, "key");
        faults.invalid_texts(format_args!("{field}.key"), key, names::qualified(key));
    }
}

fn operator(requirement: &Value, field: &str, with_order: bool, faults: &mut Faults) {
    let values = list(requirement, "values");
    match text(requirement, "operator") {
        "In" | "NotIn" => {
            if values.is_empty() {
                let words = "must be specified when `operator` is 'In' or 'NotIn'";
                faults.required(format_args!("{field}.values"), words);
            }
        }
        "Exists" | "DoesNotExist" => {
            if !values.is_empty() {
                let words = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                faults.forbidden(format_args!("{field}.values"), words);
            }
        }
        "Gt" | "Lt" if with_order => {
            if values.len() != 1 {
                let words = "must be specified single value when `operator` is 'Lt' or 'Gt'";
                faults.required(format_args!("{field}.values"), words);
            }
        }
        other => faults.invalid_text(format_args!("{field}.operator"), other, "not a valid selector operator"),
    }
}
