//! The seam to containers.
//!
//! A [`Runtime`] runs what it is told and says what it sees; it decides nothing. Every container carries who it is
//! ([`Labels`]) in the runtime's own records, so that whoever comes back after a crash adopts it instead of starting a
//! second one. Calls may be repeated: creating what exists, starting what runs and removing what is gone succeed.

pub mod choice;
pub mod chosen;
pub mod containerd;
pub mod embedded;
pub mod fake;
pub mod log_shim;
mod oci;
mod tasks;
pub(crate) use self::oci::{cgroup, inside};

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use proto::object::Uid;
use tokio::sync::mpsc;

pub use self::oci::cni::Config as CniConfig;
use crate::images::Reference;

/// Who a container is. Kept by the runtime with the container.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Labels {
    pub pod: Uid,
    pub namespace: String,
    pub pod_name: String,
    pub container: String,
    /// Counts the containers made for one container of the pod's spec, from 0. Replacing is a new attempt.
    pub attempt: u32,
    /// The hash of everything that, when changed, makes a new container necessary.
    pub hash: u64,
}

impl Labels {
    /// The pod as people call it.
    pub fn pod_called(&self) -> String {
        format!("{}/{}", self.namespace, self.pod_name)
    }
}

/// The pod around its containers: what they share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    pub pod: Uid,
    pub namespace: String,
    pub name: String,
    pub hostname: String,
    pub host_network: bool,
    pub host_pid: bool,
    pub host_ipc: bool,
}

/// What a sandbox got.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Network {
    /// The pod's addresses, the first one being the primary; empty when the node has no pod network.
    pub addresses: Vec<String>,
}

/// Everything a container is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    pub labels: Labels,
    /// As the manifest has it; must be present ([`Runtime::image`]).
    pub image: String,
    /// Replaces the image's entry point when not empty.
    pub command: Vec<String>,
    /// Replaces the image's arguments when not empty, or when `command` is not.
    pub args: Vec<String>,
    /// On top of the image's.
    pub env: Vec<(String, String)>,
    /// The image's when `None`.
    pub working_dir: Option<String>,
    pub mounts: Vec<Mount>,
    pub limits: Limits,
    /// How soon it is ended when the machine's memory runs out: from -1000, which is never, to 1000, which is first.
    pub oom_score_adj: i32,
    pub security: Security,
    pub tty: bool,
    /// Where stdout and stderr go, in the CRI log format (`<RFC 3339 nano> stdout|stderr F|P <line>`).
    pub log: PathBuf,
}

/// A file or folder of the host inside a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    pub source: PathBuf,
    pub target: String,
    pub read_only: bool,
    /// No link is followed to it: it lies where containers may put one.
    pub exact: bool,
}

/// Limits by cgroup; zero is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// What the container gets when all want more, in thousandths of a CPU.
    pub cpu_request_milli: u64,
    pub cpu_limit_milli: u64,
    pub memory_limit_bytes: u64,
    pub pids_max: u64,
}

/// Who a container runs as and what it may do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Security {
    /// The image's when `None`.
    pub user: Option<u32>,
    pub group: Option<u32>,
    pub groups: Vec<u32>,
    pub run_as_non_root: bool,
    pub privileged: bool,
    pub read_only_root: bool,
    pub no_new_privileges: bool,
    pub seccomp: Seccomp,
    /// Without the `CAP_` prefix; `ALL` stands for all.
    pub capabilities_added: Vec<String>,
    pub capabilities_dropped: Vec<String>,
}

/// Which system calls a container may make.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Seccomp {
    #[default]
    Unconfined,
    /// What goes with the container's capabilities ([`crate::seccomp::runtime_default`]).
    RuntimeDefault,
    Profile(Box<crate::oci::seccomp::Profile>),
}

/// One container as the runtime sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The runtime's own name of it.
    pub id: String,
    pub labels: Labels,
    pub image: String,
    /// The content it was made from, as `sha256:…`.
    pub image_id: String,
    pub state: State,
}

