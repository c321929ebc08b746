//! A pod's status as Kubernetes has it, without the conditions that the cloud owns.
//!
//! Built from memory and what is seen alone, so that it is the same value as long as nothing changed. The time of a
//! condition moves only when its status flips.

use std::collections::BTreeMap;

use proto::object::quantity::Quantity;
use proto::time::{Wall, rfc3339};
use proto::value::Value;

use super::memory::{Condition, ContainerMemory, Exit, Memory};
use super::plan::Waiting;
use super::spec::{ContainerSpec, Pod, Role};
use crate::runtime::{Network, Seen, State};

/// What a status is built from, beside the memory.
#[derive(Debug)]
pub struct View<'a> {
    pub pod: &'a Pod,
    pub seen: &'a [Seen],
    pub waiting: &'a BTreeMap<String, Waiting>,
    pub network: Option<&'a Network>,
    pub addresses: &'a [String],
    pub runtime: &'static str,
    pub wall: Wall,
}

/// Builds the status and notes in the memory which conditions flipped.
pub fn build(view: &View<'_>, memory: &mut Memory) -> Value {
    let pod = view.pod;
    let mut status = Value::map();
    let phase = phase(view, memory);
    status.set(&["phase"], phase);
    if let Some(ended) = &memory.ended {
        for (field, text) in [("reason", &ended.reason), ("message", &ended.message)] {
            if !text.is_empty() {
                status.set(&[field], text.as_str());
            }
        }
    }
    if let Some(generation) = pod.generation {
        status.set(&["observedGeneration"], generation);
    }
    if let Some(ms) = memory.accepted_ms {
        status.set(&["startTime"], time(ms));
    }
    status.set(&["qosClass"], qos_class(&pod.raw));
    let pod_addresses = if pod.host_network {
        view.addresses
    } else {
        &memory.addresses
    };
    let lists = [
        ("hostIP", "hostIPs", view.addresses),
        ("podIP", "podIPs", pod_addresses),
    ];
    for (one, all, addresses) in lists {
        if let Some(first) = addresses.first() {
            status.set(&[one], first.as_str());
            let list = addresses.iter().map(|ip| Value::from([("ip", ip.as_str())]));
            status.set(&[all], list.collect::<Value>());
        }
    }
    let list = |init: bool| -> Vec<Value> {
        let of = pod.containers.iter().filter(|spec| (spec.role != Role::App) == init);
        of.map(|spec| container(view, memory, spec)).collect()
    };
    let begun = |container: &ContainerMemory| container.current.is_some() || container.last.is_some();
    // Of a pod that was refused there is nothing to say but why: people see its reason, and not that it were starting.
    if memory.ended.is_none() || memory.containers.values().any(begun) {
        let (inits, apps) = (list(true), list(false));
        if !inits.is_empty() {
            status.set(&["initContainerStatuses"], inits);
        }
        status.set(&["containerStatuses"], apps);
    }
    let conditions = conditions(view, memory, phase);
    status.set(&["conditions"], conditions);
    status
}

fn time(ms: i64) -> String {
    rfc3339(ms.div_euclid(1000))
}

fn current<'a>(view: &View<'a>, memory: &Memory, name: &str) -> Option<&'a Seen> {
    let number = memory.containers.get(name)?.current.as_ref()?.number;
    view.seen
        .iter()
        .find(|seen| seen.labels.container == name && seen.labels.attempt == number)
}

fn running(view: &View<'_>, memory: &Memory, name: &str) -> bool {
    current(view, memory, name).is_some_and(|seen| matches!(seen.state, State::Running { .. }))
}

