//! Emulated machines (`scripts/vm`): a Raspberry-Pi-like one, and a small server, with kernels and disks of their own.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::cores::within;
use crate::processes::{cross_built, repository};

/// How long anything on a machine may take, which is emulated on processors that it shares with other tests: as
/// `scripts/machines` has it.
const PATIENCE: Duration = Duration::from_secs(300);

/// How much of a console tells of a failure.
const CONSOLE_LINES: usize = 60;

/// The host's loopback address as a machine sees it.
pub const HOST: &str = "10.0.2.2";

/// What a machine is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Board {
    /// arm64, as a Raspberry Pi.
    Arm64,
    /// A small server in a cabinet.
    Amd64,
}

impl Board {
    /// As Debian calls it.
    pub fn arch(self) -> &'static str {
        match self {
            Self::Arm64 => "arm64",
            Self::Amd64 => "amd64",
        }
    }

    /// The static `edgecore` for it.
    pub fn edgecore(self) -> PathBuf {
        let (variable, target) = match self {
            Self::Arm64 => ("EDGEHOLD_EDGECORE_ARM64", "aarch64-unknown-linux-musl"),
            Self::Amd64 => ("EDGEHOLD_EDGECORE_AMD64", "x86_64-unknown-linux-musl"),
        };
        if let Some(path) = std::env::var_os(variable) {
            return path.into();
        }
        cross_built(target)
    }
}

/// Waits until something is so on a machine, or because of one, and fails with what was waited for.
pub async fn eventually<T>(what: &str, look: impl AsyncFnMut() -> Option<T>) -> T {
    let found = within(PATIENCE, look).await;
    found.unwrap_or_else(|| panic!("still not so: {what}"))
}

/// Where the figures of an edge core on such a machine are left for the bench.
pub fn figures(board: Board) -> PathBuf {
    repository().join(format!("target/vm/figures-{}.json", board.arch()))
}

/// A machine; it goes, with its disk, when it is dropped.
#[derive(Debug)]
pub struct Machine {
    name: String,
}

impl Machine {
    /// Makes and starts one with a battery-less clock and these files, as (here, there), on its disk.
    pub fn start(board: Board, name: &str, files: &[(&Path, &str)]) -> Self {
        let files = files.iter().map(|(here, there)| format!("{}={there}", here.display()));
        let options: Vec<_> = files.flat_map(|file| ["--file".to_owned(), file]).collect();
        Self::make(
            board,
            name,
            &[&["--clock".to_owned(), "1970".to_owned()][..], &options].concat(),
        )
    }

    /// Makes and starts one from what `images/disk` made.
    pub fn of_image(board: Board, name: &str, folder: &Path) -> Self {
        Self::make(board, name, &["--image".to_owned(), folder.display().to_string()])
    }

    fn make(board: Board, name: &str, options: &[String]) -> Self {
        let machine = Self { name: format!("test-{}-{name}", std::process::id()) };
        let mut command = vm();
        command
            .args(["start", &machine.name, "--arch", board.arch(), "--new"])
            .args(options);
        machine.owned(&mut command);
        succeed(&mut command);
        machine
    }

    /// Starts it on the disk it had, with its network cable plugged in or not.
    pub fn start_again(&self, link: bool) {
        let mut command = vm();
        command.args(["start", &self.name, "--cable", if link { "in" } else { "out" }]);
        self.owned(&mut command);
        succeed(&mut command);
    }

    /// It must not outlive a test that is killed.
    fn owned(&self, command: &mut Command) {
        command.args(["--owner", &std::process::id().to_string()]);
    }

    /// Power fails. What was not flushed to its disk is lost, kept or torn, as the seed says; returns how much was.
    pub fn cut(&self, seed: u64) -> Value {
        let said = succeed(vm().args(["cut", &self.name, "--seed", &seed.to_string()]));
        serde_json::from_str(&said).expect("a cut says what was lost")
    }

    /// Shuts it down in good order.
    pub fn stop(&self) {
        succeed(vm().args(["stop", &self.name]));
    }

    /// Plugs its network cable in, or pulls it.
    pub fn link(&self, up: bool) {
        succeed(vm().args(["link", &self.name, if up { "on" } else { "off" }]));
    }

    /// Runs a shell command as root.
    pub fn exec(&self, command: &str) -> Output {
        vm().args(["exec", &self.name, "--", command])
            .output()
            .expect("scripts/vm starts")
    }

    /// What is printed by a shell command that has to succeed.
    pub fn ok(&self, command: &str) -> String {
        succeed(vm().args(["exec", &self.name, "--", command]))
    }

    /// Puts a text into a file.
    pub fn write(&self, text: &str, there: &str) {
        let here = std::env::temp_dir().join(&self.name);
        std::fs::write(&here, text).expect("writing a file");
        self.put(&here, there);
        std::fs::remove_file(&here).expect("removing a file");
    }

    /// Puts a file there.
    pub fn put(&self, here: &Path, there: &str) {
        succeed(vm().args(["put".as_ref(), self.name.as_ref(), here.as_os_str(), OsStr::new(there)]));
    }

    /// Fetches a file.
    pub fn fetch(&self, there: &str, here: &Path) {
        succeed(vm().args(["get".as_ref(), self.name.as_ref(), OsStr::new(there), here.as_os_str()]));
    }

    /// All it printed on its console since it was made.
    pub fn console(&self) -> String {
        let path = repository()
            .join("target/vm/machines")
            .join(&self.name)
            .join("console.log");
        String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
    }
}

impl Drop for Machine {
    /// What a failed test leaves is kept: its disk, its console.
    #[expect(clippy::print_stderr, reason = "for whoever looks into the failure")]
    fn drop(&mut self) {
        let verb = if std::thread::panicking() { "cut" } else { "remove" };
        if std::thread::panicking() {
            eprintln!("what there was is kept in target/vm/machines/{}", self.name);
            let console = self.console();
            let skipped = console.lines().count().saturating_sub(CONSOLE_LINES);
            eprintln!("the last of {}'s console, where its edge core writes to:", self.name);
            for line in console.lines().skip(skipped) {
                eprintln!("    {line}");
            }
        }
        // It may be off already.
        let _ = vm().args([verb, &self.name]).output();
    }
}

fn vm() -> Command {
    let mut command = Command::new(repository().join("scripts/vm"));
    command.stdin(Stdio::null());
    command
}

#[track_caller]
fn succeed(command: &mut Command) -> String {
    let output = command.output().expect("scripts/vm starts");
    assert!(
        output.status.success(),
        "{command:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
