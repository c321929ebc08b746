//! Shims as the edge core sees them: one watcher for each pod that should be running, which starts a shim where there is
//! none, and hands on what it tells.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use proto::object::Uid;
use tokio::sync::{Notify, mpsc};
use tokio::time::{sleep, timeout};

use super::client::{Client, ClientError};
use super::folders::Folders;
use super::launch::{Launcher, SHIM};
use super::record::{self, Moment};
use super::wire::{Answer, LOCK, Request};
use super::{LOOK, QUICK, RELEASE, TRIES, client};
use crate::runtime::tasks::Tasks;
use crate::runtime::{Event, RuntimeError, explain};

/// How many events wait for whoever subscribed; pods beyond that are merged and told later.
const EVENTS_MAX: usize = 64;

/// Between two attempts to start a shim that does not start.
const RETRY: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);

pub(super) struct Watchers {
    folders: Folders,
    launcher: Launcher,
    /// One shim is started at a time for each pod.
    turns: Mutex<BTreeMap<Uid, Arc<tokio::sync::Mutex<()>>>>,
    watched: Mutex<BTreeSet<Uid>>,
    subscribers: Mutex<Vec<Arc<Subscriber>>>,
    tasks: Tasks,
}

/// Pods waiting for room in a channel: merged, and never more than there are.
#[derive(Debug, Default)]
struct Subscriber {
    waiting: Mutex<BTreeSet<Uid>>,
    more: Notify,
}

impl Watchers {
    pub(super) fn new(folders: Folders, launcher: Launcher) -> Self {
        Self {
            folders,
            launcher,
            turns: Mutex::default(),
            watched: Mutex::default(),
            subscribers: Mutex::default(),
            tasks: Tasks::default(),
        }
    }

    pub(super) fn subscribe(&self) -> mpsc::Receiver<Event> {
        let (sender, receiver) = mpsc::channel(EVENTS_MAX);
        let subscriber = Arc::new(Subscriber::default());
        locked(&self.subscribers).push(Arc::clone(&subscriber));
        self.tasks.spawn(tell(subscriber, sender));
        receiver
    }

    /// Sees to it that a pod's shim is there and heard. At once, and again only when it is not.
    pub(super) fn watch(self: &Arc<Self>, pod: Uid) {
        if locked(&self.watched).insert(pod) {
            let this = Arc::downgrade(self);
            self.tasks.spawn(async move {
                let mut wait = RETRY;
                while let Some(watchers) = this.upgrade() {
                    if !watchers.runs(pod) {
                        // Before the look of whoever is told now.
                        locked(&watchers.watched).remove(&pod);
                        watchers.tell(pod);
                        return;
                    }
                    match watchers.connect(pod).await {
                        Ok(client) => {
                            drop(watchers);
                            wait = RETRY;
                            follow(&client, pod, &this).await;
                        }
                        Err(error) => {
                            tracing::warn!(%pod, "no shim: {}; trying again", explain(&error));
                            drop(watchers);
                            sleep(wait).await;
                            wait = (wait * 2).min(RETRY_MAX);
                        }
                    }
                }
            });
        }
    }

    /// Whether something of a pod should be running by its records.
    fn runs(&self, pod: Uid) -> bool {
        let now = Moment::now();
        self.folders.containers(pod).iter().any(|id| {
            let folder = self.folders.container(pod, id);
            let ended =
                folder.join(record::EXIT).exists() || self.folders.run(pod).join(id).join(record::EXIT).exists();
            let started = record::read::<Moment>(&folder.join(record::STARTED));
            !ended && started.is_ok_and(|started| started.is_some_and(|at| at.boot == now.boot))
        })
    }

    /// A connection that is told of every change.
    async fn connect(&self, pod: Uid) -> Result<Client, RuntimeError> {
        self.with_shim(pod, SHIM, || async {
            let client = Client::connect(&self.folders.run(pod))?;
            client.ask(&Request::Watch)?;
            timeout(QUICK, client.answer())
                .await
                .map_err(|_| ClientError::Late(QUICK))??;
            Ok(client)
        })
        .await
    }

    /// Asks a pod's shim, which is started if there is none.
    pub(super) async fn ask(
        &self,
        pod: Uid,
        request: &Request,
        limit: Duration,
        action: &'static str,
    ) -> Result<Answer, RuntimeError> {
        let folder = self.folders.run(pod);
        self.with_shim(pod, action, || client::ask(&folder, request, limit))
            .await
    }

    /// Does something with a pod's shim; one that is gone, or ends just then, is replaced.
    async fn with_shim<T, F: Future<Output = Result<T, ClientError>>>(
        &self,
        pod: Uid,
        action: &'static str,
        work: impl Fn() -> F,
    ) -> Result<T, RuntimeError> {
        for _ in 0..TRIES {
            match work().await {
                Err(ClientError::Gone) => {}
                Err(ClientError::Late(limit)) => return Err(RuntimeError::Timeout { action, limit }),
                Err(error) => return Err(RuntimeError::Failed { action, reason: explain(&error) }),
                Ok(done) => return Ok(done),
            }
            let turn = Arc::clone(locked(&self.turns).entry(pod).or_default());
            let _turn = turn.lock().await;
            // Whoever had the turn before may have started it.
            if Client::connect(&self.folders.run(pod)).is_err() {
                self.launcher.launch(pod, &self.folders).await?;
            }
        }
        let reason = "its shim ends as soon as it is started".to_owned();
        Err(RuntimeError::Failed { action, reason })
    }

    /// Waits for the end of a pod's shim, which holds nothing.
    pub(super) async fn end(&self, pod: Uid) -> Result<(), RuntimeError> {
        let folder = self.folders.run(pod);
        let turn = Arc::clone(locked(&self.turns).entry(pod).or_default());
        let _turn = turn.lock().await;
        let gone = async {
            loop {
                // One that is there ends; one that is not has let go of its lock.
                let _ = client::ask(&folder, &Request::End, QUICK).await;
                match File::options().write(true).open(folder.join(LOCK)) {
                    Ok(lock) if lock.try_lock().is_err() => sleep(LOOK).await,
                    Ok(_) | Err(_) => return,
                }
            }
        };
        timeout(QUICK, gone)
            .await
            .map_err(|_| RuntimeError::Timeout { action: RELEASE, limit: QUICK })?;
        locked(&self.turns).remove(&pod);
        Ok(())
    }

    fn tell(&self, pod: Uid) {
        locked(&self.subscribers).retain(|subscriber| {
            locked(&subscriber.waiting).insert(pod);
            subscriber.more.notify_one();
            // The task that hands on holds the other one.
            Arc::strong_count(subscriber) > 1
        });
    }
}

/// Hands on what a shim tells until it is gone.
async fn follow(client: &Client, pod: Uid, watchers: &std::sync::Weak<Watchers>) {
    loop {
        let Some(known) = watchers.upgrade() else { return };
        known.tell(pod);
        drop(known);
        if client.answer().await.is_err() {
            return;
        }
    }
}

/// Runs until nobody listens any more.
async fn tell(subscriber: Arc<Subscriber>, events: mpsc::Sender<Event>) {
    if events.send(Event::Back).await.is_err() {
        return;
    }
    loop {
        let next = locked(&subscriber.waiting).pop_first();
        match next {
            Some(pod) => {
                if events.send(Event::Pod(pod)).await.is_err() {
                    return;
                }
            }
            None => tokio::select! {
                () = events.closed() => return,
                () = subscriber.more.notified() => {}
            },
        }
    }
}

fn locked<T>(lock: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}
