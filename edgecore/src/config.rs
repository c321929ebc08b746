//! The configuration file: one TOML, every key with a default.

use std::path::{Path, PathBuf};
use std::time::Duration;

use daemon::carrier::{KEEP_ALIVE, KEEP_ALIVE_MAX, KEEP_ALIVE_METERED};
use serde::{Deserialize, Serialize};

use crate::link::quic::Settings;

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
    /// `containerd`, or `fake`, which runs nothing and says it does: for tests.
    pub runtime: String,
    pub containerd: Containerd,
    pub link: Link,
    /// `error`, `warn`, `info`, `debug` or `trace`.
    pub log: String,
}

/// The container runtime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Containerd {
    pub socket: PathBuf,
    /// containerd's namespace; all that is in it is the edge core's.
    pub namespace: String,
    pub snapshotter: String,
    /// Below which every pod gets a cgroup.
    pub cgroup: String,
    /// Where the pod network is described, and where its plugins are.
    pub cni_conf: PathBuf,
    pub cni_plugins: Vec<PathBuf>,
    /// More certificate authorities for registries, as PEM.
    pub registry_ca: Option<PathBuf>,
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
            runtime: "containerd".to_owned(),
            containerd: Containerd::default(),
            link: Link::default(),
            log: "info".to_owned(),
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
            cgroup: runtime.cgroup_parent,
            cni_conf: runtime.cni.conf_dir,
            cni_plugins: runtime.cni.plugin_dirs,
            registry_ca: None,
        }
    }
}

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("reading {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{} is not as it should be: {detail}", path.display())]
    Parse { path: PathBuf, detail: String },
    #[error("log: {0:?} is none of error, warn, info, debug, trace")]
    Log(String),
    #[error("runtime: {0:?} is neither containerd nor fake")]
    Runtime(String),
    #[error("link.beat_s: {0} is more than {max}", max = KEEP_ALIVE_MAX.as_secs())]
    Beat(u16),
}

impl Config {
    /// Reads the file, and says which of its keys mean nothing.
    pub fn load(path: &Path) -> Result<(Self, Vec<String>), ConfigError> {
        let read = |source| ConfigError::Read { path: path.to_owned(), source };
        let text = std::fs::read_to_string(path).map_err(read)?;
        Self::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<(Self, Vec<String>), ConfigError> {
        let parse =
            |error: toml::de::Error| ConfigError::Parse { path: path.to_owned(), detail: error.message().to_owned() };
        let table: toml::Table = toml::from_str(text).map_err(parse)?;
        let config: Self = toml::from_str(text).map_err(parse)?;
        let mut unknown = Vec::new();
        unknown_keys(&table, &Self::every_key(), "", &mut unknown);
        config.level()?;
        if !["containerd", "fake"].contains(&config.runtime.as_str()) {
            return Err(ConfigError::Runtime(config.runtime));
        }
        if u64::from(config.link.beat_s) > KEEP_ALIVE_MAX.as_secs() {
            return Err(ConfigError::Beat(config.link.beat_s));
        }
        Ok((config, unknown))
    }

    fn every_key() -> toml::Table {
        let containerd = Containerd { registry_ca: Some(PathBuf::new()), ..Containerd::default() };
        toml::Table::try_from(Self { containerd, ..Self::default() }).unwrap_or_default()
    }

    /// The log level.
    pub fn level(&self) -> Result<tracing::Level, ConfigError> {
        self.log.parse().map_err(|_| ConfigError::Log(self.log.clone()))
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

fn unknown_keys(table: &toml::Table, known: &toml::Table, prefix: &str, unknown: &mut Vec<String>) {
    for (key, value) in table {
        match (value, known.get(key)) {
            (_, None) => unknown.push(format!("{prefix}{key}")),
            (toml::Value::Table(inner), Some(toml::Value::Table(known))) => {
                unknown_keys(inner, known, &format!("{prefix}{key}."), unknown);
            }
            (_, Some(_)) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<(Config, Vec<String>), ConfigError> {
        Config::parse(Path::new("e.toml"), text)
    }

    #[test]
    fn the_sample_holds_the_defaults() {
        let sample = include_str!("../edgecore.toml");
        assert_eq!(parse(sample).unwrap(), (Config::default(), vec![]));
        for key in Config::every_key()
            .values()
            .filter_map(toml::Value::as_table)
            .flat_map(toml::Table::keys)
        {
            assert!(sample.contains(&format!("{key} = ")), "{key}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let (_, unknown) = parse("[link]\nmeterd = true\n[other]\na = 1").unwrap();
        assert_eq!(unknown, ["link.meterd", "other"]);
        assert!(matches!(parse("log = \"loud\""), Err(ConfigError::Log(_))));
        assert!(matches!(parse("runtime = \"docker\""), Err(ConfigError::Runtime(_))));
        assert!(parse("[link]\nbeat_s = 300").is_ok());
        assert!(matches!(parse("[link]\nbeat_s = 301"), Err(ConfigError::Beat(301))));
        assert!(matches!(parse("data = 1"), Err(ConfigError::Parse { .. })));
    }

    #[test]
    fn beats() {
        let beat = |text: &str| parse(text).unwrap().0.link_settings().keep_alive.as_secs();
        assert_eq!(
            (beat(""), beat("[link]\nmetered = true"), beat("[link]\nbeat_s = 5")),
            (30, 300, 5)
        );
    }
}
