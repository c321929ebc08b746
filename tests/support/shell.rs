//! What people type: a program, a folder it is typed in, and the kubeconfig it goes by.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use crate::cores::{DEADLINE, within};
use crate::processes::run;

/// One program, `kubectl` or `edgectl`, on one kubeconfig.
#[derive(Debug, Clone)]
pub struct Shell {
    program: PathBuf,
    folder: PathBuf,
    kubeconfig: PathBuf,
}

impl Shell {
    pub fn new(program: PathBuf, folder: &Path, kubeconfig: &Path) -> Self {
        Self {
            program,
            folder: folder.to_owned(),
            kubeconfig: kubeconfig.to_owned(),
        }
    }

    /// A line without the program; words are what spaces part.
    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(line.split_whitespace())
            .current_dir(&self.folder)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HOME", &self.folder)
            .kill_on_drop(true);
        command
    }

    /// Puts a file into the folder.
    pub fn file(&self, name: &str, text: &str) {
        std::fs::write(self.folder.join(name), text).expect("writing a file");
    }

    /// The exit code, and all that was printed.
    pub async fn run(&self, line: &str, input: Option<&str>) -> (i32, String) {
        said(self.command(line), input).await
    }

    /// What is printed by a line that has to succeed.
    pub async fn ok(&self, line: &str) -> String {
        self.succeeds(line, self.command(line), None).await
    }

    /// The same with an environment variable.
    pub async fn ok_with(&self, line: &str, variable: &str, value: impl AsRef<OsStr>) -> String {
        let mut command = self.command(line);
        command.env(variable, value);
        self.succeeds(line, command, None).await
    }

    /// Applies a manifest.
    pub async fn apply(&self, manifest: &str) -> String {
        let line = "apply -f -";
        self.succeeds(line, self.command(line), Some(manifest)).await
    }

    async fn succeeds(&self, line: &str, command: Command, input: Option<&str>) -> String {
        let (code, text) = said(command, input).await;
        assert_eq!(code, 0, "{} {line}: {text}", self.program.display());
        text
    }

    /// What is printed by a line that has to fail.
    pub async fn refused(&self, line: &str) -> String {
        let (code, text) = self.run(line, None).await;
        assert_ne!(code, 0, "{} {line} passed: {text}", self.program.display());
        text
    }

    /// What is printed by a line that has to end with this code.
    pub async fn fails(&self, line: &str, code: i32) -> String {
        let (ended, text) = self.run(line, None).await;
        assert_eq!(ended, code, "{} {line}: {text}", self.program.display());
        text
    }

    /// Types a line again until what it prints is right.
    pub async fn until(&self, line: &str, right: impl Fn(&str) -> bool) -> String {
        let mut last = String::new();
        let found = within(DEADLINE, async || {
            last = self.run(line, None).await.1;
            right(&last).then(|| last.clone())
        });
        match found.await {
            Some(found) => found,
            None => panic!("{} {line} goes on printing:\n{last}", self.program.display()),
        }
    }

    /// Types a line that goes on printing.
    pub fn start(&self, line: &str) -> Printing {
        let mut child = self
            .command(line)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("the program starts");
        let out = child.stdout.take().expect("its output is piped");
        Printing { child, out, printed: String::new() }
    }
}

async fn said(mut command: Command, input: Option<&str>) -> (i32, String) {
    let output = run(&mut command, input).await;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let code = output.status.code().expect("it ended by itself");
    (code, text(&output.stdout) + &text(&output.stderr))
}

/// A program that goes on printing; it is killed when it is dropped.
#[derive(Debug)]
pub struct Printing {
    child: Child,
    out: ChildStdout,
    printed: String,
}

impl Printing {
    /// Reads on until this was printed, and returns all that was.
    pub async fn until(&mut self, wanted: &str) -> &str {
        while !self.printed.contains(wanted) {
            let read = self.more().await;
            assert!(read > 0, "it ended before {wanted:?}: {}", self.printed);
        }
        &self.printed
    }

    /// Reads on until it ends, and returns all that was printed. It has to end well.
    pub async fn end(mut self) -> String {
        while self.more().await > 0 {}
        let ended = timeout(DEADLINE, self.child.wait()).await;
        let status = ended.expect("it did not end").expect("a child can be waited for");
        assert!(status.success(), "it ended with {status}: {}", self.printed);
        self.printed
    }

    /// Reads on until it ends, which must not be well, and returns all that was printed.
    pub async fn breaks(mut self) -> String {
        while self.more().await > 0 {}
        let ended = timeout(DEADLINE, self.child.wait()).await;
        let status = ended.expect("it did not end").expect("a child can be waited for");
        assert!(!status.success(), "it ended well: {}", self.printed);
        self.printed
    }

    async fn more(&mut self) -> usize {
        let mut piece = [0; 1024];
        let read = timeout(DEADLINE, self.out.read(&mut piece)).await;
        let read = read
            .unwrap_or_else(|_| panic!("nothing more was printed after: {}", self.printed))
            .expect("what it prints can be read");
        self.printed.push_str(&String::from_utf8_lossy(&piece[..read]));
        read
    }
}

/// Fails when one of these is missing.
#[track_caller]
pub fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}
