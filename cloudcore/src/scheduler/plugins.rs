//! Filters and scores, each a row of a table.

use std::borrow::Cow;

use proto::object::quantity::Quantity;

use super::cache::{Cache, Node, Usage};
use super::need::{Need, ports_clash};

/// The best score of one plugin.
pub const SCORE_MAX: i64 = 100;

/// The taint of a node that is not in contact. It is no filter here: contact decides between nodes that would all do.
pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// What [`FILTERS`] says of a node that a pod's selector or affinity does not match.
pub const AFFINITY: &str = "node(s) didn't match Pod's node affinity/selector";

/// Why a node will not do, in Kubernetes' words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub reason: Cow<'static, str>,
    /// Whether it will not do until somebody changes the node or the pod. Places that are merely full come free.
    pub lasting: bool,
}

fn no(reason: &'static str, lasting: bool) -> Result<(), Refusal> {
    Err(Refusal { reason: Cow::Borrowed(reason), lasting })
}

/// One filter.
pub type Filter = fn(&Need, &Node, &Usage) -> Result<(), Refusal>;

/// All filters, in order; the first refusal counts, so that the counts of a message add up to the nodes.
pub const FILTERS: &[(&str, Filter)] = &[
    ("NodeName", node_name),
    ("Architecture", architecture),
    ("NodeAffinity", node_affinity),
    ("TaintToleration", taints),
    ("NodeUnschedulable", cordon),
    ("NodePorts", ports),
    ("NodeResourcesFit", resources),
];

fn node_name(need: &Need, node: &Node, _usage: &Usage) -> Result<(), Refusal> {
    match &need.node {
        Some(name) if *name != node.name => no("node(s) didn't match the requested node name", true),
        Some(_) | None => Ok(()),
    }
}

/// A pod that names an architecture gets its own reason: an image for another one is the commonest mistake at the edge.
fn architecture(need: &Need, node: &Node, _usage: &Usage) -> Result<(), Refusal> {
    let named = need
        .selector
        .0
        .iter()
        .find(|requirement| requirement.key == "kubernetes.io/arch");
    let label = node.labels.get("kubernetes.io/arch").map(String::as_str);
    if named.is_none_or(|requirement| requirement.matches(label)) {
        return Ok(());
    }
    no("node(s) didn't match the requested architecture", true)
}

fn node_affinity(need: &Need, node: &Node, _usage: &Usage) -> Result<(), Refusal> {
    let required = |terms: &Vec<super::need::Term>| terms.iter().any(|term| term.holds(&node.name, &node.labels));
    if need.selector.matches_map(&node.labels) && need.required.as_ref().is_none_or(required) {
        return Ok(());
    }
    no(AFFINITY, true)
}

fn taints(need: &Need, node: &Node, _usage: &Usage) -> Result<(), Refusal> {
    let kept_out = node
        .taints
        .iter()
        .filter(|taint| taint.keeps_out() && taint.key != UNREACHABLE && !need.tolerates(taint));
    let mut kept_out = kept_out.peekable();
    if kept_out.peek().is_none() {
        return Ok(());
    }
    // The node's own troubles pass; what a person set stays.
    let lasting = kept_out.any(|taint| !taint.key.starts_with("node.kubernetes.io/"));
    no("node(s) had untolerated taint(s)", lasting)
}

fn cordon(need: &Need, node: &Node, _usage: &Usage) -> Result<(), Refusal> {
    let taint = super::need::Taint {
        key: "node.kubernetes.io/unschedulable".to_owned(),
        value: String::new(),
        effect: "NoSchedule".to_owned(),
    };
    if !node.cordoned || need.tolerates(&taint) {
        return Ok(());
    }
    no("node(s) were unschedulable", false)
}

fn ports(need: &Need, _node: &Node, usage: &Usage) -> Result<(), Refusal> {
    if need.ports.is_empty() || !ports_clash(&need.ports, &usage.ports()) {
        return Ok(());
    }
    no("node(s) didn't have free ports for the requested pod ports", false)
}

