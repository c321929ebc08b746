//! Containers with no daemon: images of the node's own store, short-lived processes that make those of containers (`act`),
//! and one small process for each pod that holds them (`shim`).
//!
//! The truth is in files. What a container is, that it was started and how it ended are records in the data folder
//! (`record`), each on the disk before anybody acts on it; looking at a pod reads them and asks nobody. A shim is found by
//! the lock and the socket in the pod's run folder; the edge core watches the shims of whatever should be running, and
//! where one is gone starts another, which takes over what still runs and writes down what does not. So the edge core, and
//! a shim as well, can stop, die or be replaced by another release at any moment.
//!
//! No leftovers: a container's record is written last and taken away last, and what an interrupted call leaves is found by
//! the next one of the same container, or with its pod.
//!
//! Two calls for one container at a time are the caller's to avoid.

mod act;
mod client;
mod exec;
mod first;
mod folders;
mod launch;
pub(crate) mod living;
mod make;
mod record;
mod shim;
mod watch;
mod wire;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use proto::object::Uid;
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::mpsc;
use tokio::time::timeout;

use self::folders::Folders;
use self::launch::Launcher;
use self::make::Maker;
use self::record::{CODE_UNKNOWN, Exit, Made, Moment, NodeTime, RecordError};
use self::watch::Watchers;
use self::wire::{Answer, Request};
use super::oci::sandbox::Sandboxes;
use super::oci::spec::{self, Machine};
use super::oci::{cgroup, machine, names, signal};
use super::{
    CniConfig, Container, Event, Executed, Image, Named, Network, RegistryAuth, Runtime, RuntimeError, Sandbox, Seen,
    State, Version, explain,
};
use crate::images::store::{ImageStore, StoreError, Stored, unpack};
use crate::images::{Clock, Reference, Registry, Source, Trust};
use crate::rootless::Rootless;

const LIST: &str = "listing containers";
const CREATE: &str = "creating the container";
const START: &str = "starting the container";
const SIGNAL: &str = "signalling the container";
const REMOVE: &str = "removing the container";
const RELEASE: &str = "releasing the pod's sandbox";
const EXEC: &str = "running a command in the container";
const FIND: &str = "looking for the image";
const FORGET: &str = "removing the image";

/// For what a shim does at once.
const QUICK: Duration = Duration::from_secs(10);
/// For making a process, on a card that is busy.
const PROCESS: Duration = Duration::from_secs(120);
/// From SIGKILL to the end; a process in uninterruptible sleep takes as long as its disk.
const KILL_LIMIT: Duration = Duration::from_secs(30);
/// Between two looks at what nothing tells of.
const LOOK: Duration = Duration::from_millis(20);
/// How often a shim that ends just when it is asked is replaced by another.
const TRIES: u32 = 3;
const SIGKILL: u32 = 9;

/// Where to keep what.
#[derive(Debug, Clone)]
pub struct Config {
    /// For what stays: images, records, what containers write.
    pub data_dir: PathBuf,
    /// For namespaces, sockets and FIFOs; emptied by a reboot.
    pub run_dir: PathBuf,
    /// This program: it understands [`child`].
    pub program: PathBuf,
    pub log_bytes_max: u64,
    pub log_files_max: u32,
    /// Below which every pod gets a cgroup.
    pub cgroup_parent: String,
    pub cni: CniConfig,
    /// More certificate authorities for registries, as PEM.
    pub registry_ca: Option<PathBuf>,
    /// What there is where the edge core is not root.
    pub rootless: Option<Rootless>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data_dir: "/var/lib/edgehold/edge/embedded".into(),
            run_dir: "/run/edgehold".into(),
            // Also when an upgrade has replaced the file: what runs and what it starts are of one release.
            program: "/proc/self/exe".into(),
            log_bytes_max: 10 * 1024 * 1024,
            log_files_max: 5,
            cgroup_parent: "/edgehold".into(),
            cni: CniConfig::default(),
            registry_ca: None,
            rootless: None,
        }
    }
}

