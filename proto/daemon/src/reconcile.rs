//! The task that runs a [`Queue`]: it hands due keys to a reconciler and the outcomes back to the queue.
//!
//! It decides nothing. Runs are children of this task: a panic in one is a retry of its key, and a stop lets those in
//! flight end, because a commit that was handed to a store is awaited and never cancelled.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use proto::time::Mono;
use reconcile::{Lane, Outcome, Queue};
use tokio::sync::Notify;
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

/// The longest sleep of the driver. A suspended machine stops tokio's timers but not [`Mono`], so a deadline can pass
/// unseen; this bounds by how much.
const SLEEP_MAX: Duration = Duration::from_secs(60);

/// Where keys are added. Cheap to clone; adding never waits and never fails.
#[derive(Debug)]
pub struct Handle<K> {
    shared: Arc<Shared<K>>,
}

#[derive(Debug)]
struct Shared<K> {
    queue: Mutex<Queue<K>>,
    added: Notify,
}

impl<K> Clone for Handle<K> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<K: Ord + Clone> Handle<K> {
    pub fn new(queue: Queue<K>) -> Self {
        Self {
            shared: Arc::new(Shared { queue: Mutex::new(queue), added: Notify::new() }),
        }
    }

    /// Asks for a run of `key` at `at`; see [`Queue::add`].
    pub fn add(&self, key: K, lane: Lane, at: Mono) {
        self.with(|queue| queue.add(key, lane, at));
        self.shared.added.notify_one();
    }

    /// How many keys run and how many wait.
    pub fn load(&self) -> (usize, usize) {
        self.with(|queue| (queue.running(), queue.waiting()))
    }

