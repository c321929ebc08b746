//! A cloud core, edge cores and kubectl on folders of the test's choosing, to be killed and started again: the parts of
//! the main job.

use std::fs::File;
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use tokio::time::sleep;

/// How long anything may take.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// The path of one of our programs, built from what is here now.
pub fn program(name: &str) -> PathBuf {
    crate::processes::program(name).expect("our programs build")
}

/// Waits until something is there, and fails with what was waited for.
pub async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let mut waited = Duration::ZERO;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(waited < DEADLINE, "still not so: {what}");
        sleep(LOOK).await;
        waited += LOOK;
    }
}

/// A cloud core on a data folder of its own.
#[derive(Debug)]
pub struct CloudCore {
    pub folder: PathBuf,
    config: PathBuf,
    host: String,
    pub api: u16,
    process: Option<Child>,
}

impl CloudCore {
    /// Starts it in a folder, on free ports of the loopback address.
    pub async fn start(folder: &Path) -> Self {
        Self::start_at(folder, "127.0.0.1").await
    }

    /// Starts it in a folder, on free ports of one of this host's addresses.
    pub async fn start_at(folder: &Path, host: &str) -> Self {
        std::fs::create_dir_all(folder).expect("making the cloud's folder");
        let (api, hub) = (free_tcp(), free_udp());
        let data = folder.join("cloud");
        let config = folder.join("cloudcore.toml");
        let text = format!(
            "data = {data:?}\napi = \"{host}:{api}\"\nhub = \"{host}:{hub}\"\nhosts = [{host:?}]\nlog = \"debug\"\n"
        );
        std::fs::write(&config, text).expect("writing the cloud's configuration");
        let mut cloud = Self {
            folder: data,
            config,
            host: host.to_owned(),
            api,
            process: None,
        };
        cloud.start_again().await;
        cloud
    }

    /// Starts it on what is in its folder.
    pub async fn start_again(&mut self) {
        let log = self.folder.with_extension("log");
        self.process = Some(spawn(
            Command::new(program("cloudcore"))
                .arg("--config")
                .arg(&self.config)
                .arg("serve"),
            &log,
        ));
        let kubectl = self.kubectl();
        eventually("the API answers", async || {
            let answer = kubectl.output(&["get", "--raw", "/readyz"]);
            answer.status.success().then_some(())
        })
        .await;
    }

    /// As a crash would.
    pub fn kill(&mut self) {
        end(&mut self.process);
    }

    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("the cloud core runs").id()
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

    pub fn kubectl(&self) -> Kubectl {
        Kubectl {
            config: self.folder.join("admin.kubeconfig"),
            cache: self.folder.with_extension("kube"),
        }
    }

    /// Makes a token for a node.
    pub fn token(&self, node: &str) -> String {
        self.command(&["token", "create", "--name", node])
    }
}

impl Drop for CloudCore {
    fn drop(&mut self) {
        self.kill();
    }
}

/// An edge core on a data folder of its own.
#[derive(Debug)]
pub struct EdgeCore {
    pub name: String,
    pub config: PathBuf,
    log: PathBuf,
    process: Option<Child>,
}

impl EdgeCore {
    /// Joins with a configuration and does not start yet.
    pub fn join(cloud: &CloudCore, name: &str, config: &Path) -> Self {
        let edge = Self {
            name: name.to_owned(),
            config: config.to_owned(),
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
        let mut command = Command::new(program("edgecore"));
        self.process = Some(spawn(command.arg("--config").arg(&self.config).arg("run"), &self.log));
    }

    /// As a crash would.
    pub fn kill(&mut self) {
        end(&mut self.process);
    }

    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("the edge core runs").id()
    }

    /// Runs `edgecore` with arguments on this configuration, and returns what it says.
    pub fn command(&self, args: &[&str]) -> String {
        text(
            Command::new(program("edgecore"))
                .arg("--config")
                .arg(&self.config)
                .args(args),
        )
    }

    /// What `edgecore status` says.
    pub fn status(&self) -> Value {
        serde_json::from_str(&self.command(&["status", "--json"])).expect("a status is JSON")
    }
}

impl Drop for EdgeCore {
    fn drop(&mut self) {
        self.kill();
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
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .expect("the crate is in the repository");
        let path = root.join("target/tools/kubectl");
        assert!(path.exists(), "scripts/kubectl has not fetched {}", path.display());
        let mut command = Command::new(path);
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

fn spawn(command: &mut Command, log: &Path) -> Child {
    let log = File::options()
        .create(true)
        .append(true)
        .open(log)
        .expect("opening the log");
    let errors = log.try_clone().expect("sharing the log");
    command
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .spawn()
        .expect("the program starts")
}

fn end(process: &mut Option<Child>) {
    if let Some(mut process) = process.take() {
        // It may have ended by itself; then the test says so elsewhere.
        let _ = process.kill();
        let _ = process.wait();
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
    let socket = TcpListener::bind("127.0.0.1:0").expect("a free port");
    socket.local_addr().expect("a bound socket has an address").port()
}

fn free_udp() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    socket.local_addr().expect("a bound socket has an address").port()
}
