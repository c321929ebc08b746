//! Containers by containerd, through its own services (1.6 and later; no CRI).
//!
//! Everything is in a namespace of its own, so that nothing of anybody else's is ever touched. What a container is stands
//! in its record's labels (`record`); a pod's containers share one shim; what they share besides is kept by mounts
//! (`sandbox`); their logs go through processes of their own (`log_shim`). The edge core can therefore stop, die and
//! be replaced, and containerd too, while containers run on and log on.
//!
//! No leftovers: a container's record is made before its snapshot and goes after it, and every leftover of an interrupted
//! call is found by the next one, or taken by containerd's garbage collector because nothing refers to it.
//!
//! Every call has a deadline. Two calls for one container at a time are the caller's to avoid.

mod client;
mod events;
mod exec;
mod images;
mod ingest;
mod passwd;
mod record;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use containerd_client::services::v1::container::Runtime as Engine;
use containerd_client::services::v1::{
    Container as Record, CreateContainerRequest, CreateTaskRequest, DeleteContainerRequest, DeleteTaskRequest,
    GetContainerRequest, GetRequest, KillRequest, ListContainersRequest, ListTasksRequest, PluginsRequest,
    StartRequest, UpdateContainerRequest, WaitRequest,
};
use containerd_client::types::v1::Process;
use prost_types::{Any, FieldMask};
use proto::object::Uid;
use tokio::sync::{Semaphore, mpsc};

use self::client::{Answer as _, Client, PROCESS, QUICK, within};
use self::exec::Execs;
use self::images::Images;
use self::record::Exit;
use super::log_shim::{self, Target};
use super::oci::sandbox::{self, Sandboxes};
use super::oci::spec::{self, Input, Machine};
use super::oci::{accounts, cgroup, limits, machine, names, signal};
use super::{
    CniConfig, Container, Event, Executed, Image, Named, Network, RegistryAuth, Runtime, RuntimeError, Sandbox, Seen,
    Version, explain,
};
use crate::images::registry::escape;
use crate::images::{Clock, Trust};
use crate::oci::Spec;
use crate::runtime::tasks::Tasks;

const LIST: &str = "listing containers";
const CREATE: &str = "creating the container";
const START: &str = "starting the container";
const SIGNAL: &str = "signalling the container";
const REMOVE: &str = "removing the container";
const RELEASE: &str = "releasing the pod's sandbox";

/// How many events wait for whoever subscribed; pods beyond that are merged and told later.
const EVENTS_MAX: usize = 64;
/// From SIGKILL to the end; a process in uninterruptible sleep takes as long as its disk.
const KILL_LIMIT: Duration = Duration::from_secs(30);
const SIGKILL: u32 = 9;

const ENGINE: &str = "io.containerd.runc.v2";
/// The type containerd wants a specification in.
const SPEC_TYPE: &str = "types.containerd.io/opencontainers/runtime-spec/1/Spec";

/// How to reach containerd and where to keep what.
#[derive(Debug, Clone)]
pub struct Config {
    pub socket: PathBuf,
    /// containerd's namespace; all that is in it is ours.
    pub namespace: String,
    pub snapshotter: String,
    /// For namespaces and FIFOs; emptied by a reboot.
    pub run_dir: PathBuf,
    /// For what must be taken away even after a reboot.
    pub state_dir: PathBuf,
    /// The executable that understands [`log_shim::WORD`]: the edge core's own.
    pub log_program: PathBuf,
    pub log_bytes_max: u64,
    pub log_files_max: u32,
    /// Below which every pod gets a cgroup.
    pub cgroup_parent: String,
    pub cni: CniConfig,
    /// More certificate authorities for registries, as PEM.
    pub registry_ca: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            socket: "/run/containerd/containerd.sock".into(),
            namespace: "edgehold".into(),
            snapshotter: "overlayfs".into(),
            run_dir: "/run/edgehold".into(),
            state_dir: "/var/lib/edgehold/containerd".into(),
            log_program: "/usr/bin/edgecore".into(),
            log_bytes_max: 10 * 1024 * 1024,
            log_files_max: 5,
            cgroup_parent: "/edgehold".into(),
            cni: CniConfig::default(),
            registry_ca: None,
        }
    }
}

