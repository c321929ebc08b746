//! A node under random trouble, by seed: containers that end, an edge core killed at any step, reboots to 1970, a
//! runtime that goes away, failing calls, pods deleted, edited and made anew. After every step no two containers of one
//! name live and no count goes back; once healed, exactly what is wanted runs and nothing else is left.

use std::collections::BTreeSet;
use std::panic;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use proto::object::{Key, Uid};
use proto::value::{Value, json};

use super::desk::Desired;
use super::testing::{Rig, desired};

/// What the simulation's own threads are called.
const THREADS: &str = "simulated";
const SEEDS: u64 = 40;
const STEPS: u64 = 40;
const NAMES: [&str; 3] = ["p", "q", "r"];
const CONTAINERS: [&str; 4] = ["a", "b", "init", "x"];
const SPECS: [&str; 4] = [
    r#"{"containers":[{"name":"a","image":"i:1"},{"name":"b","image":"i:1"}]}"#,
    r#"{"initContainers":[{"name":"init","image":"i:1"}],"containers":[{"name":"a","image":"i:3"}]}"#,
    r#"{"initContainers":[{"name":"x","image":"i:1","restartPolicy":"Always"}],
        "containers":[{"name":"a","image":"i:1","livenessProbe":{"exec":{"command":["y"]}}}]}"#,
    r#"{"restartPolicy":"OnFailure","terminationGracePeriodSeconds":5,"volumes":[{"name":"v","emptyDir":{}},
        {"name":"m","configMap":{"name":"c"}}],"containers":[{"name":"a","image":"i:1",
        "volumeMounts":[{"name":"v","mountPath":"/v"},{"name":"m","mountPath":"/m"}]}]}"#,
];

/// xorshift64*: enough to shuffle trouble.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        let at = self.below(u64::try_from(from.len()).unwrap());
        from[usize::try_from(at).unwrap()]
    }
}

