//! Create, update and patch.
//!
//! An update is always made against the version it was computed from. Where the client named no version, a conflict is
//! computed again from the newer one; where it did, it hears of the conflict.

use std::sync::Arc;

use hyper::{Response, StatusCode};
use proto::object::Uid;
use proto::value::Value;

use super::deletion;
use super::meta::{self, Place};
use super::patching::Patch;
use super::{Call, admit};
use crate::api::body::Answer;
use crate::api::codec::{self, DecodeError};
use crate::api::query::{self, WriteOptions};
use crate::api::status::{Cause, Refusal};
use crate::api::validate::{self, FieldError};
use crate::api::{defaults, kinds, strategy};
use crate::store::{CommitError, Lane, Op, Stored, When};

/// A write without a version of its own is computed again this often before the client hears of the conflict.
const TRIES: usize = 8;

/// The status of an object stays with its own subresource.
const STATUS: &str = "status";

/// A new version of an object, computed from what is there.
struct Revised {
    /// What is to be stored.
    body: Value,
    /// The client named the version it started from.
    conditional: bool,
    warnings: Vec<String>,
}

impl Call {
    pub(super) async fn create(self) -> Result<Response<Answer>, Refusal> {
        let options = WriteOptions::of(&self.query, "CreateOptions")?;
        let decoded = self.decode(&options)?;
        let mut object = decoded.value;
        if object
            .text_at(&["metadata", "resourceVersion"])
            .is_some_and(|given| !given.is_empty())
        {
            return Err(Refusal::unreasoned(
                "resourceVersion should not be set on objects to be created",
            ));
        }
        let namespace = self.target.namespace.as_deref();
        meta::place(&mut object, Place { namespace, name: None })?;
        self.make(object, &options, decoded.warnings).await
    }

    fn decode(&self, options: &WriteOptions) -> Result<codec::Decoded, Refusal> {
        let content_type = self.content_type.as_deref();
        codec::decode(content_type, &self.body, self.schema()?, options.fields).map_err(|error| undecodable(&error))
    }

    /// Makes a new object from what a client sent.
    async fn make(
        &self,
        sent: Value,
        options: &WriteOptions,
        mut warnings: Vec<String>,
    ) -> Result<Response<Answer>, Refusal> {
        let mut sent = sent;
        codec::to_stored(self.kind, &mut sent);
        for attempt in 1.. {
            let mut object = sent.clone();
            let generated = meta::generated(&object, daemon::random::bytes());
            if let Some(name) = &generated {
                object.set(&["metadata", "name"], name.as_str());
            }
            let name = object.text_at(&["metadata", "name"]).unwrap_or_default().to_owned();
            meta::create(&mut object, daemon::random::uid(), daemon::clock::wall());
            defaults::apply_defaults(self.stored_row(), &mut object);
            let guard = self.admit_namespace(&name)?;
            self.admit_create(&mut object)?;
            strategy::prepare_create(self.stored_row(), &mut object);
            let wrong = validate::validate_create(self.stored_row(), &object);
            if !wrong.is_empty() {
                return Err(self.invalid(&name, &wrong));
            }
            let allocation = self.allocate(&mut object).await?;
            if options.dry_run {
                if self.api.store.get(&self.key(&name)).is_some() {
                    return Err(Refusal::already_exists(self.resource(&name)));
                }
                return self.answer(StatusCode::CREATED, &self.served(object), &warnings);
            }
            warnings.extend(validate::warnings(self.stored_row(), &object));
            let guarded = guard.is_some();
            let create = Op::Create { key: self.key(&name), value: object };
            let ops = guard.into_iter().chain([create]).collect();
            let committed = self.api.store.commit(Lane::Api, ops).await;
            drop(allocation);
            match committed {
                Ok(mut made) => {
                    let made = made
                        .pop()
                        .flatten()
                        .ok_or_else(|| Refusal::internal("a create made nothing"))?;
                    return self.answer(StatusCode::CREATED, &self.served(made.value()), &warnings);
                }
                // Somebody else has that name already: another one, if it was made up.
                Err(CommitError::Exists(_)) if generated.is_some() && attempt < TRIES => warnings.clear(),
                // The namespace changed meanwhile: look at it again.
                Err(CommitError::Conflict { .. } | CommitError::NotFound(_)) if guarded && attempt < TRIES => {
                    warnings.clear();
                }
                Err(error) => return Err(self.refused(&error, &name)),
            }
        }
        Err(Refusal::internal("no more tries"))
    }

