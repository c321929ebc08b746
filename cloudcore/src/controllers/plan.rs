//! What a plan writes, and how a write becomes an operation on the store.
//!
//! A plan names changes, not new objects: an [`Edit`] is applied to the body that is stored now, and only if it is
//! still the object and the revision that the plan read. So a plan never carries a node's report into a body, and a
//! plan that was overtaken is a quiet retry. Everything here is pure; who carries out a [`Resolved`] is the rim.

use proto::object::{Key, Kind, Revision, Uid};
use proto::time::rfc3339;
use proto::value::Value;
use reconcile::Outcome;

use super::conditions;
use super::view::{Now, Object, View};

/// The grace of a pod that names none.
const GRACE_SECONDS: i64 = 30;

/// What to do now and when to look again.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Carried out all or none.
    pub writes: Vec<Write>,
    /// Told to people; never in the way of the writes.
    pub notes: Vec<Note>,
    pub outcome: Outcome,
}

impl Plan {
    pub fn nothing() -> Self {
        Self::of(Vec::new())
    }

    pub fn of(writes: Vec<Write>) -> Self {
        Self { writes, notes: Vec::new(), outcome: Outcome::Done }
    }
}

/// One write of a plan.
#[derive(Debug, Clone, PartialEq)]
pub enum Write {
    /// Makes an object; uid, creation time, generation and a generated name are filled in.
    Create(Value),
    /// Changes an object, if it is still the one that was read.
    Edit { key: Key, uid: Uid, revision: Revision, edits: Vec<Edit> },
    /// Deletes an object with its grace and finalizers, if it is still that object.
    Delete { key: Key, uid: Uid },
    /// Deletes a pod without grace: nobody is left who could end it.
    Purge { key: Key, uid: Uid },
}

impl Write {
    pub fn edit(object: &Object, edits: Vec<Edit>) -> Self {
        Self::Edit {
            key: object.key.clone(),
            uid: object.uid,
            revision: object.revision,
            edits,
        }
    }

    pub fn delete(object: &Object) -> Self {
        Self::Delete { key: object.key.clone(), uid: object.uid }
    }
}

/// One change inside an object.
#[derive(Debug, Clone, PartialEq)]
pub enum Edit {
    Set(Vec<String>, Value),
    Remove(Vec<String>),
    /// Sets a condition of the status, by its type; the transition time moves only with the status.
    Condition(Value),
}

impl Edit {
    pub fn set(path: &[&str], value: impl Into<Value>) -> Self {
        Self::Set(path.iter().map(|step| (*step).to_owned()).collect(), value.into())
    }

    pub fn remove(path: &[&str]) -> Self {
        Self::Remove(path.iter().map(|step| (*step).to_owned()).collect())
    }

    /// Sets the value, or takes the field away where Kubernetes would leave a zero out.
    pub fn count(path: &[&str], number: usize) -> Self {
        match i64::try_from(number) {
            Ok(0) => Self::remove(path),
            Ok(number) => Self::set(path, number),
            Err(_) => Self::set(path, i64::MAX),
        }
    }
}

/// An event to tell about an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    pub about: Key,
    pub uid: Uid,
    pub warning: bool,
    pub reason: &'static str,
    pub message: String,
    pub component: &'static str,
}

/// An operation with its preconditions.
#[derive(Debug, Clone, PartialEq)]
pub enum Resolved {
    Create {
        key: Key,
        value: Value,
    },
    Replace {
        key: Key,
        value: Value,
        uid: Uid,
        revision: Revision,
    },
    Delete {
        key: Key,
        uid: Uid,
        revision: Revision,
    },
    /// It is so already.
    Nothing,
    /// The object is another one, or newer: plan again.
    Overtaken,
}

/// Where the rim's identities come from: sixteen random bytes per call.
pub type Random<'a> = &'a mut dyn FnMut() -> [u8; 16];

