//! Watches: what is there, then what happens, then nothing for as long as nothing happens.
//!
//! A watch never skips a revision and never starts again silently. What it cannot go on from is said as one ERROR event
//! of a stream that was answered with 200, as clients of Kubernetes expect it.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use proto::object::Revision;
use proto::value::{Value, json};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Interval, MissedTickBehavior, Sleep, interval, sleep};

use super::Call;
use super::filter::Filter;
use crate::api::body::{self, Answer, BoxFuture, Fed, Feed};
use crate::api::media::Form;
use crate::api::query::ListOptions;
use crate::api::status::Refusal;
use crate::store::{Change, Stored, Watch};

/// A watch that names no end lasts this long.
const TIMEOUT_DEFAULT_S: u64 = 3600;
/// And none lasts longer.
const TIMEOUT_MAX_S: u64 = 24 * 3600;
/// How often a client that wants bookmarks gets one.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// Pieces of what is there at the beginning are about this long.
const PIECE_BYTES: usize = 64 * 1024;

const INITIAL_END: &str = "k8s.io/initial-events-end";

/// A watch in progress. It owns its place among the watches.
struct Stream {
    call: Call,
    filter: Filter,
    form: Form,
    /// What was there when it began, still to be told.
    initial: VecDeque<Arc<Stored>>,
    /// The bookmark that ends what was there, at this revision.
    initial_end: Option<Revision>,
    watch: Watch,
    end: Pin<Box<Sleep>>,
    bookmarks: Option<Interval>,
    /// Tables name their columns once.
    columns: bool,
    over: bool,
    _place: OwnedSemaphorePermit,
}

impl Call {
    /// A place among the answers that go on for long.
    pub(super) fn long_place(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        let place = Arc::clone(&self.api.watches).try_acquire_owned();
        place.map_err(|_| Refusal::too_many_requests("too many watches and logs, please try again later"))
    }

    pub(super) async fn watch(self) -> Result<Response<Answer>, Refusal> {
        let options = ListOptions::of(&self.query)?;
        let mut filter = Filter::new(self.kind, &options.labels, &options.fields)?;
        if let Some(name) = &self.target.name {
            filter = filter.named(name);
        }
        let media = self.media()?;
        let place = self.long_place()?;
        let scope = self.scope(&filter);
        let initial =
            options.initial == Some(true) || options.initial.is_none() && matches!(options.revision, None | Some(0));
        let (items, from) = match (initial, options.revision) {
            (false, Some(revision)) => (VecDeque::new(), Revision(revision)),
            _ => {
                if let Some(revision) = options.revision {
                    self.reached(revision).await?;
                }
                let page = self.everything(&scope).await?;
                let items = if initial { page.items.into() } else { VecDeque::new() };
                (items, page.revision)
            }
        };
        let watch = match self.api.store.watch(scope, from) {
            Ok(watch) => watch,
            Err(expired) => {
                let refusal = too_old(from, expired.oldest);
                return Ok(streamed(Answer::Whole(Some(event("ERROR", &refusal.status())))));
            }
        };
        let timeout = options.timeout_s.unwrap_or(TIMEOUT_DEFAULT_S).min(TIMEOUT_MAX_S);
        let bookmarks = options.bookmarks.then(|| {
            let mut ticks = interval(BOOKMARK_EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks.reset();
            ticks
        });
        let stream = Stream {
            initial: items,
            initial_end: (initial && options.bookmarks).then_some(from),
            form: media.form,
            filter,
            watch,
            end: Box::pin(sleep(Duration::from_secs(timeout))),
            bookmarks,
            columns: true,
            over: false,
            call: self,
            _place: place,
        };
        Ok(streamed(Answer::fed(Box::new(stream))))
    }
}

fn streamed(answer: Answer) -> Response<Answer> {
    let mut response = body::bytes(StatusCode::OK, "application/json", Bytes::new());
    *response.body_mut() = answer;
    let caching = HeaderName::from_static("cache-control");
    body::header(&mut response, caching, HeaderValue::from_static("no-cache, private"));
    response
}

fn too_old(asked: Revision, oldest: Revision) -> Refusal {
    Refusal::expired(format!("too old resource version: {asked} ({oldest})"))
}

fn event(kind: &str, object: &Value) -> Bytes {
    let mut line = String::from("{\"type\":\"");
    line.push_str(kind);
    line.push_str("\",\"object\":");
    line.push_str(&json::write(object));
    line.push_str("}\n");
    Bytes::from(line)
}

impl Feed for Stream {
    fn next(mut self: Box<Self>) -> BoxFuture<'static, Option<Fed>> {
        Box::pin(async move {
            let piece = self.piece().await?;
            Some(Ok((piece, self as Box<dyn Feed>)))
        })
    }
}

