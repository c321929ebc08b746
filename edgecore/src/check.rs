//! The pre-flight: what a node needs, one line each, with its fix.

use std::fs;
use std::path::Path;

use crate::config::Config;
use crate::identity::Identity;
use crate::runtime::Runtime as _;
use crate::runtime::containerd::Containerd;

/// One prerequisite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub what: &'static str,
    pub state: State,
    /// What was found; where something is missing, what to do.
    pub detail: String,
}

/// How it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Good,
    /// Works without; people should know.
    Note,
    Missing,
}

impl Line {
    fn good(what: &'static str, detail: impl Into<String>) -> Self {
        Self { what, state: State::Good, detail: detail.into() }
    }

    fn note(what: &'static str, detail: impl Into<String>) -> Self {
        Self { what, state: State::Note, detail: detail.into() }
    }

    fn missing(what: &'static str, fix: impl Into<String>) -> Self {
        Self { what, state: State::Missing, detail: fix.into() }
    }

    /// The line for people.
    pub fn text(&self) -> String {
        let mark = match self.state {
            State::Good => "ok     ",
            State::Note => "note   ",
            State::Missing => "MISSING",
        };
        format!("{mark} {:<12} {}", self.what, self.detail)
    }
}

/// Looks at everything.
pub async fn check(config: &Config, unknown: &[String]) -> Vec<Line> {
    let mut lines: Vec<_> = unknown
        .iter()
        .map(|key| Line::missing("config", format!("{key}: no such key; take it out or correct it")))
        .collect();
    lines.push(root());
    lines.push(folder("data", &config.data));
    lines.push(folder("logs", &config.logs));
    lines.push(identity(&config.data));
    if config.runtime == "containerd" {
        lines.push(runtime(config).await);
        lines.push(program("runc", "apt-get install runc"));
        lines.push(overlay(&read("/proc/filesystems")));
        lines.push(cgroups(
            &read("/proc/cgroups"),
            Path::new("/sys/fs/cgroup/cgroup.controllers").exists(),
        ));
        lines.push(network(config));
    }
    lines.push(clock());
    lines
}

fn root() -> Line {
    if rustix::process::geteuid().is_root() {
        Line::good("root", "runs as root")
    } else {
        Line::missing("root", "containers need root: run with sudo, or from the systemd unit")
    }
}

fn folder(what: &'static str, path: &Path) -> Line {
    let probe = path.join(".edgecore-check");
    let written = fs::create_dir_all(path).and_then(|()| fs::write(&probe, b"x"));
    let _ = fs::remove_file(&probe);
    match written {
        Ok(()) => Line::good(what, format!("{} can be written", path.display())),
        Err(error) => Line::missing(
            what,
            format!("{}: {error}; make it writable for this user", path.display()),
        ),
    }
}

fn identity(folder: &Path) -> Line {
    match Identity::load(folder) {
        Ok(Some(identity)) => Line::good("joined", format!("as {}", identity.node())),
        Ok(None) => Line::note("joined", "not yet: edgecore join https://HOST:6443 --token-file FILE"),
        Err(error) => {
            let error = anyhow::Error::new(error);
            Line::missing(
                "joined",
                format!("{error:#}; put the file back, or join again with a token that replaces"),
            )
        }
    }
}

async fn runtime(config: &Config) -> Line {
    let socket = config.containerd.socket.display();
    let containerd = Containerd::new(
        crate::run::containerd_config(config),
        std::sync::Arc::new(daemon::clock::wall),
    );
    let version = match &containerd {
        Ok(containerd) => containerd.version().await.map_err(anyhow::Error::new),
        Err(error) => Err(anyhow::anyhow!("{error}")),
    };
    match version {
        Ok(version) => Line::good("runtime", version.version),
        Err(error) => Line::missing(
            "runtime",
            format!("no containerd at {socket} ({error:#}): apt-get install containerd && systemctl start containerd"),
        ),
    }
}

fn program(name: &'static str, fix: &str) -> Line {
    let path = std::env::var_os("PATH").unwrap_or_default();
    match std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
    {
        Some(file) => Line::good(name, file.display().to_string()),
        None => Line::missing(name, format!("not found: {fix}")),
    }
}

fn overlay(file_systems: &str) -> Line {
    if file_systems.split_whitespace().any(|word| word == "overlay") {
        Line::good("overlayfs", "the kernel has it")
    } else {
        Line::missing(
            "overlayfs",
            "the kernel lacks it: modprobe overlay, or containerd.snapshotter = \"native\"",
        )
    }
}

fn cgroups(table: &str, unified: bool) -> Line {
    if unified {
        return Line::good("cgroups", "version 2");
    }
    let enabled = |name: &str| {
        table.lines().any(|line| {
            let mut words = line.split_whitespace();
            words.next() == Some(name) && words.next_back() == Some("1")
        })
    };
    let lacking: Vec<_> = ["cpu", "memory", "pids"]
        .into_iter()
        .filter(|name| !enabled(name))
        .collect();
    if lacking.is_empty() {
        Line::good("cgroups", "version 1 with cpu, memory, pids")
    } else {
        let lacking = lacking.join(", ");
        Line::missing(
            "cgroups",
            format!("{lacking} is off: add cgroup_enable=memory cgroup_memory=1 to the kernel's command line, reboot"),
        )
    }
}

fn network(config: &Config) -> Line {
    let folder = &config.containerd.cni_conf;
    let named = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        let extension = Path::new(&name).extension().and_then(|extension| extension.to_str());
        matches!(extension, Some("conf" | "conflist"))
    };
    let found = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .any(|entry| named(&entry));
    if found {
        Line::good("pod network", format!("described in {}", folder.display()))
    } else {
        Line::note(
            "pod network",
            format!(
                "none in {}: pods that are not on the host's network have loopback only",
                folder.display()
            ),
        )
    }
}

fn clock() -> Line {
    if daemon::clock::wall().trusted {
        Line::good("clock", "synchronised")
    } else {
        Line::note(
            "clock",
            "nothing keeps it right: the cloud's time is used once there was a session",
        )
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_comes_with_its_fix() {
        let check = |line: Line, state: State, word: &str| {
            assert_eq!(line.state, state, "{line:?}");
            assert!(line.text().contains(word), "{}", line.text());
        };
        check(overlay("nodev\tproc\nnodev\toverlay\n"), State::Good, "ok");
        check(overlay("nodev\toverlayfs\n"), State::Missing, "modprobe overlay");
        let table = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t1\t1\t1\nmemory\t0\t1\t0\npids\t2\t1\t1\n";
        check(cgroups(table, false), State::Missing, "memory is off");
        check(cgroups(table, true), State::Good, "version 2");
        check(
            cgroups(&table.replace("\t0\n", "\t1\n"), false),
            State::Good,
            "version 1",
        );
        check(
            program("no-such-program-at-all", "apt-get install it"),
            State::Missing,
            "apt-get install it",
        );
        check(
            folder("data", Path::new("/proc/nowhere")),
            State::Missing,
            "make it writable",
        );
    }
}
