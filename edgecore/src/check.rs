//! The pre-flight: what a node needs, one line each, with its fix.

mod elf;
mod folders;
mod machine;
mod rootless;

use std::path::Path;
use std::time::Duration;

use daemon::trust::built_ms;
use proto::time::Wall;

use self::folders::Place;
use self::machine::{Machine, Need};
use crate::clock::NodeClock;
use crate::config::{Config, RuntimeName};
use crate::identity::Identity;
use crate::images::store::unpack::RESERVE_BYTES;
use crate::images::trust;
use crate::link::quic::{DialError, Dialler};
use crate::node::disk_shortage;
use crate::rootless::probe::Found;
use crate::runtime::choice::{self, ChoiceError, Kind};
use crate::runtime::containerd::Containerd;
use crate::runtime::{Runtime as _, explain};
use crate::status;

/// How long a connection that was made to see that it can be has to say goodbye.
const FAREWELL: Duration = Duration::from_millis(500);

/// The oldest containerd whose services are those used here.
const CONTAINERD_MIN: (u32, u32) = (1, 6);

/// The snapshotter that takes overlayfs.
const OVERLAY: &str = "overlayfs";

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

/// Looks at everything; `found` is what there is where the edge core would not be root.
pub async fn check(config: &Config, unknown: &[String], found: Option<&Found>) -> Vec<Line> {
    let mut lines: Vec<_> = unknown
        .iter()
        .map(|key| Line::missing("config", format!("{key}: no such key; take it out or correct it")))
        .collect();
    match found {
        Some(found) => lines.extend(rootless::lines(found)),
        None => lines.push(root()),
    }
    let (line, data) = folder("data", &config.data);
    lines.extend([line, folder("logs", &config.logs).0, folder("run", &config.run).0]);
    let identity = Identity::load(&config.data);
    let (mut containerd, mut of_runtime) = (false, Vec::new());
    if config.runtime != RuntimeName::Fake {
        let kind = if found.is_some() {
            Ok(Kind::Embedded)
        } else {
            choice::kind(config).await
        };
        containerd = matches!(kind, Ok(Kind::Containerd));
        of_runtime = runtimes(config, kind).await;
        let network = if found.is_some() {
            rootless::network()
        } else {
            network(config)
        };
        of_runtime.extend([network, registries(config, trust::system_bundle())]);
    }
    let need = Need { rootless: found.is_some(), ..need(config, containerd) };
    lines.push(room(config, data.as_ref(), need));
    lines.extend(of_runtime);
    lines.extend(Machine::observe(config).lines(need));
    lines.push(clock(daemon::clock::wall()));
    lines.push(joined(&identity));
    if let Ok(Some(identity)) = &identity {
        lines.push(cloud(config, identity).await);
    }
    lines
}

/// What is not as good as it could be on this machine, to be said at a start that goes on with what there is.
pub fn shortcomings(config: &Config, containerd: bool) -> Vec<Line> {
    // Its data can be written, or it would not have come this far.
    let mut lines = vec![folder("logs", &config.logs).0, folder("run", &config.run).0];
    lines.extend(Machine::observe(config).lines(need(config, containerd)));
    lines.retain(|line| line.state != State::Good);
    lines
}

fn need(config: &Config, containerd: bool) -> Need {
    Need {
        containers: config.runtime != RuntimeName::Fake,
        // The embedded runtime copies where it cannot mount.
        overlay: containerd && config.containerd.snapshotter == OVERLAY,
        // With containerd it is its own folder that counts.
        unpacks: !containerd,
        rootless: config.rootless.is_some(),
    }
}

fn root() -> Line {
    if rustix::process::geteuid().is_root() {
        Line::good("root", "runs as root")
    } else {
        Line::missing("root", "containers need root: run with sudo, or from the systemd unit")
    }
}

fn folder(what: &'static str, path: &Path) -> (Line, Option<Place>) {
    match Place::observe(path) {
        Ok(place) => (place.line(what), Some(place)),
        Err(error) => (folders::unseen(what, path, &error), None),
    }
}

