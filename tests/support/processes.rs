//! The real programs, each a process with a data folder of its own: built, started, waited for, and killed by their id.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command as Blocking, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

/// How long a condition may take to come true, on a machine that builds at the same time.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How long a process may take to end by itself.
const GRACE: Duration = Duration::from_secs(20);

/// Between looks at a condition.
const LOOK: Duration = Duration::from_millis(50);

/// The path of one of our programs, built from what is here now.
///
/// Cargo builds no programs of other crates for a test. All of them are built at once, with the features they have
/// together, so that this costs nothing after `cargo build --workspace`.
pub fn program(name: &str) -> anyhow::Result<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let folder = BUILT.get_or_init(|| build().map_err(|error| format!("{error:#}")));
    let path = folder.as_ref().map_err(|error| anyhow::anyhow!("{error}"))?.join(name);
    ensure!(path.exists(), "there is no program {}", path.display());
    Ok(path)
}

fn build() -> anyhow::Result<PathBuf> {
    // target/PROFILE/deps/system-0123456789abcdef
    let own = std::env::current_exe()?;
    let folder = own
        .ancestors()
        .nth(2)
        .context("the test is not where cargo puts tests")?;
    let target = folder.parent().context("the test is not where cargo puts tests")?;
    let profile = match folder.file_name().and_then(OsStr::to_str) {
        Some("debug") => "dev",
        Some(name) => name,
        None => bail!("the test is not where cargo puts tests"),
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let built = Blocking::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args([
            "build",
            "--quiet",
            "--locked",
            "--workspace",
            "--bins",
            "--profile",
            profile,
        ])
        .arg("--target-dir")
        .arg(target)
        .current_dir(root)
        .output()
        .context("running cargo")?;
    ensure!(
        built.status.success(),
        "building the programs: {}",
        String::from_utf8_lossy(&built.stderr)
    );
    Ok(folder.to_owned())
}

/// A process that runs until it is stopped; it is killed when it is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a program; what it prints goes to a file.
    pub fn start<A: AsRef<OsStr>>(
        program: &Path,
        args: impl IntoIterator<Item = A>,
        log: &Path,
    ) -> anyhow::Result<Self> {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(log)?;
        let child = Command::new(program)
            .args(args)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        Ok(Self { child, log: log.to_owned() })
    }

    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// What it printed so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Waits for a condition; fails when the process ends or the condition stays false for too long.
    pub async fn until(&mut self, what: &str, mut condition: impl AsyncFnMut() -> bool) -> anyhow::Result<()> {
        let waited = timeout(PATIENCE, async {
            loop {
                if condition().await {
                    return Ok(());
                }
                if let Some(status) = self.child.try_wait()? {
                    bail!("it ended with {status} before {what}:\n{}", self.log());
                }
                sleep(LOOK).await;
            }
        });
        let waited = waited.await;
        waited.unwrap_or_else(|_| bail!("{what} did not come true:\n{}", self.log()))
    }

    /// Asks it to end, as a service manager does, and waits for that.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        let id = self.child.id().context("it has ended already")?;
        let killed = Command::new("kill").args(["-TERM", &id.to_string()]).status().await?;
        ensure!(killed.success(), "kill -TERM {id} failed");
        let Ok(status) = timeout(GRACE, self.child.wait()).await else {
            bail!("it did not end:\n{}", self.log());
        };
        let status = status?;
        ensure!(status.success(), "it ended with {status}:\n{}", self.log());
        Ok(())
    }

    /// Kills it at once, as a power cut does.
    pub async fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill().await.context("killing it")
    }
}

/// A running `cloudcore serve`.
#[derive(Debug)]
pub struct CloudCore {
    pub process: Process,
    folder: PathBuf,
}

impl CloudCore {
    /// Starts one on this data folder, which may be one that was left, on free ports of this host.
    pub async fn start(folder: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let kubeconfig = folder.join(cloudcore::serve::KUBECONFIG);
        // The one of an earlier run names another port.
        let _ = std::fs::remove_file(&kubeconfig);
        let config = folder.join("cloudcore.toml");
        let text = format!(
            "data = {:?}\napi = \"127.0.0.1:0\"\nhub = \"127.0.0.1:0\"\nhosts = [\"127.0.0.1\"]\n",
            folder.display().to_string()
        );
        std::fs::write(&config, text)?;
        let args = [OsStr::new("--config"), config.as_os_str(), OsStr::new("serve")];
        let mut process = Process::start(&program("cloudcore")?, args, &folder.join("log"))?;
        process
            .until("its kubeconfig was there", async || kubeconfig.exists())
            .await?;
        let mut core = Self { process, folder: folder.to_owned() };
        core.until_ready().await?;
        Ok(core)
    }

    async fn until_ready(&mut self) -> anyhow::Result<()> {
        let kubeconfig = self.kubeconfig();
        let edgectl = program("edgectl")?;
        let ready = async || {
            let args = [
                OsStr::new("--kubeconfig"),
                kubeconfig.as_os_str(),
                OsStr::new("version"),
            ];
            run(&edgectl, args, None)
                .await
                .is_ok_and(|output| output.status.success())
        };
        self.process.until("its API answered", ready).await
    }

    /// The kubeconfig of its admin, with the address of its API.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join(cloudcore::serve::KUBECONFIG)
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

/// Runs a program to its end, with this on its standard input.
pub async fn run<A: AsRef<OsStr>>(
    program: &Path,
    args: impl IntoIterator<Item = A>,
    input: Option<&str>,
) -> anyhow::Result<Output> {
    run_command(Command::new(program).args(args), input).await
}

/// Runs a command to its end, with this on its standard input.
pub async fn run_command(command: &mut Command, input: Option<&str>) -> anyhow::Result<Output> {
    command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().with_context(|| format!("starting {command:?}"))?;
    if let (Some(mut stdin), Some(input)) = (child.stdin.take(), input) {
        stdin.write_all(input.as_bytes()).await?;
    }
    let ended = timeout(PATIENCE, child.wait_with_output()).await;
    Ok(ended.with_context(|| format!("{command:?} did not end"))??)
}