fn phase(view: &View<'_>, memory: &Memory) -> &'static str {
    let pod = view.pod;
    if let Some(ended) = &memory.ended {
        return if ended.succeeded { "Succeeded" } else { "Failed" };
    }
    let none = ContainerMemory::default();
    let apps = || pod.containers.iter().filter(|spec| spec.role == Role::App);
    let of = |spec: &ContainerSpec| memory.containers.get(&spec.name).unwrap_or(&none);
    let idle = |spec: &ContainerSpec| of(spec).current.is_none() && of(spec).last.is_some();
    if pod.deleting && apps().all(idle) {
        let succeeded = apps().all(|spec| of(spec).last.as_ref().is_some_and(|last| last.code == 0));
        return if succeeded { "Succeeded" } else { "Failed" };
    }
    let begun = |spec: &ContainerSpec| of(spec).last.is_some() || running(view, memory, &spec.name);
    if initialized(view, memory).is_empty() && apps().all(begun) {
        "Running"
    } else {
        "Pending"
    }
}

/// The init containers that hold the pod back.
fn initialized(view: &View<'_>, memory: &Memory) -> Vec<String> {
    let apps_run = view
        .pod
        .containers
        .iter()
        .any(|spec| spec.role == Role::App && running(view, memory, &spec.name));
    let incomplete = view.pod.containers.iter().filter(|spec| {
        let container = memory.containers.get(&spec.name);
        let passed = container.is_some_and(|container| match spec.role {
            Role::App => true,
            Role::Init => container.done && container.last.as_ref().is_none_or(|last| last.code == 0),
            Role::Sidecar => container.current.as_ref().is_some_and(|current| current.started),
        });
        spec.role != Role::App && !apps_run && !passed
    });
    incomplete.map(|spec| spec.name.clone()).collect()
}

fn conditions(view: &View<'_>, memory: &mut Memory, phase: &str) -> Vec<Value> {
    let pod = view.pod;
    let incomplete = initialized(view, memory);
    let ready = |spec: &&ContainerSpec| {
        let container = memory.containers.get(&spec.name);
        let current = container.and_then(|container| container.current.as_ref());
        current.is_some_and(|current| current.ready) && running(view, memory, &spec.name)
    };
    let unready: Vec<String> = pod
        .containers
        .iter()
        .filter(|spec| spec.role != Role::Init && !ready(spec))
        .map(|spec| spec.name.clone())
        .collect();
    let sandbox = memory.ended.is_none() && (view.network.is_some() || !view.seen.is_empty());
    let completed = phase == "Succeeded";
    let ended = memory.ended.is_some();
    let unready_reason = match (completed, ended) {
        (true, _) => ("PodCompleted", String::new()),
        (_, true) => ("PodFailed", String::new()),
        _ => {
            let message = format!("containers with unready status: [{}]", unready.join(" "));
            ("ContainersNotReady", message)
        }
    };
    let init_message = format!("containers with incomplete status: [{}]", incomplete.join(" "));
    let none = || ("", String::new());
    let all_ready = unready.is_empty() && !ended;
    let rows = [
        ("PodReadyToStartContainers", sandbox, none()),
        (
            "Initialized",
            incomplete.is_empty() || completed,
            ("ContainersNotInitialized", init_message),
        ),
        ("Ready", all_ready, unready_reason.clone()),
        ("ContainersReady", all_ready, unready_reason),
    ];
    let build = |(kind, status, (reason, message)): (&str, bool, (&str, String))| {
        let now = Condition { status, since_ms: view.wall.ms };
        let known = memory.conditions.entry(kind.to_owned()).or_insert(now);
        if known.status != status {
            *known = now;
        }
        let mut condition = Value::map();
        condition.set(&["type"], kind);
        condition.set(&["status"], if status { "True" } else { "False" });
        condition.set(&["lastTransitionTime"], time(known.since_ms));
        if let Some(generation) = pod.generation {
            condition.set(&["observedGeneration"], generation);
        }
        if !status && !reason.is_empty() {
            condition.set(&["reason"], reason);
            if !message.is_empty() {
                condition.set(&["message"], message);
            }
        }
        condition
    };
    rows.into_iter().map(build).collect()
}

fn container(view: &View<'_>, memory: &Memory, spec: &ContainerSpec) -> Value {
    let none = ContainerMemory::default();
    let container = memory.containers.get(&spec.name).unwrap_or(&none);
    let seen = current(view, memory, &spec.name);
    let runs = seen.filter(|seen| matches!(seen.state, State::Running { .. }));
    let mut status = Value::map();
    status.set(&["name"], spec.name.as_str());
    status.set(&["image"], spec.image.as_str());
    let last = container.last.as_ref();
    let (id, image_id) = match (seen, last) {
        (Some(seen), _) => (seen.id.as_str(), seen.image_id.as_str()),
        (None, Some(last)) => (last.id.as_str(), last.image_id.as_str()),
        (None, None) => ("", ""),
    };
    status.set(&["imageID"], image_id);
    if !id.is_empty() {
        status.set(&["containerID"], format!("{}://{id}", view.runtime));
    }
    status.set(&["restartCount"], container.restarts);
    let flags = container.current.as_ref().filter(|_| runs.is_some());
    let finished = container.done && last.is_some_and(|last| last.code == 0);
    let ready =
        flags.is_some_and(|current| current.ready && spec.role != Role::Init) || spec.role == Role::Init && finished;
    status.set(&["ready"], ready);
    status.set(
        &["started"],
        flags.is_some_and(|current| current.started && spec.role != Role::Init),
    );
    let mut last_state = Value::map();
    let stopping = memory.ended.is_some() || view.pod.deleting;
    match (runs.map(|seen| &seen.state), view.waiting.get(&spec.name), last) {
        (Some(State::Running { started_ms }), ..) => {
            status.set(&["state", "running", "startedAt"], time(*started_ms));
        }
        (_, None, Some(last)) if container.done || stopping => {
            status.set(&["state", "terminated"], terminated(last, view.runtime));
        }
        (_, waiting, _) => {
            let reason = match waiting {
                Some(waiting) if waiting.reason != CREATING => waiting.reason,
                Some(_) | None => being_made(view.pod),
            };
            status.set(&["state", "waiting", "reason"], reason);
            if let Some(waiting) = waiting.filter(|waiting| !waiting.message.is_empty()) {
                status.set(&["state", "waiting", "message"], waiting.message.as_str());
            }
        }
    }
    if let Some(last) = last.filter(|_| status.at(&["state", "terminated"]).is_none()) {
        last_state.set(&["terminated"], terminated(last, view.runtime));
    }
    status.set(&["lastState"], last_state);
    status
}

/// Being made, as the plan says it of any container.
const CREATING: &str = "ContainerCreating";

/// Why a container waits that only has to be made. Where init containers come first, that is what people are told of all:
/// `kubectl` counts the init containers (`Init:0/2`) where it reads this word.
fn being_made(pod: &Pod) -> &'static str {
    if pod.containers.iter().any(|spec| spec.role != Role::App) {
        "PodInitializing"
    } else {
        CREATING
    }
}

