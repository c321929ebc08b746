//! The conditions of a status: one per type, with the time at which its status last changed.

use proto::time::Wall;
use proto::value::Value;

/// A condition without its times, which [`set`] fills in.
pub fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    let mut condition = Value::from([("type", kind), ("status", status)]);
    if !reason.is_empty() {
        condition.set(&["reason"], reason);
    }
    if !message.is_empty() {
        condition.set(&["message"], message);
    }
    condition
}

/// The condition of a type.
pub fn get<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object
        .list_at(&["status", "conditions"])
        .iter()
        .find(|condition| condition.text_at(&["type"]) == Some(kind))
}

/// The status of a condition; `None` where there is none.
pub fn status<'a>(object: &'a Value, kind: &str) -> Option<&'a str> {
    get(object, kind)?.text_at(&["status"])
}

pub fn is_true(object: &Value, kind: &str) -> bool {
    status(object, kind) == Some("True")
}

/// Puts a condition into an object's status. One that says the same already is left as it is, times included, so that
/// a plan that changes nothing writes nothing.
pub fn set(object: &mut Value, condition: &Value, now: Wall) {
    let kind = condition.text_at(&["type"]).unwrap_or_default();
    let known = get(object, kind);
    let same = |field: &str| known.and_then(|known| known.get(field)) == condition.get(field);
    if known.is_some() && same("status") && same("reason") && same("message") {
        return;
    }
    let stamp = now.rfc3339();
    let mut fresh = condition.clone();
    let since = known
        .filter(|_| same("status"))
        .and_then(|known| known.text_at(&["lastTransitionTime"]))
        .unwrap_or(&stamp)
        .to_owned();
    fresh.set(&["lastTransitionTime"], since);
    // A Deployment's conditions tell also when they last said something new.
    if object.text_at(&["kind"]) == Some("Deployment") {
        fresh.set(&["lastUpdateTime"], stamp);
    }
    let mut all = object.list_at(&["status", "conditions"]).to_vec();
    match all.iter_mut().find(|one| one.text_at(&["type"]) == Some(kind)) {
        Some(one) => *one = fresh,
        None => all.push(fresh),
    }
    object.set(&["status", "conditions"], all);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transition_time_moves_only_with_the_status() {
        let at = |seconds: i64| Wall { ms: seconds * 1000, trusted: true };
        let mut object = Value::from([("kind", "Deployment")]);
        set(&mut object, &condition("Ready", "True", "A", "x"), at(1));
        set(&mut object, &condition("Ready", "True", "B", "x"), at(2));
        let ready = get(&object, "Ready").unwrap();
        assert_eq!(ready.text_at(&["lastTransitionTime"]), Some("1970-01-01T00:00:01Z"));
        assert_eq!(ready.text_at(&["lastUpdateTime"]), Some("1970-01-01T00:00:02Z"));
        let before = object.clone();
        set(&mut object, &condition("Ready", "True", "B", "x"), at(3));
        assert_eq!(object, before, "nothing new, nothing written");
        set(&mut object, &condition("Ready", "False", "B", "x"), at(4));
        assert_eq!(
            get(&object, "Ready").unwrap().text_at(&["lastTransitionTime"]),
            Some("1970-01-01T00:00:04Z")
        );
        assert!(!is_true(&object, "Ready") && !is_true(&object, "None"));
    }
}