/// Turns a write into an operation on what is stored now.
pub fn resolve(write: &Write, view: &dyn View, now: Now, random: Random<'_>) -> Resolved {
    match write {
        Write::Create(value) => create(value.clone(), now, random),
        Write::Edit { key, uid, revision, edits } => match view.body(key) {
            Some(body) if body.uid == *uid && body.revision == *revision => replace(&body, edits, now),
            Some(_) | None => Resolved::Overtaken,
        },
        Write::Delete { key, uid } => match view.body(key) {
            Some(body) if body.uid == *uid => {
                // How far a pod has come is its node's to say, so it stands in the report and not in the body.
                let read = view.get(key);
                delete(&body, read.as_ref().unwrap_or(&body), now)
            }
            // Another object of that name is none of this plan's business, and a missing one is what it wanted.
            Some(_) | None => Resolved::Nothing,
        },
        Write::Purge { key, uid } => match view.body(key) {
            Some(body) if body.uid == *uid => removal(&body),
            Some(_) | None => Resolved::Nothing,
        },
    }
}

fn create(mut value: Value, now: Now, random: Random<'_>) -> Resolved {
    if value.text_at(&["metadata", "name"]).is_none() {
        let prefix = value.text_at(&["metadata", "generateName"]).unwrap_or_default();
        let name = format!("{prefix}{}", suffix(random()));
        value.set(&["metadata", "name"], name);
    }
    value.set(&["metadata", "uid"], Uid::random(random()).to_string());
    value.set(&["metadata", "creationTimestamp"], now.wall.rfc3339());
    if has_generation(&value) {
        value.set(&["metadata", "generation"], 1);
    }
    Key::of(&value).map_or(Resolved::Nothing, |key| Resolved::Create { key, value })
}

fn replace(body: &Object, edits: &[Edit], now: Now) -> Resolved {
    let mut value = Value::clone(&body.value);
    for edit in edits {
        match edit {
            Edit::Set(path, to) => value.set(&steps(path), to.clone()),
            Edit::Remove(path) => drop(value.remove(&steps(path))),
            Edit::Condition(condition) => conditions::set(&mut value, condition, now.wall),
        }
    }
    if value == *body.value {
        return Resolved::Nothing;
    }
    // A deletion that only waited for this edit is carried out by it.
    if body.is_deleting()
        && !is_held(&value)
        && value.int_at(&["metadata", "deletionGracePeriodSeconds"]).unwrap_or(0) == 0
    {
        return removal(body);
    }
    if has_generation(&value) && value.get("spec") != body.value.get("spec") && !matches!(body.key.kind.as_str(), "Pod")
    {
        value.set(&["metadata", "generation"], body.generation() + 1);
    }
    Resolved::Replace {
        key: body.key.clone(),
        value,
        uid: body.uid,
        revision: body.revision,
    }
}

/// A deletion as the API does it: at once, or by a timestamp that finalizers or the node then answer.
fn delete(body: &Object, read: &Object, now: Now) -> Resolved {
    if body.is_deleting() {
        return Resolved::Nothing;
    }
    let grace = grace(read);
    if grace == 0 && !is_held(&body.value) {
        return removal(body);
    }
    let mut value = Value::clone(&body.value);
    let ends = now.wall.ms.div_euclid(1000).saturating_add(grace);
    value.set(&["metadata", "deletionTimestamp"], rfc3339(ends));
    value.set(&["metadata", "deletionGracePeriodSeconds"], grace);
    if has_generation(&value) {
        value.set(&["metadata", "generation"], body.generation() + 1);
    }
    if body.key.kind.as_str() == "Namespace" {
        value.set(&["status", "phase"], "Terminating");
    }
    Resolved::Replace {
        key: body.key.clone(),
        value,
        uid: body.uid,
        revision: body.revision,
    }
}

fn removal(body: &Object) -> Resolved {
    Resolved::Delete {
        key: body.key.clone(),
        uid: body.uid,
        revision: body.revision,
    }
}

