//! JSON patch (RFC 6902), with the quirks of a real server: `replace` and `test` find null where a map has no such
//! field, nothing can be done to the root, and whatever fails, no reason is given.

use proto::value::Value;

use super::{OPERATIONS_MAX, PatchError};

pub(super) fn apply(mut target: Value, operations: &[Value]) -> Result<Value, PatchError> {
    if operations.len() > OPERATIONS_MAX {
        return Err(PatchError::TooMany(operations.len()));
    }
    for operation in operations {
        step(&mut target, operation).ok_or(PatchError::Rejected)?;
    }
    Ok(target)
}

/// One operation; `None` when it does not apply.
fn step(target: &mut Value, operation: &Value) -> Option<()> {
    let path = pointer(operation.text_at(&["path"])?)?;
    let value = || operation.get("value").cloned().unwrap_or_default();
    match operation.text_at(&["op"])? {
        "add" => add(target, &path, operation.get("value").cloned()?),
        "remove" => remove(target, &path).map(|_| ()),
        "replace" => replace(target, &path, operation.get("value").cloned()?),
        "test" => (find(target, &path)? == value()).then_some(()),
        "move" => {
            let moved = remove(target, &pointer(operation.text_at(&["from"])?)?)?;
            add(target, &path, moved)
        }
        "copy" => {
            let copied = find(target, &pointer(operation.text_at(&["from"])?)?)?;
            add(target, &path, copied)
        }
        _ => None,
    }
}

/// The steps of a pointer; `None` for the root and for what is no pointer.
fn pointer(text: &str) -> Option<Vec<String>> {
    let steps = text.strip_prefix('/')?;
    Some(
        steps
            .split('/')
            .map(|step| step.replace("~1", "/").replace("~0", "~"))
            .collect(),
    )
}

/// The container of what a path names, and the path's last step.
fn container<'t, 'p>(target: &'t mut Value, path: &'p [String]) -> Option<(&'t mut Value, &'p str)> {
    let (last, parents) = path.split_last()?;
    let container = parents.iter().try_fold(target, |value, step| match value {
        Value::Map(map) => map.get_mut(step),
        Value::List(list) => {
            let at = index(step)?;
            list.get_mut(at)
        }
        _ => None,
    })?;
    Some((container, last))
}

fn index(step: &str) -> Option<usize> {
    step.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| step.parse().ok())?
}

/// What stands at a path; null for a field that a map does not have.
fn find(target: &mut Value, path: &[String]) -> Option<Value> {
    match container(target, path)? {
        (Value::Map(map), name) => Some(map.get(name).cloned().unwrap_or_default()),
        (Value::List(list), at) => list.get(index(at)?).cloned(),
        _ => None,
    }
}

fn add(target: &mut Value, path: &[String], value: Value) -> Option<()> {
    match container(target, path)? {
        (Value::Map(map), name) => {
            map.insert(name.to_owned(), value);
        }
        (Value::List(list), "-") => list.push(value),
        (Value::List(list), at) => {
            let at = index(at).filter(|at| *at <= list.len())?;
            list.insert(at, value);
        }
        _ => return None,
    }
    Some(())
}

fn replace(target: &mut Value, path: &[String], value: Value) -> Option<()> {
    match container(target, path)? {
        (Value::Map(map), name) => {
            map.insert(name.to_owned(), value);
        }
        (Value::List(list), at) => *list.get_mut(index(at)?)? = value,
        _ => return None,
    }
    Some(())
}

fn remove(target: &mut Value, path: &[String]) -> Option<Value> {
    match container(target, path)? {
        (Value::Map(map), name) => map.remove(name),
        (Value::List(list), at) => {
            let at = index(at).filter(|at| *at < list.len())?;
            Some(list.remove(at))
        }
        _ => None,
    }
}
