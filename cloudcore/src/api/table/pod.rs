//! The cells of a pod: its one-word status says where it hangs.

use proto::time::Wall;
use proto::value::Value;

use super::age;

/// What the columns Ready, Status and Restarts say.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Summary {
    pub(super) ready: String,
    pub(super) status: String,
    pub(super) restarts: String,
}

/// Sums up the containers of a pod.
pub(super) fn summary(pod: &Value, now: Wall) -> Summary {
    let mut count = Count {
        total: pod.list_at(&["spec", "containers"]).len(),
        ..Count::default()
    };
    let own = pod.text_at(&["status", "reason"]).filter(|reason| !reason.is_empty());
    let phase = pod.text_at(&["status", "phase"]).unwrap_or_default();
    let mut reason = own.unwrap_or(phase).to_owned();
    if gated(pod) {
        "SchedulingGated".clone_into(&mut reason);
    }
    let initializing = initialise(pod, &mut count, &mut reason);
    if !initializing || is_true(pod, "Initialized") {
        run(pod, &mut count, &mut reason);
    }
    if pod.at(&["metadata", "deletionTimestamp"]).is_some() {
        if own == Some("NodeLost") {
            "Unknown".clone_into(&mut reason);
        } else if !matches!(phase, "Succeeded" | "Failed") {
            "Terminating".clone_into(&mut reason);
        }
    }
    Summary {
        ready: format!("{}/{}", count.ready, count.total),
        status: reason,
        restarts: match &count.last {
            Some(last) if count.restarts > 0 => {
                format!("{} ({} ago)", count.restarts, age::since(Some(last), now))
            }
            _ => count.restarts.to_string(),
        },
    }
}

#[derive(Default)]
struct Count {
    total: usize,
    ready: usize,
    restarts: i64,
    /// When the newest restarted container had ended.
    last: Option<Value>,
}

impl Count {
    fn restarted(&mut self, status: &Value) {
        self.restarts += status.int_at(&["restartCount"]).unwrap_or(0);
        let ended = status.at(&["lastState", "terminated", "finishedAt"]);
        let newer = ended.and_then(Value::as_text).filter(|ended| {
            self.last
                .as_ref()
                .and_then(Value::as_text)
                .is_none_or(|last| last < *ended)
        });
        if newer.is_some() {
            self.last = ended.cloned();
        }
    }
}

fn gated(pod: &Value) -> bool {
    pod.list_at(&["status", "conditions"]).iter().any(|condition| {
        condition.text_at(&["type"]) == Some("PodScheduled")
            && condition.text_at(&["reason"]) == Some("SchedulingGated")
    })
}

/// The init containers that run beside the others.
fn restartable(pod: &Value) -> impl Iterator<Item = &str> {
    let containers = pod.list_at(&["spec", "initContainers"]).iter();
    containers
        .filter(|container| container.text_at(&["restartPolicy"]) == Some("Always"))
        .filter_map(|container| container.text_at(&["name"]))
}

fn is_true(pod: &Value, kind: &str) -> bool {
    pod.list_at(&["status", "conditions"])
        .iter()
        .any(|condition| condition.text_at(&["type"]) == Some(kind) && condition.text_at(&["status"]) == Some("True"))
}

/// Walks the init containers; true when one of them is not through.
fn initialise(pod: &Value, count: &mut Count, reason: &mut String) -> bool {
    let sidecars: Vec<&str> = restartable(pod).collect();
    count.total += sidecars.len();
    let all = pod.list_at(&["spec", "initContainers"]).len();
    for (at, status) in pod.list_at(&["status", "initContainerStatuses"]).iter().enumerate() {
        let sidecar = status.text_at(&["name"]).is_some_and(|name| sidecars.contains(&name));
        count.restarted(status);
        let terminated = status.at(&["state", "terminated"]);
        if terminated.is_some_and(|ended| ended.int_at(&["exitCode"]) == Some(0)) {
            continue;
        }
        if sidecar && status.flag_at(&["started"]) {
            count.ready += usize::from(status.flag_at(&["ready"]));
            continue;
        }
        *reason = match (terminated, status.text_at(&["state", "waiting", "reason"])) {
            (Some(ended), _) => format!("Init:{}", ended_as(ended)),
            (None, Some(why)) if !why.is_empty() && why != "PodInitializing" => format!("Init:{why}"),
            (None, _) => format!("Init:{at}/{all}"),
        };
        return true;
    }
    false
}

