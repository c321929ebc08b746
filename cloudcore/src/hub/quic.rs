//! The hub's door: QUIC with mutual TLS.
//!
//! [`Hub::run`] takes connections, has them prove who they are, waits for the session's stream and hands both on as a
//! [`Session`]. It keeps every live connection in [`Connections`], by enrolment, so that revoking an enrolment ends
//! what it has open, and that two holders of one key are seen beside each other. What frames mean, and which of two
//! sessions stays, is decided elsewhere.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use daemon::carrier::{CONNECT_WAIT, Carrier, CloseCode, close, hub_transport};
use proto::enrol::EnrolmentId;
use quinn::crypto::rustls::{NoInitialCipherSuite, QuicServerConfig};
use quinn::{Connection, ConnectionId, ConnectionIdGenerator, Endpoint, EndpointConfig, Incoming, ServerConfig};
use ring::hmac;
use rustls::pki_types::CertificateDer;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::runtime::Thread;
use crate::pki::{Caller, Callers, DoorError, Peer, Pki, Roll};

mod runtime;

/// Handshakes at one time. Who comes while so many are under way is refused and dials again.
pub const HANDSHAKES_MAX: usize = 1024;

/// From this many on, a stranger must first show that it can be reached at its address.
const HANDSHAKES_UNPROVEN_MAX: usize = HANDSHAKES_MAX / 4;

/// Live connections. Who comes after is told [`CloseCode::BUSY`].
pub const CONNECTIONS_MAX: usize = 200_000;

/// Live connections of one enrolment: the one in use, and those that are dead and not yet known to be. The oldest
/// makes room.
pub const CONNECTIONS_PER_ENROLMENT_MAX: usize = 4;

/// Enough that no two of [`CONNECTIONS_MAX`] meet.
const CONNECTION_ID_BYTES: usize = 8;

/// How long the last words of a stopping hub may take.
const FAREWELL: Duration = Duration::from_secs(2);

/// The door, bound and not yet open.
#[derive(Debug)]
pub struct Hub {
    endpoint: Endpoint,
    thread: Thread,
    callers: Callers,
    roll: Arc<Roll>,
    connections: Connections,
}

/// A node that proved its key and opened its session.
#[derive(Debug)]
pub struct Session {
    pub peer: Peer,
    /// Where it was when it connected; it may move.
    pub remote: SocketAddr,
    pub carrier: Carrier,
    /// Keeps it in [`Connections`].
    pub entry: Entry,
}

/// Why the hub cannot open.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    #[error("cannot set up the hub's TLS")]
    Door(#[source] DoorError),
    #[error("cannot set up QUIC")]
    Quic(#[source] NoInitialCipherSuite),
    #[error("cannot start the hub's thread")]
    Thread(#[source] io::Error),
    #[error("cannot bind {address}")]
    Bind {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
}

impl Hub {
    pub fn bind(address: SocketAddr, pki: &Pki) -> Result<Self, HubError> {
        let tls = pki.hub_tls().map_err(HubError::Door)?;
        let mut config = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).map_err(HubError::Quic)?));
        config.transport_config(hub_transport()).max_incoming(HANDSHAKES_MAX);
        let bind = |source| HubError::Bind { address, source };
        let socket = UdpSocket::bind(address).map_err(bind)?;
        let thread = Thread::start().map_err(HubError::Thread)?;
        let endpoint = Endpoint::new(endpoint_config(pki), Some(config), socket, thread.runtime());
        Ok(Self {
            endpoint: endpoint.map_err(bind)?,
            thread,
            callers: pki.callers(),
            roll: pki.roll().clone(),
            connections: Connections::default(),
        })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.endpoint.local_addr()
    }

    /// What is live; the handle outlives the hub.
    pub fn connections(&self) -> Connections {
        self.connections.clone()
    }

    /// Takes connections until it is told to stop; then it says so to every node.
    pub async fn run(self, sessions: mpsc::Sender<Session>, stop: CancellationToken) -> anyhow::Result<()> {
        let mut handshakes = JoinSet::new();
        let mut changes = self.roll.changes();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                changed = changes.changed() => {
                    if changed.is_err() {
                        break;
                    }
                    self.connections.close_revoked(&self.roll);
                }
                incoming = self.endpoint.accept() => match incoming {
                    Some(incoming) => self.take(incoming, &sessions, &mut handshakes),
                    None => anyhow::bail!("the hub's endpoint closed by itself"),
                },
                Some(ended) = handshakes.join_next() => {
                    if let Err(error) = ended {
                        tracing::error!("handshake: {error}");
                    }
                }
            }
        }
        self.endpoint.close(CloseCode::SHUTDOWN.0.into(), b"");
        if timeout(FAREWELL, self.endpoint.wait_idle()).await.is_err() {
            tracing::debug!("nodes left that did not hear the farewell");
        }
        drop(self.thread);
        Ok(())
    }

    fn take(&self, incoming: Incoming, sessions: &mpsc::Sender<Session>, handshakes: &mut JoinSet<()>) {
        if handshakes.len() >= HANDSHAKES_MAX {
            incoming.refuse();
        } else if handshakes.len() >= HANDSHAKES_UNPROVEN_MAX && incoming.may_retry() {
            // Cannot fail: it may retry.
            drop(incoming.retry());
        } else {
            let visitor = Visitor {
                callers: self.callers.clone(),
                roll: self.roll.clone(),
                connections: self.connections.clone(),
                sessions: sessions.clone(),
            };
            handshakes.spawn(async move {
                let remote = incoming.remote_address();
                // Every step is bounded by itself.
                if let Err(error) = visitor.enter(incoming).await {
                    tracing::debug!(%remote, "not let in: {error:#}");
                }
            });
        }
    }
}

