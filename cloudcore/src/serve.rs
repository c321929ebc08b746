//! The running cloud core: builds every part, starts the tasks, waits.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use daemon::service::Service;
use daemon::supervisor::Supervisor;
use daemon::trust::Clock;
use hyper::body::Bytes;
use hyper::{Method, StatusCode};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::admin::Admin;
use crate::api::pages::{Page, PageAnswer};
use crate::api::seams;
use crate::api::{Api, Limits, Listener, serve as serve_api};
use crate::config::Config;
use crate::controllers::driver;
use crate::controllers::sessions::{Contact, Sessions};
use crate::hub::quic::Hub;
use crate::hub::{Nodes, SESSIONS_MAX};
use crate::pki::{self, Pki};
use crate::store::{self, Lane, Store};

/// The kubeconfig in the data folder.
pub const KUBECONFIG: &str = "admin.kubeconfig";

/// How long the tasks may take to end.
const GRACE: Duration = Duration::from_secs(15);

/// Runs until `shutdown`.
pub async fn serve(config: Config, shutdown: impl Future<Output = ()>) -> anyhow::Result<()> {
    let mut options = store::Config::new(&config.data);
    options.sealing_key.clone_from(&config.sealing_key);
    let store = Store::open(options).context("opening the store")?;
    let listener = TcpListener::bind(config.api)
        .await
        .with_context(|| format!("binding api {}", config.api))?;
    let api_address = listener.local_addr()?;
    // The hub's port is only known once it is bound, and the PKI that it needs tells nodes where it is.
    let hub_address = free_port(config.hub)?;
    let (people, nodes) = (
        reached_at(&config.hosts, api_address),
        reached_at(&config.hosts, hub_address),
    );
    let addresses = nodes.iter().map(|host| with_port(host, hub_address.port())).collect();
    let clock: Clock = Arc::new(daemon::clock::wall);
    let mut names = people.clone();
    names.extend(nodes.into_iter().filter(|name| !people.contains(name)));
    let settings = pki::Config { addresses, names };
    let (pki, clerk) = Pki::open(Arc::new(store.clone()), settings, clock)
        .await
        .context("opening the PKI")?;
    let hub = Hub::bind(hub_address, &pki).context("opening the hub")?;
    let url = format!("https://{}", with_port(&people[0], api_address.port()));
    pki.write_kubeconfig(&config.data.join(KUBECONFIG), &url)
        .context("writing the kubeconfig")?;

    let sessions = Sessions::default();
    let (arrivals, arriving) = mpsc::channel(SESSIONS_MAX);
    let nodes = Nodes::new(
        store.clone(),
        pki.clone(),
        sessions.clone(),
        hub.connections(),
        arriving,
    );
    let admin = Admin {
        store: store.clone(),
        pki: pki.clone(),
        sessions: sessions.clone(),
        hub: nodes.links(),
    };
    let pages = vec![enrolment(pki.clone()), admin.page()];
    let contacts = Arc::new(Contacts(sessions.clone()));
    let callers = Arc::new(pki.callers());
    let api = Api::new(
        store.clone(),
        callers,
        Arc::new(nodes.logs()),
        contacts,
        pages,
        Limits::default(),
    );
    let api = api.await.context("preparing the API")?;
    let listener = Listener {
        socket: listener,
        tls: Arc::new(pki.api_tls().context("preparing the API's TLS")?),
    };

    let mut supervisor = Supervisor::default();
    supervisor.spawn("pki", |stop| clerk.run(stop));
    supervisor.spawn("hub", |stop| hub.run(arrivals, stop));
    supervisor.spawn("nodes", |stop| nodes.run(stop));
    let controllers = driver::Config {
        root_ca: pki.authority().bundle_pem().to_owned(),
        event_ttl: Duration::from_secs(config.event_ttl_s.into()),
    };
    driver::run(&store, &sessions, driver::clock, &mut supervisor, controllers);
    let folder = config.data.clone();
    supervisor.spawn("admin", |stop| admin.serve(folder, stop));
    supervisor.spawn("api", |stop| async move {
        serve_api(listener, api, stop).await;
        Ok(())
    });
    let writer = store.clone();
    supervisor.spawn("service", |stop| async move {
        // Nothing to write writes nothing; that it comes back shows that the writer takes what it is given.
        let answers = async || drop(writer.commit(Lane::Control, Vec::new()).await);
        Service::from_environment().run(answers, stop).await
    });
    supervisor.spawn("store", |stop| async move {
        tokio::select! {
            () = stop.cancelled() => Ok(()),
            () = store.ended() => anyhow::bail!("the store's writer ended"),
        }
    });
    let kubeconfig = config.data.join(KUBECONFIG);
    tracing::info!(api = %url, hub = %hub_address, kubeconfig = %kubeconfig.display(), "cloud core is up");
    supervisor.run(shutdown, GRACE).await
}

/// Where nodes enrol: what the body proves is all they have.
fn enrolment(pki: Pki) -> Page {
    Page {
        prefix: proto::enrol::PATH,
        method: Method::POST,
        open: true,
        handler: Arc::new(move |request| {
            let pki = pki.clone();
            Box::pin(async move {
                let answer = pki.enrol(&request.body).await;
                PageAnswer {
                    code: StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
                    content_type: "application/json",
                    body: Bytes::from(answer.body),
                }
            })
        }),
    }
}

/// The last contact of each node, for the leases that are made up on read.
struct Contacts(Sessions);

impl seams::Sessions for Contacts {
    fn contact(&self, node: &str) -> Option<seams::Contact> {
        let state = self.0.get(node)?;
        let mut at = daemon::clock::wall();
        if !matches!(state.contact, Contact::Connected { .. }) {
            let ago = daemon::clock::mono().since(state.contact.since());
            at.ms -= i64::try_from(ago.as_millis()).unwrap_or(i64::MAX);
        }
        let grace = crate::controllers::node_life::grace(state.beat);
        Some(seams::Contact {
            at,
            grace_s: u32::try_from(grace.as_secs()).unwrap_or(u32::MAX),
        })
    }
}

/// The address under which this host would be seen from elsewhere; the loopback one where it has no way out.
/// Where a server is reached, the best one first: at the hosts that are configured, or where it is bound, or at this
/// host's own address.
fn reached_at(hosts: &[String], bound: SocketAddr) -> Vec<String> {
    if !hosts.is_empty() {
        return hosts.to_vec();
    }
    let one = Some(bound.ip()).filter(|ip| !ip.is_unspecified());
    vec![one.unwrap_or_else(own_address).to_string()]
}

fn own_address() -> IpAddr {
    // A route is looked up; nothing is sent.
    let route = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect("192.0.2.1:9")?;
        socket.local_addr()
    });
    route.map_or_else(|_| IpAddr::from([127, 0, 0, 1]), |address| address.ip())
}

/// Port 0 asks for any: which one, must be known before the hub is there.
fn free_port(address: SocketAddr) -> anyhow::Result<SocketAddr> {
    if address.port() != 0 {
        return Ok(address);
    }
    let socket = UdpSocket::bind(address).with_context(|| format!("binding hub {address}"))?;
    Ok(socket.local_addr()?)
}

fn with_port(host: &str, port: u16) -> String {
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) => format!("[{address}]:{port}"),
        Ok(IpAddr::V4(_)) | Err(_) => format!("{host}:{port}"),
    }
}

/// Copies the store beside a running or a stopped cloud core.
pub fn backup(folder: &Path, file: &Path) -> anyhow::Result<u64> {
    let revision = store::backup_folder(folder, file).context("backing up")?;
    Ok(revision.0)
}
