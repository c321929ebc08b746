//! Get and list.

use std::sync::Arc;
use std::time::Duration;

use hyper::{Response, StatusCode};
use proto::object::Revision;
use proto::value::Value;

use super::Call;
use super::filter::Filter;
use super::resume::Resume;
use crate::api::body::{self, Answer};
use crate::api::media::Form;
use crate::api::query::{ListOptions, Match};
use crate::api::status::Refusal;
use crate::api::table::{self, Include};
use crate::store::{self, At, ListError, Scope, Stored};

/// Objects taken from the store at once while a filtered page fills.
const CHUNK: usize = 500;
/// A list that asks for a revision of the future waits this long for it.
const FUTURE: Duration = Duration::from_secs(3);
const FUTURE_STEP: Duration = Duration::from_millis(20);

const CONTINUE_EXPIRED: &str = "The provided continue parameter is too old to display a consistent list result. You can \
    start a new list without the continue parameter, or use the continue token in this response to retrieve the \
    remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were \
    created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";
const LIST_EXPIRED: &str = "The resourceVersion for the provided list is too old.";

/// A page of objects, as they are served.
pub(super) struct Page {
    pub(super) revision: Revision,
    pub(super) objects: Vec<Value>,
    pub(super) resume: Option<Resume>,
    pub(super) remaining: Option<usize>,
}

impl Call {
    pub(super) async fn get(self) -> Result<Response<Answer>, Refusal> {
        if let Some(lease) = self.made_up_lease(self.name()) {
            return self.answer(StatusCode::OK, &lease, &[]);
        }
        let options = ListOptions::of(&self.query)?;
        if let Some(revision) = options.revision {
            self.reached(revision).await?;
        }
        let object = self.served(self.found()?.value());
        self.answer(StatusCode::OK, &object, &[])
    }

    pub(super) async fn list(self) -> Result<Response<Answer>, Refusal> {
        let options = ListOptions::of(&self.query)?;
        let filter = Filter::new(self.kind, &options.labels, &options.fields)?;
        let media = self.media()?;
        let page = if self.lists_made_up_leases() {
            self.page_of_leases(&options, &filter).await?
        } else {
            self.page(&options, &filter).await?
        };
        let mut metadata = Value::from([("resourceVersion", page.revision.to_string())]);
        if let Some(resume) = &page.resume {
            metadata.set(&["continue"], resume.token());
            if let Some(remaining) = page.remaining.and_then(|left| i64::try_from(left).ok()) {
                metadata.set(&["remainingItemCount"], remaining);
            }
        }
        let list = self.list_of(page.objects, metadata, media.form);
        Ok(body::object(StatusCode::OK, media.encoding, &list, &[]))
    }

    /// The list object in the form the client asked for.
    pub(super) fn list_of(&self, mut objects: Vec<Value>, metadata: Value, form: Form) -> Value {
        let (kind, version, items) = match form {
            Form::Table => {
                let include = Include::of(self.query.text("includeObject"));
                let now = daemon::clock::wall();
                return table::table(self.kind, metadata, &objects, include, true, now);
            }
            Form::Metadata => {
                let items: Vec<Value> = objects.iter().map(table::metadata_of).collect();
                // An empty list of metadata is written as null, as the real server does.
                let items = if items.is_empty() {
                    Value::Null
                } else {
                    Value::List(items)
                };
                (
                    "PartialObjectMetadataList".to_owned(),
                    "meta.k8s.io/v1".to_owned(),
                    items,
                )
            }
            Form::Plain | Form::Discovery => {
                for object in &mut objects {
                    object.remove(&["kind"]);
                    object.remove(&["apiVersion"]);
                }
                (
                    format!("{}List", self.kind.kind),
                    self.kind.api_version(),
                    Value::List(objects),
                )
            }
        };
        Value::from([
            ("kind", Value::from(kind)),
            ("apiVersion", version.into()),
            ("metadata", metadata),
            ("items", items),
        ])
    }

