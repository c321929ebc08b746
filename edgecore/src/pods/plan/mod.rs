//! What to do about one pod, decided from what should be, what is, and what must be remembered.
//!
//! [`plan`] is pure. The driver carries its steps out in their order, keeps the memory *before* the first step, and
//! plans again until no step is left. Hence a crash anywhere loses nothing:
//!
//! - an attempt's number is remembered before its container is made, so numbers only go up;
//! - how an attempt ended is remembered before its container is taken away;
//! - a container is started only while no other one of its name lives, and only the newest attempt is;
//! - what already runs as wanted is left alone, whoever started it.

mod absorb;
mod stop;

use std::collections::BTreeMap;
use std::time::Duration;

use proto::time::{Mono, Wall};
use proto::value::Value;

use super::desk::Severity;
use super::memory::{Attempt, Ended, Memory, Why};
use super::probe::Health;
use super::spec::{ContainerSpec, Pod, PullPolicy, Role};
use super::status;
use super::supported::Refusal;
use crate::runtime::{Network, Seen, State};

/// The wait after the second end in a row; the first restart is immediate.
pub const BACKOFF_FIRST: Duration = Duration::from_secs(10);
/// Back-off doubles up to this.
pub const BACKOFF_MAX: Duration = Duration::from_secs(300);
/// A container that ran this long has not crashed in a row.
pub const BACKOFF_RESET: Duration = Duration::from_secs(600);
/// A container that survived SIGKILL gets another one after this.
pub const KILL_RETRY: Duration = Duration::from_secs(10);

/// What the driver sees of a pod.
#[derive(Debug)]
pub struct Observed<'a> {
    /// Its containers; `None` while the runtime does not answer.
    pub containers: Option<&'a [Seen]>,
    /// What its sandbox got, once it is prepared in this life of the edge core.
    pub network: Option<&'a Network>,
    /// Whether the volumes and files are as they should be.
    pub volumes: Volumes,
    /// The images of containers that are not running as wanted, by their names in the spec.
    pub images: &'a BTreeMap<String, ImageState>,
    /// Why a container's environment or volumes cannot be had yet, by container.
    pub missing: &'a BTreeMap<String, String>,
    /// Images that cannot be looked for, with the reason and the words for it.
    pub wrong: &'a BTreeMap<String, (&'static str, String)>,
    pub health: &'a BTreeMap<String, Health>,
    /// What failed and when it may be tried again.
    pub failures: &'a BTreeMap<Work, Failure>,
    /// What ended containers left in their termination message files, by container.
    pub messages: &'a BTreeMap<String, String>,
    /// Why containers cannot be started, now or later, by the runtime's names of them.
    pub unstartable: &'a BTreeMap<String, String>,
    pub refusals: &'a [Refusal],
    /// Sandbox, volumes and files of an ended pod are gone.
    pub cleaned: bool,
    /// The runtime, as container ids name it.
    pub runtime: &'static str,
    /// This is the first look in this life of the edge core.
    pub first: bool,
    pub addresses: &'a [String],
    pub wall: Wall,
}

/// The state of a pod's volumes and files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Volumes {
    /// They have to be written, for the first time or because something they show changed.
    Stale,
    Ready,
}

/// The state of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageState {
    /// It is completely there.
    pub present: bool,
    pub pulling: bool,
    /// It was fetched, or found to be unreachable but present, in this life of the edge core.
    pub fetched: bool,
}

/// Something the driver does that can fail and is tried again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    Volumes,
    Prepare,
    Pull(String),
    Create(String),
    Start(String),
    Signal(String),
    Remove(String),
    Release,
}

/// How often something failed in a row, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub count: u32,
    pub retry_at: Mono,
    pub message: String,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Write the volumes and files.
    Volumes,
    Prepare,
    /// Fetch an image, beside everything else.
    Pull {
        container: String,
    },
    Create {
        container: String,
        attempt: u32,
    },
    Start {
        container: String,
        id: String,
    },
    Signal {
        id: String,
        signal: u32,
    },
    Remove {
        id: String,
    },
    /// Give back the sandbox, the volumes and the files; the logs stay.
    Release,
    /// Report the pod gone, forget it and its logs.
    Gone,
    Event {
        container: Option<String>,
        severity: Severity,
        reason: &'static str,
        message: String,
    },
}

