//! A Debian root file system to install packages in.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::processes::repository;
use crate::ship::{Machine, run};

const RELEASE: &str = "bookworm";
const ARCHIVE: &str = "http://deb.debian.org/debian";

/// The smallest Debian there is, for this machine, in which no service manager runs.
#[derive(Debug)]
pub struct Root {
    folder: TempDir,
}

impl Root {
    /// A fresh one. The first on this machine is fetched; it is kept for those after it.
    pub fn new() -> Self {
        let kept = repository().join(format!("target/debian-{RELEASE}.tar"));
        if !kept.exists() {
            make(&kept);
        }
        let folder = tempfile::tempdir().expect("making a folder");
        run(
            "tar",
            [
                "-xf".as_ref(),
                kept.as_os_str(),
                "-C".as_ref(),
                folder.path().as_os_str(),
            ],
        );
        let root = Self { folder };
        // Nothing is to be started in it, as in every image that is built.
        root.write("usr/sbin/policy-rc.d", "#!/bin/sh\nexit 101\n");
        root.ok("chmod +x /usr/sbin/policy-rc.d");
        root
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path.trim_start_matches('/'))
    }

    pub fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("it is in a folder")).expect("making a folder");
        fs::write(path, text).expect("writing a file");
    }

    pub fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Packages of another machine may be installed, too.
    pub fn takes(&self, machine: Machine) {
        self.ok(&format!("dpkg --add-architecture {}", machine.debian));
    }

    /// Puts a package into it, and returns where.
    pub fn bring(&self, package: &Path) -> String {
        let name = package.file_name().expect("a package has a name").to_string_lossy();
        let path = format!("/var/cache/apt/archives/{name}");
        fs::copy(package, self.path(&path)).expect("copying a package");
        path
    }

    /// Runs a line of shell in it, with nobody to answer questions: whether it succeeded, and all that was printed.
    pub fn run(&self, line: &str) -> (bool, String) {
        let proc = self.path("proc");
        let output = Command::new("unshare")
            .args(["--mount", "--pid", "--fork", "--kill-child"])
            .arg(format!("--mount-proc={}", proc.display()))
            .arg("chroot")
            .arg(self.folder.path())
            .args(["/bin/sh", "-c", &format!("exec 2>&1; {line}")])
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::null())
            .output()
            .expect("unshare starts");
        (
            output.status.success(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
        )
    }

    /// The same for what has to succeed.
    #[track_caller]
    pub fn ok(&self, line: &str) -> String {
        let (succeeded, text) = self.run(line);
        assert!(succeeded, "{line}: {text}");
        text
    }

    /// The same for what must not succeed.
    #[track_caller]
    pub fn fails(&self, line: &str) -> String {
        let (succeeded, text) = self.run(line);
        assert!(!succeeded, "{line} succeeded: {text}");
        text
    }

    /// Everything in it that is not dpkg's own or a copy that a tool made of a file it changed.
    pub fn files(&self) -> BTreeSet<String> {
        let dpkgs = ["/var/lib/dpkg/", "/var/log/", "/var/cache/apt/", "/run/adduser"];
        let listed = self.ok("find / -xdev -not -path '/proc/*'");
        let files = listed.lines().map(str::to_owned);
        files
            .filter(|path| !dpkgs.iter().any(|own| path.starts_with(own)) && !path.ends_with('-'))
            .collect()
    }
}

impl Default for Root {
    fn default() -> Self {
        Self::new()
    }
}

fn make(kept: &Path) {
    let folder = tempfile::tempdir().expect("making a folder");
    run(
        "debootstrap",
        [
            "--variant=minbase",
            RELEASE,
            &folder.path().display().to_string(),
            ARCHIVE,
        ],
    );
    let new = kept.with_extension("new");
    run(
        "tar",
        [
            "-cf".as_ref(),
            new.as_os_str(),
            "-C".as_ref(),
            folder.path().as_os_str(),
            ".".as_ref(),
        ],
    );
    fs::rename(new, kept).expect("keeping it");
}
