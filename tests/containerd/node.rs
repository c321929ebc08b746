//! A container runtime of one's own, by containerd or by the edge core itself, and what tests ask of it.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use edgecore::images::Clock;
use edgecore::runtime::chosen::Chosen;
use edgecore::runtime::containerd::{Config, Containerd};
use edgecore::runtime::embedded::{self, Embedded};
use edgecore::runtime::fake::Fake;
use edgecore::runtime::{CniConfig, Container, Event, Labels, Limits, Runtime as _, Sandbox, Security, Seen, State};
use proto::object::Uid;
use proto::time::Wall;
use tokio::sync::mpsc::Receiver;

use super::host::{kill, remove_tree, small};

pub(crate) const WEB: &str = "images.edgehold.dev/web:1";
const DEADLINE: Duration = Duration::from_secs(30);

/// The date does not matter; that it is passed through does.
pub(crate) fn clock() -> Clock {
    Arc::new(|| Wall { ms: 1_000, trusted: false })
}

pub(crate) struct Node {
    pub(crate) folder: PathBuf,
    pub(crate) runtime: Chosen,
    pub(crate) config: Config,
    /// Small file systems below the folder, which go with it.
    smalls: Vec<PathBuf>,
    /// None with the embedded runtime.
    daemon: Option<Child>,
    embedded: bool,
}