/// Whether something besides grace holds the deletion up.
fn is_held(value: &Value) -> bool {
    let namespace = Kind::of(value).is_some_and(|kind| kind.as_str() == "Namespace");
    !value.list_at(&["metadata", "finalizers"]).is_empty()
        || namespace && !value.list_at(&["spec", "finalizers"]).is_empty()
}

/// Only a pod that a node may be running has a grace; the node says when it is over.
fn grace(read: &Object) -> i64 {
    let phase = read.value.text_at(&["status", "phase"]).unwrap_or_default();
    let bound = read
        .value
        .text_at(&["spec", "nodeName"])
        .is_some_and(|node| !node.is_empty());
    if read.key.kind.as_str() != "Pod" || !bound || matches!(phase, "Succeeded" | "Failed") {
        return 0;
    }
    let seconds = read.value.int_at(&["spec", "terminationGracePeriodSeconds"]);
    seconds.unwrap_or(GRACE_SECONDS).max(0)
}

fn has_generation(value: &Value) -> bool {
    value.get("spec").is_some() && !matches!(value.text_at(&["kind"]), Some("Node" | "Namespace" | "Service"))
}

fn steps(path: &[String]) -> Vec<&str> {
    path.iter().map(String::as_str).collect()
}

/// Five letters for a generated name.
fn suffix(random: [u8; 16]) -> String {
    let [a, b, c, d, e, f, g, h, ..] = random;
    letters(u64::from_be_bytes([a, b, c, d, e, f, g, h]), 5)
}

/// A number as letters that spell no words, as Kubernetes generates names.
pub(crate) fn letters(mut number: u64, count: usize) -> String {
    const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut text = String::with_capacity(count);
    for _ in 0..count {
        let at = usize::try_from(number % 27).unwrap_or(0);
        text.push(char::from(LETTERS[at]));
        number /= 27;
    }
    text
}

/// What a note does to the events: a new event, or one more of a known one.
pub fn tell(note: &Note, view: &dyn View, now: Now, random: Random<'_>) -> Resolved {
    // Cluster-wide objects have their events in the default namespace, as in Kubernetes.
    let namespace = match note.about.namespace.as_str() {
        "" => "default",
        namespace => namespace,
    };
    let mark = super::hash(format!("{} {} {}", note.uid, note.reason, note.message).as_bytes());
    let name = format!("{}.{mark:016x}", note.about.name);
    let stamp = now.wall.rfc3339();
    if let Some(known) = view.body(&Key::new("Event", namespace, name.clone())) {
        let count = known.value.int_at(&["count"]).unwrap_or(1).saturating_add(1);
        return replace(
            &known,
            &[Edit::set(&["count"], count), Edit::set(&["lastTimestamp"], stamp)],
            now,
        );
    }
    let mut about = Value::from([
        ("apiVersion", api_version(&note.about.kind)),
        ("kind", note.about.kind.kind().into()),
        ("name", note.about.name.as_str().into()),
        ("uid", note.uid.to_string().into()),
    ]);
    if !note.about.namespace.is_empty() {
        about.set(&["namespace"], note.about.namespace.as_str());
    }
    let value = Value::from([
        ("apiVersion", Value::from("v1")),
        ("kind", "Event".into()),
        ("metadata", [("name", name.as_str()), ("namespace", namespace)].into()),
        ("involvedObject", about),
        ("reason", note.reason.into()),
        ("message", note.message.as_str().into()),
        ("source", [("component", note.component)].into()),
        ("reportingComponent", note.component.into()),
        ("reportingInstance", "".into()),
        ("firstTimestamp", stamp.as_str().into()),
        ("lastTimestamp", stamp.as_str().into()),
        ("count", 1.into()),
        ("type", if note.warning { "Warning" } else { "Normal" }.into()),
        ("eventTime", Value::Null),
    ]);
    create(value, now, random)
}

/// The version in which the cores write objects of a kind.
pub fn api_version(kind: &Kind) -> Value {
    match kind.group() {
        "" => "v1".into(),
        group => format!("{group}/v1").into(),
    }
}
