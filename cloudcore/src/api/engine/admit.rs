//! What is decided over a new object beside its own fields: its namespace, its service account, its priority.

use proto::object::{Key, Kind};
use proto::value::Value;

use super::Call;
use crate::api::kinds::{self, KindData};
use crate::api::status::{About, Cause, Refusal};
use crate::api::{defaults, strategy};
use crate::store::{CommitError, Lane, Op, Store, When};

/// Namespaces that are there from the first start and cannot be deleted.
const STANDING_NAMESPACES: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];

/// Makes the standing namespaces that are missing.
pub(in crate::api) async fn ensure_namespaces(store: &Store) -> Result<(), CommitError> {
    let Some(kind) = kinds::kind("", "v1", "Namespace") else {
        return Ok(());
    };
    for name in STANDING_NAMESPACES {
        let key = Key::new("Namespace", "", name);
        if store.get(&key).is_some() {
            continue;
        }
        let mut value = Value::from([("apiVersion", "v1"), ("kind", "Namespace")]);
        value.set(&["metadata", "name"], name);
        value.set(&["metadata", "uid"], daemon::random::uid().to_string());
        value.set(&["metadata", "creationTimestamp"], daemon::clock::wall().rfc3339());
        defaults::apply_defaults(kind, &mut value);
        strategy::prepare_create(kind, &mut value);
        match store.commit(Lane::Control, vec![Op::Create { key, value }]).await {
            Ok(_) | Err(CommitError::Exists(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Only the subresource `finalize` takes a finalizer of a namespace's content away.
pub(super) fn keep_finalizers(kind: &KindData, old: &Value, new: &mut Value) {
    if kind.kind == "Namespace"
        && let Some(finalizers) = old.at(&["spec", "finalizers"])
    {
        new.set(&["spec", "finalizers"], finalizers.clone());
    }
}

impl Call {
    /// Whether the namespace takes new objects. The answer is the write that makes sure of it when the object is
    /// stored: it changes nothing, and fails if the namespace is no longer what it was.
    pub(super) fn admit_namespace(&self, name: &str) -> Result<Option<Op>, Refusal> {
        let Some(namespace) = self.target.namespace.as_deref() else {
            return Ok(None);
        };
        let key = Key::new("Namespace", "", namespace);
        let Some(stored) = self.api.store.get(&key) else {
            let about = About { group: "", kind: "namespaces", name: namespace };
            return Err(Refusal::not_found(about));
        };
        let value = stored.body();
        if value.at(&["metadata", "deletionTimestamp"]).is_some() {
            let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
            let cause = Cause {
                reason: "NamespaceTerminating",
                field: "metadata.namespace".to_owned(),
                message: format!("namespace {namespace} is being terminated"),
            };
            return Err(Refusal::forbidden_because(self.resource(name), &why, &cause));
        }
        let when = When::unchanged(&stored);
        Ok(Some(Op::Replace { key, value, when }))
    }

    /// What admission adds to a new object, and what it refuses.
    pub(super) fn admit_create(&self, object: &mut Value) -> Result<(), Refusal> {
        defaults::admit(self.stored_row(), object);
        if self.kind.kind != "Pod" {
            return Ok(());
        }
        let name = object.text_at(&["metadata", "name"]).unwrap_or_default().to_owned();
        self.admit_service_account(object, &name)?;
        let class = object.text_at(&["spec", "priorityClassName"]).unwrap_or_default();
        if !matches!(class, "" | "system-cluster-critical" | "system-node-critical") {
            let why = format!("no PriorityClass with name {class} was found");
            return Err(Refusal::forbidden(self.resource(&name), &why));
        }
        Ok(())
    }

    fn admit_service_account(&self, object: &mut Value, name: &str) -> Result<(), Refusal> {
        let given = object
            .text_at(&["spec", "serviceAccountName"])
            .filter(|account| !account.is_empty());
        let account = given.unwrap_or("default").to_owned();
        let key = Key::new(Kind::from("ServiceAccount"), self.namespace(), account.as_str());
        let stored = self.api.store.get(&key);
        // A pod gets nothing from the default account but its name, so it need not exist yet.
        if stored.is_none() && account != "default" {
            let why = format!(
                "error looking up service account {}/{account}: serviceaccount {account:?} not found",
                self.namespace()
            );
            return Err(Refusal::forbidden(self.resource(name), &why));
        }
        if object.list_at(&["spec", "imagePullSecrets"]).is_empty() {
            let secrets = stored.map(|account| account.body());
            let secrets = secrets.and_then(|mut account| account.remove(&["imagePullSecrets"]));
            if let Some(secrets) = secrets {
                object.set(&["spec", "imagePullSecrets"], secrets);
            }
        }
        object.set(&["spec", "serviceAccount"], account);
        Ok(())
    }
}

/// Whether a namespace may be deleted.
pub(super) fn may_delete(kind: &KindData, name: &str, about: About<'_>) -> Result<(), Refusal> {
    if kind.kind == "Namespace" && STANDING_NAMESPACES.contains(&name) {
        return Err(Refusal::forbidden(about, "this namespace may not be deleted"));
    }
    Ok(())
}
