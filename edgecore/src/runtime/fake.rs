//! A runtime that runs nothing: for tests, for the simulator, and for trying out an edge core without containers.
//!
//! It is deterministic, keeps count of every call, and checks on its own that no two containers of one name in one pod
//! ever run at once ([`Fake::violations`]).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proto::object::Uid;
use tokio::sync::mpsc;

use super::{
    Container, Event, Executed, Image, Named, Network, RegistryAuth, Runtime, RuntimeError, Sandbox, Seen, State,
    Version,
};

/// Events that wait for a slow reader; past that the oldest readers learn from later ones.
const EVENTS_MAX: usize = 256;

/// The runtime.
#[derive(Debug, Default)]
pub struct Fake {
    world: Mutex<World>,
}

#[derive(Debug, Default)]
struct World {
    containers: BTreeMap<String, Seen>,
    specs: BTreeMap<String, Container>,
    images: BTreeMap<String, Image>,
    sandboxes: BTreeSet<Uid>,
    next_id: u64,
    now_ms: i64,
    lost: bool,
    fuse: Option<Fuse>,
    calls: BTreeMap<&'static str, u64>,
    failures: BTreeMap<&'static str, VecDeque<String>>,
    /// What containers of these names do when they are started: exit at once with these codes, one per start.
    exits: BTreeMap<String, VecDeque<i32>>,
    /// Why the next containers of these names cannot be started, one per start.
    refused: BTreeMap<String, VecDeque<String>>,
    /// Names of containers that do not end at SIGTERM.
    stubborn: BTreeSet<String>,
    exec_codes: BTreeMap<String, i32>,
    readers: Vec<mpsc::Sender<Event>>,
    violations: Vec<String>,
    attempts: BTreeMap<(Uid, String), u32>,
}

/// After `calls` more calls every call hangs: the last one before (or after) it did its work.
#[derive(Debug, Clone, Copy)]
struct Fuse {
    calls: u64,
    after: bool,
}

impl Fake {
    pub fn new() -> Self {
        Self::default()
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the clock that start and end times are taken from.
    pub fn set_now(&self, now_ms: i64) {
        self.world().now_ms = now_ms;
    }

    pub fn add_image(&self, name: &str) {
        let image = image(name);
        self.world().images.insert(name.to_owned(), image);
    }

    /// How often a call was made.
    pub fn calls(&self, call: &str) -> u64 {
        self.world().calls.get(call).copied().unwrap_or_default()
    }

    /// Every call so far.
    pub fn all_calls(&self) -> BTreeMap<&'static str, u64> {
        self.world().calls.clone()
    }

    /// Makes the next such call fail. Every call stands in one queue of its own.
    pub fn fail(&self, call: &'static str, reason: &str) {
        let mut world = self.world();
        world.failures.entry(call).or_default().push_back(reason.to_owned());
    }

    /// Makes containers of this name end at once with this code when they are started next.
    pub fn exit_at_start(&self, container: &str, code: i32) {
        let mut world = self.world();
        world.exits.entry(container.to_owned()).or_default().push_back(code);
    }

    /// Makes the next container of this name one that cannot be started.
    pub fn refuse_start(&self, container: &str, reason: &str) {
        let mut world = self.world();
        let refused = world.refused.entry(container.to_owned()).or_default();
        refused.push_back(reason.to_owned());
    }

    /// Makes containers of this name ignore SIGTERM.
    pub fn make_stubborn(&self, container: &str) {
        self.world().stubborn.insert(container.to_owned());
    }

    /// What commands in containers of this name end with.
    pub fn set_exec(&self, container: &str, code: i32) {
        self.world().exec_codes.insert(container.to_owned(), code);
    }

    /// Ends every running container of this name with this code; says how many there were.
    pub fn exit(&self, container: &str, code: i32) -> usize {
        let mut world = self.world();
        let running = |seen: &&Seen| seen.labels.container == container && is_running(seen);
        let ids: Vec<String> = world
            .containers
            .values()
            .filter(running)
            .map(|seen| seen.id.clone())
            .collect();
        for id in &ids {
            world.end(id, code);
        }
        ids.len()
    }

    /// Every container, in the order in which they were made.
    pub fn containers(&self) -> Vec<Seen> {
        self.world().containers.values().cloned().collect()
    }

    /// The containers that run.
    pub fn running(&self) -> Vec<Seen> {
        self.world()
            .containers
            .values()
            .filter(|seen| is_running(seen))
            .cloned()
            .collect()
    }

    /// What a container was made from.
    pub fn spec(&self, id: &str) -> Option<Container> {
        self.world().specs.get(id).cloned()
    }

    /// The pods that have a sandbox.
    pub fn sandboxes(&self) -> BTreeSet<Uid> {
        self.world().sandboxes.clone()
    }

    /// The machine is restarted: only images stay.
    pub fn reboot(&self) {
        let mut world = self.world();
        world.containers.clear();
        world.specs.clear();
        world.sandboxes.clear();
        world.readers.clear();
        world.fuse = None;
        world.lost = false;
    }

