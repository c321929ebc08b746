//! What a Deployment says about itself: counts and the conditions Available and Progressing, in Kubernetes' words.

use std::time::Duration;

use super::{Counts, Edit, Object, Plan, Set, changes, pods, revision, rolling};
use crate::controllers::conditions::{self, condition};

/// A number that changes whenever a rollout moves.
pub(super) fn signature(current: Option<&Set>, old: &[Set]) -> u64 {
    let mut text = current.map(|set| set.object.key.name.clone()).unwrap_or_default();
    for set in current.into_iter().chain(old) {
        let Counts { wanted, present, ready, available, silent, .. } = set.counts;
        text.push_str(&format!(" {wanted} {present} {ready} {available} {silent}"));
    }
    crate::controllers::hash(text.as_bytes())
}

/// The status edits; returns when the progress deadline has to be looked at again.
pub(super) fn plan(
    deployment: &Object,
    current: Option<&Set>,
    old: &[Set],
    stalled: Duration,
    plan: &mut Plan,
) -> Option<Duration> {
    let budget = rolling::Budget::of(&deployment.value);
    let sum = |count: fn(&Counts) -> usize| {
        current
            .into_iter()
            .chain(old)
            .map(|set| count(&set.counts))
            .sum::<usize>()
    };
    let replicas = sum(|counts| counts.present);
    let available = sum(|counts| counts.available);
    let updated = current.map_or(0, |set| set.counts.present);
    let asked = sum(|counts| counts.wanted);
    let mut edits = vec![
        Edit::set(&["status", "observedGeneration"], deployment.generation()),
        Edit::count(&["status", "replicas"], replicas),
        Edit::count(&["status", "updatedReplicas"], updated),
        Edit::count(&["status", "readyReplicas"], sum(|counts| counts.ready)),
        Edit::count(&["status", "availableReplicas"], available),
        Edit::count(
            &["status", "unavailableReplicas"],
            asked.max(replicas).saturating_sub(available),
        ),
    ];
    edits.push(Edit::Condition(if available >= budget.floor() {
        condition(
            "Available",
            "True",
            "MinimumReplicasAvailable",
            "Deployment has minimum availability.",
        )
    } else {
        condition(
            "Available",
            "False",
            "MinimumReplicasUnavailable",
            "Deployment does not have minimum availability.",
        )
    }));
    let complete = updated == budget.replicas && replicas == budget.replicas && available == budget.replicas;
    let deadline = deployment
        .value
        .int_at(&["spec", "progressDeadlineSeconds"])
        .filter(|seconds| *seconds < i64::from(i32::MAX))
        .map(|_| pods::seconds(&deployment.value, &["spec", "progressDeadlineSeconds"]));
    let (progress, wait) = progress(deployment, current, old, complete, deadline, stalled);
    edits.extend(progress.map(Edit::Condition));
    if let Some(current) = current
        && !deployment.is_deleting()
    {
        let number = revision::current_number(current, old);
        edits.push(Edit::set(
            &["metadata", "annotations", revision::REVISION],
            number.to_string(),
        ));
    }
    plan.writes.extend(changes(deployment, edits));
    wait
}

fn progress(
    deployment: &Object,
    current: Option<&Set>,
    old: &[Set],
    complete: bool,
    deadline: Option<Duration>,
    stalled: Duration,
) -> (Option<proto::value::Value>, Option<Duration>) {
    let said = |status: &str, reason: &str, message: &str| Some(condition("Progressing", status, reason, message));
    let known = conditions::get(&deployment.value, "Progressing").and_then(|known| known.text_at(&["reason"]));
    if deployment.value.flag_at(&["spec", "paused"]) {
        return (said("Unknown", "DeploymentPaused", "Deployment is paused"), None);
    }
    let Some(current) = current else {
        if known == Some("DeploymentPaused") {
            return (said("Unknown", "DeploymentResumed", "Deployment is resumed"), None);
        }
        return (None, None);
    };
    let name = &current.object.key.name;
    if complete {
        let message = format!("ReplicaSet \"{name}\" has successfully progressed.");
        return (said("True", "NewReplicaSetAvailable", &message), None);
    }
    let waiting = rolling::waiting(old);
    if waiting > 0 {
        // Nobody is late: their nodes are out of contact, and everything else goes on.
        let message = format!(
            "ReplicaSet \"{name}\" is progressing; {waiting} pod(s) of older revisions wait on nodes that are not in contact."
        );
        return (said("True", "ReplicaSetUpdated", &message), None);
    }
    // Done once already: a pod that is missing now is a matter of availability, and one on a silent node of nobody's.
    let rolled = old.iter().all(|set| set.counts.places() == 0);
    if rolled && (known == Some("NewReplicaSetAvailable") || current.counts.silent > 0) {
        return (None, None);
    }
    if let Some(deadline) = deadline {
        if stalled >= deadline {
            let message = format!("ReplicaSet \"{name}\" has timed out progressing.");
            return (said("False", "ProgressDeadlineExceeded", &message), None);
        }
        if known == Some("ProgressDeadlineExceeded") && stalled > Duration::ZERO {
            return (None, Some(deadline.saturating_sub(stalled)));
        }
        let message = format!("ReplicaSet \"{name}\" is progressing.");
        return (
            said("True", "ReplicaSetUpdated", &message),
            Some(deadline.saturating_sub(stalled)),
        );
    }
    let message = format!("ReplicaSet \"{name}\" is progressing.");
    (said("True", "ReplicaSetUpdated", &message), None)
}
