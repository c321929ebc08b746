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
fn how_pods_end() {
    let check = |policy: &str, code: i32, phase: &str, restarts: i64| {
        let mut bench = Bench::new(PLAIN);
        bench.edit(&["spec", "restartPolicy"], policy);
        bench.settle();
        bench.exit("a", code);
        bench.settle();
        let found = (bench.text(&["phase"]).to_owned(), bench.restarts());
        assert_eq!(found, (phase.to_owned(), restarts), "{policy} {code}");
        if phase != "Running" {
            assert!(bench.seen.is_empty() && bench.cleaned);
            assert_eq!(bench.condition("Ready").0, "False");
            // An end is for ever.
            bench.reboot();
            bench.settle();
            assert_eq!(bench.text(&["phase"]), phase);
            assert!(bench.seen.is_empty());
        }
    };
    check("Always", 0, "Running", 1);
    check("Always", 1, "Running", 1);
    check("OnFailure", 0, "Succeeded", 0);
    check("OnFailure", 1, "Running", 1);
    check("Never", 0, "Succeeded", 0);
    check("Never", 1, "Failed", 0);
}

/// What a start that failed may leave: nothing that ran, what is about to be seen ended, what has ended.
const LEFT_BY_A_START: [State; 3] = [
    State::Created,
    State::Running { started_ms: 5 },
    State::Exited { code: 255, oom_killed: false, started_ms: 5, finished_ms: 6 },
];

#[test]
fn what_cannot_be_started_says_why_and_is_tried_with_back_off() {
    for left in &LEFT_BY_A_START {
        let mut bench = Bench::broken(PLAIN, left);
        bench.settle();
        let text = |bench: &Bench, path: &[&str]| {
            let found = bench.container(path).and_then(Value::as_text);
            found.unwrap_or_default().to_owned()
        };
        let mut waits = Vec::new();
        for _ in 0..4 {
            let last = ["lastState", "terminated"];
            assert_eq!(text(&bench, &[last[0], last[1], "reason"]), "StartError", "{left:?}");
            assert_eq!(text(&bench, &[last[0], last[1], "message"]), "no such program");
            let code = bench.container(&[last[0], last[1], "exitCode"]).and_then(Value::as_i64);
            assert_eq!(code, Some(128));
            waits.push(bench.waiting().to_owned());
            let message = text(&bench, &["state", "waiting", "message"]);
            assert!(
                message.contains("no such program") != message.contains("back-off"),
                "{message}"
            );
            let wake_at = bench.wake_at.unwrap();
            bench.now = wake_at;
            bench.settle();
        }
        assert_eq!(waits[0], "RunContainerError");
        assert!(waits[1..].iter().all(|wait| wait == "CrashLoopBackOff"), "{waits:?}");
        assert_eq!(bench.restarts(), 5);
        assert_eq!(bench.text(&["phase"]), "Running", "as a kubelet has it: it was tried");
        // No second container was made while the first was there.
        assert!(bench.seen.len() <= 1);
        // It can be started now.
        bench.broken = None;
        bench.now = bench.wake_at.unwrap();
        bench.settle();
        assert!(bench.container(&["state", "running"]).is_some());
    }
}

#[test]
fn what_cannot_be_started_ends_a_pod_that_is_not_tried_again() {
    for left in &LEFT_BY_A_START {
        let mut bench = Bench::broken(PLAIN, left);
        bench.edit(&["spec", "restartPolicy"], "Never");
        bench.settle();
        assert_eq!(bench.text(&["phase"]), "Failed");
        let ended = bench.container(&["state", "terminated"]).unwrap();
        let text = |field: &str| ended.text_at(&[field]).unwrap();
        assert_eq!((text("reason"), text("message")), ("StartError", "no such program"));
        assert_eq!(ended.int_at(&["exitCode"]), Some(128));
        assert!(bench.seen.is_empty() && bench.cleaned);
    }
}

