//! One pod's task: look, plan, keep, report, act; again and again until the pod is gone.

mod act;
mod look;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proto::digest::EntryHash;
use proto::object::{Key, Uid};
use proto::time::Mono;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;

use super::check::{Found, Target, check};
use super::desk::{Clock, Desired, Desk, PodEvent, Severity};
use super::events::Told;
use super::memory::Memory;
use super::plan::{Failure, Step, Work, plan};
use super::probe::{ProbeKind, Prober};
use super::runner::Config;
use super::spec::Pod;
use super::supported::{Features, Refusal, check_supported};
use crate::runtime::{Image, Network, Runtime, RuntimeError};
use crate::seccomp;

/// The first wait after a step failed; doubles up to [`RETRY_MAX`].
pub const RETRY_FIRST: Duration = Duration::from_secs(1);
pub const RETRY_MAX: Duration = Duration::from_secs(60);
/// The same for images.
pub const PULL_RETRY_FIRST: Duration = Duration::from_secs(10);
pub const PULL_RETRY_MAX: Duration = Duration::from_secs(300);
/// While the runtime does not answer, it is asked again after this even if nobody says that it is back.
const LOST_RETRY: Duration = Duration::from_secs(5);
/// So many plans in a row may have steps; then the pod's task takes a rest.
const ROUNDS_MAX: u32 = 64;
const REST: Duration = Duration::from_secs(1);

/// What all pods' tasks share.
#[derive(Debug)]
pub(super) struct Shared<R, D, C> {
    pub runtime: Arc<R>,
    pub desk: Arc<D>,
    pub clock: Arc<C>,
    pub config: Config,
    pub pulls: Arc<Semaphore>,
    /// How often the link came back.
    pub links: Arc<AtomicU64>,
}

/// What a pod's task is woken with.
#[derive(Debug, Clone)]
pub(super) struct Inbox {
    /// The pod as it should be; `None` once it should not be.
    pub wanted: watch::Receiver<Option<Arc<Desired>>>,
    /// The runtime or something the pod refers to changed.
    pub poke: Arc<Notify>,
}

/// The pod as wanted, parsed.
#[derive(Debug)]
struct Wanted {
    desired: Arc<Desired>,
    pod: Pod,
    refusals: Vec<Refusal>,
}

/// Work that runs beside the steps.
#[derive(Debug)]
enum Done {
    Pulled {
        image: String,
        container: String,
        result: Result<Image, RuntimeError>,
    },
    Checked {
        container: String,
        attempt: u32,
        kind: ProbeKind,
        result: Found,
    },
}

/// The task's state. Everything but the memory can be lost.
pub(super) struct PodTask<R, D, C> {
    shared: Arc<Shared<R, D, C>>,
    key: Key,
    uid: Uid,
    inbox: Inbox,
    wanted: Option<Wanted>,
    memory: Memory,
    /// The hash of the status that was reported last.
    reported: Option<EntryHash>,
    network: Option<Network>,
    /// The hash of the volumes as they were written last.
    written: Option<u64>,
    fetched: BTreeSet<String>,
    pulling: BTreeSet<String>,
    failures: BTreeMap<Work, Failure>,
    /// Why containers cannot be started, by the runtime's names of them; until they are taken away.
    unstartable: BTreeMap<String, String>,
    /// Apart from the map, whose node has room for eleven.
    probers: BTreeMap<String, Box<Prober>>,
    told: Told,
    /// It was not wanted once. Then it is taken away whatever happens meanwhile: should it be wanted again, another task
    /// begins with nothing of this one.
    leaving: bool,
    /// As many links were seen coming back.
    links: u64,
    cleaned: bool,
    first: bool,
    jobs: JoinSet<Done>,
}

