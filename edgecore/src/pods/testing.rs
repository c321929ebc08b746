//! What the tests of this folder share.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proto::object::{Key, Revision, Uid};
use proto::time::{BootId, Mono, Wall};
use proto::value::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::desk::{Clock, Desired, Desk, Entries, PodEvent, Unreadable};
use super::folders::Folders;
use super::runner::{self, Config, Pods};
use super::spec::Pod;
use crate::runtime::fake::Fake;

/// A folder that goes with its test.
pub(super) struct Folder(tempfile::TempDir);

impl Folder {
    pub(super) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }
}

/// The pod `n/p` with this spec.
pub(super) fn desired(uid: u8, spec: &str) -> Desired {
    let spec = json::parse(spec.as_bytes()).unwrap();
    let uid = Uid::random([uid; 16]);
    let metadata = Value::from([
        ("name", "p".to_owned()),
        ("namespace", "n".to_owned()),
        ("uid", uid.to_string()),
    ]);
    let value = Value::from([
        ("apiVersion", Value::from("v1")),
        ("kind", "Pod".into()),
        ("metadata", metadata),
        ("spec", spec),
    ]);
    Desired {
        key: Key::new("Pod", "n", "p"),
        uid,
        revision: Revision(1),
        value,
    }
}

pub(super) fn pod(spec: &str) -> Pod {
    Pod::parse(&Arc::new(desired(7, spec)))
}

/// A clock that follows tokio's paused time and starts at 1970 with every boot.
#[derive(Debug)]
pub(super) struct TestClock(Mutex<(u8, Instant)>);

impl TestClock {
    pub(super) fn new() -> Self {
        Self(Mutex::new((1, now())))
    }

    pub(super) fn reboot(&self) {
        let mut boot = self.0.lock().unwrap();
        *boot = (boot.0.wrapping_add(1), now());
    }
}

#[expect(clippy::disallowed_methods, reason = "tokio's paused time is the test's own clock")]
fn now() -> Instant {
    Instant::now()
}

impl Clock for TestClock {
    fn mono(&self) -> Mono {
        let (_, begun) = *self.0.lock().unwrap();
        Mono(u64::try_from(now().duration_since(begun).as_millis()).unwrap())
    }

    fn wall(&self) -> Wall {
        let ms = i64::try_from(self.mono().0).unwrap();
        Wall { ms, trusted: false }
    }

    fn boot(&self) -> BootId {
        BootId([self.0.lock().unwrap().0; 16])
    }
}

/// A store in memory that checks what it is told.
#[derive(Debug, Default)]
pub(super) struct TestDesk(Mutex<Papers>);

#[derive(Debug, Default)]
pub(super) struct Papers {
    pub objects: BTreeMap<Key, Arc<Desired>>,
    pub memory: BTreeMap<Uid, Vec<u8>>,
    pub status: BTreeMap<Uid, Value>,
    pub gone: Vec<Uid>,
    pub events: Vec<PodEvent>,
    /// Every write, in all.
    pub writes: u64,
    pub restarts: BTreeMap<(Uid, String), i64>,
    pub violations: Vec<String>,
    /// It was lost, and has not heard of everything yet.
    pub begun_anew: bool,
    /// Nothing can be read.
    pub unreadable: bool,
    /// Reading a memory panics so many more times.
    pub panics: u32,
}

impl TestDesk {
    pub(super) fn papers(&self) -> MutexGuard<'_, Papers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts an object down as it should be.
    pub(super) fn put(&self, desired: Desired) {
        self.papers().objects.insert(desired.key.clone(), Arc::new(desired));
    }

    pub(super) fn put_json(&self, text: &str) -> Key {
        let value = json::parse(text.as_bytes()).unwrap();
        let key = Key::of(&value).unwrap();
        self.put(Desired {
            key: key.clone(),
            uid: Uid::random([99; 16]),
            revision: Revision(1),
            value,
        });
        key
    }

    /// Changes one field of an object.
    pub(super) fn edit(&self, key: &Key, path: &[&str], value: impl Into<Value>) {
        let mut papers = self.papers();
        let Some(object) = papers.objects.get_mut(key) else {
            return;
        };
        let mut changed = Desired::clone(object);
        changed.revision.0 += 1;
        changed.value.set(path, value);
        *object = Arc::new(changed);
    }

    pub(super) fn remove(&self, key: &Key) {
        self.papers().objects.remove(key);
    }

    pub(super) fn status(&self, uid: Uid) -> Value {
        self.papers().status.get(&uid).cloned().unwrap_or_default()
    }

    /// The reasons of the events so far.
    pub(super) fn reasons(&self) -> Vec<&'static str> {
        self.papers().events.iter().map(|event| event.reason).collect()
    }
}

impl Desk for TestDesk {
    async fn desired_pods(&self) -> Entries {
        let papers = self.papers();
        let pods = papers.objects.values().filter(|object| object.key.kind.kind() == "Pod");
        let list = pods.filter(|_| !papers.unreadable).cloned().collect();
        Entries {
            list,
            read_whole: !papers.unreadable,
            synced: !papers.begun_anew,
        }
    }

