//! Owns the pods' tasks: starts one for each pod that should be here or that is still here, wakes them, and starts them
//! again if they die.
//!
//! Nothing is placed before the runtime was listed once: only then is it known which pods of an earlier life still
//! run. A pod that was made anew under its old name waits until nothing of the old one is left.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use proto::object::{Key, Uid};
use proto::time::Mono;
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::desk::{Clock, Desired, Desk};
use super::env::Allocatable;
use super::folders::Folders;
use super::pod::{Inbox, PodTask, Shared};
use crate::runtime::{Event, Runtime, Seen};

/// So many images are fetched at once, over all pods.
pub const PULLS_MAX: usize = 2;
/// So many woken keys wait; past that everything is looked at.
pub const WAKES_MAX: usize = 1024;
/// Everything is looked at again after this, even if nothing seems to happen.
pub const RESYNC: Duration = Duration::from_secs(600);
/// How soon everything is looked at again after the runtime could not be listed or a pod's task died.
const RETRY: Duration = Duration::from_secs(5);

/// What the operator may set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub folders: Folders,
    /// Mounts a tmpfs for what must stay in memory. Without it these are plain folders: for tests only.
    pub mount_memory: bool,
    /// What the node has for pods.
    pub allocatable: Allocatable,
    /// So many processes may one container have; 0: as many as the machine.
    pub pids_max: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            folders: Folders::default(),
            mount_memory: true,
            allocatable: Allocatable::default(),
            pids_max: 0,
        }
    }
}

/// The handle others hold.
#[derive(Debug, Clone)]
pub struct Pods {
    wakes: Arc<Wakes>,
    lost: watch::Receiver<bool>,
}

#[derive(Debug, Default)]
struct Wakes {
    waiting: Mutex<Waiting>,
    bell: Notify,
    /// How often the link came back.
    links: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct Waiting {
    keys: BTreeSet<Key>,
    /// More than would fit: look at everything.
    all: bool,
}

impl Pods {
    /// A desired object changed, appeared or went: a pod, or something that pods refer to.
    pub fn wake(&self, key: Key) {
        let mut waiting = self.wakes.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.keys.len() >= WAKES_MAX {
            waiting.all = true;
        } else {
            waiting.keys.insert(key);
        }
        drop(waiting);
        self.wakes.bell.notify_one();
    }

    /// Everything may have changed: a snapshot was taken over.
    pub fn wake_all(&self) {
        let mut waiting = self.wakes.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.all = true;
        drop(waiting);
        self.wakes.bell.notify_one();
    }

    /// The link came back: what could not be fetched is tried again at once.
    pub fn network_back(&self) {
        self.wakes.links.fetch_add(1, Ordering::Relaxed);
        self.wake_all();
    }

