//! When to dial the cloud, and at which of its addresses: a pure machine.
//!
//! Every address is tried in turn without a pause; after a whole round that failed comes a wait with decorrelated
//! jitter, so that nodes which lost their cloud together do not come back together. The wait starts small again only
//! after a connection that lasted.

use std::time::Duration;

use proto::time::Mono;

/// The shortest wait after a round that failed, or a link that was lost.
pub const WAIT_MIN: Duration = Duration::from_millis(500);
/// The longest wait while the cloud may be back any time.
pub const WAIT_MAX: Duration = Duration::from_secs(60);
/// About how long to wait when the cloud said that this key is barred: until an admin does something.
pub const WAIT_BARRED: Duration = Duration::from_secs(3600);
/// A connection that lasted this long was a good one.
pub const LASTING: Duration = Duration::from_secs(10);

/// Of the waits that changes of the network end, one in this time: changes come in bursts.
pub const NUDGE_EVERY: Duration = Duration::from_secs(5);

/// Dials the cloud's addresses.
#[derive(Debug, Clone)]
pub struct Dial {
    addresses: Vec<String>,
    turn: usize,
    wait: Duration,
    seed: u64,
    /// When a change of the network ended a wait, or will.
    nudged: Option<Mono>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting { until: Mono },
    Dialling,
    Up { since: Mono },
}

impl Dial {
    /// Due at once. The seed makes this node's waits its own.
    pub fn new(addresses: Vec<String>, seed: u64, now: Mono) -> Self {
        Self {
            addresses,
            turn: 0,
            wait: WAIT_MIN,
            seed,
            nudged: None,
            state: State::Waiting { until: now },
        }
    }

    /// The address to dial now, if it is time; the outcome is to be told by [`Dial::failed`], [`Dial::barred`] or
    /// [`Dial::up`].
    pub fn due(&mut self, now: Mono) -> Option<&str> {
        match self.state {
            State::Waiting { until } if until <= now && !self.addresses.is_empty() => {
                self.state = State::Dialling;
                self.addresses.get(self.turn).map(String::as_str)
            }
            State::Waiting { .. } | State::Dialling | State::Up { .. } => None,
        }
    }

    /// When [`Dial::due`] has something to say.
    pub fn wake_at(&self) -> Option<Mono> {
        match self.state {
            State::Waiting { until } if !self.addresses.is_empty() => Some(until),
            State::Waiting { .. } | State::Dialling | State::Up { .. } => None,
        }
    }

    /// The address did not answer, or not well.
    pub fn failed(&mut self, now: Mono) {
        self.turn += 1;
        let until = if self.turn < self.addresses.len() {
            now
        } else {
            self.turn = 0;
            now + self.next_wait()
        };
        self.state = State::Waiting { until };
    }

    /// There is a connection.
    pub fn up(&mut self, now: Mono) {
        self.state = State::Up { since: now };
    }

    /// The connection is gone. One that lasted is sought again at its address, after a short wait of its own.
    pub fn lost(&mut self, now: Mono) {
        match self.state {
            State::Up { since } if now.since(since) >= LASTING => {
                self.wait = WAIT_MIN;
                self.state = State::Waiting { until: now + self.next_wait() };
            }
            State::Up { .. } | State::Dialling | State::Waiting { .. } => self.failed(now),
        }
    }

    /// The cloud bars this key. It is asked again now and then, in case an admin changed their mind.
    pub fn barred(&mut self, now: Mono) {
        let until = now + self.between(WAIT_BARRED / 2, WAIT_BARRED);
        self.state = State::Waiting { until };
    }

    /// The network changed: what failed before may work now. Says whether that makes a difference.
    pub fn nudge(&mut self, now: Mono) -> bool {
        self.wait = WAIT_MIN;
        let at = self.nudged.map_or(now, |last| now.max(last + NUDGE_EVERY));
        match &mut self.state {
            State::Waiting { until } if at < *until => {
                *until = at;
                self.nudged = Some(at);
                true
            }
            State::Waiting { .. } | State::Dialling | State::Up { .. } => false,
        }
    }

    /// The cloud told its addresses anew.
    pub fn set_addresses(&mut self, addresses: Vec<String>) {
        if self.addresses != addresses {
            self.addresses = addresses;
            self.turn = 0;
        }
    }

    /// Somewhere between the least wait and three times the last one.
    fn next_wait(&mut self) -> Duration {
        self.wait = self.between(WAIT_MIN, (3 * self.wait).min(WAIT_MAX));
        self.wait
    }

