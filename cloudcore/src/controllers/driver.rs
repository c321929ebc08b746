//! The rim of the controllers: the store's changes in, plans out, and the commits between.
//!
//! One task hands every change to every controller that watches its kind, in order; one task per controller runs its
//! queue. A plan is made under the controller's lock and committed outside it. An overtaken plan is planned again
//! quietly; all else that fails is said once and tried again with a growing wait.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use daemon::reconcile::Handle;
use daemon::supervisor::Supervisor;
use proto::object::{Key, Kind};
use proto::value::Value;
use reconcile::{Backoff, Lane, Limits, Outcome, Queue};
use tokio_util::sync::CancellationToken;

use super::node_life::NodeLife;
use super::plan::{self, Note, Plan, Resolved};
use super::sessions::Sessions;
use super::view::{Change, Now, Object, View, WholeList};
use super::{Controller, daemonset, deployment, endpointslice, event_ttl, garbage, namespace, replicaset};
use crate::api::defaults;
use crate::api::kinds::{self, KINDS};
use crate::scheduler::Scheduler;
use crate::store::{self, At, CommitError, Op, Scope, Store, Stored, When};

/// How many keys of one controller run at once: enough to share an fsync, few enough to share the processor.
const BUDGET: usize = 64;

/// How often every key is looked at again, in the slow lane.
const RESYNC: Duration = Duration::from_secs(600);

/// What the controllers need to know.
#[derive(Debug, Clone)]
pub struct Config {
    /// The certificate authority as PEM: every namespace gets it as a config map.
    pub root_ca: String,
    /// How long an event is kept.
    pub event_ttl: Duration,
}

/// Where now comes from.
pub type Clock = fn() -> Now;

/// The clocks of this machine.
pub fn clock() -> Now {
    Now { mono: daemon::clock::mono(), wall: daemon::clock::wall() }
}

/// Starts all controllers and the scheduler as essential tasks.
pub fn run(store: &Store, sessions: &Sessions, clock: Clock, supervisor: &mut Supervisor, config: Config) {
    let life = NodeLife::new(sessions.clone(), clock().mono);
    let life = Worker::new(store, clock, Box::new(life));
    sessions.wake(life.handle.clone());
    let spaces = Worker::new(store, clock, Box::new(namespace::Namespaces::new(config.root_ca)));
    for key in namespace::at_start() {
        spaces.handle.add(key, Lane::Fast, clock().mono);
    }
    let rest: [Box<dyn Controller>; 7] = [
        Box::new(deployment::Deployments::default()),
        Box::new(replicaset::ReplicaSets::default()),
        Box::new(daemonset::DaemonSets::default()),
        Box::new(garbage::Garbage::default()),
        Box::new(event_ttl::EventTtl::new(config.event_ttl)),
        Box::new(endpointslice::EndpointSlices),
        Box::new(Scheduler::default()),
    ];
    let rest = rest.into_iter().map(|controller| Worker::new(store, clock, controller));
    let workers: Vec<_> = [life, spaces].into_iter().chain(rest).collect();
    // Nothing is planned before everything that is in the store was observed: what is reserved on a node counts then.
    let observed = CancellationToken::new();
    for worker in &workers {
        let (worker, observed) = (worker.clone(), observed.clone());
        supervisor.spawn(worker.name, move |stop| async move {
            tokio::select! {
                () = observed.cancelled() => {}
                () = stop.cancelled() => return Ok(()),
            }
            let handle = worker.handle.clone();
            let time = worker.clock;
            let run = move |key| {
                let worker = worker.clone();
                async move { worker.one(key).await }
            };
            daemon::reconcile::run(handle, move || time().mono, stop, run).await;
            Ok(())
        });
    }
    let store = store.clone();
    supervisor.spawn("controller-changes", move |stop| async move {
        changes(&store, &workers, clock, &observed, stop).await
    });
}

/// One controller with its queue.
#[derive(Clone)]
struct Worker {
    name: &'static str,
    plans: &'static [&'static str],
    watches: &'static [&'static str],
    controller: Arc<Mutex<Box<dyn Controller>>>,
    handle: Handle<Key>,
    store: Store,
    clock: Clock,
}