impl Seen {
    /// For [`Named::new`].
    fn user(&self) -> (String, String) {
        (self.image.clone(), self.labels.pod_called())
    }
}

/// How far a container is. Only ever moves forward. Times are milliseconds since 1970 by the node's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    Created,
    Running {
        started_ms: i64,
    },
    Exited {
        code: i32,
        oom_killed: bool,
        started_ms: i64,
        finished_ms: i64,
    },
}

/// Something happened; look again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A container of this pod started, exited or went away.
    Pod(Uid),
    /// The runtime's daemon stopped answering.
    Lost,
    /// It answers (again): everything may have changed.
    Back,
}

/// An image that is completely there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// `sha256:…` of its configuration.
    pub id: String,
    pub user: String,
    pub size_bytes: u64,
}

/// A name of an image on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    pub name: String,
    /// `None` while it is not completely there.
    pub image: Option<Image>,
    /// The pods with a container that was made by this name, as `namespace/name`.
    pub pods: BTreeSet<String>,
}

/// The name and the pod of each container.
type Users<'a> = &'a [(String, String)];

impl Named {
    fn new(name: String, image: Option<Image>, users: Users<'_>) -> Self {
        let means = |other: &str| Reference::parse(other).is_ok_and(|other| other.to_string() == name);
        let of_it = users.iter().filter(|(image, _)| means(image));
        let pods = of_it.map(|(_, pod)| pod.clone()).collect();
        Self { name, image, pods }
    }
}

/// Credentials for one registry.
#[derive(Clone, PartialEq, Eq)]
pub struct RegistryAuth {
    pub username: String,
    pub password: String,
}

impl std::fmt::Debug for RegistryAuth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RegistryAuth")
            .field("username", &self.username)
            .finish_non_exhaustive()
    }
}

/// What a command inside a container did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Executed {
    pub code: i32,
    /// The first 4 KiB of stdout and stderr.
    pub output: String,
}

/// What runs the runtime, for the node's status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// As `nodeInfo.containerRuntimeVersion` has it: `containerd://1.6.20`.
    pub version: String,
    /// Where it keeps images and what containers write, if that is a folder of this machine.
    pub images: Option<PathBuf>,
}

