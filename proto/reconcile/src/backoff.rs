//! Waits between tries: doubled, capped, jittered from a seed.

use std::time::Duration;

/// A small generator for spreading waits. Not for secrets.
#[derive(Debug, Clone)]
pub struct Jitter {
    state: u64,
}

impl Jitter {
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next number (splitmix64).
    pub const fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A wait from half of `full` to `full`, so that those who failed together do not try again together.
    pub fn spread(&mut self, full: Duration) -> Duration {
        let half = full / 2;
        let span = u64::try_from(half.as_millis()).unwrap_or(u64::MAX).saturating_add(1);
        full.saturating_sub(Duration::from_millis(self.number() % span))
    }
}

/// How long to wait after the nth failure in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    pub first: Duration,
    pub cap: Duration,
}

impl Backoff {
    /// `first`, doubled per failure before this one, never above `cap`; without jitter.
    pub fn full(self, failures_before: u32) -> Duration {
        let factor = 1u32.checked_shl(failures_before).unwrap_or(u32::MAX);
        self.first.checked_mul(factor).unwrap_or(self.cap).min(self.cap)
    }

    /// The wait to keep after a failure that followed `failures_before` others.
    pub fn wait(self, failures_before: u32, jitter: &mut Jitter) -> Duration {
        jitter.spread(self.full(failures_before))
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(100),
            cap: Duration::from_secs(60),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_cap() {
        let backoff = Backoff { first: Duration::from_secs(1), cap: Duration::from_secs(10) };
        let full: Vec<_> = [0, 1, 2, 3, 4, 31, 32, u32::MAX]
            .map(|failures| backoff.full(failures).as_secs())
            .into();
        assert_eq!(full, [1, 2, 4, 8, 10, 10, 10, 10]);
    }

    #[test]
    fn jitter_stays_between_half_and_full() {
        let mut jitter = Jitter::new(7);
        let full = Duration::from_millis(1000);
        let waits: Vec<_> = (0..200).map(|_| jitter.spread(full)).collect();
        assert!(waits.iter().all(|wait| (full / 2..=full).contains(wait)));
        assert!(waits.iter().any(|wait| *wait != waits[0]));
        assert_eq!(jitter.spread(Duration::ZERO), Duration::ZERO);
    }
}
