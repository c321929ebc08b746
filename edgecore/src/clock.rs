//! What time it is on a node that may have no clock of its own.
//!
//! A clock that something keeps right is believed. Where none is, the cloud's time from the last session counts, carried
//! on by the monotonic clock; before the first session there is only the machine's own idea and the latest time that was
//! ever sure, and neither decides anything but certificates.

use std::sync::atomic::{AtomicI64, Ordering};
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
}

impl NodeClock {
    /// A node that was once sure of `floor_ms`.
    pub fn new(floor_ms: i64) -> Self {
        let clock = Self::default();
        clock.shared.floor_ms.store(floor_ms, Ordering::Relaxed);
        clock
    }

    /// The same clock, with an alarm that somebody rings.
    pub fn with_alarm(self, alarm: Alarm) -> Self {
        Self { alarm: Some(alarm), ..self }
    }

    pub fn alarm(&self) -> Option<&Alarm> {
        self.alarm.as_ref()
    }

    /// The node was once sure of this time.
    pub fn raise_floor(&self, ms: i64) {
        self.shared.floor_ms.fetch_max(ms, Ordering::Relaxed);
    }

    /// The cloud said that it is this time now.
    pub fn tell(&self, now: Mono, cloud_ms: i64) {
        *self.shared.told.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, cloud_ms));
        self.shared.floor_ms.fetch_max(cloud_ms, Ordering::Relaxed);
    }

    /// The latest time that was ever sure.
    pub fn floor_ms(&self) -> i64 {
        self.shared.floor_ms.load(Ordering::Relaxed)
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
            Some((at, ms)) if !machine.trusted => {
                let since = i64::try_from(mono.since(at).as_millis()).unwrap_or(i64::MAX);
                Wall { ms: ms.saturating_add(since), trusted: true }
            }
            Some(_) | None => machine,
        }
    }
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
        let clock = NodeClock::new(5000);
        let (right, wrong) = (Wall { ms: 9000, trusted: true }, Wall { ms: 7, trusted: false });
        assert_eq!(clock.now(Mono(100), wrong), wrong);
        clock.tell(Mono(100), 8000);
        assert_eq!(clock.now(Mono(150), wrong), Wall { ms: 8050, trusted: true });
        assert_eq!(clock.now(Mono(150), right), right);
        assert_eq!(clock.floor_ms(), 8000);
        // A cloud that is wrong does not lower what was once sure.
        clock.tell(Mono(200), 1);
        assert_eq!(clock.floor_ms(), 8000);
    }
}
