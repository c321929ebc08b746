//! Reading from a registry: the pull half of the OCI distribution protocol, over HTTP/1.1.
//!
//! Written on hyper and rustls, which the edge core has anyway (`docs/decisions/0010-registry-client.md`). One
//! connection per host is kept for the whole pull. Credentials go to the registry and to the token server it names, never
//! after a redirect to another host, and never without TLS except to this machine.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::manifest::MANIFEST_TYPES;
use super::reference::is_loopback;
use super::{DOCUMENT_BYTES_MAX, Digest, ImageError, Reference, Trust};
use crate::runtime::RegistryAuth;

/// To connect and shake hands.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);
/// From a request to its answer's head, and between two pieces of a body: a satellite link with a full queue.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// To see that a kept connection can be used: it cannot while its last body was not read to its end.
const REUSE_LIMIT: Duration = Duration::from_millis(100);
const REDIRECTS_MAX: usize = 5;
const TOKEN_BYTES_MAX: u64 = 64 * 1024;

/// A repository of a registry, being read.
pub struct Registry {
    reference: Reference,
    trust: Trust,
    tls: Option<TlsConnector>,
    /// What is still to be tried; the last one is in use.
    credentials: Vec<Option<RegistryAuth>>,
    /// The `Authorization` that worked last.
    authorization: Option<HeaderValue>,
    connections: BTreeMap<String, SendRequest<Empty<Bytes>>>,
    drivers: JoinSet<()>,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry")
            .field("reference", &self.reference)
            .finish_non_exhaustive()
    }
}

impl Registry {
    /// Nothing is sent yet. Each of `auth` is tried in turn; none of them means anonymously.
    pub fn new(reference: Reference, auth: &[RegistryAuth], trust: Trust) -> Self {
        let mut credentials: Vec<Option<RegistryAuth>> = auth.iter().rev().cloned().map(Some).collect();
        if credentials.is_empty() {
            credentials.push(None);
        }
        Self {
            reference,
            trust,
            tls: None,
            credentials,
            authorization: None,
            connections: BTreeMap::new(),
            drivers: JoinSet::new(),
        }
    }

    /// A manifest or index by tag or digest, unchecked.
    pub async fn manifest(&mut self, version: &str) -> Result<Vec<u8>, ImageError> {
        let url = self.url("manifests", version)?;
        let mut headers = HeaderMap::new();
        let accepted = HeaderValue::from_str(&MANIFEST_TYPES.join(", ")).expect("media types are text");
        headers.insert(header::ACCEPT, accepted);
        let body = self.fetch(&url, headers, 0).await?;
        body.all(DOCUMENT_BYTES_MAX).await
    }

    /// A blob from an offset on, or from its start when the registry cannot do that.
    pub async fn blob(&mut self, digest: &Digest, offset: u64) -> Result<Body, ImageError> {
        let url = self.url("blobs", digest.as_str())?;
        let mut headers = HeaderMap::new();
        if offset > 0 {
            let range = HeaderValue::from_str(&format!("bytes={offset}-")).expect("digits");
            headers.insert(header::RANGE, range);
        }
        self.fetch(&url, headers, offset).await
    }

    fn url(&self, kind: &'static str, version: &str) -> Result<Uri, ImageError> {
        let host = self.reference.host();
        let scheme = if is_loopback(host) { "http" } else { "https" };
        let text = format!("{scheme}://{host}/v2/{}/{kind}/{version}", self.reference.path());
        text.parse()
            .map_err(|_| ImageError::Protocol { url: text, reason: "it is not a URL" })
    }