    fn between(&mut self, least: Duration, most: Duration) -> Duration {
        // SplitMix64: enough to be unlike one's neighbours.
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut random = self.seed;
        random = (random ^ (random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        random = (random ^ (random >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        random ^= random >> 31;
        let span = u64::try_from(most.saturating_sub(least).as_millis()).unwrap_or(u64::MAX);
        least + Duration::from_millis(random % span.saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dial(count: usize, seed: u64) -> Dial {
        Dial::new((0..count).map(|at| format!("h{at}:1")).collect(), seed, Mono(0))
    }

    #[test]
    fn a_round_has_no_pause_and_then_there_is_one() {
        let (mut dial, now) = (dial(3, 7), Mono(0));
        for address in ["h0:1", "h1:1", "h2:1"] {
            assert_eq!(dial.due(now), Some(address));
            assert_eq!(dial.due(now), None, "one at a time");
            assert_eq!(dial.wake_at(), None);
            dial.failed(now);
        }
        assert_eq!(dial.due(now), None);
        let wake = dial.wake_at().unwrap();
        assert!((Mono(500)..=Mono(1500)).contains(&wake), "{wake:?}");
        assert_eq!(dial.due(wake), Some("h0:1"));
    }

    #[test]
    fn waits_grow_to_the_cap_and_stay_within_it() {
        let mut longest = Duration::ZERO;
        for seed in 0..200 {
            let (mut dial, mut now) = (dial(1, seed), Mono(0));
            for _ in 0..50 {
                assert!(dial.due(now).is_some());
                dial.failed(now);
                let wake = dial.wake_at().unwrap();
                let wait = wake.since(now);
                assert!((WAIT_MIN..=WAIT_MAX).contains(&wait), "seed {seed}: {wait:?}");
                longest = longest.max(wait);
                now = wake;
            }
        }
        assert!(longest > WAIT_MAX * 9 / 10, "{longest:?}");
    }

    #[test]
    fn neighbours_do_not_wait_alike() {
        let waits: std::collections::BTreeSet<_> = (0..100)
            .map(|seed| {
                let mut dial = dial(1, seed);
                dial.due(Mono(0));
                dial.failed(Mono(0));
                dial.wake_at()
            })
            .collect();
        assert!(waits.len() > 80, "{} different waits", waits.len());
    }

    #[test]
    fn only_a_connection_that_lasted_starts_over() {
        let mut dial = dial(2, 3);
        dial.turn = 1;
        dial.wait = WAIT_MAX;
        // Let in and thrown out at once, again and again: no better than not let in.
        let mut now = dial.wake_at().unwrap();
        assert_eq!(dial.due(now), Some("h1:1"));
        dial.up(now);
        assert_eq!(dial.wake_at(), None);
        dial.lost(now + LASTING - Duration::from_millis(1));
        assert!(dial.wait > WAIT_MIN * 3);
        now = dial.wake_at().unwrap();
        assert_eq!(dial.due(now), Some("h0:1"));
        dial.up(now);
        now = now + LASTING;
        dial.lost(now);
        let wake = dial.wake_at().unwrap();
        assert!(wake.since(now) <= 3 * WAIT_MIN);
        assert_eq!(dial.due(wake), Some("h0:1"), "at the address that worked");
    }

    #[test]
    fn barred_waits_long_and_a_new_network_does_not_wait() {
        let mut dial = dial(1, 1);
        dial.due(Mono(0));
        dial.barred(Mono(0));
        let wait = dial.wake_at().unwrap().since(Mono(0));
        assert!((WAIT_BARRED / 2..=WAIT_BARRED).contains(&wait), "{wait:?}");
        dial.nudge(Mono(5));
        assert_eq!(dial.due(Mono(5)), Some("h0:1"));
    }

    #[test]
    fn a_network_that_keeps_changing_ends_a_wait_now_and_then() {
        let mut dial = dial(1, 1);
        let (mut dialled, mut now) = (0u32, Mono(0));
        // A minute of changes, ten in each second, and nobody answers.
        while now < Mono(60_000) {
            dial.nudge(now);
            if dial.due(now).is_some() {
                dialled += 1;
                dial.wait = WAIT_MAX;
                dial.failed(now);
            }
            now = now + Duration::from_millis(100);
        }
        assert!((11..=40).contains(&dialled), "{dialled}");
        dial.due(dial.wake_at().unwrap());
        dial.up(now);
        assert!(!dial.nudge(now), "a link that is up needs none");
    }

    #[test]
    fn without_an_address_there_is_nothing_to_do() {
        let mut dial = dial(0, 1);
        assert_eq!(dial.due(Mono(0)), None);
        assert_eq!(dial.wake_at(), None);
        dial.set_addresses(vec!["a:1".to_owned()]);
        assert_eq!(dial.due(Mono(0)), Some("a:1"));
    }
}