/// Runs containers through one containerd.
pub struct Containerd {
    config: Config,
    client: Client,
    images: Images,
    execs: Execs,
    sandboxes: Sandboxes,
    machine: Machine,
    /// Where the snapshotter keeps what it unpacks, once it said so.
    snapshots: OnceLock<PathBuf>,
    /// For labels, and for judging a registry's certificate.
    clock: Clock,
    /// One at a time.
    settling: Semaphore,
    /// Those who watch for events; they end with this.
    watchers: Tasks,
}

impl std::fmt::Debug for Containerd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Containerd")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Containerd {
    /// Does not connect yet: a containerd that is missing is met by the first call.
    pub fn new(config: Config, clock: Clock) -> Result<Self, RuntimeError> {
        let client = Client::new(config.socket.clone(), &config.namespace)?;
        let trust = Trust { extra: config.registry_ca.clone(), clock: clock.clone() };
        Ok(Self {
            images: Images::new(client.clone(), config.snapshotter.clone(), trust),
            execs: Execs::new(client.clone(), &config.run_dir),
            sandboxes: Sandboxes::new(
                config.run_dir.clone(),
                config.state_dir.clone(),
                config.cgroup_parent.clone(),
                Some(config.cni.clone()),
            ),
            machine: machine::read(),
            snapshots: OnceLock::new(),
            settling: Semaphore::new(1),
            watchers: Tasks::default(),
            clock,
            client,
            config,
        })
    }

    /// Where the snapshotter keeps what it unpacks, as it says itself; asked once, and again where it did not answer.
    async fn snapshots_folder(&self) -> Option<PathBuf> {
        if let Some(known) = self.snapshots.get() {
            return Some(known.clone());
        }
        let filter = format!("type==io.containerd.snapshotter.v1,id=={}", self.config.snapshotter);
        let request = self.client.request(PluginsRequest { filters: vec![filter] });
        let answer = within(QUICK, self.client.introspection().plugins(request)).await.ok()?;
        let root = answer
            .plugins
            .into_iter()
            .find_map(|mut plugin| plugin.exports.remove("root"))?;
        Some(self.snapshots.get_or_init(|| root.into()).clone())
    }

    async fn record(&self, id: &str, action: &'static str) -> Result<Option<Record>, RuntimeError> {
        let request = self.client.request(GetContainerRequest { id: id.to_owned() });
        let answer = within(QUICK, self.client.containers().get(request)).await;
        Ok(answer
            .optional()
            .or_error(action, id)?
            .and_then(|answer| answer.container))
    }

    async fn task(&self, id: &str, action: &'static str) -> Result<Option<Process>, RuntimeError> {
        let request = self
            .client
            .request(GetRequest { container_id: id.to_owned(), exec_id: String::new() });
        let answer = within(QUICK, self.client.tasks().get(request)).await;
        Ok(answer
            .optional()
            .or_error(action, id)?
            .and_then(|answer| answer.process))
    }

    async fn label(&self, id: &str, key: &str, value: String, action: &'static str) -> Result<(), RuntimeError> {
        let container = Record {
            id: id.to_owned(),
            labels: HashMap::from([(key.to_owned(), value)]),
            ..Record::default()
        };
        let mask = FieldMask { paths: vec![format!("labels.{key}")] };
        let request = UpdateContainerRequest { container: Some(container), update_mask: Some(mask) };
        let updated = within(QUICK, self.client.containers().update(self.client.request(request))).await;
        updated.or_error(action, id).map(drop)
    }

    async fn delete_task(&self, id: &str, action: &'static str) -> Result<(), RuntimeError> {
        let request = self.client.request(DeleteTaskRequest { container_id: id.to_owned() });
        within(PROCESS, self.client.tasks().delete(request))
            .await
            .optional()
            .or_error(action, id)
            .map(drop)
    }

    async fn containers(&self, filter: String, action: &'static str) -> Result<Vec<Record>, RuntimeError> {
        let request = self.client.request(ListContainersRequest { filters: vec![filter] });
        let answer = within(QUICK, self.client.containers().list(request)).await;
        Ok(answer.or_error(action, &self.config.namespace)?.containers)
    }

    /// A container as it is, from its record and, read after that, its task. `None` when it is not ours or gone.
    async fn look(&self, mut record: Record, task: Option<&Process>) -> Result<Option<Seen>, RuntimeError> {
        if task.is_none() && record::is_lost(&record.labels) {
            // Or somebody else settled it between the two reads: then the record knows now.
            match self.record(&record.id, LIST).await? {
                Some(newer) => record = newer,
                None => return Ok(None),
            }
        }
        if let Some(task) = task.filter(|task| record::has_ended(task))
            && let Err(error) = self.settle(&mut record, task).await
        {
            // The task still knows; the next listing tries again.
            let reason = explain(&error);
            tracing::warn!(container = record.id, reason, "cannot settle an ended container");
        }
        let Some(labels) = record::read(&record.labels) else {
            return Ok(None);
        };
        let text = |key: &str| record.labels.get(key).cloned().unwrap_or_default();
        Ok(Some(Seen {
            image: text(record::IMAGE),
            image_id: text(record::IMAGE_ID),
            state: record::state(&record.labels, task),
            labels,
            id: record.id,
        }))
    }

    /// Moves how a container ended from its task into its record, and lets the task go: with it go its log process
    /// and, after the pod's last one, the shim.
    async fn settle(&self, record: &mut Record, task: &Process) -> Result<(), RuntimeError> {
        let _turn = self.settling.acquire().await.expect("never closed");
        // Whoever had the turn before may have done it, and the cgroup that tells of an OOM kill is gone then.
        if let Some(newer) = self.record(&record.id, LIST).await? {
            *record = newer;
        }
        if record::exit(&record.labels).is_none() {
            let exit = Exit::of(task, oom_killed(&self.config.cgroup_parent, record)).write();
            self.label(&record.id, record::EXIT, exit.clone(), LIST).await?;
            record.labels.insert(record::EXIT.to_owned(), exit);
        }
        self.delete_task(&record.id, LIST).await
    }

    /// The record of a container: made now, or as it was made.
    async fn make_record(
        &self,
        sandbox: &Sandbox,
        container: &Container,
        found: &images::Found,
    ) -> Result<Record, RuntimeError> {
        let id = names::id(&container.labels);
        if let Some(known) = self.record(&id, CREATE).await? {
            let labels = record::read(&known.labels);
            if labels.as_ref() == Some(&container.labels) {
                return Ok(known);
            }
            let reason = format!(
                "attempt {} was made before, from another spec",
                container.labels.attempt
            );
            return Err(RuntimeError::Invalid { action: CREATE, reason });
        }
        let invalid = |reason| RuntimeError::Invalid { action: CREATE, reason };
        let user = found.run.user.as_deref().unwrap_or_default();
        let (passwd, group) = if accounts::needs_files(user, &container.security) {
            self.account_files(&id, found).await?
        } else {
            (String::new(), String::new())
        };
        let account = accounts::resolve(user, &container.security, &passwd, &group).map_err(invalid)?;
        let container = &*limits::kept(container, &cgroup::controllers());
        let spec = spec::build(&Input {
            sandbox,
            container,
            image: &found.run,
            account: &account,
            machine: &self.machine,
            shared: &self.sandboxes.folder(sandbox.pod),
            cgroup_parent: self.sandboxes.cgroup_parent(),
        })
        .map_err(invalid)?;
        let spec = serde_json::to_vec(&spec).map_err(|error| invalid(error.to_string()))?;
        let log = Target {
            bytes_max: self.config.log_bytes_max,
            files_max: self.config.log_files_max,
            path: container.log.clone(),
        };
        let mut labels = record::write(&container.labels);
        labels.insert(record::IMAGE.to_owned(), container.image.clone());
        labels.insert(record::IMAGE_ID.to_owned(), found.image.id.clone());
        labels.insert(record::LOG.to_owned(), log.to_string());
        labels.insert(record::TTY.to_owned(), container.tty.to_string());
        let made = Record {
            id: id.clone(),
            labels,
            image: container.image.clone(),
            runtime: Some(Engine { name: ENGINE.to_owned(), options: None }),
            spec: Some(Any { type_url: SPEC_TYPE.to_owned(), value: spec }),
            snapshotter: self.config.snapshotter.clone(),
            snapshot_key: id.clone(),
            ..Record::default()
        };
        let request = CreateContainerRequest { container: Some(made.clone()) };
        let created = within(QUICK, self.client.containers().create(self.client.request(request))).await;
        created.made().or_error(CREATE, &id)?;
        Ok(made)
    }

    /// The image's accounts, read through a view of it that nothing else uses.
    async fn account_files(&self, id: &str, found: &images::Found) -> Result<(String, String), RuntimeError> {
        let view = format!("{id}-accounts");
        let snapshotter = &self.config.snapshotter;
        let mounts = images::writable_layer(&self.client, snapshotter, &view, found.top.as_ref()).await;
        let mounts = mounts.or_error(CREATE, &container_image(found))?;
        let folder = self.config.run_dir.join("accounts").join(id);
        let files = sandbox::on_thread(move || passwd::read(&mounts, &folder)).await;
        images::remove_snapshot(&self.client, snapshotter, &view)
            .await
            .or_error(CREATE, id)?;
        files.map_err(|error| RuntimeError::Failed {
            action: CREATE,
            reason: format!("reading the image's accounts: {error}"),
        })
    }

    async fn make_task(&self, record: &Record) -> Result<(), RuntimeError> {
        let id = record.id.as_str();
        let rootfs = images::mounts(&self.client, &self.config.snapshotter, &record.snapshot_key).await;
        let Some(rootfs) = rootfs.optional().or_error(START, id)? else {
            // The disk was full, or the power went, between the record and the layer: it is made as a whole or not at all.
            self.remove(id).await?;
            let reason = "its layer was not made; both are made again".to_owned();
            return Err(RuntimeError::Failed { action: START, reason });
        };
        let log = record.labels.get(record::LOG).map(String::as_str).unwrap_or_default();
        let program = escape(&self.config.log_program.display().to_string());
        // One pair only: containerd hands the pairs on in no order.
        let log = format!("binary://{program}?{}={}", log_shim::WORD, escape(log));
        let terminal = record.labels.get(record::TTY).is_some_and(|tty| tty == "true");
        let request = CreateTaskRequest {
            container_id: id.to_owned(),
            rootfs,
            stdout: log.clone(),
            stderr: if terminal { String::new() } else { log },
            terminal,
            ..CreateTaskRequest::default()
        };
        let created = within(PROCESS, self.client.tasks().create(self.client.request(request))).await;
        created.made().or_error(START, id).map(drop).map_err(not_started)
    }

    /// Makes an end of a task, whatever it does.
    async fn end_task(&self, id: &str, task: &Process) -> Result<(), RuntimeError> {
        let client = &self.client;
        if !record::has_ended(task) {
            let kill = KillRequest {
                container_id: id.to_owned(),
                signal: SIGKILL,
                all: true,
                ..KillRequest::default()
            };
            within(PROCESS, client.tasks().kill(client.request(kill)))
                .await
                .optional()
                .or_error(REMOVE, id)?;
            let wait = WaitRequest { container_id: id.to_owned(), exec_id: String::new() };
            within(KILL_LIMIT, client.tasks().wait(client.request(wait)))
                .await
                .optional()
                .or_error(REMOVE, id)?;
        }
        self.delete_task(id, REMOVE).await
    }
}

