//! The one engine behind every resource: path and kind table in, store in the middle, the form the client asked for out.
//!
//! No code here names a kind, except where a kind really is different: [`admit`] (pods, services, namespaces), [`parts`]
//! (scale, binding, log) and [`leases`].

mod admit;
mod deletion;
mod filter;
mod leases;
mod meta;
mod parts;
mod patching;
mod read;
mod remove;
mod resume;
mod services;
mod watch;
mod write;

use std::sync::Arc;

use hyper::body::Bytes;
use hyper::{Method, Response, StatusCode};
use proto::object::{Key, Kind};
use proto::value::Value;
use tokio_util::sync::CancellationToken;

use super::Api;
use super::body::{self, Answer};
use super::codec;
use super::kinds::{self, KindData};
use super::media::{Encoding, Form, Media};
use super::path::Target;
use super::query::Query;
use super::schema::{self, KindSchema};
use super::status::{About, Refusal};
use super::table::{self, Include};
use crate::store::{CommitError, Stored};

pub(super) use admit::ensure_namespaces;

/// One request for a resource.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) api: Arc<Api>,
    pub(super) kind: &'static KindData,
    pub(super) target: Target,
    pub(super) query: Query,
    pub(super) accepted: Vec<Media>,
    pub(super) content_type: Option<String>,
    pub(super) body: Bytes,
    pub(super) stop: CancellationToken,
}

/// The verb of a request, in Kubernetes' words; `None` for a method that nothing answers.
pub(super) fn verb(method: &Method, target: &Target, query: &Query) -> Option<&'static str> {
    Some(match (method.as_str(), target.name.is_some()) {
        ("GET", _) if target.subresource.is_none() && query.flag("watch") => "watch",
        ("GET", true) => "get",
        ("GET", false) => "list",
        ("POST", _) => "create",
        ("PUT", true) => "update",
        ("PATCH", true) => "patch",
        ("DELETE", true) => "delete",
        ("DELETE", false) => "deletecollection",
        _ => return None,
    })
}

/// The row of the kind table a target names; refuses what is not served, as the real server does.
pub(super) fn kind_of(api: &Api, target: &Target) -> Result<&'static KindData, Refusal> {
    let kind = kinds::resource(&target.group, &target.version, &target.resource).ok_or_else(|| {
        if api.documents.knows(&target.group) {
            Refusal::no_resource()
        } else {
            Refusal::no_page()
        }
    })?;
    let namespaced = target.namespace.is_some();
    if namespaced && !kind.namespaced || kind.namespaced && !namespaced && target.name.is_some() {
        return Err(Refusal::no_resource());
    }
    Ok(kind)
}

impl Call {
    /// Does what a verb says.
    pub(super) async fn run(self, verb: &'static str) -> Result<Response<Answer>, Refusal> {
        if let Some(part) = self.target.subresource.clone() {
            let served = self.kind.subresource(&part).ok_or_else(Refusal::no_resource)?;
            if !served.verbs.contains(&verb) {
                return Err(Refusal::method_not_allowed());
            }
            return match (part.as_str(), verb) {
                ("status", "get") => self.get().await,
                ("status" | "finalize", "update") => self.update(&part).await,
                ("status", "patch") => self.patch(&part).await,
                ("scale", "get") => self.scale(),
                ("scale", "update") => self.rescale_by_update().await,
                ("scale", "patch") => self.rescale_by_patch().await,
                ("binding", "create") => self.bind().await,
                ("log", "get") => self.log().await,
                _ => Err(Refusal::no_resource()),
            };
        }
        if !self.kind.verbs.contains(&verb) {
            return Err(Refusal::method_not_allowed());
        }
        let everywhere = self.kind.namespaced && self.target.namespace.is_none();
        if everywhere && !matches!(verb, "list" | "watch") {
            return Err(Refusal::method_not_allowed());
        }
        match verb {
            "get" => self.get().await,
            "list" => self.list().await,
            "watch" => self.watch().await,
            "create" if self.target.name.is_none() => self.create().await,
            "update" => self.update("").await,
            "patch" => self.patch("").await,
            "delete" => self.delete().await,
            "deletecollection" => self.delete_collection().await,
            _ => Err(Refusal::method_not_allowed()),
        }
    }

    /// The kind that is stored, where a kind has two spellings.
    fn stored_kind(&self) -> Kind {
        Kind::new(self.kind.storage.0, self.kind.kind)
    }

