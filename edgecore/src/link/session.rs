//! The edge's session task: owns the machine, gives it what happens, and carries out what it asks for.
//!
//! Nothing here waits for the network: frames go to the carrier's queue, which the session's window keeps short, and
//! what pods report is durable when [`Reporter::say`] returns, link or no link; an event is within a second.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use daemon::carrier::CloseCode;
use daemon::clock::mono;
use daemon::trust::NodeTime;
use proto::enrol::Credentials;
use proto::frame::Refusal;
use proto::object::{Key, Revision};
use proto::session::edge::{Edge, Input, News, Recovered};
use proto::session::{Carrier, CommitError, Disk, Listener, Timer, Wire, carry_out, edge};
use proto::time::Mono;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::carry::{self, Event};
use super::dial::Dial;
use super::quic::{Dialler, Settings, SetupError, Tunnels};
use crate::clock::NodeClock;
use crate::identity::Identity;
use crate::network;
use crate::pods::{Clock as _, Pods};
use crate::store::NodeStore;

/// What pods say that waits for the machine; more wait in their callers.
const SAID_MAX: usize = 64;

/// Frames on their way to the cloud. The session's window lets fewer be under way; a carrier that does not take these is
/// broken.
const OUTGOING_MAX: usize = 64;

/// Frames read ahead.
const INCOMING_MAX: usize = 8;

/// How often a node that has not joined looks whether it has.
const JOINED_LOOK: Duration = Duration::from_secs(10);

/// How often the certificate's age is looked at.
const RENEWAL_LOOK: Duration = Duration::from_secs(12 * 3600);

/// How long a stop waits for the farewell to be said.
const FAREWELL: Duration = Duration::from_millis(500);

/// Something for the machine, and who waits until it is durable.
#[derive(Debug)]
pub struct Said {
    input: Input,
    done: oneshot::Sender<()>,
}

/// Says things to the machine.
#[derive(Debug, Clone)]
pub struct Reporter {
    said: mpsc::Sender<Said>,
}

impl LinkStatus {
    /// By UDP, sent and received by all connections of this life of the edge core.
    pub fn bytes(&self) -> (u64, u64) {
        let (sent, received) = self.live.as_ref().map_or((0, 0), Tunnels::bytes);
        (self.bytes_sent + sent, self.bytes_received + received)
    }
}

impl Reporter {
    /// A reporter, and the queue for [`Session::run`].
    pub fn new() -> (Self, mpsc::Receiver<Said>) {
        let (said, queue) = mpsc::channel(SAID_MAX);
        (Self { said }, queue)
    }

    /// Returns when it is durable (an event: when the machine has it), or when the session task has ended.
    pub async fn say(&self, input: Input) {
        let (done, wait) = oneshot::channel();
        if self.said.send(Said { input, done }).await.is_ok() {
            // Dropped only when the task ends, and then nothing is lost that is not seen again.
            let _ = wait.await;
        }
    }
}

/// What is known of the link, for people and for the node's conditions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LinkStatus {
    pub joined: bool,
    /// Since when there is a session.
    pub up_since: Option<Mono>,
    pub remote: Option<String>,
    pub applied: Revision,
    /// Reports, deletions and events that the cloud has not acknowledged.
    pub pending: usize,
    /// By UDP, of the connections of this life of the edge core that have ended.
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// The one that is up.
    pub live: Option<Tunnels>,
    /// The last commit found no room.
    pub disk_full: bool,
    pub refused: Option<String>,
    /// Why there is no link, as of the last try.
    pub trouble: Option<String>,
    pub events_dropped: u64,
}

/// The session task's parts.
#[derive(Debug)]
pub struct Session {
    pub store: NodeStore,
    pub recovered: Recovered,
    pub said: mpsc::Receiver<Said>,
    pub pods: Pods,
    pub clock: NodeClock,
    /// Where the identity is kept.
    pub folder: std::path::PathBuf,
    pub settings: Settings,
    pub status: watch::Sender<LinkStatus>,
    /// Takes the tunnels of every new connection.
    pub tunnels: mpsc::Sender<Tunnels>,
    pub network: network::Changes,
}

impl Session {
    /// Runs until stopped. It never ends for want of a network, a clock, an address or a certificate.
    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        let beat_s = u16::try_from(self.settings.keep_alive.as_secs()).unwrap_or(u16::MAX);
        let seed = u64::from_le_bytes(daemon::random::bytes());
        let recovered = std::mem::take(&mut self.recovered);
        let mut running = Running {
            machine: Edge::new(daemon::clock::boot_id(), beat_s, seed, recovered),
            rim: Rim::default(),
            link: None,
            dial: Dial::new(Vec::new(), seed, mono()),
            carriers: 0,
            addresses: Vec::new(),
            renewing: false,
            tasks: JoinSet::new(),
            look_at: Some(mono()),
            session: self,
        };
        running.run(stop).await;
        Ok(())
    }
}