/// Walks the containers. One that is in the way is the reason before a sidecar that is.
fn run(pod: &Value, count: &mut Count, reason: &mut String) {
    let mut running = false;
    // What init containers did before is history; the restarts of sidecars go on counting.
    let sidecars: Vec<&str> = restartable(pod).collect();
    *count = Count { restarts: 0, last: None, ..std::mem::take(count) };
    for status in pod.list_at(&["status", "initContainerStatuses"]) {
        if status.text_at(&["name"]).is_some_and(|name| sidecars.contains(&name)) {
            count.restarted(status);
        }
    }
    for status in pod.list_at(&["status", "containerStatuses"]).iter().rev() {
        count.restarted(status);
        let waiting = status.text_at(&["state", "waiting", "reason"]).unwrap_or_default();
        if !waiting.is_empty() {
            waiting.clone_into(reason);
        } else if let Some(ended) = status.at(&["state", "terminated"]) {
            *reason = ended_as(ended);
        } else if status.flag_at(&["ready"]) && status.at(&["state", "running"]).is_some() {
            running = true;
            count.ready += 1;
        }
    }
    if reason == "Completed" && running {
        (if is_true(pod, "Ready") { "Running" } else { "NotReady" }).clone_into(reason);
    }
}

fn ended_as(ended: &Value) -> String {
    let reason = ended.text_at(&["reason"]).unwrap_or_default();
    match (reason, ended.int_at(&["signal"]).unwrap_or(0)) {
        ("", 0) => format!("ExitCode:{}", ended.int_at(&["exitCode"]).unwrap_or(0)),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_word_says_where_a_pod_hangs() {
        let now = Wall { ms: 60_000, trusted: true };
        let check = |json: &str, ready: &str, status: &str, restarts: &str| {
            let pod = proto::value::json::parse(json.as_bytes()).unwrap();
            let expected = Summary {
                ready: ready.into(),
                status: status.into(),
                restarts: restarts.into(),
            };
            assert_eq!(summary(&pod, now), expected, "{json}");
        };
        check(
            r#"{"spec":{"containers":[{}]},"status":{"phase":"Pending"}}"#,
            "0/1",
            "Pending",
            "0",
        );
        check(
            r#"{"spec":{"containers":[{}]},"status":{"phase":"Running","containerStatuses":[{"ready":true,"restartCount":2,"state":{"running":{}},"lastState":{"terminated":{"finishedAt":"1970-01-01T00:00:30Z"}}}]}}"#,
            "1/1",
            "Running",
            "2 (30s ago)",
        );
        check(
            r#"{"spec":{"containers":[{}]},"status":{"phase":"Running","containerStatuses":[{"restartCount":1,"state":{"waiting":{"reason":"CrashLoopBackOff"}}}]}}"#,
            "0/1",
            "CrashLoopBackOff",
            "1",
        );
        check(
            r#"{"metadata":{"deletionTimestamp":"x"},"spec":{"containers":[{}]},"status":{"phase":"Running"}}"#,
            "0/1",
            "Terminating",
            "0",
        );
        check(
            r#"{"spec":{"containers":[{}],"initContainers":[{"name":"i"},{"name":"j"}]},"status":{"phase":"Pending","initContainerStatuses":[{"name":"i","state":{"terminated":{"exitCode":0}}},{"name":"j","state":{"running":{}}}]}}"#,
            "0/1",
            "Init:1/2",
            "0",
        );
        check(
            r#"{"spec":{"containers":[{}],"initContainers":[{"name":"i"}]},"status":{"phase":"Pending","initContainerStatuses":[{"name":"i","state":{"terminated":{"exitCode":3}}}]}}"#,
            "0/1",
            "Init:ExitCode:3",
            "0",
        );
        // One that hangs before the others began, and a sidecar that does so beside them.
        let hangs = |initialized: &str| {
            format!(
                r#"{{"spec":{{"containers":[{{}}],"initContainers":[{{"name":"i","restartPolicy":"Always"}}]}},"status":{{"phase":"Running","conditions":[{{"type":"Initialized","status":"{initialized}"}}],"initContainerStatuses":[{{"name":"i","restartCount":4,"state":{{"waiting":{{"reason":"CrashLoopBackOff"}}}}}}],"containerStatuses":[{{"ready":true,"restartCount":1,"state":{{"running":{{}}}}}}]}}}}"#
            )
        };
        check(&hangs("False"), "0/2", "Init:CrashLoopBackOff", "4");
        check(&hangs("True"), "1/2", "Init:CrashLoopBackOff", "5");
        check(
            r#"{"spec":{"containers":[{}],"initContainers":[{"name":"i"}]},"status":{"phase":"Pending","initContainerStatuses":[{"name":"i","state":{"waiting":{"reason":"PodInitializing"}}}],"containerStatuses":[{"state":{"waiting":{"reason":"PodInitializing"}}}]}}"#,
            "0/1",
            "Init:0/1",
            "0",
        );
        check(
            r#"{"spec":{"containers":[{}]},"status":{"phase":"Failed","reason":"Evicted"}}"#,
            "0/1",
            "Evicted",
            "0",
        );
        check(
            r#"{"spec":{"containers":[{},{}]},"status":{"phase":"Running","containerStatuses":[{"ready":true,"state":{"running":{}}},{"state":{"terminated":{"reason":"Completed"}}}]}}"#,
            "1/2",
            "NotReady",
            "0",
        );
    }
}
