//! The running edge core, in the order of its boot: open, recover, start the pods, serve what is local, and only then
//! look for a network. Nothing before the session waits for it.

use std::fs::File;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use daemon::clock::{mono, sleep_until};
use daemon::files;
use daemon::service::Service;
use daemon::sqlite::SqliteError;
use daemon::supervisor::Supervisor;
use proto::session::edge::Recovered;
use tokio::sync::{mpsc, watch};

use crate::alarm::Alarm;
use crate::clock::NodeClock;
use crate::config::Config;
use crate::desk::StoreDesk;
use crate::link::session::{LinkStatus, Reporter, Session};
use crate::node::{self, Reporting};
use crate::pods::{self, Clock as _, Folders};
use crate::runtime::{CniConfig, Runtime as _, choice, containerd, embedded};
use crate::store::NodeStore;
use crate::{check, network, status, tunnels};

/// How long the tasks may take to end. Pods run on whatever happens.
const GRACE: Duration = Duration::from_secs(10);

/// How often it is tried to open the store of a node whose disk has no room for one.
const ROOM_LOOK: Duration = Duration::from_secs(10);

/// Runs until `shutdown`, with the runtime that is configured.
pub async fn run(config: Config, shutdown: impl Future<Output = ()>) -> anyhow::Result<()> {
    let alarm = Alarm::new().context("making the alarm")?;
    let clock = NodeClock::new(0).with_alarm(alarm.clone());
    tokio::select! {
        ended = run_with(config, clock, shutdown) => ended,
        // It outlives all tasks: what they do to end waits for it as well.
        broken = alarm.ring() => broken.context("ringing the alarm"),
    }
}

async fn run_with(mut config: Config, clock: NodeClock, shutdown: impl Future<Output = ()>) -> anyhow::Result<()> {
    let mut shutdown = pin!(shutdown);
    let service = Service::from_environment();
    let Some((_lock, store, recovered)) = opened(&config, &service, shutdown.as_mut()).await? else {
        return Ok(());
    };
    // What is mounted there is known to the kernel by this name.
    let real = config.run.canonicalize();
    config.run = real.with_context(|| format!("looking for {}", config.run.display()))?;
    clock.raise_floor(mono(), store.floor_ms());
    let judge = clock.clone();
    let runtime = Arc::new(choice::runtime(&config, Arc::new(move || judge.wall())).await?);
    for note in config.rootless.iter().flat_map(|rootless| &rootless.notes) {
        tracing::warn!(what = "without root", "goes on with what there is: {note}");
    }
    for line in check::shortcomings(&config, runtime.name() == "containerd") {
        tracing::warn!(what = line.what, "goes on with what there is: {}", line.detail);
    }
    let (reporter, said) = Reporter::new();
    let desk = Arc::new(StoreDesk::new(store.clone(), reporter.clone()));
    let folders = Folders { pods: config.data.join("pods"), logs: config.logs.clone() };
    let pods_config = pods::Config {
        folders: folders.clone(),
        allocatable: node::allocatable(&config.data),
        pids_max: config.pods.pids_max,
        ..pods::Config::default()
    };
    let (pods, runner) = pods::new(
        pods_config,
        Arc::clone(&runtime),
        Arc::clone(&desk),
        Arc::new(clock.clone()),
    );
    let (link_sender, link) = watch::channel(LinkStatus::default());
    let (network_sender, network) = watch::channel(0);
    let (conditions_sender, conditions) = watch::channel(Vec::new());
    let (connections, connected) = mpsc::channel(tunnels::CONNECTIONS_MAX);

    let runtime_name = runtime.configured();
    let mut supervisor = Supervisor::default();
    supervisor.spawn("pods", |stop| runner.run(stop));
    let (folder, of, link_status) = (config.data.clone(), store.clone(), link.clone());
    supervisor.spawn("status", |stop| {
        status::serve(folder, of, link_status, conditions, stop)
    });
    let reporting = Reporting {
        store: store.clone(),
        reporter,
        desk,
        pods: pods.clone(),
        runtime: Arc::clone(&runtime),
        link,
        clock: clock.clone(),
        network: network.clone(),
        folder: config.data.clone(),
        logs: config.logs.clone(),
        conditions: conditions_sender,
    };
    supervisor.spawn("node", |stop| reporting.run(stop));
    let server = tunnels::Server { store: store.clone(), folders, runtime, clock: clock.clone() };
    supervisor.spawn("tunnels", |stop| server.run(connected, stop));
    let session = Session {
        store: store.clone(),
        recovered,
        said,
        pods,
        clock,
        folder: config.data.clone(),
        settings: config.link_settings(),
        status: link_sender,
        tunnels: connections,
        network,
    };
    supervisor.spawn("network", |stop| network::listen(network_sender, stop));
    supervisor.spawn("session", |stop| session.run(stop));
    supervisor.spawn(
        "service",
        |stop| async move { service.run(|| store.answers(), stop).await },
    );
    tracing::info!(data = %config.data.display(), runtime = runtime_name, "edge core is up");
    supervisor.run(shutdown, GRACE).await
}

