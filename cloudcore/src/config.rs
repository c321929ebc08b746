//! The configuration file: one TOML, every key with a default.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// What an operator may set. `cloudcore check` refuses keys that are not here; `serve` warns of them and starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// The data folder: database, keys, kubeconfig. Made if need be.
    pub data: PathBuf,
    /// Where the API listens (HTTPS, TCP).
    pub api: SocketAddr,
    /// Where nodes connect (QUIC, UDP).
    pub hub: SocketAddr,
    /// Names and addresses of this host as others reach it, the first one first: they go into the API's certificate, the
    /// kubeconfig and what nodes are told. Empty: this host's own address.
    pub hosts: Vec<String>,
    /// The sealing key, where it is not in the data folder: a systemd credential, say.
    pub sealing_key: Option<PathBuf>,
    /// `error`, `warn`, `info`, `debug` or `trace`.
    pub log: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data: PathBuf::from("/var/lib/edgehold/cloud"),
            api: SocketAddr::from(([0, 0, 0, 0], 6443)),
            hub: SocketAddr::from(([0, 0, 0, 0], 7443)),
            hosts: Vec::new(),
            sealing_key: None,
            log: "info".to_owned(),
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
        let known = toml::Table::try_from(Self { sealing_key: Some(PathBuf::new()), ..Self::default() });
        let known = known.unwrap_or_default();
        let unknown = table.keys().filter(|key| !known.contains_key(*key)).cloned().collect();
        let config: Self = toml::from_str(text).map_err(parse)?;
        config.level()?;
        Ok((config, unknown))
    }

    /// The log level.
    pub fn level(&self) -> Result<tracing::Level, ConfigError> {
        self.log.parse().map_err(|_| ConfigError::Log(self.log.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<(Config, Vec<String>), ConfigError> {
        Config::parse(Path::new("c.toml"), text)
    }

    #[test]
    fn the_sample_holds_the_defaults() {
        let sample = include_str!("../cloudcore.toml");
        assert_eq!(parse(sample).unwrap(), (Config::default(), vec![]));
        // Every key is in it, those without a default as a comment.
        let known = toml::Table::try_from(Config { sealing_key: Some(PathBuf::new()), ..Config::default() }).unwrap();
        for key in known.keys() {
            assert!(sample.contains(&format!("{key} = ")), "{key}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let (config, unknown) = parse("apii = 1\nlog = \"debug\"").unwrap();
        assert_eq!((config.log.as_str(), unknown), ("debug", vec!["apii".to_owned()]));
        assert!(matches!(parse("log = \"loud\""), Err(ConfigError::Log(level)) if level == "loud"));
        assert!(matches!(parse("api = \"nowhere\""), Err(ConfigError::Parse { .. })));
        assert!(matches!(parse("api = "), Err(ConfigError::Parse { .. })));
    }
}