impl Stream {
    /// The next piece; `None` at the end.
    async fn piece(&mut self) -> Option<Bytes> {
        if let Some(piece) = self.beginning() {
            return Some(piece);
        }
        while !self.over {
            let stop = self.call.stop.clone();
            let tick = async {
                match &mut self.bookmarks {
                    Some(ticks) => ticks.tick().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => self.over = true,
                change = self.watch.next() => match change {
                    Ok(change) => {
                        if let Some(piece) = self.told(&change) {
                            return Some(piece);
                        }
                    }
                    Err(expired) => {
                        self.over = true;
                        let refusal = too_old(self.watch.seen(), expired.oldest);
                        return Some(event("ERROR", &refusal.status()));
                    }
                },
                () = &mut self.end => {
                    self.over = true;
                    if self.bookmarks.is_some() {
                        return Some(self.bookmark(self.watch.seen(), false));
                    }
                }
                _ = tick => return Some(self.bookmark(self.watch.seen(), false)),
            }
        }
        None
    }

    /// What was there, some of it at a time, and the bookmark behind it.
    fn beginning(&mut self) -> Option<Bytes> {
        let mut piece = Vec::new();
        while piece.len() < PIECE_BYTES {
            let Some(stored) = self.initial.pop_front() else { break };
            let object = self.call.served(stored.value());
            if self.filter.matches(&object) {
                let line = self.line("ADDED", &object);
                piece.extend_from_slice(&line);
            }
        }
        if self.initial.is_empty()
            && let Some(revision) = self.initial_end.take()
        {
            piece.extend_from_slice(&self.bookmark(revision, true));
        }
        (!piece.is_empty()).then(|| Bytes::from(piece))
    }

    /// A change in the eyes of this watch: what enters its filter is added, what leaves it is deleted.
    fn told(&mut self, change: &Change) -> Option<Bytes> {
        let shown = |stored: &Option<Arc<Stored>>| {
            let object = self.call.served(stored.as_ref()?.value());
            self.filter.matches(&object).then_some(object)
        };
        match (shown(&change.before), shown(&change.after)) {
            (None, None) => None,
            (None, Some(object)) => Some(self.line("ADDED", &object)),
            (Some(_), Some(object)) => Some(self.line("MODIFIED", &object)),
            (Some(mut object), None) => {
                // The last version that was shown, at the revision at which it went out of sight.
                object.set(&["metadata", "resourceVersion"], change.revision.to_string());
                Some(self.line("DELETED", &object))
            }
        }
    }

    fn line(&mut self, kind: &str, object: &Value) -> Bytes {
        let shaped = self.call.shape(object, self.form, self.columns);
        self.columns = false;
        event(kind, &shaped)
    }

    fn bookmark(&self, revision: Revision, ends_initial: bool) -> Bytes {
        let mut metadata = Value::from([("resourceVersion", revision.to_string())]);
        if ends_initial {
            metadata.set(&["annotations", INITIAL_END], "true");
        }
        let (kind, version) = match self.form {
            Form::Plain | Form::Discovery => (self.call.kind.kind, self.call.kind.api_version()),
            Form::Metadata => ("PartialObjectMetadata", "meta.k8s.io/v1".to_owned()),
            Form::Table => ("Table", "meta.k8s.io/v1".to_owned()),
        };
        let mut object = Value::from([
            ("kind", Value::from(kind)),
            ("apiVersion", version.into()),
            ("metadata", metadata),
        ]);
        if self.form == Form::Table {
            object.set(&["columnDefinitions"], Value::Null);
            object.set(&["rows"], Value::Null);
        }
        event("BOOKMARK", &object)
    }
}
