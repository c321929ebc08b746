//! Where a pod goes, and why nowhere.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::cache::{Cache, Node, Usage};
use super::need::Need;
use super::plugins::{AFFINITY, FILTERS, Refusal, SCORES};

/// What the scheduler says about a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Bind {
        node: String,
        /// The node is not in contact: it gets the pod when it is back.
        on_return: bool,
    },
    No {
        message: String,
    },
}

/// Decides for one pod.
///
/// Nodes in contact come first. A node that is not in contact gets a pod only if no other node could ever match it: a
/// silent node changes where new work goes, and work that belongs there waits there. Where a node in contact matches
/// and is only full for now, the pod waits for that.
pub fn schedule(need: &Need, cache: &Cache) -> Decision {
    let (mut fit, mut silent_fit) = (Vec::new(), Vec::new());
    let mut reasons: BTreeMap<Cow<'static, str>, usize> = BTreeMap::new();
    let (mut total, mut may_fit_later) = (0usize, false);
    let nothing = Usage::default();
    let named = need.named();
    let candidates: Vec<_> = match &named {
        // Not every node has to be asked; those that are not named all say the same.
        Some(names) => {
            let nodes: Vec<_> = names.iter().filter_map(|name| cache.node(name)).collect();
            let others = cache.count() - nodes.len();
            if others > 0 {
                reasons.insert(Cow::Borrowed(AFFINITY), others);
                total += others;
            }
            nodes
        }
        None => cache.nodes().collect(),
    };
    for node in candidates {
        total += 1;
        let usage = cache.usage_of(&node.name).unwrap_or(&nothing);
        match (refusal(need, node, usage), node.known) {
            (None, true) => fit.push(node),
            (None, false) => silent_fit.push(node),
            (Some(refusal), known) => {
                may_fit_later |= known && !refusal.lasting;
                *reasons.entry(refusal.reason).or_default() += 1;
            }
        }
    }
    if let Some(node) = best(need, &fit, cache) {
        return Decision::Bind { node, on_return: false };
    }
    if !may_fit_later && let Some(node) = best(need, &silent_fit, cache) {
        return Decision::Bind { node, on_return: true };
    }
    if !silent_fit.is_empty() {
        reasons.insert(Cow::Borrowed("node(s) were not in contact"), silent_fit.len());
    }
    Decision::No { message: message(total, &reasons) }
}

/// The first filter that refuses the node.
fn refusal(need: &Need, node: &Node, usage: &Usage) -> Option<Refusal> {
    FILTERS.iter().find_map(|(_, filter)| filter(need, node, usage).err())
}

/// Whether a node matches a pod for good, whatever is taken of it now: what a daemon set asks.
pub fn suits(need: &Need, node: &Node) -> bool {
    refusal(need, node, &Usage::default()).is_none_or(|refusal| !refusal.lasting)
}

fn best(need: &Need, nodes: &[&Node], cache: &Cache) -> Option<String> {
    let mut sums = vec![0i64; nodes.len()];
    for (_, weight, score) in SCORES {
        for (sum, score) in sums.iter_mut().zip(score(need, nodes, cache)) {
            *sum += weight * score;
        }
    }
    // Of equals the first by name: the same state gives the same answer.
    let best = (0..nodes.len()).max_by_key(|at| (sums[*at], std::cmp::Reverse(*at)))?;
    Some(nodes[best].name.clone())
}

fn message(total: usize, reasons: &BTreeMap<Cow<'static, str>, usize>) -> String {
    if total == 0 {
        return "no nodes available to schedule pods".to_owned();
    }
    let mut counted: Vec<_> = reasons
        .iter()
        .map(|(reason, count)| format!("{count} {reason}"))
        .collect();
    counted.sort();
    format!("0/{total} nodes are available: {}.", counted.join(", "))
}