/// What to do, what to say and what to keep.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    pub steps: Vec<Step>,
    /// The pod's status; `None` when there is nothing to say.
    pub status: Option<Value>,
    /// When to plan again even if nothing happens.
    pub wake_at: Option<Mono>,
    pub memory: Memory,
}

/// Why a container does not run, as its status says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    pub reason: &'static str,
    pub message: String,
}

/// How an attempt ended that could not be started, as containerd's CRI has it.
const START_ERROR: &str = "StartError";
const CODE_NOT_STARTED: i32 = 128;

/// SIGTERM, or what the image names in its place.
pub(super) const TERM: u32 = 15;
const KILL: u32 = 9;

/// Decides about one pod. `wanted` is `None` once the pod is in no desired set any more.
pub fn plan(wanted: Option<&Pod>, observed: &Observed<'_>, memory: &Memory, now: Mono) -> Plan {
    let Some(seen) = observed.containers else {
        return Plan {
            steps: Vec::new(),
            status: None,
            wake_at: None,
            memory: memory.clone(),
        };
    };
    let mut planner = Planner {
        wanted,
        observed,
        seen,
        now,
        memory: memory.clone(),
        steps: Vec::new(),
        waiting: BTreeMap::new(),
        wake_at: None,
    };
    planner.absorb();
    if let Some(pod) = wanted {
        planner.accept(pod);
        planner.conclude(pod);
    }
    match wanted.filter(|pod| !pod.deleting && planner.memory.ended.is_none()) {
        Some(pod) => planner.run(pod),
        None => planner.stop_pod(),
    }
    let status = wanted.map(|pod| {
        let view = status::View {
            pod,
            seen,
            waiting: &planner.waiting,
            network: observed.network,
            addresses: observed.addresses,
            runtime: observed.runtime,
            wall: observed.wall,
        };
        status::build(&view, &mut planner.memory)
    });
    Plan {
        steps: planner.steps,
        status,
        wake_at: planner.wake_at,
        memory: planner.memory,
    }
}

struct Planner<'a> {
    wanted: Option<&'a Pod>,
    observed: &'a Observed<'a>,
    seen: &'a [Seen],
    now: Mono,
    memory: Memory,
    steps: Vec<Step>,
    waiting: BTreeMap<String, Waiting>,
    wake_at: Option<Mono>,
}

impl<'a> Planner<'a> {
    fn wake(&mut self, at: Mono) {
        self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
    }

    fn event(&mut self, container: Option<&str>, severity: Severity, reason: &'static str, message: String) {
        let container = container.map(str::to_owned);
        self.steps.push(Step::Event { container, severity, reason, message });
    }

    /// Whether `work` may be done now. If not, the planner wakes when it may.
    fn may(&mut self, work: &Work) -> bool {
        match self.observed.failures.get(work).map(|failure| failure.retry_at) {
            Some(retry_at) if retry_at > self.now => {
                self.wake(retry_at);
                false
            }
            _ => true,
        }
    }

