//! Says each thing once: the same event is counted, and the count is told now and then.

use std::collections::BTreeMap;
use std::time::Duration;

use proto::time::Mono;

/// The same event is told again at most this often, with its count.
pub const EVENT_REPEAT: Duration = Duration::from_secs(600);
/// So many different events of one pod are kept apart; past that the oldest is forgotten and would be told anew.
pub const EVENTS_MAX: usize = 64;

/// What was told about one pod.
#[derive(Debug, Default)]
pub(super) struct Told(BTreeMap<Identity, Entry>);

/// What makes two events the same.
pub(super) type Identity = (String, &'static str, String);

#[derive(Debug)]
struct Entry {
    told_at: Mono,
    untold: u32,
}

impl Told {
    /// Counts an event; returns the count to tell now, if it is to be told.
    pub(super) fn count(&mut self, identity: Identity, now: Mono) -> Option<u32> {
        if let Some(entry) = self.0.get_mut(&identity) {
            entry.untold = entry.untold.saturating_add(1);
            if now.since(entry.told_at) < EVENT_REPEAT {
                return None;
            }
            entry.told_at = now;
            return Some(std::mem::take(&mut entry.untold));
        }
        if self.0.len() >= EVENTS_MAX {
            let oldest = self.0.iter().min_by_key(|(_, entry)| entry.told_at);
            if let Some(oldest) = oldest.map(|(identity, _)| identity.clone()) {
                self.0.remove(&oldest);
            }
        }
        self.0.insert(identity, Entry { told_at: now, untold: 0 });
        Some(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_are_counted() {
        let mut told = Told::default();
        let one = || (String::new(), "BackOff", "x".to_owned());
        assert_eq!(told.count(one(), Mono(0)), Some(1));
        for second in 1..600 {
            assert_eq!(told.count(one(), Mono(second * 1000)), None);
        }
        assert_eq!(told.count(one(), Mono(600_000)), Some(600));
        assert_eq!(told.count(one(), Mono(600_001)), None);
        let other = (String::new(), "BackOff", "y".to_owned());
        assert_eq!(told.count(other, Mono(600_001)), Some(1));
    }

    #[test]
    fn the_table_is_bounded() {
        let mut told = Told::default();
        for at in 0..=EVENTS_MAX {
            let identity = (String::new(), "A", at.to_string());
            assert_eq!(told.count(identity, Mono(u64::try_from(at).unwrap())), Some(1));
        }
        assert_eq!(told.0.len(), EVENTS_MAX);
        let first = (String::new(), "A", "0".to_owned());
        assert_eq!(told.count(first, Mono(1000)), Some(1), "forgotten, so told anew");
    }
}