/// Whether the disks are short of what pods take, and of what images do.
fn room(config: &Config, data: Option<&Place>, need: Need) -> Line {
    let shortage = disk_shortage(&config.data, &config.logs);
    let reserved = RESERVE_BYTES >> 20;
    let left = data.map_or(0, Place::bytes_free);
    match shortage {
        Some(shortage) => Line::note(
            "room",
            format!("{shortage}: take away what is not needed; the node will say DiskPressure"),
        ),
        None if need.containers && need.unpacks && data.is_some() && left <= RESERVE_BYTES => Line::note(
            "room",
            format!(
                "{} MiB left for {}, and no image is unpacked that leaves less than {reserved} MiB: take away what is not \
                 needed, or give it a larger disk",
                left >> 20,
                config.data.display()
            ),
        ),
        None => Line::good("room", "the disks are not short of it"),
    }
}

/// The authorities that registries are judged by.
fn registries(config: &Config, bundle: Option<&Path>) -> Line {
    const WHAT: &str = "registries";
    if let Some(path) = &config.images.registry_ca {
        let shown = path.display();
        return match trust::certificates(path) {
            Ok(0) => Line::missing(
                WHAT,
                format!(
                    "images.registry_ca: {shown} holds no certificate: it must be PEM (-----BEGIN CERTIFICATE-----)"
                ),
            ),
            Ok(count) => Line::good(
                WHAT,
                format!("certificate authorities in {shown}: {count}, beside the system's"),
            ),
            Err(error) => Line::missing(
                WHAT,
                format!("images.registry_ca: {shown}: {error}; name a file that is there, or take the key out"),
            ),
        };
    }
    match bundle {
        Some(bundle) => Line::good(
            WHAT,
            format!("judged by the system's authorities, {}", bundle.display()),
        ),
        None => Line::note(
            WHAT,
            "no certificate authorities: images come from archives only until apt-get install ca-certificates, or \
             images.registry_ca",
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
        match dialler.reach(address).await {
            Ok(remote) => {
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
async fn runtimes(config: &Config, kind: Result<Kind, ChoiceError>) -> Vec<Line> {
    match kind {
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
        Ok(containerd) => containerd.version().await.map_err(|error| explain(&error)),
        Err(error) => Err(explain(error)),
    };
    match version {
        Ok(version) => containerd_version(&version.version),
        Err(error) => Line::missing(
            "runtime",
            format!(
                "no containerd at {socket} ({error}): apt-get install containerd && systemctl start containerd, or set \
                 runtime = \"embedded\""
            ),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_comes_with_its_fix() {
        let check = |line: Line, state: State, word: &str| {
            assert_eq!(line.state, state, "{line:?}");
            assert!(line.text().contains(word), "{}", line.text());
        };
        check(
            program("no-such-program-at-all", "apt-get install it"),
            State::Missing,
            "apt-get install it",
        );
        check(
            folder("data", Path::new("/proc/nowhere")).0,
            State::Missing,
            "name a folder on a disk",
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
    fn a_start_says_which_folders_it_cannot_use() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let mut config = Config { logs: path("logs"), run: path("run"), ..Config::default() };
        let said = |config: &Config| {
            let lines = shortcomings(config, false);
            let of_folders = lines.into_iter().filter(|line| ["logs", "run"].contains(&line.what));
            of_folders.map(|line| line.text()).collect::<Vec<_>>()
        };
        assert_eq!(said(&config), [""; 0]);
        std::fs::write(path("run"), "").unwrap();
        config.logs = "/proc/logs".into();
        let said = said(&config);
        assert!(
            said.len() == 2 && said[0].contains("/proc") && said[1].contains("it is a file"),
            "{said:?}"
        );
    }

    #[test]
    fn authorities_of_registries_are_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).unwrap();
            folder.path().join(name)
        };
        let pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let check = |ca: Option<std::path::PathBuf>, bundle: Option<&Path>, state: State, word: &str| {
            let mut config = Config::default();
            config.images.registry_ca = ca;
            let line = registries(&config, bundle);
            assert!(line.state == state && line.detail.contains(word), "{word}: {line:?}");
        };
        check(None, Some(Path::new("/b.crt")), State::Good, "/b.crt");
        check(None, None, State::Note, "ca-certificates");
        check(Some(write("two", &pem.repeat(2))), None, State::Good, ": 2, beside");
        check(
            Some(write("none", "no PEM")),
            None,
            State::Missing,
            "holds no certificate",
        );
        check(
            Some(folder.path().join("nowhere")),
            None,
            State::Missing,
            "No such file",
        );
        check(Some(folder.path().to_owned()), None, State::Missing, "name a file");
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