    /// The daemon stops answering, or answers again.
    pub fn set_lost(&self, lost: bool) {
        let mut world = self.world();
        if world.lost != lost {
            world.lost = lost;
            world.tell(if lost { Event::Lost } else { Event::Back });
        }
    }

    /// Lets so many more calls through, then every call hangs until [`Fake::mend`]; the last one with its work done
    /// (`after`) or not. As if the caller died in the middle.
    pub fn set_fuse(&self, calls: u64, after: bool) {
        self.world().fuse = Some(Fuse { calls, after });
    }

    pub fn mend(&self) {
        self.world().fuse = None;
    }

    /// What must never have happened, and did.
    pub fn violations(&self) -> Vec<String> {
        self.world().violations.clone()
    }

    /// Counts a call, burns the fuse, and does the work.
    async fn call<T>(
        &self,
        name: &'static str,
        work: impl FnOnce(&mut World) -> Result<T, RuntimeError> + Send,
    ) -> Result<T, RuntimeError>
    where
        T: Send,
    {
        tokio::task::yield_now().await;
        let (result, hang) = {
            let mut world = self.world();
            let hang = match &mut world.fuse {
                Some(Fuse { calls: 0, after }) => Some(std::mem::take(after)),
                Some(fuse) => {
                    fuse.calls -= 1;
                    None
                }
                None => None,
            };
            if hang == Some(false) {
                (None, true)
            } else {
                *world.calls.entry(name).or_default() += 1;
                let result = match world.failures.get_mut(name).and_then(VecDeque::pop_front) {
                    _ if world.lost => Err(unreachable(name)),
                    Some(reason) => Err(RuntimeError::Failed { action: name, reason }),
                    None => work(&mut world),
                };
                (Some(result), hang.is_some())
            }
        };
        match result {
            Some(result) if !hang => result,
            _ => std::future::pending().await,
        }
    }
}

impl World {
    fn tell(&mut self, event: Event) {
        self.readers.retain(|reader| {
            // A full channel holds a later look already.
            !matches!(
                reader.try_send(event.clone()),
                Err(mpsc::error::TrySendError::Closed(_))
            )
        });
    }

    fn find(&mut self, action: &'static str, id: &str) -> Result<&mut Seen, RuntimeError> {
        let missing = || RuntimeError::Missing { action, what: id.to_owned() };
        self.containers.get_mut(id).ok_or_else(missing)
    }

    fn end(&mut self, id: &str, code: i32) {
        let finished_ms = self.now_ms;
        let Some(seen) = self.containers.get_mut(id) else {
            return;
        };
        let started_ms = match seen.state {
            State::Running { started_ms } => started_ms,
            State::Created | State::Exited { .. } => return,
        };
        seen.state = State::Exited { code, oom_killed: false, started_ms, finished_ms };
        let pod = seen.labels.pod;
        self.tell(Event::Pod(pod));
    }

    fn start(&mut self, id: &str) -> Result<(), RuntimeError> {
        let started_ms = self.now_ms;
        let seen = self.find("start", id)?;
        if !matches!(seen.state, State::Created) {
            return Ok(());
        }
        let labels = seen.labels.clone();
        if let Some(reason) = self.refused.get_mut(&labels.container).and_then(VecDeque::pop_front) {
            return Err(RuntimeError::NotStarted { reason });
        }
        self.find("start", id)?.state = State::Running { started_ms };
        let same = |seen: &&Seen| {
            is_running(seen) && seen.labels.pod_name == labels.pod_name && seen.labels.container == labels.container
        };
        let live = self.containers.values().filter(same);
        let live = live.filter(|seen| seen.labels.namespace == labels.namespace).count();
        if live > 1 {
            self.violations.push(format!("{live} live containers of {labels:?}"));
        }
        let highest = self.attempts.entry((labels.pod, labels.container.clone())).or_default();
        if labels.attempt < *highest {
            self.violations.push(format!("{labels:?} after attempt {highest}"));
        }
        *highest = labels.attempt;
        self.tell(Event::Pod(labels.pod));
        let code = self.exits.get_mut(&labels.container).and_then(VecDeque::pop_front);
        if let Some(code) = code {
            self.end(id, code);
        }
        Ok(())
    }
}

fn is_running(seen: &Seen) -> bool {
    matches!(seen.state, State::Running { .. })
}

fn unreachable(action: &'static str) -> RuntimeError {
    RuntimeError::Unreachable { action, source: "it was told to be lost".into() }
}

fn image(name: &str) -> Image {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in name.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    Image {
        id: format!("sha256:{hash:064x}"),
        user: String::new(),
        size_bytes: 1 << 20,
    }
}

