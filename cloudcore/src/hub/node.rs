//! One node: its session machine, and the carriers that reach it.
//!
//! A task per node with a carrier owns the machine; every carrier has a task of its own that moves frames. The machine's
//! commits are the store's; what it says goes to the carrier's queue, which the session's window keeps short.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use daemon::carrier::{CarrierError, CloseCode};
use daemon::clock::{mono, sleep_until};
use proto::enrol::EnrolmentId;
use proto::frame::{Down, Frame, Refusal, Up};
use proto::session::cloud::{Cloud, Input, News};
use proto::session::{Carrier, Listener, Timer, Wire, carry_out};
use proto::time::Mono;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::commit::Commit;
use super::queue::{Receiver, Sender, queue};
use super::quic::Session;
use super::view::Snapshot;
use crate::controllers::sessions::{Contact, SessionState};

/// Frames on their way to one carrier. The window of the session lets fewer be under way; a carrier that does not even
/// take these is broken.
const OUTGOING_MAX: usize = 64;

/// Frames read ahead from all carriers of one node. While these wait, nothing more is read from the node.
const INCOMING_MAX: usize = 4;

/// What a node's task is told.
#[derive(Debug)]
pub(super) enum Message {
    /// A carrier came.
    Session(Box<Session>),
    Frame(Carrier, Vec<u8>),
    Lost(Carrier, Lost),
    /// Credentials for a request, as JSON.
    Certificate(Vec<u8>),
}

/// Why a carrier ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lost {
    /// Nothing was heard any more.
    Silent,
    /// The other side or this one ended it.
    Closed,
}

/// A node's task.
pub(super) struct NodeTask {
    pub(super) shared: Arc<Shared>,
    pub(super) node: Arc<str>,
    pub(super) enrolment: EnrolmentId,
    pub(super) machine: Cloud,
    pub(super) inbox: Receiver<Message>,
    pub(super) sender: Sender<Message>,
    /// Rung when the view may have changed.
    pub(super) changed: Arc<Notify>,
    pub(super) stop: CancellationToken,
}

/// What the machine may use.
#[derive(Debug, Default)]
struct Rim {
    /// One nearly always, and as few as its connections may be.
    carriers: Vec<(Carrier, Sender<Vec<u8>>)>,
    wake_at: Option<Mono>,
    news: Vec<News>,
}

impl NodeTask {
    /// Serves the node until its last carrier is gone; returns the machine, which remembers the node's boots.
    pub(super) async fn run(mut self) -> (Arc<str>, Cloud) {
        let mut tasks = JoinSet::new();
        let mut rim = Rim::default();
        let mut beat = Duration::from_secs(30);
        loop {
            tokio::select! {
                () = self.stop.cancelled() => break,
                message = self.inbox.recv() => {
                    let Some(message) = message else { break };
                    match message {
                        Message::Session(session) => {
                            // Another one than before when the node was replaced.
                            self.enrolment = session.peer.enrolment;
                            self.carry(*session, &mut rim, &mut tasks);
                        }
                        Message::Frame(carrier, frame) => {
                            self.step(&mut rim, Some(Input::Frame(carrier, frame))).await;
                        }
                        Message::Lost(carrier, lost) => {
                            rim.hang_up(carrier);
                            self.step(&mut rim, Some(Input::Lost(carrier))).await;
                            if !self.machine.is_up() {
                                let ago = if lost == Lost::Silent { daemon::carrier::idle(beat) } else { Duration::ZERO };
                                let contact = if self.shared.pki.roll().is_revoked(self.enrolment) {
                                    Contact::Barred { since: mono() }
                                } else {
                                    Contact::Silent { since: mono() - ago }
                                };
                                self.shared.sessions.set(&self.node, SessionState { contact, beat }, mono());
                            }
                            if rim.carriers.is_empty() {
                                break;
                            }
                        }
                        Message::Certificate(credentials) => {
                            self.step(&mut rim, Some(Input::Certificate(credentials))).await;
                        }
                    }
                }
                () = self.changed.notified() => self.step(&mut rim, Some(Input::Changed)).await,
                () = sleep_until(rim.wake_at) => self.step(&mut rim, None).await,
                Some(ended) = tasks.join_next() => {
                    if let Err(error) = ended {
                        tracing::error!(node = &*self.node, "a carrier's task died: {error}");
                    }
                }
            }
            for news in std::mem::take(&mut rim.news) {
                if let News::Up { beat_s, .. } = &news {
                    beat = Duration::from_secs(u64::from((*beat_s).max(1)));
                }
                Box::pin(self.hear(news, beat, &mut tasks)).await;
            }
        }
        self.shared.index.forget(&self.node);
        (self.node, self.machine)
    }

