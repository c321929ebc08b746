//! A cloud core, edge cores and kubectl on folders of the test's choosing, to be killed and started again: the parts of
//! the main job.

use std::ffi::OsString;
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use serde_json::Value;
use tokio::time::{sleep, timeout};

pub use crate::processes::program;
use crate::processes::{self, Process};
use crate::shell::Shell;

/// How long anything may take: twice an edge core's longest wait between attempts to reach the cloud.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// Of a log that is shown.
const LAST_LINES: usize = 40;

/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Below the ports that outgoing connections get, so that none of these takes one between its choice and its use.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// Waits until something is there, and fails with what was waited for.
pub async fn eventually<T>(what: &str, look: impl AsyncFnMut() -> Option<T>) -> T {
    within(DEADLINE, look)
        .await
        .unwrap_or_else(|| panic!("still not so: {what}"))
}

/// Waits until something is there; `None` where it is not within a time.
pub async fn within<T>(limit: Duration, mut look: impl AsyncFnMut() -> Option<T>) -> Option<T> {
    let found = timeout(limit, async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            sleep(LOOK).await;
        }
    });
    found.await.ok()
}

/// A cloud core on a data folder of its own.
#[derive(Debug)]
pub struct CloudCore {
    pub folder: PathBuf,
    config: PathBuf,
    host: String,
    /// Where nodes on other machines reach it, when that is not where this one does.
    far: Option<String>,
    pub api: u16,
    process: Option<Process>,
}

impl CloudCore {
    /// Starts it in a folder, on free ports of the loopback address.
    pub async fn start(folder: &Path) -> Self {
        Self::start_at(folder, "127.0.0.1").await
    }

    /// Starts it in a folder, on free ports of one of this host's addresses.
    pub async fn start_at(folder: &Path, host: &str) -> Self {
        Self::start_for(folder, host, None).await
    }

    /// Starts it on the loopback address, for nodes that reach that one under another.
    pub async fn start_behind(folder: &Path, far: &str) -> Self {
        Self::start_for(folder, "127.0.0.1", Some(far)).await
    }

    async fn start_for(folder: &Path, host: &str, far: Option<&str>) -> Self {
        std::fs::create_dir_all(folder).expect("making the cloud's folder");
        let (api, hub) = (free_tcp(), free_udp());
        let data = folder.join("cloud");
        let config = folder.join("cloudcore.toml");
        let hosts = [far.unwrap_or(host)];
        let text = format!(
            "data = {data:?}\napi = \"{host}:{api}\"\nhub = \"{host}:{hub}\"\nhosts = {hosts:?}\nlog = \"debug\"\n"
        );
        std::fs::write(&config, text).expect("writing the cloud's configuration");
        let mut cloud = Self {
            folder: data,
            config,
            host: host.to_owned(),
            far: far.map(str::to_owned),
            api,
            process: None,
        };
        cloud.start_again().await;
        cloud
    }

    /// Starts it on what is in its folder.
    pub async fn start_again(&mut self) {
        let mut command = Command::new(program("cloudcore"));
        command.arg("--config").arg(&self.config).arg("serve");
        let mut process = Process::start(&mut command, &self.folder.with_extension("log"));
        process
            .until("the API answers", async || {
                self.edgectl().run("version", None).await.0 == 0
            })
            .await;
        self.process = Some(process);
    }

    /// Asks it to end, and waits until it has, in good order.
    pub async fn stop(&mut self) {
        self.process.take().expect("the cloud core runs").stop().await;
    }

