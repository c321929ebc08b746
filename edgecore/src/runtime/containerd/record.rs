//! What containerd keeps with a container, and how it becomes what the node sees. Pure.
//!
//! A record outlives its task: a task is gone after a reboot, or when its shim died. Two things are therefore written
//! into the record as labels: that a start was attempted, before it is, and how the container ended, before the task
//! that knows is deleted. So an attempt never runs twice, and an exit code survives a reboot.

use std::collections::HashMap;

use crate::runtime::{Labels, State};
use containerd_client::types::v1::{Process, Status};

pub(super) const POD: &str = "edgehold.dev/pod";
const NAMESPACE: &str = "edgehold.dev/namespace";
const POD_NAME: &str = "edgehold.dev/pod-name";
const CONTAINER: &str = "edgehold.dev/container";
const ATTEMPT: &str = "edgehold.dev/attempt";
const HASH: &str = "edgehold.dev/hash";
pub(super) const IMAGE: &str = "edgehold.dev/image";
pub(super) const IMAGE_ID: &str = "edgehold.dev/image-id";
pub(super) const LOG: &str = "edgehold.dev/log";
pub(super) const TTY: &str = "edgehold.dev/tty";
/// Milliseconds since 1970; written before the start.
pub(super) const STARTED: &str = "edgehold.dev/started";
/// `<code>,<oom killed>,<finished, milliseconds since 1970>`.
pub(super) const EXIT: &str = "edgehold.dev/exit";

/// The exit code of what ended while nobody could see how.
pub(super) const CODE_UNKNOWN: i32 = 255;

pub(super) fn write(labels: &Labels) -> HashMap<String, String> {
    [
        (POD, labels.pod.to_string()),
        (NAMESPACE, labels.namespace.clone()),
        (POD_NAME, labels.pod_name.clone()),
        (CONTAINER, labels.container.clone()),
        (ATTEMPT, labels.attempt.to_string()),
        (HASH, format!("{:016x}", labels.hash)),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into()
}

/// `None` when the record is not one of ours.
pub(super) fn read(record: &HashMap<String, String>) -> Option<Labels> {
    let text = |key| record.get(key).cloned();
    Some(Labels {
        pod: text(POD)?.parse().ok()?,
        namespace: text(NAMESPACE)?,
        pod_name: text(POD_NAME)?,
        container: text(CONTAINER)?,
        attempt: text(ATTEMPT)?.parse().ok()?,
        hash: u64::from_str_radix(&text(HASH)?, 16).ok()?,
    })
}

/// How a container ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Exit {
    pub(super) code: i32,
    pub(super) oom_killed: bool,
    pub(super) finished_ms: i64,
}

impl Exit {
    /// From a task that has ended.
    pub(super) fn of(task: &Process, oom_killed: bool) -> Self {
        Self {
            code: i32::try_from(task.exit_status).unwrap_or(CODE_UNKNOWN),
            oom_killed,
            finished_ms: task.exited_at.as_ref().map_or(0, |at| {
                at.seconds
                    .saturating_mul(1000)
                    .saturating_add(i64::from(at.nanos) / 1_000_000)
            }),
        }
    }

    pub(super) fn write(self) -> String {
        format!("{},{},{}", self.code, self.oom_killed, self.finished_ms)
    }

    fn read(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, ',');
        Some(Self {
            code: parts.next()?.parse().ok()?,
            oom_killed: parts.next()?.parse().ok()?,
            finished_ms: parts.next()?.parse().ok()?,
        })
    }
}

/// The exit a record holds.
pub(super) fn exit(record: &HashMap<String, String>) -> Option<Exit> {
    Exit::read(record.get(EXIT)?)
}

/// Whether a task has ended.
pub(super) fn has_ended(task: &Process) -> bool {
    task.status == i32::from(Status::Stopped)
}

/// Whether, without a task, it must have ended unseen.
pub(super) fn is_lost(record: &HashMap<String, String>) -> bool {
    record.contains_key(STARTED) && exit(record).is_none()
}