/// Runs tests on both runtimes.
macro_rules! on_both {
    ($($test:ident),* $(,)?) => {
        mod containerd {
            $(#[tokio::test] async fn $test() { super::$test($crate::node::On::Containerd).await; })*
        }
        mod embedded {
            $(#[tokio::test] async fn $test() { super::$test($crate::node::On::Embedded).await; })*
        }
    };
}
pub(crate) use on_both;

/// The same for tests that take long and ask little of the runtime: over the embedded one they are a step of
/// `scripts/test --full`.
macro_rules! on_both_in_full {
    ($($test:ident),* $(,)?) => {
        mod in_full {
            mod containerd {
                $(#[tokio::test] async fn $test() { super::super::$test($crate::node::On::Containerd).await; })*
            }
            mod embedded {
                $(
                    #[tokio::test]
                    #[ignore = "takes long: scripts/test --full"]
                    async fn $test() { super::super::$test($crate::node::On::Embedded).await; }
                )*
            }
        }
    };
}
pub(crate) use on_both_in_full;

/// Which runtime a test is run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum On {
    Containerd,
    Embedded,
}

impl Node {
    /// A daemon with nothing in it.
    pub(crate) async fn empty(name: &str) -> Self {
        Self::on(name, Vec::new()).await
    }

    /// A runtime of either kind with the image [`WEB`].
    pub(crate) async fn of(on: On, name: &str) -> Self {
        Self::empty_of(on, name).await.with_image().await
    }

    /// A runtime of either kind with nothing in it.
    pub(crate) async fn empty_of(on: On, name: &str) -> Self {
        Self::small_of(on, name, Vec::new()).await
    }

    /// A runtime of either kind with nothing in it, on small file systems as in [`Node::on`].
    pub(crate) async fn small_of(on: On, name: &str, smalls: Vec<(&str, &str)>) -> Self {
        match on {
            On::Containerd => Self::on(name, smalls).await,
            On::Embedded => Self::without_daemon(&format!("e-{name}"), smalls),
        }
    }

    fn without_daemon(name: &str, smalls: Vec<(&str, &str)>) -> Self {
        let folder = PathBuf::from(format!("/tmp/eh-{}-{name}", mark()));
        let smalls = smalls
            .into_iter()
            .map(|(name, options)| small(&folder.join(name), options));
        let smalls = smalls.collect();
        std::fs::create_dir_all(folder.join("cni")).unwrap();
        let config = config(&folder);
        Self {
            runtime: Chosen::Embedded(Box::new(
                Embedded::new(own(&config), Arc::new(daemon::clock::wall)).unwrap(),
            )),
            folder,
            config,
            smalls,
            daemon: None,
            embedded: true,
        }
    }

    /// A daemon with nothing in it on small file systems: their names in the node's folder, and the options of tmpfs.
    pub(crate) async fn on(name: &str, smalls: Vec<(&str, &str)>) -> Self {
        let folder = PathBuf::from(format!("/tmp/eh-{}-{name}", mark()));
        let smalls = smalls
            .into_iter()
            .map(|(name, options)| small(&folder.join(name), options));
        let smalls = smalls.collect();
        std::fs::create_dir_all(folder.join("cni")).unwrap();
        let config = config(&folder);
        let daemon = Some(start_daemon(&folder));
        let node = Self {
            runtime: Chosen::Containerd(Box::new(Containerd::new(config.clone(), clock()).unwrap())),
            folder,
            config,
            smalls,
            daemon,
            embedded: false,
        };
        node.answers().await;
        node
    }

    /// A daemon with the image [`WEB`].
    pub(crate) async fn new(name: &str) -> Self {
        Self::empty(name).await.with_image().await
    }

    /// Brings in the image [`WEB`].
    pub(crate) async fn with_image(self) -> Self {
        let imported = Box::pin(self.runtime.import(&archive("web"))).await;
        assert_eq!(imported.unwrap(), [WEB]);
        self
    }

    pub(crate) async fn answers(&self) {
        eventually("containerd answers", async || self.runtime.version().await.ok()).await;
    }

    /// Ends the daemon as a crash would; containers run on.
    pub(crate) fn kill_daemon(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.kill().unwrap();
            daemon.wait().unwrap();
        }
    }

    pub(crate) fn start_daemon(&mut self) {
        self.daemon = Some(start_daemon(&self.folder));
    }

    pub(crate) fn is_embedded(&self) -> bool {
        self.embedded
    }

    /// What power off leaves: nothing that ran, nothing of what does not survive a reboot. The daemon must be dead.
    pub(crate) async fn reboot(&self) {
        for pid in self.processes().into_keys().chain(self.contained()) {
            kill(pid);
        }
        let gone = async || (self.processes().is_empty() && self.contained().is_empty()).then_some(());
        eventually("all processes end", gone).await;
        for path in self.cgroups() {
            remove_tree(&path);
        }
        for point in self.mounts().iter().rev() {
            let kept = self.smalls.iter().any(|small| small == Path::new(point));
            if !kept {
                let _ = Command::new("umount").args(["-l", point]).status();
            }
        }
        for folder in [self.folder.join("cstate"), self.folder.join("run"), self.of_runc()] {
            let _ = std::fs::remove_dir_all(folder);
        }
    }

    /// Where runc keeps what it knows of this node's containers.
    fn of_runc(&self) -> PathBuf {
        Path::new("/run/containerd/runc").join(&self.config.namespace)
    }

    /// The edge core is gone.
    pub(crate) fn forget_client(&mut self) {
        self.runtime = Chosen::Fake(Box::new(Fake::new()));
    }

    /// Another edge core takes over.
    pub(crate) fn replace_client(&mut self) {
        self.runtime = if self.is_embedded() {
            Chosen::Embedded(Box::new(
                Embedded::new(own(&self.config), Arc::new(daemon::clock::wall)).unwrap(),
            ))
        } else {
            Chosen::Containerd(Box::new(Containerd::new(self.config.clone(), clock()).unwrap()))
        };
    }

    /// Writes the configuration of an edge core on this daemon, and returns its path.
    pub(crate) fn edge_config(&self) -> PathBuf {
        let config = self.folder.join("edgecore.toml");
        let path = |name: &str| self.folder.join(name).display().to_string();
        let text = format!(
            "data = {:?}\nlogs = {:?}\nrun = {:?}\nlog = \"debug\"\nruntime = {:?}\n[containerd]\nsocket = {:?}\nnamespace = {:?}\n\
             [pods]\ncgroup = {:?}\ncni_conf = {:?}\n",
            path("edge"),
            path("plogs"),
            path("run"),
            if self.embedded { "embedded" } else { "containerd" },
            self.config.socket.display().to_string(),
            self.config.namespace,
            self.config.cgroup_parent,
            path("cni"),
        );
        std::fs::write(&config, text).unwrap();
        config
    }

    pub(crate) fn sandbox(&self, pod: Uid) -> Sandbox {
        Sandbox {
            pod,
            namespace: "default".into(),
            name: "pod".into(),
            hostname: "the-pod".into(),
            host_network: false,
            host_pid: false,
            host_ipc: false,
        }
    }

    /// A container that runs a shell script.
    pub(crate) fn script(&self, pod: Uid, name: &str, script: &str) -> Container {
        Container {
            labels: Labels {
                pod,
                namespace: "default".into(),
                pod_name: "pod".into(),
                container: name.into(),
                attempt: 0,
                hash: 7,
            },
            image: WEB.into(),
            command: ["/bin/sh", "-c", script].map(str::to_owned).into(),
            args: Vec::new(),
            env: Vec::new(),
            working_dir: None,
            mounts: Vec::new(),
            limits: Limits::default(),
            oom_score_adj: 0,
            security: Security { user: Some(0), ..Security::default() },
            tty: false,
            log: self.folder.join("logs").join(name).join("0.log"),
        }
    }

    /// Prepares, creates and starts.
    pub(crate) async fn run(&self, container: &Container) -> String {
        let sandbox = self.sandbox(container.labels.pod);
        self.runtime.prepare(&sandbox).await.unwrap();
        let id = self.runtime.create(&sandbox, container).await.unwrap();
        self.runtime.start(&id).await.unwrap();
        id
    }

    pub(crate) async fn seen(&self, id: &str) -> Option<Seen> {
        self.runtime
            .list()
            .await
            .unwrap()
            .into_iter()
            .find(|seen| seen.id == id)
    }

    pub(crate) async fn exit_code(&self, id: &str) -> i32 {
        let code = async || match self.seen(id).await?.state {
            State::Exited { code, .. } => Some(code),
            _ => None,
        };
        eventually("the container exits", code).await
    }

    /// The log's lines without their times, as `stdout F text`.
    pub(crate) fn log(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder.join("logs").join(name).join("0.log")).unwrap_or_default();
        text.lines()
            .map(|line| line.split_once(' ').unwrap().1.to_owned())
            .collect()
    }

    /// Waits until the log has a line.
    pub(crate) async fn logs(&self, name: &str, line: &str) {
        let has = async || self.log(name).iter().any(|known| known == line).then_some(());
        eventually(&format!("{name} logs {line:?}"), has).await;
    }

    /// The folder where this runtime keeps images and what containers write.
    pub(crate) fn keeps(on: On) -> &'static str {
        match on {
            On::Containerd => "root",
            On::Embedded => "edge/embedded",
        }
    }

    /// Whether the runtime has no container.
    pub(crate) fn is_empty(&self) -> bool {
        if self.embedded {
            std::fs::read_dir(self.folder.join("edge/embedded/pods")).map_or(0, Iterator::count) == 0
        } else {
            self.ctr(&["containers", "ls", "-q"]).is_empty()
        }
    }

    /// What containerd's own client says.
    pub(crate) fn ctr(&self, args: &[&str]) -> Vec<String> {
        let output = Command::new("ctr")
            .arg("-a")
            .arg(&self.config.socket)
            .args(["-n", &self.config.namespace])
            .args(args)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout)
            .unwrap()
            .lines()
            .map(str::to_owned)
            .collect()
    }

    /// The processes started for this node, by id, except the daemon.
    pub(crate) fn processes(&self) -> BTreeMap<u32, String> {
        let mark = self.folder.to_str().unwrap();
        let mut found = BTreeMap::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            let line = std::fs::read_to_string(entry.path().join("cmdline"))
                .unwrap_or_default()
                .replace('\0', " ");
            let daemon = self.daemon.as_ref().map(Child::id);
            if line.contains(mark) && Some(pid) != daemon && pid != std::process::id() {
                found.insert(pid, line);
            }
        }
        found
    }

    pub(crate) fn shims(&self) -> Vec<u32> {
        let shims = self
            .processes()
            .into_iter()
            .filter(|(_, line)| line.contains("containerd-shim-runc-v2") || line.contains(" pod-shim "));
        shims.map(|(pid, _)| pid).collect()
    }

    pub(crate) fn log_shims(&self) -> Vec<u32> {
        let shims = self
            .processes()
            .into_iter()
            .filter(|(_, line)| line.contains("edgehold-log-shim"));
        shims.map(|(pid, _)| pid).collect()
    }

    fn mounts(&self) -> Vec<String> {
        let table = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        let points = table.lines().filter_map(|line| line.split(' ').nth(4));
        points
            .filter(|point| Path::new(point).starts_with(&self.folder))
            .map(str::to_owned)
            .collect()
    }

    /// This node's cgroup, in each hierarchy.
    pub(crate) fn cgroups(&self) -> Vec<PathBuf> {
        let parent = self.config.cgroup_parent.trim_start_matches('/');
        let hierarchies = std::fs::read_dir("/sys/fs/cgroup")
            .unwrap()
            .flatten()
            .map(|entry| entry.path());
        let paths = hierarchies
            .chain(["/sys/fs/cgroup".into()])
            .map(|path| path.join(parent));
        paths.filter(|path| path.is_dir()).collect()
    }

    /// The processes inside containers.
    pub(crate) fn contained(&self) -> Vec<u32> {
        let lists = self.cgroup_files("cgroup.procs");
        lists
            .iter()
            .flat_map(|list| list.lines())
            .filter_map(|line| line.parse().ok())
            .collect()
    }

    /// What all files of a name hold in this node's cgroups.
    pub(crate) fn cgroup_files(&self, name: &str) -> Vec<String> {
        let mut found = Vec::new();
        let mut folders = self.cgroups();
        while let Some(folder) = folders.pop() {
            found.extend(std::fs::read_to_string(folder.join(name)));
            folders.extend(
                std::fs::read_dir(folder)
                    .into_iter()
                    .flatten()
                    .flatten()
                    .map(|entry| entry.path()),
            );
        }
        found
    }

    /// Removes these containers and their pods, and fails when anything is left of them.
    pub(crate) async fn finish(mut self, ids: &[&str], pods: &[Uid]) {
        for id in ids {
            self.runtime.remove(id).await.unwrap();
        }
        for pod in pods {
            self.runtime.release(*pod).await.unwrap();
        }
        if !self.is_embedded() {
            for what in ["containers", "tasks", "leases"] {
                assert_eq!(self.ctr(&[what, "ls", "-q"]), Vec::<String>::new(), "{what}");
            }
            let active: Vec<_> = self
                .ctr(&["snapshots", "ls"])
                .into_iter()
                .filter(|line| !line.contains("Committed"))
                .collect();
            assert_eq!(active.len(), 1, "the heading, and: {active:?}");
        }
        eventually("all processes end", async || self.processes().is_empty().then_some(())).await;
        let mut mounts = self.mounts();
        mounts.retain(|point| !self.smalls.iter().any(|small| small == Path::new(point)));
        assert_eq!(mounts, Vec::<String>::new());
        for path in self.cgroups() {
            let left = std::fs::read_dir(&path)
                .unwrap()
                .flatten()
                .filter(|entry| entry.path().is_dir())
                .count();
            assert_eq!(left, 0, "{}", path.display());
        }
        let left = std::fs::read_dir(self.of_runc()).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{}", self.of_runc().display());
        for folder in [
            "run/pods",
            "run/accounts",
            "run/exec",
            "run/shims",
            "state/cni",
            "edge/embedded/cni",
            "edge/embedded/pods",
        ] {
            let left = std::fs::read_dir(self.folder.join(folder)).map_or(0, Iterator::count);
            assert_eq!(left, 0, "{folder}");
        }
        self.kill_daemon();
    }
}