#[test]
fn init_containers_run_one_after_another() {
    let spec = r#"{"initContainers":[{"name":"x","image":"i:1"},{"name":"y","image":"i:1"}],
        "containers":[{"name":"a","image":"i:1"}]}"#;
    let mut bench = Bench::new(spec);
    bench.settle();
    assert_eq!(bench.waiting(), "PodInitializing");
    assert_eq!(bench.condition("Initialized").0, "False");
    assert_eq!(bench.seen.len(), 1);
    bench.exit("x", 1);
    bench.settle();
    assert!(
        bench
            .took()
            .ends_with(&["remove x.0".into(), "create x.1".into(), "start x.1".into()])
    );
    bench.exit("x", 0);
    bench.settle();
    bench.exit("y", 0);
    bench.settle();
    assert_eq!(bench.text(&["phase"]), "Running");
    assert_eq!(bench.condition("Initialized").0, "True");
    bench.took();
    // They are done; only a reboot, which empties memory volumes, has them run again.
    bench.exit("a", 1);
    bench.settle();
    assert_eq!(bench.took(), ["remove a.0", "create a.1", "start a.1"]);
    bench.reboot();
    bench.settle();
    assert!(bench.took().contains(&"create x.2".to_owned()));
    let mut never = Bench::new(spec);
    never.edit(&["spec", "restartPolicy"], "Never");
    never.settle();
    never.exit("x", 1);
    never.settle();
    assert_eq!(never.text(&["phase"]), "Failed");
}

/// How init containers and the others stand in the status, which is all that `kubectl` has to go by.
#[test]
fn how_a_pod_with_init_containers_is_told() {
    let spec = r#"{"initContainers":[{"name":"x","image":"i:1"},{"name":"y","image":"i:1"}],
        "containers":[{"name":"a","image":"i:1"}]}"#;
    let told = |bench: &Bench| -> Vec<String> {
        let of = |list: &'static str| bench.status.list_at(&[list]).iter();
        let all = of("initContainerStatuses").chain(of("containerStatuses"));
        let state = |status: &Value| {
            let at = |path: &[&str]| status.text_at(path).unwrap_or_default().to_owned();
            let waits = at(&["state", "waiting", "reason"]);
            let ended = at(&["state", "terminated", "reason"]);
            match status.at(&["state", "running"]) {
                Some(_) => "runs".to_owned(),
                None => waits + &ended,
            }
        };
        all.map(state).collect()
    };
    let run = |policy: &str, broken: bool, codes: &[i32]| {
        let mut bench = Bench::new(spec);
        bench.broken = broken.then_some(State::Created);
        bench.edit(&["spec", "restartPolicy"], policy);
        bench.plan();
        let creating = told(&bench);
        assert_eq!(creating, ["PodInitializing"; 3], "{policy}");
        bench.settle();
        for code in codes {
            bench.exit("x", *code);
            bench.settle();
        }
        (told(&bench), bench.text(&["phase"]).to_owned())
    };
    let check = |policy: &str, broken: bool, codes: &[i32], expected: [&str; 3], phase: &str| {
        let (told, found) = run(policy, broken, codes);
        assert_eq!(
            (told.as_slice(), found.as_str()),
            (expected.map(str::to_owned).as_slice(), phase),
            "{policy} {codes:?}"
        );
    };
    let waits = "PodInitializing";
    for policy in ["Always", "OnFailure", "Never"] {
        check(policy, false, &[], ["runs", waits, waits], "Pending");
        check(policy, false, &[0], ["Completed", "runs", waits], "Pending");
    }
    for policy in ["Always", "OnFailure"] {
        check(policy, false, &[3], ["runs", waits, waits], "Pending");
        check(policy, false, &[3, 3], ["CrashLoopBackOff", waits, waits], "Pending");
        check(policy, true, &[], ["RunContainerError", waits, waits], "Pending");
    }
    check("Never", false, &[3], ["Error", waits, waits], "Failed");
    check("Never", true, &[], ["StartError", waits, waits], "Failed");
}

#[test]
fn sidecars_run_as_long_as_the_pod() {
    let spec = r#"{"restartPolicy":"Never","initContainers":[{"name":"s","image":"i:1","restartPolicy":"Always"}],
        "containers":[{"name":"a","image":"i:1"}]}"#;
    let mut bench = Bench::new(spec);
    bench.settle();
    assert!(bench.took().ends_with(&["create a.0".into(), "start a.0".into()]));
    bench.exit("s", 1);
    bench.settle();
    assert_eq!(bench.took(), ["remove s.0", "create s.1", "start s.1"]);
    bench.exit("a", 0);
    bench.settle();
    assert_eq!(bench.text(&["phase"]), "Succeeded");
    let took = bench.took();
    assert!(took.contains(&"signal s.1 15".to_owned()), "{took:?}");
    // A deletion stops them last.
    let mut bench = Bench::new(spec);
    bench.settle();
    bench.took();
    bench.edit(&["metadata", "deletionTimestamp"], "1970-01-01T00:00:00Z");
    bench.settle();
    let took = bench.took();
    let at = |word: &str| took.iter().position(|step| step == word).unwrap();
    assert!(at("remove a.0") < at("signal s.0 15"), "{took:?}");
}

