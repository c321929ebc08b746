//! The run: what happens when, what the faults do, and what must hold.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use proto::digest::EntryHash;
use proto::object::{Epoch, Key, Revision, Uid};
use proto::session::cloud::Cloud;
use proto::session::{Carrier, CommitError, Listener, Timer, Wire, carry_out, cloud, edge};
use proto::time::Mono;
use proto::value::Value;

use crate::cloud::{CloudCore, NodeView, Store, commit};
use crate::edge::{Disk, EdgeCore, acked, status};
use crate::random::Random;

/// How long faults and changes go on.
const BUSY_MS: u64 = 300_000;

/// How long the healed system may take to converge.
const HEAL_MS: u64 = 1_800_000;

/// A silent hour.
const SILENCE_MS: u64 = 3_600_000;

/// A carrier over which nothing arrives is given up after this long.
const CARRIER_DEAD_MS: u64 = 40_000;

/// What a reconnect with nothing to say may cost, both directions, hello and welcome included.
const RECONNECT_BYTES_MAX: usize = 200;

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

    // The edge.

    fn start_edge(&mut self, node: usize) {
        if self.edges[node].machine.is_none() {
            let seed = self.random.next();
            self.say(|_| format!("edge {node} starts"));
            self.edges[node].start(node, seed);
            self.reconcile(node);
        }
    }

    fn edge(&mut self, node: usize, input: edge::Input) {
        let now = Mono(self.now);
        let Some(machine) = &mut self.edges[node].machine else {
            return;
        };
        machine.handle(now, input);
        self.carry_out_edge(node);
    }

    fn tick_edge(&mut self, node: usize) {
        let now = Mono(self.now);
        let Some(machine) = &mut self.edges[node].machine else {
            return;
        };
        machine.tick(now);
        self.carry_out_edge(node);
    }

    fn carry_out_edge(&mut self, node: usize) {
        let crash = self.crash_in_commit();
        let mut rim = Rim::new(self.now);
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

    fn reconcile(&mut self, node: usize) {
        let view = self.cloud.store().view(node);
        let removed = &self.removed;
        let (reports, gone) =
            self.edges[node].reconcile(|uid| !view.contains_key(&uid) || removed.contains(&(node, uid)));
        self.edge(node, edge::Input::Reports(reports));
        for uid in gone {
            self.edge(node, edge::Input::Gone(uid));
        }
    }

    fn kill_edge(&mut self, node: usize) {
        self.edges[node].machine = None;
        if let Some(carrier) = self.links[node].edge.take() {
            let wait = self.random.below(CARRIER_DEAD_MS);
            self.at(wait, Event::LostAtCloud(node, carrier));
        }
        let wait = 1 + self.random.below(20_000);
        self.at(wait, Event::EdgeStart(node));
        self.at(wait + 1, Event::Dial(node));
    }

    // The cloud.

    fn start_cloud(&mut self) {
        if !self.cloud.up {
            self.say(|_| "cloud starts".to_owned());
            self.cloud.up = true;
            let seeds: Vec<_> = self.edges.iter().map(|_| self.random.next()).collect();
            self.cloud.machines = seeds.into_iter().map(Cloud::new).collect();
        }
    }

    fn kill_cloud(&mut self) {
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

    fn cloud(&mut self, node: usize, input: cloud::Input) {
        if !self.cloud.up {
            return;
        }
        let view = NodeView { store: Arc::clone(&self.cloud.store), node };
        self.cloud.machines[node].handle(Mono(self.now), input, &view);
        self.carry_out_cloud(node);
    }

    fn tick_cloud(&mut self, node: usize) {
        self.cloud.machines[node].tick(Mono(self.now));
        self.carry_out_cloud(node);
    }

    fn carry_out_cloud(&mut self, node: usize) {
        let crash = self.crash_in_commit();
        let mut rim = Rim::new(self.now);
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
        let done = poll_once(carry_out(machine, context, &mut disk, &mut rim, &mut clock, &mut news));
        for (carrier, frame) in rim.sent {
            self.send(node, carrier, frame, false);
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
                cloud::News::Duplicate(boot) => panic!("{boot} is no duplicate"),
                cloud::News::Up { .. } | cloud::News::NotDurable(_) | cloud::News::Request(_) => {}
            }
        }
    }

    /// Tells every session that its view may have changed.
    fn changed(&mut self) {
        for node in 0..self.edges.len() {
            self.at(1, Event::Changed(node));
        }
    }

    fn delete(&mut self, uid: Uid) {
        let store = Arc::clone(&self.cloud.store);
        let mut store = store.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(object) = store.objects.get(&uid) {
            self.removed.extend(object.nodes.iter().map(|node| (*node, uid)));
        }
        store.delete(uid);
    }

    // What travels.

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

    fn dial(&mut self, node: usize) {
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

    fn lose_at_edge(&mut self, node: usize, carrier: Carrier) {
        if self.links[node].edge != Some(carrier) {
            return;
        }
        self.links[node].edge = None;
        self.edge(node, edge::Input::Lost(carrier));
        let (noticed, redial) = (self.random.below(CARRIER_DEAD_MS), 500 + self.random.below(5000));
        self.at(noticed, Event::LostAtCloud(node, carrier));
        self.at(redial, Event::Dial(node));
    }

    // What people, workloads and fate do.

    fn user(&mut self) {
        let pods: Vec<_> = self.objects("Pod");
        let node = self.random.index(self.edges.len());
        let name = format!("web-{}", self.random.below(6));
        let number = self.random.next() >> 1;
        match self.random.below(8) {
            0..=2 if !pods.iter().any(|(_, key)| key.name == name) => {
                self.create_pod(node, &name, number);
            }
            3 if !pods.is_empty() => {
                let (uid, _) = pods[self.random.index(pods.len())].clone();
                self.edit(uid, |object| object.body.set(&["spec", "number"], number));
            }
            4 if !pods.is_empty() => {
                let (uid, _) = pods[self.random.index(pods.len())].clone();
                self.edit(uid, |object| object.deleting = true);
            }
            5 if !pods.is_empty() => {
                // By force, and another one under the same name at once.
                let (uid, key) = pods[self.random.index(pods.len())].clone();
                let nodes = self.cloud.store().objects[&uid].nodes.clone();
                self.delete(uid);
                let node = nodes.into_iter().next().unwrap_or(node);
                self.create_pod(node, &key.name, number);
            }
            _ => self.config(number),
        }
        self.changed();
    }

    fn objects(&self, kind: &str) -> Vec<(Uid, Key)> {
        let store = self.cloud.store();
        let objects = store
            .objects
            .iter()
            .filter(|(_, object)| object.key.kind.as_str() == kind);
        objects.map(|(uid, object)| (*uid, object.key.clone())).collect()
    }

    fn create_pod(&mut self, node: usize, name: &str, number: u64) {
        let uid = self.random.uid();
        let body = Value::from([(
            "spec",
            Value::from([
                ("number", Value::from(number)),
                (
                    "containers",
                    Value::from_iter([Value::from([("name", "web"), ("image", "web:1")])]),
                ),
            ]),
        )]);
        self.cloud
            .store()
            .create(uid, Key::new("Pod", "default", name), [node].into(), body);
    }

    fn config(&mut self, number: u64) {
        let configs = self.objects("ConfigMap");
        // Now and then one that takes several frames.
        let size = if self.random.chance(200) { 40_000 } else { 40 };
        let text: String = (0..size)
            .map(|at| char::from(b'a' + u8::try_from((at ^ number) % 26).unwrap_or(0)))
            .collect();
        if configs.len() < 3 {
            let uid = self.random.uid();
            let nodes = (0..self.edges.len()).collect();
            let key = Key::new("ConfigMap", "default", format!("config-{number}"));
            self.cloud.store().create(
                uid,
                key,
                nodes,
                Value::from([("data", [("text", text)])].map(|(name, data)| (name, Value::from(data)))),
            );
        } else {
            let (uid, _) = configs[self.random.index(configs.len())].clone();
            if self.random.chance(150) {
                self.delete(uid);
            } else {
                self.edit(uid, |object| object.body.set(&["data", "text"], text));
            }
        }
    }

    fn edit(&mut self, uid: Uid, edit: impl FnOnce(&mut crate::cloud::Object)) {
        let mut store = self.cloud.store();
        if let Some(mut object) = store.objects.get(&uid).cloned() {
            edit(&mut object);
            store.put(uid, object);
        }
    }

    fn workload(&mut self, node: usize) {
        let uids: Vec<_> = self.edges[node].runtime.keys().copied().collect();
        if self.edges[node].machine.is_none() {
            return;
        }
        match self.random.below(4) {
            0 | 1 if !uids.is_empty() => {
                let uid = uids[self.random.index(uids.len())];
                if let Some(container) = self.edges[node].runtime.get_mut(&uid) {
                    container.ready = !container.ready;
                    let report = status(container);
                    self.edge(node, edge::Input::Reports(vec![(uid, report)]));
                }
            }
            2 if !uids.is_empty() => {
                self.edges[node].runtime.remove(&uids[self.random.index(uids.len())]);
                self.reconcile(node);
            }
            _ => {
                let number = self.emitted.entry(node).or_default();
                *number += 1;
                let event = Value::from([("node", Value::from(node as u64)), ("number", (*number).into())]);
                self.edge(node, edge::Input::Event(event));
            }
        }
    }

    fn fault(&mut self) {
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
        *self.cloud.store() = backup;
        self.events_excused = true;
        self.kill_cloud();
    }

    fn crash_in_commit(&mut self) -> Option<When> {
        let crash = !self.healed && self.random.chance(self.weather.crash_in_commit);
        crash.then(|| {
            if self.random.chance(500) {
                When::Before
            } else {
                When::After
            }
        })
    }

    // What must hold.

    /// What a node acknowledged is on its disk, or something later is.
    fn assert_held(&self, node: usize, revision: Revision) {
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
                    self.removed.contains(&(node, entry.uid)) || !store.view(node).contains_key(&entry.uid),
                    "{} on {node} was acknowledged and is not held",
                    entry.key
                ),
            }
        }
    }

    /// What a node takes for acknowledged was made durable at the cloud.
    fn assert_acked_is_durable(&self, node: usize) {
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

    fn heal(&mut self) {
        self.say(|_| "everything heals".to_owned());
        self.healed = true;
        self.weather = Weather { lost: 0, doubled: 0, late: 0, crash_in_commit: 0 };
        for node in 0..self.edges.len() {
            let link = &mut self.links[node];
            (link.up_cut_until, link.down_cut_until) = (0, 0);
            self.edges[node].disk_full = false;
        }
    }

    fn assert_converged(&self) {
        for (node, edge) in self.edges.iter().enumerate() {
            let store = self.cloud.store();
            let machine = edge.machine.as_ref().expect("the edge core is up again");
            assert!(machine.is_up(), "edge {node} has no session");
            assert_eq!(
                edge.disk.inventory(),
                store.inventory(node),
                "node {node} holds another view"
            );
            let pods: BTreeMap<_, _> = store
                .view(node)
                .into_iter()
                .filter(|(_, (key, _))| key.kind.as_str() == "Pod")
                .collect();
            assert!(
                pods.keys().eq(edge.runtime.keys()),
                "node {node} runs something else than it should"
            );
            for (uid, container) in &edge.runtime {
                assert_eq!(
                    Some(&container.spec),
                    pods[uid].1.get("spec"),
                    "node {node} runs an old spec"
                );
                assert_eq!(
                    store.reports.get(&(node, *uid)),
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
    fn assert_silent(&mut self) {
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

    fn assert_reconnect_is_a_no_op(&mut self) {
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

/// Runs until the first wait; only a crash waits.
fn poll_once(future: impl Future<Output = ()>) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    matches!(pin!(future).poll(&mut context), Poll::Ready(()))
}

/// Whether a process dies before or after its commit is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    Before,
    After,
}

struct EdgeDisk<'a> {
    disk: &'a mut Disk,
    full: bool,
    crash: Option<When>,
    commits: &'a mut u64,
}

impl proto::session::Disk<edge::Batch, edge::Outcome> for EdgeDisk<'_> {
    async fn commit(&mut self, batch: edge::Batch) -> Result<edge::Outcome, CommitError> {
        if self.crash == Some(When::Before) {
            std::future::pending::<()>().await;
        }
        if self.full {
            return Err(CommitError::Full);
        }
        *self.commits += 1;
        let outcome = self.disk.commit(batch);
        if self.crash == Some(When::After) {
            std::future::pending::<()>().await;
        }
        outcome
    }
}

struct CloudDisk<'a> {
    store: &'a Mutex<Store>,
    node: usize,
    crash: Option<When>,
    reported: &'a mut BTreeSet<(usize, Uid, EntryHash)>,
    removed: &'a mut BTreeSet<(usize, Uid)>,
    commits: &'a mut u64,
}

impl proto::session::Disk<cloud::Batch, ()> for CloudDisk<'_> {
    async fn commit(&mut self, batch: cloud::Batch) -> Result<(), CommitError> {
        if self.crash == Some(When::Before) {
            std::future::pending::<()>().await;
        }
        *self.commits += 1;
        self.reported.extend(
            batch
                .reports
                .iter()
                .map(|(uid, report)| (self.node, *uid, EntryHash::of_report(*uid, report))),
        );
        self.removed.extend(batch.gone.iter().map(|uid| (self.node, *uid)));
        commit(
            &mut self.store.lock().unwrap_or_else(PoisonError::into_inner),
            self.node,
            batch,
        )?;
        if self.crash == Some(When::After) {
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

struct Rim {
    sent: Vec<(Carrier, Vec<u8>)>,
    hung_up: Vec<Carrier>,
}

impl Rim {
    fn new(_: u64) -> Self {
        Self { sent: Vec::new(), hung_up: Vec::new() }
    }
}

impl Wire for Rim {
    async fn send(&mut self, carrier: Carrier, frame: Vec<u8>) {
        self.sent.push((carrier, frame));
    }

    fn hang_up(&mut self, carrier: Carrier) {
        self.hung_up.push(carrier);
    }
}

struct Clock {
    now: u64,
    at: Option<Mono>,
}

impl Timer for Clock {
    fn now(&self) -> Mono {
        Mono(self.now)
    }

    fn wake_at(&mut self, at: Option<Mono>) {
        self.at = at;
    }
}

struct News<N>(Vec<N>);

impl<N> Listener<N> for News<N> {
    fn hear(&mut self, news: N) {
        self.0.push(news);
    }
}
