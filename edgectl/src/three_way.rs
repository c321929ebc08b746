//! What to change in a live object so that it is as a file says.
//!
//! Three versions are compared: what the file said last time, what it says now, and what there is. What the file says
//! now is set; what it said and no longer says is removed; anything else stays, since others own it.

use serde_json::{Map, Value, json};

/// How lists are changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lists {
    /// Element by element where a field tells them apart (strategic merge patch).
    ByKey,
    /// As a whole (JSON merge patch).
    Whole,
}

/// By the name of a list's field: what tells its elements apart. The first that all elements have counts.
const KEYS: &[(&str, &[&str])] = &[
    ("containers", &["name"]),
    ("env", &["name"]),
    ("ephemeralContainers", &["name"]),
    ("hostAliases", &["ip"]),
    ("imagePullSecrets", &["name"]),
    ("initContainers", &["name"]),
    ("ownerReferences", &["uid"]),
    ("ports", &["containerPort", "port"]),
    ("resourceClaims", &["name"]),
    ("schedulingGates", &["name"]),
    ("secrets", &["name"]),
    ("topologySpreadConstraints", &["topologyKey"]),
    ("volumeDevices", &["devicePath"]),
    ("volumeMounts", &["mountPath"]),
    ("volumes", &["name"]),
];

/// Lists of texts that a strategic patch adds to, so that what goes has to be named.
const SETS: &[&str] = &["finalizers", "podCIDRs"];

/// Maps of which only the fields that are said stay: their fields exclude each other.
const ONE_OF: &[&str] = &["strategy", "volumes"];

/// The patch; `None` when nothing is to change.
pub(crate) fn patch(last: Option<&Value>, wanted: &Value, live: &Value, lists: Lists) -> Option<Value> {
    let empty = Map::new();
    let last = last.and_then(Value::as_object).unwrap_or(&empty);
    let patch = maps("", last, wanted.as_object()?, live.as_object()?, lists);
    (!patch.is_empty()).then_some(Value::Object(patch))
}

type Fields = Map<String, Value>;

fn maps(name: &str, last: &Fields, wanted: &Fields, live: &Fields, lists: Lists) -> Fields {
    let empty = Map::new();
    let mut patch = Map::new();
    for (field, now) in wanted {
        let there = live.get(field);
        match (now, there) {
            (Value::Null, None) => {}
            (Value::Object(now), Some(Value::Object(there))) => {
                let last = last.get(field).and_then(Value::as_object).unwrap_or(&empty);
                let inner = maps(field, last, now, there, lists);
                if !inner.is_empty() {
                    patch.insert(field.clone(), inner.into());
                }
            }
            (Value::Array(now), Some(Value::Array(there))) if lists == Lists::ByKey => {
                let last = last.get(field).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                patch.extend(elements(field, last, now, there));
            }
            _ if there == Some(now) => {}
            _ => {
                patch.insert(field.clone(), now.clone());
            }
        }
    }
    for field in last
        .keys()
        .filter(|field| !wanted.contains_key(*field) && live.contains_key(*field))
    {
        patch.insert(field.clone(), Value::Null);
    }
    if lists == Lists::ByKey && !patch.is_empty() && ONE_OF.contains(&name) {
        patch.insert("$retainKeys".to_owned(), wanted.keys().cloned().collect());
    }
    patch
}

/// The fields of a strategic patch that change a list.
fn elements(field: &str, last: &[Value], wanted: &[Value], live: &[Value]) -> Fields {
    let mut patch = Map::new();
    if SETS.contains(&field) {
        let gone: Vec<Value> = last
            .iter()
            .filter(|one| !wanted.contains(one) && live.contains(one))
            .cloned()
            .collect();
        let new: Vec<Value> = wanted.iter().filter(|one| !live.contains(one)).cloned().collect();
        if !gone.is_empty() {
            patch.insert(format!("$deleteFromPrimitiveList/{field}"), gone.into());
        }
        if !new.is_empty() {
            patch.insert(field.to_owned(), new.into());
        }
        return patch;
    }
    let Some(key) = key(field, wanted, live) else {
        if wanted != live {
            patch.insert(field.to_owned(), wanted.into());
        }
        return patch;
    };
    let empty = Map::new();
    let of = |list: &[Value], value: &Value| {
        list.iter()
            .find(|one| &one[key] == value)
            .and_then(Value::as_object)
            .cloned()
    };
    let mut changed = Vec::new();
    for one in wanted.iter().filter_map(Value::as_object) {
        let value = &one[key];
        let Some(there) = of(live, value) else {
            changed.push(Value::Object(one.clone()));
            continue;
        };
        let last = of(last, value);
        let mut inner = maps(field, last.as_ref().unwrap_or(&empty), one, &there, Lists::ByKey);
        if !inner.is_empty() {
            inner.insert(key.to_owned(), value.clone());
            changed.push(inner.into());
        }
    }
    for value in last.iter().filter_map(|one| one.get(key)) {
        if of(wanted, value).is_none() && of(live, value).is_some() {
            changed.push(json!({"$patch": "delete", key: value}));
        }
    }
    let wanted_order: Vec<&Value> = wanted.iter().map(|one| &one[key]).collect();
    let live_order: Vec<&Value> = live
        .iter()
        .map(|one| &one[key])
        .filter(|value| wanted_order.contains(value))
        .collect();
    if changed.is_empty() && wanted_order == live_order {
        return patch;
    }
    let order: Vec<Value> = wanted_order.into_iter().map(|value| json!({key: value})).collect();
    patch.insert(format!("$setElementOrder/{field}"), order.into());
    if !changed.is_empty() {
        patch.insert(field.to_owned(), changed.into());
    }
    patch
}

