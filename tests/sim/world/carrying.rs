//! Both cores at work: their processes, what their machines ask for, and what travels between them.

use std::sync::Arc;

use proto::object::Uid;
use proto::session::cloud::Cloud;
use proto::session::{Carrier, carry_out, cloud, edge};
use proto::time::Mono;

use super::rim::{Clock, CloudDisk, EdgeDisk, News, Rim, poll_once};
use super::{CARRIER_DEAD_MS, Event, World};
use crate::cloud::NodeView;
use crate::edge::EdgeCore;
use crate::random::Random;

impl World {
    pub(super) fn start_edge(&mut self, node: usize) {
        if self.edges[node].machine.is_none() {
            let seed = self.random.next();
            self.say(|_| format!("edge {node} starts"));
            self.edges[node].start(node, seed);
            self.reconcile(node);
        }
    }

    pub(super) fn edge(&mut self, node: usize, input: edge::Input) {
        let now = Mono(self.now);
        let Some(machine) = &mut self.edges[node].machine else {
            return;
        };
        machine.handle(now, input);
        self.carry_out_edge(node);
    }

    pub(super) fn tick_edge(&mut self, node: usize) {
        let now = Mono(self.now);
        let Some(machine) = &mut self.edges[node].machine else {
            return;
        };
        machine.tick(now);
        self.carry_out_edge(node);
    }

    fn carry_out_edge(&mut self, node: usize) {
        let crash = self.crash_in_commit();
        let mut rim = Rim::default();
        let EdgeCore { machine, disk, disk_full, commits, .. } = &mut self.edges[node];
        let Some(running) = machine else { return };
        let mut disk = EdgeDisk { disk, full: *disk_full, crash, commits };
        let (mut clock, mut news) = (Clock { now: self.now, at: None }, News(Vec::new()));
        let done = poll_once(carry_out(running, &(), &mut disk, &mut rim, &mut clock, &mut news));
        for (carrier, frame) in rim.sent {
            self.send(node, carrier, frame, true);
        }
        if !done {
            self.say(|_| format!("edge {node} dies in a commit"));
            self.kill_edge(node);
            return;
        }
        self.links[node].edge_alarm += 1;
        if let Some(at) = clock.at {
            let alarm = self.links[node].edge_alarm;
            self.at(at.0.saturating_sub(self.now).max(1), Event::EdgeWake(node, alarm));
        }
        for carrier in rim.hung_up {
            self.lose_at_edge(node, carrier);
        }
        for news in news.0 {
            self.say(|_| format!("edge {node}: {news:?}"));
            match news {
                edge::News::Changed(_) => self.reconcile(node),
                edge::News::Up { .. } => self.edges[node].replaced = false,
                edge::News::Violated(violation) => panic!("edge {node}: {violation:?}"),
                edge::News::EventsDropped(_) => self.events_excused = true,
                edge::News::Synced(_)
                | edge::News::Refused(_)
                | edge::News::NotDurable(_)
                | edge::News::Certificate(_) => {}
            }
        }
        self.assert_acked_is_durable(node);
    }

    pub(super) fn reconcile(&mut self, node: usize) {
        let (store, removed) = (self.cloud.store(), &self.removed);
        let (reports, gone) =
            self.edges[node].reconcile(|uid| store.seen_by(node, uid).is_none() || removed.contains(&(node, uid)));
        drop(store);
        self.edge(node, edge::Input::Reports(reports));
        for uid in gone {
            self.edge(node, edge::Input::Gone(uid));
        }
    }

    pub(super) fn kill_edge(&mut self, node: usize) {
        self.edges[node].machine = None;
        if let Some(carrier) = self.links[node].edge.take() {
            let wait = self.random.below(CARRIER_DEAD_MS);
            self.at(wait, Event::LostAtCloud(node, carrier));
        }
        let wait = 1 + self.random.below(20_000);
        self.at(wait, Event::EdgeStart(node));
        self.at(wait + 1, Event::Dial(node));
    }

    pub(super) fn start_cloud(&mut self) {
        if !self.cloud.up {
            self.say(|_| "cloud starts".to_owned());
            self.cloud.up = true;
            let seeds: Vec<_> = self.edges.iter().map(|_| self.random.next()).collect();
            self.cloud.machines = seeds.into_iter().map(Cloud::new).collect();
        }
    }

    pub(super) fn kill_cloud(&mut self) {
        self.cloud.up = false;
        self.cloud.machines.clear();
        for node in 0..self.links.len() {
            for carrier in std::mem::take(&mut self.links[node].cloud) {
                let wait = self.random.below(CARRIER_DEAD_MS);
                self.at(wait, Event::LostAtEdge(node, carrier));
            }
        }
        let wait = 1 + self.random.below(20_000);
        self.at(wait, Event::CloudStart);
    }

    pub(super) fn cloud(&mut self, node: usize, input: cloud::Input) {
        if !self.cloud.up {
            return;
        }
        let view = NodeView { store: Arc::clone(&self.cloud.store), node };
        self.cloud.machines[node].handle(Mono(self.now), input, &view);
        self.carry_out_cloud(node);
    }