impl Drop for Node {
    /// Whatever a failed test left behind.
    fn drop(&mut self) {
        for pid in self.processes().into_keys().chain(self.contained()) {
            kill(pid);
        }
        if let Some(daemon) = &mut self.daemon {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        for point in self.mounts().iter().rev() {
            let _ = Command::new("umount").args(["-l", point]).status();
        }
        for path in self.cgroups() {
            remove_tree(&path);
        }
        let _ = std::fs::remove_dir_all(self.of_runc());
        if !std::thread::panicking() {
            std::fs::remove_dir_all(&self.folder).unwrap();
        }
    }
}

fn config(folder: &Path) -> Config {
    Config {
        socket: folder.join("c.sock"),
        run_dir: folder.join("run"),
        state_dir: folder.join("state"),
        log_program: env!("CARGO_BIN_EXE_edgehold-log-shim").into(),
        namespace: format!("edgehold-test-{}", mark()),
        cgroup_parent: format!("/edgehold-test-{}", mark()),
        cni: CniConfig { conf_dir: folder.join("cni"), ..CniConfig::default() },
        ..Config::default()
    }
}

/// The same for the embedded runtime.
fn own(config: &Config) -> embedded::Config {
    embedded::Config {
        // An edge core's that runs on this configuration.
        data_dir: config.state_dir.with_file_name("edge").join("embedded"),
        run_dir: config.run_dir.clone(),
        program: config.log_program.clone(),
        log_bytes_max: config.log_bytes_max,
        log_files_max: config.log_files_max,
        cgroup_parent: config.cgroup_parent.clone(),
        cni: config.cni.clone(),
        registry_ca: None,
        rootless: None,
    }
}

fn start_daemon(folder: &Path) -> Child {
    let path = |name: &str| folder.join(name).display().to_string();
    let config = format!(
        "version = 2\nroot = \"{}\"\nstate = \"{}\"\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n\
         [grpc]\naddress = \"{}\"\n",
        path("root"),
        path("cstate"),
        path("c.sock")
    );
    std::fs::write(folder.join("config.toml"), config).unwrap();
    let log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(folder.join("containerd.log"))
        .unwrap();
    Command::new("containerd")
        .arg("--config")
        .arg(folder.join("config.toml"))
        .stdout(Stdio::null())
        .stderr(log)
        // A signal to the tests' group is not meant for it.
        .process_group(0)
        .spawn()
        .unwrap()
}

/// An archive of one of our images for this machine, built when it is not there.
pub(crate) fn archive(name: &str) -> PathBuf {
    tests::ship::archive(Path::new(env!("CARGO_TARGET_TMPDIR")), name, tests::ship::HERE)
}

/// A pod nobody had before.
pub(crate) fn pod() -> Uid {
    daemon::random::uid()
}

/// What tells the things of this test from those of all others. Numbers of processes come again, and runc keeps what it
/// knows of a container that was killed behind its back.
pub(crate) fn mark() -> &'static str {
    static MARK: LazyLock<String> = LazyLock::new(|| daemon::random::uid().to_string()[..8].to_owned());
    &MARK
}

/// Waits until there is something.
pub(crate) async fn eventually<T>(what: &str, check: impl AsyncFn() -> Option<T>) -> T {
    let found = tokio::time::timeout(DEADLINE, async {
        loop {
            if let Some(found) = check().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    found.await.unwrap_or_else(|_| panic!("not in time: {what}"))
}

/// Waits for an event.
pub(crate) async fn event(events: &mut Receiver<Event>, wanted: &Event) {
    let found = tokio::time::timeout(DEADLINE, async {
        while events.recv().await.expect("the watcher runs") != *wanted {}
    });
    found.await.unwrap_or_else(|_| panic!("not in time: {wanted:?}"));
}
