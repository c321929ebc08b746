mod ending;
mod starting;

use std::collections::BTreeSet;
use std::sync::Arc;

use proto::time::BootId;

use super::*;
use crate::pods::desk::Desired;
use crate::pods::probe::ProbeKind;
use crate::pods::supported::{Features, check_supported};
use crate::pods::testing;
use crate::runtime::Labels;

const PLAIN: &str = r#"{"containers":[{"name":"a","image":"i:1"}]}"#;

/// A pod, its memory and a small model of a machine that carries steps out.
struct Bench {
    desired: Arc<Desired>,
    wanted: bool,
    seen: Vec<Seen>,
    lost: bool,
    network: Option<Network>,
    volumes: Volumes,
    present: BTreeSet<String>,
    fetched: BTreeSet<String>,
    missing: BTreeMap<String, String>,
    wrong: BTreeMap<String, (&'static str, String)>,
    health: BTreeMap<String, Health>,
    failures: BTreeMap<Work, Failure>,
    unstartable: BTreeMap<String, String>,
    /// No start succeeds, and this is what it leaves.
    broken: Option<State>,
    stubborn: bool,
    cleaned: bool,
    first: bool,
    gone: bool,
    memory: Memory,
    /// The memory as it was written last.
    form: Vec<u8>,
    now: Mono,
    boot: u8,
    status: Value,
    wake_at: Option<Mono>,
    log: Vec<String>,
}

impl Bench {
    fn new(spec: &str) -> Self {
        Self {
            desired: Arc::new(testing::desired(7, spec)),
            wanted: true,
            seen: Vec::new(),
            lost: false,
            network: None,
            volumes: Volumes::Stale,
            present: ["i:1".to_owned()].into(),
            fetched: BTreeSet::new(),
            missing: BTreeMap::new(),
            wrong: BTreeMap::new(),
            health: BTreeMap::new(),
            failures: BTreeMap::new(),
            unstartable: BTreeMap::new(),
            broken: None,
            stubborn: false,
            cleaned: false,
            first: true,
            gone: false,
            memory: Memory::new(),
            form: Memory::new().encode(Mono(1000), BootId([1; 16])),
            now: Mono(1000),
            boot: 1,
            status: Value::Null,
            wake_at: None,
            log: Vec::new(),
        }
    }

    fn plan(&mut self) -> Vec<Step> {
        let pod = Pod::parse(&self.desired);
        let refusals = check_supported(&self.desired.value, Features { seccomp: true });
        let images = pod.containers.iter().map(|spec| {
            let state = ImageState {
                present: self.present.contains(&spec.image),
                pulling: false,
                fetched: self.fetched.contains(&spec.image),
            };
            (spec.image.clone(), state)
        });
        let observed = Observed {
            containers: (!self.lost).then_some(&self.seen),
            network: self.network.as_ref(),
            volumes: self.volumes,
            images: &images.collect(),
            missing: &self.missing,
            wrong: &self.wrong,
            health: &self.health,
            failures: &self.failures,
            messages: &BTreeMap::new(),
            unstartable: &self.unstartable,
            refusals: &refusals,
            cleaned: self.cleaned,
            runtime: "fake",
            first: std::mem::take(&mut self.first),
            addresses: &["192.168.0.9".to_owned()],
            wall: Wall { ms: self.wall(), trusted: false },
        };
        let plan = plan(self.wanted.then_some(&pod), &observed, &self.memory, self.now);
        if self.memory != plan.memory {
            self.form = plan.memory.encode(self.now, BootId([self.boot; 16]));
            self.memory = plan.memory;
        }
        self.wake_at = plan.wake_at;
        if let Some(status) = plan.status {
            self.status = status;
        }
        plan.steps
    }

    /// Milliseconds since 1970 as a clock without a battery has them.
    fn wall(&self) -> i64 {
        i64::try_from(self.now.0).unwrap()
    }

    /// Plans and acts until there is nothing to do.
    fn settle(&mut self) {
        for _ in 0..50 {
            let steps = self.plan();
            if steps.is_empty() || self.gone {
                return;
            }
            for step in steps {
                self.act(step);
            }
        }
        panic!("does not come to rest: {:?}", self.log);
    }

