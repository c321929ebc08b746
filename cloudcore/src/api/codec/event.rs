//! The two spellings of an event: `v1`, which is stored, and `events.k8s.io/v1`.

use proto::value::{Map, Value};

use crate::api::kinds::KindData;

/// (name in `v1`, name in `events.k8s.io/v1`), where they differ.
const RENAMED: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

/// Turns an object of a served kind into the spelling that is stored.
pub fn to_stored(kind: &KindData, object: &mut Value) {
    if let Some(map) = other_event(kind, object) {
        rename(map, RENAMED.map(|(stored, served)| (served, stored)));
        map.insert("apiVersion".to_owned(), Value::from("v1"));
        // The one always writes these, the other leaves them out when empty.
        for name in ["reportingComponent", "reportingInstance"] {
            map.get_or_insert_with(name, || Value::from(""));
        }
    }
}

/// Turns a stored object into the spelling of a served kind.
pub fn from_stored(kind: &KindData, object: &mut Value) {
    if let Some(map) = other_event(kind, object) {
        rename(map, RENAMED);
        map.insert("apiVersion".to_owned(), Value::from(kind.api_version()));
        for name in ["reportingController", "reportingInstance"] {
            if map.get(name).and_then(Value::as_text) == Some("") {
                map.remove(name);
            }
        }
    }
}

fn other_event<'o>(kind: &KindData, object: &'o mut Value) -> Option<&'o mut Map> {
    (kind.kind == "Event" && kind.storage.0 != kind.group).then(|| object.as_map_mut())?
}

fn rename<const N: usize>(map: &mut Map, names: [(&str, &str); N]) {
    for (from, to) in names {
        if let Some(value) = map.remove(from) {
            map.insert(to.to_owned(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use proto::value::json;

    use super::*;
    use crate::api::kinds;

    #[test]
    fn events_change_their_spelling_and_back() {
        let served = kinds::kind("events.k8s.io", "v1", "Event").unwrap();
        let text =
            br#"{"apiVersion":"events.k8s.io/v1","kind":"Event","note":"n","reason":"R","regarding":{"name":"x"},
            "deprecatedSource":{},"reportingController":"c","metadata":{"name":"e"}}"#;
        let event = json::parse(text).unwrap();
        let mut stored = event.clone();
        to_stored(served, &mut stored);
        assert_eq!(stored.text_at(&["apiVersion"]), Some("v1"));
        assert_eq!(stored.text_at(&["involvedObject", "name"]), Some("x"));
        assert_eq!(stored.text_at(&["message"]), Some("n"));
        assert_eq!(stored.text_at(&["reportingInstance"]), Some(""));
        let mut back = stored.clone();
        from_stored(served, &mut back);
        assert_eq!(back, event);
        let core = kinds::kind("", "v1", "Event").unwrap();
        let mut same = stored.clone();
        from_stored(core, &mut same);
        assert_eq!(same, stored);
    }
}
