//! Stopping: SIGTERM, the grace, SIGKILL; then taking everything away.

use std::time::Duration;

use super::absorb::lives;
use super::{KILL, KILL_RETRY, Planner, Step, TERM, Work};
use crate::pods::desk::Severity;
use crate::pods::memory::{Stop, Why};
use crate::pods::spec::Role;
use crate::runtime::{Seen, State};

/// How long containers may take whose pod was taken away without waiting for its node; the kubelet's least grace.
pub(super) const GRACE_FORCED: Duration = Duration::from_secs(2);

impl Planner<'_> {
    /// Asks a running container to end.
    pub(super) fn begin_stop(&mut self, name: &str, seen: &Seen, why: Why, grace: Duration, message: String) {
        let kill_at = self.now + grace;
        let Some(current) = &mut self.memory.container(name).current else {
            return;
        };
        current.ready = false;
        current.stop = Some(Stop { why, kill_at, killed: false });
        self.event(Some(name), Severity::Normal, "Killing", message);
        if !grace.is_zero() {
            self.signal(seen, TERM);
        }
    }

    /// Goes on with a stop that was begun.
    pub(super) fn drive_stop(&mut self, name: &str, seen: &Seen) {
        let now = self.now;
        // The signal may have been lost with the edge core that was to send it, or on its way.
        let again = self.observed.first || self.failure(&Work::Signal(seen.id.clone())).is_some();
        let Some(stop) = self
            .memory
            .container(name)
            .current
            .as_mut()
            .and_then(|current| current.stop.as_mut())
        else {
            return;
        };
        let signal = if stop.kill_at <= now {
            stop.killed = true;
            stop.kill_at = now + KILL_RETRY;
            Some(KILL)
        } else {
            (again && !stop.killed).then_some(TERM)
        };
        let kill_at = stop.kill_at;
        self.wake(kill_at);
        if let Some(signal) = signal {
            self.signal(seen, signal);
        }
    }

    fn signal(&mut self, seen: &Seen, signal: u32) {
        let step = Step::Signal { id: seen.id.clone(), signal };
        if !self.steps.contains(&step) && self.may(&Work::Signal(seen.id.clone())) {
            self.steps.push(step);
        }
    }

    /// Stops everything, sidecars last and in reverse; then gives everything back.
    pub(super) fn stop_pod(&mut self) {
        let mut stages: Vec<Vec<&Seen>> = vec![Vec::new()];
        for seen in self.seen.iter().filter(|seen| lives(seen)) {
            let name = &seen.labels.container;
            let role = self.wanted.and_then(|pod| pod.container(name)).map(|spec| spec.role);
            match role {
                Some(Role::Sidecar) => stages.push(vec![seen]),
                _ => stages[0].push(seen),
            }
        }
        let place = |seen: &&Seen| {
            let containers = self.wanted.map(|pod| pod.containers.as_slice()).unwrap_or_default();
            let name = &seen.labels.container;
            std::cmp::Reverse(containers.iter().position(|spec| spec.name == *name))
        };
        stages[1..].sort_by_key(|stage| stage.first().map(place));
        let stage = stages.into_iter().find(|stage| !stage.is_empty());
        for seen in stage.unwrap_or_default() {
            self.stop_one(seen);
        }
        if self.seen.iter().any(lives) {
            return;
        }
        // Ended containers go once their end is remembered, which absorb() did.
        if self.seen.is_empty() {
            self.give_back();
        }
    }

    fn stop_one(&mut self, seen: &Seen) {
        let name = seen.labels.container.as_str();
        if self.current(name).is_none_or(|current| current.id != seen.id) {
            // A stray one: absorb() has it removed.
            return;
        }
        if matches!(seen.state, State::Created) {
            self.memory.container(name).current = None;
            if self.may(&Work::Remove(seen.id.clone())) {
                self.steps.push(Step::Remove { id: seen.id.clone() });
            }
            return;
        }
        let mut grace = Duration::from_secs(self.memory.grace_s);
        if self.wanted.is_none() {
            // Taken away without waiting for this node (`kubectl delete --force`), and its name may be wanted again.
            grace = grace.min(GRACE_FORCED);
        }
        let kill_at = self.now + grace;
        let current = self.memory.container(name).current.as_mut();
        match current.and_then(|current| current.stop.as_mut()) {
            Some(stop) => {
                stop.why = Why::Pod;
                // A second deletion can only shorten the first.
                if !stop.killed {
                    stop.kill_at = stop.kill_at.min(kill_at);
                }
            }
            None => {
                let message = format!("Stopping container {name}");
                self.begin_stop(name, seen, Why::Pod, grace, message);
            }
        }
        self.drive_stop(name, seen);
    }

    fn give_back(&mut self) {
        let leaves = self.wanted.is_none_or(|pod| pod.deleting);
        if !self.observed.cleaned {
            if self.may(&Work::Release) {
                self.steps.push(Step::Release);
            }
        } else if leaves {
            self.steps.push(Step::Gone);
        }
    }
}
