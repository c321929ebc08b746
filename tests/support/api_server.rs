//! The API over a store of its own, with a throwaway CA and two tokens: what tests and people's experiments talk to.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use cloudcore::api::auth::{Authenticate, NODES, User};
use cloudcore::api::body::BoxFuture;
use cloudcore::api::pages::{Page, PageAnswer};
use cloudcore::api::seams::{Contact, LogOptions, LogStream, Logs, LogsError, Sessions};
use cloudcore::api::{Api, Limits, Listener, serve};
use cloudcore::store::{Config, Store, Stored};
use hyper::{Method, StatusCode};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::http::Client;

/// The token that may everything.
pub const TOKEN: &str = "admin-token";
/// The token of a node, which may nothing.
pub const NODE_TOKEN: &str = "node-token";

/// A running server. It stops when it is dropped.
#[derive(Debug)]
pub struct ApiServer {
    pub address: SocketAddr,
    pub authority: CertificateDer<'static>,
    pub authority_pem: String,
    /// A client certificate that may everything, with its key.
    pub admin: (CertificateDer<'static>, Vec<u8>),
    /// One of the same CA that nobody knows.
    pub stranger: (CertificateDer<'static>, Vec<u8>),
    pub store: Store,
    pub nodes: Arc<Nodes>,
    tasks: JoinSet<()>,
    stop: CancellationToken,
}

/// Admits the two tokens, and one certificate.
struct Tokens {
    admin: CertificateDer<'static>,
}

impl Authenticate for Tokens {
    fn certificate(&self, chain: &[CertificateDer<'static>]) -> Option<User> {
        (chain.first() == Some(&self.admin)).then(|| User {
            name: "admin".to_owned(),
            groups: vec!["system:masters".to_owned()],
        })
    }

    fn token(&self, token: &str) -> Option<User> {
        let user = |name: &str, group: &str| User { name: name.to_owned(), groups: vec![group.to_owned()] };
        match token {
            TOKEN => Some(user("admin", "system:masters")),
            NODE_TOKEN => Some(user("edge", NODES)),
            _ => None,
        }
    }
}

/// What tests say of nodes.
#[derive(Debug, Default)]
pub struct Nodes {
    contacts: Mutex<BTreeMap<String, Contact>>,
    logs: Mutex<BTreeMap<String, Vec<String>>>,
}

impl Nodes {
    /// A node was heard.
    pub fn heard(&self, node: &str, contact: Contact) {
        let mut contacts = self.contacts.lock().unwrap_or_else(PoisonError::into_inner);
        contacts.insert(node.to_owned(), contact);
    }

    /// A container on some node has written this.
    pub fn wrote(&self, container: &str, pieces: &[&str]) {
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        logs.insert(
            container.to_owned(),
            pieces.iter().map(|piece| (*piece).to_owned()).collect(),
        );
    }
}

impl Logs for Nodes {
    fn open(&self, pod: Arc<Stored>, options: LogOptions) -> BoxFuture<'_, Result<LogStream, LogsError>> {
        Box::pin(async move {
            let pieces = {
                let logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
                logs.get(&options.container).cloned()
            };
            let Some(pieces) = pieces else {
                return Err(LogsError::Unreachable {
                    node: pod.node().unwrap_or_default().to_owned(),
                    why: "it has no session".to_owned(),
                });
            };
            let (sender, receiver) = mpsc::channel(pieces.len().max(1));
            for piece in pieces {
                let _ = sender.send(Ok(piece.into())).await;
            }
            Ok(receiver)
        })
    }
}

impl Sessions for Nodes {
    fn contact(&self, node: &str) -> Option<Contact> {
        let contacts = self.contacts.lock().unwrap_or_else(PoisonError::into_inner);
        contacts.get(node).copied()
    }
}

impl ApiServer {
    /// Starts a server on loopback with its store in a folder.
    pub async fn start(folder: &Path) -> anyhow::Result<Self> {
        Self::start_at(folder, "127.0.0.1:0").await
    }

    pub async fn start_at(folder: &Path, address: &str) -> anyhow::Result<Self> {
        Self::start_with(Config::new(folder), address, Limits::default()).await
    }

    /// Starts a server over a store of one's own making, with limits of one's own.
    pub async fn start_with(config: Config, address: &str, limits: Limits) -> anyhow::Result<Self> {
        let certificates = Certificates::throwaway().context("making certificates")?;
        let store = Store::open(config).context("opening the store")?;
        let nodes = Arc::new(Nodes::default());
        let api = Api::new(
            store.clone(),
            Arc::new(Tokens { admin: certificates.admin.0.clone() }),
            Arc::<Nodes>::clone(&nodes),
            Arc::<Nodes>::clone(&nodes),
            vec![echo()],
            limits,
        );
        let api = api.await.context("setting up the API")?;
        let socket = TcpListener::bind(address).await.context("binding")?;
        let address = socket.local_addr().context("reading the address")?;
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let tls = certificates.tls;
        tasks.spawn(serve(Listener { socket, tls }, api, stop.clone()));
        Ok(Self {
            address,
            authority: certificates.authority,
            authority_pem: certificates.authority_pem,
            admin: certificates.admin,
            stranger: certificates.stranger,
            store,
            nodes,
            tasks,
            stop,
        })
    }

    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// A client with a token.
    pub fn client(&self, token: &str) -> anyhow::Result<Client> {
        Client::new(&self.url(), token, self.authority.clone())
    }

    /// Stops in order, and waits for it.
    pub async fn stop(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

/// A route that is no part of the API, open, and answers with what it was sent.
fn echo() -> Page {
    Page {
        prefix: "/echo/v1",
        method: Method::POST,
        open: true,
        handler: Arc::new(|request| {
            Box::pin(async move {
                PageAnswer {
                    code: StatusCode::OK,
                    content_type: "application/octet-stream",
                    body: request.body,
                }
            })
        }),
    }
}

/// What a server and its clients need, made anew for each server.
struct Certificates {
    tls: Arc<ServerConfig>,
    authority: CertificateDer<'static>,
    authority_pem: String,
    admin: (CertificateDer<'static>, Vec<u8>),
    stranger: (CertificateDer<'static>, Vec<u8>),
}

impl Certificates {
    fn throwaway() -> anyhow::Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = params.self_signed(&key)?;
        let issuer = Issuer::new(params, key);
        let client = || -> anyhow::Result<(CertificateDer<'static>, Vec<u8>)> {
            let key = KeyPair::generate()?;
            let mut params = CertificateParams::new(Vec::new())?;
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            Ok((params.signed_by(&key, &issuer)?.der().clone(), key.serialize_der()))
        };
        let server_key = KeyPair::generate()?;
        let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        let server = CertificateParams::new(names)?.signed_by(&server_key, &issuer)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(authority.der().clone())?;
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .allow_unauthenticated()
            .build()?;
        let mut tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_single_cert(
                vec![server.der().clone()],
                PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(server_key.serialize_der())),
            )?;
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self {
            tls: Arc::new(tls),
            admin: client()?,
            stranger: client()?,
            authority: authority.der().clone(),
            authority_pem: daemon::pem::write(daemon::pem::CERTIFICATE, authority.der()),
        })
    }
}