    /// As a crash would.
    pub fn kill(&mut self) {
        self.process = None;
    }

    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("the cloud core runs").id()
    }

    /// The last of what it wrote to its log, for whoever looks into a failure.
    pub fn last_words(&self) -> String {
        let log = std::fs::read(self.folder.with_extension("log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let mut lines: Vec<_> = log.lines().rev().take(LAST_LINES).collect();
        lines.reverse();
        lines.join("\n")
    }

    /// Runs `cloudcore` with arguments on this folder, and returns what it says.
    pub fn command(&self, args: &[&str]) -> String {
        text(
            Command::new(program("cloudcore"))
                .arg("--config")
                .arg(&self.config)
                .args(args),
        )
    }

    /// The kubeconfig of its admin.
    pub fn kubeconfig(&self) -> PathBuf {
        let written = self.folder.join(cloudcore::serve::KUBECONFIG);
        let Some(far) = &self.far else {
            return written;
        };
        // It names an address that this host does not reach, and so does the server's certificate.
        let near = written.with_extension("near");
        if let Ok(text) = std::fs::read_to_string(&written) {
            let mut config: Value = serde_json::from_str(&text).expect("a kubeconfig of ours is JSON");
            let cluster = &mut config["clusters"][0]["cluster"];
            cluster["server"] = format!("https://{}:{}", self.host, self.api).into();
            cluster["tls-server-name"] = far.as_str().into();
            std::fs::write(&near, config.to_string()).expect("writing the kubeconfig");
        }
        near
    }

    /// `edgectl`, typed beside its folder.
    pub fn edgectl(&self) -> Shell {
        self.shell(program("edgectl"))
    }

    /// A program that goes by its kubeconfig, typed beside its folder.
    pub fn shell(&self, program: PathBuf) -> Shell {
        let beside = self.folder.parent().unwrap_or(&self.folder);
        Shell::new(program, beside, &self.kubeconfig())
    }

    pub fn kubectl(&self) -> Kubectl {
        Kubectl {
            config: self.kubeconfig(),
            cache: self.folder.with_extension("kube"),
        }
    }

    /// Makes a token for a node.
    pub fn token(&self, node: &str) -> String {
        self.command(&["token", "create", "--name", node])
    }
}

/// An edge core on a data folder of its own.
#[derive(Debug)]
pub struct EdgeCore {
    pub name: String,
    pub config: PathBuf,
    /// What runs: an edge core, perhaps behind what runs it.
    program: Vec<OsString>,
    log: PathBuf,
    process: Option<Process>,
}

impl EdgeCore {
    /// Joins with a configuration and does not start yet.
    pub fn join(cloud: &CloudCore, name: &str, config: &Path) -> Self {
        Self::join_with(cloud, name, config, vec![program("edgecore").into()])
    }

    /// Joins with another build of the edge core, of which this is the command, and does not start yet.
    pub fn join_with(cloud: &CloudCore, name: &str, config: &Path, program: Vec<OsString>) -> Self {
        let edge = Self {
            name: name.to_owned(),
            config: config.to_owned(),
            program,
            log: config.with_extension("log"),
            process: None,
        };
        let token = config.with_extension("token");
        std::fs::write(&token, cloud.token(name)).expect("writing the token");
        let token = token.display().to_string();
        let url = format!("https://{}:{}", cloud.host, cloud.api);
        assert!(edge.command(&["join", &url, "--token-file", &token]).contains(name));
        edge
    }

    pub fn start(&mut self) {
        assert!(self.process.is_none(), "the edge core runs already");
        self.process = Some(Process::start(self.prepared().arg("run"), &self.log));
    }

    /// From now on another build runs on what is in its folder.
    pub fn becomes(&mut self, program: Vec<OsString>) {
        assert!(self.process.is_none(), "the edge core runs");
        self.program = program;
    }

    /// Asks it to end, and waits until it has, in good order.
    pub async fn stop(&mut self) {
        self.process.take().expect("the edge core runs").stop().await;
    }

    /// Waits until it has ended by itself: how, and what it printed since it first ran.
    pub async fn ends(&mut self) -> (ExitStatus, String) {
        let mut process = self.process.take().expect("the edge core runs");
        let status = eventually("the edge core ends by itself", async || process.ended()).await;
        (status, process.log())
    }

    /// As a crash would.
    pub fn kill(&mut self) {
        self.process = None;
    }

    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("the edge core runs").id()
    }

    /// Runs `edgecore` with arguments on this configuration, and returns what it says.
    pub fn command(&self, args: &[&str]) -> String {
        text(self.prepared().args(args))
    }

    /// `edgecore` on this configuration.
    pub fn prepared(&self) -> Command {
        let mut words = self.program.iter();
        let mut command = Command::new(words.next().expect("a command has a first word"));
        command.args(words).arg("--config").arg(&self.config);
        command
    }

    /// What `edgecore status` says.
    pub fn status(&self) -> Value {
        serde_json::from_str(&self.command(&["status", "--json"])).expect("a status is JSON")
    }
}

/// Real kubectl with a cloud core's kubeconfig.
#[derive(Debug, Clone)]
pub struct Kubectl {
    config: PathBuf,
    cache: PathBuf,
}

impl Kubectl {
    pub fn output(&self, args: &[&str]) -> Output {
        self.prepared().args(args).output().expect("kubectl starts")
    }

    fn prepared(&self) -> Command {
        let mut command = Command::new(processes::kubectl());
        command
            .arg("--kubeconfig")
            .arg(&self.config)
            .arg("--cache-dir")
            .arg(&self.cache);
        command
    }

    /// What it says; the test fails where it does.
    pub fn run(&self, args: &[&str]) -> String {
        text(self.prepared().args(args))
    }

    /// Applies a manifest.
    pub fn apply(&self, manifest: &str) {
        let path = self.cache.with_extension("manifest.yaml");
        std::fs::write(&path, manifest).expect("writing the manifest");
        self.run(&["apply", "-f", &path.display().to_string()]);
    }

    /// Objects as JSON; `None` where there is none.
    pub fn json(&self, args: &[&str]) -> Option<Value> {
        let answer = self.output(&[&["get", "-o", "json"], args].concat());
        answer
            .status
            .success()
            .then(|| serde_json::from_slice(&answer.stdout).expect("kubectl writes JSON"))
    }

    /// The pods of the default namespace with a label.
    pub fn pods(&self, label: &str) -> Vec<Value> {
        let list = self.json(&["pods", "-l", label]).unwrap_or_default();
        list["items"].as_array().cloned().unwrap_or_default()
    }
}

fn text(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?}: {errors}{}",
        String::from_utf8_lossy(&output.stdout)
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn free_tcp() -> u16 {
    free(|port| TcpListener::bind(("127.0.0.1", port)).is_ok())
}

fn free_udp() -> u16 {
    free(|port| UdpSocket::bind(("127.0.0.1", port)).is_ok())
}

/// Processes of tests start to look at different places.
fn free(is_free: impl Fn(u16) -> bool) -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let count = u32::from(PORTS.end - PORTS.start);
    let begin = std::process::id().wrapping_mul(17);
    (0..count)
        .map(|_| begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed).into()) % count)
        .filter_map(|offset| Some(PORTS.start + u16::try_from(offset).ok()?))
        .find(|port| is_free(*port))
        .expect("a port is free")
}
