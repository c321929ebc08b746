//! Delete, one object or many.

use hyper::{Response, StatusCode};
use proto::value::Value;

use super::deletion::{self, Deletion, Options};
use super::write::undecodable;
use super::{Call, admit};
use crate::api::body::{self, Answer};
use crate::api::codec;
use crate::api::query::{self, ListOptions};
use crate::api::schema;
use crate::api::status::{self, Refusal};
use crate::store::{Lane, Op, Stored, When};

/// A delete that names no version is decided again this often when the object changes meanwhile.
const TRIES: usize = 8;

/// What a delete left.
enum Left {
    /// The object as it last was; it is gone.
    Nothing(Value),
    /// The object, marked.
    Marked(Value),
}

impl Call {
    pub(super) async fn delete(self) -> Result<Response<Answer>, Refusal> {
        let options = self.delete_options()?;
        let name = self.name().to_owned();
        admit::may_delete(self.kind, &name, self.resource(&name))?;
        let left = self.delete_one(&name, &options).await?;
        match left {
            Left::Marked(object) => self.answer(StatusCode::OK, &self.served(object), &[]),
            Left::Nothing(object) if self.kind.delete_returns_object => {
                self.answer(StatusCode::OK, &self.served(object), &[])
            }
            Left::Nothing(object) => {
                let mut details = Value::from([("name", name.as_str()), ("kind", self.kind.plural)]);
                if !self.kind.group.is_empty() {
                    details.set(&["group"], self.kind.group);
                }
                if let Some(uid) = object.at(&["metadata", "uid"]) {
                    details.set(&["uid"], uid.clone());
                }
                let status = status::success(StatusCode::OK, details);
                Ok(self.answer_plain(StatusCode::OK, &status, &[]))
            }
        }
    }

    /// Deletes what a selector matches, one by one. What cannot be deleted stops it, and what was deleted stays so.
    pub(super) async fn delete_collection(self) -> Result<Response<Answer>, Refusal> {
        let options = self.delete_options()?;
        let list = ListOptions::of(&self.query)?;
        let filter = super::filter::Filter::new(self.kind, &list.labels, &list.fields)?;
        let page = self.everything(&self.scope(&filter)).await?;
        let mut deleted = Vec::new();
        for stored in page.items {
            if !filter.matches(&self.served(stored.value())) {
                continue;
            }
            let name = stored.key.name.as_str();
            admit::may_delete(self.kind, name, self.resource(name))?;
            match self.delete_one(name, &options).await {
                Ok(Left::Nothing(object) | Left::Marked(object)) => deleted.push(self.served(object)),
                // Somebody else was faster.
                Err(refusal) if refusal.code == StatusCode::NOT_FOUND => {}
                Err(refusal) => return Err(refusal),
            }
        }
        let media = self.media()?;
        let metadata = Value::from([("resourceVersion", self.api.store.revision().to_string())]);
        let list = self.list_of(deleted, metadata, media.form);
        Ok(body::object(StatusCode::OK, media.encoding, &list, &[]))
    }

    /// The options of a delete: those of the body, then those of the query that it leaves out.
    fn delete_options(&self) -> Result<Options, Refusal> {
        let mut sent = if self.body.is_empty() {
            Value::map()
        } else {
            let schema = schema::kind("", "v1", "DeleteOptions")
                .ok_or_else(|| Refusal::internal("no schema for DeleteOptions"))?;
            let decoded = codec::decode(
                self.content_type.as_deref(),
                &self.body,
                schema,
                codec::FieldValidation::Ignore,
            );
            decoded.map_err(|error| undecodable(&error))?.value
        };
        for field in ["propagationPolicy", "gracePeriodSeconds", "orphanDependents"] {
            let Some(given) = self.query.get(field).filter(|_| sent.get(field).is_none()) else {
                continue;
            };
            match field {
                "gracePeriodSeconds" => {
                    if let Ok(seconds) = given.parse::<i64>() {
                        sent.set(&[field], seconds);
                    }
                }
                "orphanDependents" => sent.set(&[field], self.query.flag(field)),
                field => sent.set(&[field], given),
            }
        }
        let mut options = Options::of(&sent)?;
        let mut wrong = Vec::new();
        options.dry_run |= query::dry_run(self.query.all("dryRun"), &mut wrong);
        if wrong.is_empty() {
            Ok(options)
        } else {
            Err(Refusal::options("DeleteOptions", &wrong))
        }
    }

    async fn delete_one(&self, name: &str, options: &Options) -> Result<Left, Refusal> {
        for attempt in 1.. {
            let stored = self.api.store.get(&self.key(name));
            let stored = stored.ok_or_else(|| Refusal::not_found(self.resource(name)))?;
            options.check(&stored.value(), self.about_kind(name))?;
            let decided = deletion::decide(&merged(&stored), self.kind, options, daemon::clock::wall());
            let key = stored.key.clone();
            let when = When::unchanged(&stored);
            let (op, marked) = match decided {
                Deletion::Unchanged => return Ok(Left::Marked(stored.value())),
                Deletion::Remove => (Op::Delete { key, when }, None),
                Deletion::Mark(value) => {
                    let value = own_status(value, &stored);
                    (Op::Replace { key, value: value.clone(), when }, Some(value))
                }
            };
            if options.dry_run {
                let revision = stored.revision.to_string();
                return Ok(match marked {
                    None => Left::Nothing(stored.value()),
                    Some(mut marked) => {
                        marked.set(&["metadata", "resourceVersion"], revision);
                        Left::Marked(marked)
                    }
                });
            }
            match self.api.store.commit(Lane::Api, vec![op]).await {
                Ok(written) => {
                    let written = written.into_iter().flatten().next();
                    return Ok(match (marked, written) {
                        (Some(_), Some(written)) => Left::Marked(written.value()),
                        _ => Left::Nothing(stored.value()),
                    });
                }
                Err(error) if error.is_conflict() && attempt < TRIES => {}
                Err(error) => return Err(self.refused(&error, name)),
            }
        }
        Err(Refusal::internal("no more tries"))
    }
}

/// The stored body with the status as it reads, which tells whether a pod has ended.
fn merged(stored: &Stored) -> Value {
    let mut body = stored.body();
    if stored.report().is_some()
        && let Some(status) = stored.value().get("status")
    {
        body.set(&["status"], status.clone());
    }
    body
}

/// A marked object with the status that the cloud wrote itself: what a node reported is never stored with it.
fn own_status(mut marked: Value, stored: &Stored) -> Value {
    if stored.report().is_some() {
        match stored.body().get("status") {
            Some(status) => marked.set(&["status"], status.clone()),
            None => {
                marked.remove(&["status"]);
            }
        }
    }
    marked
}