#[test]
fn deletion_is_asked_for_then_enforced() {
    let mut bench = Bench::new(PLAIN);
    bench.settle();
    bench.took();
    bench.stubborn = true;
    bench.edit(&["metadata", "deletionTimestamp"], "1970-01-01T00:00:00Z");
    bench.edit(&["metadata", "deletionGracePeriodSeconds"], 20_i64);
    bench.settle();
    assert_eq!(bench.took(), ["event Killing", "signal a.0 15"]);
    assert_eq!(bench.wake_at, Some(bench.now + Duration::from_secs(20)));
    assert_eq!(bench.condition("Ready").0, "False");
    bench.pass(5);
    // Another edge core asks again; the grace goes on.
    bench.forget();
    bench.settle();
    assert_eq!(bench.took(), ["signal a.0 15"]);
    bench.pass(14);
    bench.settle();
    assert_eq!(bench.took(), [""; 0]);
    bench.pass(1);
    bench.settle();
    assert_eq!(bench.took(), ["signal a.0 9", "remove a.0", "release", "gone"]);
    assert_eq!(bench.text(&["phase"]), "Failed");
}

#[test]
fn a_second_deletion_shortens_the_first() {
    let mut bench = Bench::new(PLAIN);
    bench.settle();
    bench.stubborn = true;
    bench.edit(&["metadata", "deletionTimestamp"], "1970-01-01T00:00:00Z");
    bench.settle();
    assert_eq!(bench.wake_at, Some(bench.now + Duration::from_secs(30)));
    bench.edit(&["metadata", "deletionGracePeriodSeconds"], 0_i64);
    bench.settle();
    assert!(bench.gone);
}

#[test]
fn a_pod_that_is_wanted_no_more_leaves_with_its_own_grace() {
    let mut bench = Bench::new(PLAIN);
    bench.edit(&["spec", "terminationGracePeriodSeconds"], 3_i64);
    bench.settle();
    bench.stubborn = true;
    bench.wanted = false;
    bench.forget();
    bench.settle();
    assert_eq!(bench.wake_at, Some(bench.now + Duration::from_secs(3)));
    bench.pass(3);
    bench.settle();
    assert!(bench.gone && bench.seen.is_empty());
    // Also one that nothing is remembered about.
    let mut bench = Bench::new(PLAIN);
    bench.wanted = false;
    bench.add("a", 4, 1, State::Running { started_ms: 0 });
    bench.settle();
    assert_eq!(
        bench.took(),
        ["event Killing", "signal a.4 15", "remove a.4", "release", "gone"]
    );
}

