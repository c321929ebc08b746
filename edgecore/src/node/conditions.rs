//! The conditions a node says of itself, from what was found: pure, and quiet while nothing changes.
//!
//! A condition is said anew when its status, its reason or its subject changes. A message may have figures in it: they
//! are those of that moment, and stay, for figures that follow the disk would be a report at every look.

use std::collections::BTreeMap;

use proto::value::Value;
use serde::{Deserialize, Serialize};

use super::pressure::Shortage;

/// The reason and the message of a full store.
const DISK_FULL: (&str, &str) = (
    "DiskFull",
    "the last write to the node's store found no room: what the cloud sends is not taken until there is",
);

/// One condition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: bool,
    pub reason: String,
    pub message: String,
    /// Since when the status is as it is.
    pub last_transition_time: String,
}

impl Condition {
    /// Whether something is wrong.
    pub fn is_bad(&self) -> bool {
        self.status != (self.kind == RUNTIME_READY)
    }

    fn value(&self) -> Value {
        Value::from([
            ("type", self.kind.as_str()),
            ("status", if self.status { "True" } else { "False" }),
            ("reason", self.reason.as_str()),
            ("message", self.message.as_str()),
            ("lastTransitionTime", self.last_transition_time.as_str()),
        ])
    }
}

/// The one that is good when it is true; the cloud's Ready follows it.
const RUNTIME_READY: &str = "RuntimeReady";

/// What was found at one look.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub memory: Option<Shortage>,
    pub disk: Option<Shortage>,
    pub pids: Option<Shortage>,
    /// The last write to the store found no room.
    pub store_full: bool,
    /// What to say when the runtime does not answer.
    pub runtime: Option<String>,
}

/// All conditions, and what they were said for.
#[derive(Debug, Default)]
pub(super) struct Conditions {
    said: BTreeMap<&'static str, (String, Condition)>,
}

impl Conditions {
    /// Takes in a look.
    pub(super) fn update(&mut self, found: &Found, now: &str) {
        let pressures = [
            (
                "MemoryPressure",
                &found.memory,
                "EdgeHasInsufficientMemory",
                ("EdgeHasEnoughMemory", "memory is not short"),
            ),
            (
                "DiskPressure",
                &found.disk,
                "EdgeHasDiskPressure",
                ("EdgeHasNoDiskPressure", "there is room on the disk"),
            ),
            (
                "PIDPressure",
                &found.pids,
                "EdgeHasInsufficientPIDs",
                ("EdgeHasEnoughPids", "process ids are not short"),
            ),
        ];
        for (kind, shortage, short, (enough, message)) in pressures {
            let full = kind == "DiskPressure" && found.store_full;
            match shortage {
                Some(Shortage { subject, message }) if full => {
                    let message = format!("{}; {message}", DISK_FULL.1);
                    self.say(kind, true, DISK_FULL.0, subject, &message, now);
                }
                None if full => self.say(kind, true, DISK_FULL.0, "", DISK_FULL.1, now),
                Some(Shortage { subject, message }) => self.say(kind, true, short, subject, message, now),
                None => self.say(kind, false, enough, "", message, now),
            }
        }
        match &found.runtime {
            Some(trouble) => self.say(RUNTIME_READY, false, "RuntimeNotReady", "", trouble, now),
            None => {
                let message = "the container runtime answers";
                self.say(RUNTIME_READY, true, "RuntimeReady", "", message, now);
            }
        }
    }

    fn say(&mut self, kind: &'static str, status: bool, reason: &str, subject: &str, message: &str, now: &str) {
        let known = self.said.get(kind);
        let same = known.is_some_and(|(about, condition)| {
            about == subject && condition.status == status && condition.reason == reason
        });
        if same {
            return;
        }
        let since = known.filter(|(_, condition)| condition.status == status);
        let condition = Condition {
            kind: kind.to_owned(),
            status,
            reason: reason.to_owned(),
            message: message.to_owned(),
            last_transition_time: since.map_or(now, |(_, known)| &known.last_transition_time).to_owned(),
        };
        self.said.insert(kind, (subject.to_owned(), condition));
    }

    /// As they are.
    pub(super) fn list(&self) -> Vec<Condition> {
        self.said.values().map(|(_, condition)| condition.clone()).collect()
    }

