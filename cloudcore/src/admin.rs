//! What administrators do beside the Kubernetes API: join tokens, and nodes as sessions.
//!
//! One set of requests, reached two ways: over the API's port with an admin's certificate (`/edgehold/v1/admin`), and on
//! the same host through a socket in the data folder that only its owner may open, which needs no certificate.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use hyper::body::Bytes;
use hyper::{Method, StatusCode};
use proto::admin::{Answer, NodeLine, PATH, Request, TokenLine};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::api::pages::{Page, PageAnswer};
use crate::controllers::sessions::{Contact, Sessions};
use crate::pki::{Pki, TokenSpec};
use crate::store::{At, Scope, Store};

/// The socket in the data folder.
const SOCKET: &str = "admin.sock";

/// The largest request.
const REQUEST_BYTES_MAX: usize = 64 * 1024;

/// How long a local client may take to say what it wants.
const REQUEST_WAIT: Duration = Duration::from_secs(10);

/// Carries the requests out.
#[derive(Debug, Clone)]
pub struct Admin {
    pub store: Store,
    pub pki: Pki,
    pub sessions: Sessions,
    pub hub: crate::hub::Links,
}

impl Admin {
    pub async fn answer(&self, request: Request) -> Answer {
        self.carry_out(request)
            .await
            .unwrap_or_else(|error| Answer::Error(format!("{error:#}")))
    }

    async fn carry_out(&self, request: Request) -> anyhow::Result<Answer> {
        Ok(match request {
            Request::CreateToken { ttl_s, uses, name, labels, replace } => {
                let spec = TokenSpec { ttl: Duration::from_secs(ttl_s), uses, name, labels, replace };
                Answer::Token(self.pki.create_token(spec).await?.to_string())
            }
            Request::Tokens => {
                let lines = self.pki.tokens().await?.into_iter().map(|token| TokenLine {
                    id: token.id,
                    ends_ms: token.ends_ms,
                    uses_left: token.uses_left,
                    name: token.name,
                    labels: token.labels,
                    replace: token.replace,
                });
                Answer::Tokens(lines.collect())
            }
            Request::DeleteToken { id } => {
                self.pki.delete_token(id).await?;
                Answer::Done(true)
            }
            Request::Nodes => {
                let page = self.store.list(&Scope::kind("Node"), At::Latest, None, None).await?;
                Answer::Nodes(page.items.iter().map(|node| self.node(&node.key.name)).collect())
            }
            Request::Revoke { node } => {
                let revoked = self.pki.revoke(&node).await?;
                anyhow::ensure!(
                    revoked,
                    "node {node} has no enrolment that could be revoked; see edgectl node list"
                );
                Answer::Done(true)
            }
            Request::Backup { file } => {
                anyhow::ensure!(file.is_absolute(), "file {}: the path must be absolute", file.display());
                Answer::Revision(self.store.backup(&file).await.context("backing up")?.0)
            }
        })
    }

    fn node(&self, name: &str) -> NodeLine {
        let state = self.sessions.get(name);
        let since = state.map(|state| state.contact.since());
        let connected = state.is_some_and(|state| matches!(state.contact, Contact::Connected { .. }));
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let link = self.hub.link(name);
        NodeLine {
            name: name.to_owned(),
            connected,
            since_ms: since.map(|since| ms(daemon::clock::mono().since(since))),
            reachable_within_ms: link.as_ref().map(|link| ms(link.round_trip)),
            pending: connected.then(|| self.hub.pending(name)),
            bytes: link.map(|link| link.bytes),
            enrolled: self.pki.roll().of_node(name).is_some(),
        }
    }

    /// The route on the API's port.
    pub fn page(&self) -> Page {
        let admin = self.clone();
        Page {
            prefix: PATH,
            method: Method::POST,
            open: false,
            handler: Arc::new(move |request| {
                let admin = admin.clone();
                Box::pin(async move { page_answer(&admin.bytes(&request.body).await) })
            }),
        }
    }

    async fn bytes(&self, request: &[u8]) -> Answer {
        match serde_json::from_slice(request) {
            Ok(request) => self.answer(request).await,
            Err(error) => Answer::Error(format!("not a request: {error}")),
        }
    }

    /// Serves the socket in the data folder.
    pub async fn serve(self, folder: PathBuf, stop: CancellationToken) -> anyhow::Result<()> {
        let path = folder.join(SOCKET);
        // Left over from an earlier life: the folder's lock says that nobody else serves it.
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).with_context(|| format!("binding {}", path.display()))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))
            .with_context(|| format!("protecting {}", path.display()))?;
        let mut clients = JoinSet::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        let admin = self.clone();
                        clients.spawn(async move {
                            if let Err(error) = admin.client(stream).await {
                                tracing::debug!("a local client: {error:#}");
                            }
                        });
                    }
                    Err(error) => tracing::warn!("accepting a local client: {error}"),
                },
                Some(_) = clients.join_next() => {}
            }
        }
        let _ = std::fs::remove_file(&path);
        Ok(())
    }

    async fn client(&self, mut stream: UnixStream) -> anyhow::Result<()> {
        let mut request = Vec::new();
        let limit = u64::try_from(REQUEST_BYTES_MAX)?;
        timeout(REQUEST_WAIT, (&mut stream).take(limit).read_to_end(&mut request)).await??;
        let answer = self.bytes(&request).await;
        stream.write_all(&serde_json::to_vec(&answer)?).await?;
        Ok(())
    }
}

fn page_answer(answer: &Answer) -> PageAnswer {
    let code = if matches!(answer, Answer::Error(_)) {
        StatusCode::BAD_REQUEST
    } else {
        StatusCode::OK
    };
    let body = serde_json::to_vec(answer).unwrap_or_default();
    PageAnswer {
        code,
        content_type: "application/json",
        body: Bytes::from(body),
    }
}

/// Asks the cloud core that runs on this data folder.
pub async fn ask(folder: &Path, request: &Request) -> anyhow::Result<Answer> {
    let path = folder.join(SOCKET);
    let mut stream = UnixStream::connect(&path).await.with_context(|| {
        format!(
            "no cloud core answers at {}: is `cloudcore serve` running on this data folder?",
            path.display()
        )
    })?;
    stream.write_all(&serde_json::to_vec(request)?).await?;
    stream.shutdown().await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    match serde_json::from_slice(&answer).context("reading the answer")? {
        Answer::Error(error) => anyhow::bail!(error),
        answer => Ok(answer),
    }
}
