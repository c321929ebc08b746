//! What a DELETE does to an object. Pure; the rules of grace, finalizers and propagation are all here.
//!
//! A deletion timestamp is never taken back, and a second DELETE can only shorten what is left.

use proto::time::{Wall, parse_rfc3339, rfc3339};
use proto::value::Value;

use super::meta;
use crate::api::kinds::KindData;
use crate::api::status::{About, Cause, Refusal};

/// Whose work it is to delete what the object owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Propagation {
    Background,
    Foreground,
    Orphan,
}

/// `DeleteOptions`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Options {
    pub(super) grace_s: Option<i64>,
    pub(super) propagation: Option<Propagation>,
    pub(super) uid: Option<String>,
    pub(super) revision: Option<String>,
    pub(super) dry_run: bool,
}

impl Options {
    /// Reads the body of a DELETE; null for none.
    pub(super) fn of(body: &Value) -> Result<Self, Refusal> {
        let mut wrong = Vec::new();
        let dry_run = body.list_at(&["dryRun"]).iter().filter_map(Value::as_text);
        let dry_run = crate::api::query::dry_run(dry_run, &mut wrong);
        let grace_s = body.int_at(&["gracePeriodSeconds"]);
        if grace_s.is_some_and(|grace| grace < 0) {
            let detail = format!("{}: must be greater than or equal to 0", grace_s.unwrap_or(0));
            wrong.push(Cause::invalid("gracePeriodSeconds", &detail));
        }
        let policy = body.text_at(&["propagationPolicy"]).filter(|policy| !policy.is_empty());
        let orphan = body.get("orphanDependents").and_then(Value::as_bool);
        if policy.is_some() && orphan.is_some() {
            let detail = "orphanDependents and deletionPropagation cannot be both set";
            wrong.push(Cause::invalid(
                "propagationPolicy",
                &format!("{:?}: {detail}", policy.unwrap_or_default()),
            ));
        }
        let propagation = match (policy, orphan) {
            (Some("Background"), _) | (None, Some(false)) => Some(Propagation::Background),
            (Some("Foreground"), _) => Some(Propagation::Foreground),
            (Some("Orphan"), _) | (None, Some(true)) => Some(Propagation::Orphan),
            (None, None) => None,
            (Some(other), _) => {
                let supported = "\"Foreground\", \"Background\", \"Orphan\", \"nil\"";
                wrong.push(Cause::unsupported(
                    "propagationPolicy",
                    &format!("{other:?}"),
                    supported,
                ));
                None
            }
        };
        if !wrong.is_empty() {
            return Err(Refusal::options("DeleteOptions", &wrong));
        }
        let precondition = |field| body.text_at(&["preconditions", field]).map(str::to_owned);
        Ok(Self {
            grace_s,
            propagation,
            uid: precondition("uid"),
            revision: precondition("resourceVersion"),
            dry_run,
        })
    }

