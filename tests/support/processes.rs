//! Our programs as processes: built, started, ended by their id, and what they print.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;

use anyhow::{Context as _, bail, ensure};
use tokio::io::AsyncWriteExt as _;
use tokio::time::timeout;

use crate::cores::{DEADLINE, eventually};

/// The path of one of our programs, built from what is here now.
///
/// Cargo builds no programs of other crates for a test. All of them are built at once, with the features they have
/// together, so that this costs nothing after `cargo build --workspace`.
pub fn program(name: &str) -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let path = BUILT.get_or_init(|| build().expect("our programs build")).join(name);
    assert!(path.exists(), "there is no program {}", path.display());
    path
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
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // What this test was told of its own package is not for build scripts, some of which run again where it changes, and
    // all that needs them is built again: here, and once more by whoever builds next.
    for (name, _) in std::env::vars_os() {
        let told = |start: &str| name.to_str().is_some_and(|name| name.starts_with(start));
        if told("CARGO_PKG_") || told("CARGO_MANIFEST_") || name == "OUT_DIR" {
            cargo.env_remove(&name);
        }
    }
    let built = cargo
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
        .current_dir(repository())
        .output()
        .context("running cargo")?;
    ensure!(
        built.status.success(),
        "building the programs: {}",
        String::from_utf8_lossy(&built.stderr)
    );
    Ok(folder.to_owned())
}

/// Of processes with the same arguments, those that are not about to become others: a shell that starts a command is two
/// until the child executes. What has no parent any more has ended meanwhile.
pub fn executed(found: impl Iterator<Item = u32>, parent: impl Fn(u32) -> Option<u32>) -> BTreeSet<u32> {
    let found: BTreeSet<_> = found.collect();
    let of_its_own = |pid: &u32| parent(*pid).is_some_and(|parent| !found.contains(&parent));
    found.iter().copied().filter(of_its_own).collect()
}

/// The parent that a process's status, as the kernel writes it, names.
pub fn parent_in(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    line.trim().parse().ok()
}

/// Real kubectl.
pub fn kubectl() -> PathBuf {
    let path = repository().join("target/tools/kubectl");
    assert!(path.exists(), "scripts/kubectl has not fetched {}", path.display());
    path
}

/// The edge core that `scripts/cross` has built for a target, in the profile that `CROSS_PROFILE` names, `smoke` unless it
/// is set.
pub fn cross_built(target: &str) -> PathBuf {
    let profile = std::env::var("CROSS_PROFILE").unwrap_or_else(|_| "smoke".to_owned());
    let output = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let file = repository().join(output).join(target).join(&profile).join("edgecore");
    assert!(
        file.exists(),
        "scripts/cross --profile {profile} {target} has not built {}",
        file.display()
    );
    file
}

/// Where the repository is.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the crate is in the repository")
}

/// A process that runs until it is ended; it is killed when it is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a program; what it prints is added to a file.
    pub fn start(command: &mut Command, log: &Path) -> Self {
        let file = File::options()
            .create(true)
            .append(true)
            .open(log)
            .expect("opening the log");
        let errors = file.try_clone().expect("sharing the log");
        let child = command.stdin(Stdio::null()).stdout(file).stderr(errors).spawn();
        Self {
            child: child.expect("the program starts"),
            log: log.to_owned(),
        }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it printed so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// How it ended, if it did.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be waited for")
    }

    /// Waits for a condition, and fails at once when the process ends before it is true.
    pub async fn until(&mut self, what: &str, mut condition: impl AsyncFnMut() -> bool) {
        eventually(what, async || {
            if let Some(status) = self.ended() {
                panic!("it ended with {status} before {what}:\n{}", self.log());
            }
            condition().await.then_some(())
        })
        .await;
    }

    /// Asks it to end, as a service manager does, and waits until it has, in good order.
    pub async fn stop(mut self) {
        let id = self.id().to_string();
        let asked = Command::new("kill").args(["-TERM", &id]).status();
        assert!(asked.expect("kill starts").success(), "kill -TERM {id} failed");
        let status = eventually("it ends when asked to", async || self.ended()).await;
        assert!(status.success(), "it ended with {status}:\n{}", self.log());
    }
}

impl Drop for Process {
    /// As a crash would.
    fn drop(&mut self) {
        // It may have ended by itself; then the test says so elsewhere.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command to its end, with this on its standard input.
pub async fn run(command: &mut tokio::process::Command, input: Option<&str>) -> Output {
    command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().expect("the program starts");
    if let (Some(mut stdin), Some(input)) = (child.stdin.take(), input) {
        // It may end before it has read all of it.
        let _ = stdin.write_all(input.as_bytes()).await;
    }
    let ended = timeout(DEADLINE, child.wait_with_output()).await;
    ended
        .unwrap_or_else(|_| panic!("{command:?} did not end"))
        .expect("what it prints can be read")
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::{executed, parent_in};

    #[test]
    fn a_child_that_has_not_executed_is_no_process_of_its_own() {
        // 3 is about to be what 2 starts; 4 has ended since it was found.
        let parents = BTreeMap::from([(2, 1), (3, 2), (5, 1)]);
        let found = executed([2, 3, 4, 5].into_iter(), |pid| parents.get(&pid).copied());
        assert_eq!(found, BTreeSet::from([2, 5]));
    }

    #[test]
    fn a_parent_is_read_from_a_status() {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        assert_eq!(parent_in(&status), Some(std::os::unix::process::parent_id()));
        assert_eq!(parent_in("Name:\tsh\n"), None);
    }
}