    /// Whether the runtime does not answer, for the node's conditions.
    pub fn runtime_lost(&self) -> watch::Receiver<bool> {
        self.lost.clone()
    }
}

/// Makes the subsystem; nothing happens until [`Runner::run`].
pub fn new<R: Runtime, D: Desk, C: Clock>(
    config: Config,
    runtime: Arc<R>,
    desk: Arc<D>,
    clock: Arc<C>,
) -> (Pods, Runner<R, D, C>) {
    let wakes = Arc::new(Wakes::default());
    let (lost_sender, lost) = watch::channel(false);
    let shared = Shared {
        runtime,
        desk,
        clock,
        config,
        pulls: Arc::new(Semaphore::new(PULLS_MAX)),
        links: Arc::clone(&wakes.links),
    };
    let runner = Runner {
        shared: Arc::new(shared),
        wakes: Arc::clone(&wakes),
        lost: lost_sender,
        children: BTreeMap::new(),
        tasks: JoinSet::new(),
        ids: BTreeMap::new(),
        gone: BTreeSet::new(),
        listed: false,
        look_at: Mono(0),
    };
    (Pods { wakes, lost }, runner)
}

/// The task over all pods.
#[derive(Debug)]
pub struct Runner<R, D, C> {
    shared: Arc<Shared<R, D, C>>,
    wakes: Arc<Wakes>,
    lost: watch::Sender<bool>,
    children: BTreeMap<Uid, Child>,
    /// Whether each said that its pod is gone.
    tasks: JoinSet<bool>,
    ids: BTreeMap<Id, Uid>,
    /// Reported gone and still desired: the word is on its way to the cloud, and there is nothing to do.
    gone: BTreeSet<Uid>,
    /// The runtime was listed in this life of the edge core.
    listed: bool,
    /// When everything is looked at next.
    look_at: Mono,
}

/// A pod's task as the runner knows it.
#[derive(Debug)]
struct Child {
    key: Key,
    wanted: watch::Sender<Option<Arc<Desired>>>,
    poke: Arc<Notify>,
}

impl<R: Runtime, D: Desk, C: Clock> Runner<R, D, C> {
    /// Runs until stopped. The pods run on.
    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut events = self.shared.runtime.subscribe();
        loop {
            let now = self.shared.clock.mono();
            if self.look_at <= now {
                self.look_at_everything().await;
            }
            let clock = Arc::clone(&self.shared.clock);
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.wakes.bell.notified() => self.take_wakes().await,
                event = events.recv() => self.take_event(event, &mut events),
                Some(ended) = self.tasks.join_next_with_id() => self.take_end(ended).await,
                () = clock.sleep_until(Some(self.look_at)) => {}
            }
        }
        // A step may be under way; what it leaves is found by the next first look.
        self.tasks.shutdown().await;
        Ok(())
    }

    fn look_soon(&mut self, wait: Duration) {
        self.look_at = self.look_at.min(self.shared.clock.mono() + wait);
    }

    async fn look_at_everything(&mut self) {
        self.look_at = self.shared.clock.mono() + RESYNC;
        let seen = match self.shared.runtime.list().await {
            Ok(seen) => seen,
            Err(error) => {
                if !self.lost.send_replace(true) {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "the container runtime does not answer");
                }
                return self.look_soon(RETRY);
            }
        };
        self.lost.send_replace(false);
        self.listed = true;
        let desired = self.shared.desk.desired_pods().await;
        // What is not known may be wanted: everything runs on.
        if desired.is_complete() {
            self.take_down(&desired.list, &seen).await;
        }
        if !desired.read_whole {
            self.look_soon(RETRY);
        }
        for pod in desired.list {
            self.place(pod.key.clone(), pod.uid, Some(pod));
        }
        for child in self.children.values() {
            child.poke.notify_one();
        }
    }

    /// Ends what is here of pods that are not among these, which are all: before others are brought up, so that what is
    /// left of a namesake is found first.
    async fn take_down(&mut self, desired: &[Arc<Desired>], seen: &[Seen]) {
        let wanted: BTreeSet<Uid> = desired.iter().map(|pod| pod.uid).collect();
        self.gone.retain(|uid| wanted.contains(uid));
        for seen in seen {
            if !wanted.contains(&seen.labels.pod) {
                let key = Key::new("Pod", &*seen.labels.namespace, &*seen.labels.pod_name);
                self.place(key, seen.labels.pod, None);
            }
        }
        for uid in leftovers(&self.shared.config.folders).await {
            if !wanted.contains(&uid) && !self.children.contains_key(&uid) {
                self.place(Key::new("Pod", "", uid.to_string()), uid, None);
            }
        }
        for (uid, child) in &self.children {
            if !wanted.contains(uid) {
                child.wanted.send_replace(None);
            }
        }
    }

    /// Tells a pod's task what is wanted, and starts it if there is none.
    fn place(&mut self, key: Key, uid: Uid, wanted: Option<Arc<Desired>>) {
        if let Some(child) = self.children.get(&uid) {
            child.wanted.send_if_modified(|known| {
                let changed = *known != wanted;
                if changed {
                    *known = wanted;
                }
                changed
            });
            return;
        }
        if wanted.as_ref().is_some_and(|pod| !is_deleting(pod)) {
            // A cloud that was put back wants it again.
            self.gone.remove(&uid);
        }
        let namesake = self.children.values().any(|child| child.key == key);
        if wanted.is_some() && (namesake || !self.listed || self.gone.contains(&uid)) {
            // After a namesake it is placed when that one's task ends.
            return;
        }
        let poke = Arc::new(Notify::new());
        let (sender, receiver) = watch::channel(wanted);
        let inbox = Inbox { wanted: receiver, poke: Arc::clone(&poke) };
        let span = tracing::info_span!("pod", %key, %uid);
        let run = PodTask::run(Arc::clone(&self.shared), key.clone(), uid, inbox).instrument(span);
        let id = self.tasks.spawn(run).id();
        self.ids.insert(id, uid);
        self.children.insert(uid, Child { key, wanted: sender, poke });
    }

    async fn take_wakes(&mut self) {
        let waiting = {
            let mut waiting = self.wakes.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *waiting)
        };
        if waiting.all || !self.listed {
            return self.look_soon(Duration::ZERO);
        }
        for key in waiting.keys {
            match key.kind.as_str() {
                "Pod" => self.reconcile(key).await,
                "Node" => self.poke(|_| true),
                _ => self.poke(|child| child.key.namespace == key.namespace),
            }
        }
    }

    fn poke(&self, which: impl Fn(&Child) -> bool) {
        for child in self.children.values().filter(|child| which(child)) {
            child.poke.notify_one();
        }
    }

    /// Brings the tasks of one pod's name in line with what is desired.
    async fn reconcile(&mut self, key: Key) {
        let Ok(desired) = self.shared.desk.desired(&key).await else {
            return self.look_soon(RETRY);
        };
        let uid = desired.as_ref().map(|desired| desired.uid);
        for (known, child) in &self.children {
            if child.key == key && Some(*known) != uid {
                child.wanted.send_if_modified(|wanted| wanted.take().is_some());
            }
        }
        if let Some(desired) = desired {
            self.place(key, desired.uid, Some(desired));
        }
    }

    fn take_event(&mut self, event: Option<Event>, events: &mut mpsc::Receiver<Event>) {
        match event {
            Some(Event::Pod(uid)) => match self.children.get(&uid) {
                Some(child) => child.poke.notify_one(),
                // Not one of ours that we know of: find out.
                None => self.look_soon(RETRY),
            },
            Some(Event::Lost) => {
                self.lost.send_replace(true);
            }
            Some(Event::Back) => {
                self.lost.send_replace(false);
                self.look_soon(Duration::ZERO);
            }
            None => {
                *events = self.shared.runtime.subscribe();
                self.look_soon(RETRY);
            }
        }
    }

    async fn take_end(&mut self, ended: Result<(Id, bool), JoinError>) {
        let id = match &ended {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        let Some(uid) = self.ids.remove(&id) else { return };
        let Some(child) = self.children.remove(&uid) else {
            return;
        };
        match ended {
            Ok((_, said_gone)) => {
                let wanted = child.wanted.borrow().clone();
                match wanted {
                    Some(_) if said_gone => drop(self.gone.insert(uid)),
                    // What was left of it was taken away, and meanwhile it became wanted: it begins anew.
                    Some(pod) => self.place(pod.key.clone(), uid, Some(pod)),
                    None => {}
                }
                // The name is free: whoever waits for it comes now.
                self.reconcile(child.key).await;
            }
            Err(error) => {
                tracing::error!(pod = %child.key, %error, "a pod's task died");
                self.look_soon(RETRY);
            }
        }
    }
}

fn is_deleting(pod: &Desired) -> bool {
    pod.value.at(&["metadata", "deletionTimestamp"]).is_some()
}

/// The pods that have a folder.
async fn leftovers(folders: &Folders) -> Vec<Uid> {
    let pods = folders.pods.clone();
    let read = tokio::task::spawn_blocking(move || {
        let entries = std::fs::read_dir(pods).into_iter().flatten().flatten();
        let uids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        uids.collect()
    });
    read.await.unwrap_or_default()
}