impl Worker {
    fn new(store: &Store, clock: Clock, controller: Box<dyn Controller>) -> Self {
        let limits = Limits { budget: BUDGET, backoff: Backoff::default() };
        let seed = u64::from_be_bytes(daemon::random::bytes());
        Self {
            name: controller.name(),
            plans: controller.plans(),
            watches: controller.watches(),
            controller: Arc::new(Mutex::new(controller)),
            handle: Handle::new(Queue::new(limits, seed)),
            store: store.clone(),
            clock,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Box<dyn Controller>> {
        // A controller's memory can be lost at any moment and only costs time, so one that panicked half way will do.
        self.controller.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, keys: Vec<(Key, Lane)>, now: Now) {
        for (key, lane) in keys {
            self.handle.add(key, lane, now.mono);
        }
    }

    /// One run of one key.
    async fn one(&self, key: Key) -> Outcome {
        let now = (self.clock)();
        let view = StoreView { store: &self.store };
        let Plan { writes, notes, outcome } = self.lock().plan(&key, &view, now);
        if !writes.is_empty() {
            let ops: Option<Vec<_>> = writes
                .iter()
                .map(|write| operation(plan::resolve(write, &view, now, &mut daemon::random::bytes)))
                .collect();
            let result = match ops {
                Some(ops) => {
                    self.commit(ops.into_iter().flatten().collect(), store::Lane::Control)
                        .await
                }
                None => Err(Refused::Overtaken),
            };
            self.lock().ended(&key, result.is_ok());
            match result {
                Ok(()) => {}
                Err(Refused::Overtaken) => return Outcome::Retry,
                Err(Refused::Failed(error)) => {
                    let error = anyhow::Error::new(error);
                    tracing::warn!(controller = self.name, %key, error = %format_args!("{error:#}"), "a plan was not committed");
                    return Outcome::Retry;
                }
            }
        }
        for note in &notes {
            self.tell(note, now).await;
        }
        outcome
    }

    async fn commit(&self, ops: Vec<Op>, lane: store::Lane) -> Result<(), Refused> {
        if ops.is_empty() {
            return Ok(());
        }
        match self.store.commit(lane, ops).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_conflict() => Err(Refused::Overtaken),
            Err(error) => Err(Refused::Failed(error)),
        }
    }

    /// Tells an event. One that cannot be told is dropped: events are for people, and the log has the reason.
    async fn tell(&self, note: &Note, now: Now) {
        let view = StoreView { store: &self.store };
        let Some(Some(op)) = operation(plan::tell(note, &view, now, &mut daemon::random::bytes)) else {
            return;
        };
        if let Err(Refused::Failed(error)) = self.commit(vec![op], store::Lane::Status).await {
            let error = anyhow::Error::new(error);
            tracing::warn!(about = %note.about, reason = note.reason, error = %format_args!("{error:#}"), "an event was dropped");
        }
    }
}

/// Why a plan's writes were not done.
enum Refused {
    Overtaken,
    Failed(CommitError),
}

/// The store's operation for a write, nothing where it is so already, or none at all where the plan was overtaken.
fn operation(resolved: Resolved) -> Option<Option<Op>> {
    let when = |uid, revision| When { uid: Some(uid), revision: Some(revision) };
    Some(Some(match resolved {
        Resolved::Create { key, mut value } => {
            complete(&mut value);
            Op::Create { key, value }
        }
        Resolved::Replace { key, value, uid, revision } => Op::Replace { key, value, when: when(uid, revision) },
        Resolved::Delete { key, uid, revision } => Op::Delete { key, when: when(uid, revision) },
        Resolved::Nothing => return Some(None),
        Resolved::Overtaken => return None,
    }))
}

/// What the API would add to a new object.
fn complete(value: &mut Value) {
    let version = value.text_at(&["apiVersion"]).unwrap_or_default();
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    if let Some(kind) = kinds::kind(group, version, value.text_at(&["kind"]).unwrap_or_default()) {
        defaults::apply_defaults(kind, value);
        defaults::admit(kind, value);
    }
}

/// Hands every change of the store to the controllers, and every key to their slow lanes from time to time.
async fn changes(
    store: &Store,
    workers: &[Worker],
    clock: Clock,
    observed: &CancellationToken,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let kinds: BTreeSet<&str> = workers.iter().flat_map(|worker| worker.watches).copied().collect();
    let scopes = || kinds.iter().map(|kind| Scope::kind(*kind)).collect();
    let mut resync = tokio::time::interval(RESYNC);
    resync.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        // From before the lists, so that nothing falls between; what is seen twice changes nothing.
        let mut watch = store.watch_many(scopes(), store.revision())?;
        observe_all(store, workers, &kinds, clock());
        observed.cancel();
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                _ = resync.tick() => {
                    for worker in workers {
                        revisit(store, worker, clock());
                    }
                }
                change = watch.next() => match change {
                    Ok(change) => deliver(store, workers, &converted(&change), clock()),
                    Err(expired) => {
                        tracing::warn!(error = %expired, "the controllers fell behind and observe everything anew");
                        break;
                    }
                },
            }
        }
    }
}