fn terminated(exit: &Exit, runtime: &str) -> Value {
    let mut state = Value::map();
    state.set(&["exitCode"], exit.code);
    state.set(&["reason"], exit.reason.as_str());
    state.set(&["startedAt"], time(exit.started_ms));
    state.set(&["finishedAt"], time(exit.finished_ms));
    if !exit.id.is_empty() {
        state.set(&["containerID"], format!("{runtime}://{}", exit.id));
    }
    if !exit.message.is_empty() {
        state.set(&["message"], exit.message.as_str());
    }
    state
}

/// The pod's quality of service: Guaranteed when every container limits CPU and memory and requests just that,
/// BestEffort when none says anything, else Burstable.
pub fn qos_class(pod: &Value) -> &'static str {
    let mut any = false;
    let mut guaranteed = true;
    let lists = ["containers", "initContainers"];
    for container in lists.iter().flat_map(|list| pod.list_at(&["spec", list])) {
        for resource in ["cpu", "memory"] {
            let amount = |list: &str| -> Option<Quantity> {
                let amount: Quantity = container.text_at(&["resources", list, resource])?.parse().ok()?;
                (amount.milli() > 0).then_some(amount)
            };
            let (request, limit) = (amount("requests"), amount("limits"));
            any |= request.is_some() || limit.is_some();
            guaranteed &= limit.is_some() && (request.is_none() || request == limit);
        }
    }
    match (any, guaranteed) {
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
        (false, _) => "BestEffort",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quality_of_service() {
        let check = |resources: &str, class: &str| {
            let json = format!(r#"{{"spec":{{"containers":[{{"resources":{resources}}}]}}}}"#);
            let pod = proto::value::json::parse(json.as_bytes()).unwrap();
            assert_eq!(qos_class(&pod), class, "{resources}");
        };
        check("{}", "BestEffort");
        check(r#"{"requests":{"cpu":"0"}}"#, "BestEffort");
        check(r#"{"requests":{"cpu":"1"}}"#, "Burstable");
        check(r#"{"limits":{"cpu":"1","memory":"1Gi"}}"#, "Guaranteed");
        check(
            r#"{"limits":{"cpu":"1","memory":"1Gi"},"requests":{"cpu":"1000m","memory":"1024Mi"}}"#,
            "Guaranteed",
        );
        check(
            r#"{"limits":{"cpu":"1","memory":"1Gi"},"requests":{"cpu":"500m"}}"#,
            "Burstable",
        );
    }
}
