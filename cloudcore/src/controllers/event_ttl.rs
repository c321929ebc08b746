//! Events: kept for so long after they were last told, an hour by default, and never more than so many.
//!
//! An event's age counts from when this process last saw it change, on the monotonic clock: no jump of any wall clock
//! takes events away, and a restart only lets them live longer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proto::object::{Key, Revision, Uid};
use proto::time::Mono;
use reconcile::{Lane, Outcome};

use super::plan::{Plan, Write};
use super::view::{Change, Now, View};
use super::{Controller, at_once};

/// How long an event is kept where nothing else is configured, as a Kubernetes API server keeps it.
pub const TTL_S: u32 = 3600;

/// How many events are kept; past it the one that was told longest ago goes.
pub const EVENTS_MAX: usize = 10_000;

/// The controller of events.
#[derive(Debug)]
pub struct EventTtl {
    ttl: Duration,
    seen: BTreeMap<Key, Seen>,
    oldest: BTreeSet<(Revision, Key)>,
    /// Past the limit and not yet woken.
    excess: Vec<Key>,
}

#[derive(Debug)]
struct Seen {
    uid: Uid,
    revision: Revision,
    at: Mono,
    /// Past the limit, whatever its age.
    excess: bool,
}

impl EventTtl {
    /// Keeps events for so long.
    pub fn new(ttl: Duration) -> Self {
        Self {
            ttl,
            seen: BTreeMap::new(),
            oldest: BTreeSet::new(),
            excess: Vec::new(),
        }
    }
}

impl Controller for EventTtl {
    fn name(&self) -> &'static str {
        "event-ttl"
    }

    fn plans(&self) -> &'static [&'static str] {
        &["Event"]
    }

    fn watches(&self) -> &'static [&'static str] {
        &["Event"]
    }

    fn observe(&mut self, change: &Change, now: Now) {
        let Some(latest) = change.latest() else { return };
        let key = latest.key.clone();
        if let Some(before) = self.seen.remove(&key) {
            self.oldest.remove(&(before.revision, key.clone()));
        }
        let Some(after) = &change.after else { return };
        self.oldest.insert((after.revision, key.clone()));
        let seen = Seen {
            uid: after.uid,
            revision: after.revision,
            at: now.mono,
            excess: false,
        };
        self.seen.insert(key, seen);
        if self.oldest.len() > EVENTS_MAX
            && let Some((_, oldest)) = self.oldest.pop_first()
        {
            if let Some(seen) = self.seen.get_mut(&oldest) {
                seen.excess = true;
            }
            self.excess.push(oldest);
        }
    }

    fn forget(&mut self) {
        *self = Self::new(self.ttl);
    }

    fn wake(&mut self, change: &Change, _view: &dyn View, _now: Now) -> Vec<(Key, Lane)> {
        let after = change.after.iter().map(|after| after.key.clone());
        at_once(after.chain(std::mem::take(&mut self.excess)))
    }

    fn plan(&mut self, key: &Key, _view: &dyn View, now: Now) -> Plan {
        let Some(seen) = self.seen.get(key) else {
            return Plan::nothing();
        };
        let age = now.mono.since(seen.at);
        if age >= self.ttl || seen.excess {
            return Plan::of(vec![Write::Delete { key: key.clone(), uid: seen.uid }]);
        }
        Plan {
            outcome: Outcome::Again(self.ttl.saturating_sub(age)),
            ..Plan::nothing()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::Model;
    use super::*;

    const TTL: Duration = Duration::from_secs(TTL_S as u64);

    fn event(model: &mut Model, name: &str) -> Key {
        model.create(&format!(
            r#"{{"apiVersion":"v1","kind":"Event","metadata":{{"name":"{name}","namespace":"n"}},"reason":"X"}}"#
        ))
    }

    fn feed(model: &mut Model, events: &mut EventTtl) -> Vec<Key> {
        let changes = std::mem::take(&mut model.changes);
        let mut keys = Vec::new();
        for change in changes {
            events.observe(&change, model.now);
            keys.extend(events.wake(&change, model, model.now).into_iter().map(|(key, _)| key));
        }
        keys
    }

    #[test]
    fn an_event_lives_an_hour_after_it_was_last_told() {
        let (mut model, mut events) = (Model::default(), EventTtl::new(TTL));
        let key = event(&mut model, "e");
        feed(&mut model, &mut events);
        model.pass(3_599_999);
        assert_eq!(
            model.step(&mut events, &key).outcome,
            Outcome::Again(Duration::from_millis(1))
        );
        model.edit(&key, &["count"], 2);
        feed(&mut model, &mut events);
        model.pass(1);
        assert!(model.step(&mut events, &key).writes.is_empty());
        model.now.wall.ms += 10 * 365 * 86_400_000;
        assert!(
            model.step(&mut events, &key).writes.is_empty(),
            "the wall clock says nothing"
        );
        model.pass(3_600_000);
        model.step(&mut events, &key);
        assert!(model.get(&key).is_none());
    }

    #[test]
    fn it_lives_as_long_as_is_configured_also_after_a_start_over() {
        let (mut model, mut events) = (Model::default(), EventTtl::new(Duration::from_secs(60)));
        events.forget();
        let key = event(&mut model, "e");
        feed(&mut model, &mut events);
        model.pass(59_999);
        model.step(&mut events, &key);
        assert!(model.get(&key).is_some());
        model.pass(1);
        model.step(&mut events, &key);
        assert!(model.get(&key).is_none());
    }

    #[test]
    fn the_limit_and_one_past_it() {
        let (mut model, mut events) = (Model::default(), EventTtl::new(TTL));
        for at in 0..EVENTS_MAX {
            event(&mut model, &format!("e{at}"));
        }
        assert_eq!(feed(&mut model, &mut events).len(), EVENTS_MAX);
        event(&mut model, "last");
        let woken = feed(&mut model, &mut events);
        assert_eq!(woken.len(), 2);
        for key in woken {
            model.step(&mut events, &key);
        }
        assert!(model.get(&Key::new("Event", "n", "e0")).is_none());
        assert!(model.get(&Key::new("Event", "n", "e1")).is_some());
    }
}
