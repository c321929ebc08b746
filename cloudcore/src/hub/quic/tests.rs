use daemon::carrier::{ALPN, CarrierError, KEEP_ALIVE, Tunnel, node_transport};
use daemon::framing::{FRAME_BYTES_MAX, FramingError};
use daemon::trust::{Bundle, Clock, CloudVerifier, NodeTime, built_ms, provider};
use proto::enrol::SERVER_NAME;
use proto::time::Wall;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, ConnectionError};
use rustls::pki_types::PrivatePkcs8KeyDer;
use tokio::runtime::Runtime;

use super::*;
use crate::pki::Profile;
use crate::pki::tests::{Node, Office};

const DAY_MS: i64 = 86_400_000;
const DEADLINE: Duration = Duration::from_secs(10);

struct Door {
    office: Office,
    address: SocketAddr,
    connections: Connections,
    sessions: mpsc::Receiver<Session>,
    stop: CancellationToken,
    tasks: JoinSet<anyhow::Result<()>>,
}

impl Door {
    async fn open() -> Self {
        Self::open_at("127.0.0.1:0".parse().unwrap(), Office::open().await)
    }

    fn open_at(address: SocketAddr, office: Office) -> Self {
        let hub = Hub::bind(address, &office.pki).unwrap();
        let (address, connections) = (hub.local_addr().unwrap(), hub.connections());
        let (sender, sessions) = mpsc::channel(4);
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        tasks.spawn(hub.run(sender, stop.clone()));
        Self { office, address, connections, sessions, stop, tasks }
    }

    /// Dials as a node would; it has said its first words.
    async fn dial(&self, node: &Node) -> Dialled {
        self.dial_trusting(node, &self.office).await.unwrap()
    }

    async fn dial_trusting(&self, node: &Node, trusted: &Office) -> Result<Dialled, ConnectionError> {
        let (connection, endpoint) = self.dial_raw(node, trusted).await?;
        let mut carrier = Carrier::open(connection).await.unwrap();
        carrier.send(b"hello").await.unwrap();
        Ok(Dialled { carrier, _endpoint: endpoint })
    }

    /// Dials, and is told why it is not let in: a refused certificate only after the node's own handshake.
    async fn refused(&self, node: &Node) -> CarrierError {
        let (connection, _endpoint) = self.dial_raw(node, &self.office).await.unwrap();
        timeout(DEADLINE, connection.closed()).await.unwrap().into()
    }

    async fn dial_raw(&self, node: &Node, trusted: &Office) -> Result<(Connection, Endpoint), ConnectionError> {
        self.dial_over(node, trusted, node_transport(KEEP_ALIVE, false)).await
    }

    async fn dial_over(
        &self,
        node: &Node,
        trusted: &Office,
        transport: Arc<quinn::TransportConfig>,
    ) -> Result<(Connection, Endpoint), ConnectionError> {
        let bundle = Bundle::from_pem(trusted.pki.authority().bundle_pem()).unwrap();
        // A node that was just switched on and has no clock battery: it is let in all the same.
        let clock: Clock = Arc::new(|| Wall { ms: 0, trusted: false });
        let verifier = CloudVerifier::bundle(bundle, NodeTime { clock, floor_ms: 0 });
        let key = PrivatePkcs8KeyDer::from(node.key.serialize_der()).into();
        let mut tls = rustls::ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_auth_cert(node.chain(), key)
            .unwrap();
        tls.alpn_protocols = vec![ALPN.to_vec()];
        let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
        config.transport_config(transport);
        let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let connecting = endpoint.connect_with(config, self.address, SERVER_NAME).unwrap();
        Ok((timeout(DEADLINE, connecting).await.unwrap()?, endpoint))
    }

    async fn session(&mut self) -> Session {
        let mut session = timeout(DEADLINE, self.sessions.recv()).await.unwrap().unwrap();
        assert_eq!(session.carrier.recv().await.unwrap().unwrap(), b"hello");
        session
    }
}

struct Dialled {
    carrier: Carrier,
    _endpoint: Endpoint,
}

impl Dialled {
    /// How it ends.
    async fn end(&mut self) -> CarrierError {
        timeout(DEADLINE, self.carrier.recv()).await.unwrap().unwrap_err()
    }
}

#[tokio::test]
async fn a_node_comes_in_and_frames_flow() {
    let mut door = Door::open().await;
    let node = door.office.enrolled("a").await;
    let mut dialled = door.dial(&node).await;
    let mut session = door.session().await;
    assert_eq!(session.peer, Peer { enrolment: node.enrolment(), expired: false });
    let large = vec![7; FRAME_BYTES_MAX];
    session.carrier.send(&large).await.unwrap();
    assert_eq!(dialled.carrier.recv().await.unwrap(), Some(large));
    assert_eq!(door.connections.of(node.enrolment()).len(), 1);
    session.carrier.close(CloseCode::DONE);
    assert_eq!(dialled.end().await.code(), Some(CloseCode::DONE));
    drop(session);
    assert_eq!(door.connections.count(), 0);
}