impl Runtime for Containerd {
    async fn version(&self) -> Result<Version, RuntimeError> {
        let answer = within(QUICK, self.client.version().version(self.client.request(()))).await;
        let answer = answer.or_error("asking for containerd's version", "containerd")?;
        // Debian's builds say 1.6.20~ds1.
        let version = answer.version.trim_start_matches('v');
        Ok(Version {
            version: format!("containerd://{version}"),
            images: self.snapshots_folder().await,
        })
    }

    fn trouble(&self, error: &RuntimeError) -> String {
        let mut root: &dyn std::error::Error = error;
        while let Some(cause) = root.source() {
            root = cause;
        }
        let socket = self.config.socket.display();
        format!(
            "containerd does not answer at {socket} ({root}): start it (systemctl start containerd); pods wait for it, \
             and what runs runs on"
        )
    }

    async fn list(&self) -> Result<Vec<Seen>, RuntimeError> {
        let records = self.containers(format!("labels.\"{}\"", record::POD), LIST).await?;
        let request = self.client.request(ListTasksRequest::default());
        let tasks = within(QUICK, self.client.tasks().list(request))
            .await
            .or_error(LIST, "tasks")?
            .tasks;
        let tasks: HashMap<String, Process> = tasks.into_iter().map(|task| (task.id.clone(), task)).collect();
        let mut seen = Vec::with_capacity(records.len());
        for record in records {
            let task = tasks.get(&record.id);
            seen.extend(self.look(record, task).await?);
        }
        Ok(seen)
    }

