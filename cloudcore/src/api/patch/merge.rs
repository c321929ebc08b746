//! Merge patch (RFC 7396): maps merge, null removes, everything else replaces.

use proto::value::Value;

pub(super) fn apply(target: Value, patch: Value) -> Value {
    let Value::Map(fields) = patch else { return patch };
    let mut merged = match target {
        Value::Map(map) => map,
        _ => proto::value::Map::new(),
    };
    for (name, change) in fields {
        if change.is_null() {
            merged.remove(&name);
        } else {
            let before = merged.remove(&name).unwrap_or_default();
            merged.insert(name, apply(before, change));
        }
    }
    Value::Map(merged)
}