    fn act(&mut self, step: Step) {
        let started_ms = self.wall();
        let word = match step {
            Step::Volumes => {
                self.volumes = Volumes::Ready;
                "volumes".to_owned()
            }
            Step::Prepare => {
                self.network = Some(Network { addresses: vec!["10.0.0.2".to_owned()] });
                "prepare".to_owned()
            }
            Step::Pull { container } => {
                let image = Pod::parse(&self.desired).container(&container).unwrap().image.clone();
                self.present.insert(image.clone());
                self.fetched.insert(image.clone());
                format!("pull {image}")
            }
            Step::Create { container, attempt } => {
                let hash = Pod::parse(&self.desired).container(&container).unwrap().hash;
                self.add(&container, attempt, hash, State::Created);
                format!("create {container}.{attempt}")
            }
            Step::Start { container, id } => {
                let name =
                    |seen: &&Seen| seen.labels.container == container && matches!(seen.state, State::Running { .. });
                assert!(!self.seen.iter().any(|seen| name(&seen)), "two live: {:?}", self.seen);
                let seen = self.seen.iter_mut().find(|seen| seen.id == id).unwrap();
                if let Some(left) = &self.broken {
                    seen.state = left.clone();
                    self.unstartable.insert(id.clone(), "no such program".to_owned());
                    self.log.push(format!("fail {id}"));
                    return;
                }
                seen.state = State::Running { started_ms };
                let health = Health {
                    attempt: seen.labels.attempt,
                    started: true,
                    ready: true,
                    dead: None,
                };
                self.health.insert(container, health);
                format!("start {id}")
            }
            Step::Signal { id, signal } => {
                if !self.stubborn || signal == KILL {
                    self.end(&id, 128 + i32::try_from(signal).unwrap());
                }
                format!("signal {id} {signal}")
            }
            Step::Remove { id } => {
                self.seen.retain(|seen| seen.id != id);
                format!("remove {id}")
            }
            Step::Release => {
                self.network = None;
                self.cleaned = true;
                "release".to_owned()
            }
            Step::Gone => {
                self.gone = true;
                "gone".to_owned()
            }
            Step::Event { reason, .. } => format!("event {reason}"),
        };
        self.log.push(word);
    }

    fn add(&mut self, container: &str, attempt: u32, hash: u64, state: State) {
        self.seen.push(Seen {
            id: format!("{container}.{attempt}"),
            labels: Labels {
                pod: self.desired.uid,
                namespace: "n".to_owned(),
                pod_name: "p".to_owned(),
                container: container.to_owned(),
                attempt,
                hash,
            },
            image: "i:1".to_owned(),
            image_id: "sha256:1".to_owned(),
            state,
        });
    }

    fn end(&mut self, id: &str, code: i32) {
        let finished_ms = self.wall();
        for seen in self.seen.iter_mut().filter(|seen| seen.id == id) {
            if let State::Running { started_ms } = seen.state {
                let oom_killed = false;
                seen.state = State::Exited { code, oom_killed, started_ms, finished_ms };
            }
        }
    }

    /// What cannot be started, in whatever state the runtime then shows it.
    fn broken(spec: &str, left: &State) -> Self {
        Self { broken: Some(left.clone()), ..Self::new(spec) }
    }

    /// Ends the running container of a name.
    fn exit(&mut self, name: &str, code: i32) {
        let running = |seen: &&Seen| seen.labels.container == name && matches!(seen.state, State::Running { .. });
        let id = self.seen.iter().find(running).expect("runs").id.clone();
        self.end(&id, code);
    }

    fn pass(&mut self, seconds: u64) {
        self.now = self.now + Duration::from_secs(seconds);
    }

    /// The machine is restarted: the runtime is empty, the clocks begin anew.
    fn reboot(&mut self) {
        self.boot += 1;
        self.now = Mono(500);
        self.memory = Memory::decode(&self.form, self.now, BootId([self.boot; 16])).unwrap();
        self.seen.clear();
        self.forget();
    }

    /// The edge core is restarted: only the memory stays, and what runs.
    fn forget(&mut self) {
        self.network = None;
        self.volumes = Volumes::Stale;
        self.fetched.clear();
        self.failures.clear();
        self.cleaned = false;
        self.first = true;
    }

    fn took(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log)
    }

    fn edit(&mut self, path: &[&str], value: impl Into<Value>) {
        Arc::make_mut(&mut self.desired).value.set(path, value);
    }