    /// Asks no other pod's shim.
    async fn list_pod(&self, pod: Uid) -> Result<Vec<Seen>, RuntimeError> {
        let records = self
            .containers(format!("labels.\"{}\"=={pod}", record::POD), LIST)
            .await?;
        let mut seen = Vec::with_capacity(records.len());
        for record in records {
            let task = self.task(&record.id, LIST).await?;
            seen.extend(self.look(record, task.as_ref()).await?);
        }
        Ok(seen)
    }

    fn subscribe(&self) -> mpsc::Receiver<Event> {
        let (sender, receiver) = mpsc::channel(EVENTS_MAX);
        let watch = events::watch(self.client.clone(), self.config.namespace.clone(), sender);
        self.watchers.spawn(watch);
        receiver
    }

    async fn prepare(&self, sandbox: &Sandbox) -> Result<Network, RuntimeError> {
        self.sandboxes.prepare(sandbox).await
    }

    async fn create(&self, sandbox: &Sandbox, container: &Container) -> Result<String, RuntimeError> {
        let missing = || RuntimeError::Missing {
            action: CREATE,
            what: format!("the image {}", container.image),
        };
        let found = self.images.find(&container.image).await?.ok_or_else(missing)?;
        let record = self.make_record(sandbox, container, &found).await?;
        let layer = images::writable_layer(
            &self.client,
            &self.config.snapshotter,
            &record.snapshot_key,
            found.top.as_ref(),
        );
        if let Err(error) = layer.await.or_error(CREATE, &container.image) {
            // Without its layer it is no container. What cannot be taken back now, the start does.
            let _ = self.remove(&record.id).await;
            return Err(error);
        }
        Ok(record.id)
    }