/// What lets this hub know the connections of the one before it: a node that speaks on such a connection is told at once
/// that it is no more, instead of finding out by the silence.
fn endpoint_config(pki: &Pki) -> EndpointConfig {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &pki.authority().secret("quic stateless reset"));
    let mut config = EndpointConfig::new(Arc::new(key));
    config.cid_generator(|| Box::new(ConnectionIds));
    config
}

/// Random ids. Those that quinn makes unless told otherwise are signed with a key of this process, which makes it deaf
/// for those of the one before.
#[derive(Debug)]
struct ConnectionIds;

impl ConnectionIdGenerator for ConnectionIds {
    fn generate_cid(&mut self) -> ConnectionId {
        ConnectionId::new(&daemon::random::bytes::<CONNECTION_ID_BYTES>())
    }

    fn cid_len(&self) -> usize {
        CONNECTION_ID_BYTES
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// One connection on its way in.
struct Visitor {
    callers: Callers,
    roll: Arc<Roll>,
    connections: Connections,
    sessions: mpsc::Sender<Session>,
}

impl Visitor {
    async fn enter(self, incoming: Incoming) -> anyhow::Result<()> {
        let connection = timeout(CONNECT_WAIT, incoming.accept()?).await??;
        let chain = connection
            .peer_identity()
            .and_then(|identity| identity.downcast::<Vec<CertificateDer<'static>>>().ok());
        let chain = chain.ok_or_else(|| anyhow::anyhow!("no certificate in the handshake"))?;
        let peer = match self.callers.identify(&chain) {
            Ok(Caller::Node(peer)) => peer,
            Ok(Caller::Person { .. }) => anyhow::bail!("not a node"),
            Err(error) => {
                close(&connection, CloseCode::REVOKED);
                return Err(error.into());
            }
        };
        let Some(entry) = self.connections.enter(peer.enrolment, &connection) else {
            close(&connection, CloseCode::BUSY);
            anyhow::bail!("{CONNECTIONS_MAX} connections are live");
        };
        // Looked at again now that a revocation would find it: so none falls between.
        if self.roll.is_revoked(peer.enrolment) {
            close(&connection, CloseCode::REVOKED);
            anyhow::bail!("revoked during the handshake");
        }
        let remote = connection.remote_address();
        let Ok(carrier) = timeout(CONNECT_WAIT, Carrier::accept(connection.clone())).await else {
            close(&connection, CloseCode::SILENT);
            anyhow::bail!("no session was opened");
        };
        let session = Session { peer, remote, carrier: carrier?, entry };
        match timeout(CONNECT_WAIT, self.sessions.send(session)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => close(&connection, CloseCode::SHUTDOWN),
            // Nobody takes sessions as fast as they come: the node dials again, after its back-off.
            Err(_) => close(&connection, CloseCode::BUSY),
        }
        Ok(())
    }
}

/// Every live connection, by enrolment. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Connections {
    live: Arc<Mutex<Live>>,
}

#[derive(Debug, Default)]
struct Live {
    /// In the order in which they came.
    by_enrolment: BTreeMap<EnrolmentId, Vec<(u64, Connection)>>,
    count: usize,
    next: u64,
}

/// A place in [`Connections`], given up when this is dropped.
#[derive(Debug)]
pub struct Entry {
    pub enrolment: EnrolmentId,
    /// Which connection: later ones have larger numbers.
    pub number: u64,
    connections: Connections,
}

impl Connections {
    fn enter(&self, enrolment: EnrolmentId, connection: &Connection) -> Option<Entry> {
        let mut live = self.lock();
        let live = &mut *live;
        let of_node = live.by_enrolment.entry(enrolment).or_default();
        if of_node.len() >= CONNECTIONS_PER_ENROLMENT_MAX {
            let (_, oldest) = of_node.remove(0);
            live.count -= 1;
            close(&oldest, CloseCode::REPLACED);
        } else if live.count >= CONNECTIONS_MAX {
            if of_node.is_empty() {
                live.by_enrolment.remove(&enrolment);
            }
            return None;
        }
        let number = live.next;
        of_node.push((number, connection.clone()));
        live.next += 1;
        live.count += 1;
        Some(Entry { enrolment, number, connections: self.clone() })
    }

    fn leave(&self, enrolment: EnrolmentId, number: u64) {
        let mut live = self.lock();
        let Some(of_node) = live.by_enrolment.get_mut(&enrolment) else {
            return;
        };
        let before = of_node.len();
        of_node.retain(|(other, _)| *other != number);
        let (left, now_empty) = (before - of_node.len(), of_node.is_empty());
        live.count -= left;
        if now_empty {
            live.by_enrolment.remove(&enrolment);
        }
    }

    /// The connections of an enrolment, the oldest first: their numbers, and where they come from now.
    pub fn of(&self, enrolment: EnrolmentId) -> Vec<(u64, SocketAddr)> {
        let live = self.lock();
        let of_node = live.by_enrolment.get(&enrolment).into_iter().flatten();
        of_node
            .map(|(number, connection)| (*number, connection.remote_address()))
            .collect()
    }

    /// How many connections are live.
    pub fn count(&self) -> usize {
        self.lock().count
    }

    /// Closes every connection of an enrolment; returns how many there were.
    pub fn close_enrolment(&self, enrolment: EnrolmentId, code: CloseCode) -> usize {
        self.close_if(enrolment, code, |_| true)
    }

    /// Closes one connection.
    pub fn close(&self, entry: &Entry, code: CloseCode) {
        self.close_if(entry.enrolment, code, |number| number == entry.number);
    }

    /// Closes the connections of an enrolment that came before this one; returns how many there were.
    pub fn close_older(&self, entry: &Entry, code: CloseCode) -> usize {
        self.close_if(entry.enrolment, code, |number| number < entry.number)
    }

    /// They leave when their sessions are dropped.
    fn close_if(&self, enrolment: EnrolmentId, code: CloseCode, chosen: impl Fn(u64) -> bool) -> usize {
        let live = self.lock();
        let of_node = live.by_enrolment.get(&enrolment).into_iter().flatten();
        let chosen = of_node.filter(|(number, _)| chosen(*number));
        chosen.map(|(_, connection)| close(connection, code)).count()
    }

    /// Closes every connection; the nodes dial again.
    pub fn close_all(&self, code: CloseCode) {
        let live = self.lock();
        let all = live.by_enrolment.values().flatten();
        all.for_each(|(_, connection)| close(connection, code));
    }

    fn close_revoked(&self, roll: &Roll) {
        let live = self.lock();
        for (_, of_node) in live.by_enrolment.iter().filter(|(id, _)| roll.is_revoked(**id)) {
            of_node
                .iter()
                .for_each(|(_, connection)| close(connection, CloseCode::REVOKED));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.connections.leave(self.enrolment, self.number);
    }
}

#[cfg(test)]
mod tests;