    /// Takes a carrier over and gives it a task.
    fn carry(&self, session: Session, rim: &mut Rim, tasks: &mut JoinSet<()>) {
        let carrier = Carrier(session.entry.number);
        let (outgoing, mut queue) = queue(OUTGOING_MAX);
        let incoming = self.sender.clone();
        if session.peer.expired {
            tasks.spawn(renew_only(Arc::clone(&self.shared), self.enrolment, session));
            return;
        }
        rim.carriers.reserve_exact(1);
        rim.carriers.push((carrier, outgoing));
        self.shared
            .connected
            .insert(&self.node, carrier, session.carrier.connection().clone());
        let (shared, node) = (Arc::clone(&self.shared), Arc::clone(&self.node));
        // The rest of the session is not kept.
        let (mut wire, entry) = (session.carrier, session.entry);
        tasks.spawn(async move {
            let lost = match move_frames(&mut wire, carrier, &mut queue, &incoming).await {
                Some(CarrierError::Lost(quinn::ConnectionError::TimedOut)) => Lost::Silent,
                Some(error @ CarrierError::Frame(_)) => {
                    tracing::warn!(node = &*node, "session ended: {:#}", anyhow::Error::new(error));
                    Lost::Closed
                }
                Some(error) => {
                    tracing::debug!(node = &*node, "session ended: {:#}", anyhow::Error::new(error));
                    Lost::Closed
                }
                None => Lost::Closed,
            };
            drop((wire, entry, queue));
            shared.connected.lost(&node, carrier);
            // A task that has ended needs not be told.
            drop(incoming.send(Message::Lost(carrier, lost)).await);
        });
    }

    /// Has the machine take an input, or do what is due, and carries out what it asks for.
    ///
    /// In a box: a node's task waits nearly always, and has no need for the room that a commit takes.
    fn step<'a>(&'a mut self, rim: &'a mut Rim, input: Option<Input>) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async move {
            let snapshot = self.snapshot().await;
            match input {
                Some(input) => self.machine.handle(mono(), input, &snapshot),
                None => self.machine.tick(mono()),
            }
            let mut disk = Commit { store: &self.shared.store, snapshot: &snapshot };
            let (mut clock, mut news) = (Clock(None), Heard(Vec::new()));
            carry_out(&mut self.machine, &snapshot, &mut disk, rim, &mut clock, &mut news).await;
            rim.wake_at = clock.0;
            self.shared.connected.set_pending(&self.node, self.machine.under_way());
            rim.news.extend(news.0);
        })
    }

    async fn snapshot(&self) -> Snapshot {
        let snapshot = Snapshot::now(&self.shared.store, &self.node).await;
        self.shared.index.set(&self.node, &snapshot.references);
        snapshot
    }

    async fn hear(&self, news: News, beat: Duration, tasks: &mut JoinSet<()>) {
        let node = &*self.node;
        match news {
            News::Up { boot, replaced, .. } => {
                tracing::info!(node, %boot, replaced, "session up");
                let contact = Contact::Connected { since: mono() };
                self.shared.sessions.set(node, SessionState { contact, beat }, mono());
            }
            News::Acked(revision) => self.shared.store.set_low_water(node, Some(revision)),
            News::Behind(revision) => {
                tracing::warn!(node, %revision, "the node knows a later revision than this store: a new epoch begins");
                if let Err(error) = self.shared.store.renew(revision).await {
                    tracing::error!("beginning a new epoch: {error:#}");
                }
                self.shared.new_epoch();
            }
            News::Duplicate(boot) => {
                tracing::warn!(node, %boot, "DuplicateIdentity: two machines hold this node's key; revoke it and join again");
            }
            News::Foreign { versions: (lowest, highest) } => {
                tracing::warn!(
                    node,
                    lowest,
                    highest,
                    ours = proto::frame::VERSION,
                    "session refused: no frame version or dictionary in common; update the older of the two cores"
                );
            }
            News::Violated(violation) => tracing::warn!(node, "session refused: {:#}", anyhow::Error::new(violation)),
            News::NotDurable(error) => tracing::error!(node, "what the node reported could not be written: {error}"),
            News::Request(csr) => {
                let (pki, sender, enrolment) = (self.shared.pki.clone(), self.sender.clone(), self.enrolment);
                let node = Arc::clone(&self.node);
                tasks.spawn(async move {
                    match renew(&pki, enrolment, &csr).await {
                        // The node asks again when the task is gone.
                        Ok(credentials) => drop(sender.send(Message::Certificate(credentials)).await),
                        Err(error) => tracing::warn!(node = &*node, "certificate not renewed: {error:#}"),
                    }
                });
            }
        }
    }
}

