//! One version of one object, in the form in which everybody shares it.

use std::sync::Arc;

use proto::digest::EntryHash;
use proto::object::{Key, Kind, Revision, Uid};
use proto::value::{Value, canonical};

use super::overlay::overlay;

/// One version of one object. The body and the report are shared with every other version that has the same ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    pub key: Key,
    pub uid: Uid,
    /// That of this version.
    pub revision: Revision,
    /// That at which the object was made.
    pub created: Revision,
    /// That at which the object's projection last changed.
    pub projected: Revision,
    /// The hash of the projection, for kinds that nodes get.
    pub projection: Option<EntryHash>,
    pub(super) node: Option<Arc<str>>,
    pub(super) body: Form,
    /// The revision of the version that brought this body.
    pub(super) body_at: Revision,
    pub(super) report: Option<Report>,
}

/// What a node says of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) node: Arc<str>,
    pub(super) form: Form,
}

/// The canonical form of a value, known to be one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Form(Arc<[u8]>);

impl Form {
    pub(super) fn of(value: &Value) -> Self {
        Self(canonical::encode(value).into())
    }

    /// Bytes that came from outside this process.
    pub(super) fn checked(bytes: &[u8]) -> Result<Self, canonical::CanonicalError> {
        canonical::decode(bytes)?;
        Ok(Self(bytes.into()))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    fn value(&self) -> Value {
        canonical::decode(&self.0).expect("a form is made from a value or was decoded when it came in")
    }
}

impl Stored {
    /// The object as it reads: the body with `metadata.resourceVersion`, and the node's report laid over its status.
    pub fn value(&self) -> Value {
        let mut value = overlay(&self.key.kind, self.body(), self.report().as_ref());
        value.set(&["metadata", "resourceVersion"], self.revision.to_string());
        value
    }

    /// The object as the cloud wrote it.
    pub fn body(&self) -> Value {
        self.body.value()
    }

    /// What the object's node last said of it.
    pub fn report(&self) -> Option<Value> {
        self.report.as_ref().map(|report| report.form.value())
    }

    /// The node that a Pod is bound to.
    pub fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }

    /// What this version keeps in memory, beside a body that others may share.
    pub(super) fn bytes(&self) -> usize {
        self.body.len() + self.report.as_ref().map_or(0, |report| report.form.len())
    }
}

/// Which objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    pub kind: Kind,
    pub namespace: Option<String>,
    /// Pods bound to this node; nothing of any other kind.
    pub node: Option<String>,
}

impl Scope {
    /// Every object of a kind.
    pub fn kind(kind: impl Into<Kind>) -> Self {
        Self { kind: kind.into(), namespace: None, node: None }
    }

    /// Every object of a kind in a namespace.
    pub fn namespace(kind: impl Into<Kind>, namespace: impl Into<String>) -> Self {
        Self {
            kind: kind.into(),
            namespace: Some(namespace.into()),
            node: None,
        }
    }

    /// The pods bound to a node.
    pub fn pods_of(node: impl Into<String>) -> Self {
        Self {
            kind: Kind::from("Pod"),
            namespace: None,
            node: Some(node.into()),
        }
    }

    pub fn contains(&self, object: &Stored) -> bool {
        self.contains_parts(&object.key, object.node())
    }

    pub(super) fn contains_parts(&self, key: &Key, node: Option<&str>) -> bool {
        self.kind == key.kind
            && self
                .namespace
                .as_ref()
                .is_none_or(|namespace| *namespace == key.namespace)
            && self.node.as_ref().is_none_or(|wanted| node == Some(wanted))
    }
}

/// One write, as a watcher sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub revision: Revision,
    /// The version that this write replaced or deleted.
    pub before: Option<Arc<Stored>>,
    /// The version that it made; none for a deletion.
    pub after: Option<Arc<Stored>>,
}

impl Change {
    /// The object this is about: as it is now, or as it last was.
    pub fn object(&self) -> &Arc<Stored> {
        self.after
            .as_ref()
            .or(self.before.as_ref())
            .expect("a change makes, replaces or deletes something")
    }

    /// Whether a watcher of `scope` must hear of it: also when an object enters or leaves the scope.
    pub fn concerns(&self, scope: &Scope) -> bool {
        [&self.before, &self.after]
            .into_iter()
            .flatten()
            .any(|object| scope.contains(object))
    }

    pub(super) fn bytes(&self) -> usize {
        self.object().bytes()
    }
}
