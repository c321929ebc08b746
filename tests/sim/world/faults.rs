//! What goes wrong, and that it heals.

use super::rim::When;
use super::{CARRIER_DEAD_MS, Event, Weather, World};
use crate::random::Random;

impl World {
    pub(super) fn fault(&mut self) {
        let node = self.random.index(self.edges.len());
        match self.random.below(12) {
            0 | 1 => {
                let length = self.random.below(120_000);
                let directions = 1 + self.random.below(3);
                self.cut(node, length, directions);
            }
            2 | 3 => {
                if let Some(carrier) = self.links[node].edge {
                    self.say(|_| format!("link of {node} breaks"));
                    self.lose_at_edge(node, carrier);
                }
            }
            4 => {
                self.say(|_| format!("edge {node} is killed"));
                self.kill_edge(node);
            }
            5 => {
                self.say(|_| format!("node {node} loses power"));
                self.edges[node].power_off();
                self.kill_edge(node);
            }
            6 | 7 => {
                self.say(|_| "cloud is killed".to_owned());
                self.kill_cloud();
            }
            8 => {
                let copy = self.edges[node].disk.clone();
                self.edges[node].copies.push(copy);
                let backup = self.cloud.store().clone();
                self.backups.push(backup);
            }
            9 => self.put_back_disk(node),
            10 => self.put_back_store(),
            _ => {
                let full = &mut self.edges[node].disk_full;
                *full = !*full;
                self.say(|world| format!("disk of {node} full: {}", world.edges[node].disk_full));
            }
        }
    }

    fn cut(&mut self, node: usize, length: u64, directions: u64) {
        self.say(|_| format!("link of {node} cut for {length} ms, directions {directions:b}"));
        let until = self.now + length;
        let link = &mut self.links[node];
        if directions & 1 != 0 {
            link.up_cut_until = until;
        }
        if directions & 2 != 0 {
            link.down_cut_until = until;
        }
        let carriers: Vec<_> = link.edge.iter().copied().collect();
        if length >= CARRIER_DEAD_MS {
            for carrier in carriers {
                self.at(CARRIER_DEAD_MS, Event::LostAtEdge(node, carrier));
                self.at(CARRIER_DEAD_MS, Event::LostAtCloud(node, carrier));
            }
        }
    }

    fn put_back_disk(&mut self, node: usize) {
        let copies = &self.edges[node].copies;
        if copies.is_empty() {
            return;
        }
        let copy = copies[self.random.index(copies.len())].clone();
        self.say(|_| format!("disk of {node} is replaced by an older copy"));
        self.edges[node].power_off();
        self.edges[node].disk = copy;
        self.edges[node].replaced = true;
        self.events_excused = true;
        self.kill_edge(node);
    }

    fn put_back_store(&mut self) {
        if self.backups.is_empty() {
            return;
        }
        let mut backup = self.backups[self.random.index(self.backups.len())].clone();
        let silently = self.random.chance(500);
        self.say(|_| format!("the cloud's store is restored, silently: {silently}"));
        let later = self.cloud.store().revision;
        if !silently {
            let mut random = Random::new(self.random.next());
            backup.new_epoch(&mut random, later);
        }
        // What the back-up does not have is taken out of the views, whatever a later restore brings back.
        for node in 0..self.edges.len() {
            let store = self.cloud.store();
            let lost = store.view(node).filter(|(uid, _)| backup.seen_by(node, *uid).is_none());
            self.removed.extend(lost.map(|(uid, _)| (node, uid)));
        }
        *self.cloud.store() = backup;
        self.events_excused = true;
        self.kill_cloud();
    }

    pub(super) fn crash_in_commit(&mut self) -> Option<When> {
        let crash = !self.healed && self.random.chance(self.weather.crash_in_commit);
        crash.then(|| {
            if self.random.chance(500) {
                When::Before
            } else {
                When::After
            }
        })
    }

    pub(super) fn heal(&mut self) {
        self.say(|_| "everything heals".to_owned());
        self.healed = true;
        self.weather = Weather { lost: 0, doubled: 0, late: 0, crash_in_commit: 0 };
        for node in 0..self.edges.len() {
            let link = &mut self.links[node];
            (link.up_cut_until, link.down_cut_until) = (0, 0);
            self.edges[node].disk_full = false;
        }
    }
}