/// Runs what this program is when its first argument says so; `None` when it says nothing of the kind. Before anything
/// else of a program: there must be no thread.
pub fn child(word: &OsString, args: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    match word.to_str()? {
        shim::WORD => Some(shim::main(args)),
        act::WORD => Some(act::main(args)),
        unpack::WORD => Some(unpack::main(args)),
        _ => None,
    }
}

/// Runs containers by itself.
pub struct Embedded {
    config: Config,
    folders: Folders,
    images: ImageStore,
    maker: Arc<Maker>,
    trust: Trust,
    sandboxes: Sandboxes,
    clock: Clock,
    /// What the clock said last.
    time: Mutex<Option<NodeTime>>,
    watchers: Arc<Watchers>,
}

impl std::fmt::Debug for Embedded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Embedded")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Embedded {
    pub fn new(config: Config, clock: Clock) -> Result<Self, RuntimeError> {
        let folders = Folders::new(&config.data_dir, &config.run_dir);
        let images = ImageStore::open(config.data_dir.join("images"), config.program.clone());
        let images = images.map_err(stored("opening the image store"))?;
        let launcher = Launcher {
            program: config.program.clone(),
            cgroup_parent: config.cgroup_parent.clone(),
        };
        Ok(Self {
            maker: Arc::new(Maker {
                images: images.clone(),
                folders: folders.clone(),
                machine: Machine { rootless: config.rootless.is_some(), ..machine::read() },
                controllers: config.rootless.as_ref().map(|rootless| rootless.controllers.clone()),
                cgroup_parent: config.cgroup_parent.clone(),
                log_bytes_max: config.log_bytes_max,
                log_files_max: config.log_files_max,
            }),
            images,
            trust: Trust { extra: config.registry_ca.clone(), clock: clock.clone() },
            sandboxes: Sandboxes::new(
                config.run_dir.clone(),
                config.data_dir.clone(),
                config.cgroup_parent.clone(),
                // Plugins make devices of the host's, which takes its root.
                config.rootless.is_none().then(|| config.cni.clone()),
            ),
            watchers: Arc::new(Watchers::new(folders.clone(), launcher)),
            folders,
            time: Mutex::default(),
            clock,
            config,
        })
    }

    /// Whether any pod of ours is on this node.
    pub fn holds_pods(config: &Config) -> bool {
        !Folders::new(&config.data_dir, &config.run_dir).pods().is_empty()
    }

    fn time(&self) -> NodeTime {
        let mut known = self.time.lock().unwrap_or_else(PoisonError::into_inner);
        let time = NodeTime::update(*known, Moment::now(), (self.clock)());
        *known = Some(time);
        time
    }

    /// What a container's records say.
    fn look(&self, pod: Uid, id: &str) -> Result<Option<Seen>, RecordError> {
        let folder = self.folders.container(pod, id);
        let Some(made) = record::read::<Made>(&folder.join(record::MADE))? else {
            return Ok(None);
        };
        let started = record::read::<Moment>(&folder.join(record::STARTED))?;
        let ended = match record::read::<Exit>(&folder.join(record::EXIT))? {
            // Where there was no room for it on the disk.
            None => {
                let ended = record::read::<Exit>(&self.folders.run(pod).join(id).join(record::EXIT))?;
                if let Some(ended) = &ended {
                    // There may be by now; whatever fails here is tried again by the next look.
                    let _ = record::write(&folder.join(record::EXIT), ended);
                }
                ended
            }
            ended => ended,
        };
        Ok(Some(Seen {
            id: id.to_owned(),
            labels: made.labels(),
            state: state(started, ended, &self.time()),
            image: made.image,
            image_id: made.image_id,
        }))
    }

    fn look_at_pod(&self, pod: Uid) -> Result<Vec<Seen>, RecordError> {
        let mut seen = Vec::new();
        for id in self.folders.containers(pod) {
            seen.extend(self.look(pod, &id)?);
        }
        if seen.iter().any(|seen| matches!(seen.state, State::Running { .. })) {
            self.watchers.watch(pod);
        }
        Ok(seen)
    }

    /// Makes an end of a running container, and waits until it is written down.
    async fn end(&self, pod: Uid, id: &str) -> Result<(), RuntimeError> {
        let made =
            record::read::<Made>(&self.folders.container(pod, id).join(record::MADE)).map_err(recorded(REMOVE))?;
        // What was never made whole has no process.
        let Some(Made { cgroup, .. }) = made else { return Ok(()) };
        let ending = async {
            loop {
                let seen = self.look(pod, id).map_err(recorded(REMOVE))?;
                let running = matches!(seen.map(|seen| seen.state), Some(State::Running { .. }));
                let busy = cgroup::processes(&cgroup);
                if !running && busy.is_empty() {
                    return Ok(());
                }
                cgroup::thaw(&cgroup);
                for process in busy {
                    let process = i32::try_from(process).ok().and_then(Pid::from_raw);
                    let _ = process.map(|process| kill_process(process, Signal::KILL));
                }
                if running {
                    // With no shim there is nobody to write down how it ends; the next one sees that it did.
                    let kill = Request::Signal { id: id.to_owned(), signal: SIGKILL };
                    self.ask(pod, &kill, QUICK, REMOVE).await?;
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        timeout(KILL_LIMIT, ending)
            .await
            .map_err(|_| RuntimeError::Timeout { action: REMOVE, limit: KILL_LIMIT })?
    }

    /// Asks a pod's shim, which is started if there is none.
    async fn ask(
        &self,
        pod: Uid,
        request: &Request,
        limit: Duration,
        action: &'static str,
    ) -> Result<Answer, RuntimeError> {
        self.watchers.ask(pod, request, limit, action).await
    }
}

impl Runtime for Embedded {
    fn name(&self) -> &'static str {
        "edgehold"
    }

    async fn version(&self) -> Result<Version, RuntimeError> {
        Ok(Version {
            version: format!("edgehold://{}", env!("CARGO_PKG_VERSION")),
            images: Some(self.config.data_dir.clone()),
        })
    }

    async fn list(&self) -> Result<Vec<Seen>, RuntimeError> {
        let mut seen = Vec::new();
        for pod in self.folders.pods() {
            match self.look_at_pod(pod) {
                Ok(more) => seen.extend(more),
                // Its own listing fails, so that nothing is done to it.
                Err(error) => tracing::error!(%pod, "{}", explain(&error)),
            }
        }
        Ok(seen)
    }

    async fn list_pod(&self, pod: Uid) -> Result<Vec<Seen>, RuntimeError> {
        self.look_at_pod(pod).map_err(recorded(LIST))
    }

    fn subscribe(&self) -> mpsc::Receiver<Event> {
        self.watchers.subscribe()
    }

    async fn prepare(&self, sandbox: &Sandbox) -> Result<Network, RuntimeError> {
        self.sandboxes.prepare(sandbox).await
    }

    async fn create(&self, sandbox: &Sandbox, container: &Container) -> Result<String, RuntimeError> {
        let (maker, shared) = (Arc::clone(&self.maker), self.sandboxes.folder(sandbox.pod));
        let (sandbox, container) = (sandbox.clone(), container.clone());
        blocking(CREATE, move || maker.make(&sandbox, &container, &shared)).await
    }

    async fn start(&self, id: &str) -> Result<(), RuntimeError> {
        let missing = || RuntimeError::Missing { action: START, what: id.to_owned() };
        let pod = names::pod_of(id).ok_or_else(missing)?;
        let seen = self.look(pod, id).map_err(recorded(START))?.ok_or_else(missing)?;
        if seen.state != State::Created {
            return Ok(());
        }
        let maker = Arc::clone(&self.maker);
        blocking(START, move || maker.mount(pod, &seen)).await?;
        let answer = self
            .ask(pod, &Request::Start { id: id.to_owned() }, PROCESS, START)
            .await?;
        self.watchers.watch(pod);
        match answer {
            Answer::Refused(reason) => Err(not_started(reason)),
            Answer::Missing => Err(missing()),
            Answer::Done | Answer::Changed | Answer::Containers(_) => Ok(()),
        }
    }

    async fn signal(&self, id: &str, signal: u32) -> Result<(), RuntimeError> {
        let Some(pod) = names::pod_of(id) else { return Ok(()) };
        // What has ended needs no signal.
        let seen = self.look(pod, id).map_err(recorded(SIGNAL))?;
        if !matches!(seen.map(|seen| seen.state), Some(State::Running { .. })) {
            return Ok(());
        }
        if signal == SIGKILL
            && let Some(made) =
                record::read::<Made>(&self.folders.container(pod, id).join(record::MADE)).map_err(recorded(SIGNAL))?
        {
            cgroup::thaw(&made.cgroup);
        }
        match self
            .ask(pod, &Request::Signal { id: id.to_owned(), signal }, QUICK, SIGNAL)
            .await?
        {
            Answer::Refused(reason) => Err(RuntimeError::Failed { action: SIGNAL, reason }),
            Answer::Done | Answer::Missing | Answer::Changed | Answer::Containers(_) => Ok(()),
        }
    }

    async fn stop(&self, id: &str) -> Result<(), RuntimeError> {
        let Some(pod) = names::pod_of(id) else { return Ok(()) };
        let spec = act::load(&self.folders.container(pod, id));
        // One that cannot be read any more ends all the same.
        let number = spec.map_or(signal::TERM, |spec| spec::stop_signal(&spec.annotations));
        self.signal(id, number).await
    }

    async fn remove(&self, id: &str) -> Result<(), RuntimeError> {
        let Some(pod) = names::pod_of(id) else { return Ok(()) };
        if !self.folders.container(pod, id).exists() {
            return Ok(());
        }
        self.end(pod, id).await?;
        let (maker, id) = (Arc::clone(&self.maker), id.to_owned());
        blocking(REMOVE, move || maker.unmake(pod, &id)).await
    }

    async fn release(&self, pod: Uid) -> Result<(), RuntimeError> {
        let left = self.look_at_pod(pod).map_err(recorded(RELEASE))?.len();
        if left > 0 {
            let reason = format!("{left} of its containers are still there");
            return Err(RuntimeError::Failed { action: RELEASE, reason });
        }
        // What is no container was never made whole.
        for id in self.folders.containers(pod) {
            self.remove(&id).await?;
        }
        self.watchers.end(pod).await?;
        let cgroup = names::pod_cgroup(self.sandboxes.cgroup_parent(), pod);
        let empty = async {
            // A process leaves its cgroup after it let go of everything else.
            while !cgroup::processes(&cgroup).is_empty() {
                tokio::time::sleep(LOOK).await;
            }
        };
        timeout(QUICK, empty)
            .await
            .map_err(|_| RuntimeError::Timeout { action: RELEASE, limit: QUICK })?;
        self.sandboxes.release(pod).await?;
        for folder in [self.folders.run(pod), self.folders.pod(pod)] {
            missing_is_fine(std::fs::remove_dir_all(folder)).map_err(failed(RELEASE))?;
        }
        let maker = Arc::clone(&self.maker);
        if let Err(error) = blocking(RELEASE, move || maker.collect()).await {
            tracing::warn!("{}", explain(&error));
        }
        Ok(())
    }

    async fn exec(&self, id: &str, command: &[String], limit: Duration) -> Result<Executed, RuntimeError> {
        let missing = || RuntimeError::Missing { action: EXEC, what: id.to_owned() };
        let pod = names::pod_of(id).ok_or_else(missing)?;
        let seen = self.look(pod, id).map_err(recorded(EXEC))?;
        if !matches!(seen.map(|seen| seen.state), Some(State::Running { .. })) {
            return Err(missing());
        }
        let (folder, run) = (self.folders.container(pod, id), self.folders.run(pod));
        exec::exec(&self.config.program, &folder, &run, id, command, limit).await
    }

    async fn image(&self, name: &str) -> Result<Option<Image>, RuntimeError> {
        if let Err(error) = Reference::parse(name) {
            return Err(RuntimeError::Invalid { action: FIND, reason: explain(&error) });
        }
        let stored = self.images.image(name).map_err(stored(FIND))?;
        Ok(stored.map(|stored| image(&stored)))
    }

    async fn pull(&self, name: &str, auth: &[RegistryAuth]) -> Result<Image, RuntimeError> {
        let refused = |reason: String| RuntimeError::Pull { image: name.to_owned(), reason };
        let reference = Reference::parse(name).map_err(|error| refused(explain(&error)))?;
        let registry = Registry::new(reference, auth, self.trust.clone());
        let pulled = self.images.pull(name, Source::Registry(Box::new(registry))).await;
        pulled
            .map(|stored| image(&stored))
            .map_err(|error| refused(explain(&error)))
    }

    async fn import(&self, archive: &Path) -> Result<Vec<String>, RuntimeError> {
        let imported = self.images.import(archive).await;
        imported.map_err(|error| {
            let reason = match &error {
                // Of the archive itself, which is named already.
                StoreError::Image { image, source } if *image == archive.display().to_string() => explain(source),
                error => explain(error),
            };
            RuntimeError::Import { archive: archive.to_owned(), reason }
        })
    }

    async fn images(&self) -> Result<Vec<Named>, RuntimeError> {
        let (maker, images) = (Arc::clone(&self.maker), self.images.clone());
        blocking(FIND, move || {
            let users = maker.users()?;
            let names = images.names().map_err(stored(FIND))?.into_iter();
            Ok(names
                .map(|(name, stored)| Named::new(name, stored.as_ref().map(image), &users))
                .collect())
        })
        .await
    }

    async fn remove_image(&self, name: &str) -> Result<bool, RuntimeError> {
        let (maker, images, name) = (Arc::clone(&self.maker), self.images.clone(), name.to_owned());
        blocking(FORGET, move || {
            let known = images.forget(&name).map_err(stored(FORGET))?;
            maker.collect()?;
            Ok(known)
        })
        .await
    }
}

/// Why a shim did not let a container run. A shim has no words but these: what the disk has no room for is no fault of
/// the container's.
fn not_started(reason: String) -> RuntimeError {
    let full = io::Error::from_raw_os_error(libc::ENOSPC).to_string();
    if reason.contains(&full) {
        RuntimeError::DiskFull { action: START }
    } else {
        RuntimeError::NotStarted { reason }
    }
}

/// How far a container is.
fn state(started: Option<Moment>, ended: Option<Exit>, node: &NodeTime) -> State {
    let ms = |moment: Moment| moment.wall_ms(node);
    match (started, ended) {
        (None, None) => State::Created,
        (Some(at), None) if at.boot == node.boot => State::Running { started_ms: ms(at) },
        // It ran when the machine went down.
        (Some(at), None) => State::Exited {
            code: CODE_UNKNOWN,
            oom_killed: false,
            started_ms: ms(at),
            finished_ms: ms(at),
        },
        (started, Some(exit)) => State::Exited {
            code: exit.code,
            oom_killed: exit.oom_killed,
            started_ms: ms(started.unwrap_or(exit.at)),
            finished_ms: ms(exit.at),
        },
    }
}

fn image(stored: &Stored) -> Image {
    let run = stored.config.config.clone().unwrap_or_default();
    Image {
        id: stored.id.to_string(),
        user: run.user.unwrap_or_default(),
        size_bytes: stored.size_bytes,
    }
}

/// Runs what blocks where it holds up nobody.
async fn blocking<T: Send + 'static>(
    action: &'static str,
    work: impl FnOnce() -> Result<T, RuntimeError> + Send + 'static,
) -> Result<T, RuntimeError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| RuntimeError::Failed { action, reason: error.to_string() })?
}

fn missing_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn failed(action: &'static str) -> impl Fn(io::Error) -> RuntimeError {
    move |error| match error.kind() {
        io::ErrorKind::StorageFull => RuntimeError::DiskFull { action },
        _ => RuntimeError::Failed { action, reason: error.to_string() },
    }
}

fn recorded(action: &'static str) -> impl Fn(RecordError) -> RuntimeError {
    move |error| of_error(action, &error)
}

fn stored(action: &'static str) -> impl Fn(StoreError) -> RuntimeError {
    move |error| of_error(action, &error)
}

fn of_error(action: &'static str, error: &(dyn std::error::Error + 'static)) -> RuntimeError {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    let full = causes.any(|cause| {
        let io = cause.downcast_ref::<io::Error>();
        io.is_some_and(|error| error.kind() == io::ErrorKind::StorageFull)
    });
    if full {
        RuntimeError::DiskFull { action }
    } else {
        RuntimeError::Failed { action, reason: explain(error) }
    }
}
