//! Strategic merge patch: maps merge, lists merge where the schema gives them a key, directives (`$…`) say the rest.
//!
//! The order of a merged list follows the patch (or its `$setElementOrder`), with elements that only the server has put
//! in before the first patched one that stands behind them on the server; an element that is new to the server comes
//! first.

use proto::value::{Map, Value};

use super::PatchError;
use crate::api::schema::{Field, Type};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const ELEMENT_ORDER: &str = "$setElementOrder/";
const DELETE_FROM_LIST: &str = "$deleteFromPrimitiveList/";

/// Applies a patch to an object of a type.
pub(super) fn apply(target: Value, patch: Map, kind: &'static Type) -> Result<Value, PatchError> {
    let target = match target {
        Value::Map(map) => map,
        _ => Map::new(),
    };
    merge_map(target, patch, Some(kind)).map(Value::Map)
}

fn merge_map(mut target: Map, mut patch: Map, kind: Option<&'static Type>) -> Result<Map, PatchError> {
    match patch.get(DIRECTIVE).map(Value::as_text) {
        None => {}
        Some(Some("replace")) => {
            patch.remove(DIRECTIVE);
            return Ok(patch);
        }
        Some(Some("delete")) => return Ok(Map::new()),
        Some(_) => return Err(unknown_directive(&patch)),
    }
    if let Some(keys) = patch.remove(RETAIN_KEYS) {
        let keys = keys.as_list().ok_or(PatchError::Directive("retainKeys"))?;
        let retained = |name: &str| keys.iter().any(|key| key.as_text() == Some(name));
        if patch
            .iter()
            .any(|(name, value)| !value.is_null() && !name.starts_with('$') && !retained(name))
        {
            return Err(PatchError::Directive("retainKeys"));
        }
        target.retain(|name, _| retained(name));
    }
    order_lists(&mut target, &mut patch, kind)?;
    for (name, change) in patch {
        if let Some(list) = name.strip_prefix(DELETE_FROM_LIST) {
            let gone = change.as_list().ok_or(PatchError::Directive("primitive list"))?;
            if let Some(Value::List(list)) = target.get_mut(list) {
                list.retain(|element| !gone.contains(element));
            }
            continue;
        }
        if change.is_null() {
            target.remove(&name);
            continue;
        }
        let field = kind.and_then(|kind| kind.field(&name));
        let merged = match (target.remove(&name), change) {
            (Some(Value::Map(before)), Value::Map(change)) => {
                merge_map(before, change, field.and_then(Field::message)).map(Value::Map)?
            }
            (Some(Value::List(before)), Value::List(change)) => merge_list(before, change, field).map(Value::List)?,
            (_, change) => match without_directives(change) {
                Some(change) => change,
                None => continue,
            },
        };
        target.insert(name, merged);
    }
    Ok(target)
}

/// Merges the lists whose order the patch sets, and takes them out of the patch.
fn order_lists(target: &mut Map, patch: &mut Map, kind: Option<&'static Type>) -> Result<(), PatchError> {
    let ordered: Vec<String> = patch
        .keys()
        .filter_map(|name| name.strip_prefix(ELEMENT_ORDER))
        .map(ToOwned::to_owned)
        .collect();
    for name in ordered {
        let malformed = || PatchError::Directive("setElementOrder list");
        let Some(Value::List(order)) = patch.remove(&[ELEMENT_ORDER, &name].concat()) else {
            return Err(malformed());
        };
        let field = kind.and_then(|kind| kind.field(&name));
        let key = field.and_then(|field| field.merge_key).unwrap_or_default();
        let change = match patch.remove(&name) {
            None => None,
            Some(Value::List(change)) => Some(change),
            Some(Value::Null) => {
                target.remove(&name);
                continue;
            }
            Some(_) => return Err(malformed()),
        };
        let before = match target.remove(&name) {
            Some(Value::List(before)) => Some(before),
            Some(other) => {
                target.insert(name, other);
                return Err(malformed());
            }
            None => None,
        };
        if let Some(change) = &change {
            check_order(change, &order, key)?;
        }
        let server = before.clone().unwrap_or_default();
        let merged = match (before, change) {
            (None, None) => continue,
            (Some(before), None) => before,
            (None, Some(change)) => change.into_iter().filter_map(without_directives).collect(),
            (Some(before), Some(change)) => merge_list(before, change, field)?,
        };
        target.insert(name, Value::List(arrange(merged, &order, &server, key)));
    }
    Ok(())
}

/// A patch list must be ordered as its own `$setElementOrder` says.
fn check_order(change: &[Value], order: &[Value], key: &str) -> Result<(), PatchError> {
    let mut rest = order.iter();
    for element in change.iter().filter(|element| element.get(DIRECTIVE).is_none()) {
        if !rest.any(|ordered| same(ordered, element, key)) {
            return Err(PatchError::Strategic(format!(
                "The order in patch list:\n{}\n doesn't match $setElementOrder list:\n{}\n",
                print(&Value::List(change.to_vec())),
                print(&Value::List(order.to_vec()))
            )));
        }
    }
    Ok(())
}

fn merge_list(before: Vec<Value>, change: Vec<Value>, field: Option<&Field>) -> Result<Vec<Value>, PatchError> {
    let Some((field, key)) = field.and_then(|field| Some((field, field.merge_key?))) else {
        return Ok(change.into_iter().filter_map(without_directives).collect());
    };
    if !key.is_empty() {
        return merge_by_key(before, change, field, key);
    }
    if change
        .iter()
        .chain(&before)
        .any(|element| matches!(element, Value::List(_) | Value::Map(_)))
    {
        return Err(PatchError::Directive("primitive list"));
    }
    let mut merged = Vec::with_capacity(before.len() + change.len());
    for element in before.iter().chain(&change) {
        if !merged.contains(element) {
            merged.push(element.clone());
        }
    }
    Ok(arrange(merged, &change, &before, key))
}