    fn with<T>(&self, act: impl FnOnce(&mut Queue<K>) -> T) -> T {
        // The queue's methods leave it whole even if one panics in between keys, so a poisoned lock is still good.
        act(&mut self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Runs the queue until `stop`, then waits for the runs in flight.
///
/// `clock` is the daemon's monotonic clock; `reconcile` makes one run of one key.
pub async fn run<K, C, R, Run>(handle: Handle<K>, clock: C, stop: CancellationToken, reconcile: R)
where
    K: Ord + Clone + Debug + Send + 'static,
    C: Fn() -> Mono,
    R: Fn(K) -> Run,
    Run: Future<Output = Outcome> + Send + 'static,
{
    let mut runs = Runs { tasks: JoinSet::new(), keys: BTreeMap::new() };
    while !stop.is_cancelled() {
        while let Some(key) = handle.with(|queue| queue.next(clock())) {
            runs.start(key.clone(), reconcile(key));
        }
        let sleep = handle
            .with(|queue| queue.wake_at())
            .map(|wake| wake.since(clock()).min(SLEEP_MAX));
        tokio::select! {
            () = stop.cancelled() => {}
            () = handle.shared.added.notified() => {}
            Some((key, outcome)) = runs.next() => handle.with(|queue| queue.done(key, outcome, clock())),
            () = tokio::time::sleep(sleep.unwrap_or(SLEEP_MAX)), if sleep.is_some() => {}
        }
    }
    while let Some((key, outcome)) = runs.next().await {
        handle.with(|queue| queue.done(key, outcome, clock()));
    }
}

/// The runs in flight and whose they are.
struct Runs<K> {
    tasks: JoinSet<Outcome>,
    keys: BTreeMap<Id, K>,
}

impl<K: Debug> Runs<K> {
    fn start(&mut self, key: K, run: impl Future<Output = Outcome> + Send + 'static) {
        let id = self.tasks.spawn(run).id();
        self.keys.insert(id, key);
    }

    /// The next run to end; `None` when none is in flight. Safe to drop and call again.
    async fn next(&mut self) -> Option<(K, Outcome)> {
        loop {
            let (id, outcome) = match self.tasks.join_next_with_id().await? {
                Ok((id, outcome)) => (id, outcome),
                Err(error) => {
                    self.explain(&error);
                    (error.id(), Outcome::Retry)
                }
            };
            if let Some(key) = self.keys.remove(&id) {
                return Some((key, outcome));
            }
        }
    }

    fn explain(&self, error: &JoinError) {
        let key = self.keys.get(&error.id());
        tracing::error!(?key, error = %error, "a run panicked; it will be tried again");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use reconcile::{Backoff, Limits};

    use super::*;

    fn handle(budget: usize) -> Handle<u8> {
        let limits = Limits { budget, backoff: Backoff::default() };
        Handle::new(Queue::new(limits, 1))
    }

    /// Tokio's paused clock as the daemon's.
    fn clock() -> impl Fn() -> Mono + Clone {
        let now = || tokio::time::sleep(Duration::ZERO).deadline();
        let start = now();
        move || Mono(u64::try_from((now() - start).as_millis()).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn runs_keys_until_stopped_and_keeps_their_waits() {
        let (handle, clock, stop) = (handle(4), clock(), CancellationToken::new());
        handle.add(1, Lane::Fast, Mono(0));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (log, ends, now) = (Arc::clone(&seen), stop.clone(), clock.clone());
        run(handle, clock, stop, move |key| {
            let (log, ends, now) = (Arc::clone(&log), ends.clone(), now.clone());
            async move {
                let mut log = log.lock().unwrap();
                log.push((key, now().0));
                if log.len() == 3 {
                    ends.cancel();
                }
                Outcome::Again(Duration::from_secs(90))
            }
        })
        .await;
        let seen: Vec<_> = seen.lock().unwrap().iter().map(|(key, at)| (*key, at / 1000)).collect();
        assert_eq!(seen, [(1, 0), (1, 90), (1, 180)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_is_a_retry() {
        let (handle, stop) = (handle(1), CancellationToken::new());
        handle.add(1, Lane::Fast, Mono(0));
        let tries = Arc::new(AtomicUsize::new(0));
        let (count, ends) = (Arc::clone(&tries), stop.clone());
        run(handle, clock(), stop, move |_| {
            let (count, ends) = (Arc::clone(&count), ends.clone());
            async move {
                assert!(count.fetch_add(1, Ordering::SeqCst) > 0, "the first run fails");
                ends.cancel();
                Outcome::Done
            }
        })
        .await;
        assert_eq!(tries.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_waits_for_the_run_in_flight() {
        let (handle, stop) = (handle(1), CancellationToken::new());
        handle.add(1, Lane::Fast, Mono(0));
        handle.add(2, Lane::Fast, Mono(0));
        let ended = Arc::new(AtomicUsize::new(0));
        let (count, ends) = (Arc::clone(&ended), stop.clone());
        run(handle.clone(), clock(), stop, move |_| {
            let (count, ends) = (Arc::clone(&count), ends.clone());
            async move {
                ends.cancel();
                tokio::task::yield_now().await;
                tokio::time::sleep(Duration::from_secs(5)).await;
                count.fetch_add(1, Ordering::SeqCst);
                Outcome::Done
            }
        })
        .await;
        assert_eq!(
            ended.load(Ordering::SeqCst),
            1,
            "the first ended, the second never began"
        );
        assert_eq!(handle.load(), (0, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn an_add_wakes_a_sleeping_driver() {
        let (handle, stop) = (handle(1), CancellationToken::new());
        let (adder, ends) = (handle.clone(), stop.clone());
        let driver = run(handle, clock(), stop, move |_| {
            let ends = ends.clone();
            async move {
                ends.cancel();
                Outcome::Done
            }
        });
        let add = async move {
            tokio::time::sleep(Duration::from_secs(3)).await;
            adder.add(9, Lane::Slow, Mono(0));
        };
        tokio::time::timeout(Duration::from_secs(10), async { tokio::join!(driver, add) })
            .await
            .unwrap();
    }
}
