use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use daemon::carrier::hub_transport;
use daemon::trust::provider;
use quinn::ServerConfig;
use quinn::crypto::rustls::QuicServerConfig;
use rcgen::ExtendedKeyUsagePurpose;
use rustls::RootCertStore;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::server::WebPkiClientVerifier;
use tempfile::TempDir;
use tokio::task::JoinSet;

use super::*;
use crate::identity::tests::{Ca, Held, no_time};

const DEADLINE: Duration = Duration::from_secs(10);
/// Short, so that a test of silence does not last.
const QUICK: Settings = Settings { keep_alive: Duration::from_millis(300), metered: true };

/// A hub that lets everybody of its CA in.
struct Hub {
    endpoint: Endpoint,
    address: String,
}

impl Hub {
    fn open(ca: &Ca, held: Held) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(ca.certificate.clone()).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
        let key = PrivatePkcs8KeyDer::from(held.key.serialize_der()).into();
        let mut tls = rustls::ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_client_cert_verifier(verifier.build().unwrap())
            .with_single_cert(held.chain, key)
            .unwrap();
        tls.alpn_protocols = vec![daemon::carrier::ALPN.to_vec()];
        let mut config = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).unwrap()));
        config.transport_config(hub_transport());
        let endpoint = Endpoint::server(config, "127.0.0.1:0".parse().unwrap()).unwrap();
        let address = endpoint.local_addr().unwrap().to_string();
        Self { endpoint, address }
    }

    fn right(ca: &Ca) -> Self {
        Self::open(ca, ca.server(SERVER_NAME, ExtendedKeyUsagePurpose::ServerAuth))
    }

    async fn accept(&self) -> Carrier {
        let accept = async {
            let connection = self.endpoint.accept().await.unwrap().await.unwrap();
            Carrier::accept(connection).await.unwrap()
        };
        timeout(DEADLINE, accept).await.unwrap()
    }

    /// A link that has carried a frame each way.
    async fn linked(&self, dialler: &Dialler, address: &str) -> (Link, Carrier) {
        let node = async {
            let mut link = dialler.dial(address).await.unwrap();
            link.send(b"hello").await.unwrap();
            assert_eq!(link.recv().await.unwrap().unwrap(), b"welcome");
            link
        };
        let hub = async {
            let mut carrier = self.accept().await;
            assert_eq!(carrier.recv().await.unwrap().unwrap(), b"hello");
            carrier.send(b"welcome").await.unwrap();
            carrier
        };
        tokio::join!(node, hub)
    }
}

fn dialler(ca: &Ca, settings: Settings) -> (Dialler, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let identity = ca.joined(folder.path());
    (Dialler::new(&identity, no_time(), settings, None).unwrap(), folder)
}

/// Passes datagrams on between one node and the hub, until it is told to drop them.
struct Relay {
    address: String,
    dropping: Arc<AtomicBool>,
    _tasks: JoinSet<()>,
}

impl Relay {
    async fn open(hub: &Hub) -> Self {
        let near = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let far = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        far.connect(&hub.address).await.unwrap();
        let address = near.local_addr().unwrap().to_string();
        let (dropping, mut tasks) = (Arc::<AtomicBool>::default(), JoinSet::new());
        let drops = dropping.clone();
        tasks.spawn(async move {
            let (mut up, mut down, mut node) = ([0; 2048], [0; 2048], None);
            loop {
                tokio::select! {
                    Ok((length, from)) = near.recv_from(&mut up) => {
                        node = Some(from);
                        if !drops.load(Ordering::Relaxed) {
                            drop(far.send(&up[..length]).await);
                        }
                    }
                    Ok(length) = far.recv(&mut down) => {
                        if let Some(node) = node && !drops.load(Ordering::Relaxed) {
                            drop(near.send_to(&down[..length], node).await);
                        }
                    }
                }
            }
        });
        Self { address, dropping, _tasks: tasks }
    }
}

#[tokio::test]
async fn a_node_with_its_clock_at_1970_connects() {
    let ca = Ca::new();
    let hub = Hub::right(&ca);
    let (dialler, _folder) = dialler(&ca, Settings::default());
    let (mut link, mut carrier) = hub.linked(&dialler, &hub.address).await;
    let large = vec![9; daemon::framing::FRAME_BYTES_MAX];
    link.send(&large).await.unwrap();
    assert_eq!(carrier.recv().await.unwrap(), Some(large));
    let (sent, received) = link.bytes();
    assert!(sent > 16_384 && received > 0);
    // A tunnel from the hub, taken beside the session.
    let tunnels = link.tunnels();
    let mut opened = Tunnel::open(carrier.connection(), b"exec").await.unwrap();
    let (header, mut taken) = tunnels.accept().await.unwrap();
    assert_eq!(header, b"exec");
    taken.send.write_all(b"out").await.unwrap();
    taken.send.finish().unwrap();
    assert_eq!(opened.receive.read_to_end(16).await.unwrap(), b"out");
    dialler.close(DEADLINE).await;
    assert_eq!(carrier.recv().await.unwrap_err().code(), Some(CloseCode::SHUTDOWN));
}