    /// Sends a request, with credentials when asked for them.
    async fn fetch(&mut self, url: &Uri, headers: HeaderMap, offset: u64) -> Result<Body, ImageError> {
        loop {
            let response = self.follow(url, &headers).await?;
            let refused = matches!(response.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
            if !refused {
                return Body::of(url, response, offset);
            }
            if self.authorization.take().is_some() {
                // What was sent is not enough (or a token ran out, in which case trying the same again is enough).
                self.credentials.pop();
            }
            let Some(credential) = self.credentials.last().cloned() else {
                return Err(ImageError::Denied { url: url.to_string() });
            };
            let challenge = response
                .headers()
                .get(header::WWW_AUTHENTICATE)
                .and_then(|value| value.to_str().ok());
            let challenge = challenge.map(Challenge::parse);
            drop(response);
            self.authorization = match (challenge, credential) {
                (Some(Challenge::Bearer { realm, query }), credential) => {
                    match self.token(&realm, &query, credential.as_ref()).await {
                        Ok(token) => Some(sensitive(&format!("Bearer {token}"))?),
                        Err(ImageError::Denied { .. }) => {
                            self.credentials.pop();
                            continue;
                        }
                        Err(error) => return Err(error),
                    }
                }
                (Some(Challenge::Basic), Some(auth)) => Some(basic(&auth)?),
                _ => return Err(ImageError::Denied { url: url.to_string() }),
            };
        }
    }

    /// Follows redirects; credentials stay with the first host.
    async fn follow(&mut self, url: &Uri, headers: &HeaderMap) -> Result<Response<Incoming>, ImageError> {
        let mut at = url.clone();
        for _ in 0..=REDIRECTS_MAX {
            let mut headers = headers.clone();
            if let Some(authorization) = self
                .authorization
                .as_ref()
                .filter(|_| at.authority() == url.authority())
            {
                headers.insert(header::AUTHORIZATION, authorization.clone());
            }
            let response = self.send(&at, headers).await?;
            if !response.status().is_redirection() {
                return Ok(response);
            }
            let target = response
                .headers()
                .get(header::LOCATION)
                .and_then(|value| value.to_str().ok());
            at = target
                .and_then(|target| join(&at, target))
                .ok_or_else(|| ImageError::Protocol {
                    url: at.to_string(),
                    reason: "it redirects to nowhere, or to somewhere without TLS",
                })?;
        }
        Err(ImageError::Protocol { url: url.to_string(), reason: "it redirects too often" })
    }

    /// Asks the token server a registry named.
    async fn token(
        &mut self,
        realm: &Uri,
        query: &str,
        credential: Option<&RegistryAuth>,
    ) -> Result<String, ImageError> {
        #[derive(Deserialize)]
        struct Answer {
            token: Option<String>,
            access_token: Option<String>,
        }
        let sign = if realm.query().is_some() { '&' } else { '?' };
        let text = format!("{realm}{sign}{query}");
        let broken = |reason| ImageError::Protocol { url: realm.to_string(), reason };
        let url: Uri = text.parse().map_err(|_| broken("it is not a URL"))?;
        if !is_safe(&url) {
            return Err(broken("a token server without TLS"));
        }
        let mut headers = HeaderMap::new();
        if let Some(auth) = credential {
            headers.insert(header::AUTHORIZATION, basic(auth)?);
        }
        let response = self.send(&url, headers).await?;
        let bytes = Body::of(&url, response, 0)?.all(TOKEN_BYTES_MAX).await?;
        let answer: Answer =
            serde_json::from_slice(&bytes).map_err(|source| ImageError::Format { what: "token", source })?;
        answer
            .token
            .or(answer.access_token)
            .ok_or_else(|| broken("it gave no token"))
    }

    async fn send(&mut self, url: &Uri, headers: HeaderMap) -> Result<Response<Incoming>, ImageError> {
        let host = url.authority().map(ToString::to_string).unwrap_or_default();
        let path = url.path_and_query().map_or("/", |path| path.as_str());
        let mut request = Request::get(path).body(Empty::new()).expect("a URL's path is one");
        *request.headers_mut() = headers;
        let value = HeaderValue::from_str(&host).expect("a URL's authority is text");
        request.headers_mut().insert(header::HOST, value);
        let agent = concat!("edgehold/", env!("CARGO_PKG_VERSION"));
        request
            .headers_mut()
            .insert(header::USER_AGENT, HeaderValue::from_static(agent));
        if let Some(mut kept) = self.connections.remove(&host)
            && timeout(REUSE_LIMIT, kept.ready()).await.is_ok_and(|ready| ready.is_ok())
            // The registry may be closing it at this moment: what fails here is asked again.
            && let Ok(response) = ask(&mut kept, &host, request.clone()).await
        {
            self.connections.insert(host, kept);
            return Ok(response);
        }
        let mut fresh = self.connect(url, &host).await?;
        let response = ask(&mut fresh, &host, request).await?;
        self.connections.insert(host, fresh);
        Ok(response)
    }

    async fn connect(&mut self, url: &Uri, authority: &str) -> Result<SendRequest<Empty<Bytes>>, ImageError> {
        let late = |_| ImageError::Timeout { host: authority.to_owned() };
        timeout(CONNECT_LIMIT, self.shake(url, authority)).await.map_err(late)?
    }

    async fn shake(&mut self, url: &Uri, authority: &str) -> Result<SendRequest<Empty<Bytes>>, ImageError> {
        let unreachable = |source| ImageError::Unreachable { host: authority.to_owned(), source };
        let broken = |source| ImageError::Broken { host: authority.to_owned(), source };
        let tls = url.scheme_str() == Some("https");
        let host = url
            .host()
            .unwrap_or_default()
            .trim_start_matches('[')
            .trim_end_matches(']');
        let port = url.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let stream = TcpStream::connect((host, port)).await.map_err(unreachable)?;
        if !tls {
            let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
            self.drivers.spawn(async { drop(connection.await) });
            return Ok(sender);
        }
        let connector = match &self.tls {
            Some(connector) => connector,
            None => self.tls.insert(self.trust.connector()?),
        };
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|_| ImageError::Protocol { url: url.to_string(), reason: "its host is no name" })?;
        let stream = connector.connect(name, stream).await.map_err(unreachable)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        self.drivers.spawn(async { drop(connection.await) });
        Ok(sender)
    }
}

