//! What a plan reads: objects at one moment, and the time.

use std::collections::BTreeSet;
use std::sync::Arc;

use proto::object::{Key, Kind, Revision, Uid};
use proto::time::{Mono, Wall};
use proto::value::Value;

/// One object as a plan sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Object {
    pub key: Key,
    pub uid: Uid,
    pub revision: Revision,
    /// With the node's report laid over it. Never written back: writes go to the body, through [`super::plan::Write`].
    pub value: Arc<Value>,
}

impl Object {
    pub fn is_deleting(&self) -> bool {
        self.value.at(&["metadata", "deletionTimestamp"]).is_some()
    }

    pub fn generation(&self) -> i64 {
        self.value.int_at(&["metadata", "generation"]).unwrap_or(0)
    }

    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.value.text_at(&["metadata", "annotations", name])
    }

    pub fn label(&self, name: &str) -> Option<&str> {
        self.value.text_at(&["metadata", "labels", name])
    }

    /// Seconds since 1970 as the object has them: for ordering and for people, never for a wait.
    pub fn created(&self) -> &str {
        self.value
            .text_at(&["metadata", "creationTimestamp"])
            .unwrap_or_default()
    }

    pub fn has_finalizer(&self, name: &str) -> bool {
        self.value
            .list_at(&["metadata", "finalizers"])
            .iter()
            .any(|finalizer| finalizer.as_text() == Some(name))
    }
}

/// One change of one object: created (no `before`), replaced, or deleted (no `after`).
#[derive(Debug, Clone)]
pub struct Change {
    pub before: Option<Object>,
    pub after: Option<Object>,
}

impl Change {
    /// The newest state that there is of the object.
    pub fn latest(&self) -> Option<&Object> {
        self.after.as_ref().or(self.before.as_ref())
    }

    /// Both states, newest first.
    pub fn states(&self) -> impl Iterator<Item = &Object> {
        self.after.iter().chain(self.before.iter())
    }
}

/// Now, on both clocks: `mono` decides, `wall` is written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    pub mono: Mono,
    pub wall: Wall,
}

/// Objects at one moment. Everything committed before the view was asked is in it, the caller's own writes too: that
/// is what lets a plan create what it does not see without an expectation beside it.
pub trait View {
    fn get(&self, key: &Key) -> Option<Object>;
    /// All objects of a kind, of one namespace or of all.
    fn list(&self, kind: &Kind, namespace: Option<&str>) -> WholeList;
    /// The pods bound to a node, from an index.
    fn pods_on(&self, node: &str) -> WholeList;
    /// The object as stored, without any report: what a write starts from.
    fn body(&self, key: &Key) -> Option<Object>;
    /// The kinds that the store may hold. Of any other kind nothing can be said to be absent.
    fn kinds(&self) -> &BTreeSet<Kind>;
}

/// A list that is known to be whole: one revision, nothing left out. Only from such a list may absence be concluded: it
/// is for the store's own lists what [`proto::digest::CompleteSet`] is for sets that travel.
#[derive(Debug, Clone, PartialEq)]
pub struct WholeList {
    revision: Revision,
    objects: Vec<Object>,
}

/// A list that is not whole, or not of one revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the list holds {found} of {expected} objects at revision {revision}")]
pub struct Incomplete {
    pub found: usize,
    pub expected: usize,
    pub revision: Revision,
}

impl WholeList {
    /// Takes a list whose maker says how many objects there are at that revision.
    pub fn new(revision: Revision, objects: Vec<Object>, expected: usize) -> Result<Self, Incomplete> {
        let newer = objects.iter().any(|object| object.revision > revision);
        let distinct: BTreeSet<_> = objects.iter().map(|object| object.uid).collect();
        if newer || distinct.len() != objects.len() || objects.len() != expected {
            return Err(Incomplete { found: distinct.len(), expected, revision });
        }
        Ok(Self { revision, objects })
    }

    pub fn revision(&self) -> Revision {
        self.revision
    }

    pub fn objects(&self) -> &[Object] {
        &self.objects
    }

    pub fn into_objects(self) -> Vec<Object> {
        self.objects
    }

    /// Whether an object of this uid is in it; only a whole set may say no.
    pub fn holds(&self, uid: Uid) -> bool {
        self.objects.iter().any(|object| object.uid == uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(uid: u8, revision: u64) -> Object {
        Object {
            key: Key::new("Pod", "a", format!("p{uid}")),
            uid: Uid([uid; 16]),
            revision: Revision(revision),
            value: Arc::new(Value::map()),
        }
    }

    #[test]
    fn only_a_whole_list_of_one_revision_is_complete() {
        let set = |objects: Vec<Object>, expected| WholeList::new(Revision(5), objects, expected);
        assert!(set(vec![object(1, 3), object(2, 5)], 2).is_ok_and(|set| set.holds(Uid([1; 16]))));
        assert!(set(vec![object(1, 3)], 2).is_err(), "one is missing");
        assert!(set(vec![object(1, 6)], 1).is_err(), "newer than the revision");
        assert!(set(vec![object(1, 3), object(1, 3)], 2).is_err(), "one is doubled");
    }
}