/// What an edge core owns: the data folder's lock, and the store in it.
type Owned = (File, NodeStore, Recovered);

/// Opens what is this edge core's, however long the disk has no room for it or takes no writes (a failing card is made
/// read-only by the kernel; what runs is left alone). `None` when it is to end meanwhile.
async fn opened(
    config: &Config,
    service: &Service,
    mut shutdown: Pin<&mut impl Future<Output = ()>>,
) -> anyhow::Result<Option<Owned>> {
    let mut said = false;
    loop {
        match open(config) {
            Err(error) if is_for_lack_of_room(&error) => {
                if !std::mem::replace(&mut said, true) {
                    tracing::error!("waiting for room on the disk: {error:#}");
                    // As far up as it gets without: whoever waits for the start need not wait for the disk.
                    service.status("waiting for room on the disk");
                    service.ready();
                }
            }
            Err(error) if is_read_only(&error) => {
                if !std::mem::replace(&mut said, true) {
                    tracing::error!("waiting for a disk that takes writes, see edgecore check: {error:#}");
                    service.status("waiting for a disk that takes writes");
                    service.ready();
                }
            }
            other => return other.map(Some),
        }
        tokio::select! {
            () = &mut shutdown => return Ok(None),
            () = sleep_until(Some(mono() + ROOM_LOOK)) => {}
        }
    }
}

fn open(config: &Config) -> anyhow::Result<Owned> {
    for folder in [&config.data, &config.run] {
        files::private_folder(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    let lock = files::lock(&config.data.join("lock"));
    let lock = lock.with_context(|| format!("taking the data folder {}", config.data.display()))?;
    let (store, recovered) = NodeStore::open(&config.data).context("opening the node's store")?;
    Ok((lock, store, recovered))
}

fn is_for_lack_of_room(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<std::io::Error>();
        let sqlite = cause.downcast_ref::<SqliteError>();
        io.is_some_and(|error| error.kind() == std::io::ErrorKind::StorageFull)
            || sqlite.is_some_and(SqliteError::is_for_lack_of_room)
    })
}

fn is_read_only(error: &anyhow::Error) -> bool {
    let kinds = error.chain().filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    kinds
        .into_iter()
        .any(|error| error.kind() == std::io::ErrorKind::ReadOnlyFilesystem)
}

/// The runtime's part of the configuration.
pub fn containerd_config(config: &Config) -> containerd::Config {
    let chosen = &config.containerd;
    containerd::Config {
        socket: chosen.socket.clone(),
        namespace: chosen.namespace.clone(),
        snapshotter: chosen.snapshotter.clone(),
        run_dir: config.run.clone(),
        state_dir: config.data.join("containerd"),
        // The log processes are this same program.
        log_program: std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/usr/bin/edgecore")),
        cgroup_parent: config.pods.cgroup.clone(),
        cni: cni_config(config),
        registry_ca: config.images.registry_ca.clone(),
        ..containerd::Config::default()
    }
}

/// The same for the runtime of our own.
pub fn embedded_config(config: &Config) -> embedded::Config {
    embedded::Config {
        data_dir: config.embedded(),
        run_dir: config.run.clone(),
        cgroup_parent: config.pods.cgroup.clone(),
        cni: cni_config(config),
        registry_ca: config.images.registry_ca.clone(),
        rootless: config.rootless.clone(),
        ..embedded::Config::default()
    }
}

/// Where the pod network is described.
pub fn cni_config(config: &Config) -> CniConfig {
    CniConfig {
        conf_dir: config.pods.cni_conf.clone(),
        plugin_dirs: config.pods.cni_plugins.clone(),
    }
}