    fn namespace(&self) -> &str {
        self.target.namespace.as_deref().unwrap_or_default()
    }

    fn name(&self) -> &str {
        self.target.name.as_deref().unwrap_or_default()
    }

    fn key(&self, name: &str) -> Key {
        Key::new(self.stored_kind(), self.namespace(), name)
    }

    /// The resource, as 404 and 409 name it.
    fn resource<'a>(&'a self, name: &'a str) -> About<'a> {
        About { group: self.kind.group, kind: self.kind.plural, name }
    }

    /// The kind, as 422 names it.
    fn about_kind<'a>(&'a self, name: &'a str) -> About<'a> {
        About { group: self.kind.group, kind: self.kind.kind, name }
    }

    fn schema(&self) -> Result<&'static KindSchema, Refusal> {
        schema::kind(self.kind.group, self.kind.version, self.kind.kind)
            .ok_or_else(|| Refusal::internal(format!("no schema for {}", self.kind.kind)))
    }

    fn found(&self) -> Result<Arc<Stored>, Refusal> {
        let name = self.name();
        let stored = self.api.store.get(&self.key(name));
        stored.ok_or_else(|| Refusal::not_found(self.resource(name)))
    }

    /// An object in the spelling of this resource.
    fn served(&self, mut value: Value) -> Value {
        codec::from_stored(self.kind, &mut value);
        if self.kind.kind == "Node" {
            self.heartbeat(&mut value);
        }
        value
    }

    /// Heartbeat times are those of the node's session, made up on read like its lease.
    fn heartbeat(&self, node: &mut Value) {
        let name = node.text_at(&["metadata", "name"]).unwrap_or_default();
        let Some(contact) = self.api.sessions.contact(name) else {
            return;
        };
        let mut conditions = node.list_at(&["status", "conditions"]).to_vec();
        for condition in &mut conditions {
            condition.set(&["lastHeartbeatTime"], contact.at.rfc3339());
        }
        if !conditions.is_empty() {
            node.set(&["status", "conditions"], conditions);
        }
    }

    /// The first form the client asked for that this can be given in.
    fn media(&self) -> Result<Media, Refusal> {
        let mut accepted = self.accepted.iter();
        let found = accepted.find(|media| media.form != Form::Discovery);
        found.copied().ok_or_else(Refusal::not_acceptable)
    }

    /// Answers with one object of this resource.
    fn answer(&self, code: StatusCode, object: &Value, warnings: &[String]) -> Result<Response<Answer>, Refusal> {
        let media = self.media()?;
        let shaped = self.shape(object, media.form, true);
        Ok(body::object(code, media.encoding, &shaped, warnings))
    }

    /// Answers with something that is no object of this resource (`Status`, `Scale`).
    fn answer_plain(&self, code: StatusCode, value: &Value, warnings: &[String]) -> Response<Answer> {
        let encoding = self.media().map_or(Encoding::Json, |media| media.encoding);
        body::object(code, encoding, value, warnings)
    }

    /// One object in the form the client asked for.
    fn shape(&self, object: &Value, form: Form, columns: bool) -> Value {
        match form {
            Form::Plain | Form::Discovery => object.clone(),
            Form::Metadata => table::metadata_of(object),
            Form::Table => {
                let revision = object.text_at(&["metadata", "resourceVersion"]).unwrap_or_default();
                let metadata = Value::from([("resourceVersion", revision)]);
                let include = Include::of(self.query.text("includeObject"));
                let objects = std::slice::from_ref(object);
                table::table(self.kind, metadata, objects, include, columns, daemon::clock::wall())
            }
        }
    }

    /// What a failed commit means to a client.
    fn refused(&self, error: &CommitError, name: &str) -> Refusal {
        match error {
            CommitError::Exists(_) => Refusal::already_exists(self.resource(name)),
            CommitError::NotFound(_) => Refusal::not_found(self.resource(name)),
            CommitError::Conflict { .. } | CommitError::Uid { .. } | CommitError::Record { .. } => {
                Refusal::modified(self.resource(name))
            }
            CommitError::TooLarge { .. } => Refusal::too_large(crate::store::OBJECT_BYTES_MAX),
            CommitError::Full => Refusal::unavailable("the store has no room left: nothing can be written"),
            CommitError::Closed => Refusal::unavailable("the server is stopping"),
            error => Refusal::internal(error.to_string()),
        }
    }
}