    /// The row of the spelling that is stored.
    pub(super) fn stored_row(&self) -> &'static kinds::KindData {
        let (group, version) = self.kind.storage;
        kinds::kind(group, version, self.kind.kind).unwrap_or(self.kind)
    }

    pub(super) async fn update(self, part: &str) -> Result<Response<Answer>, Refusal> {
        let options = WriteOptions::of(&self.query, "UpdateOptions")?;
        let decoded = self.decode(&options)?;
        let mut sent = decoded.value;
        let place = Place {
            namespace: self.target.namespace.as_deref(),
            name: self.target.name.as_deref(),
        };
        meta::place(&mut sent, place)?;
        if self.kind.create_on_update && part.is_empty() && self.api.store.get(&self.key(self.name())).is_none() {
            return self.make(sent, &options, decoded.warnings).await;
        }
        codec::to_stored(self.kind, &mut sent);
        self.revise(options.dry_run, part, |stored| {
            let given = sent.text_at(&["metadata", "resourceVersion"]).unwrap_or_default();
            if given.is_empty() && !self.kind.unconditional_update {
                let cause = Cause::invalid("metadata.resourceVersion", "0: must be specified for an update");
                return Err(Refusal::invalid(self.resource(self.name()), &[cause]));
            }
            self.unmodified(given, stored)?;
            Ok(Revised {
                body: sent.clone(),
                conditional: !given.is_empty(),
                warnings: decoded.warnings.clone(),
            })
        })
        .await
    }

    pub(super) async fn patch(self, part: &str) -> Result<Response<Answer>, Refusal> {
        let options = WriteOptions::of(&self.query, "PatchOptions")?;
        let schema = self.schema()?;
        let patch = Patch::of(self.content_type.as_deref(), &self.body)?;
        let place = Place {
            namespace: self.target.namespace.as_deref(),
            name: self.target.name.as_deref(),
        };
        self.revise(options.dry_run, part, |stored| {
            let base = self.served(stored.value());
            let patched = patch.apply(&base, schema, options.fields)?;
            let mut body = patched.value;
            meta::place(&mut body, place)?;
            let given = body.text_at(&["metadata", "resourceVersion"]).unwrap_or_default();
            self.unmodified(given, stored)?;
            codec::to_stored(self.kind, &mut body);
            Ok(Revised {
                body,
                conditional: patch.conditional,
                warnings: patched.warnings,
            })
        })
        .await
    }

    /// Whether the version a client started from, if it named one, is the current one.
    fn unmodified(&self, given: &str, stored: &Stored) -> Result<(), Refusal> {
        if given.is_empty() {
            return Ok(());
        }
        let given = query::revision(given).map_err(Refusal::unreasoned)?;
        // Zero is how clients spell "whichever it is".
        if given != 0 && given != stored.revision.0 {
            return Err(Refusal::modified(self.resource(self.name())));
        }
        Ok(())
    }

    /// Computes a new version of the object from the current one, until one of them is stored.
    async fn revise(
        &self,
        dry_run: bool,
        part: &str,
        compute: impl Fn(&Stored) -> Result<Revised, Refusal> + Send + Sync,
    ) -> Result<Response<Answer>, Refusal> {
        for attempt in 1.. {
            let stored = self.found()?;
            let revised = compute(&stored)?;
            let mut new = self.settle(&stored, revised.body, part)?;
            let _allocation = self.allocate(&mut new).await?;
            if dry_run {
                let shown = shown(&stored, new, part);
                return self.answer(StatusCode::OK, &self.served(shown), &revised.warnings);
            }
            match self.replace(&stored, new).await {
                Ok(object) => return self.answer(StatusCode::OK, &self.served(object), &revised.warnings),
                Err(error) if error.is_conflict() && !revised.conditional && attempt < TRIES => {}
                Err(error) => return Err(self.refused(&error, self.name())),
            }
        }
        Err(Refusal::internal("no more tries"))
    }

    /// Stores a new version, or takes the object away if this was the last thing that held it.
    pub(super) async fn replace(&self, stored: &Arc<Stored>, new: Value) -> Result<Value, CommitError> {
        let when = When::unchanged(stored);
        let key = stored.key.clone();
        let over = deletion::is_over(&new, self.kind);
        let op = if over {
            Op::Delete { key, when }
        } else {
            Op::Replace { key, value: new.clone(), when }
        };
        let committed = self.api.store.commit(Lane::Api, vec![op]).await?;
        Ok(match committed.into_iter().flatten().next() {
            Some(written) if !over => written.value(),
            _ => shown(stored, new, ""),
        })
    }

    /// Everything that is between what a client computed and what is stored.
    pub(super) fn settle(&self, stored: &Stored, mut new: Value, part: &str) -> Result<Value, Refusal> {
        let old = stored.body();
        let name = self.name();
        let uid = new.text_at(&["metadata", "uid"]).unwrap_or_default();
        if !uid.is_empty() && uid.parse::<Uid>().ok() != Some(stored.uid) {
            let namespace = self.namespace();
            let path = [namespace, name]
                .into_iter()
                .filter(|step| !step.is_empty())
                .collect::<Vec<_>>()
                .join("/");
            let why = format!(
                "StorageError: invalid object, Code: 4, Key: /registry/{}/{path}, ResourceVersion: 0, \
                 AdditionalErrorMsg: Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                self.kind.plural, stored.uid
            );
            return Err(Refusal::conflict(self.resource(name), &why));
        }
        if part == "finalize" {
            let mut merged = old.clone();
            keep(&new, &mut merged, &["spec", "finalizers"]);
            new = merged;
        } else {
            defaults::apply_defaults(self.stored_row(), &mut new);
            admit::keep_finalizers(self.kind, &old, &mut new);
        }
        meta::drop_unstored(&mut new);
        let path = (!part.is_empty()).then_some(part);
        strategy::prepare_update(self.stored_row(), &old, &mut new, path);
        let mut wrong = validate::validate_update(self.stored_row(), &old, &new);
        if part == STATUS {
            // The rest of the object was valid when it came, and is not what this is about.
            wrong.retain(|error| error.field.starts_with(STATUS) || error.field.starts_with("metadata"));
        }
        if !wrong.is_empty() {
            return Err(self.invalid(name, &wrong));
        }
        Ok(new)
    }

    fn invalid(&self, name: &str, wrong: &[FieldError]) -> Refusal {
        let causes: Vec<Cause> = wrong.iter().map(Cause::from).collect();
        Refusal::invalid(self.about_kind(name), &causes)
    }
}

/// Sets what stands at a path to what stands there in another object.
fn keep(from: &Value, to: &mut Value, path: &[&str]) {
    match from.at(path) {
        Some(value) => to.set(path, value.clone()),
        None => {
            to.remove(path);
        }
    }
}

/// A version that was not stored, as it would read.
fn shown(stored: &Stored, mut new: Value, part: &str) -> Value {
    let current = stored.value();
    if part.is_empty() && current.get(STATUS).is_some() {
        keep(&current, &mut new, &[STATUS]);
    }
    new.set(&["metadata", "resourceVersion"], stored.revision.to_string());
    new
}

pub(super) fn undecodable(error: &DecodeError) -> Refusal {
    match error {
        DecodeError::MediaType => Refusal::unsupported_media_type(error.to_string()),
        DecodeError::TooLarge => Refusal::too_large(codec::BODY_BYTES_MAX),
        DecodeError::Unrecognized { .. } | DecodeError::Refused { .. } => Refusal::bad_request(error.to_string()),
    }
}