    pub(super) fn value(&self) -> Value {
        Value::List(self.said.values().map(|(_, condition)| condition.value()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shortage(subject: &str, message: &str) -> Option<Shortage> {
        Some(Shortage { subject: subject.to_owned(), message: message.to_owned() })
    }

    fn of(conditions: &Conditions, kind: &str) -> (bool, String, String, String) {
        let list = conditions.list();
        let found = list.into_iter().find(|condition| condition.kind == kind).unwrap();
        (found.status, found.reason, found.message, found.last_transition_time)
    }

    fn check(conditions: &Conditions, kind: &str, expected: (bool, &str, &str, &str)) {
        let (status, reason, message, since) = of(conditions, kind);
        assert_eq!((status, &*reason, &*message, &*since), expected);
    }

    #[test]
    fn a_condition_keeps_its_time_until_it_flips() {
        let mut conditions = Conditions::default();
        let trouble = |text: &str| Found { runtime: Some(text.to_owned()), ..Found::default() };
        conditions.update(&Found::default(), "t1");
        conditions.update(&Found::default(), "t2");
        let good = (true, "RuntimeReady", "the container runtime answers", "t1");
        check(&conditions, RUNTIME_READY, good);
        assert!(conditions.list().iter().all(|condition| !condition.is_bad()));
        conditions.update(&trouble("gone"), "t3");
        conditions.update(&trouble("gone in another way"), "t4");
        check(&conditions, RUNTIME_READY, (false, "RuntimeNotReady", "gone", "t3"));
        let bad: Vec<_> = conditions.list().into_iter().filter(Condition::is_bad).collect();
        assert_eq!(bad.len(), 1);
        conditions.update(&Found::default(), "t5");
        check(&conditions, RUNTIME_READY, (good.0, good.1, good.2, "t5"));
    }

    #[test]
    fn figures_are_those_of_the_change() {
        let mut conditions = Conditions::default();
        let disk = |subject: &str, message: &str| Found { disk: shortage(subject, message), ..Found::default() };
        conditions.update(&Found::default(), "t0");
        conditions.update(&disk("a", "1 MiB left"), "t1");
        let before = conditions.value();
        conditions.update(&disk("a", "2 MiB left"), "t2");
        assert_eq!(conditions.value(), before, "silence while nothing changes");
        // Another disk joins: said, and it is the same pressure as before.
        conditions.update(&disk("a; b", "2 MiB left; 3 MiB left"), "t3");
        let expected = (true, "EdgeHasDiskPressure", "2 MiB left; 3 MiB left", "t1");
        check(&conditions, "DiskPressure", expected);
    }

    #[test]
    fn a_full_store_is_disk_pressure_whatever_is_measured() {
        let mut conditions = Conditions::default();
        let mut found = Found { store_full: true, ..Found::default() };
        conditions.update(&found, "t1");
        check(&conditions, "DiskPressure", (true, "DiskFull", DISK_FULL.1, "t1"));
        found.disk = shortage("a", "0 bytes left");
        conditions.update(&found, "t2");
        let (status, reason, message, since) = of(&conditions, "DiskPressure");
        assert_eq!((status, &*reason, &*since), (true, "DiskFull", "t1"));
        assert!(message.ends_with("; 0 bytes left"), "{message}");
        found.store_full = false;
        conditions.update(&found, "t3");
        let expected = (true, "EdgeHasDiskPressure", "0 bytes left", "t1");
        check(&conditions, "DiskPressure", expected);
    }

    #[test]
    fn each_shortage_has_its_condition() {
        let mut conditions = Conditions::default();
        let found = Found {
            memory: shortage("memory", "m"),
            pids: shortage("pids", "p"),
            ..Found::default()
        };
        conditions.update(&found, "t");
        let memory = (true, "EdgeHasInsufficientMemory", "m", "t");
        check(&conditions, "MemoryPressure", memory);
        check(&conditions, "PIDPressure", (true, "EdgeHasInsufficientPIDs", "p", "t"));
        let none = (false, "EdgeHasNoDiskPressure", "there is room on the disk", "t");
        check(&conditions, "DiskPressure", none);
    }
}