#[tokio::test]
async fn a_hub_tells_the_nodes_of_the_one_before_it_at_once() {
    let office = Office::open().await;
    let node = office.enrolled("a").await;
    // A process of its own, as it were, so that it can end without a word.
    let process = Runtime::new().unwrap();
    let mut door = {
        let _inside = process.enter();
        Door::open_at("127.0.0.1:0".parse().unwrap(), office)
    };
    let mut dialled = door.dial(&node).await;
    let session = door.session().await;
    // All of its tasks are gone before anything of theirs is dropped, which would say goodbye.
    std::thread::spawn(move || process.shutdown_timeout(DEADLINE))
        .join()
        .unwrap();
    drop(session);
    let Door { address, office, .. } = door;
    // Free once the last of its tasks is gone.
    let door = timeout(DEADLINE, async {
        while UdpSocket::bind(address).is_err() {
            tokio::task::yield_now().await;
        }
        Door::open_at(address, office)
    });
    let door = door.await.unwrap();
    dialled.carrier.send(b"are you there?").await.unwrap();
    let end = dialled.end().await;
    assert!(matches!(end, CarrierError::Lost(ConnectionError::Reset)), "{end:?}");
    assert_eq!(door.connections.count(), 0);
}

#[tokio::test]
async fn tunnels_run_beside_the_session() {
    let mut door = Door::open().await;
    let node = door.office.enrolled("a").await;
    let mut dialled = door.dial(&node).await;
    let mut session = door.session().await;
    let at_hub = async {
        let mut tunnel = Tunnel::open(session.carrier.connection(), b"logs of web")
            .await
            .unwrap();
        tunnel.send.write_all(b"follow").await.unwrap();
        tunnel.send.finish().unwrap();
        tunnel.receive.read_to_end(64).await.unwrap()
    };
    let at_node = async {
        let (header, mut tunnel) = Tunnel::accept(dialled.carrier.connection()).await.unwrap();
        assert_eq!(header, b"logs of web");
        let asked = tunnel.receive.read_to_end(64).await.unwrap();
        tunnel.send.write_all(&[b"did ", &asked[..]].concat()).await.unwrap();
        tunnel.send.finish().unwrap();
    };
    let (answer, ()) = tokio::join!(at_hub, at_node);
    assert_eq!(answer, b"did follow");
    session.carrier.send(b"still here").await.unwrap();
    assert_eq!(dialled.carrier.recv().await.unwrap().unwrap(), b"still here");
}

#[tokio::test]
async fn strangers_stay_outside() {
    let mut door = Door::open().await;
    let good = door.office.enrolled("a").await;
    // Another CA, on either side.
    let elsewhere = Office::open().await;
    let stranger = elsewhere.enrolled("a").await;
    assert!(matches!(door.refused(&stranger).await, CarrierError::Lost(_)));
    assert!(door.dial_trusting(&good, &elsewhere).await.is_err());
    // Our CA, but a person.
    let mut person = Node::new();
    let issued = door
        .office
        .pki
        .authority()
        .issue(&Profile::Admin, &person.key, built_ms());
    let mut answer = good.answer().clone();
    answer.credentials.chain = issued.unwrap().pem;
    person.answer = Some(answer);
    assert!(matches!(door.refused(&person).await, CarrierError::Lost(_)));
    // Revoked.
    let revoked = door.office.enrolled("b").await;
    door.office.pki.revoke("b").await.unwrap();
    assert!(matches!(door.refused(&revoked).await, CarrierError::Lost(_)));
    // The door goes on.
    let _dialled = door.dial(&good).await;
    door.session().await;
    assert!(door.sessions.try_recv().is_err());
}

#[tokio::test]
async fn an_expired_node_comes_in_as_expired() {
    let mut door = Door::open().await;
    let node = door.office.enrolled("a").await;
    door.office.pass(400 * DAY_MS);
    let _dialled = door.dial(&node).await;
    assert!(door.session().await.peer.expired);
}

#[tokio::test]
async fn revoking_ends_what_is_open() {
    let mut door = Door::open().await;
    let (node, other) = (door.office.enrolled("a").await, door.office.enrolled("b").await);
    let mut dialled = door.dial(&node).await;
    let _session = door.session().await;
    let mut stays = door.dial(&other).await;
    let mut staying = door.session().await;
    assert!(door.office.pki.revoke("a").await.unwrap());
    assert_eq!(dialled.end().await.code(), Some(CloseCode::REVOKED));
    staying.carrier.send(b"x").await.unwrap();
    assert_eq!(stays.carrier.recv().await.unwrap().unwrap(), b"x");
}