    fn text(&self, path: &[&str]) -> &str {
        self.status.text_at(path).unwrap_or_default()
    }

    fn container(&self, path: &[&str]) -> Option<&Value> {
        self.status.at(&["containerStatuses", "0"])?.at(path)
    }

    fn waiting(&self) -> &str {
        self.container(&["state", "waiting", "reason"])
            .and_then(Value::as_text)
            .unwrap_or_default()
    }

    fn restarts(&self) -> i64 {
        self.container(&["restartCount"]).and_then(Value::as_i64).unwrap()
    }

    fn condition(&self, kind: &str) -> (&str, &str) {
        let mut conditions = self.status.list_at(&["conditions"]).iter();
        let found = conditions.find(|one| one.text_at(&["type"]) == Some(kind)).unwrap();
        let text = |field: &str| found.text_at(&[field]).unwrap();
        (text("status"), text("lastTransitionTime"))
    }
}

#[test]
fn a_new_pod_comes_up_in_order() {
    let mut bench = Bench::new(PLAIN);
    bench.present.clear();
    bench.settle();
    assert_eq!(
        bench.took(),
        ["pull i:1", "volumes", "prepare", "create a.0", "start a.0"]
    );
    assert_eq!(bench.text(&["phase"]), "Running");
    assert_eq!(bench.text(&["podIP"]), "10.0.0.2");
    assert_eq!(bench.text(&["hostIP"]), "192.168.0.9");
    assert_eq!(bench.condition("Ready"), ("True", "1970-01-01T00:00:01Z"));
    let id = bench.container(&["containerID"]).and_then(Value::as_text);
    assert_eq!(id, Some("fake://a.0"));
    // Nothing changes, so nothing is done and said.
    let before = (bench.status.clone(), bench.memory.clone());
    bench.pass(3600);
    assert_eq!(bench.plan(), []);
    assert_eq!((bench.status, bench.memory), before);
    assert_eq!(bench.wake_at, None);
}

#[test]
fn back_off_doubles_and_starts_anew_after_a_good_while() {
    let mut bench = Bench::new(PLAIN);
    bench.settle();
    let mut waits = Vec::new();
    for _ in 0..8 {
        bench.pass(1);
        bench.exit("a", 1);
        let begun = bench.now;
        bench.settle();
        if let Some(wake_at) = bench.wake_at {
            assert_eq!(bench.waiting(), "CrashLoopBackOff");
            assert_eq!(bench.text(&["phase"]), "Running");
            bench.now = Mono(wake_at.0 - 1);
            assert_eq!(bench.plan(), [], "not a millisecond early");
            bench.now = wake_at;
            bench.settle();
        }
        waits.push(bench.now.since(begun).as_secs());
        assert_eq!(bench.condition("Ready").0, "True");
    }
    assert_eq!(waits, [0, 10, 20, 40, 80, 160, 300, 300]);
    assert_eq!(bench.restarts(), 8);
    bench.pass(599);
    bench.exit("a", 1);
    bench.settle();
    assert_eq!(bench.wake_at.map(|at| at.since(bench.now).as_secs()), Some(300));
    bench.pass(300);
    bench.settle();
    bench.pass(600);
    bench.exit("a", 0);
    bench.settle();
    assert_eq!(bench.wake_at, None);
    let code = bench.container(&["lastState", "terminated", "exitCode"]).unwrap();
    assert_eq!(code, &Value::from(0_i64));
}

#[test]
fn a_reboot_keeps_the_wait_and_costs_no_step() {
    let mut bench = Bench::new(PLAIN);
    bench.settle();
    for _ in 0..3 {
        bench.exit("a", 1);
        bench.settle();
        if let Some(at) = bench.wake_at.filter(|at| at.since(bench.now).as_secs() < 20) {
            bench.now = at;
            bench.settle();
        }
    }
    assert_eq!(bench.wake_at.map(|at| at.since(bench.now).as_secs()), Some(20));
    bench.pass(5);
    bench.reboot();
    bench.settle();
    assert_eq!(bench.waiting(), "CrashLoopBackOff");
    assert_eq!(bench.wake_at, Some(Mono(20_500)));
    bench.now = Mono(20_500);
    bench.settle();
    assert_eq!(bench.condition("Ready").0, "True");
    let restarts = bench.restarts();
    // What runs when the power goes comes back at once, twenty times in a row.
    for round in 1..=20 {
        bench.reboot();
        bench.settle();
        assert_eq!(bench.wake_at, None);
        assert_eq!(bench.condition("Ready").0, "True");
        assert_eq!(bench.restarts(), restarts + round);
    }
    bench.exit("a", 1);
    bench.settle();
    assert_eq!(bench.wake_at.map(|at| at.since(bench.now).as_secs()), Some(40));
}

