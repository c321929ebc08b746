//! The run: what happens when.

mod carrying;
mod checks;
mod faults;
mod people;
mod rim;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use proto::digest::EntryHash;
use proto::object::{Epoch, Key, Uid};
use proto::session::{Carrier, cloud, edge};
use proto::value::Value;

use crate::cloud::{CloudCore, Store};
use crate::edge::EdgeCore;
use crate::random::Random;

/// How long faults and changes go on.
const BUSY_MS: u64 = 300_000;

/// How long the healed system may take to converge.
const HEAL_MS: u64 = 1_800_000;

/// A carrier over which nothing arrives is given up after this long.
const CARRIER_DEAD_MS: u64 = 40_000;

#[derive(Debug, Clone)]
enum Event {
    ToEdge(usize, Carrier, Vec<u8>),
    ToCloud(usize, Carrier, Vec<u8>),
    LostAtEdge(usize, Carrier),
    LostAtCloud(usize, Carrier),
    Dial(usize),
    EdgeWake(usize, u64),
    CloudWake(usize, u64),
    EdgeStart(usize),
    CloudStart,
    Changed(usize),
    User,
    Workload,
    Fault,
}

/// How bad this run's world is, in thousandths.
#[derive(Debug)]
struct Weather {
    lost: u64,
    doubled: u64,
    late: u64,
    crash_in_commit: u64,
}

pub(crate) struct World {
    now: u64,
    random: Random,
    talk: bool,
    events: BTreeMap<(u64, u64), Event>,
    scheduled: u64,
    weather: Weather,
    healed: bool,
    cloud: CloudCore,
    backups: Vec<Store>,
    edges: Vec<EdgeCore>,
    links: Vec<Link>,
    carriers: u64,
    /// Every report that ever became durable at the cloud.
    reported: BTreeSet<(usize, Uid, EntryHash)>,
    /// Every object that was ever taken out of a node's view.
    removed: BTreeSet<(usize, Uid)>,
    emitted: BTreeMap<usize, u64>,
    /// Events may be told twice or not at all: a disk or the store was put back, or a node was away too long.
    events_excused: bool,
    bytes: usize,
    frames: u64,
    cloud_commits: u64,
}

#[derive(Debug, Default)]
struct Link {
    edge: Option<Carrier>,
    cloud: BTreeSet<Carrier>,
    up_cut_until: u64,
    down_cut_until: u64,
    edge_alarm: u64,
    cloud_alarm: u64,
}

impl World {
    pub(crate) fn new(seed: u64, talk: bool) -> Self {
        let mut random = Random::new(seed);
        let nodes = 1 + random.index(3);
        let bad = random.below(4);
        let mut store = Store::default();
        store.epoch = Epoch(random.next());
        let weather = Weather {
            lost: bad * random.below(60),
            doubled: bad * random.below(60),
            late: bad * random.below(80),
            crash_in_commit: random.below(30),
        };
        let mut world = Self {
            now: 0,
            talk,
            events: BTreeMap::new(),
            scheduled: 0,
            weather,
            healed: false,
            cloud: CloudCore {
                store: Arc::new(Mutex::new(store)),
                machines: Vec::new(),
                up: false,
            },
            backups: Vec::new(),
            edges: (0..nodes).map(|_| EdgeCore::new()).collect(),
            links: (0..nodes).map(|_| Link::default()).collect(),
            carriers: 0,
            reported: BTreeSet::new(),
            removed: BTreeSet::new(),
            emitted: BTreeMap::new(),
            events_excused: false,
            bytes: 0,
            frames: 0,
            cloud_commits: 0,
            random,
        };
        world.say(|world| format!("{nodes} nodes, {:?}", world.weather));
        for node in 0..nodes {
            let uid = world.random.uid();
            let key = Key::new("Node", "", format!("node-{node}"));
            let body = Value::from([("metadata", Value::from([("labels", Value::from([("site", "here")]))]))]);
            world.cloud.store().create(uid, key, [node].into(), body);
        }
        world.at(0, Event::CloudStart);
        for node in 0..nodes {
            world.at(1, Event::EdgeStart(node));
            world.at(2, Event::Dial(node));
        }
        for event in [Event::User, Event::Workload, Event::Fault] {
            world.at(100, event);
        }
        world
    }

    pub(crate) fn run(mut self) {
        self.run_until(BUSY_MS);
        self.heal();
        self.run_until(BUSY_MS + HEAL_MS);
        self.assert_converged();
        self.assert_silent();
        self.assert_a_report_is_only_acknowledged();
        self.assert_reconnect_is_a_no_op();
    }

    fn run_until(&mut self, end: u64) {
        while let Some(entry) = self.events.first_entry() {
            if entry.key().0 > end {
                break;
            }
            let ((now, _), event) = entry.remove_entry();
            self.now = now;
            self.happen(event);
        }
        self.now = end;
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::User | Event::Workload | Event::Fault if self.healed => {}
            Event::ToEdge(node, carrier, frame) => {
                if self.links[node].edge == Some(carrier) {
                    self.edge(node, edge::Input::Frame(frame));
                }
            }
            Event::ToCloud(node, carrier, frame) => {
                if self.links[node].cloud.contains(&carrier) {
                    self.cloud(node, cloud::Input::Frame(carrier, frame));
                }
            }
            Event::LostAtEdge(node, carrier) => self.lose_at_edge(node, carrier),
            Event::LostAtCloud(node, carrier) => {
                if self.links[node].cloud.remove(&carrier) {
                    self.cloud(node, cloud::Input::Lost(carrier));
                }
            }
            Event::Dial(node) => self.dial(node),
            Event::EdgeWake(node, alarm) => {
                if self.links[node].edge_alarm == alarm && self.edges[node].machine.is_some() {
                    self.tick_edge(node);
                }
            }
            Event::CloudWake(node, alarm) => {
                if self.links[node].cloud_alarm == alarm && self.cloud.up {
                    self.tick_cloud(node);
                }
            }
            Event::EdgeStart(node) => self.start_edge(node),
            Event::CloudStart => self.start_cloud(),
            Event::Changed(node) => self.cloud(node, cloud::Input::Changed),
            Event::User => {
                if self.cloud.up {
                    self.user();
                }
                self.again(4000, Event::User);
            }
            Event::Workload => {
                let node = self.random.index(self.edges.len());
                self.workload(node);
                self.again(3000, Event::Workload);
            }
            Event::Fault => {
                self.fault();
                self.again(15_000, Event::Fault);
            }
        }
    }

    fn again(&mut self, within: u64, event: Event) {
        if !self.healed {
            let wait = 1 + self.random.below(within);
            self.at(wait, event);
        }
    }

    fn at(&mut self, wait: u64, event: Event) {
        self.scheduled += 1;
        self.events.insert((self.now + wait, self.scheduled), event);
    }

    #[expect(clippy::print_stderr, reason = "only for whoever asked for one seed")]
    fn say(&self, what: impl FnOnce(&Self) -> String) {
        if self.talk {
            eprintln!("{:>9} {}", self.now, what(self));
        }
    }
}
