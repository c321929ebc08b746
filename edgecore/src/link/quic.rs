//! The link over QUIC.
//!
//! [`Dialler`] is one UDP socket for the life of the process; [`Link`] is one connection with the session's frames. A
//! link whose path is dead says so within two keep-alives, whatever it was doing.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use daemon::carrier::{
    CONNECT_WAIT, Carrier, CarrierError, CloseCode, KEEP_ALIVE, KEEP_ALIVE_MAX, KEEP_ALIVE_METERED, Silence, Tunnel,
    idle, node_transport, received,
};
use daemon::clock::{mono, sleep_until};
use daemon::trust::NodeTime;
use proto::enrol::SERVER_NAME;
use quinn::crypto::rustls::{NoInitialCipherSuite, QuicClientConfig};
use quinn::{ClientConfig, ConnectError, Connection, ConnectionError, Endpoint, EndpointConfig};
use rustix::net::{AddressFamily, SocketType, bind, socket, sockopt};
use tokio::net::lookup_host;
use tokio::sync::Notify;
use tokio::time::timeout;

use self::runtime::Driven;
use crate::alarm::Alarm;
use crate::identity::{Identity, IdentityError};

mod runtime;

/// Addresses of one name that are tried.
const RESOLVED_MAX: usize = 4;

/// The alert with which TLS says that a certificate was revoked, as QUIC carries it.
const REVOKED_ALERT: u64 = 0x100 + 44;

/// How the link behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// How often to say that the node lives; at most [`KEEP_ALIVE_MAX`].
    pub keep_alive: Duration,
    /// Bytes cost money here.
    pub metered: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { keep_alive: KEEP_ALIVE, metered: false }
    }
}

impl Settings {
    /// For a link where bytes cost money.
    pub fn metered() -> Self {
        Self { keep_alive: KEEP_ALIVE_METERED, metered: true }
    }
}

/// Dials the hub.
#[derive(Debug)]
pub struct Dialler {
    endpoint: Endpoint,
    config: ClientConfig,
    settings: Settings,
    alarm: Option<Alarm>,
    /// Told whenever a connection did something.
    told: Arc<Notify>,
}

