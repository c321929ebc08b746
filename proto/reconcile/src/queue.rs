//! Which key runs next.
//!
//! Invariants, each with a property test: a key never runs twice at once; adds of one key merge and its earliest
//! deadline wins; however many changes come during a run, one rerun follows it; no more than `budget` keys run; of
//! every [`SLOW_EVERY`] picks at least one goes to the slow lane while something is due there.
//!
//! The queue holds at most one entry per key, so it is bounded by the number of objects; nothing is ever dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proto::time::Mono;

use crate::{Backoff, Jitter};

/// While both lanes have work, one pick in so many goes to the slow lane.
pub const SLOW_EVERY: u32 = 4;

/// Why a key is added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// Something changed, or a time that was asked for has come.
    Fast,
    /// A periodic look, in case something was missed. It leaves terminal keys alone.
    Slow,
}

/// How a run ended, and so when its key runs again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing to do until something changes or the next resync.
    Done,
    /// Come back after this time, or earlier on a change.
    Again(Duration),
    /// It failed and may succeed later: come back after a growing, jittered wait.
    Retry,
    /// It cannot succeed until the object changes: resyncs pass it by.
    Terminal,
}

/// How much may run at once, and how failures wait.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub budget: usize,
    pub backoff: Backoff,
}

/// The queue of one kind of work.
#[derive(Debug)]
pub struct Queue<K> {
    limits: Limits,
    jitter: Jitter,
    entries: BTreeMap<K, Entry>,
    fast: BTreeSet<Due<K>>,
    slow: BTreeSet<Due<K>>,
    running: usize,
    /// Picks of the fast lane since the slow one last had a turn or had nothing due.
    fast_in_a_row: u32,
    /// Keeps keys with one deadline in the order in which they were added.
    sequence: u64,
}

type Due<K> = (Mono, u64, K);

#[derive(Debug, Default)]
struct Entry {
    fast: Option<(Mono, u64)>,
    slow: Option<(Mono, u64)>,
    running: bool,
    failures: u32,
    terminal: bool,
}

impl Entry {
    fn slot(&mut self, lane: Lane) -> &mut Option<(Mono, u64)> {
        match lane {
            Lane::Fast => &mut self.fast,
            Lane::Slow => &mut self.slow,
        }
    }

    /// Whether it says nothing that a missing entry would not say.
    fn is_blank(&self) -> bool {
        self.fast.is_none() && self.slow.is_none() && !self.running && self.failures == 0 && !self.terminal
    }
}

impl<K: Ord + Clone> Queue<K> {
    /// A queue without keys. A budget of 0 counts as 1, or nothing would ever run.
    pub fn new(limits: Limits, seed: u64) -> Self {
        Self {
            limits: Limits { budget: limits.budget.max(1), ..limits },
            jitter: Jitter::new(seed),
            entries: BTreeMap::new(),
            fast: BTreeSet::new(),
            slow: BTreeSet::new(),
            running: 0,
            fast_in_a_row: 0,
            sequence: 0,
        }
    }

    /// Asks for a run of `key` at `at` or as soon after as the budget allows. During a run of the key it means a rerun.
    pub fn add(&mut self, key: K, lane: Lane, at: Mono) {
        let entry = self.entries.entry(key.clone()).or_default();
        match lane {
            Lane::Fast => entry.terminal = false,
            Lane::Slow if entry.terminal => return,
            Lane::Slow => {}
        }
        let running = entry.running;
        let slot = entry.slot(lane);
        if slot.is_some_and(|(known, _)| known <= at) {
            return;
        }
        let sequence = self.sequence;
        self.sequence += 1;
        let before = slot.replace((at, sequence));
        // What is asked for during a run stands in the entry only, until the run is done.
        if !running {
            let due = self.due(lane);
            if let Some((at, sequence)) = before {
                due.remove(&(at, sequence, key.clone()));
            }
            due.insert((at, sequence, key));
        }
    }

    /// The key to run now, if one is due and the budget has room. The caller runs it and calls [`Queue::done`].
    pub fn next(&mut self, now: Mono) -> Option<K> {
        if self.running >= self.limits.budget {
            return None;
        }
        let due = |lane: &BTreeSet<Due<K>>| lane.first().is_some_and(|(at, ..)| *at <= now);
        let lane = match (due(&self.fast), due(&self.slow)) {
            (false, false) => return None,
            (true, false) => Lane::Fast,
            (true, true) if self.fast_in_a_row + 1 < SLOW_EVERY => Lane::Fast,
            (_, true) => Lane::Slow,
        };
        // Only picks that made the slow lane wait count against the fast one.
        self.fast_in_a_row = match lane {
            Lane::Fast if due(&self.slow) => self.fast_in_a_row + 1,
            Lane::Fast | Lane::Slow => 0,
        };
        let (_, _, key) = self.due(lane).pop_first()?;
        self.take(&key);
        Some(key)
    }

    /// Ends the run of `key`. Without a run of it, nothing happens.
    pub fn done(&mut self, key: K, outcome: Outcome, now: Mono) {
        let Some(entry) = self.entries.get_mut(&key).filter(|entry| entry.running) else {
            return;
        };
        entry.running = false;
        self.running -= 1;
        let again = match outcome {
            Outcome::Retry => {
                let wait = self.limits.backoff.wait(entry.failures, &mut self.jitter);
                entry.failures = entry.failures.saturating_add(1);
                Some(now + wait)
            }
            Outcome::Again(wait) => Some(now + wait),
            Outcome::Done | Outcome::Terminal => None,
        };
        if outcome != Outcome::Retry {
            entry.failures = 0;
        }
        // A change during the run outweighs the verdict on what was there before it.
        let (fast, slow) = (entry.fast.take(), entry.slow.take());
        entry.terminal = outcome == Outcome::Terminal && fast.is_none();
        if entry.is_blank() {
            self.entries.remove(&key);
        }
        let asked = [
            (Lane::Fast, fast.map(|(at, _)| at)),
            (Lane::Slow, slow.map(|(at, _)| at)),
            (Lane::Fast, again),
        ];
        for (lane, at) in asked {
            if let Some(at) = at {
                self.add(key.clone(), lane, at);
            }
        }
    }

    /// When [`Queue::next`] has something to give, as far as it is known now; the past means at once.
    ///
    /// `None` while the budget is used up (the next [`Queue::done`] changes that) or when nothing waits.
    pub fn wake_at(&self) -> Option<Mono> {
        if self.running >= self.limits.budget {
            return None;
        }
        let first = |lane: &BTreeSet<Due<K>>| lane.first().map(|(at, ..)| *at);
        [first(&self.fast), first(&self.slow)].into_iter().flatten().min()
    }

    /// How many keys run.
    pub fn running(&self) -> usize {
        self.running
    }

    /// How many keys wait for their time or for room in the budget.
    pub fn waiting(&self) -> usize {
        self.entries
            .values()
            .filter(|entry| entry.fast.is_some() || entry.slow.is_some())
            .count()
    }

    fn due(&mut self, lane: Lane) -> &mut BTreeSet<Due<K>> {
        match lane {
            Lane::Fast => &mut self.fast,
            Lane::Slow => &mut self.slow,
        }
    }

    /// Marks a key as running: this run answers everything that was asked before it.
    fn take(&mut self, key: &K) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.running = true;
        self.running += 1;
        if let Some((at, sequence)) = entry.fast.take() {
            self.fast.remove(&(at, sequence, key.clone()));
        }
        if let Some((at, sequence)) = entry.slow.take() {
            self.slow.remove(&(at, sequence, key.clone()));
        }
    }
}

#[cfg(test)]
mod tests;