    async fn start(&self, id: &str) -> Result<(), RuntimeError> {
        let missing = || RuntimeError::Missing { action: START, what: id.to_owned() };
        let record = self.record(id, START).await?.ok_or_else(missing)?;
        let task = self.task(id, START).await?;
        match record::state(&record.labels, task.as_ref()) {
            super::State::Created => {}
            // It was started.
            super::State::Running { .. } | super::State::Exited { .. } => return Ok(()),
        }
        if task.is_none() {
            self.make_task(&record).await?;
        }
        self.label(id, record::STARTED, (self.clock)().ms.to_string(), START)
            .await?;
        let start = StartRequest { container_id: id.to_owned(), exec_id: String::new() };
        match within(PROCESS, self.client.tasks().start(self.client.request(start))).await {
            Ok(_) => Ok(()),
            Err(refusal) => {
                // A task that cannot start is of no use; the record says that it was tried.
                self.delete_task(id, START).await?;
                Err(not_started(refusal.error(START, id)))
            }
        }
    }

    async fn signal(&self, id: &str, signal: u32) -> Result<(), RuntimeError> {
        let kill = KillRequest {
            container_id: id.to_owned(),
            signal,
            ..KillRequest::default()
        };
        // What has ended needs no signal.
        within(PROCESS, self.client.tasks().kill(self.client.request(kill)))
            .await
            .optional()
            .or_error(SIGNAL, id)?;
        Ok(())
    }