/// What tells the elements of both lists apart.
fn key(field: &str, wanted: &[Value], live: &[Value]) -> Option<&'static str> {
    let (_, keys) = KEYS.iter().find(|(name, _)| *name == field)?;
    let everywhere = |key: &&&str| wanted.iter().chain(live).all(|one| one.get(**key).is_some());
    keys.iter().find(everywhere).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(last: Value, wanted: Value, live: Value, by_key: Value, whole: Value) {
        for (lists, expected) in [(Lists::ByKey, by_key), (Lists::Whole, whole)] {
            let patch = patch(Some(&last), &wanted, &live, lists).unwrap_or_default();
            assert_eq!(patch, expected, "{lists:?}");
        }
    }

    #[test]
    fn nothing_to_change_is_no_patch() {
        let live = json!({"a": {"b": 1, "theirs": 2}, "containers": [{"name": "x", "image": "i", "defaulted": true}]});
        let wanted = json!({"a": {"b": 1}, "nothing": null});
        assert_eq!(patch(None, &wanted, &live, Lists::ByKey), None);
        assert_eq!(patch(None, &wanted, &live, Lists::Whole), None);
        let wanted = json!({"containers": [{"name": "x", "image": "i"}]});
        assert_eq!(patch(None, &wanted, &live, Lists::ByKey), None);
    }

    #[test]
    fn what_is_no_longer_said_goes_and_what_others_said_stays() {
        let patch = json!({"a": {"new": 1, "old": null}});
        check(
            json!({"a": {"old": 1, "kept": 1, "gone": 1}}),
            json!({"a": {"kept": 1, "new": 1}}),
            json!({"a": {"old": 2, "kept": 1, "theirs": 3}}),
            patch.clone(),
            patch,
        );
        check(
            json!({"a": 1}),
            json!({}),
            json!({"a": 1}),
            json!({"a": null}),
            json!({"a": null}),
        );
    }

    #[test]
    fn elements_are_found_by_their_key() {
        check(
            json!({"containers": [{"name": "a", "image": "1"}, {"name": "b"}]}),
            json!({"containers": [{"name": "c"}, {"name": "a", "image": "2"}]}),
            json!({"containers": [{"name": "a", "image": "1", "more": 1}, {"name": "b"}, {"name": "theirs"}]}),
            json!({
                "$setElementOrder/containers": [{"name": "c"}, {"name": "a"}],
                "containers": [{"name": "c"}, {"name": "a", "image": "2"}, {"$patch": "delete", "name": "b"}],
            }),
            json!({"containers": [{"name": "c"}, {"name": "a", "image": "2"}]}),
        );
        // The order alone.
        check(
            json!({}),
            json!({"env": [{"name": "b"}, {"name": "a"}]}),
            json!({"env": [{"name": "a"}, {"name": "b"}]}),
            json!({"$setElementOrder/env": [{"name": "b"}, {"name": "a"}]}),
            json!({"env": [{"name": "b"}, {"name": "a"}]}),
        );
        // Ports of a service, which have another key than those of a container.
        check(
            json!({}),
            json!({"ports": [{"port": 80, "targetPort": 8080}]}),
            json!({"ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}]}),
            json!({"$setElementOrder/ports": [{"port": 80}], "ports": [{"port": 80, "targetPort": 8080}]}),
            json!({"ports": [{"port": 80, "targetPort": 8080}]}),
        );
    }

    #[test]
    fn lists_without_a_key_are_set_as_a_whole() {
        let patch = json!({"args": ["b"]});
        check(
            json!({"args": ["a"]}),
            json!({"args": ["b"]}),
            json!({"args": ["a"]}),
            patch.clone(),
            patch,
        );
    }

    #[test]
    fn sets_name_what_goes() {
        check(
            json!({"finalizers": ["a", "b"]}),
            json!({"finalizers": ["b", "c"]}),
            json!({"finalizers": ["a", "b", "theirs"]}),
            json!({"$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["c"]}),
            json!({"finalizers": ["b", "c"]}),
        );
    }

    #[test]
    fn fields_that_exclude_each_other_are_not_mixed() {
        let live = json!({"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}});
        let patch = patch(None, &json!({"strategy": {"type": "Recreate"}}), &live, Lists::ByKey);
        let expected = json!({"strategy": {"$retainKeys": ["type"], "type": "Recreate"}});
        assert_eq!(patch, Some(expected));
    }
}
