//! What the node must still know about a pod after it lost everything but its disk.
//!
//! A point in time is kept twice: as the clock of this boot has it, which is exact when only the edge core restarted,
//! and as what remained when it was written, which is what counts after a reboot.

use std::collections::BTreeMap;
use std::time::Duration;

use proto::time::{BootId, Mono};
use proto::value::{Value, canonical};

use super::spec::GRACE_DEFAULT;

/// The form written by [`Memory::encode`]; others are read as no memory.
const VERSION: i64 = 1;

/// One pod's memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Memory {
    pub containers: BTreeMap<String, ContainerMemory>,
    /// When the node took the pod, by its clock.
    pub accepted_ms: Option<i64>,
    /// When `activeDeadlineSeconds` is over.
    pub deadline: Option<Mono>,
    /// How long stopping may take, for when the pod itself is no longer known.
    pub grace_s: u64,
    /// The phase that is never left, with its reason and message.
    pub ended: Option<Ended>,
    /// The pod's addresses as they were last seen.
    pub addresses: Vec<String>,
    /// Since when, by the node's clock, each condition has its status.
    pub conditions: BTreeMap<String, Condition>,
}

/// The end of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ended {
    pub succeeded: bool,
    pub reason: String,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Condition {
    pub status: bool,
    pub since_ms: i64,
}

/// One container of the spec, over all its attempts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContainerMemory {
    /// The attempt the next container gets; only ever grows.
    pub next_attempt: u32,
    pub restarts: u32,
    /// How often in a row it ended too soon.
    pub backoff: u32,
    /// Not before this.
    pub wait_until: Option<Mono>,
    /// The attempt that is being made or runs.
    pub current: Option<Attempt>,
    /// The attempt that ended last.
    pub last: Option<Exit>,
    /// It runs to its end before the others start, and does so again after a reboot.
    pub init: bool,
    /// Ended for good: nothing of this name is started again.
    pub done: bool,
}

/// An attempt on its way.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attempt {
    pub number: u32,
    /// Since when it was seen running.
    pub running_since: Option<Mono>,
    pub started: bool,
    pub ready: bool,
    /// The machine was restarted meanwhile: its end is nobody's fault.
    pub interrupted: bool,
    pub stop: Option<Stop>,
}

/// Why a container is being stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The pod is deleted, over its deadline, or ended.
    Pod,
    /// Another image or command is wanted.
    Replace,
    /// A liveness or startup probe said so.
    Unhealthy,
}

/// A stop under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stop {
    pub why: Why,
    /// When it is killed, and killed again if that did not help.
    pub kill_at: Mono,
    pub killed: bool,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Exit {
    pub attempt: u32,
    pub id: String,
    pub image_id: String,
    pub code: i32,
    pub reason: String,
    pub message: String,
    pub started_ms: i64,
    pub finished_ms: i64,
}

impl Memory {
    /// Of a pod that nothing is known about.
    pub fn new() -> Self {
        Self { grace_s: GRACE_DEFAULT.as_secs(), ..Self::default() }
    }

    pub fn container(&mut self, name: &str) -> &mut ContainerMemory {
        self.containers.entry(name.to_owned()).or_default()
    }

    /// The form to keep.
    pub fn encode(&self, now: Mono, boot: BootId) -> Vec<u8> {
        let time = |at: Mono| pair(u(at.0), u(at.0.saturating_sub(now.0)));
        let mut root = Value::map();
        root.set(&["v"], VERSION);
        root.set(&["boot"], boot.to_string());
        root.set(&["grace"], u(self.grace_s));
        if !self.addresses.is_empty() {
            root.set(&["addresses"], Value::from_iter(self.addresses.iter().cloned()));
        }
        if let Some(ms) = self.accepted_ms {
            root.set(&["accepted"], ms);
        }
        if let Some(at) = self.deadline {
            root.set(&["deadline"], time(at));
        }
        if let Some(ended) = &self.ended {
            root.set(&["ended", "ok"], ended.succeeded);
            root.set(&["ended", "reason"], ended.reason.as_str());
            root.set(&["ended", "message"], ended.message.as_str());
        }
        for (kind, condition) in &self.conditions {
            let value = pair(Value::Bool(condition.status), Value::I64(condition.since_ms));
            root.set(&["conditions", kind], value);
        }
        for (name, container) in &self.containers {
            root.set(&["containers", name], container.encode(now));
        }
        canonical::encode(&root)
    }