    pub(super) fn tick_cloud(&mut self, node: usize) {
        self.cloud.machines[node].tick(Mono(self.now));
        self.carry_out_cloud(node);
    }

    fn carry_out_cloud(&mut self, node: usize) {
        let crash = self.crash_in_commit();
        let mut rim = Rim::default();
        let (mut clock, mut news) = (Clock { now: self.now, at: None }, News(Vec::new()));
        let view = NodeView { store: Arc::clone(&self.cloud.store), node };
        let context: &(dyn cloud::View + Send + Sync) = &view;
        let mut disk = CloudDisk {
            store: &self.cloud.store,
            node,
            crash,
            reported: &mut self.reported,
            removed: &mut self.removed,
            commits: &mut self.cloud_commits,
        };
        let machine = &mut self.cloud.machines[node];
        let commits = *disk.commits;
        let done = poll_once(carry_out(machine, context, &mut disk, &mut rim, &mut clock, &mut news));
        let wrote = *disk.commits > commits;
        for (carrier, frame) in rim.sent {
            self.send(node, carrier, frame, false);
        }
        if wrote {
            self.changed();
        }
        if !done {
            self.say(|_| format!("cloud dies in a commit for {node}"));
            self.kill_cloud();
            return;
        }
        self.links[node].cloud_alarm += 1;
        if let Some(at) = clock.at {
            let alarm = self.links[node].cloud_alarm;
            self.at(at.0.saturating_sub(self.now).max(1), Event::CloudWake(node, alarm));
        }
        for carrier in rim.hung_up {
            if self.links[node].cloud.remove(&carrier) {
                self.at(20, Event::LostAtEdge(node, carrier));
            }
        }
        for news in news.0 {
            self.say(|_| format!("cloud for {node}: {news:?}"));
            match news {
                cloud::News::Acked(revision) => self.assert_held(node, revision),
                cloud::News::Behind(revision) => {
                    let mut random = Random::new(self.random.next());
                    self.cloud.store().new_epoch(&mut random, revision);
                    // Sessions belong to an epoch.
                    self.kill_cloud();
                    return;
                }
                cloud::News::Violated(violation) => panic!("cloud for {node}: {violation:?}"),
                cloud::News::Foreign { versions } => panic!("{node} speaks versions {versions:?}"),
                cloud::News::Duplicate(boot) => panic!("{boot} is no duplicate"),
                cloud::News::Up { .. } | cloud::News::NotDurable(_) | cloud::News::Request(_) => {}
            }
        }
    }

    /// Tells every session that its view may have changed.
    pub(super) fn changed(&mut self) {
        for node in 0..self.edges.len() {
            self.at(1, Event::Changed(node));
        }
    }

    pub(super) fn delete(&mut self, uid: Uid) {
        let mut store = self.cloud.store();
        if let Some(object) = store.object(uid) {
            self.removed.extend(object.nodes.iter().map(|node| (*node, uid)));
        }
        store.delete(uid);
    }

    fn send(&mut self, node: usize, carrier: Carrier, frame: Vec<u8>, up: bool) {
        self.frames += 1;
        self.bytes += frame.len();
        let link = &self.links[node];
        let cut = if up { link.up_cut_until } else { link.down_cut_until };
        if self.now < cut || self.random.chance(self.weather.lost) {
            return;
        }
        let copies = 1 + u64::from(self.random.chance(self.weather.doubled));
        for _ in 0..copies {
            let late = if self.random.chance(self.weather.late) {
                self.random.below(500)
            } else {
                0
            };
            let event = if up {
                Event::ToCloud(node, carrier, frame.clone())
            } else {
                Event::ToEdge(node, carrier, frame.clone())
            };
            self.at(20 + late, event);
        }
    }

    pub(super) fn dial(&mut self, node: usize) {
        let link = &self.links[node];
        if link.edge.is_some() || self.edges[node].machine.is_none() {
            return;
        }
        if !self.cloud.up || self.now < link.up_cut_until || self.now < link.down_cut_until {
            let wait = 500 + self.random.below(5000);
            self.at(wait, Event::Dial(node));
            return;
        }
        self.carriers += 1;
        let carrier = Carrier(self.carriers);
        self.links[node].edge = Some(carrier);
        self.links[node].cloud.insert(carrier);
        self.edge(node, edge::Input::Connected(carrier));
    }

    pub(super) fn lose_at_edge(&mut self, node: usize, carrier: Carrier) {
        if self.links[node].edge != Some(carrier) {
            return;
        }
        self.links[node].edge = None;
        self.edge(node, edge::Input::Lost(carrier));
        let (noticed, redial) = (self.random.below(CARRIER_DEAD_MS), 500 + self.random.below(5000));
        self.at(noticed, Event::LostAtCloud(node, carrier));
        self.at(redial, Event::Dial(node));
    }
}
