//! A small HTTPS client for tests: one request, one connection, HTTP/1.1, a bearer token.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Every request has to be answered within this time.
const ANSWER: Duration = Duration::from_secs(20);

/// A server and how to speak to it.
#[derive(Debug, Clone)]
pub struct Client {
    authority: String,
    token: String,
    tls: Arc<ClientConfig>,
}

/// An answer that was read whole.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: header::HeaderMap,
    pub body: Bytes,
}

/// An answer that is read line by line.
#[derive(Debug)]
pub struct Lines {
    pub status: StatusCode,
    pub headers: header::HeaderMap,
    body: Incoming,
    rest: Vec<u8>,
    connection: JoinHandle<()>,
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Client {
    /// `url` is `https://host:port`; an empty token is not sent.
    pub fn new(url: &str, token: &str, authority: CertificateDer<'static>) -> anyhow::Result<Self> {
        Self::build(url, token, authority, None)
    }

    /// A client with a certificate and its key instead of a token.
    pub fn with_certificate(
        url: &str,
        authority: CertificateDer<'static>,
        (certificate, key): (CertificateDer<'static>, Vec<u8>),
    ) -> anyhow::Result<Self> {
        Self::build(url, "", authority, Some((certificate, key)))
    }

    fn build(
        url: &str,
        token: &str,
        authority: CertificateDer<'static>,
        identity: Option<(CertificateDer<'static>, Vec<u8>)>,
    ) -> anyhow::Result<Self> {
        let host = url
            .strip_prefix("https://")
            .context("the URL has to begin with https://")?;
        let mut roots = RootCertStore::empty();
        roots.add(authority).context("reading the CA")?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .context("choosing TLS versions")?
            .with_root_certificates(roots);
        let tls = match identity {
            None => tls.with_no_client_auth(),
            Some((certificate, key)) => {
                let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key));
                tls.with_client_auth_cert(vec![certificate], key)
                    .context("the client's certificate")?
            }
        };
        Ok(Self {
            authority: host.trim_end_matches('/').to_owned(),
            token: token.to_owned(),
            tls: Arc::new(tls),
        })
    }

    async fn send(
        &self,
        method: &Method,
        path: &str,
        headers: &[(String, String)],
        body: Bytes,
    ) -> anyhow::Result<(Response<Incoming>, JoinHandle<()>)> {
        let socket = TcpStream::connect(&self.authority).await.context("connecting")?;
        let host = self
            .authority
            .rsplit_once(':')
            .map_or(self.authority.as_str(), |(host, _)| host);
        let name = ServerName::try_from(host.to_owned()).context("the server's name")?;
        let connector = TlsConnector::from(Arc::clone(&self.tls));
        let stream = connector.connect(name, socket).await.context("TLS handshake")?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .context("HTTP handshake")?;
        #[expect(
            clippy::disallowed_methods,
            reason = "a test's connection; the handle aborts it when the answer is read"
        )]
        let connection = tokio::spawn(async move {
            let _ = connection.await;
        });
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, &self.authority)
            .header(header::USER_AGENT, "python-urllib3/2");
        if !self.token.is_empty() {
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", self.token));
        }
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(body)).context("building the request")?;
        let answer = timeout(ANSWER, sender.send_request(request))
            .await
            .context("no answer in time")?;
        Ok((answer.context("sending the request")?, connection))
    }

    /// Sends a request and reads the whole answer.
    pub async fn call(
        &self,
        method: &Method,
        path: &str,
        headers: &[(String, String)],
        body: impl Into<Bytes>,
    ) -> anyhow::Result<Answer> {
        let (answer, connection) = self.send(method, path, headers, body.into()).await?;
        let (head, body) = answer.into_parts();
        let body = timeout(ANSWER, body.collect())
            .await
            .context("no end of the answer in time")?;
        connection.abort();
        Ok(Answer {
            status: head.status,
            headers: head.headers,
            body: body.context("reading the answer")?.to_bytes(),
        })
    }

    /// Sends a GET and reads its answer line by line.
    pub async fn lines(&self, path: &str, headers: &[(String, String)]) -> anyhow::Result<Lines> {
        let (answer, connection) = self.send(&Method::GET, path, headers, Bytes::new()).await?;
        let (head, body) = answer.into_parts();
        Ok(Lines {
            status: head.status,
            headers: head.headers,
            body,
            rest: Vec::new(),
            connection,
        })
    }
}

impl Lines {
    /// The next line; `None` at the end of the answer.
    pub async fn next(&mut self, wait: Duration) -> anyhow::Result<Option<Vec<u8>>> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line = self.rest.drain(..=end).collect::<Vec<u8>>();
                return Ok(Some(line));
            }
            let frame = match timeout(wait, self.body.frame()).await {
                Err(_) => bail!("no line in time"),
                Ok(None) => return Ok(None),
                Ok(Some(frame)) => frame.context("reading a line")?,
            };
            if let Ok(data) = frame.into_data() {
                self.rest.extend_from_slice(&data);
            }
        }
    }
}