    /// The memory of a form; waits go on where they were, and what ran in another boot is interrupted.
    pub fn decode(form: &[u8], now: Mono, boot: BootId) -> Option<Self> {
        let root = canonical::decode(form).ok()?;
        if root.int_at(&["v"]) != Some(VERSION) {
            return None;
        }
        let same = root.text_at(&["boot"]) == Some(boot.to_string().as_str());
        let base = (!same).then_some(now);
        let mut memory = Self {
            accepted_ms: root.int_at(&["accepted"]),
            deadline: time_at(&root, "deadline", base),
            grace_s: unsigned(&root, &["grace"]),
            ended: root.get("ended").map(|ended| Ended {
                succeeded: ended.flag_at(&["ok"]),
                reason: text(ended, "reason"),
                message: text(ended, "message"),
            }),
            addresses: list(&root, "addresses"),
            ..Self::default()
        };
        for (kind, value) in entries(&root, "conditions") {
            let since_ms = value.int_at(&["1"]).unwrap_or_default();
            memory
                .conditions
                .insert(kind.to_owned(), Condition { status: value.flag_at(&["0"]), since_ms });
        }
        for (name, value) in entries(&root, "containers") {
            memory
                .containers
                .insert(name.to_owned(), ContainerMemory::decode(value, base));
        }
        Some(memory)
    }
}

impl ContainerMemory {
    fn encode(&self, now: Mono) -> Value {
        let time = |at: Mono| pair(u(at.0), u(at.0.saturating_sub(now.0)));
        let mut root = Value::map();
        root.set(&["next"], self.next_attempt);
        root.set(&["restarts"], self.restarts);
        root.set(&["backoff"], self.backoff);
        root.set(&["done"], self.done);
        root.set(&["init"], self.init);
        if let Some(at) = self.wait_until {
            root.set(&["wait"], time(at));
        }
        if let Some(attempt) = &self.current {
            let mut current = Value::map();
            current.set(&["number"], attempt.number);
            current.set(&["started"], attempt.started);
            current.set(&["ready"], attempt.ready);
            current.set(&["interrupted"], attempt.interrupted);
            if let Some(since) = attempt.running_since {
                current.set(&["since"], u(since.0));
            }
            if let Some(stop) = attempt.stop {
                current.set(&["stop", "why"], stop.why as i64);
                current.set(&["stop", "at"], time(stop.kill_at));
                current.set(&["stop", "killed"], stop.killed);
            }
            root.set(&["current"], current);
        }
        if let Some(last) = &self.last {
            let mut exit = Value::map();
            exit.set(&["attempt"], last.attempt);
            exit.set(&["id"], last.id.as_str());
            exit.set(&["image"], last.image_id.as_str());
            exit.set(&["code"], last.code);
            exit.set(&["reason"], last.reason.as_str());
            exit.set(&["message"], last.message.as_str());
            exit.set(&["started"], last.started_ms);
            exit.set(&["finished"], last.finished_ms);
            root.set(&["last"], exit);
        }
        root
    }

    /// `base` is now when the form was written in another boot.
    fn decode(root: &Value, base: Option<Mono>) -> Self {
        let current = root.get("current").map(|current| Attempt {
            number: small(current, "number"),
            running_since: current.get("since").map(|_| match base {
                // It ran, but nothing of this boot's clock can say since when.
                Some(now) => now,
                None => Mono(unsigned(current, &["since"])),
            }),
            started: current.flag_at(&["started"]),
            ready: current.flag_at(&["ready"]),
            interrupted: base.is_some() || current.flag_at(&["interrupted"]),
            stop: current.get("stop").map(|stop| Stop {
                why: match stop.int_at(&["why"]) {
                    Some(1) => Why::Replace,
                    Some(2) => Why::Unhealthy,
                    _ => Why::Pod,
                },
                kill_at: time_at(stop, "at", base).unwrap_or_default(),
                killed: stop.flag_at(&["killed"]),
            }),
        });
        let last = root.get("last").map(|exit| Exit {
            attempt: small(exit, "attempt"),
            id: text(exit, "id"),
            image_id: text(exit, "image"),
            code: exit
                .int_at(&["code"])
                .and_then(|code| i32::try_from(code).ok())
                .unwrap_or(255),
            reason: text(exit, "reason"),
            message: text(exit, "message"),
            started_ms: exit.int_at(&["started"]).unwrap_or_default(),
            finished_ms: exit.int_at(&["finished"]).unwrap_or_default(),
        });
        Self {
            next_attempt: small(root, "next"),
            restarts: small(root, "restarts"),
            backoff: small(root, "backoff"),
            wait_until: time_at(root, "wait", base),
            current,
            last,
            init: root.flag_at(&["init"]),
            done: root.flag_at(&["done"]) && !(base.is_some() && root.flag_at(&["init"])),
        }
    }
}

