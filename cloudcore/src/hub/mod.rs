//! The hub: where nodes connect, and what each of them should hold and has said.
//!
//! [`quic`] lets nodes in. [`Nodes`] gives each node a task with its session machine, and rings it when the store says
//! that its view may have changed. A node's view comes from indexes; nothing here looks at all objects or all nodes for
//! one change.

mod commit;
mod index;
mod logs;
mod node;
mod queue;
pub mod quic;
mod view;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use daemon::carrier::CloseCode;
use proto::session::cloud::Cloud;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use self::logs::NodeLogs;

use self::index::{Connected, Index};
use self::node::{Message, NodeTask};
use self::quic::{Connections, Session};
use crate::controllers::sessions::Sessions;
use crate::pki::Pki;
use crate::store::{Change, Scope, Store};

/// Sessions that wait to be taken over by their nodes' tasks.
pub const SESSIONS_MAX: usize = 64;

/// Kinds that are part of views.
const KINDS: [&str; 5] = ["Node", "Pod", "ConfigMap", "Secret", "ServiceAccount"];

/// What all nodes' tasks share.
#[derive(Debug)]
pub(crate) struct Shared {
    store: Store,
    pki: Pki,
    sessions: Sessions,
    connections: Connections,
    index: Index,
    connected: Connected,
}

impl Shared {
    /// Every session belongs to an epoch: all of them end and begin again.
    fn new_epoch(&self) {
        self.connections.close_all(CloseCode::DONE);
    }
}

/// The nodes' links, for people who ask.
#[derive(Debug, Clone)]
pub struct Links {
    shared: Arc<Shared>,
}

/// One node's link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkState {
    /// By UDP, sent and received.
    pub bytes: (u64, u64),
    pub round_trip: Duration,
}

impl Links {
    /// The link of a node; `None` while it has none.
    pub fn link(&self, node: &str) -> Option<LinkState> {
        let connection = self.shared.connected.of(node)?;
        let stats = connection.stats();
        Some(LinkState {
            bytes: (stats.udp_tx.bytes, stats.udp_rx.bytes),
            round_trip: connection.rtt(),
        })
    }

    /// Whether the node has changes to acknowledge: how many frames are under way.
    pub fn pending(&self, node: &str) -> usize {
        self.shared.connected.pending(node)
    }
}

/// The nodes' sessions.
#[derive(Debug)]
pub struct Nodes {
    shared: Arc<Shared>,
    arrivals: mpsc::Receiver<Session>,
    /// Whom a carrier is handed to.
    running: BTreeMap<Arc<str>, queue::Sender<Message>>,
    /// Machines of nodes without a carrier: they know the node's boots.
    resting: BTreeMap<Arc<str>, Cloud>,
    tasks: JoinSet<(Arc<str>, Cloud)>,
}

impl Nodes {
    pub fn new(
        store: Store,
        pki: Pki,
        sessions: Sessions,
        connections: Connections,
        arrivals: mpsc::Receiver<Session>,
    ) -> Self {
        let shared = Shared {
            store,
            pki,
            sessions,
            connections,
            index: Index::default(),
            connected: Connected::default(),
        };
        Self {
            shared: Arc::new(shared),
            arrivals,
            running: BTreeMap::new(),
            resting: BTreeMap::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Logs through the nodes' sessions.
    pub fn logs(&self) -> NodeLogs {
        NodeLogs {
            shared: Arc::clone(&self.shared),
            tasks: tokio::sync::Mutex::default(),
        }
    }

    /// What is known of the nodes' links.
    pub fn links(&self) -> Links {
        Links { shared: Arc::clone(&self.shared) }
    }

    /// Serves nodes until it is told to stop.
    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        let scopes: Vec<_> = KINDS.iter().map(|kind| Scope::kind(*kind)).collect();
        let mut watch = self
            .shared
            .store
            .watch_many(scopes.clone(), self.shared.store.revision())?;
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                arrival = self.arrivals.recv() => match arrival {
                    Some(session) => self.arrive(session, &stop).await,
                    None => break,
                },
                change = watch.next() => match change {
                    Ok(change) => self.changed(&change).await,
                    Err(expired) => {
                        tracing::warn!("views are computed anew: {expired}");
                        watch = self.shared.store.watch_many(scopes.clone(), self.shared.store.revision())?;
                        self.shared.index.ring_all();
                    }
                },
                Some(ended) = self.tasks.join_next() => match ended {
                    Ok((node, machine)) => {
                        self.running.remove(&node);
                        self.resting.insert(node, machine);
                    }
                    // Its carriers died with it; the node dials again.
                    Err(error) => tracing::error!("a node's task died: {error}"),
                },
            }
        }
        self.running.clear();
        while self.tasks.join_next().await.is_some() {}
        Ok(())
    }

    /// Hands a new carrier to its node's task.
    async fn arrive(&mut self, session: Session, stop: &CancellationToken) {
        let enrolment = session.peer.enrolment;
        let Some(node) = self
            .shared
            .pki
            .roll()
            .get(enrolment)
            .map(|enrolment| Arc::<str>::from(enrolment.node.as_str()))
        else {
            session.carrier.close(CloseCode::REVOKED);
            return;
        };
        let mut message = Message::Session(Box::new(session));
        if let Some(task) = self.running.get(&node) {
            match task.send(message).await {
                Ok(()) => return,
                // It was just ending.
                Err(back) => message = back,
            }
            self.running.remove(&node);
        }
        let machine = self.resting.remove(&node);
        let machine = machine.unwrap_or_else(|| Cloud::new(u64::from_le_bytes(daemon::random::bytes())));
        let (sender, inbox) = node::inbox();
        let changed = Arc::new(Notify::new());
        self.shared.index.enter(&node, Arc::clone(&changed));
        let task = NodeTask {
            shared: Arc::clone(&self.shared),
            node: Arc::clone(&node),
            enrolment,
            machine,
            inbox,
            sender: sender.clone(),
            changed,
            stop: stop.clone(),
        };
        // The queue is new and empty, so this does not wait.
        drop(sender.send(message).await);
        self.running.insert(node, sender);
        self.tasks.spawn(task.run());
    }

    async fn changed(&mut self, change: &Change) {
        let object = change.object();
        let versions = [&change.before, &change.after];
        if let [Some(before), Some(after)] = versions
            && after.projected == before.projected
        {
            // Only what nodes do not get changed: their own reports, say.
            return;
        }
        match object.key.kind.as_str() {
            "Pod" => {
                for node in versions.into_iter().flatten().filter_map(|version| version.node()) {
                    self.shared.index.ring(node);
                }
            }
            "Node" => {
                if change.after.is_none() {
                    self.forget(&object.key.name).await;
                }
                self.shared.index.ring(&object.key.name);
            }
            _ => self.shared.index.ring_referring(&object.key),
        }
    }

    /// A node that was deleted is let in again only with a new token.
    async fn forget(&mut self, node: &str) {
        match self.shared.pki.revoke(node).await {
            Ok(true) => tracing::info!(node, "node deleted, its enrolment is revoked"),
            Ok(false) => {}
            Err(error) => tracing::error!(
                node,
                "revoking a deleted node's enrolment: {:#}",
                anyhow::Error::new(error)
            ),
        }
        self.shared.sessions.forget(node);
        self.shared.store.set_low_water(node, None);
        self.resting.remove(node);
    }
}