    async fn stop(&self, id: &str) -> Result<(), RuntimeError> {
        let record = self.record(id, SIGNAL).await?;
        let spec = record.and_then(|record| record.spec);
        let spec = spec.and_then(|spec| serde_json::from_slice::<Spec>(&spec.value).ok());
        let number = spec.map_or(signal::TERM, |spec| spec::stop_signal(&spec.annotations));
        self.signal(id, number).await
    }

    async fn remove(&self, id: &str) -> Result<(), RuntimeError> {
        if let Some(task) = self.task(id, REMOVE).await? {
            self.end_task(id, &task).await?;
        }
        images::remove_snapshot(&self.client, &self.config.snapshotter, id)
            .await
            .or_error(REMOVE, id)?;
        let delete = self.client.request(DeleteContainerRequest { id: id.to_owned() });
        within(QUICK, self.client.containers().delete(delete))
            .await
            .optional()
            .or_error(REMOVE, id)?;
        Ok(())
    }

    async fn release(&self, pod: Uid) -> Result<(), RuntimeError> {
        let left = self
            .containers(format!("labels.\"{}\"=={pod}", record::POD), RELEASE)
            .await?;
        if !left.is_empty() {
            let reason = format!("{} of its containers are still there", left.len());
            return Err(RuntimeError::Failed { action: RELEASE, reason });
        }
        self.sandboxes.release(pod).await
    }

    async fn exec(&self, id: &str, command: &[String], limit: Duration) -> Result<Executed, RuntimeError> {
        self.execs.run(id, command, limit).await
    }

    async fn image(&self, name: &str) -> Result<Option<Image>, RuntimeError> {
        Ok(self.images.find(name).await?.map(|found| found.image))
    }

    async fn pull(&self, name: &str, auth: &[RegistryAuth]) -> Result<Image, RuntimeError> {
        self.images.pull(name, auth).await
    }

    async fn import(&self, archive: &Path) -> Result<Vec<String>, RuntimeError> {
        self.images.import(archive).await
    }

    async fn images(&self) -> Result<Vec<Named>, RuntimeError> {
        let users: Vec<_> = self.list().await?.iter().map(Seen::user).collect();
        let mut all = Vec::new();
        for name in self.images.names().await? {
            let found = self.images.find(&name).await?;
            all.push(Named::new(name, found.map(|found| found.image), &users));
        }
        Ok(all)
    }

    async fn remove_image(&self, name: &str) -> Result<bool, RuntimeError> {
        self.images.forget(name).await
    }
}

/// What runc refuses to start never starts; whatever else failed may succeed later.
fn not_started(error: RuntimeError) -> RuntimeError {
    match error {
        RuntimeError::Failed { reason, .. } => RuntimeError::NotStarted { reason },
        other => other,
    }
}

fn container_image(found: &images::Found) -> String {
    found.top.as_ref().map(ToString::to_string).unwrap_or_default()
}

/// Whether something was killed in a container's cgroup for lack of memory; the cgroup goes with the task.
fn oom_killed(parent: &str, record: &Record) -> bool {
    let labels = record::read(&record.labels);
    labels.is_some_and(|labels| cgroup::was_oom_killed(&names::cgroup(parent, &labels)))
}
