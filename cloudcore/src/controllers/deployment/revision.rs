//! Which ReplicaSet is the current one, which revision it has, and how many old ones are kept.

use proto::value::{Value, canonical};

use super::replicaset::KIND;
use super::{Counts, Edit, Key, Object, Set, View, Write, int, owner, rolling};
use crate::controllers::plan::letters;

pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";
pub(super) const HISTORY: &str = "deployment.kubernetes.io/revision-history";
pub(super) const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
pub(super) const MAX: &str = "deployment.kubernetes.io/max-replicas";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
const HASH: &str = "pod-template-hash";
const HASH_LETTERS: usize = 10;

/// How many old ReplicaSets are kept where the Deployment does not say.
const HISTORY_DEFAULT: i64 = 10;

/// The current ReplicaSet and the old ones, oldest first.
pub(super) fn split(deployment: &Object, mut sets: Vec<Set>) -> (Option<Set>, Vec<Set>) {
    sets.sort_by(|a, b| (a.object.created(), &a.object.key).cmp(&(b.object.created(), &b.object.key)));
    let template = deployment.value.at(&["spec", "template"]);
    let is_current = |set: &Set| !set.object.is_deleting() && own_template(&set.object.value).as_ref() == template;
    // Two of one template can only come from outside: the oldest is the current one, as in Kubernetes.
    let current = sets.iter().position(is_current).map(|at| sets.remove(at));
    (current, sets)
}

/// The template of a ReplicaSet as the Deployment has it.
fn own_template(set: &Value) -> Option<Value> {
    let mut template = set.at(&["spec", "template"])?.clone();
    template.remove(&["metadata", "labels", HASH]);
    Some(template)
}

fn number(set: &Object) -> i64 {
    set.annotation(REVISION).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The revision that is one above all old ones.
fn next_revision(old: &[Set]) -> i64 {
    old.iter().map(|set| number(&set.object)).max().unwrap_or(0) + 1
}

/// A name-safe hash of the template. One whose name is taken, by another template or by a set that is not ours, is
/// passed over.
fn template_hash(deployment: &Object, view: &dyn View) -> String {
    let template = deployment.value.at(&["spec", "template"]).unwrap_or(&Value::Null);
    let mut form = canonical::encode(template);
    loop {
        let hash = letters(crate::controllers::hash(&form), HASH_LETTERS);
        let name = format!("{}-{hash}", deployment.key.name);
        let key = Key::new(KIND, deployment.key.namespace.clone(), name);
        if view.get(&key).is_none() {
            return hash;
        }
        form.push(0);
    }
}

/// The ReplicaSet of the Deployment's template.
pub(super) fn new_set(
    deployment: &Object,
    old: &[Set],
    wanted: usize,
    budget: &rolling::Budget,
    view: &dyn View,
) -> Value {
    let hash = template_hash(deployment, view);
    let mut template = deployment.value.at(&["spec", "template"]).cloned().unwrap_or_default();
    template.set(&["metadata", "labels", HASH], hash.as_str());
    let mut selector = deployment.value.at(&["spec", "selector"]).cloned().unwrap_or_default();
    selector.set(&["matchLabels", HASH], hash.as_str());
    let mut annotations = inherited(deployment);
    annotations.set(&[REVISION], next_revision(old).to_string());
    annotations.set(&[DESIRED], budget.replicas.to_string());
    annotations.set(&[MAX], (budget.replicas + budget.surge).to_string());
    let mut spec = Value::from([
        ("replicas", Value::from(int(wanted))),
        ("selector", selector),
        ("template", template.clone()),
    ]);
    if let Some(seconds) = deployment.value.at(&["spec", "minReadySeconds"]) {
        spec.set(&["minReadySeconds"], seconds.clone());
    }
    let metadata = Value::from([
        ("name", Value::from(format!("{}-{hash}", deployment.key.name))),
        ("namespace", deployment.key.namespace.as_str().into()),
        (
            "labels",
            template.at(&["metadata", "labels"]).cloned().unwrap_or_default(),
        ),
        ("annotations", annotations),
        ("ownerReferences", vec![owner::controller_reference(deployment)].into()),
    ]);
    Value::from([
        ("apiVersion", Value::from("apps/v1")),
        ("kind", "ReplicaSet".into()),
        ("metadata", metadata),
        ("spec", spec),
        ("status", [("replicas", 0)].into()),
    ])
}

/// The annotations of a Deployment that its ReplicaSets carry too.
fn inherited(deployment: &Object) -> Value {
    let mut annotations = deployment
        .value
        .at(&["metadata", "annotations"])
        .cloned()
        .unwrap_or_default();
    for own in [REVISION, HISTORY, DESIRED, MAX, LAST_APPLIED] {
        annotations.remove(&[own]);
    }
    if annotations.is_null() {
        Value::map()
    } else {
        annotations
    }
}

/// What the current ReplicaSet must say: annotations of the Deployment, and, where an old template became current
/// again, a revision above all others.
pub(super) fn sync(deployment: &Object, current: &Set, old: &[Set]) -> Vec<Edit> {
    let mut edits: Vec<_> = inherited(deployment)
        .as_map()
        .into_iter()
        .flatten()
        .map(|(name, value)| Edit::set(&["metadata", "annotations", name], value.clone()))
        .collect();
    let (has, next) = (number(&current.object), next_revision(old));
    if has < next {
        edits.push(Edit::set(&["metadata", "annotations", REVISION], next.to_string()));
        if has > 0 {
            let mut history = current.object.annotation(HISTORY).unwrap_or_default().to_owned();
            if !history.is_empty() {
                history.push(',');
            }
            history.push_str(&has.to_string());
            edits.push(Edit::set(&["metadata", "annotations", HISTORY], history));
        }
    }
    let seconds = deployment.value.at(&["spec", "minReadySeconds"]);
    if seconds != current.object.value.at(&["spec", "minReadySeconds"])
        && let Some(seconds) = seconds
    {
        edits.push(Edit::set(&["spec", "minReadySeconds"], seconds.clone()));
    }
    edits
}

/// Deletes the oldest ReplicaSets that hold no pod, past the limit of the history.
pub(super) fn expired(deployment: &Object, old: &[Set]) -> Vec<Write> {
    let limit = deployment
        .value
        .int_at(&["spec", "revisionHistoryLimit"])
        .unwrap_or(HISTORY_DEFAULT);
    let mut unused: Vec<_> = old
        .iter()
        .filter(|set| {
            let Counts { wanted, present, ending, .. } = set.counts;
            wanted + present + ending == 0 && !set.object.is_deleting()
        })
        .collect();
    unused.sort_by_key(|set| number(&set.object));
    let excess = unused.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
    unused
        .into_iter()
        .take(excess)
        .map(|set| Write::delete(&set.object))
        .collect()
}

/// The Deployment's own annotation: the revision of the current ReplicaSet.
pub(super) fn current_number(current: &Set, old: &[Set]) -> i64 {
    number(&current.object).max(next_revision(old))
}