    async fn desired(&self, key: &Key) -> Result<Option<Arc<Desired>>, Unreadable> {
        let papers = self.papers();
        if papers.unreadable {
            return Err(Unreadable);
        }
        Ok(papers.objects.get(key).cloned())
    }

    async fn report(&self, pod: Uid, status: Value) {
        tokio::task::yield_now().await;
        let mut papers = self.papers();
        papers.writes += 1;
        for list in ["initContainerStatuses", "containerStatuses"] {
            for container in status.list_at(&[list]) {
                let name = container.text_at(&["name"]).unwrap().to_owned();
                let count = container.int_at(&["restartCount"]).unwrap();
                let before = papers.restarts.insert((pod, name.clone()), count).unwrap_or_default();
                if count < before {
                    papers
                        .violations
                        .push(format!("{name}: {count} restarts after {before}"));
                }
            }
        }
        papers.status.insert(pod, status);
    }

    async fn gone(&self, pod: Uid) {
        tokio::task::yield_now().await;
        let mut papers = self.papers();
        papers.writes += 1;
        papers.gone.push(pod);
        let deleting =
            |object: &Desired| object.uid != pod || object.value.text_at(&["metadata", "deletionTimestamp"]).is_none();
        papers.objects.retain(|_, object| deleting(object));
    }

    async fn event(&self, event: PodEvent) {
        let mut papers = self.papers();
        papers.writes += 1;
        papers.events.push(event);
    }

    async fn memory(&self, pod: Uid) -> Result<Option<Vec<u8>>, Unreadable> {
        let mut papers = self.papers();
        if papers.panics > 0 {
            papers.panics -= 1;
            drop(papers);
            panic!("as the test wants it");
        }
        if papers.unreadable {
            return Err(Unreadable);
        }
        Ok(papers.memory.get(&pod).cloned())
    }

    async fn remember(&self, pod: Uid, memory: Option<Vec<u8>>) {
        tokio::task::yield_now().await;
        let mut papers = self.papers();
        papers.writes += 1;
        match memory {
            Some(memory) => drop(papers.memory.insert(pod, memory)),
            None => drop(papers.memory.remove(&pod)),
        }
    }

    fn addresses(&self) -> Vec<String> {
        vec!["192.168.0.9".to_owned()]
    }
}

/// A node: store, runtime, clock, folders, and an edge core that can be killed.
pub(super) struct Rig {
    pub desk: Arc<TestDesk>,
    pub runtime: Arc<Fake>,
    pub clock: Arc<TestClock>,
    pub folder: Folder,
    pub pods: Option<Pods>,
    tasks: JoinSet<anyhow::Result<()>>,
}

impl Rig {
    /// With no edge core running yet.
    pub(super) fn new() -> Self {
        let rig = Self {
            desk: Arc::default(),
            runtime: Arc::new(Fake::new()),
            clock: Arc::new(TestClock::new()),
            folder: Folder::new(),
            pods: None,
            tasks: JoinSet::new(),
        };
        rig.runtime.add_image("i:1");
        rig
    }

    pub(super) fn folders(&self) -> Folders {
        Folders {
            pods: self.folder.path().join("pods"),
            logs: self.folder.path().join("logs"),
        }
    }

    pub(super) fn start(&mut self) {
        let config = Config {
            folders: self.folders(),
            mount_memory: false,
            ..Config::default()
        };
        let (runtime, desk, clock) = (&self.runtime, &self.desk, &self.clock);
        let (pods, runner) = runner::new(config, Arc::clone(runtime), Arc::clone(desk), Arc::clone(clock));
        self.pods = Some(pods);
        self.tasks.spawn(runner.run(CancellationToken::new()));
    }

    /// `kill -9`.
    pub(super) async fn kill(&mut self) {
        self.tasks.shutdown().await;
        self.pods = None;
    }

    pub(super) fn wake(&self, key: &Key) {
        if let Some(pods) = &self.pods {
            pods.wake(key.clone());
        }
    }

    /// Lets so much time pass.
    pub(super) async fn pass(&self, wait: Duration) {
        tokio::time::sleep(wait).await;
        self.runtime.set_now(self.clock.wall().ms);
    }

    /// Waits until something holds, for an hour at most.
    pub(super) async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        for _ in 0..36_000 {
            if holds(self) {
                return;
            }
            self.pass(Duration::from_millis(100)).await;
        }
        panic!("not within an hour: {what}; calls {:?}", self.runtime.all_calls());
    }

    /// How long the machine is up.
    pub(super) fn clock_seconds(&self) -> u64 {
        self.clock.mono().0 / 1000
    }

    /// The one pod of most tests runs and is ready.
    pub(super) fn is_ready(&self, uid: Uid) -> bool {
        let status = self.desk.status(uid);
        let mut conditions = status.list_at(&["conditions"]).iter();
        conditions.any(|one| one.text_at(&["type"]) == Some("Ready") && one.text_at(&["status"]) == Some("True"))
    }
}
