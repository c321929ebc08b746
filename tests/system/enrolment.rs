//! A node's way in, with both cores' own code and real sockets: join, connect, renew, be replaced.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cloudcore::hub::quic::{Connections, Hub, Session};
use cloudcore::pki::ledger::memory::Memory;
use cloudcore::pki::{Config, Pki, TokenSpec};
use daemon::carrier::CloseCode;
use daemon::trust::{Clock, NodeTime, built_ms};
use edgecore::identity::{HttpsError, Identity, JoinError, Wish, join};
use edgecore::link::quic::{Dialler, Link, Settings};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use proto::enrol::{JoinToken, PATH};
use proto::time::Wall;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

const DEADLINE: Duration = Duration::from_secs(20);

/// The parts of a cloud core that a node meets first.
struct Cloud {
    pki: Pki,
    url: String,
    hub: SocketAddr,
    connections: Connections,
    sessions: mpsc::Receiver<Session>,
    requests: Arc<AtomicUsize>,
    _tasks: JoinSet<anyhow::Result<()>>,
}

impl Cloud {
    async fn open() -> Self {
        let clock: Clock = Arc::new(|| Wall { ms: built_ms(), trusted: true });
        let config = Config {
            addresses: vec!["cloud.example:7443".to_owned()],
            ..Config::default()
        };
        let (pki, clerk) = Pki::open(Arc::new(Memory::default()), config, clock).await.unwrap();
        let hub = Hub::bind("127.0.0.1:0".parse().unwrap(), &pki).unwrap();
        let (address, connections) = (hub.local_addr().unwrap(), hub.connections());
        let (sender, sessions) = mpsc::channel(4);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let requests = Arc::<AtomicUsize>::default();
        let mut tasks = JoinSet::new();
        tasks.spawn(clerk.run(CancellationToken::new()));
        tasks.spawn(hub.run(sender, CancellationToken::new()));
        tasks.spawn(serve(listener, pki.clone(), requests.clone()));
        Self {
            pki,
            url,
            hub: address,
            connections,
            sessions,
            requests,
            _tasks: tasks,
        }
    }

    async fn token(&self, spec: TokenSpec) -> JoinToken {
        self.pki.create_token(spec).await.unwrap()
    }

    async fn session(&mut self) -> Session {
        timeout(DEADLINE, self.sessions.recv()).await.unwrap().unwrap()
    }

    /// A link with its session at the hub.
    async fn link(&mut self, node: &Identity) -> (Dialler, Link, Session) {
        let dialler = Dialler::new(node, node_time(), Settings::default(), None).unwrap();
        let mut link = dialler.dial(&self.hub.to_string()).await.unwrap();
        link.send(b"hello").await.unwrap();
        let mut session = self.session().await;
        assert_eq!(session.peer.enrolment, node.enrolment());
        assert_eq!(session.carrier.recv().await.unwrap().unwrap(), b"hello");
        (dialler, link, session)
    }
}

/// The API's port, as far as enrolment goes.
async fn serve(listener: TcpListener, pki: Pki, requests: Arc<AtomicUsize>) -> anyhow::Result<()> {
    let acceptor = TlsAcceptor::from(Arc::new(pki.api_tls()?));
    loop {
        let (stream, _) = listener.accept().await?;
        let Ok(stream) = acceptor.accept(stream).await else {
            continue;
        };
        let service = hyper::service::service_fn(|request: Request<Incoming>| {
            requests.fetch_add(1, Ordering::Relaxed);
            let pki = pki.clone();
            async move {
                assert_eq!((request.method().as_str(), request.uri().path()), ("POST", PATH));
                let body = request.into_body().collect().await?.to_bytes();
                let answer = pki.enrol(&body).await;
                let response = Response::builder().status(answer.status);
                anyhow::Ok(response.body(Full::new(Bytes::from(answer.body)))?)
            }
        });
        let served = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        // How the node leaves does not matter.
        drop(served.await);
    }
}

