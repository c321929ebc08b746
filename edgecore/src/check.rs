//! The pre-flight: what a node needs, one line each, with its fix.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use daemon::files::private_folder;
use daemon::trust::built_ms;
use proto::time::Wall;

use crate::clock::NodeClock;
use crate::config::{Config, RuntimeName};
use crate::identity::Identity;
use crate::link::quic::{DialError, Dialler};
use crate::node::disk_shortage;
use crate::runtime::choice::{self, Kind};
use crate::runtime::containerd::Containerd;
use crate::runtime::{Runtime as _, explain};
use crate::status;

/// How long a connection that was made to see that it can be has to say goodbye.
const FAREWELL: Duration = Duration::from_millis(500);

/// The oldest containerd whose services are those used here.
const CONTAINERD_MIN: (u32, u32) = (1, 6);

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
    lines.push(folder("run", &config.run));
    lines.push(room(&config.data, &config.logs));
    let identity = Identity::load(&config.data);
    if config.runtime != RuntimeName::Fake {
        lines.extend(runtimes(config).await);
        lines.push(overlay(&read("/proc/filesystems")));
        lines.push(cgroups(
            &read("/proc/cgroups"),
            fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").ok().as_deref(),
            |name| Path::new("/sys/fs/cgroup").join(name).is_dir(),
        ));
        lines.push(network(config));
    }
    lines.push(clock(daemon::clock::wall()));
    lines.push(joined(&identity));
    if let Ok(Some(identity)) = &identity {
        lines.push(cloud(config, identity).await);
    }
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
    let written = private_folder(path).and_then(|()| fs::write(&probe, b"x"));
    let _ = fs::remove_file(&probe);
    match written {
        Ok(()) => Line::good(what, format!("{} can be written", path.display())),
        Err(error) => Line::missing(what, format!("{}: {error}; {}", path.display(), remedy(&error))),
    }
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull => "take away what is not needed, or give it a larger disk",
        io::ErrorKind::ReadOnlyFilesystem => {
            "its file system is read-only: mount -o remount,rw, and see in dmesg whether the disk is failing"
        }
        _ => "make it writable for this user",
    }
}

fn room(data: &Path, logs: &Path) -> Line {
    match disk_shortage(data, logs) {
        None => Line::good("room", "the disks are not short of it"),
        Some(shortage) => Line::note(
            "room",
            format!("{shortage}: take away what is not needed; the node will say DiskPressure"),
        ),
    }
}

fn joined(identity: &Result<Option<Identity>, crate::identity::IdentityError>) -> Line {
    match identity {
        Ok(Some(identity)) => Line::good("joined", format!("as {}", identity.node())),
        Ok(None) => Line::note("joined", "not yet: edgecore join https://HOST:6443 --token-file FILE"),
        Err(error) => Line::missing(
            "joined",
            format!(
                "{}; put the file back, or join again with a token that replaces",
                explain(error)
            ),
        ),
    }
}

/// Whether the cloud answers over UDP. Pods run without.
async fn cloud(config: &Config, identity: &Identity) -> Line {
    const FIX: &str = "see that the cloud core runs, and let UDP to that port through; pods run without";
    let addresses = identity.addresses().join(", ");
    // A second connection beside that of a running edge core would be of two machines with one key.
    if let Ok(status) = status::ask(&config.data).await
        && status.running
    {
        return match status.cloud.filter(|_| status.connected) {
            Some(cloud) => Line::good("cloud", format!("connected to {cloud}")),
            None => Line::note("cloud", format!("the edge core has no session with {addresses}: {FIX}")),
        };
    }
    let dialler = match Dialler::new(identity, NodeClock::new(0).node_time(), config.link_settings(), None) {
        Ok(dialler) => dialler,
        Err(error) => return Line::missing("cloud", format!("cannot dial: {}; join again", explain(&error))),
    };
    let mut found = Line::note("cloud", "this node knows no address of the cloud: join again");
    for address in identity.addresses() {
        match dialler.dial(address).await {
            Ok(link) => {
                let remote = link.remote();
                let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
                found = Line::good("cloud", format!("{remote} answers over UDP"));
                break;
            }
            Err(error) => found = no_link(address, &error, FIX),
        }
    }
    dialler.close(FAREWELL).await;
    found
}

fn no_link(address: &str, error: &DialError, fix: &str) -> Line {
    if error.is_barred() {
        return Line::missing(
            "cloud",
            "this node's key was revoked: remove node.key and enrolment.json, and join with a new token",
        );
    }
    Line::note("cloud", format!("no link to UDP {address} ({}): {fix}", explain(error)))
}

/// The runtime that an edge core started now would have.
async fn runtimes(config: &Config) -> Vec<Line> {
    match choice::kind(config).await {
        Ok(Kind::Containerd) => vec![runtime(config).await, program("runc", "apt-get install runc")],
        Ok(Kind::Embedded) => vec![Line::good("runtime", "embedded: needs no daemon")],
        Err(error) => vec![Line::missing("runtime", explain(&error))],
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
        Ok(version) => containerd_version(&version.version),
        Err(error) => Line::missing(
            "runtime",
            format!("no containerd at {socket} ({error:#}): apt-get install containerd && systemctl start containerd"),
        ),
    }
}

