//! Takes what the runtime shows into the memory: adopts, and notes what ended.

use proto::time::Mono;

use super::{BACKOFF_RESET, CODE_NOT_STARTED, Planner, START_ERROR, Step, Work, backoff};
use crate::pods::desk::Severity;
use crate::pods::memory::{Attempt, ContainerMemory, Exit, Why};
use crate::pods::spec::{ContainerSpec, RestartPolicy, Role};
use crate::runtime::{Seen, State};

/// Exit code of what cannot be known any more.
const CODE_UNKNOWN: i32 = 255;

impl Planner<'_> {
    /// Brings the memory up to what is seen. Afterwards each name's current attempt is one that is being made, is
    /// there, or runs; everything else of that name is on its way out.
    pub(super) fn absorb(&mut self) {
        self.adopt();
        let names: Vec<String> = self.memory.containers.keys().cloned().collect();
        for name in names {
            self.settle(&name);
        }
        for seen in self.seen {
            let current = self.memory.containers.get(&seen.labels.container);
            let current = current.and_then(|container| container.current.as_ref());
            let stray = current.is_none_or(|current| current.number != seen.labels.attempt);
            if stray && self.may(&Work::Remove(seen.id.clone())) {
                self.steps.push(Step::Remove { id: seen.id.clone() });
            }
        }
    }

    /// Takes over containers that the memory does not know, or knows only in an older form.
    fn adopt(&mut self) {
        let mut apps_live = false;
        for seen in self.seen {
            let role = self.spec(&seen.labels.container).map(|spec| spec.role);
            let live = !matches!(seen.state, State::Exited { .. });
            let container = self.memory.container(&seen.labels.container);
            let number = seen.labels.attempt;
            let newest = container.next_attempt <= number;
            if newest {
                container.next_attempt = number.saturating_add(1);
                container.restarts = container.restarts.max(number);
                container.current = Some(Attempt { number, ..Attempt::default() });
                container.wait_until = None;
                container.done = false;
                apps_live |= live && role == Some(Role::App);
            }
        }
        // Whoever started them had run the init containers.
        if apps_live && let Some(pod) = self.wanted {
            for spec in pod.containers.iter().filter(|spec| spec.role == Role::Init) {
                self.memory.container(&spec.name).done = true;
            }
        }
    }

    fn spec(&self, name: &str) -> Option<&ContainerSpec> {
        self.wanted?.container(name)
    }

    /// Compares one name's current attempt with its container.
    fn settle(&mut self, name: &str) {
        let seen = self.current(name);
        let now = self.now;
        let container = self.memory.container(name);
        let Some(current) = &mut container.current else { return };
        let unstartable = seen.and_then(|seen| Some((seen, self.observed.unstartable.get(&seen.id)?)));
        if let Some((seen, why)) = unstartable {
            let wall_ms = self.observed.wall.ms;
            let (started_ms, finished_ms) = match seen.state {
                State::Exited { started_ms, finished_ms, .. } => (started_ms, finished_ms),
                State::Created | State::Running { .. } => (wall_ms, wall_ms),
            };
            let exit = Exit {
                attempt: current.number,
                id: seen.id.clone(),
                image_id: seen.image_id.clone(),
                code: CODE_NOT_STARTED,
                reason: START_ERROR.to_owned(),
                message: why.clone(),
                started_ms,
                finished_ms,
            };
            return self.ended(name, exit);
        }
        match seen.map(|seen| (seen, &seen.state)) {
            Some((_, State::Running { .. })) => {
                current.running_since.get_or_insert(now);
                // It runs in this boot: no restart of the machine took it.
                current.interrupted = false;
            }
            Some((_, State::Created)) => {}
            Some((seen, State::Exited { code, oom_killed, started_ms, finished_ms })) => {
                let lost = current.interrupted;
                let exit = Exit {
                    attempt: current.number,
                    id: seen.id.clone(),
                    image_id: seen.image_id.clone(),
                    code: *code,
                    reason: match (oom_killed, lost, code) {
                        (true, ..) => "OOMKilled",
                        (_, true, &CODE_UNKNOWN) => "Unknown",
                        (.., 0) => "Completed",
                        _ => "Error",
                    }
                    .to_owned(),
                    message: self.observed.messages.get(name).cloned().unwrap_or_default(),
                    started_ms: *started_ms,
                    finished_ms: *finished_ms,
                };
                self.ended(name, exit);
            }
            // It ran, and nothing is left to say how it ended.
            None if current.running_since.is_some() => {
                let message = if current.interrupted {
                    "The node was restarted"
                } else {
                    "The container could not be located"
                };
                let exit = Exit {
                    attempt: current.number,
                    code: CODE_UNKNOWN,
                    reason: "ContainerStatusUnknown".to_owned(),
                    message: message.to_owned(),
                    finished_ms: self.observed.wall.ms,
                    ..Exit::default()
                };
                self.ended(name, exit);
            }
            // It was to be made before the machine was restarted; whether it was, nobody knows.
            None if current.interrupted || self.wanted.is_none_or(|pod| pod.deleting) => container.current = None,
            None => {}
        }
    }

    /// Notes the end of a name's current attempt, and whether and when there is a next one.
    fn ended(&mut self, name: &str, exit: Exit) {
        let now = self.now;
        let role = self.spec(name).map(|spec| spec.role);
        let policy = self.wanted.map_or(RestartPolicy::Never, |pod| pod.policy);
        let container = self.memory.container(name);
        let Some(current) = container.current.take() else {
            return;
        };
        let code = exit.code;
        container.last = Some(exit);
        let why = current.stop.map(|stop| stop.why);
        let again = why == Some(Why::Replace)
            || match role {
                Some(Role::App) => policy.restarts(code),
                Some(Role::Sidecar) => true,
                Some(Role::Init) => code != 0 && (current.interrupted || policy != RestartPolicy::Never),
                None => false,
            };
        container.done = !again && why != Some(Why::Pod) && role.is_some();
        let wait = match why {
            Some(Why::Replace) => {
                container.backoff = 0;
                None
            }
            Some(Why::Pod) => None,
            // What the machine's restart took comes back at once, and an older wait goes on.
            _ if current.interrupted => return,
            _ if !again => None,
            None | Some(Why::Unhealthy) => Some(count_end(container, &current, now)),
        };
        container.wait_until = wait.filter(|until| *until > now);
        if let Some(until) = container.wait_until {
            let pod = self.wanted.map(|pod| pod.key.name.as_str()).unwrap_or_default();
            let message = format!("Back-off restarting failed container {name} in pod {pod}");
            let message = format!("{message} for {}s", until.since(now).as_secs());
            self.event(Some(name), Severity::Warning, "BackOff", message);
        }
    }
}

/// Counts an end and returns when the next attempt may start.
fn count_end(container: &mut ContainerMemory, ended: &Attempt, now: Mono) -> Mono {
    let ran = ended.running_since.map(|since| now.since(since));
    if ran.is_some_and(|ran| ran >= BACKOFF_RESET) {
        container.backoff = 0;
    }
    container.backoff = container.backoff.saturating_add(1);
    now + backoff(container.backoff)
}

/// Whether a container still runs or could.
pub(super) fn lives(seen: &Seen) -> bool {
    !matches!(seen.state, State::Exited { .. })
}
