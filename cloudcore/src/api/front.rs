//! From a request on the wire to an answer: who asks, for what, whether they may, and then the part that does it.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, ETAG, HOST, HeaderName, HeaderValue, IF_NONE_MATCH, VARY};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, debug, debug_span};

use super::Api;
use super::auth::{self, Attempt, User};
use super::body::{self, Answer};
use super::codec::BODY_BYTES_MAX;
use super::discovery::{self, Document};
use super::engine::{self, Call};
use super::media::{self, Encoding, Form, Media};
use super::pages::{Page, PageRequest};
use super::path::{self, Route, Target};
use super::query::Query;
use super::server::Peer;
use super::status::Refusal;

/// A client has this long to send the body it announced.
const BODY: Duration = Duration::from_secs(60);

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

impl Api {
    /// Answers one request.
    pub async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        peer: Peer,
        stop: CancellationToken,
    ) -> Response<Answer> {
        let span = debug_span!("request", method = %request.method(), path = request.uri().path());
        let answered = async {
            let answered = self.try_answer(request, peer, stop).await;
            answered.unwrap_or_else(|refusal| {
                debug!(code = refusal.code.as_u16(), message = refusal.message, "refused");
                body::refusal(&refusal)
            })
        };
        let mut response = answered.instrument(span).await;
        let caching = HeaderName::from_static("cache-control");
        let headers = response.headers_mut();
        headers
            .entry(caching)
            .or_insert(HeaderValue::from_static("no-cache, private"));
        response
    }

    async fn try_answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        peer: Peer,
        stop: CancellationToken,
    ) -> Result<Response<Answer>, Refusal> {
        let (head, incoming) = request.into_parts();
        let path = head.uri.path();
        let authorization = text(&head.headers, AUTHORIZATION);
        let page = self.pages.iter().find(|page| page.answers(&head.method, path)).cloned();
        if let Some(page) = page.as_ref().filter(|page| page.open) {
            let _place = self.place()?;
            let body = self.read(incoming).await?;
            return Ok(self.page(page, &head, body, peer, None).await);
        }
        let user = auth::authenticate(self.authority.as_ref(), authorization, &peer.chain)?;
        let query = Query::parse(head.uri.query());
        let route = path::route(path);
        let Route::Resource(target) = route else {
            let verb = head.method.as_str().to_ascii_lowercase();
            auth::authorize(&user, Attempt::Page { verb: &verb, path })?;
            if let Some(page) = &page {
                let _place = self.place()?;
                let body = self.read(incoming).await?;
                return Ok(self.page(page, &head, body, peer, Some(user)).await);
            }
            return self.document(route, &head, &query);
        };
        let verb = engine::verb(&head.method, &target, &query).ok_or_else(Refusal::method_not_allowed)?;
        auth::authorize(&user, Attempt::Resource { verb, target: &target })?;
        self.resource(verb, target, query, &head, incoming, stop).await
    }

    async fn resource(
        self: Arc<Self>,
        verb: &'static str,
        target: Target,
        query: Query,
        head: &hyper::http::request::Parts,
        incoming: Incoming,
        stop: CancellationToken,
    ) -> Result<Response<Answer>, Refusal> {
        let kind = engine::kind_of(&self, &target)?;
        // Held until the answer is made; what a watch or a log holds while it runs is counted elsewhere.
        let _place = self.place()?;
        let body = match head.method {
            Method::GET => Bytes::new(),
            _ => self.read(incoming).await?,
        };
        let call = Call {
            api: Arc::clone(&self),
            kind,
            target,
            query,
            accepted: media::accepted(text(&head.headers, ACCEPT)),
            content_type: text(&head.headers, CONTENT_TYPE).map(str::to_owned),
            body,
            stop,
        };
        call.run(verb).await
    }

    /// A place among the requests at work.
    fn place(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        let place = Arc::clone(&self.requests).try_acquire_owned();
        place.map_err(|_| Refusal::too_many_requests("too many requests, please try again later"))
    }

    async fn read(&self, incoming: Incoming) -> Result<Bytes, Refusal> {
        let limited = Limited::new(incoming, BODY_BYTES_MAX).collect();
        match tokio::time::timeout(BODY, limited).await {
            Ok(Ok(body)) => Ok(body.to_bytes()),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Refusal::too_large(BODY_BYTES_MAX)),
            Ok(Err(error)) => Err(Refusal::bad_request(format!("reading the body: {error}"))),
            Err(_) => Err(Refusal::bad_request("the body did not come in time")),
        }
    }

    async fn page(
        &self,
        page: &Page,
        head: &hyper::http::request::Parts,
        body: Bytes,
        peer: Peer,
        user: Option<User>,
    ) -> Response<Answer> {
        let request = PageRequest {
            method: head.method.clone(),
            path: head.uri.path().to_owned(),
            query: head.uri.query().map(str::to_owned),
            content_type: text(&head.headers, CONTENT_TYPE).map(str::to_owned),
            body,
            peer,
            user,
        };
        let answer = (page.handler)(request).await;
        body::bytes(answer.code, answer.content_type, answer.body)
    }

    /// Everything that is no resource: discovery, OpenAPI, version, health.
    fn document(
        &self,
        route: Route,
        head: &hyper::http::request::Parts,
        query: &Query,
    ) -> Result<Response<Answer>, Refusal> {
        if head.method != Method::GET {
            return Err(Refusal::method_not_allowed());
        }
        let accepted = media::accepted(text(&head.headers, ACCEPT));
        let known = text(&head.headers, IF_NONE_MATCH);
        let documents = &self.documents;
        let first = |forms: &[Form]| -> Result<Media, Refusal> {
            let mut accepted = accepted.iter();
            let found = accepted.find(|media| forms.contains(&media.form));
            found.copied().ok_or_else(Refusal::not_acceptable)
        };
        let plain = |document: &Document| {
            let media = first(&[Form::Plain])?;
            Ok(body::object(StatusCode::OK, media.encoding, &document.value, &[]))
        };
        match route {
            Route::Core => Ok(match first(&[Form::Plain, Form::Discovery])?.form {
                Form::Discovery => public(tagged(&documents.aggregated_core, AGGREGATED, known)),
                _ => {
                    let authority = head.uri.authority().map(|authority| authority.as_str());
                    let host = authority.or_else(|| text(&head.headers, HOST)).unwrap_or_default();
                    body::object(StatusCode::OK, Encoding::Json, &discovery::core_versions(host), &[])
                }
            }),
            Route::Groups => match first(&[Form::Plain, Form::Discovery])?.form {
                Form::Discovery => Ok(public(tagged(&documents.aggregated_groups, AGGREGATED, known))),
                _ => plain(&documents.groups),
            },
            Route::Group(group) => plain(documents.group(&group).ok_or_else(Refusal::no_page)?),
            Route::Version { group, version } => {
                let document = documents.version_of(&group, &version);
                plain(document.ok_or_else(|| {
                    if documents.knows(&group) {
                        Refusal::no_resource()
                    } else {
                        Refusal::no_page()
                    }
                })?)
            }
            Route::Page(page) => self.well_known(&page, query, known),
            Route::Resource(_) => Err(Refusal::no_resource()),
        }
    }

    fn well_known(&self, page: &str, query: &Query, known: Option<&str>) -> Result<Response<Answer>, Refusal> {
        let documents = &self.documents;
        let json = |document: &Document| body::object(StatusCode::OK, Encoding::Json, &document.value, &[]);
        Ok(match page {
            "/" => json(&documents.pages),
            "/version" => json(&documents.version),
            "/openapi/v3" => tagged(&documents.openapi, "text/plain; charset=utf-8", known),
            "/healthz" | "/livez" | "/readyz" if query.get("verbose").is_some() => {
                let name = page.trim_start_matches('/');
                body::text(
                    StatusCode::OK,
                    format!("[+]ping ok\n[+]store ok\n{name} check passed\n"),
                )
            }
            "/healthz" | "/livez" | "/readyz" | "/healthz/ping" | "/livez/ping" | "/readyz/ping" => {
                body::text(StatusCode::OK, "ok")
            }
            page => match page.strip_prefix("/openapi/v3/") {
                Some(path) => match documents.openapi_of(path) {
                    Some(document) => tagged(document, "application/json", known),
                    None => body::bytes(StatusCode::NOT_FOUND, "application/json", Bytes::new()),
                },
                None => return Err(Refusal::no_page()),
            },
        })
    }
}

/// A document with its entity tag; nothing but the tag for a client that has it.
fn tagged(document: &Document, content_type: &'static str, known: Option<&str>) -> Response<Answer> {
    let same = known.is_some_and(|known| known.split(',').any(|tag| tag.trim() == document.etag));
    let mut response = if same {
        let mut response = Response::new(Answer::Whole(None));
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        body::bytes(StatusCode::OK, content_type, document.bytes.clone())
    };
    if let Ok(tag) = HeaderValue::from_str(&document.etag) {
        body::header(&mut response, ETAG, tag);
    }
    body::header(&mut response, VARY, HeaderValue::from_static("Accept"));
    response
}

/// Lets others than the client keep a document: it is the same for everybody.
fn public(mut response: Response<Answer>) -> Response<Answer> {
    let caching = HeaderName::from_static("cache-control");
    body::header(&mut response, caching, HeaderValue::from_static("public"));
    response
}

/// A header as text; what is no text counts as absent.
fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}
