//! Which field of a list's elements tells them apart.

use crate::value::Value;

/// By the name of the list's field, the merge keys to try in turn; the first that all elements of both lists have, and
/// have once, is taken.
const MERGE_KEYS: &[(&str, &[&str])] = &[
    ("addresses", &["type"]),
    ("conditions", &["type"]),
    ("containerStatuses", &["name"]),
    ("containers", &["name"]),
    ("endpoints", &["targetRef"]),
    ("env", &["name"]),
    ("ephemeralContainers", &["name"]),
    ("hostAliases", &["ip"]),
    ("imagePullSecrets", &["name"]),
    ("images", &["names"]),
    ("initContainerStatuses", &["name"]),
    ("initContainers", &["name"]),
    ("items", &["key", "path"]),
    ("ownerReferences", &["uid"]),
    ("podIPs", &["ip"]),
    ("ports", &["containerPort", "port", "name"]),
    ("properties", &["name"]),
    ("propertyVisitors", &["name"]),
    ("secrets", &["name"]),
    ("taints", &["key"]),
    ("tolerations", &["key"]),
    ("twins", &["propertyName"]),
    ("volumeDevices", &["devicePath"]),
    ("volumeMounts", &["mountPath"]),
    ("volumes", &["name"]),
];

/// For each element of `new`, the index of the element of `old` that it continues; `None` when the elements cannot be
/// told apart by key.
pub(super) fn align(field: &str, old: &[Value], new: &[Value]) -> Option<Vec<Option<usize>>> {
    let at = MERGE_KEYS.binary_search_by_key(&field, |(name, _)| name).ok()?;
    MERGE_KEYS[at].1.iter().find_map(|key| {
        let (old, new) = (distinct(key, old)?, distinct(key, new)?);
        Some(
            new.into_iter()
                .map(|value| old.iter().position(|other| *other == value))
                .collect(),
        )
    })
}

/// The key of every element, if all have one and no two the same.
fn distinct<'a>(key: &str, list: &'a [Value]) -> Option<Vec<&'a Value>> {
    let keys: Vec<_> = list.iter().map(|element| element.get(key)).collect::<Option<_>>()?;
    let twice = keys.iter().enumerate().any(|(at, key)| keys[..at].contains(key));
    (!twice).then_some(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted() {
        assert!(MERGE_KEYS.is_sorted_by(|one, other| one.0 < other.0));
    }
}