/// The means to dial, once the node has joined.
struct Link {
    identity: Identity,
    dialler: Arc<Dialler>,
}

struct Running {
    session: Session,
    machine: Edge,
    rim: Rim,
    link: Option<Link>,
    dial: Dial,
    carriers: u64,
    /// Those of this machine when the link came up.
    addresses: Vec<String>,
    /// The certificate has expired: the next connection asks for a new one and for nothing else.
    renewing: bool,
    tasks: JoinSet<()>,
    /// When to look at the identity: whether there is one, whether it is old.
    look_at: Option<Mono>,
}

/// What the machine may use.
#[derive(Default)]
struct Rim {
    carrier: Option<(Carrier, mpsc::Sender<Vec<u8>>)>,
    wake_at: Option<Mono>,
    changed: Vec<Key>,
}

impl Running {
    async fn run(&mut self, stop: CancellationToken) {
        let (events, mut happened) = mpsc::channel::<Event>(INCOMING_MAX);
        let clock = self.session.clock.clone();
        loop {
            self.dial(&events);
            let wake_at = [self.rim.wake_at, self.dial.wake_at(), self.look_at]
                .into_iter()
                .flatten()
                .min();
            tokio::select! {
                () = stop.cancelled() => break,
                said = self.session.said.recv() => {
                    let Some(Said { input, done }) = said else { break };
                    self.handle(input).await;
                    // Who no longer waits does not mind.
                    let _ = done.send(());
                }
                Some(event) = happened.recv() => self.happen(event, &events).await,
                Ok(()) = self.session.network.changed() => self.network_changed(),
                () = clock.sleep_until(wake_at) => self.wake().await,
                Some(ended) = self.tasks.join_next() => {
                    if let Err(error) = ended {
                        tracing::error!("a connection's task died: {error}");
                    }
                }
            }
        }
        self.handle(Input::Flush).await;
        self.rim.carrier = None;
        if let Some(link) = &self.link {
            link.dialler.close(FAREWELL).await;
        }
        self.tasks.shutdown().await;
        self.session.store.close().await;
    }

    /// Starts dialling when it is time.
    fn dial(&mut self, events: &mpsc::Sender<Event>) {
        let Some(link) = &self.link else { return };
        if let Some(address) = self.dial.due(mono()) {
            let (dialler, address, events) = (Arc::clone(&link.dialler), address.to_owned(), events.clone());
            self.tasks.spawn(async move {
                let dialled = dialler.dial(&address).await;
                // A session that has ended has no use for it.
                let _ = events.send(Event::Dialled(dialled.map(Box::new))).await;
            });
        }
    }

    async fn happen(&mut self, event: Event, events: &mpsc::Sender<Event>) {
        match event {
            Event::Dialled(Ok(link)) => {
                self.dial.up(mono());
                self.carriers += 1;
                self.addresses = network::addresses();
                let carrier = Carrier(self.carriers);
                let (remote, live) = (link.remote(), link.tunnels());
                self.session.status.send_modify(|status| {
                    status.remote = Some(SocketAddr::new(remote.ip().to_canonical(), remote.port()).to_string());
                    status.live = Some(live);
                    status.trouble = None;
                });
                if self.renewing {
                    self.renew_alone(*link, carrier, events);
                    return;
                }
                // The tunnels' task takes it or is about to end.
                let _ = self.session.tunnels.try_send(link.tunnels());
                let (outgoing, queue) = mpsc::channel(OUTGOING_MAX);
                self.rim.carrier = Some((carrier, outgoing));
                self.tasks.spawn(carry::frames(*link, carrier, queue, events.clone()));
                self.handle(Input::Connected(carrier)).await;
            }
            Event::Dialled(Err(error)) => {
                let barred = error.is_barred();
                self.no_link(format!("{:#}", anyhow::Error::new(error)));
                self.lost(barred, None);
            }
            Event::Frame(carrier, frame) => {
                if self
                    .rim
                    .carrier
                    .as_ref()
                    .is_some_and(|(current, _)| *current == carrier)
                {
                    self.handle(Input::Frame(frame)).await;
                }
            }
            Event::Lost(carrier, lost) => {
                self.session.status.send_modify(|status| {
                    status.bytes_sent += lost.bytes.0;
                    status.bytes_received += lost.bytes.1;
                    status.live = None;
                    status.trouble.get_or_insert_with(|| lost.why.clone());
                });
                if self
                    .rim
                    .carrier
                    .as_ref()
                    .is_some_and(|(current, _)| *current == carrier)
                {
                    self.rim.carrier = None;
                }
                self.lost(lost.barred, Some(lost.why));
                self.handle(Input::Lost(carrier)).await;
            }
            Event::Credentials(credentials) => self.renew(&credentials),
        }
    }