fn pair(first: Value, second: Value) -> Value {
    Value::List(vec![first, second])
}

fn u(number: u64) -> Value {
    Value::from(number)
}

fn entries<'a>(root: &'a Value, field: &str) -> impl Iterator<Item = (&'a str, &'a Value)> {
    root.get(field).and_then(Value::as_map).into_iter().flatten()
}

fn text(root: &Value, field: &str) -> String {
    root.text_at(&[field]).unwrap_or_default().to_owned()
}

fn list(root: &Value, field: &str) -> Vec<String> {
    let texts = root.list_at(&[field]).iter();
    texts.filter_map(|text| text.as_text().map(str::to_owned)).collect()
}

fn unsigned(root: &Value, path: &[&str]) -> u64 {
    root.int_at(path)
        .and_then(|number| u64::try_from(number).ok())
        .unwrap_or_default()
}

fn small(root: &Value, field: &str) -> u32 {
    root.int_at(&[field])
        .and_then(|number| u32::try_from(number).ok())
        .unwrap_or_default()
}

fn time_at(root: &Value, field: &str, base: Option<Mono>) -> Option<Mono> {
    let value = root.get(field)?;
    Some(match base {
        None => Mono(unsigned(value, &["0"])),
        Some(now) => now + Duration::from_millis(unsigned(value, &["1"])),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Memory {
        let mut memory = Memory {
            accepted_ms: Some(-5),
            deadline: Some(Mono(9_000)),
            grace_s: 7,
            addresses: vec!["10.0.0.2".into()],
            ended: Some(Ended {
                succeeded: false,
                reason: "Evicted".into(),
                message: "m".into(),
            }),
            ..Memory::default()
        };
        memory
            .conditions
            .insert("Ready".into(), Condition { status: true, since_ms: 12 });
        *memory.container("web") = ContainerMemory {
            next_attempt: 4,
            restarts: 3,
            backoff: 2,
            wait_until: Some(Mono(20_000)),
            current: Some(Attempt {
                number: 3,
                running_since: Some(Mono(100)),
                started: true,
                ready: true,
                interrupted: false,
                stop: Some(Stop { why: Why::Unhealthy, kill_at: Mono(8_000), killed: true }),
            }),
            last: Some(Exit {
                attempt: 2,
                id: "x".into(),
                image_id: "sha256:1".into(),
                code: -1,
                reason: "Error".into(),
                message: "t".into(),
                started_ms: 1,
                finished_ms: 2,
            }),
            init: false,
            done: true,
        };
        memory
    }

    #[test]
    fn a_restart_of_the_edge_core_forgets_nothing() {
        let form = sample().encode(Mono(5_000), BootId([1; 16]));
        assert_eq!(Memory::decode(&form, Mono(6_000), BootId([1; 16])), Some(sample()));
    }

    #[test]
    fn a_reboot_keeps_what_remained() {
        let form = sample().encode(Mono(5_000), BootId([1; 16]));
        let memory = Memory::decode(&form, Mono(10), BootId([2; 16])).unwrap();
        assert_eq!(memory.deadline, Some(Mono(4_010)));
        let web = &memory.containers["web"];
        assert_eq!((web.backoff, web.wait_until), (2, Some(Mono(15_010))));
        let current = web.current.as_ref().unwrap();
        assert!(current.interrupted);
        assert_eq!(current.stop.unwrap().kill_at, Mono(3_010));
    }

    #[test]
    fn what_is_not_ours_is_no_memory() {
        assert_eq!(Memory::decode(b"", Mono(0), BootId::default()), None);
        let other = canonical::encode(&Value::from([("v", 2_i64)]));
        assert_eq!(Memory::decode(&other, Mono(0), BootId::default()), None);
    }
}