/// How far a container is.
pub(super) fn state(record: &HashMap<String, String>, task: Option<&Process>) -> State {
    let started_ms = record.get(STARTED).and_then(|text| text.parse().ok());
    let exited = |exit: Exit| State::Exited {
        code: exit.code,
        oom_killed: exit.oom_killed,
        started_ms: started_ms.unwrap_or(exit.finished_ms),
        finished_ms: exit.finished_ms,
    };
    if let Some(exit) = exit(record) {
        return exited(exit);
    }
    match (task, started_ms) {
        (Some(task), _) if has_ended(task) => exited(Exit::of(task, false)),
        (Some(task), _) if task.status == i32::from(Status::Created) => State::Created,
        (Some(_), started_ms) => State::Running { started_ms: started_ms.unwrap_or(0) },
        (None, None) => State::Created,
        // It was started and its task is gone: a reboot, or a shim that died.
        (None, Some(started_ms)) => exited(Exit {
            code: CODE_UNKNOWN,
            oom_killed: false,
            finished_ms: started_ms,
        }),
    }
}

#[cfg(test)]
mod tests {
    use proto::object::Uid;

    use super::*;

    fn labels() -> Labels {
        Labels {
            pod: Uid::random([7; 16]),
            namespace: "default".into(),
            pod_name: "web-0".into(),
            container: "c".repeat(63),
            attempt: 3,
            hash: u64::MAX,
        }
    }

    #[test]
    fn labels_are_written_as_they_are_read() {
        assert_eq!(read(&write(&labels())), Some(labels()));
        for key in [POD, NAMESPACE, POD_NAME, CONTAINER, ATTEMPT, HASH] {
            let mut record = write(&labels());
            record.remove(key);
            assert_eq!(read(&record), None, "{key}");
        }
    }

    #[test]
    fn an_exit_is_written_as_it_is_read() {
        let exit = Exit { code: -1, oom_killed: true, finished_ms: 12 };
        assert_eq!(Exit::read(&exit.write()), Some(exit));
        for text in ["", "1", "1,true", "x,true,1", "1,yes,1"] {
            assert_eq!(Exit::read(text), None, "{text}");
        }
    }

    #[test]
    fn the_state_follows_from_record_and_task() {
        let task = |status: Status| Process {
            status: status.into(),
            exit_status: 7,
            exited_at: Some(prost_types::Timestamp { seconds: 5, nanos: 6_000_000 }),
            ..Process::default()
        };
        let record = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect::<HashMap<_, _>>()
        };
        let exited =
            |code, oom_killed, started_ms, finished_ms| State::Exited { code, oom_killed, started_ms, finished_ms };
        let started = (STARTED, "2");
        let cases = [
            (record(&[]), None, State::Created),
            (record(&[]), Some(Status::Created), State::Created),
            (record(&[started]), Some(Status::Created), State::Created),
            (
                record(&[started]),
                Some(Status::Running),
                State::Running { started_ms: 2 },
            ),
            (
                record(&[started]),
                Some(Status::Paused),
                State::Running { started_ms: 2 },
            ),
            (record(&[started]), Some(Status::Stopped), exited(7, false, 2, 5006)),
            (record(&[]), Some(Status::Stopped), exited(7, false, 5006, 5006)),
            // Settled: the record knows better than the task.
            (
                record(&[started, (EXIT, "137,true,9")]),
                Some(Status::Stopped),
                exited(137, true, 2, 9),
            ),
            (record(&[started, (EXIT, "0,false,9")]), None, exited(0, false, 2, 9)),
            // After a reboot.
            (record(&[started]), None, exited(CODE_UNKNOWN, false, 2, 2)),
        ];
        for (record, status, expected) in cases {
            assert_eq!(
                state(&record, status.map(task).as_ref()),
                expected,
                "{record:?} {status:?}"
            );
        }
    }
}