async fn ask(
    connection: &mut SendRequest<Empty<Bytes>>,
    host: &str,
    request: Request<Empty<Bytes>>,
) -> Result<Response<Incoming>, ImageError> {
    timeout(ANSWER_LIMIT, connection.send_request(request))
        .await
        .map_err(|_| ImageError::Timeout { host: host.to_owned() })?
        .map_err(|source| ImageError::Broken { host: host.to_owned(), source })
}

/// A body as it comes in.
#[derive(Debug)]
pub struct Body {
    host: String,
    offset: u64,
    incoming: Incoming,
}

impl Body {
    fn of(url: &Uri, response: Response<Incoming>, asked: u64) -> Result<Self, ImageError> {
        let offset = match response.status() {
            StatusCode::OK => 0,
            StatusCode::PARTIAL_CONTENT => asked,
            StatusCode::NOT_FOUND => return Err(ImageError::NotFound { url: url.to_string() }),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                return Err(ImageError::Denied { url: url.to_string() });
            }
            other => return Err(ImageError::Status { url: url.to_string(), status: other.as_u16() }),
        };
        Ok(Self {
            host: url.host().unwrap_or_default().to_owned(),
            offset,
            incoming: response.into_body(),
        })
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, ImageError> {
        loop {
            let frame = timeout(ANSWER_LIMIT, self.incoming.frame())
                .await
                .map_err(|_| ImageError::Timeout { host: self.host.clone() })?;
            let Some(frame) = frame else { return Ok(None) };
            let frame = frame.map_err(|source| ImageError::Broken { host: self.host.clone(), source })?;
            // Trailers carry nothing for us.
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
    }

    async fn all(mut self, bytes_max: u64) -> Result<Vec<u8>, ImageError> {
        let mut bytes = Vec::new();
        while let Some(piece) = self.next().await? {
            bytes.extend_from_slice(&piece);
            if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > bytes_max {
                return Err(ImageError::TooLarge { what: format!("an answer of {}", self.host), bytes_max });
            }
        }
        Ok(bytes)
    }
}

/// How a registry wants to be asked.
#[derive(Debug, PartialEq, Eq)]
enum Challenge {
    Basic,
    Bearer { realm: Uri, query: String },
    Unknown,
}

impl Challenge {
    /// Reads a `WWW-Authenticate`: a scheme, then `key="value"` pairs whose values may hold commas.
    fn parse(text: &str) -> Self {
        let (scheme, mut rest) = text.split_once(' ').unwrap_or((text, ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Self::Basic;
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Self::Unknown;
        }
        let (mut realm, mut query) = (None, Vec::new());
        while let Some((key, after)) = rest.split_once("=\"") {
            let Some((value, after)) = after.split_once('"') else {
                break;
            };
            match key.trim_matches([',', ' ']) {
                "realm" => realm = value.parse().ok(),
                key @ ("service" | "scope") => query.push(format!("{key}={}", escape(value))),
                _ => {}
            }
            rest = after;
        }
        realm.map_or(Self::Unknown, |realm| Self::Bearer { realm, query: query.join("&") })
    }
}

/// Percent-encodes what may not stand in a query.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:/,".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// Where a redirect leads; `None` when it is no URL or leaves TLS.
fn join(from: &Uri, target: &str) -> Option<Uri> {
    let url: Uri = if target.starts_with('/') && !target.starts_with("//") {
        format!("{}://{}{target}", from.scheme_str()?, from.authority()?)
            .parse()
            .ok()?
    } else {
        target.parse().ok()?
    };
    is_safe(&url).then_some(url)
}

fn is_safe(url: &Uri) -> bool {
    match url.scheme_str() {
        Some("https") => url.host().is_some(),
        Some("http") => url.host().is_some_and(is_loopback),
        _ => false,
    }
}

fn basic(auth: &RegistryAuth) -> Result<HeaderValue, ImageError> {
    sensitive(&format!(
        "Basic {}",
        BASE64.encode(format!("{}:{}", auth.username, auth.password))
    ))
}

fn sensitive(text: &str) -> Result<HeaderValue, ImageError> {
    let mut value = HeaderValue::from_str(text)
        .map_err(|_| ImageError::Protocol { url: String::new(), reason: "a token that is no header" })?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests;