fn containerd_version(version: &str) -> Line {
    let numbers = version.trim_start_matches("containerd://");
    let mut numbers = numbers.split('.').map(|number| number.parse::<u32>().ok());
    let found = (numbers.next().flatten(), numbers.next().flatten());
    match found {
        (Some(major), Some(minor)) if (major, minor) < CONTAINERD_MIN => {
            let (major, minor) = CONTAINERD_MIN;
            Line::missing(
                "runtime",
                format!("{version} is older than {major}.{minor}: install a newer containerd"),
            )
        }
        _ => Line::good("runtime", version),
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

/// `table` is what the kernel has (/proc/cgroups), `unified` what version 2 controls where that is in use; `mounted` says
/// whether a hierarchy of version 1 can be reached.
fn cgroups(table: &str, unified: Option<&str>, mounted: impl Fn(&str) -> bool) -> Line {
    let enabled = |name: &str| {
        table.lines().any(|line| {
            let mut words = line.split_whitespace();
            words.next() == Some(name) && words.next_back() == Some("1")
        })
    };
    let there = |name: &str| match unified {
        Some(controllers) => controllers.split_whitespace().any(|controller| controller == name),
        None => enabled(name),
    };
    let lacking = |has: &dyn Fn(&str) -> bool| {
        let lacking = ["cpu", "memory", "pids"].into_iter().filter(|name| !has(name));
        lacking.collect::<Vec<_>>().join(", ")
    };
    let version = if unified.is_some() { 2 } else { 1 };
    let off = lacking(&there);
    let unmounted = lacking(&|name| unified.is_some() || mounted(name));
    if !off.is_empty() {
        Line::missing(
            "cgroups",
            format!(
                "{off} is off (version {version}): add cgroup_enable=memory cgroup_memory=1 to the kernel's command line, \
                 reboot"
            ),
        )
    } else if !unmounted.is_empty() {
        Line::missing(
            "cgroups",
            format!(
                "{unmounted} is not mounted below /sys/fs/cgroup: apt-get install cgroupfs-mount, or boot with systemd"
            ),
        )
    } else {
        Line::good("cgroups", format!("version {version} with cpu, memory, pids"))
    }
}

fn network(config: &Config) -> Line {
    let cni = crate::run::cni_config(config);
    let (folder, plugins) = (cni.conf_dir.display(), &cni.plugin_dirs);
    match cni.missing_plugins() {
        Ok(None) => Line::note(
            "pod network",
            format!("none in {folder}: pods that are not on the host's network have loopback only"),
        ),
        Ok(Some(missing)) if missing.is_empty() => Line::good("pod network", format!("described in {folder}")),
        Ok(Some(missing)) => {
            let plugins: Vec<_> = plugins.iter().map(|folder| folder.display().to_string()).collect();
            Line::missing(
                "pod network",
                format!(
                    "{folder} wants the plugins {}, which are not in {}: apt-get install containernetworking-plugins",
                    missing.join(", "),
                    plugins.join(" or ")
                ),
            )
        }
        Err(reason) => Line::missing("pod network", format!("{reason}: correct it, or take it out")),
    }
}

fn clock(wall: Wall) -> Line {
    let now = wall.rfc3339();
    if wall.ms < built_ms() {
        return Line::note(
            "clock",
            format!(
                "{now} is before this program was built: pods run all the same, and the cloud's time is used once there was \
                 a session; a time daemon (apt-get install systemd-timesyncd) sets it sooner"
            ),
        );
    }
    if wall.trusted {
        Line::good("clock", format!("{now}, synchronised"))
    } else {
        Line::note(
            "clock",
            format!("{now}, and nothing keeps it right: the cloud's time is used once there was a session"),
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
        check(
            containerd_version("containerd://1.5.9"),
            State::Missing,
            "older than 1.6",
        );
        for version in ["containerd://1.6.20~ds1", "containerd://2.0.0", "containerd://unknown"] {
            check(containerd_version(version), State::Good, version);
        }
    }

    #[test]
    fn cgroups_of_both_versions() {
        let table = |memory: u8| {
            format!(
                "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t1\t1\t1\nmemory\t0\t1\t{memory}\npids\t2\t1\t1\n"
            )
        };
        let check = |line: Line, state: State, word: &str| {
            assert_eq!(line.state, state, "{line:?}");
            assert!(line.text().contains(word), "{}", line.text());
        };
        check(
            cgroups(&table(0), None, |_| true),
            State::Missing,
            "memory is off (version 1)",
        );
        check(cgroups(&table(1), None, |_| true), State::Good, "version 1");
        let unmounted = cgroups(&table(1), None, |name| name != "pids");
        check(unmounted, State::Missing, "pids is not mounted");
        // What the table says is of version 1 only.
        let v2 = |controllers| cgroups(&table(0), Some(controllers), |_| false);
        check(v2("cpuset cpu io memory pids"), State::Good, "version 2");
        check(v2("cpuset cpu io pids"), State::Missing, "memory is off (version 2)");
        check(v2(""), State::Missing, "cpu, memory, pids is off");
    }

    #[test]
    fn clocks() {
        let check = |ms: i64, trusted: bool, state: State, word: &str| {
            let line = clock(Wall { ms, trusted });
            assert!(line.state == state && line.detail.contains(word), "{line:?}");
        };
        check(
            60_000,
            false,
            State::Note,
            "1970-01-01T00:01:00Z is before this program was built",
        );
        check(60_000, true, State::Note, "before this program was built");
        check(built_ms(), false, State::Note, "nothing keeps it right");
        check(built_ms(), true, State::Good, "synchronised");
    }
}