    fn failure(&self, work: &Work) -> Option<&'a Failure> {
        self.observed.failures.get(work)
    }

    /// The container of the attempt that counts.
    fn current(&self, name: &str) -> Option<&'a Seen> {
        let number = self.memory.containers.get(name)?.current.as_ref()?.number;
        self.seen
            .iter()
            .find(|seen| seen.labels.container == name && seen.labels.attempt == number)
    }

    /// Notes once what a new pod brings.
    fn accept(&mut self, pod: &Pod) {
        let wall = self.observed.wall;
        self.memory.accepted_ms.get_or_insert(wall.ms);
        self.memory.grace_s = pod.grace.as_secs();
        if let Some(network) = self.observed.network {
            self.memory.addresses.clone_from(&network.addresses);
        }
        if let Some(deadline) = pod.deadline {
            self.memory.deadline.get_or_insert(self.now + deadline);
        }
        for spec in &pod.containers {
            self.memory.container(&spec.name).init = spec.role == Role::Init;
        }
        // A pod that ran before is not refused because the edge core became stricter.
        let fresh = self
            .memory
            .containers
            .values()
            .all(|container| container.next_attempt == 0);
        if fresh && self.memory.ended.is_none() && !self.observed.refusals.is_empty() {
            let refusals = self.observed.refusals.iter().map(ToString::to_string);
            let message = refusals.collect::<Vec<_>>().join("; ");
            self.event(None, Severity::Warning, "UnsupportedField", message.clone());
            self.end(false, "UnsupportedField", message);
        }
    }

    fn end(&mut self, succeeded: bool, reason: &str, message: String) {
        self.memory
            .ended
            .get_or_insert_with(|| Ended { succeeded, reason: reason.to_owned(), message });
    }

    /// Ends a pod that has come to its end.
    fn conclude(&mut self, pod: &Pod) {
        if self.memory.ended.is_some() {
            return;
        }
        if let Some(deadline) = self.memory.deadline.filter(|_| pod.deadline.is_some()) {
            if deadline <= self.now {
                let message = "Pod was active on the node longer than the specified deadline".to_owned();
                self.event(None, Severity::Normal, "DeadlineExceeded", message.clone());
                return self.end(false, "DeadlineExceeded", message);
            }
            self.wake(deadline);
        }
        let code = |spec: &ContainerSpec| -> Option<i32> {
            let container = self.memory.containers.get(&spec.name)?;
            container.last.as_ref().filter(|_| container.done).map(|last| last.code)
        };
        let of = |role: Role| pod.containers.iter().filter(move |spec| spec.role == role);
        if of(Role::Init).any(|spec| code(spec).is_some_and(|code| code != 0)) {
            return self.end(false, "", String::new());
        }
        let codes: Option<Vec<i32>> = of(Role::App).map(code).collect();
        if let Some(codes) = codes.filter(|codes| !codes.is_empty()) {
            self.end(codes.iter().all(|code| *code == 0), "", String::new());
        }
    }

    /// Brings a pod's containers up in their order and keeps them so.
    fn run(&mut self, pod: &Pod) {
        if self.observed.network.is_none() && self.seen.iter().any(absorb::lives) && self.may(&Work::Prepare) {
            // Adopted: learn its addresses again.
            self.steps.push(Step::Prepare);
        }
        let shown = self.seen.iter().any(absorb::lives);
        if shown && self.observed.volumes == Volumes::Stale && self.may(&Work::Volumes) {
            self.steps.push(Step::Volumes);
        }
        // Once the others run, what comes before them no longer holds them back.
        let under_way = pod.containers.iter().any(|spec| {
            let current = self
                .memory
                .containers
                .get(&spec.name)
                .and_then(|one| one.current.as_ref());
            spec.role == Role::App && current.is_some_and(|one| one.running_since.is_some() && !one.interrupted)
        });
        let mut held = false;
        for spec in &pod.containers {
            let passed = match spec.role {
                _ if held => {
                    self.hold(spec);
                    continue;
                }
                Role::Init if under_way => continue,
                Role::Init => {
                    if !self.memory.container(&spec.name).done {
                        self.keep(pod, spec);
                    }
                    self.memory.container(&spec.name).done
                }
                Role::Sidecar => {
                    self.keep(pod, spec);
                    let current = self.memory.container(&spec.name).current.as_ref();
                    current.is_some_and(|current| current.started)
                }
                Role::App => {
                    self.keep(pod, spec);
                    true
                }
            };
            held = !passed && !under_way;
        }
    }

    /// A container whose turn has not come.
    fn hold(&mut self, spec: &ContainerSpec) {
        if self
            .current(&spec.name)
            .is_some_and(|seen| matches!(seen.state, State::Created))
        {
            return;
        }
        self.wait(spec, "PodInitializing", String::new());
    }

    fn wait(&mut self, spec: &ContainerSpec, reason: &'static str, message: String) {
        self.waiting.insert(spec.name.clone(), Waiting { reason, message });
    }

    /// Keeps one container running as its spec says.
    fn keep(&mut self, pod: &Pod, spec: &ContainerSpec) {
        match self.current(&spec.name) {
            Some(seen) if matches!(seen.state, State::Running { .. }) => self.keep_running(pod, spec, seen),
            Some(seen) if matches!(seen.state, State::Created) => self.start(spec, seen),
            _ => self.make(pod, spec),
        }
    }

    fn keep_running(&mut self, pod: &Pod, spec: &ContainerSpec, seen: &Seen) {
        let observed = self.observed;
        let health = observed.health.get(&spec.name);
        let health = health.filter(|health| health.attempt == seen.labels.attempt);
        let container = self.memory.container(&spec.name);
        let Some(current) = &mut container.current else { return };
        if let Some(health) = health {
            current.started = health.started;
            current.ready = health.ready && current.stop.is_none();
        }
        if current.stop.is_none() {
            let dead = health.and_then(|health| health.dead);
            if seen.labels.hash != spec.hash && spec.role != Role::Init {
                // Fetch first, swap later.
                if self.image(spec) {
                    let message = format!("Container {} definition changed, will be restarted", spec.name);
                    self.begin_stop(&spec.name, seen, Why::Replace, pod.grace, message);
                }
            } else if let Some((kind, grace)) = dead {
                let probe = kind.as_str().to_lowercase();
                let message = format!("Container {} failed {probe} probe, will be restarted", spec.name);
                self.begin_stop(&spec.name, seen, Why::Unhealthy, grace.unwrap_or(pod.grace), message);
            }
        }
        self.drive_stop(&spec.name, seen);
    }

    fn start(&mut self, spec: &ContainerSpec, seen: &Seen) {
        let others = self.seen.iter().any(|other| {
            other.labels.container == spec.name && other.id != seen.id && matches!(other.state, State::Running { .. })
        });
        let work = Work::Start(spec.name.clone());
        if let Some(failure) = self.failure(&work) {
            self.wait(spec, "RunContainerError", failure.message.clone());
        } else {
            self.wait(spec, "ContainerCreating", String::new());
        }
        if seen.labels.hash != spec.hash {
            self.steps.push(Step::Remove { id: seen.id.clone() });
        } else if !others && self.may(&work) {
            self.steps
                .push(Step::Start { container: spec.name.clone(), id: seen.id.clone() });
        }
    }

    /// Makes the next container of a name, when everything it needs is there.
    fn make(&mut self, pod: &Pod, spec: &ContainerSpec) {
        let now = self.now;
        let container = self.memory.container(&spec.name);
        if container.done {
            return;
        }
        if let Some(until) = container.wait_until.filter(|until| *until > now) {
            // Why it does not run is shown first, and later that it was tried again and again.
            let unstarted = container.last.as_ref().filter(|last| last.reason == START_ERROR);
            if let Some(last) = unstarted.filter(|_| container.backoff <= 2) {
                let message = last.message.clone();
                self.wait(spec, "RunContainerError", message);
                return self.wake(until);
            }
            let wait = backoff(container.backoff).as_secs();
            let message = format!(
                "back-off {wait}s restarting failed container={} pod={}_{}({})",
                spec.name, pod.key.name, pod.key.namespace, pod.uid
            );
            self.wait(spec, "CrashLoopBackOff", message);
            return self.wake(until);
        }
        // Whatever still lives under this name has to go first; absorb() saw to it.
        let lives = self
            .seen
            .iter()
            .any(|seen| seen.labels.container == spec.name && !matches!(seen.state, State::Exited { .. }));
        if lives {
            return self.wait(spec, "ContainerCreating", String::new());
        }
        if let Some((reason, message)) = self.observed.wrong.get(&spec.image) {
            return self.wait(spec, reason, message.clone());
        }
        let image = self.image(spec);
        if let Some(message) = self.observed.missing.get(&spec.name) {
            return self.wait(spec, "CreateContainerConfigError", message.clone());
        }
        let ready = self.surroundings(spec);
        if !image || !ready {
            return;
        }
        let work = Work::Create(spec.name.clone());
        match self.failure(&work) {
            Some(failure) => self.wait(spec, "CreateContainerError", failure.message.clone()),
            None => self.wait(spec, "ContainerCreating", String::new()),
        }
        if !self.may(&work) {
            return;
        }
        let container = self.memory.container(&spec.name);
        let attempt = match &container.current {
            Some(current) => current.number,
            None => {
                let number = container.next_attempt;
                container.next_attempt = number.saturating_add(1);
                container.wait_until = None;
                if container.last.is_some() {
                    container.restarts = container.restarts.saturating_add(1);
                }
                container.current = Some(Attempt { number, ..Attempt::default() });
                number
            }
        };
        self.steps.push(Step::Create { container: spec.name.clone(), attempt });
    }

    /// Sees to volumes, files and sandbox; true when they are there.
    fn surroundings(&mut self, spec: &ContainerSpec) -> bool {
        let (work, step) = if self.observed.volumes == Volumes::Stale {
            (Work::Volumes, Step::Volumes)
        } else if self.observed.network.is_none() {
            (Work::Prepare, Step::Prepare)
        } else {
            return true;
        };
        if !self.waiting.contains_key(&spec.name) {
            let message = self.failure(&work).map(|failure| failure.message.clone());
            self.wait(spec, "ContainerCreating", message.unwrap_or_default());
        }
        if self.may(&work) && !self.steps.contains(&step) {
            self.steps.push(step);
        }
        false
    }

    /// Sees to an image; true when a container can be made from it.
    fn image(&mut self, spec: &ContainerSpec) -> bool {
        let state = self.observed.images.get(&spec.image).copied();
        let Some(state) = state else {
            self.wait(spec, "ContainerCreating", String::new());
            return false;
        };
        let first = self.memory.container(&spec.name).next_attempt == 0;
        let changed = self.current(&spec.name).is_some();
        let enough = match spec.pull {
            PullPolicy::Always => state.present && (state.fetched || !(first || changed)),
            PullPolicy::IfNotPresent | PullPolicy::Never => state.present,
        };
        // While it is being fetched it may be there already, but nobody has said so yet.
        if enough && !state.pulling {
            return true;
        }
        if spec.pull == PullPolicy::Never {
            let message = format!(
                "Container image {:?} is not present with pull policy of Never",
                spec.image
            );
            self.wait(spec, "ErrImageNeverPull", message);
            return false;
        }
        let work = Work::Pull(spec.image.clone());
        match self.failure(&work) {
            Some(failure) if failure.count > 1 => {
                let message = format!("Back-off pulling image {:?}: {}", spec.image, failure.message);
                self.wait(spec, "ImagePullBackOff", message);
            }
            Some(failure) => self.wait(spec, "ErrImagePull", failure.message.clone()),
            None => self.wait(spec, "ContainerCreating", String::new()),
        }
        let asked = self.steps.iter().any(|step| match step {
            Step::Pull { container } => self
                .wanted
                .and_then(|pod| pod.container(container))
                .is_some_and(|other| other.image == spec.image),
            _ => false,
        });
        if !state.pulling && !asked && self.may(&work) {
            self.steps.push(Step::Pull { container: spec.name.clone() });
        }
        false
    }
}

/// The wait before the restart that follows the `count`th end in a row.
pub fn backoff(count: u32) -> Duration {
    match count {
        0 | 1 => Duration::ZERO,
        more => BACKOFF_FIRST
            .saturating_mul(1_u32.checked_shl(more - 2).unwrap_or(u32::MAX))
            .min(BACKOFF_MAX),
    }
}

#[cfg(test)]
mod tests;