    /// There may be another way to the cloud. A link that is up moves there with this machine's address.
    fn network_changed(&mut self) {
        let wait_ends = self.dial.nudge(mono());
        tracing::debug!(wait_ends, "the network changed");
        let (Some(link), Some(_)) = (&self.link, &self.rim.carrier) else {
            return;
        };
        let addresses = network::addresses();
        if addresses.is_empty() || addresses == self.addresses {
            return;
        }
        self.addresses = addresses;
        if let Err(error) = link.dialler.rebind() {
            tracing::warn!("the link stays on its old path: {error}");
        }
    }

    /// Keeps why a try failed. What repeats itself is logged once.
    fn no_link(&self, why: String) {
        let new = self.session.status.borrow().trouble.as_ref() != Some(&why);
        if new {
            tracing::info!("no link: {why}");
            self.session.status.send_modify(|status| status.trouble = Some(why));
        } else {
            tracing::debug!("no link: {why}");
        }
    }

    fn lost(&mut self, barred: bool, why: Option<String>) {
        let now = mono();
        match (barred, why) {
            (true, _) => {
                tracing::warn!("the cloud has revoked this node's key: an admin must let it in again");
                self.dial.barred(now);
                self.session
                    .status
                    .send_modify(|status| status.refused = Some("revoked".to_owned()));
            }
            (false, Some(why)) => {
                tracing::info!("link lost: {why}");
                self.dial.lost(now);
            }
            (false, None) => self.dial.failed(now),
        }
        self.session.status.send_modify(|status| {
            status.up_since = None;
            status.remote = None;
        });
    }

    async fn wake(&mut self) {
        let now = mono();
        if self.look_at.is_some_and(|at| at <= now) {
            self.look_at_identity().await;
        }
        if self.rim.wake_at.is_some_and(|at| at <= now) {
            self.machine.tick(now);
            self.carry_out().await;
        }
    }

    /// Finds the identity once the node has joined, and asks for a new certificate when it is time.
    async fn look_at_identity(&mut self) {
        if let Some(link) = &self.link {
            self.look_at = Some(mono() + RENEWAL_LOOK);
            if link.identity.is_due(&self.time()) && self.machine.is_up() {
                self.ask_for_certificate().await;
            }
            return;
        }
        self.look_at = Some(mono() + JOINED_LOOK);
        match Identity::load(&self.session.folder) {
            Ok(Some(identity)) => match self.dialler(&identity) {
                Ok(dialler) => {
                    tracing::info!(node = identity.node(), "joined; looking for the cloud");
                    self.dial.set_addresses(identity.addresses().to_vec());
                    self.dial.nudge(mono());
                    self.session.status.send_modify(|status| status.joined = true);
                    self.link = Some(Link { identity, dialler: Arc::new(dialler) });
                    self.look_at = Some(mono() + RENEWAL_LOOK);
                }
                Err(error) => tracing::error!("cannot dial: {:#}", anyhow::Error::new(error)),
            },
            Ok(None) => {}
            Err(error) => tracing::error!("this node's identity: {:#}", anyhow::Error::new(error)),
        }
    }

    async fn ask_for_certificate(&mut self) {
        let request = self.link.as_ref().map(|link| link.identity.csr());
        match request {
            Some(Ok(csr)) => self.handle(Input::Request(csr.into_bytes())).await,
            Some(Err(error)) => tracing::error!("asking for a certificate: {:#}", anyhow::Error::new(error)),
            None => {}
        }
    }

    fn dialler(&self, identity: &Identity) -> Result<Dialler, SetupError> {
        let alarm = self.session.clock.alarm().cloned();
        Dialler::new(identity, self.time(), self.session.settings, alarm)
    }

    fn time(&self) -> NodeTime {
        self.session.clock.node_time()
    }

    async fn handle(&mut self, input: Input) {
        self.machine.handle(mono(), input);
        self.carry_out().await;
    }

    async fn carry_out(&mut self) {
        // With whatever is written anyway: what was once sure is as late as can be.
        self.session.store.note_floor(self.session.clock.sure_ms(mono()));
        let mut disk = StoreDisk { store: &self.session.store, changed: Vec::new(), full: None };
        let (mut clock, mut heard) = (Clock(None), Heard(Vec::new()));
        carry_out(&mut self.machine, &(), &mut disk, &mut self.rim, &mut clock, &mut heard).await;
        self.rim.wake_at = clock.0;
        self.rim.changed.extend(disk.changed);
        if let Some(full) = disk.full {
            self.session
                .status
                .send_if_modified(|status| std::mem::replace(&mut status.disk_full, full) != full);
        }
        let mut ask = false;
        for news in heard.0 {
            ask |= self.hear(news);
        }
        let (pending, applied) = (self.machine.pending(), self.machine.applied().1);
        self.session.status.send_if_modified(|status| {
            let new = status.pending != pending || status.applied != applied;
            (status.pending, status.applied) = (pending, applied);
            new
        });
        if ask {
            Box::pin(self.ask_for_certificate()).await;
        }
    }