impl Runtime for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    async fn version(&self) -> Result<Version, RuntimeError> {
        let version = "fake://1".to_owned();
        self.call("version", |_| Ok(Version { version, images: None })).await
    }

    async fn list(&self) -> Result<Vec<Seen>, RuntimeError> {
        self.call("list", |world| Ok(world.containers.values().cloned().collect()))
            .await
    }

    fn subscribe(&self) -> mpsc::Receiver<Event> {
        let (sender, receiver) = mpsc::channel(EVENTS_MAX);
        self.world().readers.push(sender);
        receiver
    }

    async fn prepare(&self, sandbox: &Sandbox) -> Result<Network, RuntimeError> {
        self.call("prepare", |world| {
            world.sandboxes.insert(sandbox.pod);
            let [.., high, low] = sandbox.pod.0;
            let addresses = if sandbox.host_network {
                Vec::new()
            } else {
                vec![format!("10.244.{high}.{low}")]
            };
            Ok(Network { addresses })
        })
        .await
    }

    async fn create(&self, sandbox: &Sandbox, container: &Container) -> Result<String, RuntimeError> {
        self.call("create", |world| {
            let missing = |what: String| RuntimeError::Missing { action: "create", what };
            if !world.sandboxes.contains(&sandbox.pod) {
                return Err(missing("the sandbox".to_owned()));
            }
            let image_id = match world.images.get(&container.image) {
                Some(image) => image.id.clone(),
                None => return Err(missing(format!("image {}", container.image))),
            };
            if let Some(known) = world.containers.values().find(|seen| seen.labels == container.labels) {
                return Ok(known.id.clone());
            }
            let id = format!("{:08}", world.next_id);
            world.next_id += 1;
            let seen = Seen {
                id: id.clone(),
                labels: container.labels.clone(),
                image: container.image.clone(),
                image_id,
                state: State::Created,
            };
            world.containers.insert(id.clone(), seen);
            world.specs.insert(id.clone(), container.clone());
            Ok(id)
        })
        .await
    }

    async fn start(&self, id: &str) -> Result<(), RuntimeError> {
        self.call("start", |world| world.start(id)).await
    }

    async fn signal(&self, id: &str, signal: u32) -> Result<(), RuntimeError> {
        self.call("signal", |world| {
            let name = world.find("signal", id)?.labels.container.clone();
            match signal {
                9 => world.end(id, 137),
                15 if !world.stubborn.contains(&name) => world.end(id, 143),
                _ => {}
            }
            Ok(())
        })
        .await
    }

    async fn stop(&self, id: &str) -> Result<(), RuntimeError> {
        self.signal(id, 15).await
    }

    async fn remove(&self, id: &str) -> Result<(), RuntimeError> {
        self.call("remove", |world| {
            world.specs.remove(id);
            if let Some(seen) = world.containers.remove(id) {
                world.tell(Event::Pod(seen.labels.pod));
            }
            Ok(())
        })
        .await
    }

    async fn release(&self, pod: Uid) -> Result<(), RuntimeError> {
        self.call("release", |world| {
            if world.containers.values().any(|seen| seen.labels.pod == pod) {
                world.violations.push(format!("released {pod} before its containers"));
            }
            world.sandboxes.remove(&pod);
            Ok(())
        })
        .await
    }

    async fn exec(&self, id: &str, _command: &[String], _limit: Duration) -> Result<Executed, RuntimeError> {
        self.call("exec", |world| {
            let seen = world.find("exec", id)?;
            if !is_running(seen) {
                let what = format!("{id}, running,");
                return Err(RuntimeError::Missing { action: "exec", what });
            }
            let name = seen.labels.container.clone();
            Ok(Executed {
                code: world.exec_codes.get(&name).copied().unwrap_or_default(),
                output: String::new(),
            })
        })
        .await
    }

    async fn image(&self, name: &str) -> Result<Option<Image>, RuntimeError> {
        self.call("image", |world| Ok(world.images.get(name).cloned())).await
    }

    async fn pull(&self, name: &str, _auth: &[RegistryAuth]) -> Result<Image, RuntimeError> {
        self.call("pull", |world| {
            let image = image(name);
            world.images.insert(name.to_owned(), image.clone());
            Ok(image)
        })
        .await
    }

    async fn import(&self, archive: &Path) -> Result<Vec<String>, RuntimeError> {
        let name = archive.display().to_string();
        self.call("import", |world| {
            world.images.insert(name.clone(), image(&name));
            Ok(vec![name])
        })
        .await
    }

    async fn images(&self) -> Result<Vec<Named>, RuntimeError> {
        self.call("images", |world| {
            let users: Vec<_> = world.containers.values().map(Seen::user).collect();
            let all = world.images.iter();
            Ok(all
                .map(|(name, image)| Named::new(name.clone(), Some(image.clone()), &users))
                .collect())
        })
        .await
    }

    async fn remove_image(&self, name: &str) -> Result<bool, RuntimeError> {
        self.call("remove image", |world| Ok(world.images.remove(name).is_some()))
            .await
    }
}