fn merge_by_key(
    mut before: Vec<Value>,
    change: Vec<Value>,
    field: &Field,
    key: &str,
) -> Result<Vec<Value>, PatchError> {
    let mut patches = Vec::with_capacity(change.len());
    let mut replace = false;
    for element in change {
        let Value::Map(element) = element else {
            return Err(PatchError::Strategic(format!(
                "unable to merge a list of maps with the value {}",
                print(&element)
            )));
        };
        match element.get(DIRECTIVE).map(Value::as_text) {
            None => patches.push(element),
            Some(Some("delete")) => {
                let gone = Value::Map(element);
                if gone.get(key).is_none() {
                    return Err(no_key(&gone, key));
                }
                before.retain(|one| !same(one, &gone, key));
            }
            Some(Some("replace")) => replace = true,
            Some(Some("merge")) => {
                return Err(PatchError::Strategic(
                    "merging lists cannot yet be specified in the patch".to_owned(),
                ));
            }
            Some(_) => return Err(unknown_directive(&element)),
        }
    }
    if replace {
        return Ok(patches
            .into_iter()
            .map(Value::Map)
            .filter_map(without_directives)
            .collect());
    }
    let server = before.clone();
    let mut order = Vec::with_capacity(patches.len());
    let mut merged = before;
    for element in patches {
        let Some(named) = element.get(key).cloned() else {
            return Err(no_key(&Value::Map(element), key));
        };
        order.push(Value::from([(key, named)]));
        let element = Value::Map(element);
        match merged.iter_mut().find(|one| same(one, &element, key)) {
            Some(slot) => {
                if let (Value::Map(before), Value::Map(element)) = (std::mem::take(slot), element) {
                    *slot = Value::Map(merge_map(before, element, field.message())?);
                }
            }
            None => merged.extend(without_directives(element)),
        }
    }
    Ok(arrange(merged, &order, &server, key))
}

/// Puts the elements that `order` names in its order, and the others between them as they stand in `server`.
fn arrange(merged: Vec<Value>, order: &[Value], server: &[Value], key: &str) -> Vec<Value> {
    let place = |list: &[Value], element: &Value| list.iter().position(|one| same(one, element, key));
    let (mut ordered, mut others): (Vec<Value>, Vec<Value>) =
        merged.into_iter().partition(|element| place(order, element).is_some());
    ordered.sort_by_key(|element| place(order, element));
    others.sort_by_key(|element| place(server, element));
    let mut arranged = Vec::with_capacity(ordered.len() + others.len());
    let mut others = others.into_iter().peekable();
    for element in ordered {
        let at = place(server, &element);
        while let Some(other) = others.next_if(|other| match (place(server, other), at) {
            (Some(other), Some(at)) => other < at,
            _ => false,
        }) {
            arranged.push(other);
        }
        arranged.push(element);
    }
    arranged.extend(others);
    arranged
}

/// Whether two elements are one, by the key of their list.
fn same(one: &Value, other: &Value, key: &str) -> bool {
    if key.is_empty() {
        return one == other;
    }
    match (one.get(key), other.get(key)) {
        (Some(one), Some(other)) => one == other,
        _ => false,
    }
}

/// A value that is new to the target: without directives and nulls; `None` when a directive deletes it.
fn without_directives(value: Value) -> Option<Value> {
    Some(match value {
        Value::Map(map) => {
            if map.get(DIRECTIVE).and_then(Value::as_text) == Some("delete") {
                return None;
            }
            let directive = |name: &str| {
                name == DIRECTIVE
                    || name == RETAIN_KEYS
                    || name.starts_with(ELEMENT_ORDER)
                    || name.starts_with(DELETE_FROM_LIST)
            };
            let kept = map
                .into_iter()
                .filter(|(name, value)| !directive(name) && !value.is_null());
            Value::Map(
                kept.filter_map(|(name, value)| Some((name, without_directives(value)?)))
                    .collect(),
            )
        }
        Value::List(list) => Value::List(list.into_iter().filter_map(without_directives).collect()),
        other => other,
    })
}

fn unknown_directive(patch: &Map) -> PatchError {
    let named = patch.get(DIRECTIVE).map(print).unwrap_or_default();
    PatchError::Strategic(format!("unknown patch type: {named} in map: {}", print_map(patch)))
}

fn no_key(element: &Value, key: &str) -> PatchError {
    PatchError::Strategic(format!(
        "map: {} does not contain declared merge key: {key}",
        print(element)
    ))
}

/// A value as Go prints it.
fn print(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::I64(number) => number.to_string(),
        Value::U64(number) => number.to_string(),
        Value::F64(number) => number.to_string(),
        Value::Text(text) => text.to_string(),
        Value::Bytes(bytes) => format!("{bytes:?}"),
        Value::List(list) => format!("[{}]", list.iter().map(print).collect::<Vec<_>>().join(" ")),
        Value::Map(map) => print_map(map),
    }
}

fn print_map(map: &Map) -> String {
    let fields: Vec<String> = map
        .iter()
        .map(|(name, value)| format!("{name}:{}", print(value)))
        .collect();
    format!("map[{}]", fields.join(" "))
}
