//! What a node says of itself: capacity, addresses, what it runs on, how it is.
//!
//! Said once after each start and then when something changes; what is measured is rounded, so that nothing changes by
//! itself.

mod conditions;
mod machine;
mod pressure;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use daemon::clock::mono;
use proto::object::{Key, Kind, Revision, Uid};
use proto::session::edge::Input;
use proto::time::rfc3339;
use proto::value::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use self::conditions::Condition;
use self::conditions::{Conditions, Found};
use self::machine::{Places, disks};
use self::pressure::Pressure;
use crate::clock::NodeClock;
use crate::desk::StoreDesk;
use crate::identity::architecture;
use crate::link::session::{LinkStatus, Reporter};
use crate::network;
use crate::pages;
use crate::pods::env::Allocatable;
use crate::pods::{Clock as _, Pods};
use crate::runtime::{Runtime, Version};
use crate::store::NodeStore;

/// Pods that a node says it has room for.
const PODS_MAX: i64 = 110;

/// How often the machine is looked at for what nothing tells of: addresses, memory, disks. A look that finds nothing new
/// says nothing.
const LOOK: std::time::Duration = std::time::Duration::from_secs(60);

/// Looks of which one asks the store and the runtime again as well, and gives back the pages that nobody used since. Both
/// tell when something changes there, so the looks between leave their threads and processes asleep.
const LOOKS_WHOLE: u32 = 10;

/// Reports about the node.
#[derive(Debug)]
pub struct Reporting<R> {
    pub store: NodeStore,
    pub reporter: Reporter,
    pub desk: Arc<StoreDesk>,
    pub pods: Pods,
    pub runtime: Arc<R>,
    pub link: watch::Receiver<LinkStatus>,
    pub clock: NodeClock,
    pub network: network::Changes,
    /// Whose file system the pods' storage is on.
    pub folder: PathBuf,
    pub logs: PathBuf,
    /// Takes the conditions, for people on this machine.
    pub conditions: watch::Sender<Vec<Condition>>,
}

/// What the looks remember of each other.
#[derive(Debug, Default)]
struct Looks {
    conditions: Conditions,
    memory: Pressure,
    disk: Pressure,
    pids: Pressure,
    version: Option<Version>,
    said: Option<SaidOfNode>,
}

/// What was last reported of the node.
#[derive(Debug)]
struct SaidOfNode {
    /// What was applied when its entry was read.
    applied: Revision,
    uid: Uid,
    name: String,
    status: Value,
}

impl<R: Runtime> Reporting<R> {
    /// Runs until stopped.
    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut looks = Looks::default();
        let mut lost = self.pods.runtime_lost();
        let mut link = self.link.clone();
        let mut network = self.network.clone();
        let clock = self.clock.clone();
        // Looks for which there was no reason but the time.
        let mut idle = 0_u32;
        let mut whole = true;
        let mut rests = false;
        loop {
            if whole {
                looks.said = None;
                looks.version = None;
            }
            self.look(&mut looks).await;
            // Nothing happened for a minute, so most of what did is over for good, and so is this look.
            if rests && let Err(error) = pages::give_back() {
                tracing::debug!(%error, "keeping the program's pages");
            }
            (whole, rests) = (true, false);
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                // Whoever sends these lives as long as this does, or ends the process.
                changed = lost.changed() => if changed.is_err() { stop.cancelled().await },
                changed = network.changed() => if changed.is_err() { stop.cancelled().await },
                changed = told(&mut link) => if changed.is_err() { stop.cancelled().await },
                () = clock.sleep_until(Some(mono() + LOOK)) => {
                    idle = (idle + 1) % LOOKS_WHOLE;
                    (whole, rests) = (idle == 0, true);
                }
            }
        }
    }

    /// Looks at the machine, and says what is new.
    async fn look(&mut self, looks: &mut Looks) {
        let version = match looks.version.take() {
            Some(version) => Ok(version),
            None => self.runtime.version().await,
        };
        let places = Places {
            data: self.folder.clone(),
            logs: self.logs.clone(),
            images: version.as_ref().ok().and_then(|version| version.images.clone()),
        };
        let found = Found {
            memory: looks.memory.judge(&[machine::memory()]),
            disk: looks.disk.judge(&disks(&places)),
            pids: looks.pids.judge(&[machine::pids()]),
            store_full: self.link.borrow().disk_full,
            runtime: version.as_ref().err().map(|error| self.runtime.trouble(error)),
        };
        let now = rfc3339(self.clock.wall().ms.div_euclid(1000));
        looks.conditions.update(&found, &now);
        let list = looks.conditions.list();
        self.conditions.send_if_modified(|known| {
            let new = *known != list;
            *known = list;
            new
        });
        looks.version = version.ok();
        self.report(looks).await;
    }

    async fn report(&mut self, looks: &mut Looks) {
        let applied = self.link.borrow().applied;
        let said = looks.said.take().filter(|said| said.applied == applied);
        let (uid, name) = match &said {
            Some(said) => (said.uid, said.name.clone()),
            None => match self.store.entries(Kind::from("Node")).await.list.into_iter().next() {
                Some(node) => (node.uid, node.key.name.clone()),
                // Not synced yet: the entry itself wakes nothing, so the next look finds it.
                None => return,
            },
        };
        let addresses = network::addresses();
        if self.desk.set_addresses(addresses.clone()) {
            self.pods.wake(Key::new("Node", "", name.as_str()));
        }
        let facts = Facts {
            name: name.clone(),
            addresses,
            runtime: (looks.version.as_ref()).map_or_else(String::new, |version| version.version.clone()),
            allocatable: allocatable(&self.folder),
            boot: self.clock.boot().to_string(),
        };
        let status = status(&facts, looks.conditions.value());
        if said.is_none_or(|said| said.status != status) {
            self.reporter.say(Input::Reports(vec![(uid, status.clone())])).await;
        }
        looks.said = Some(SaidOfNode { applied, uid, name, status });
    }
}