fn resources(need: &Need, node: &Node, usage: &Usage) -> Result<(), Refusal> {
    // A node that has not said what it has yet is not full.
    if let Some(pods) = node.allocatable.get("pods") {
        let taken = i64::try_from(usage.pods).unwrap_or(i64::MAX);
        if taken >= pods.units() {
            return no("Too many pods", pods.units() <= 0);
        }
    }
    for (name, amount) in &need.requests {
        if *amount == Quantity::default() {
            continue;
        }
        let offered = node.allocatable.get(name).copied().unwrap_or_default();
        let taken = usage.requests.get(name).copied().unwrap_or_default();
        if taken + *amount > offered {
            return Err(Refusal {
                reason: Cow::Owned(format!("Insufficient {name}")),
                lasting: *amount > offered,
            });
        }
    }
    Ok(())
}

/// One score from 0 to [`SCORE_MAX`] per node, for all nodes that will do.
pub type Score = fn(&Need, &[&Node], &Cache) -> Vec<i64>;

/// All scores with their weights.
pub const SCORES: &[(&str, i64, Score)] = &[
    ("LeastAllocated", 1, least_allocated),
    ("NodeAffinity", 2, preferred_affinity),
    ("TaintToleration", 3, preferred_taints),
    ("Spread", 2, spread),
];

/// Rather where more is left, as a share of what there is.
fn least_allocated(need: &Need, nodes: &[&Node], cache: &Cache) -> Vec<i64> {
    let left = |node: &Node, resource: &str| {
        let offered = node.allocatable.get(resource).map_or(0, |amount| amount.milli());
        let of = |amounts: &super::need::Amounts| amounts.get(resource).map_or(0, |amount| amount.milli());
        let taken = of(&need.guessed) + cache.usage_of(&node.name).map_or(0, |usage| of(&usage.guessed));
        if offered <= 0 || taken >= offered {
            return 0;
        }
        i64::try_from((offered - taken) * i128::from(SCORE_MAX) / offered).unwrap_or(0)
    };
    nodes
        .iter()
        .map(|node| (left(node, "cpu") + left(node, "memory")) / 2)
        .collect()
}

fn preferred_affinity(need: &Need, nodes: &[&Node], _cache: &Cache) -> Vec<i64> {
    let weight = |node: &&Node| {
        let held = need
            .preferred
            .iter()
            .filter(|(_, term)| term.holds(&node.name, &node.labels));
        held.map(|(weight, _)| *weight).sum()
    };
    normalised(nodes.iter().map(weight).collect(), false)
}

fn preferred_taints(need: &Need, nodes: &[&Node], _cache: &Cache) -> Vec<i64> {
    let bad = |node: &&Node| {
        let taints = node
            .taints
            .iter()
            .filter(|taint| taint.effect == "PreferNoSchedule" && !need.tolerates(taint));
        i64::try_from(taints.count()).unwrap_or(i64::MAX)
    };
    normalised(nodes.iter().map(bad).collect(), true)
}

/// Rather where fewer pods of the same owner are.
fn spread(need: &Need, nodes: &[&Node], cache: &Cache) -> Vec<i64> {
    let same = |node: &&Node| {
        let owners = cache.usage_of(&node.name).map(|usage| &usage.owners);
        let count = owners
            .zip(need.owner.as_ref())
            .and_then(|(owners, owner)| owners.get(owner));
        i64::try_from(count.copied().unwrap_or(0)).unwrap_or(i64::MAX)
    };
    normalised(nodes.iter().map(same).collect(), true)
}

/// Spreads values over 0 to [`SCORE_MAX`] by the largest of them; `reverse` where less is better.
fn normalised(mut values: Vec<i64>, reverse: bool) -> Vec<i64> {
    let max = values.iter().copied().max().unwrap_or(0);
    for value in &mut values {
        let share = if max > 0 {
            value.saturating_mul(SCORE_MAX) / max
        } else {
            0
        };
        *value = if reverse { SCORE_MAX - share } else { share };
    }
    values
}