impl<R: Runtime, D: Desk, C: Clock> PodTask<R, D, C> {
    /// Runs until nothing of the pod is left; says whether the cloud was told so.
    pub(super) async fn run(shared: Arc<Shared<R, D, C>>, key: Key, uid: Uid, inbox: Inbox) -> bool {
        let form = loop {
            match shared.desk.memory(uid).await {
                Ok(form) => break form,
                Err(unreadable) => tracing::error!(pod = %key, "{unreadable}: the pod is left as it is"),
            }
            let at = shared.clock.mono() + LOST_RETRY;
            shared.clock.sleep_until(Some(at)).await;
        };
        let memory = form
            .and_then(|form| Memory::decode(&form, shared.clock.mono(), shared.clock.boot()))
            .unwrap_or_else(Memory::new);
        let mut task = Self {
            shared,
            key,
            uid,
            inbox,
            wanted: None,
            memory,
            reported: None,
            network: None,
            written: None,
            fetched: BTreeSet::new(),
            pulling: BTreeSet::new(),
            failures: BTreeMap::new(),
            unstartable: BTreeMap::new(),
            probers: BTreeMap::new(),
            told: Told::default(),
            leaving: false,
            links: 0,
            cleaned: false,
            first: true,
            jobs: JoinSet::new(),
        };
        let mut rounds = 0;
        loop {
            let Some((steps, wake_at)) = task.decide().await else {
                continue;
            };
            if steps.is_empty() {
                rounds = 0;
                task.wait(wake_at).await;
                continue;
            }
            for step in steps {
                if step == Step::Gone {
                    return task.leave().await;
                }
                task.act(step).await;
            }
            rounds += 1;
            if rounds >= ROUNDS_MAX {
                tracing::warn!(pod = %task.key, "a pod does not come to rest");
                rounds = 0;
                tokio::time::sleep(REST).await;
            }
        }
    }

    fn now(&self) -> Mono {
        self.shared.clock.mono()
    }

    /// Looks, plans, keeps and reports. `None`: look again, something changed meanwhile.
    async fn decide(&mut self) -> Option<(Vec<Step>, Option<Mono>)> {
        self.read_wanted();
        let links = self.shared.links.load(Ordering::Relaxed);
        if std::mem::replace(&mut self.links, links) != links {
            self.failures.retain(|work, _| !matches!(work, Work::Pull(_)));
        }
        let Some(seen) = self.look().await else {
            // Nothing can be seen, so nothing is said or done.
            let at = self.now() + LOST_RETRY;
            self.wait(Some(at)).await;
            return None;
        };
        let now = self.now();
        let plan = {
            let observed = seen.observed(self);
            let pod = self.wanted.as_ref().map(|wanted| &wanted.pod);
            plan(pod, &observed, &self.memory, now)
        };
        self.first = false;
        let memory = (plan.memory != self.memory).then(|| plan.memory.encode(now, self.shared.clock.boot()));
        let hashed = plan
            .status
            .map(|status| (EntryHash::of_report(self.uid, &status), status));
        let (reported, status) = hashed.filter(|(hash, _)| self.reported != Some(*hash)).unzip();
        let desk = &self.shared.desk;
        match (memory, status) {
            (Some(memory), Some(status)) => desk.keep(self.uid, memory, status).await,
            (Some(memory), None) => desk.remember(self.uid, Some(memory)).await,
            (None, Some(status)) => desk.report(self.uid, status).await,
            (None, None) => {}
        }
        self.memory = plan.memory;
        self.reported = reported.or(self.reported);
        Some((plan.steps, plan.wake_at))
    }

    /// Parses the pod when it changed.
    fn read_wanted(&mut self) {
        let desired = self.inbox.wanted.borrow_and_update().clone();
        match desired {
            None => {
                self.leaving = true;
                self.wanted = None;
            }
            Some(_) if self.leaving => {}
            Some(desired) => {
                let same = self
                    .wanted
                    .as_ref()
                    .is_some_and(|wanted| Arc::ptr_eq(&wanted.desired, &desired) || wanted.desired == desired);
                if same {
                    return;
                }
                let features = Features { seccomp: seccomp::is_supported() };
                let refusals = check_supported(&desired.value, features);
                let pod = Pod::parse(&desired);
                // What failed may succeed with the new spec.
                self.failures.clear();
                self.wanted = Some(Wanted { desired, pod, refusals });
            }
        }
    }

    /// Waits until something may have changed, running probes meanwhile.
    async fn wait(&mut self, wake_at: Option<Mono>) {
        loop {
            self.start_checks();
            let memory = &self.memory;
            let probed = self
                .probers
                .iter_mut()
                .filter(|(name, prober)| is_probed(memory, name, prober));
            let probe_at = probed.filter_map(|(_, prober)| prober.wake_at()).min();
            let at = [wake_at, probe_at].into_iter().flatten().min();
            tokio::select! {
                () = self.shared.clock.sleep_until(at) => {
                    if wake_at.is_some_and(|wake_at| wake_at <= self.now()) {
                        return;
                    }
                }
                () = self.inbox.poke.notified() => return,
                changed = self.inbox.wanted.changed() => {
                    if changed.is_err() {
                        // The runner is gone, and this task with it.
                        std::future::pending::<()>().await;
                    }
                    return;
                }
                Some(done) = self.jobs.join_next() => {
                    if self.finish(done).await {
                        return;
                    }
                }
            }
        }
    }