/// A node without a clock.
fn node_time() -> NodeTime {
    NodeTime {
        clock: Arc::new(|| Wall { ms: 0, trusted: false }),
        floor_ms: 0,
    }
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

async fn joined(cloud: &Cloud, token: &JoinToken, name: &str, folder: &TempDir) -> Result<Identity, JoinError> {
    let wish = Wish { name: Some(name.to_owned()), ..Wish::default() };
    timeout(DEADLINE, join(&cloud.url, token, wish, folder.path(), node_time()))
        .await
        .unwrap()
}

#[tokio::test]
async fn a_node_joins_connects_and_renews() {
    let mut cloud = Cloud::open().await;
    let token = cloud.token(TokenSpec::default()).await;
    let folder = folder();
    let mut node = joined(&cloud, &token, "pump-7", &folder).await.unwrap();
    assert_eq!(
        (node.node(), node.addresses()),
        ("pump-7", &["cloud.example:7443".to_owned()][..])
    );
    let (_dialler, _link, session) = cloud.link(&node).await;
    assert!(!session.peer.expired);
    // What the session would carry both ways.
    let credentials = cloud
        .pki
        .renew(session.peer.enrolment, &node.csr().unwrap())
        .await
        .unwrap();
    node.renew(credentials).unwrap();
    let loaded = Identity::load(folder.path()).unwrap().unwrap();
    cloud.link(&loaded).await;
    // Asking again with the key that is known costs the token nothing, though it is used up.
    let again = joined(&cloud, &token, "pump-7", &folder).await.unwrap();
    assert_eq!(again.enrolment(), node.enrolment());
    let other = joined(&cloud, &token, "pump-8", &self::folder()).await.unwrap_err();
    assert!(matches!(other, JoinError::Refused { reason, .. } if reason == "TokenUsedUp"));
}

#[tokio::test]
async fn a_replaced_node_is_out_at_once() {
    let mut cloud = Cloud::open().await;
    let (old_folder, new_folder) = (folder(), folder());
    let token = cloud.token(TokenSpec::default()).await;
    let old = joined(&cloud, &token, "pump-7", &old_folder).await.unwrap();
    let (dialler, mut link, session) = cloud.link(&old).await;
    let token = cloud.token(TokenSpec::default()).await;
    let error = joined(&cloud, &token, "pump-7", &new_folder).await.unwrap_err();
    assert!(matches!(error, JoinError::Refused { reason, .. } if reason == "NameTaken"));
    let token = cloud
        .token(TokenSpec {
            name: Some("pump-7".to_owned()),
            replace: true,
            ..TokenSpec::default()
        })
        .await;
    let new = joined(&cloud, &token, "pump-7", &new_folder).await.unwrap();
    assert_eq!(new.node_uid(), old.node_uid());
    let error = timeout(DEADLINE, link.recv()).await.unwrap().unwrap_err();
    assert_eq!((error.code(), error.is_barred()), (Some(CloseCode::REVOKED), true));
    drop(session);
    assert_eq!(cloud.connections.count(), 0);
    // It comes again and is told the same in the handshake.
    let error = dialler.reach(&cloud.hub.to_string()).await.unwrap_err();
    assert!(error.is_barred(), "{error:?}");
    cloud.link(&new).await;
}

#[tokio::test]
async fn a_node_is_not_moved_to_another_cloud_by_a_join() {
    let (cloud, other) = (Cloud::open().await, Cloud::open().await);
    let folder = folder();
    let token = cloud.token(TokenSpec::default()).await;
    joined(&cloud, &token, "pump-7", &folder).await.unwrap();
    let kept = std::fs::read(folder.path().join("enrolment.json")).unwrap();
    let foreign = other.token(TokenSpec::default()).await;
    let error = joined(&other, &foreign, "pump-7", &folder).await.unwrap_err();
    assert!(matches!(error, JoinError::Elsewhere { .. }), "{error:?}");
    assert_eq!(std::fs::read(folder.path().join("enrolment.json")).unwrap(), kept);
    assert_eq!(other.requests.load(Ordering::Relaxed), 0);
    // The same cloud again is nothing new.
    joined(&cloud, &token, "pump-7", &folder).await.unwrap();
}

#[tokio::test]
async fn a_token_of_another_cloud_is_not_shown_to_this_one() {
    let (cloud, other) = (Cloud::open().await, Cloud::open().await);
    let token = other.token(TokenSpec::default()).await;
    let error = joined(&cloud, &token, "pump-7", &folder()).await.unwrap_err();
    assert!(matches!(error, JoinError::Ask(HttpsError::Verify { .. })), "{error:?}");
    assert_eq!(cloud.requests.load(Ordering::Relaxed), 0);
    joined(&other, &token, "pump-7", &folder()).await.unwrap();
}