    /// Whether the preconditions hold for an object as it is served.
    pub(super) fn check(&self, object: &Value, about: About<'_>) -> Result<(), Refusal> {
        for (what, given, field, guess) in [
            ("UID", &self.uid, "uid", "deleted and then recreated"),
            ("ResourceVersion", &self.revision, "resourceVersion", "modified"),
        ] {
            let has = object.text_at(&["metadata", field]).unwrap_or_default();
            if let Some(given) = given.as_deref().filter(|given| *given != has) {
                let why = format!(
                    "the {what} in the precondition ({given}) does not match the {what} in record ({has}). The object \
                     might have been {guess}"
                );
                return Err(Refusal::conflict(about, &why));
            }
        }
        Ok(())
    }
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Deletion {
    /// Nothing holds it: it goes now.
    Remove,
    /// It stays, marked, until its grace, its finalizers or its content are gone.
    Mark(Value),
    /// It is marked already, and this changes nothing.
    Unchanged,
}

/// Decides over an object as it is stored.
pub(super) fn decide(object: &Value, kind: &KindData, options: &Options, now: Wall) -> Deletion {
    let mut marked = object.clone();
    propagate(&mut marked, options.propagation);
    let held = is_held(&marked, kind);
    let grace = if kind.graceful { grace(object, options) } else { 0 };
    let already = object.at(&["metadata", "deletionTimestamp"]).is_some();
    let left = object.int_at(&["metadata", "deletionGracePeriodSeconds"]).unwrap_or(0);
    let unchanged = |marked: Value| {
        if marked == *object {
            Deletion::Unchanged
        } else {
            // Only the finalizers of the propagation can have changed.
            Deletion::Mark(marked)
        }
    };
    if already {
        // A second delete that names no grace waits for the first; one that names a longer one changes nothing.
        let shorter = kind
            .graceful
            .then_some(options.grace_s)
            .flatten()
            .filter(|grace| *grace < left);
        return match shorter {
            Some(0) if !held => Deletion::Remove,
            Some(grace) => {
                // The end moves forward, counted from when the deletion began.
                let ends = object
                    .text_at(&["metadata", "deletionTimestamp"])
                    .and_then(parse_rfc3339);
                let ends = ends.unwrap_or_else(|| now.ms.div_euclid(1000)) - left + grace;
                stamp(&mut marked, ends, grace);
                Deletion::Mark(marked)
            }
            None if left == 0 && !held => Deletion::Remove,
            None => unchanged(marked),
        };
    }
    if grace == 0 && !held {
        return Deletion::Remove;
    }
    stamp(&mut marked, now.ms.div_euclid(1000).saturating_add(grace), grace);
    if kind.kind == "Namespace" {
        // It lasts as long as its content.
        marked.remove(&["metadata", "deletionGracePeriodSeconds"]);
        marked.set(&["status", "phase"], "Terminating");
    }
    if object.int_at(&["metadata", "generation"]).is_some() {
        meta::count(&mut marked);
    }
    Deletion::Mark(marked)
}

/// Whether a version that is being deleted has nothing left that holds it.
pub(super) fn is_over(object: &Value, kind: &KindData) -> bool {
    object.at(&["metadata", "deletionTimestamp"]).is_some()
        && object.int_at(&["metadata", "deletionGracePeriodSeconds"]).unwrap_or(0) == 0
        && !is_held(object, kind)
}

/// Whether finalizers hold an object; a namespace has some for its content, too.
fn is_held(object: &Value, kind: &KindData) -> bool {
    let any = |part: &str| !object.list_at(&[part, "finalizers"]).is_empty();
    any("metadata") || kind.kind == "Namespace" && any("spec")
}

fn stamp(object: &mut Value, ends: i64, grace: i64) {
    object.set(&["metadata", "deletionTimestamp"], rfc3339(ends));
    object.set(&["metadata", "deletionGracePeriodSeconds"], grace);
}

/// Seconds a pod has: none when no node has it, or when it has ended.
fn grace(pod: &Value, options: &Options) -> i64 {
    let bound = pod.text_at(&["spec", "nodeName"]).is_some_and(|node| !node.is_empty());
    let ended = matches!(pod.text_at(&["status", "phase"]), Some("Succeeded" | "Failed"));
    if !bound || ended {
        return 0;
    }
    let own = pod.int_at(&["spec", "terminationGracePeriodSeconds"]).unwrap_or(30);
    options.grace_s.unwrap_or(own).max(0)
}

/// Sets the finalizer that makes the garbage collector wait, or let go.
fn propagate(object: &mut Value, propagation: Option<Propagation>) {
    let Some(propagation) = propagation else { return };
    let wanted = match propagation {
        Propagation::Background => None,
        Propagation::Foreground => Some("foregroundDeletion"),
        Propagation::Orphan => Some("orphan"),
    };
    let mut finalizers = object.list_at(&["metadata", "finalizers"]).to_vec();
    finalizers.retain(|finalizer| !matches!(finalizer.as_text(), Some("foregroundDeletion" | "orphan")));
    finalizers.extend(wanted.map(Value::from));
    if finalizers.is_empty() {
        object.remove(&["metadata", "finalizers"]);
    } else {
        object.set(&["metadata", "finalizers"], finalizers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::kinds;
    use proto::value::json;

    const NOW: Wall = Wall { ms: 100_000, trusted: true };

    fn object(text: &str) -> Value {
        json::parse(text.as_bytes()).unwrap()
    }

    fn options(text: &str) -> Options {
        Options::of(&object(text)).unwrap()
    }

    #[test]
    fn a_bound_pod_has_its_grace_and_it_only_shrinks() {
        let pods = kinds::kind("", "v1", "Pod").unwrap();
        let bound = object(r#"{"metadata":{},"spec":{"nodeName":"a","terminationGracePeriodSeconds":30}}"#);
        let Deletion::Mark(marked) = decide(&bound, pods, &options("{}"), NOW) else {
            panic!()
        };
        assert_eq!(
            marked.text_at(&["metadata", "deletionTimestamp"]),
            Some("1970-01-01T00:02:10Z")
        );
        assert_eq!(marked.int_at(&["metadata", "deletionGracePeriodSeconds"]), Some(30));
        let again = |text: &str| decide(&marked, pods, &options(text), Wall { ms: 105_000, trusted: true });
        assert_eq!(again("{}"), Deletion::Unchanged);
        assert_eq!(again(r#"{"gracePeriodSeconds":60}"#), Deletion::Unchanged);
        assert_eq!(again(r#"{"gracePeriodSeconds":0}"#), Deletion::Remove);
        let Deletion::Mark(shorter) = again(r#"{"gracePeriodSeconds":10}"#) else {
            panic!()
        };
        assert_eq!(
            shorter.text_at(&["metadata", "deletionTimestamp"]),
            Some("1970-01-01T00:01:50Z")
        );
        let unbound = object(r#"{"metadata":{},"spec":{}}"#);
        assert_eq!(decide(&unbound, pods, &options("{}"), NOW), Deletion::Remove);
        let ended = object(r#"{"metadata":{},"spec":{"nodeName":"a"},"status":{"phase":"Failed"}}"#);
        assert_eq!(decide(&ended, pods, &options("{}"), NOW), Deletion::Remove);
    }

    #[test]
    fn finalizers_hold() {
        let maps = kinds::kind("", "v1", "ConfigMap").unwrap();
        let plain = object(r#"{"metadata":{}}"#);
        assert_eq!(decide(&plain, maps, &options("{}"), NOW), Deletion::Remove);
        let Deletion::Mark(marked) = decide(&plain, maps, &options(r#"{"propagationPolicy":"Foreground"}"#), NOW)
        else {
            panic!()
        };
        assert_eq!(
            marked.text_at(&["metadata", "finalizers", "0"]),
            Some("foregroundDeletion")
        );
        assert_eq!(marked.int_at(&["metadata", "deletionGracePeriodSeconds"]), Some(0));
        assert_eq!(marked.int_at(&["metadata", "generation"]), None);
        assert!(!is_over(&marked, maps));
        let again = decide(&marked, maps, &options(r#"{"propagationPolicy":"Foreground"}"#), NOW);
        assert_eq!(again, Deletion::Unchanged);
        assert_eq!(
            decide(&marked, maps, &options(r#"{"propagationPolicy":"Background"}"#), NOW),
            Deletion::Remove
        );
    }

    #[test]
    fn a_namespace_terminates() {
        let namespaces = kinds::kind("", "v1", "Namespace").unwrap();
        let live = object(r#"{"metadata":{},"spec":{"finalizers":["kubernetes"]},"status":{"phase":"Active"}}"#);
        let Deletion::Mark(marked) = decide(&live, namespaces, &options("{}"), NOW) else {
            panic!()
        };
        assert_eq!(marked.text_at(&["status", "phase"]), Some("Terminating"));
        assert_eq!(marked.at(&["metadata", "deletionGracePeriodSeconds"]), None);
        assert!(!is_over(&marked, namespaces));
        assert_eq!(decide(&marked, namespaces, &options("{}"), NOW), Deletion::Unchanged);
    }

    #[test]
    fn options_are_checked() {
        let refused = |text: &str| Options::of(&object(text)).unwrap_err().message;
        assert!(refused(r#"{"gracePeriodSeconds":-1}"#).contains("gracePeriodSeconds"));
        assert!(refused(r#"{"propagationPolicy":"X"}"#).contains("Unsupported value: \"X\""));
        assert!(refused(r#"{"propagationPolicy":"Orphan","orphanDependents":true}"#).contains("cannot be both set"));
        let about = About { group: "", kind: "ConfigMap", name: "a" };
        let live = object(r#"{"metadata":{"uid":"u","resourceVersion":"1"}}"#);
        assert!(options(r#"{"preconditions":{"uid":"u"}}"#).check(&live, about).is_ok());
        assert!(
            options(r#"{"preconditions":{"resourceVersion":"2"}}"#)
                .check(&live, about)
                .is_err()
        );
    }
}
