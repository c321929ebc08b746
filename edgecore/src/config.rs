//! The configuration file: one TOML, every key with a default.

pub mod user;

use std::path::PathBuf;
use std::time::Duration;

use daemon::carrier::{KEEP_ALIVE, KEEP_ALIVE_MAX, KEEP_ALIVE_METERED};
use daemon::config::Configuration;
use daemon::logging::Level;
use serde::{Deserialize, Serialize};

use self::user::Places;
use crate::link::quic::Settings;
use crate::rootless::Rootless;

/// What an operator may set. `edgecore check` refuses keys that are not here; `run` warns of them and starts, so that an
/// older binary starts after a roll-back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// The data folder: store, keys, pods' volumes. Made if need be.
    pub data: PathBuf,
    /// Where the pods' logs go.
    pub logs: PathBuf,
    /// For what does not survive a reboot.
    pub run: PathBuf,
    pub runtime: RuntimeName,
    pub pods: Pods,
    pub images: Images,
    pub containerd: Containerd,
    pub link: Link,
    /// `error`, `warn`, `info`, `debug` or `trace`.
    pub log: Level,
    /// Found out at the start: no key of a file.
    #[serde(skip)]
    pub rootless: Option<Rootless>,
}

/// What runs containers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuntimeName {
    /// containerd where it answers, else our own; decided once.
    #[default]
    Auto,
    Containerd,
    /// Our own: no daemon.
    Embedded,
    /// Runs nothing and says it does: for tests.
    Fake,
}

/// What pods get on this node, whatever runs them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pods {
    /// Below which every pod gets a cgroup.
    pub cgroup: String,
    /// Where the pod network is described, and where its plugins are.
    pub cni_conf: PathBuf,
    pub cni_plugins: Vec<PathBuf>,
    /// So many processes and threads may one container have; 0: as many as the machine.
    pub pids_max: u32,
}

/// How images are had.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Images {
    /// More certificate authorities for registries, as PEM.
    pub registry_ca: Option<PathBuf>,
}

/// The container runtime of that name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Containerd {
    pub socket: PathBuf,
    /// containerd's namespace; all that is in it is the edge core's.
    pub namespace: String,
    pub snapshotter: String,
}

/// The way to the cloud.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Link {
    /// Bytes cost money here: fewer beats, no probing.
    pub metered: bool,
    /// How often to let the cloud hear something at least, in seconds; at most 300. 0 stands for 30, or 300 where the
    /// link is metered.
    pub beat_s: u16,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data: "/var/lib/edgehold/edge".into(),
            logs: "/var/log/edgehold/pods".into(),
            run: "/run/edgehold".into(),
            runtime: RuntimeName::default(),
            pods: Pods::default(),
            images: Images::default(),
            containerd: Containerd::default(),
            link: Link::default(),
            log: Level::Info,
            rootless: None,
        }
    }
}

impl Default for Containerd {
    fn default() -> Self {
        let runtime = crate::runtime::containerd::Config::default();
        Self {
            socket: runtime.socket,
            namespace: runtime.namespace,
            snapshotter: runtime.snapshotter,
        }
    }
}

impl Default for Pods {
    fn default() -> Self {
        let cni = crate::runtime::CniConfig::default();
        Self {
            cgroup: "/edgehold".to_owned(),
            cni_conf: cni.conf_dir,
            cni_plugins: cni.plugin_dirs,
            pids_max: 0,
        }
    }
}

impl Configuration for Config {
    const FILE: &'static str = "/etc/edgehold/edgecore.toml";

    fn file() -> PathBuf {
        Places::own().map_or_else(|| Self::FILE.into(), |places| places.config)
    }

    fn own_defaults() -> toml::Table {
        Places::own().map(|places| places.table()).unwrap_or_default()
    }

    fn every_key() -> Self {
        let images = Images { registry_ca: Some(PathBuf::new()) };
        Self { images, ..Self::default() }
    }

    fn data(&mut self) -> &mut PathBuf {
        &mut self.data
    }

    fn folders(&mut self) -> Vec<(&'static str, &mut PathBuf)> {
        vec![
            ("data", &mut self.data),
            ("logs", &mut self.logs),
            ("run", &mut self.run),
        ]
    }

    fn check(&self) -> Result<(), String> {
        let cgroup = &self.pods.cgroup;
        let names = cgroup.strip_prefix('/').map(|rest| rest.split('/'));
        if names.is_none_or(|mut names| names.any(|name| ["", ".", ".."].contains(&name))) {
            return Err(format!(
                "pods.cgroup: {cgroup:?} is no cgroup below the root; write it as /edgehold or /a/b"
            ));
        }
        let (beat, max) = (self.link.beat_s, KEEP_ALIVE_MAX.as_secs());
        if u64::from(beat) > max {
            return Err(format!("link.beat_s: {beat} is more than {max}"));
        }
        Ok(())
    }
}

impl Config {
    /// Where the embedded runtime keeps what stays.
    pub fn embedded(&self) -> PathBuf {
        self.data.join("embedded")
    }

    /// How the link behaves.
    pub fn link_settings(&self) -> Settings {
        let keep_alive = match (self.link.beat_s, self.link.metered) {
            (0, false) => KEEP_ALIVE,
            (0, true) => KEEP_ALIVE_METERED,
            (seconds, _) => Duration::from_secs(seconds.into()),
        };
        Settings { keep_alive, metered: self.link.metered }
    }
}

#[cfg(test)]
mod tests {
    use daemon::config::{Loaded, keys, parse};

    use super::*;

    #[test]
    fn the_sample_holds_the_defaults() {
        let sample = include_str!("../edgecore.toml");
        assert_eq!(parse::<Config>(sample).unwrap(), Loaded::default());
        for key in keys::<Config>()
            .values()
            .filter_map(toml::Value::as_table)
            .flat_map(toml::Table::keys)
        {
            assert!(sample.contains(&format!("{key} = ")), "{key}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let check = |text: &str, part: &str| {
            let said = parse::<Config>(text).unwrap_err();
            assert!(said.contains(part), "{part:?} is not in {said:?}");
        };
        check("log = \"loud\"", "`loud`, expected one of `error`");
        check(
            "runtime = \"docker\"",
            "`docker`, expected one of `auto`, `containerd`, `embedded`, `fake`",
        );
        check("data = 1", "line 1 (data = 1): ");
        assert!(parse::<Config>("[link]\nbeat_s = 300").is_ok());
        check("[link]\nbeat_s = 301", "link.beat_s: 301 is more than 300");
        for cgroup in ["/edgehold", "/site/a-1"] {
            assert!(
                parse::<Config>(&format!("[pods]\ncgroup = {cgroup:?}")).is_ok(),
                "{cgroup}"
            );
        }
        for cgroup in ["", "/", "edgehold", "/a/", "//a", "/a/../b", "/."] {
            check(
                &format!("[pods]\ncgroup = {cgroup:?}"),
                &format!("pods.cgroup: {cgroup:?} is no cgroup"),
            );
        }
    }

    #[test]
    fn beats() {
        let beat = |text: &str| {
            parse::<Config>(text)
                .unwrap()
                .config
                .link_settings()
                .keep_alive
                .as_secs()
        };
        assert_eq!(
            (beat(""), beat("[link]\nmetered = true"), beat("[link]\nbeat_s = 5")),
            (30, 300, 5)
        );
    }
}