    /// Returns whether a certificate should be asked for.
    fn hear(&mut self, news: News) -> bool {
        match news {
            News::Changed(_) => {
                for key in std::mem::take(&mut self.rim.changed) {
                    self.session.pods.wake(key);
                }
            }
            News::Up { now_ms } => {
                self.session.clock.tell(mono(), now_ms);
                self.session.pods.network_back();
                self.session.status.send_modify(|status| {
                    status.up_since = Some(mono());
                    status.refused = None;
                    status.trouble = None;
                });
                tracing::info!("session up");
                return self
                    .link
                    .as_ref()
                    .is_some_and(|link| link.identity.is_due(&self.time()));
            }
            News::Synced(revision) => {
                tracing::debug!(%revision, "view held whole");
                if self.session.store.note_synced() {
                    // What was left alone until now may have to go.
                    self.session.pods.wake_all();
                }
            }
            News::Refused(Refusal::Expired) => self.renewing = true,
            News::Refused(refusal) => {
                tracing::warn!(?refusal, "the cloud refused the session");
                self.session
                    .status
                    .send_modify(|status| status.refused = Some(format!("{refusal:?}")));
            }
            News::Violated(violation) => {
                let why = format!("session ended: {:#}", anyhow::Error::new(violation));
                tracing::warn!("{why}");
                self.session.status.send_modify(|status| status.trouble = Some(why));
            }
            News::NotDurable(_) => self.rim.changed.clear(),
            News::Certificate(credentials) => self.renew(&credentials),
            News::EventsDropped(count) => {
                self.session.status.send_modify(|status| status.events_dropped += count);
            }
        }
        false
    }

    fn renew(&mut self, credentials: &[u8]) {
        let (time, alarm) = (self.time(), self.session.clock.alarm().cloned());
        let Some(link) = &mut self.link else { return };
        let renewed = serde_json::from_slice::<Credentials>(credentials)
            .map_err(anyhow::Error::new)
            .and_then(|credentials| Ok(link.identity.renew(credentials)?))
            .and_then(|()| Ok(Dialler::new(&link.identity, time, self.session.settings, alarm)?));
        match renewed {
            Ok(dialler) => {
                tracing::info!("certificate renewed");
                self.renewing = false;
                self.dial.set_addresses(link.identity.addresses().to_vec());
                // The connection that is up goes on; the next one has the new certificate.
                link.dialler = Arc::new(dialler);
            }
            Err(error) => tracing::error!("the cloud's new certificate cannot be used: {error:#}"),
        }
    }

    /// A connection of a node whose certificate has expired.
    fn renew_alone(&mut self, link: super::quic::Link, carrier: Carrier, events: &mpsc::Sender<Event>) {
        match self.link.as_ref().map(|link| link.identity.csr()) {
            Some(Ok(csr)) => {
                self.tasks.spawn(carry::renewal(link, carrier, csr, events.clone()));
            }
            Some(Err(error)) => tracing::error!("asking for a certificate: {:#}", anyhow::Error::new(error)),
            None => link.close(CloseCode::DONE),
        }
    }
}

struct StoreDisk<'a> {
    store: &'a NodeStore,
    changed: Vec<Key>,
    /// Whether the last commit found no room; nothing where none was made.
    full: Option<bool>,
}

impl Disk<edge::Batch, edge::Outcome> for StoreDisk<'_> {
    async fn commit(&mut self, batch: edge::Batch) -> Result<edge::Outcome, CommitError> {
        let committed = self.store.commit(batch).await;
        self.full = Some(matches!(committed, Err(CommitError::Full)));
        let committed = committed?;
        self.changed.extend(committed.changed);
        Ok(committed.outcome)
    }
}

impl Wire for Rim {
    async fn send(&mut self, carrier: Carrier, frame: Vec<u8>) {
        if let Some((current, queue)) = &self.carrier
            && *current == carrier
            && queue.try_send(frame).is_err()
        {
            // It takes nothing any more; its task says that it is lost.
            self.carrier = None;
        }
    }

    fn hang_up(&mut self, carrier: Carrier) {
        // The carrier's task sends what is queued, closes and says so.
        self.carrier.take_if(|(current, _)| *current == carrier);
    }
}

struct Clock(Option<Mono>);

impl Timer for Clock {
    fn now(&self) -> Mono {
        mono()
    }

    fn wake_at(&mut self, at: Option<Mono>) {
        self.0 = at;
    }
}

struct Heard(Vec<News>);

impl Listener<News> for Heard {
    fn hear(&mut self, news: News) {
        self.0.push(news);
    }
}
