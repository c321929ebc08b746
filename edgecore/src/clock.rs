//! What time it is on a node that may have no clock of its own.
//!
//! A clock that something keeps right is believed. Where none is, the cloud's time from the last session counts, carried
//! on by the monotonic clock; before the first session there is only the machine's own idea and the latest time that was
//! ever sure, and neither decides anything but certificates.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use daemon::trust::NodeTime;
use proto::time::{BootId, Mono, Wall};

use crate::alarm::Alarm;
use crate::pods;

/// The node's clocks; clones are one.
#[derive(Debug, Clone, Default)]
pub struct NodeClock {
    shared: Arc<Shared>,
    /// What wakes the waits of a process that lives long; others do with the runtime's timers.
    alarm: Option<Alarm>,
}

#[derive(Debug, Default)]
struct Shared {
    /// When the cloud said what time it is.
    told: Mutex<Option<(Mono, i64)>>,
    floor_ms: AtomicI64,
    /// When the floor was last raised.
    floor_at_ms: AtomicU64,
}

impl NodeClock {
    /// A node that was once sure of `floor_ms`.
    pub fn new(floor_ms: i64) -> Self {
        let clock = Self::default();
        clock.raise_floor(daemon::clock::mono(), floor_ms);
        clock
    }

    /// The same clock, with an alarm that somebody rings.
    pub fn with_alarm(self, alarm: Alarm) -> Self {
        Self { alarm: Some(alarm), ..self }
    }

    pub fn alarm(&self) -> Option<&Alarm> {
        self.alarm.as_ref()
    }

    /// The node was sure of this time, before now.
    pub fn raise_floor(&self, now: Mono, ms: i64) {
        if self.shared.floor_ms.fetch_max(ms, Ordering::Relaxed) < ms {
            self.shared.floor_at_ms.store(now.0, Ordering::Relaxed);
        }
    }

    /// The cloud said that it is this time now.
    pub fn tell(&self, now: Mono, cloud_ms: i64) {
        *self.shared.told.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, cloud_ms));
        self.raise_floor(now, cloud_ms);
    }

    /// The latest time that was ever sure.
    pub fn floor_ms(&self) -> i64 {
        self.shared.floor_ms.load(Ordering::Relaxed)
    }

    /// The latest time that is sure now: what the cloud said, and what has passed since.
    pub fn sure_ms(&self, now: Mono) -> i64 {
        let told = *self.shared.told.lock().unwrap_or_else(PoisonError::into_inner);
        let told = told.map_or(0, |(at, ms)| carried(ms, at, now));
        self.floor_ms().max(told)
    }

    /// For judging certificates.
    pub fn node_time(&self) -> NodeTime {
        let clock = self.clone();
        NodeTime {
            clock: Arc::new(move || clock.now(daemon::clock::mono(), daemon::clock::wall())),
            floor_ms: self.floor_ms(),
        }
    }

    fn now(&self, mono: Mono, machine: Wall) -> Wall {
        let told = *self.shared.told.lock().unwrap_or_else(PoisonError::into_inner);
        match told {
            Some((at, ms)) if !machine.trusted => Wall { ms: carried(ms, at, mono), trusted: true },
            // It cannot be earlier than what was once sure, and the time since then: not right, but no time of 1970.
            None if !machine.trusted && self.floor_ms() > 0 => {
                let at = Mono(self.shared.floor_at_ms.load(Ordering::Relaxed));
                Wall {
                    ms: machine.ms.max(carried(self.floor_ms(), at, mono)),
                    trusted: false,
                }
            }
            Some(_) | None => machine,
        }
    }
}

/// What it is `now` if it was `ms` at `at`.
fn carried(ms: i64, at: Mono, now: Mono) -> i64 {
    let since = i64::try_from(now.since(at).as_millis()).unwrap_or(i64::MAX);
    ms.saturating_add(since)
}

impl pods::Clock for NodeClock {
    fn mono(&self) -> Mono {
        daemon::clock::mono()
    }

    fn wall(&self) -> Wall {
        self.now(daemon::clock::mono(), daemon::clock::wall())
    }

    fn boot(&self) -> BootId {
        daemon::clock::boot_id()
    }

    async fn sleep_until(&self, at: Option<Mono>) {
        match (&self.alarm, at) {
            (Some(alarm), Some(at)) => alarm.sleep_until(at).await,
            (None, _) | (_, None) => daemon::clock::sleep_until(at).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cloud_is_believed_where_no_clock_is() {
        let clock = NodeClock::default();
        let (right, wrong) = (Wall { ms: 9000, trusted: true }, Wall { ms: 7, trusted: false });
        assert_eq!(clock.now(Mono(100), wrong), wrong);
        clock.raise_floor(Mono(100), 5000);
        clock.tell(Mono(100), 8000);
        assert_eq!(clock.now(Mono(150), wrong), Wall { ms: 8050, trusted: true });
        assert_eq!(clock.now(Mono(150), right), right);
        assert_eq!(clock.floor_ms(), 8000);
        assert_eq!(clock.sure_ms(Mono(160)), 8060);
        // A cloud that is wrong does not lower what was once sure.
        clock.tell(Mono(200), 1);
        assert_eq!((clock.floor_ms(), clock.sure_ms(Mono(300))), (8000, 8000));
    }

    #[test]
    fn it_is_no_earlier_than_what_was_once_sure() {
        let clock = NodeClock::default();
        clock.raise_floor(Mono(100), 5000);
        let check = |mono, ms, trusted, expected| {
            let wall = clock.now(Mono(mono), Wall { ms, trusted });
            assert_eq!(wall, Wall { ms: expected, trusted }, "{mono} {ms}");
        };
        // A machine that begins at 1970: labels go on from the last sure time.
        check(100, 7, false, 5000);
        check(600, 507, false, 5500);
        // One whose clock somebody set.
        check(600, 9000, false, 9000);
        // What keeps a clock right is believed, also where it goes back.
        check(600, 507, true, 507);
        // What is no news moves nothing.
        clock.raise_floor(Mono(600), 5000);
        check(600, 507, false, 5500);
    }
}
