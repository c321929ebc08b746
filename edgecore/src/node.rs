//! What a node says of itself: capacity, addresses, what it runs on, how it is.
//!
//! Said once after each start and then when something changes; what is measured is rounded, so that nothing changes by
//! itself.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use daemon::clock::mono;
use proto::object::{Key, Kind};
use proto::session::edge::Input;
use proto::time::rfc3339;
use proto::value::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::clock::NodeClock;
use crate::desk::StoreDesk;
use crate::identity::architecture;
use crate::link::session::{LinkStatus, Reporter};
use crate::network;
use crate::pods::{Clock as _, Pods};
use crate::runtime::Runtime;
use crate::store::NodeStore;

/// Pods that a node says it has room for.
const PODS_MAX: i64 = 110;

/// How often the machine is looked at for what nothing tells of: addresses, mostly. A look that finds nothing new says
/// nothing.
const LOOK: std::time::Duration = std::time::Duration::from_secs(60);

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
    pub folder: std::path::PathBuf,
}

impl<R: Runtime> Reporting<R> {
    /// Runs until stopped.
    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut conditions = Conditions::default();
        let mut lost = self.pods.runtime_lost();
        let mut link = self.link.clone();
        let mut network = self.network.clone();
        loop {
            self.report(&mut conditions).await;
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                // Whoever sends these lives as long as this does, or ends the process.
                changed = lost.changed() => if changed.is_err() { stop.cancelled().await },
                changed = network.changed() => if changed.is_err() { stop.cancelled().await },
                changed = told(&mut link) => if changed.is_err() { stop.cancelled().await },
                () = daemon::clock::sleep_until(Some(mono() + LOOK)) => {}
            }
        }
    }

    async fn report(&mut self, conditions: &mut Conditions) {
        let Some(node) = self.store.entries(Kind::from("Node")).await.into_iter().next() else {
            // Not synced yet: the entry itself wakes nothing, so the next look finds it.
            return;
        };
        let addresses = network::addresses();
        if self.desk.set_addresses(addresses.clone()) {
            self.pods.wake(Key::new("Node", "", node.key.name.as_str()));
        }
        let version = self.runtime.version().await;
        let now = rfc3339(self.clock.wall().ms.div_euclid(1000));
        let disk_full = self.link.borrow().disk_full;
        let facts = Facts {
            name: node.key.name.clone(),
            addresses,
            runtime: version
                .as_ref()
                .map(|version| version.version.clone())
                .unwrap_or_default(),
            memory_bytes: memory(),
            storage_bytes: storage(&self.folder),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            boot: self.clock.boot().to_string(),
        };
        let states = [
            ("MemoryPressure", false, "EdgeHasEnoughMemory", "memory is not short"),
            (
                "DiskPressure",
                disk_full,
                if disk_full { "DiskFull" } else { "EdgeHasNoDiskPressure" },
                if disk_full {
                    "the last write to the node's store found no room"
                } else {
                    "there is room on the disk"
                },
            ),
            ("PIDPressure", false, "EdgeHasEnoughPids", "process ids are not short"),
            (
                "RuntimeReady",
                version.is_ok(),
                if version.is_ok() {
                    "RuntimeReady"
                } else {
                    "RuntimeUnreachable"
                },
                if version.is_ok() {
                    "the container runtime answers"
                } else {
                    "the container runtime does not answer"
                },
            ),
        ];
        let status = status(&facts, conditions.now(&states, &now));
        self.reporter.say(Input::Reports(vec![(node.uid, status)])).await;
    }
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
    memory_bytes: u64,
    storage_bytes: u64,
    cpus: usize,
    boot: String,
}

/// Remembers since when each condition is as it is.
#[derive(Debug, Default)]
struct Conditions(BTreeMap<&'static str, (bool, String)>);

impl Conditions {
    fn now(&mut self, states: &[(&'static str, bool, &str, &str)], now: &str) -> Value {
        let conditions = states.iter().map(|(kind, state, reason, message)| {
            let (known, since) = self.0.entry(kind).or_insert_with(|| (*state, now.to_owned()));
            if known != state {
                (*known, *since) = (*state, now.to_owned());
            }
            Value::from([
                ("type", *kind),
                ("status", if *state { "True" } else { "False" }),
                ("reason", reason),
                ("message", message),
                ("lastTransitionTime", since.as_str()),
            ])
        });
        Value::List(conditions.collect())
    }
}

fn status(facts: &Facts, conditions: Value) -> Value {
    let resources = Value::from([
        ("cpu", facts.cpus.to_string()),
        ("memory", format!("{}Ki", facts.memory_bytes / 1024)),
        ("ephemeral-storage", format!("{}Ki", facts.storage_bytes / 1024)),
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
        ("kernelVersion", line("/proc/sys/kernel/osrelease")),
        ("kubeProxyVersion", String::new()),
        ("kubeletVersion", format!("edgehold-v{}", env!("CARGO_PKG_VERSION"))),
        ("machineID", line("/etc/machine-id")),
        ("operatingSystem", std::env::consts::OS.to_owned()),
        ("osImage", os_image()),
        ("systemUUID", line("/etc/machine-id")),
    ]);
    Value::from([
        ("capacity", resources.clone()),
        ("allocatable", resources),
        ("addresses", Value::List(addresses)),
        ("nodeInfo", info),
        ("conditions", conditions),
    ])
}

fn line(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn os_image() -> String {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.unwrap_or("Linux").trim_matches('"').to_owned()
}

fn memory() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    total
        .and_then(|total| total.trim().trim_end_matches(" kB").parse::<u64>().ok())
        .unwrap_or(0)
        * 1024
}

fn storage(folder: &Path) -> u64 {
    let Ok(file_system) = rustix::fs::statvfs(folder) else {
        return 0;
    };
    file_system.f_blocks.saturating_mul(file_system.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_keeps_its_time_until_it_flips() {
        let mut conditions = Conditions::default();
        let mut at = |state: bool, now: &str| {
            let list = conditions.now(&[("RuntimeReady", state, "r", "m")], now);
            let text = |field: &str| list.text_at(&["0", field]).unwrap().to_owned();
            (text("status"), text("lastTransitionTime"))
        };
        assert_eq!(at(true, "t1"), ("True".to_owned(), "t1".to_owned()));
        assert_eq!(at(true, "t2"), ("True".to_owned(), "t1".to_owned()));
        assert_eq!(at(false, "t3"), ("False".to_owned(), "t3".to_owned()));
    }

    #[test]
    fn this_machine_has_something_to_say() {
        assert!(memory() > 0 && storage(Path::new("/")) > 0);
        assert!(!line("/proc/sys/kernel/osrelease").is_empty());
    }
}