#[test]
fn the_edge_core_comes_back_and_touches_nothing() {
    let mut bench = Bench::new(PLAIN);
    bench.settle();
    let before = (bench.status.clone(), bench.memory.clone());
    bench.took();
    bench.pass(100);
    bench.forget();
    bench.settle();
    assert_eq!(bench.took(), ["prepare", "volumes"]);
    assert_eq!((bench.status.clone(), bench.memory.clone()), before);
    // Not even without any memory.
    bench.memory = Memory::new();
    bench.settle();
    assert_eq!(bench.took(), [""; 0]);
    assert_eq!(bench.text(&["phase"]), "Running");
}

#[test]
fn only_a_changed_image_makes_a_new_container() {
    let spec = r#"{"containers":[{"name":"a","image":"i:1"},{"name":"b","image":"i:1"}]}"#;
    let mut bench = Bench::new(spec);
    bench.settle();
    bench.took();
    let containers = |image: &str| {
        let one = |name: &str, image: &str| Value::from([("name", name), ("image", image)]);
        Value::from(vec![one("a", image), one("b", "i:1")])
    };
    bench.edit(&["spec", "containers"], containers("i:2"));
    let steps = bench.plan();
    assert_eq!(steps, [Step::Pull { container: "a".to_owned() }], "fetch first");
    assert_eq!(bench.condition("Ready").0, "True", "and run on meanwhile");
    bench.settle();
    assert_eq!(
        bench.took(),
        [
            "pull i:2",
            "event Killing",
            "signal a.0 15",
            "remove a.0",
            "create a.1",
            "start a.1"
        ]
    );
    assert_eq!(bench.restarts(), 1);
    assert_eq!(bench.wake_at, None);
}

#[test]
fn nothing_is_done_blindly() {
    let mut bench = Bench::new(PLAIN);
    bench.settle();
    let status = bench.status.clone();
    bench.lost = true;
    bench.edit(&["metadata", "deletionTimestamp"], "1970-01-01T00:00:00Z");
    assert_eq!(bench.plan(), []);
    assert_eq!(bench.status, status);
    bench.lost = false;
    bench.settle();
    assert!(bench.gone);
}

#[test]
fn strays_go_first() {
    let mut bench = Bench::new(PLAIN);
    let hash = Pod::parse(&bench.desired).containers[0].hash;
    bench.add("a", 2, hash, State::Running { started_ms: 0 });
    bench.add("a", 1, hash, State::Running { started_ms: 0 });
    bench.add("b", 0, 1, State::Running { started_ms: 0 });
    bench.settle();
    let ids: Vec<_> = bench.seen.iter().map(|seen| seen.id.as_str()).collect();
    assert!(ids.contains(&"a.2") && !ids.contains(&"a.1"), "{ids:?}");
    // An older memory (a swapped card) follows what runs.
    let mut bench = Bench::new(PLAIN);
    bench.settle();
    bench.seen.clear();
    bench.add("a", 9, hash, State::Running { started_ms: 0 });
    bench.took();
    bench.settle();
    assert_eq!(bench.took(), [""; 0]);
    assert_eq!(bench.memory.containers["a"].next_attempt, 10);
}

#[test]
fn a_lost_container_counts_as_ended() {
    let mut bench = Bench::new(PLAIN);
    bench.settle();
    bench.seen.clear();
    bench.settle();
    assert_eq!(bench.restarts(), 1);
    let reason = bench.container(&["lastState", "terminated", "reason"]).unwrap();
    assert_eq!(reason, &Value::from("ContainerStatusUnknown"));
}

#[test]
fn back_off_is_bounded() {
    assert_eq!(backoff(0), Duration::ZERO);
    assert_eq!(backoff(1), Duration::ZERO);
    assert_eq!(backoff(2), BACKOFF_FIRST);
    assert_eq!(backoff(7), BACKOFF_MAX);
    assert_eq!(backoff(u32::MAX), BACKOFF_MAX);
}