    /// Starts every check that is due.
    fn start_checks(&mut self) {
        let now = self.now();
        let host_network = self.wanted.as_ref().is_some_and(|wanted| wanted.pod.host_network);
        let address = if host_network {
            Some("127.0.0.1".to_owned())
        } else {
            self.memory.addresses.first().cloned()
        };
        for (name, prober) in &mut self.probers {
            let attempt = prober.health().attempt;
            if !is_probed(&self.memory, name, prober) {
                continue;
            }
            for (kind, probe) in prober.due(now) {
                let runtime = Arc::clone(&self.shared.runtime);
                let target = Target {
                    container_id: prober.container_id().to_owned(),
                    address: address.clone(),
                };
                let container = name.clone();
                self.jobs.spawn(async move {
                    let result = check(runtime, target, probe).await;
                    Done::Checked { container, attempt, kind, result }
                });
            }
        }
    }

    /// Takes in the end of a job; true when there is something to plan.
    async fn finish(&mut self, done: Result<Done, tokio::task::JoinError>) -> bool {
        match done {
            Ok(Done::Checked { container, attempt, kind, result }) => {
                let now = self.now();
                let Some(prober) = self.probers.get_mut(&container) else {
                    return false;
                };
                if prober.health().attempt != attempt {
                    return false;
                }
                let before = prober.health().clone();
                prober.result(now, kind, result.is_well());
                let changed = *prober.health() != before;
                let said = match result {
                    Found::Well => None,
                    Found::Ill(found) => Some(format!("failed: {found}")),
                    Found::Unknown(why) => Some(format!("errored and resulted in unknown state: {why}")),
                };
                if let Some(said) = said {
                    let message = format!("{} probe {said}", kind.as_str());
                    self.event(Some(&container), Severity::Warning, "Unhealthy", message)
                        .await;
                }
                changed
            }
            Ok(Done::Pulled { image, container, result }) => {
                self.pulled(image, container, result).await;
                true
            }
            Err(error) => {
                tracing::error!(pod = %self.key, %error, "a pod's job died");
                // Whatever it was, it is begun again.
                self.pulling.clear();
                self.probers.clear();
                true
            }
        }
    }

    async fn event(&mut self, container: Option<&str>, severity: Severity, reason: &'static str, message: String) {
        let field_path = container
            .and_then(|name| self.wanted.as_ref()?.pod.container(name))
            .map(|spec| spec.field_path())
            .unwrap_or_default();
        let identity = (field_path.clone(), reason, message.clone());
        let Some(count) = self.told.count(identity, self.now()) else {
            return;
        };
        let event = PodEvent {
            pod: self.key.clone(),
            uid: self.uid,
            field_path,
            severity,
            reason,
            message,
            count,
            at: self.shared.clock.wall(),
        };
        self.shared.desk.event(event).await;
    }

    /// Notes a failure and when to try again.
    fn failed(&mut self, work: Work, message: String) -> u32 {
        let (first, max) = match work {
            Work::Pull(_) => (PULL_RETRY_FIRST, PULL_RETRY_MAX),
            _ => (RETRY_FIRST, RETRY_MAX),
        };
        let count = self
            .failures
            .get(&work)
            .map_or(0, |failure| failure.count)
            .saturating_add(1);
        let factor = 1_u32.checked_shl(count - 1).unwrap_or(u32::MAX);
        let wait = first.saturating_mul(factor).min(max);
        let retry_at = self.now() + wait;
        tracing::debug!(?work, count, "a step failed: {message}");
        self.failures.insert(work, Failure { count, retry_at, message });
        count
    }
}

/// Nothing is asked of a container that is being stopped, or that is not the current one.
fn is_probed(memory: &Memory, name: &str, prober: &Prober) -> bool {
    let current = memory.containers.get(name).and_then(|one| one.current.as_ref());
    current.is_some_and(|current| current.number == prober.health().attempt && current.stop.is_none())
}
