//! QUIC connections that say what a test wants said, from either end.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;

use cloudcore::pki::Pki;
use cloudcore::store::{Config, Store};
use daemon::carrier::ALPN;
use daemon::trust::{Bundle, Clock, CloudVerifier, NodeTime, provider};
use edgecore::identity::Identity;
use proto::enrol::SERVER_NAME;
use proto::frame::Frame;
use proto::time::Wall;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{Connection, ConnectionError, Endpoint, RecvStream, SendStream};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tests::cores::{DEADLINE, eventually};
use tokio::time::timeout;

/// A client's certificates with their key, or none.
pub(super) type Shown = Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>;

/// A client of the hub.
pub(super) struct Client {
    pub(super) connection: Connection,
    endpoint: Endpoint,
}

impl Client {
    /// Dials the hub of a node's cloud with the node's own certificate.
    pub(super) async fn node(data: &Path) -> Self {
        let identity = identity(data);
        let tls = identity.tls(node_time()).unwrap();
        Self::dial(tls, hub(&identity)).await.unwrap()
    }

    /// Dials the same hub and shows something else.
    pub(super) async fn stranger(data: &Path, shown: Shown) -> Result<Self, ConnectionError> {
        let identity = identity(data);
        let enrolment = std::fs::read_to_string(data.join("enrolment.json")).unwrap();
        let enrolment: proto::enrol::Answer = serde_json::from_str(&enrolment).unwrap();
        let bundle = Bundle::from_pem(&enrolment.credentials.bundle).unwrap();
        let tls = rustls::ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(CloudVerifier::bundle(bundle, node_time())));
        let mut tls = match shown {
            Some((chain, key)) => tls.with_client_auth_cert(chain, key).unwrap(),
            None => tls.with_no_client_auth(),
        };
        tls.alpn_protocols = vec![ALPN.to_vec()];
        Self::dial(tls, hub(&identity)).await
    }

    async fn dial(tls: rustls::ClientConfig, hub: SocketAddr) -> Result<Self, ConnectionError> {
        let crypto = QuicClientConfig::try_from(tls).unwrap();
        let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let config = quinn::ClientConfig::new(Arc::new(crypto));
        let connecting = endpoint.connect_with(config, hub, SERVER_NAME).unwrap();
        let connection = timeout(DEADLINE, connecting).await.unwrap()?;
        Ok(Self { connection, endpoint })
    }

    /// The session's stream.
    pub(super) async fn open(&self) -> (SendStream, RecvStream) {
        self.connection.open_bi().await.unwrap()
    }

    /// Why the hub closed the connection.
    pub(super) async fn closed(&self) -> ConnectionError {
        timeout(DEADLINE, self.connection.closed())
            .await
            .expect("the hub closes the connection")
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.endpoint.close(0u8.into(), b"");
    }
}

/// The TLS alert with which the other side ended a handshake.
pub(super) fn alert(error: &ConnectionError) -> Option<u64> {
    match error {
        ConnectionError::ConnectionClosed(close) => u64::from(close.error_code).checked_sub(0x100),
        _ => None,
    }
}

/// The code with which the other side closed a connection.
pub(super) fn code(error: &ConnectionError) -> Option<u64> {
    match error {
        ConnectionError::ApplicationClosed(close) => Some(close.error_code.into_inner()),
        _ => None,
    }
}

/// A frame on a stream: its length and itself.
pub(super) fn framed(frame: &[u8]) -> Vec<u8> {
    let length = u16::try_from(frame.len()).unwrap().to_be_bytes();
    [&length, frame].concat()
}

/// The next frame of a stream.
pub(super) async fn frame(stream: &mut RecvStream) -> Vec<u8> {
    let mut length = [0; 2];
    timeout(DEADLINE, stream.read_exact(&mut length))
        .await
        .unwrap()
        .unwrap();
    let mut frame = vec![0; u16::from_be_bytes(length).into()];
    timeout(DEADLINE, stream.read_exact(&mut frame)).await.unwrap().unwrap();
    frame
}

pub(super) fn identity(data: &Path) -> Identity {
    Identity::load(data).unwrap().expect("the node has joined")
}

/// Where a node looks for the hub.
pub(super) fn hub(identity: &Identity) -> SocketAddr {
    identity.addresses()[0].parse().unwrap()
}

/// A node without a clock.
fn node_time() -> NodeTime {
    NodeTime {
        clock: Arc::new(|| Wall { ms: 0, trusted: false }),
        floor_ms: 0,
    }
}

/// A hub that says what a test wants said, with the keys of a cloud core whose data folder this is a copy of.
pub(super) struct MadHub {
    endpoint: Endpoint,
    _store: Store,
}

impl MadHub {
    pub(super) async fn open(data: &Path, address: SocketAddr) -> Self {
        let store = Store::open(Config::new(data)).unwrap();
        let clock: Clock = Arc::new(daemon::clock::wall);
        let pki = Pki::open(Arc::new(store.clone()), cloudcore::pki::Config::default(), clock);
        let (pki, _clerk) = pki.await.unwrap();
        let crypto = QuicServerConfig::try_from(pki.hub_tls().unwrap()).unwrap();
        let config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
        let endpoint = Endpoint::server(config, address).unwrap();
        Self { endpoint, _store: store }
    }

    /// The next node's connection and session, with its first frame.
    pub(super) async fn session(&self) -> (Connection, SendStream, Frame) {
        let incoming = timeout(DEADLINE, self.endpoint.accept()).await;
        let connection = incoming.expect("a node dials").unwrap().await.unwrap();
        let (send, mut receive) = timeout(DEADLINE, connection.accept_bi()).await.unwrap().unwrap();
        let hello = Frame::decode(&frame(&mut receive).await).unwrap();
        (connection, send, hello)
    }

    /// Leaves the address to another hub.
    pub(super) async fn close(self) {
        let address = self.endpoint.local_addr().unwrap();
        self.endpoint.close(0u8.into(), b"");
        drop(self);
        let free = async || UdpSocket::bind(address).ok().map(drop);
        eventually("the hub's address is free", free).await;
    }
}