/// Why the dialler cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error("cannot set up TLS")]
    Identity(#[source] IdentityError),
    #[error("cannot set up QUIC")]
    Quic(#[source] NoInitialCipherSuite),
    #[error("cannot open a UDP socket")]
    Socket(#[source] io::Error),
}

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    #[error("cannot resolve {address}")]
    Resolve {
        address: String,
        #[source]
        source: io::Error,
    },
    #[error("cannot dial {0}")]
    Dial(SocketAddr, #[source] ConnectError),
    #[error("no connection to {0}")]
    Connect(SocketAddr, #[source] ConnectionError),
    #[error("no answer from {0} in time")]
    Timeout(SocketAddr),
    #[error("{0} resolves to no address")]
    Nowhere(String),
    #[error("cannot open the session")]
    Open(#[source] CarrierError),
    #[error("{0} does not take this node's certificate")]
    Refused(SocketAddr, #[source] CarrierError),
}

impl DialError {
    /// Whether the cloud said that this node's key is barred.
    pub fn is_barred(&self) -> bool {
        match self {
            Self::Connect(_, error) => is_revoked(error),
            Self::Open(error) | Self::Refused(_, error) => is_barred(error),
            Self::Resolve { .. } | Self::Dial(..) | Self::Timeout(_) | Self::Nowhere(_) => false,
        }
    }
}

impl Dialler {
    /// Long waits are the alarm's where there is one.
    pub fn new(
        identity: &Identity,
        time: NodeTime,
        settings: Settings,
        alarm: Option<Alarm>,
    ) -> Result<Self, SetupError> {
        let settings = Settings {
            keep_alive: settings.keep_alive.min(KEEP_ALIVE_MAX),
            ..settings
        };
        let config = config(identity, time, settings)?;
        // Both families from one socket; where there is no IPv6, the other one alone.
        let socket = both_families()
            .or_else(|_| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))
            .map_err(SetupError::Socket)?;
        let told = Arc::<Notify>::default();
        let runtime = Driven { alarm: alarm.clone(), told: Arc::clone(&told) };
        let endpoint = Endpoint::new(EndpointConfig::default(), None, socket, Arc::new(runtime));
        let endpoint = endpoint.map_err(SetupError::Socket)?;
        Ok(Self { endpoint, config, settings, alarm, told })
    }

    /// Takes over an identity that was renewed, or a better knowledge of the time, for the links to come.
    pub fn set_identity(&mut self, identity: &Identity, time: NodeTime) -> Result<(), SetupError> {
        self.config = config(identity, time, self.settings)?;
        Ok(())
    }

    /// One link to the hub at `host:port`. Every address of the name is tried in turn.
    pub async fn dial(&self, address: &str) -> Result<Link, DialError> {
        let resolve = |source| DialError::Resolve { address: address.to_owned(), source };
        let resolved = timeout(CONNECT_WAIT, lookup_host(address)).await;
        let resolved = resolved
            .map_err(|_| resolve(io::ErrorKind::TimedOut.into()))?
            .map_err(resolve)?;
        let mut last = DialError::Nowhere(address.to_owned());
        for remote in resolved.take(RESOLVED_MAX) {
            match self.connect(remote).await {
                Ok(connection) => {
                    let carrier = Carrier::open(connection).await.map_err(DialError::Open)?;
                    return Ok(self.link(carrier));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Where the hub is at one of the addresses of `host:port`, once it has taken this node's certificate. A link is up
    /// on this side before that, and its session hears a refusal as its first answer.
    pub async fn reach(&self, address: &str) -> Result<SocketAddr, DialError> {
        let link = self.dial(address).await?;
        let remote = link.remote();
        match timeout(CONNECT_WAIT, link.confirmed()).await {
            // As people write it, not as an address of the other family.
            Ok(Ok(())) => Ok(SocketAddr::new(remote.ip().to_canonical(), remote.port())),
            Ok(Err(error)) => Err(DialError::Refused(remote, error)),
            Err(_) => Err(DialError::Timeout(remote)),
        }
    }

    fn link(&self, carrier: Carrier) -> Link {
        let watch = Watch {
            alarm: self.alarm.clone(),
            told: Arc::clone(&self.told),
            silence: Silence::new(mono()),
            limit: idle(self.settings.keep_alive),
        };
        Link { carrier, watch }
    }

    async fn connect(&self, remote: SocketAddr) -> Result<Connection, DialError> {
        let connecting = self.endpoint.connect_with(self.config.clone(), remote, SERVER_NAME);
        let connecting = connecting.map_err(|error| DialError::Dial(remote, error))?;
        // Left alone, it would wait for the whole idle time.
        let connected = timeout(CONNECT_WAIT, connecting)
            .await
            .map_err(|_| DialError::Timeout(remote))?;
        connected.map_err(|error| DialError::Connect(remote, error))
    }

    /// Moves to a new socket, and with it every link that is up, after this host's address changed.
    pub fn rebind(&self) -> io::Result<()> {
        let any: SocketAddr = match self.endpoint.local_addr()? {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        self.endpoint.rebind(UdpSocket::bind(any)?)
    }

    /// Says goodbye on every link, and waits until it is said or `wait` is over.
    pub async fn close(&self, wait: Duration) {
        self.endpoint.close(CloseCode::SHUTDOWN.0.into(), b"");
        if timeout(wait, self.endpoint.wait_idle()).await.is_err() {
            tracing::debug!("the cloud did not hear the farewell");
        }
    }
}

/// A socket for both families, whatever the machine's default for IPv6 sockets is.
fn both_families() -> io::Result<UdpSocket> {
    let socket = socket(AddressFamily::INET6, SocketType::DGRAM, None)?;
    sockopt::set_ipv6_v6only(&socket, false)?;
    bind(&socket, &SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)))?;
    Ok(socket.into())
}

fn config(identity: &Identity, time: NodeTime, settings: Settings) -> Result<ClientConfig, SetupError> {
    let tls = identity.tls(time).map_err(SetupError::Identity)?;
    let crypto = QuicClientConfig::try_from(tls).map_err(SetupError::Quic)?;
    let mut config = ClientConfig::new(Arc::new(crypto));
    config.transport_config(node_transport(settings.keep_alive, settings.metered));
    Ok(config)
}

/// One connection with the session's frames.
#[derive(Debug)]
pub struct Link {
    carrier: Carrier,
    watch: Watch,
}

/// Why a link ended.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("nothing was heard from the cloud for {} ms", .0.as_millis())]
    Silent(Duration),
    #[error("link broke")]
    Carrier(#[source] CarrierError),
}

impl LinkError {
    /// Whether the cloud said that this node's key is barred.
    pub fn is_barred(&self) -> bool {
        match self {
            Self::Silent(_) => false,
            Self::Carrier(error) => is_barred(error),
        }
    }

    /// The code with which the cloud closed the connection, if it did.
    pub fn code(&self) -> Option<CloseCode> {
        match self {
            Self::Silent(_) => None,
            Self::Carrier(error) => error.code(),
        }
    }
}

impl Link {
    /// Sends one frame. When this is abandoned, the frame is either not begun, or finished by the next call.
    pub async fn send(&mut self, frame: &[u8]) -> Result<(), LinkError> {
        let connection = self.carrier.connection().clone();
        tokio::select! {
            biased;
            sent = self.carrier.send(frame) => sent.map_err(LinkError::Carrier),
            silent = self.watch.silent(&connection) => Err(silent),
        }
    }

    /// The next frame; `None` when the cloud finished the session. May be abandoned and called again.
    pub async fn recv(&mut self) -> Result<Option<Vec<u8>>, LinkError> {
        let connection = self.carrier.connection().clone();
        tokio::select! {
            biased;
            received = self.carrier.recv() => received.map_err(LinkError::Carrier),
            silent = self.watch.silent(&connection) => Err(silent),
        }
    }

    /// Returns once the hub has said that it takes this node's certificate. Nothing else may wait for news of the link.
    async fn confirmed(&self) -> Result<(), CarrierError> {
        let connection = self.carrier.connection();
        while connection.stats().frame_rx.handshake_done == 0 {
            if let Some(error) = connection.close_reason() {
                return Err(error.into());
            }
            self.watch.told.notified().await;
        }
        Ok(())
    }

    pub fn close(&self, code: CloseCode) {
        self.carrier.close(code);
    }

    /// The tunnels the cloud opens on this link, to be taken by a task of their own.
    pub fn tunnels(&self) -> Tunnels {
        Tunnels { connection: self.carrier.connection().clone() }
    }

    /// Bytes sent and received by UDP on this connection so far, for the ledger.
    pub fn bytes(&self) -> (u64, u64) {
        let stats = self.carrier.connection().stats();
        (stats.udp_tx.bytes, stats.udp_rx.bytes)
    }

    /// Where the hub is.
    pub fn remote(&self) -> SocketAddr {
        self.carrier.connection().remote_address()
    }
}

/// Looks whether anything is heard: whenever the connection did something, and when it was silent for too long.
#[derive(Debug)]
struct Watch {
    alarm: Option<Alarm>,
    told: Arc<Notify>,
    silence: Silence,
    limit: Duration,
}

impl Watch {
    /// Ends when nothing was heard for too long, and the connection with it.
    async fn silent(&mut self, connection: &Connection) -> LinkError {
        loop {
            let lasted = self.silence.lasted(mono(), received(connection));
            if lasted >= self.limit {
                daemon::carrier::close(connection, CloseCode::SILENT);
                return LinkError::Silent(lasted);
            }
            tokio::select! {
                () = self.told.notified() => {}
                () = self.sleep(self.limit - lasted) => {}
            }
        }
    }

    async fn sleep(&self, wait: Duration) {
        let at = mono() + wait;
        match &self.alarm {
            Some(alarm) => alarm.sleep_until(at).await,
            None => sleep_until(Some(at)).await,
        }
    }
}

/// Takes the tunnels of one link.
#[derive(Debug, Clone)]
pub struct Tunnels {
    connection: Connection,
}

/// The same connection.
impl PartialEq for Tunnels {
    fn eq(&self, other: &Self) -> bool {
        self.connection.stable_id() == other.connection.stable_id()
    }
}

impl Eq for Tunnels {}

impl Tunnels {
    /// Bytes sent and received by UDP on this connection so far.
    pub fn bytes(&self) -> (u64, u64) {
        let stats = self.connection.stats();
        (stats.udp_tx.bytes, stats.udp_rx.bytes)
    }

    /// The next tunnel with its header; an error when the link is gone.
    pub async fn accept(&self) -> Result<(Vec<u8>, Tunnel), CarrierError> {
        Tunnel::accept(&self.connection).await
    }
}

fn is_barred(error: &CarrierError) -> bool {
    match error {
        CarrierError::Closed(code) => *code == CloseCode::REVOKED,
        CarrierError::Lost(error) => is_revoked(error),
        CarrierError::Frame(_) => false,
    }
}

fn is_revoked(error: &ConnectionError) -> bool {
    matches!(error, ConnectionError::ConnectionClosed(close) if u64::from(close.error_code) == REVOKED_ALERT)
}

#[cfg(test)]
mod tests;
