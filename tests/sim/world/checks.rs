//! What must hold: after every step, once everything is healed, and while nothing changes.

use std::collections::BTreeMap;

use proto::digest::EntryHash;
use proto::object::Revision;
use proto::session::{cloud, edge};

use super::World;
use crate::edge::{acked, status};

/// What a reconnect with nothing to say may cost, both directions, hello and welcome included.
const RECONNECT_BYTES_MAX: usize = 200;

/// A silent hour.
const SILENCE_MS: u64 = 3_600_000;

impl World {
    /// What a node acknowledged is on its disk, or something later is.
    pub(super) fn assert_held(&self, node: usize, revision: Revision) {
        let edge = &self.edges[node];
        if edge.replaced {
            return;
        }
        let store = self.cloud.store();
        for entry in store.entries_at_ever(node, revision) {
            match edge.disk.desired.get(&entry.uid) {
                Some((key, held, body)) => assert!(
                    *held >= entry.revision || EntryHash::of(key, entry.uid, body) == entry.hash,
                    "{key} on {node} was acknowledged at {} and is held at {held}",
                    entry.revision
                ),
                None => assert!(
                    self.removed.contains(&(node, entry.uid)) || store.seen_by(node, entry.uid).is_none(),
                    "{} on {node} was acknowledged and is not held",
                    entry.key
                ),
            }
        }
    }

    /// What a node takes for acknowledged was made durable at the cloud.
    pub(super) fn assert_acked_is_durable(&self, node: usize) {
        let Some(machine) = &self.edges[node].machine else {
            return;
        };
        let on_disk = acked(&self.edges[node].disk);
        for (uid, hash) in machine.acknowledged().iter().chain(on_disk) {
            assert!(
                self.reported.contains(&(node, uid, hash)),
                "the report of {uid} on {node} counts as acknowledged and never was durable"
            );
        }
    }

    pub(super) fn assert_converged(&self) {
        for (node, edge) in self.edges.iter().enumerate() {
            let store = self.cloud.store();
            let machine = edge.machine.as_ref().expect("the edge core is up again");
            assert!(machine.is_up(), "edge {node} has no session");
            let view = store.view(node).map(|(uid, object)| (uid, object.hash));
            assert!(edge.disk.inventory().iter().eq(view), "node {node} holds another view");
            let pods: BTreeMap<_, _> = store
                .view(node)
                .filter(|(_, object)| object.key.kind.as_str() == "Pod")
                .collect();
            assert!(
                pods.keys().eq(edge.runtime.keys()),
                "node {node} runs something else than it should"
            );
            for (uid, container) in &edge.runtime {
                assert_eq!(
                    Some(&container.spec),
                    pods[uid].projection.get("spec"),
                    "node {node} runs an old spec"
                );
                assert_eq!(
                    store.report(node, *uid),
                    Some(&status(container)),
                    "the cloud has an old report"
                );
            }
            assert_eq!(machine.pending(), 0, "edge {node} still has something to say");
            if !self.events_excused {
                let expected = self.emitted.get(&node).copied().unwrap_or(0);
                let events = store.events.get(&node).map(Vec::as_slice).unwrap_or_default();
                let mut numbers: Vec<_> = events.iter().filter_map(|event| event.int_at(&["number"])).collect();
                numbers.sort_unstable();
                numbers.dedup();
                assert_eq!(numbers.len(), events.len(), "an event of {node} was told twice");
                // What was said while the disk was full and the power went is lost; nothing else.
                assert!(numbers.len() as u64 <= expected);
            }
        }
    }

    /// Nothing changes: nothing is sent and nothing is written, also when what is seen is seen again.
    pub(super) fn assert_silent(&mut self) {
        let before = self.spent();
        for node in 0..self.edges.len() {
            let seen: Vec<_> = self.edges[node]
                .runtime
                .iter()
                .map(|(uid, seen)| (*uid, status(seen)))
                .collect();
            self.edge(node, edge::Input::Reports(seen));
            self.cloud(node, cloud::Input::Changed);
        }
        let end = self.now + SILENCE_MS;
        self.run_until(end);
        assert_eq!(
            self.spent(),
            before,
            "(frames, commits of edges, commits of the cloud, starts) of a silent hour"
        );
    }

    /// A node says one thing: it is acknowledged, and nothing comes back of it.
    pub(super) fn assert_a_report_is_only_acknowledged(&mut self) {
        for node in 0..self.edges.len() {
            let edge = &mut self.edges[node];
            let Some((uid, container)) = edge.runtime.iter_mut().next() else {
                continue;
            };
            container.ready = !container.ready;
            let (uid, report, held) = (*uid, status(container), edge.disk.inventory());
            let frames = self.frames;
            self.edge(node, edge::Input::Reports(vec![(uid, report)]));
            let end = self.now + 60_000;
            self.run_until(end);
            assert_eq!(self.frames - frames, 2, "frames for one report");
            assert_eq!(self.edges[node].disk.inventory(), held, "a report of {node} came back");
        }
        self.assert_converged();
    }

    pub(super) fn assert_reconnect_is_a_no_op(&mut self) {
        // Acknowledgements ride on the next commit; a clean stop saves them.
        for node in 0..self.edges.len() {
            self.edge(node, edge::Input::Flush);
        }
        let (_, edge_commits, cloud_commits, starts) = self.spent();
        let bytes = self.bytes;
        for node in 0..self.edges.len() {
            let carrier = self.links[node].edge.expect("the link is up");
            self.lose_at_edge(node, carrier);
        }
        let end = self.now + 60_000;
        self.run_until(end);
        self.assert_converged();
        let (_, edge_after, cloud_after, starts_after) = self.spent();
        assert_eq!(
            (edge_after, cloud_after, starts_after),
            (edge_commits, cloud_commits, starts)
        );
        let each = (self.bytes - bytes) / self.edges.len();
        assert!(each <= RECONNECT_BYTES_MAX, "a reconnect cost {each} bytes");
    }

    fn spent(&self) -> (u64, u64, u64, u64) {
        let commits = self.edges.iter().map(|edge| edge.commits).sum();
        let starts = self.edges.iter().map(|edge| edge.starts).sum();
        (self.frames, commits, self.cloud_commits, starts)
    }
}
