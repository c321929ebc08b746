//! What happens to `metadata` when an object is made or changed. Pure: time, identity and the random suffix are given.

use proto::object::Uid;
use proto::time::Wall;
use proto::value::Value;

use crate::api::status::Refusal;

/// Letters of a generated name: none that makes a word or looks like another.
const SUFFIX_LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
/// Longest prefix of a generated name that stays whole.
const GENERATED_PREFIX_MAX: usize = 58;

/// What only the server writes, and a client may send back or not.
const SERVED: [&str; 5] = [
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
];

/// Five letters of a generated name.
pub(super) fn suffix(random: [u8; 5]) -> String {
    let letter = |byte: u8| char::from(SUFFIX_LETTERS[usize::from(byte) % SUFFIX_LETTERS.len()]);
    random.into_iter().map(letter).collect()
}

/// Where the object of a request has to be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) namespace: Option<&'a str>,
    /// `None` for a create.
    pub(super) name: Option<&'a str>,
}

/// Checks name and namespace of an object against the path it was sent to, and fills in what it left out.
pub(super) fn place(object: &mut Value, place: Place<'_>) -> Result<(), Refusal> {
    let given = object.text_at(&["metadata", "namespace"]).unwrap_or_default();
    match place.namespace {
        Some(namespace) if given.is_empty() => object.set(&["metadata", "namespace"], namespace),
        Some(namespace) if given != namespace => {
            return Err(Refusal::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        Some(_) => {}
        None => {
            object.remove(&["metadata", "namespace"]);
        }
    }
    let Some(name) = place.name else { return Ok(()) };
    let given = object.text_at(&["metadata", "name"]).unwrap_or_default();
    if given.is_empty() {
        object.set(&["metadata", "name"], name);
    } else if given != name {
        return Err(Refusal::bad_request(format!(
            "the name of the object ({given}) does not match the name on the URL ({name})"
        )));
    }
    Ok(())
}

/// Prepares the metadata of a new object, whose name and namespace stand.
pub(super) fn create(object: &mut Value, uid: Uid, now: Wall) {
    drop_unstored(object);
    for field in SERVED {
        object.remove(&["metadata", field]);
    }
    object.set(&["metadata", "uid"], uid.to_string());
    object.set(&["metadata", "creationTimestamp"], now.rfc3339());
}

/// Takes away what is never stored: the resource version is the store's, and managed fields are not tracked.
pub(super) fn drop_unstored(object: &mut Value) {
    for field in ["resourceVersion", "managedFields", "selfLink"] {
        object.remove(&["metadata", field]);
    }
    // Empty is absent, as the real server writes it.
    for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
        let empty = match object.at(&["metadata", field]) {
            Some(Value::Map(map)) => map.is_empty(),
            Some(Value::List(list)) => list.is_empty(),
            Some(Value::Null) => true,
            _ => false,
        };
        if empty {
            object.remove(&["metadata", field]);
        }
    }
}

/// The next generation.
pub(super) fn count(object: &mut Value) {
    let generation = object.int_at(&["metadata", "generation"]).unwrap_or(0);
    object.set(&["metadata", "generation"], generation.saturating_add(1));
}

/// The name that `generateName` asks for; `None` when a name is given or nothing is.
pub(super) fn generated(object: &Value, random: [u8; 5]) -> Option<String> {
    let text = |field| object.text_at(&["metadata", field]).filter(|text| !text.is_empty());
    if text("name").is_some() {
        return None;
    }
    let prefix: String = text("generateName")?.chars().take(GENERATED_PREFIX_MAX).collect();
    Some(prefix + &suffix(random))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::value::json;

    fn object(text: &str) -> Value {
        json::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn generated_names() {
        assert_eq!(
            generated(&object(r#"{"metadata":{"name":"a","generateName":"b"}}"#), [0; 5]),
            None
        );
        assert_eq!(generated(&object(r#"{"metadata":{}}"#), [0; 5]), None);
        assert_eq!(
            generated(&object(r#"{"metadata":{"generateName":"g-"}}"#), [0, 1, 2, 26, 27]).as_deref(),
            Some("g-bcd9b")
        );
        let long = format!(r#"{{"metadata":{{"generateName":"{}"}}}}"#, "x".repeat(60));
        assert_eq!(generated(&object(&long), [0; 5]).map(|name| name.len()), Some(63));
    }
}