async fn renew(pki: &crate::pki::Pki, enrolment: EnrolmentId, csr: &[u8]) -> anyhow::Result<Vec<u8>> {
    let csr = std::str::from_utf8(csr)?;
    let credentials = pki.renew(enrolment, csr).await?;
    Ok(serde_json::to_vec(&credentials)?)
}

/// Moves frames both ways until the carrier ends or nobody feeds it.
async fn move_frames(
    wire: &mut daemon::carrier::Carrier,
    carrier: Carrier,
    queue: &mut Receiver<Vec<u8>>,
    incoming: &Sender<Message>,
) -> Option<CarrierError> {
    loop {
        tokio::select! {
            frame = queue.recv() => match frame {
                Some(frame) => {
                    if let Err(error) = wire.send(&frame).await {
                        return Some(error);
                    }
                }
                None => {
                    wire.close(CloseCode::DONE);
                    return None;
                }
            },
            // Waiting for room here is how the node is kept from sending more.
            frame = wire.recv() => match frame {
                Ok(Some(frame)) => incoming.send(Message::Frame(carrier, frame)).await.ok()?,
                Ok(None) => return None,
                Err(error) => return Some(error),
            },
        }
    }
}

/// Serves a node whose certificate has expired: it may ask for a new one and nothing else.
async fn renew_only(shared: Arc<Shared>, enrolment: EnrolmentId, mut session: Session) {
    while let Ok(Some(frame)) = session.carrier.recv().await {
        let answer = match Frame::decode(&frame) {
            Ok(Frame::Up { session: id, seq, items }) => match items.as_slice() {
                [Up::Request(csr)] => match renew(&shared.pki, enrolment, csr).await {
                    Ok(credentials) => Frame::Down {
                        session: id,
                        seq,
                        items: vec![Down::Certificate(credentials)],
                    },
                    Err(error) => {
                        tracing::warn!(%enrolment, "certificate not renewed: {error:#}");
                        Frame::Refuse(Refusal::Unknown)
                    }
                },
                _ => Frame::Refuse(Refusal::Expired),
            },
            _ => Frame::Refuse(Refusal::Expired),
        };
        if session.carrier.send(&answer.encode()).await.is_err() {
            return;
        }
    }
}

impl Wire for Rim {
    async fn send(&mut self, carrier: Carrier, frame: Vec<u8>) {
        let queue = self.carriers.iter().find(|(other, _)| *other == carrier);
        if queue.is_some_and(|(_, queue)| queue.try_send(frame).is_err()) {
            // It takes nothing any more; its task says that it is lost.
            self.hang_up(carrier);
        }
    }

    fn hang_up(&mut self, carrier: Carrier) {
        // The carrier's task sends what is queued, closes and says so.
        self.carriers.retain(|(other, _)| *other != carrier);
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

/// The queue of a node's task.
pub(super) fn inbox() -> (Sender<Message>, Receiver<Message>) {
    queue(INCOMING_MAX)
}