struct Simulation {
    rig: Rig,
    dice: Dice,
    next_uid: u8,
    log: Vec<String>,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        Self {
            rig: Rig::new(),
            dice: Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            next_uid: 1,
            log: Vec::new(),
        }
    }

    async fn run(&mut self) {
        self.put_map("1");
        // Some have to be killed, so that the old and the new are there for long together.
        let stubborn = self.dice.pick(&CONTAINERS);
        self.rig.runtime.make_stubborn(stubborn);
        self.rig.start();
        for _ in 0..STEPS {
            self.trouble().await;
            let wait = self.dice.pick(&[0, 1, 7, 200, 1_000, 12_000, 40_000, 700_000]);
            self.rig.pass(Duration::from_millis(wait)).await;
            self.check();
        }
        self.heal().await;
    }

    fn put_map(&self, text: &str) {
        let map = format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"c","namespace":"n"}},"data":{{"k":"{text}"}}}}"#
        );
        let key = self.rig.desk.put_json(&map);
        self.rig.wake(&key);
    }

    fn key(&mut self) -> Key {
        Key::new("Pod", "n", self.dice.pick(&NAMES))
    }

    fn create(&mut self, key: &Key) {
        let spec = self.dice.pick(&SPECS);
        let mut pod = desired(self.next_uid, spec);
        self.next_uid = self.next_uid.wrapping_add(1);
        pod.key = key.clone();
        pod.value.set(&["metadata", "name"], key.name.as_str());
        self.rig.desk.put(pod);
    }

    async fn trouble(&mut self) {
        let key = self.key();
        let word = match self.dice.below(18) {
            0..=2 => {
                let exists = self.rig.desk.papers().objects.contains_key(&key);
                // Some are made anew under their old name, as if the deletion had been missed.
                if !exists || self.dice.below(3) == 0 {
                    self.create(&key);
                }
                "create"
            }
            3 => {
                self.rig
                    .desk
                    .edit(&key, &["metadata", "deletionTimestamp"], "2026-01-01T00:00:00Z");
                "delete"
            }
            4 => {
                self.rig.desk.remove(&key);
                "remove"
            }
            5 => {
                let image = self.dice.pick(&["i:1", "i:2", "i:3"]);
                self.set_image(&key, image);
                "image"
            }
            6..=8 => {
                let (name, code) = (self.dice.pick(&CONTAINERS), self.dice.pick(&[0, 1, 137]));
                self.rig.runtime.exit(name, code);
                "exit"
            }
            9 => {
                let name = self.dice.pick(&CONTAINERS);
                self.rig.runtime.exit_at_start(name, 1);
                "exit at start"
            }
            10 => {
                self.rig.runtime.set_lost(self.dice.below(2) == 0);
                "lost or back"
            }
            11 => {
                let call = self.dice.pick(&[
                    "prepare", "create", "start", "signal", "remove", "release", "pull", "list",
                ]);
                self.rig.runtime.fail(call, "not today");
                "failing call"
            }
            12 => {
                let text = self.dice.below(9).to_string();
                self.put_map(&text);
                "config map"
            }
            13 | 14 => {
                // Dies in the middle of one of its next calls, before or after its work is done.
                let (calls, after) = (self.dice.below(12), self.dice.below(2) == 0);
                self.rig.wake(&key);
                self.rig.runtime.set_fuse(calls, after);
                let wait = self.dice.pick(&[0, 3, 1_000, 30_000]);
                self.rig.pass(Duration::from_millis(wait)).await;
                self.rig.kill().await;
                self.rig.runtime.mend();
                self.rig.start();
                "fuse"
            }
            15 => {
                self.rig.kill().await;
                self.rig.start();
                "kill"
            }
            16 => {
                let name = self.dice.pick(&CONTAINERS);
                self.rig.runtime.refuse_start(name, "not this one");
                "refused start"
            }
            _ => {
                self.rig.kill().await;
                self.rig.runtime.reboot();
                self.rig.clock.reboot();
                self.rig.start();
                "reboot"
            }
        };
        self.log.push(format!("{word} {}", key.name));
        // A wake that is lost is made up for by the next look at everything.
        if self.dice.below(8) != 0 {
            self.rig.wake(&key);
        }
    }

    fn set_image(&self, key: &Key, image: &str) {
        let object = self.rig.desk.papers().objects.get(key).cloned();
        let Some(object) = object else { return };
        let mut containers = object.value.list_at(&["spec", "containers"]).to_vec();
        containers[0].set(&["image"], image);
        self.rig.desk.edit(key, &["spec", "containers"], containers);
    }

    fn check(&self) {
        assert_eq!(self.rig.runtime.violations(), [""; 0], "{:?}", self.log);
        assert_eq!(self.rig.desk.papers().violations, [""; 0], "{:?}", self.log);
    }

    fn wanted(&self) -> Vec<Desired> {
        let papers = self.rig.desk.papers();
        let pods = papers.objects.values().filter(|object| object.key.kind.kind() == "Pod");
        pods.map(|pod| Desired::clone(pod)).collect()
    }

    /// No more trouble; then everything has to come right on its own.
    async fn heal(&mut self) {
        self.rig.runtime.set_lost(false);
        for _ in 0..24 {
            self.rig.pass(Duration::from_secs(600)).await;
            self.rig.runtime.exit("init", 0);
        }
        self.rig.pass(Duration::from_secs(600)).await;
        self.check();
        let log = self.log.join(", ");
        let mut running: BTreeSet<(Uid, String)> = BTreeSet::new();
        let mut live: BTreeSet<Uid> = BTreeSet::new();
        for pod in self.wanted() {
            assert!(
                pod.value.text_at(&["metadata", "deletionTimestamp"]).is_none(),
                "{} is not gone: {log}",
                pod.key
            );
            let status = self.rig.desk.status(pod.uid);
            let phase = status.text_at(&["phase"]).unwrap_or_default().to_owned();
            if phase == "Succeeded" {
                continue;
            }
            assert_eq!(phase, "Running", "{}: {} after {log}", pod.key, json::write(&status));
            live.insert(pod.uid);
            for (list, sidecars) in [("containers", false), ("initContainers", true)] {
                for container in pod.value.list_at(&["spec", list]) {
                    if !sidecars || container.text_at(&["restartPolicy"]) == Some("Always") {
                        let name = container.text_at(&["name"]).unwrap();
                        running.insert((pod.uid, name.to_owned()));
                    }
                }
            }
            let images: Vec<_> = pod.value.list_at(&["spec", "containers"]).iter().map(image).collect();
            let seen = self.rig.runtime.running();
            let first = seen
                .iter()
                .find(|seen| seen.labels.pod == pod.uid && seen.labels.container == "a");
            assert_eq!(first.map(|seen| seen.image.clone()), images[0], "{log}");
        }
        let found: BTreeSet<(Uid, String)> = self
            .rig
            .runtime
            .containers()
            .into_iter()
            .map(|seen| (seen.labels.pod, seen.labels.container))
            .collect();
        assert_eq!(found, running, "{log}");
        assert_eq!(self.rig.runtime.sandboxes(), live, "{log}");
        let folders = std::fs::read_dir(self.rig.folders().pods)
            .into_iter()
            .flatten()
            .flatten();
        let folders: BTreeSet<Uid> = folders
            .map(|one| one.file_name().to_str().unwrap().parse().unwrap())
            .collect();
        assert_eq!(folders, live, "{log}");
        let writes = self.rig.desk.papers().writes;
        self.rig.pass(Duration::from_secs(3600)).await;
        assert_eq!(self.rig.desk.papers().writes, writes, "silence: {log}");
    }
}

fn image(container: &Value) -> Option<String> {
    container.text_at(&["image"]).map(str::to_owned)
}

#[test]
fn whatever_happens_it_comes_right() {
    static PANICS: AtomicU64 = AtomicU64::new(0);
    let default = panic::take_hook();
    let own = [thread::current().name().map(str::to_owned), Some(THREADS.to_owned())];
    // A pod's task that panics is started again, which would hide the bug. Other tests of this process may panic.
    panic::set_hook(Box::new(move |info| {
        let here = thread::current().name().map(str::to_owned);
        PANICS.fetch_add(own.contains(&here).into(), Ordering::Relaxed);
        default(info);
    }));
    let seeds = match std::env::var("EDGEHOLD_SEED") {
        Ok(seed) => {
            let seed: u64 = seed.parse().unwrap();
            seed..seed + 1
        }
        Err(_) => 0..SEEDS,
    };
    for seed in seeds {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .thread_name(THREADS)
            .start_paused(true)
            .build()
            .unwrap();
        let run = panic::AssertUnwindSafe(|| runtime.block_on(Simulation::new(seed).run()));
        let ended = panic::catch_unwind(run);
        let panics = PANICS.load(Ordering::Relaxed);
        assert!(ended.is_ok() && panics == 0, "EDGEHOLD_SEED={seed} fails");
    }
}