/// What this node has for pods; `folder` is on the disk that they write to.
pub(crate) fn allocatable(folder: &Path) -> Allocatable {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    Allocatable {
        cpus: u64::try_from(cpus).unwrap_or(u64::MAX),
        memory_bytes: machine::memory_bytes(),
        storage_bytes: machine::storage(folder),
    }
}

/// What the disks of this node are short of, in words.
pub(crate) fn disk_shortage(folder: &Path, logs: &Path) -> Option<String> {
    let places = Places { data: folder.to_owned(), logs: logs.to_owned(), images: None };
    let shortage = Pressure::default().judge(&disks(&places));
    shortage.map(|shortage| shortage.message)
}

/// Waits for what concerns the conditions, or for the view to be there.
async fn told(link: &mut watch::Receiver<LinkStatus>) -> Result<(), watch::error::RecvError> {
    let of = |status: &LinkStatus| (status.disk_full, status.applied, status.up_since.is_some());
    let before = of(&link.borrow_and_update());
    loop {
        link.changed().await?;
        if of(&link.borrow_and_update()) != before {
            return Ok(());
        }
    }
}

/// What is measured.
#[derive(Debug, Clone)]
struct Facts {
    name: String,
    addresses: Vec<String>,
    runtime: String,
    allocatable: Allocatable,
    boot: String,
}

fn status(facts: &Facts, conditions: Value) -> Value {
    let Allocatable { cpus, memory_bytes, storage_bytes } = facts.allocatable;
    let resources = Value::from([
        ("cpu", cpus.to_string()),
        ("memory", format!("{}Ki", memory_bytes / 1024)),
        ("ephemeral-storage", format!("{}Ki", storage_bytes / 1024)),
        ("pods", PODS_MAX.to_string()),
    ]);
    let mut addresses: Vec<Value> = (facts.addresses.iter())
        .map(|address| [("type", "InternalIP"), ("address", address)].into())
        .collect();
    addresses.push([("type", "Hostname"), ("address", facts.name.as_str())].into());
    let info = Value::from([
        ("architecture", architecture().to_owned()),
        ("bootID", facts.boot.clone()),
        ("containerRuntimeVersion", facts.runtime.clone()),
        ("kernelVersion", machine::line("/proc/sys/kernel/osrelease")),
        ("kubeProxyVersion", String::new()),
        ("kubeletVersion", format!("edgehold-v{}", env!("CARGO_PKG_VERSION"))),
        ("machineID", machine::line("/etc/machine-id")),
        ("operatingSystem", std::env::consts::OS.to_owned()),
        ("osImage", machine::os_image()),
        ("systemUUID", machine::line("/etc/machine-id")),
    ]);
    Value::from([
        ("capacity", resources.clone()),
        ("allocatable", resources),
        ("addresses", Value::List(addresses)),
        ("nodeInfo", info),
        ("conditions", conditions),
    ])
}