#[test]
fn what_is_not_honoured_is_not_run() {
    let mut bench = Bench::new(r#"{"runtimeClassName":"kata","containers":[{"name":"a","image":"i:1"}]}"#);
    bench.settle();
    assert_eq!(bench.took(), ["event UnsupportedField", "release"]);
    assert_eq!(bench.text(&["phase"]), "Failed");
    assert_eq!(bench.text(&["reason"]), "UnsupportedField");
    assert_eq!(
        bench.text(&["message"]),
        "spec.runtimeClassName: not supported on this node"
    );
    // What ran before runs on.
    let mut bench = Bench::new(PLAIN);
    bench.settle();
    bench.edit(&["spec", "newField"], true);
    bench.settle();
    assert_eq!(bench.text(&["phase"]), "Running");
}

#[test]
fn a_wrong_image_name_keeps_its_own_container_only() {
    let mut bench = Bench::new(r#"{"containers":[{"name":"a","image":"UP/x"},{"name":"b","image":"i:1"}]}"#);
    bench
        .wrong
        .insert("UP/x".to_owned(), ("InvalidImageName", "no such name".to_owned()));
    bench.settle();
    assert_eq!(bench.waiting(), "InvalidImageName");
    assert_eq!(
        bench.container(&["state", "waiting", "message"]),
        Some(&Value::from("no such name"))
    );
    assert_ne!(
        bench.text(&["containerStatuses", "1", "state", "running", "startedAt"]),
        ""
    );
}

#[test]
fn what_is_missing_is_waited_for() {
    let mut bench = Bench::new(PLAIN);
    bench
        .missing
        .insert("a".to_owned(), "configmap \"c\" not found".to_owned());
    bench.settle();
    assert_eq!(bench.waiting(), "CreateContainerConfigError");
    let message = bench.container(&["state", "waiting", "message"]).unwrap();
    assert_eq!(message, &Value::from("configmap \"c\" not found"));
    bench.missing.clear();
    bench.settle();
    assert_eq!(bench.text(&["phase"]), "Running");
    bench.missing.insert("a".to_owned(), "gone".to_owned());
    bench.settle();
    assert_eq!(bench.text(&["phase"]), "Running", "a running container does not care");
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
fn a_dead_container_is_restarted_with_back_off() {
    let mut bench = Bench::new(PLAIN);
    bench.settle();
    bench.took();
    for wait in [None, Some(10)] {
        let health = bench.health.get_mut("a").unwrap();
        health.dead = Some((ProbeKind::Liveness, Some(Duration::from_secs(2))));
        bench.settle();
        assert!(bench.took().starts_with(&["event Killing".into()]));
        assert_eq!(bench.wake_at.map(|at| at.since(bench.now).as_secs()), wait);
    }
    // A pod that is not to be restarted ends.
    let mut bench = Bench::new(PLAIN);
    bench.edit(&["spec", "restartPolicy"], "Never");
    bench.settle();
    bench.health.get_mut("a").unwrap().dead = Some((ProbeKind::Startup, None));
    bench.settle();
    assert_eq!(bench.text(&["phase"]), "Failed");
}

#[test]
fn readiness_is_said_when_it_flips() {
    let mut bench = Bench::new(PLAIN);
    bench.settle();
    bench.pass(9);
    bench.health.get_mut("a").unwrap().ready = false;
    bench.settle();
    assert_eq!(bench.condition("Ready"), ("False", "1970-01-01T00:00:10Z"));
    assert_eq!(bench.condition("Initialized"), ("True", "1970-01-01T00:00:01Z"));
    let rows = bench.status.list_at(&["conditions"]).to_vec();
    assert!(
        rows.iter()
            .any(|row| row.text_at(&["message"]) == Some("containers with unready status: [a]"))
    );
}

#[test]
fn a_deadline_ends_a_pod_also_over_a_reboot() {
    let mut bench = Bench::new(PLAIN);
    bench.edit(&["spec", "activeDeadlineSeconds"], 60_i64);
    bench.settle();
    bench.pass(20);
    bench.reboot();
    bench.settle();
    assert_eq!(bench.text(&["phase"]), "Running");
    bench.pass(59);
    bench.settle();
    assert_eq!(bench.text(&["phase"]), "Running");
    bench.pass(1);
    bench.settle();
    assert_eq!(
        (bench.text(&["phase"]), bench.text(&["reason"])),
        ("Failed", "DeadlineExceeded")
    );
    assert!(bench.seen.is_empty());
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
fn pull_policies() {
    let check = |policy: &str, image: &str, present: bool, pulls: bool, waiting: &str| {
        let mut bench = Bench::new(PLAIN);
        let container = Value::from([("name", "a"), ("image", image), ("imagePullPolicy", policy)]);
        bench.edit(&["spec", "containers"], Value::from(vec![container]));
        bench.present = present.then(|| image.to_owned()).into_iter().collect();
        bench.settle();
        let pulled = bench.took().iter().any(|step| step.starts_with("pull"));
        assert_eq!(
            (pulled, bench.waiting()),
            (pulls, waiting),
            "{policy} {image} {present}"
        );
        if waiting.is_empty() {
            // Later containers of the pod need no registry.
            bench.reboot();
            bench.settle();
            assert!(!bench.took().iter().any(|step| step.starts_with("pull")));
            assert_eq!(bench.text(&["phase"]), "Running");
        }
    };
    check("Always", "i:1", true, true, "");
    check("IfNotPresent", "i:1", true, false, "");
    check("IfNotPresent", "i:1", false, true, "");
    check("Never", "i:1", true, false, "");
    check("Never", "i:1", false, false, "ErrImageNeverPull");
    check("", "i", true, true, "");
    check("", "i:2", true, false, "");
}

#[test]
fn failed_pulls_are_told_and_tried_again() {
    let mut bench = Bench::new(PLAIN);
    bench.present.clear();
    let work = Work::Pull("i:1".to_owned());
    for (count, reason) in [(1, "ErrImagePull"), (2, "ImagePullBackOff")] {
        let retry_at = bench.now + Duration::from_secs(10);
        let message = "no route".to_owned();
        bench
            .failures
            .insert(work.clone(), Failure { count, retry_at, message });
        let steps = bench.plan();
        assert!(!steps.iter().any(|step| matches!(step, Step::Pull { .. })));
        assert_eq!(bench.waiting(), reason);
        assert_eq!(bench.wake_at, Some(retry_at));
        bench.now = retry_at;
        let steps = bench.plan();
        assert!(steps.iter().any(|step| matches!(step, Step::Pull { .. })));
    }
    bench.failures.clear();
    bench.settle();
    assert_eq!(bench.text(&["phase"]), "Running");
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