#[tokio::test]
async fn an_oversize_frame_ends_its_connection_and_no_other() {
    let mut door = Door::open().await;
    let node = door.office.enrolled("a").await;
    let bystander = door.office.enrolled("b").await;
    let mut stays = door.dial(&bystander).await;
    let mut staying = door.session().await;
    // A node that does not keep to its own limit.
    let dialled = door.dial_raw(&node, &door.office).await.unwrap();
    let (mut raw, _receive) = dialled.0.open_bi().await.unwrap();
    raw.write_all(b"\x00\x05hello\x40\x01").await.unwrap();
    let mut session = door.session().await;
    assert!(matches!(
        session.carrier.recv().await,
        Err(CarrierError::Frame(FramingError::Oversize(16_385)))
    ));
    let ConnectionError::ApplicationClosed(closed) = timeout(DEADLINE, dialled.0.closed()).await.unwrap() else {
        panic!("not closed with a code");
    };
    assert_eq!(closed.error_code, CloseCode::OVERSIZE.0.into());
    staying.carrier.send(b"x").await.unwrap();
    assert_eq!(stays.carrier.recv().await.unwrap().unwrap(), b"x");
    let _dialled = door.dial(&node).await;
    door.session().await;
}

#[tokio::test]
async fn holders_of_one_key_are_seen_beside_each_other() {
    let mut door = Door::open().await;
    let node = door.office.enrolled("a").await;
    let (mut first, mut sessions) = (door.dial(&node).await, vec![door.session().await]);
    let second = door.dial(&node).await;
    sessions.push(door.session().await);
    let numbers: Vec<_> = door
        .connections
        .of(node.enrolment())
        .iter()
        .map(|(number, _)| *number)
        .collect();
    assert_eq!(numbers, [sessions[0].entry.number, sessions[1].entry.number]);
    assert_eq!(door.connections.close_older(&sessions[1].entry, CloseCode::REPLACED), 1);
    assert_eq!(first.end().await.code(), Some(CloseCode::REPLACED));
    sessions.remove(0);
    assert_eq!(door.connections.of(node.enrolment()).len(), 1);
    // Without anybody deciding, the oldest makes room once there are too many.
    let mut dialled = vec![second];
    for _ in 0..CONNECTIONS_PER_ENROLMENT_MAX {
        dialled.push(door.dial(&node).await);
        sessions.push(door.session().await);
    }
    assert_eq!(dialled[0].end().await.code(), Some(CloseCode::REPLACED));
    assert_eq!(
        door.connections.of(node.enrolment()).len(),
        CONNECTIONS_PER_ENROLMENT_MAX
    );
    sessions.clear();
    assert_eq!(door.connections.count(), 0);
}

#[tokio::test]
async fn a_stopping_hub_says_so() {
    let mut door = Door::open().await;
    let node = door.office.enrolled("a").await;
    let mut dialled = door.dial(&node).await;
    let session = door.session().await;
    door.stop.cancel();
    assert_eq!(dialled.end().await.code(), Some(CloseCode::SHUTDOWN));
    drop((session, dialled));
    timeout(DEADLINE, door.tasks.join_next())
        .await
        .unwrap()
        .unwrap()
        .unwrap()
        .unwrap();
}

/// Waits until a thread of this process sleeps, and says how often it has.
fn sleeps(thread: &str) -> u64 {
    loop {
        let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
        let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
        if line("State:").starts_with('S') {
            return line("voluntary_ctxt_switches:").parse().unwrap();
        }
        std::thread::yield_now();
    }
}

#[test]
fn beats_wake_the_hubs_own_thread_alone() {
    const BEAT: Duration = Duration::from_millis(20);
    const BEATS: u64 = 30;
    let (tell, told) = std::sync::mpsc::channel();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    // What everything else of a cloud core runs on, here one thread, with the hub's door.
    let shared = std::thread::spawn(move || {
        let shared = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        shared.block_on(async {
            let mut door = Door::open().await;
            let node = door.office.enrolled("a").await;
            let away = Runtime::new().unwrap();
            let (connection, endpoint) = {
                let _away = away.enter();
                let mut transport = quinn::TransportConfig::default();
                transport.keep_alive_interval(Some(BEAT));
                door.dial_over(&node, &door.office, Arc::new(transport)).await.unwrap()
            };
            let mut carrier = Carrier::open(connection).await.unwrap();
            carrier.send(b"hello").await.unwrap();
            let session = door.session().await;
            let thread = std::fs::read_link("/proc/thread-self").unwrap();
            let thread = thread.file_name().unwrap().to_str().unwrap().to_owned();
            tell.send((thread, carrier.connection().clone())).unwrap();
            ended.await.unwrap();
            drop((session, carrier, endpoint));
            away.shutdown_background();
        });
    });
    let (thread, connection) = told.recv().unwrap();
    let heard = || connection.stats().udp_rx.datagrams;
    let wait_for = |count| {
        let until = heard() + count;
        let end = daemon::clock::mono() + DEADLINE;
        while heard() < until {
            assert!(daemon::clock::mono() < end, "no answers to beats");
            std::thread::yield_now();
        }
    };
    wait_for(3);
    let before = sleeps(&thread);
    wait_for(BEATS);
    let woken = sleeps(&thread) - before;
    end.send(()).unwrap();
    shared.join().unwrap();
    assert!(woken < BEATS / 2, "woken {woken} times by {BEATS} beats");
}