    /// What the store is asked for: the narrowest scope that holds everything the filter can match.
    pub(super) fn scope(&self, filter: &Filter) -> Scope {
        let namespace = self.target.namespace.as_deref().or_else(|| filter.namespace());
        Scope {
            kind: self.stored_kind(),
            namespace: namespace.map(str::to_owned),
            node: filter.node().map(str::to_owned),
        }
    }

    /// Every object of a scope, as it is now.
    pub(super) async fn everything(&self, scope: &Scope) -> Result<store::Page, Refusal> {
        let page = self.api.store.list(scope, At::Latest, None, None).await;
        page.map_err(|error| Refusal::internal(error.to_string()))
    }

    /// Waits a little for a revision of the future.
    pub(super) async fn reached(&self, revision: u64) -> Result<(), Refusal> {
        let wait = async {
            while self.api.store.revision().0 < revision {
                tokio::time::sleep(FUTURE_STEP).await;
            }
        };
        let late = tokio::time::timeout(FUTURE, wait).await;
        late.map_err(|_| Refusal::too_new(revision, self.api.store.revision().0))
    }

    async fn page(&self, options: &ListOptions, filter: &Filter) -> Result<Page, Refusal> {
        let resume = options.resume.as_deref().map(Resume::parse).transpose()?;
        let at = match (&resume, options.revision, options.revision_match) {
            (Some(Resume { revision: Some(revision), .. }), ..) => At::Exact(Revision(*revision)),
            (Some(_), ..) | (None, None, _) => At::Latest,
            (None, Some(revision), Some(Match::Exact)) => {
                self.reached(revision).await?;
                At::Exact(Revision(revision))
            }
            (None, Some(revision), _) => {
                self.reached(revision).await?;
                At::Latest
            }
        };
        let after = resume.as_ref().map(|resume| {
            let own = self.target.namespace.as_deref();
            (own.unwrap_or(&resume.namespace).to_owned(), resume.name.clone())
        });
        let page = self
            .collect(&self.scope(filter), at, after, options.limit, filter)
            .await;
        page.map_err(|error| match (error, resume) {
            (ListError::Expired(_), Some(resume)) => {
                let mut refusal = Refusal::expired(CONTINUE_EXPIRED);
                refusal.resume = Some(Resume { revision: None, ..resume }.token());
                refusal
            }
            (ListError::Expired(_), None) => Refusal::expired(LIST_EXPIRED),
            (error, _) => Refusal::internal(error.to_string()),
        })
    }

    /// Fills a page. Without a filter the store pages; with one, chunks are taken until the page is full.
    async fn collect(
        &self,
        scope: &Scope,
        mut at: At,
        mut after: Option<(String, String)>,
        limit: Option<usize>,
        filter: &Filter,
    ) -> Result<Page, ListError> {
        let mut objects = Vec::new();
        loop {
            let chunk = match limit {
                Some(limit) if filter.is_empty() => Some(limit),
                Some(_) => Some(CHUNK),
                None => None,
            };
            let page = self.api.store.list(scope, at, after.take(), chunk).await?;
            at = At::Exact(page.revision);
            let mut taken = page.items.into_iter();
            let mut last: Option<Arc<Stored>> = None;
            for stored in taken.by_ref() {
                let object = self.served(stored.value());
                last = Some(stored);
                if filter.matches(&object) {
                    objects.push(object);
                    if limit == Some(objects.len()) {
                        break;
                    }
                }
            }
            let full = limit == Some(objects.len());
            let unread = taken.next().is_some();
            let Some(last) = last.filter(|_| page.more || unread) else {
                return Ok(Page {
                    revision: page.revision,
                    objects,
                    resume: None,
                    remaining: None,
                });
            };
            if full {
                return Ok(Page {
                    revision: page.revision,
                    objects,
                    remaining: filter.is_empty().then_some(page.remaining),
                    resume: Some(Resume {
                        revision: Some(page.revision.0),
                        // The namespace of a list in one namespace is in its path.
                        namespace: match self.target.namespace {
                            Some(_) => String::new(),
                            None => last.key.namespace.clone(),
                        },
                        name: last.key.name.clone(),
                    }),
                });
            }
            after = Some((last.key.namespace.clone(), last.key.name.clone()));
        }
    }
}