/// Why a call to the runtime failed.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The daemon does not answer; try again when [`Event::Back`] came.
    #[error("{action}: the container runtime is not reachable")]
    Unreachable {
        action: &'static str,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("{action}: {what} is not there")]
    Missing { action: &'static str, what: String },
    #[error("importing {}: {reason}", archive.display())]
    Import { archive: PathBuf, reason: String },
    /// The image cannot be had: its name, its registry, its content.
    #[error("pulling image {image}: {reason}")]
    Pull { image: String, reason: String },
    /// The spec cannot be run here, now or later, until it changes.
    #[error("{action}: {reason}")]
    Invalid { action: &'static str, reason: String },
    /// What the container is asked to run cannot be run: its program, a mount, a limit. This container never will, and
    /// the next one only if something changed.
    #[error("starting the container: {reason}")]
    NotStarted { reason: String },
    #[error("{action}: the disk is full")]
    DiskFull { action: &'static str },
    #[error("{action}: took longer than {limit:?}")]
    Timeout { action: &'static str, limit: Duration },
    #[error("{action}: {reason}")]
    Failed { action: &'static str, reason: String },
}

impl RuntimeError {
    /// Whether the same call may succeed later with nothing changed.
    pub fn is_retryable(&self) -> bool {
        !matches!(self, Self::Invalid { .. } | Self::NotStarted { .. })
    }
}

/// An error with its causes, each once: some say their causes themselves.
pub fn explain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let mut text = String::new();
    for cause in causes.map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Runs what this program is when its first argument says that it is no edge core but one of the small processes of a
/// runtime; `None` when it says nothing of the kind. To be called before anything else of a program: there must be no
/// thread yet.
pub fn child() -> Option<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    let word = words.next()?;
    // One for each container: small.
    if word == log_shim::WORD {
        return Some(log_shim::main(words));
    }
    embedded::child(&word, words)
}

/// Runs containers.
pub trait Runtime: Send + Sync + 'static {
    /// As container ids name it (`containerd://…`).
    fn name(&self) -> &'static str {
        "containerd"
    }

    /// Whether it answers, and what it is.
    fn version(&self) -> impl Future<Output = Result<Version, RuntimeError>> + Send;

    /// What to tell people of a runtime that does not answer: where it should be, and what to do.
    fn trouble(&self, error: &RuntimeError) -> String {
        explain(error)
    }

    /// Every container that is ours, in any state.
    fn list(&self) -> impl Future<Output = Result<Vec<Seen>, RuntimeError>> + Send;

    /// The containers of one pod, in any state.
    fn list_pod(&self, pod: Uid) -> impl Future<Output = Result<Vec<Seen>, RuntimeError>> + Send {
        async move {
            let mut all = self.list().await?;
            all.retain(|seen| seen.labels.pod == pod);
            Ok(all)
        }
    }

    /// Sends events from now on; a full channel may drop an [`Event::Pod`] only after it delivered a later one.
    fn subscribe(&self) -> mpsc::Receiver<Event>;

    /// Makes what a pod's containers share, or finds it as it was made.
    fn prepare(&self, sandbox: &Sandbox) -> impl Future<Output = Result<Network, RuntimeError>> + Send;

    /// Makes a container and returns the runtime's name for it. Nothing runs yet.
    fn create(
        &self,
        sandbox: &Sandbox,
        container: &Container,
    ) -> impl Future<Output = Result<String, RuntimeError>> + Send;

    /// Lets a container run. [`RuntimeError::NotStarted`] is its end.
    fn start(&self, id: &str) -> impl Future<Output = Result<(), RuntimeError>> + Send;

    /// Sends a signal to the container's first process.
    fn signal(&self, id: &str, signal: u32) -> impl Future<Output = Result<(), RuntimeError>> + Send;

    /// Asks a container's first process to end, in the way its image names: SIGTERM where it names none.
    fn stop(&self, id: &str) -> impl Future<Output = Result<(), RuntimeError>> + Send;

    /// Takes a container away, killing it when it runs. Its log stays.
    fn remove(&self, id: &str) -> impl Future<Output = Result<(), RuntimeError>> + Send;

    /// Takes away what [`Runtime::prepare`] made; the pod's containers must be gone.
    fn release(&self, pod: Uid) -> impl Future<Output = Result<(), RuntimeError>> + Send;

    /// Runs a command inside a running container.
    fn exec(
        &self,
        id: &str,
        command: &[String],
        limit: Duration,
    ) -> impl Future<Output = Result<Executed, RuntimeError>> + Send;

    /// The image by the name a manifest has for it, if it is completely there.
    fn image(&self, name: &str) -> impl Future<Output = Result<Option<Image>, RuntimeError>> + Send;

    /// Fetches an image. What had the name before stays until the new one is complete.
    fn pull(&self, name: &str, auth: &[RegistryAuth]) -> impl Future<Output = Result<Image, RuntimeError>> + Send;

    /// Brings in the images of an OCI archive (a tar of an OCI layout) and returns their names.
    fn import(&self, archive: &std::path::Path) -> impl Future<Output = Result<Vec<String>, RuntimeError>> + Send;

    /// Every name of an image, in their order, with what uses it.
    fn images(&self) -> impl Future<Output = Result<Vec<Named>, RuntimeError>> + Send;

    /// Forgets a name, as [`Runtime::images`] has it, and takes away what only it needed; says whether it was known. What
    /// containers were made from stays with them.
    fn remove_image(&self, name: &str) -> impl Future<Output = Result<bool, RuntimeError>> + Send;
}