/// Shows the controllers everything there is, and makes all their keys due.
fn observe_all(store: &Store, workers: &[Worker], kinds: &BTreeSet<&str>, now: Now) {
    let view = StoreView { store };
    for worker in workers {
        worker.lock().forget();
    }
    for kind in kinds {
        for object in view.list(&Kind::from(*kind), None).into_objects() {
            let change = Change { before: None, after: Some(object) };
            for worker in workers.iter().filter(|worker| worker.watches.contains(kind)) {
                worker.lock().observe(&change, now);
            }
        }
    }
    for worker in workers {
        revisit(store, worker, now);
    }
}

/// Makes every key of a controller due in its slow lane.
fn revisit(store: &Store, worker: &Worker, now: Now) {
    for kind in worker.plans {
        for stored in latest(store, &Scope::kind(*kind)).items {
            worker.handle.add(stored.key.clone(), Lane::Slow, now.mono);
        }
    }
}

fn deliver(store: &Store, workers: &[Worker], change: &Change, now: Now) {
    let Some(kind) = change.latest().map(|object| object.key.kind.as_str()) else {
        return;
    };
    let view = StoreView { store };
    for worker in workers.iter().filter(|worker| worker.watches.contains(&kind)) {
        let keys = {
            let mut controller = worker.lock();
            controller.observe(change, now);
            controller.wake(change, &view, now)
        };
        worker.add(keys, now);
    }
}

fn converted(change: &store::Change) -> Change {
    Change {
        before: change.before.as_deref().map(read),
        after: change.after.as_deref().map(read),
    }
}

/// An object as it reads.
fn read(stored: &Stored) -> Object {
    Object {
        key: stored.key.clone(),
        uid: stored.uid,
        revision: stored.revision,
        value: Arc::new(stored.value()),
    }
}

/// The store as plans see it: always the latest, their own writes included.
struct StoreView<'a> {
    store: &'a Store,
}

/// The kinds that the API stores.
static STORED: LazyLock<BTreeSet<Kind>> =
    LazyLock::new(|| KINDS.iter().map(|kind| Kind::new(kind.storage.0, kind.kind)).collect());

impl View for StoreView<'_> {
    fn get(&self, key: &Key) -> Option<Object> {
        self.store.get(key).map(|stored| read(&stored))
    }

    fn list(&self, kind: &Kind, namespace: Option<&str>) -> WholeList {
        self.whole(&Scope {
            kind: kind.clone(),
            namespace: namespace.map(str::to_owned),
            node: None,
        })
    }

    fn pods_on(&self, node: &str) -> WholeList {
        self.whole(&Scope::pods_of(node))
    }

    fn body(&self, key: &Key) -> Option<Object> {
        let stored = self.store.get(key)?;
        Some(Object {
            value: Arc::new(stored.body()),
            key: stored.key.clone(),
            uid: stored.uid,
            revision: stored.revision,
        })
    }

    fn kinds(&self) -> &BTreeSet<Kind> {
        &STORED
    }
}

impl StoreView<'_> {
    fn whole(&self, scope: &Scope) -> WholeList {
        let page = latest(self.store, scope);
        let expected = page.items.len() + page.remaining;
        let objects = page.items.iter().map(|stored| read(stored)).collect();
        WholeList::new(page.revision, objects, expected).expect("one look at what is current is whole")
    }
}

/// What is current in a scope. The store answers this from memory, without waiting: the future is ready at once.
fn latest(store: &Store, scope: &Scope) -> store::Page {
    let list = pin!(store.list(scope, At::Latest, None, None));
    match list.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(page)) => page,
        Poll::Ready(Err(_)) | Poll::Pending => unreachable!("the latest state is in memory and never expires"),
    }
}

#[cfg(test)]
mod tests;