#[tokio::test]
async fn other_clouds_are_refused() {
    let (ca, other) = (Ca::new(), Ca::new());
    let (dialler, _folder) = dialler(&ca, Settings::default());
    let server = ExtendedKeyUsagePurpose::ServerAuth;
    for held in [
        other.server(SERVER_NAME, server.clone()),
        ca.server("elsewhere", server),
        ca.server(SERVER_NAME, ExtendedKeyUsagePurpose::ClientAuth),
    ] {
        let hub = Hub::open(&ca, held);
        let accept = async { drop(hub.endpoint.accept().await.unwrap().await) };
        let (dialled, ()) = tokio::join!(dialler.dial(&hub.address), accept);
        let error = dialled.unwrap_err();
        assert!(
            matches!(error, DialError::Connect(..)) && !error.is_barred(),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn a_name_that_leads_nowhere_is_an_error() {
    let (dialler, _folder) = dialler(&Ca::new(), Settings::default());
    let error = dialler.dial("127.0.0.1").await.unwrap_err();
    assert!(matches!(error, DialError::Resolve { .. }));
}

/// Whichever was first: QUIC's idle timer, or the look at what was heard.
fn is_dead(error: &LinkError) -> bool {
    matches!(
        error,
        LinkError::Silent(_) | LinkError::Carrier(CarrierError::Lost(ConnectionError::TimedOut))
    )
}

#[tokio::test]
async fn a_dead_path_is_noticed() {
    let ca = Ca::new();
    let hub = Hub::right(&ca);
    let relay = Relay::open(&hub).await;
    let (dialler, _folder) = dialler(&ca, QUICK);
    let (mut link, mut carrier) = hub.linked(&dialler, &relay.address).await;
    // Both sides wait for the other and nothing passes any more.
    relay.dropping.store(true, Ordering::Relaxed);
    let both = async { tokio::join!(link.recv(), carrier.recv()) };
    let (at_node, at_hub) = timeout(DEADLINE, both).await.unwrap();
    assert!(is_dead(&at_node.unwrap_err()));
    assert!(matches!(at_hub, Err(CarrierError::Lost(ConnectionError::TimedOut))));
    // The path is back: so is the link.
    relay.dropping.store(false, Ordering::Relaxed);
    hub.linked(&dialler, &relay.address).await;
}

#[tokio::test]
async fn a_dead_path_is_noticed_while_sending() {
    let ca = Ca::new();
    let hub = Hub::right(&ca);
    let relay = Relay::open(&hub).await;
    let (dialler, _folder) = dialler(&ca, QUICK);
    let (mut link, _carrier) = hub.linked(&dialler, &relay.address).await;
    relay.dropping.store(true, Ordering::Relaxed);
    let frame = vec![0; daemon::framing::FRAME_BYTES_MAX];
    let fill = async {
        loop {
            if let Err(error) = link.send(&frame).await {
                return error;
            }
        }
    };
    let error = timeout(DEADLINE, fill).await.unwrap();
    assert!(is_dead(&error), "{error:?}");
}

#[tokio::test]
async fn a_quiet_link_lives_by_its_beats() {
    let ca = Ca::new();
    let hub = Hub::right(&ca);
    let slower = Settings { keep_alive: Duration::from_secs(1), metered: false };
    let (dialler, _folder) = dialler(&ca, slower);
    let (mut link, mut carrier) = hub.linked(&dialler, &hub.address).await;
    // Nothing is said for longer than silence would be borne; what the hub hears are beats.
    let quiet = 2 * idle(slower.keep_alive);
    tokio::select! {
        ended = link.recv() => panic!("the node gave up: {ended:?}"),
        ended = carrier.recv() => panic!("the hub gave up: {ended:?}"),
        () = tokio::time::sleep(quiet) => {}
    }
    link.send(b"x").await.unwrap();
    assert_eq!(carrier.recv().await.unwrap().unwrap(), b"x");
}

#[tokio::test]
async fn a_quiet_link_wakes_its_process_for_its_beats_alone() {
    const BEATS: u64 = 6;
    // Slow enough for a busy machine not to take it for silence.
    let slow = Settings { keep_alive: Duration::from_secs(1), ..QUICK };
    let ca = Ca::new();
    let hub = Hub::right(&ca);
    let alarm = Alarm::new().unwrap();
    let (mut tasks, rings) = (JoinSet::new(), Arc::<AtomicU64>::default());
    let (ringing, counted) = (alarm.clone(), rings.clone());
    tasks.spawn(async move {
        let mut ring = pin!(ringing.ring());
        // Polled when the timer went off and for nothing else.
        poll_fn(|context| {
            counted.fetch_add(1, Ordering::Relaxed);
            ring.as_mut().poll(context)
        })
        .await
    });
    let folder = tempfile::tempdir().unwrap();
    let identity = ca.joined(folder.path());
    let dialler = Dialler::new(&identity, no_time(), slow, Some(alarm)).unwrap();
    let (mut link, mut carrier) = hub.linked(&dialler, &hub.address).await;
    let connection = carrier.connection().clone();
    let heard = || connection.stats().udp_rx.datagrams;
    let beats = async |count: u64| {
        let since = heard();
        while heard() < since + count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let quiet = async {
        // What the handshake left to be done is over.
        beats(2).await;
        let before = rings.load(Ordering::Relaxed);
        beats(BEATS).await;
        rings.load(Ordering::Relaxed) - before
    };
    let rung = tokio::select! {
        ended = link.recv() => panic!("the node gave up: {ended:?}"),
        ended = carrier.recv() => panic!("the hub gave up: {ended:?}"),
        rung = timeout(DEADLINE, quiet) => rung.unwrap(),
    };
    // One more is a beat that had just begun; more than that is a timer which nobody needs.
    assert!(rung <= BEATS + 2, "{rung} rings for {BEATS} beats");
}

#[tokio::test]
async fn a_dead_path_is_noticed_by_the_alarm_as_well() {
    let ca = Ca::new();
    let hub = Hub::right(&ca);
    let relay = Relay::open(&hub).await;
    let alarm = Alarm::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let identity = ca.joined(folder.path());
    let dialler = Dialler::new(&identity, no_time(), QUICK, Some(alarm.clone())).unwrap();
    let noticed = async {
        let (mut link, _carrier) = hub.linked(&dialler, &relay.address).await;
        relay.dropping.store(true, Ordering::Relaxed);
        link.recv().await.unwrap_err()
    };
    let error = tokio::select! {
        broken = alarm.ring() => panic!("{broken:?}"),
        error = timeout(DEADLINE, noticed) => error.unwrap(),
    };
    assert!(matches!(error, LinkError::Silent(_)), "{error:?}");
}

#[tokio::test]
async fn a_link_moves_with_its_host() {
    let ca = Ca::new();
    let hub = Hub::right(&ca);
    let (dialler, _folder) = dialler(&ca, Settings::default());
    let (mut link, mut carrier) = hub.linked(&dialler, &hub.address).await;
    let before = carrier.connection().remote_address();
    dialler.rebind().unwrap();
    link.send(b"from elsewhere").await.unwrap();
    assert_eq!(carrier.recv().await.unwrap().unwrap(), b"from elsewhere");
    carrier.send(b"found").await.unwrap();
    assert_eq!(link.recv().await.unwrap().unwrap(), b"found");
    assert_ne!(carrier.connection().remote_address(), before);
}

#[tokio::test]
async fn the_clouds_reason_is_passed_on() {
    let ca = Ca::new();
    let hub = Hub::right(&ca);
    let (dialler, _folder) = dialler(&ca, Settings::default());
    for (code, barred) in [(CloseCode::REVOKED, true), (CloseCode::BUSY, false)] {
        let (mut link, carrier) = hub.linked(&dialler, &hub.address).await;
        carrier.close(code);
        let error = link.recv().await.unwrap_err();
        assert_eq!((error.code(), error.is_barred()), (Some(code), barred));
    }
}

#[tokio::test]
async fn a_hub_is_reached_when_it_takes_the_nodes_certificate() {
    let (ca, other) = (Ca::new(), Ca::new());
    let (dialler, _folder) = dialler(&ca, Settings::default());
    // Of the right cloud for the node, to which only others' nodes are right.
    let refuses = Hub::open(&other, ca.server(SERVER_NAME, ExtendedKeyUsagePurpose::ServerAuth));
    let (reached, ()) = tokio::join!(dialler.reach(&refuses.address), async {
        let connecting = refuses.endpoint.accept().await.unwrap();
        connecting.await.unwrap_err();
    });
    let error = reached.unwrap_err();
    assert!(matches!(error, DialError::Refused(..)), "{error:?}");
    assert!(!error.is_barred());

    let takes = Hub::right(&ca);
    let (reached, _connection) = tokio::join!(dialler.reach(&takes.address), async {
        takes.endpoint.accept().await.unwrap().await.unwrap()
    });
    assert_eq!(reached.unwrap().to_string(), takes.address);
}
