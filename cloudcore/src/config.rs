//! The configuration file: one TOML, every key with a default.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use daemon::config::Configuration;
use daemon::logging::Level;
use serde::{Deserialize, Serialize};

use crate::controllers::event_ttl;

/// What `event_ttl_s` may be: from a minute, in which somebody can look, to the week that a site may be without anybody.
const EVENT_TTL_S: RangeInclusive<u32> = 60..=604_800;

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
    /// How long an event is kept after it was last told, in seconds.
    pub event_ttl_s: u32,
    /// `error`, `warn`, `info`, `debug` or `trace`.
    pub log: Level,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data: PathBuf::from("/var/lib/edgehold/cloud"),
            api: SocketAddr::from(([0, 0, 0, 0], 6443)),
            hub: SocketAddr::from(([0, 0, 0, 0], 7443)),
            hosts: Vec::new(),
            sealing_key: None,
            event_ttl_s: event_ttl::TTL_S,
            log: Level::Info,
        }
    }
}

impl Configuration for Config {
    const FILE: &'static str = "/etc/edgehold/cloudcore.toml";

    fn every_key() -> Self {
        Self { sealing_key: Some(PathBuf::new()), ..Self::default() }
    }

    fn data(&mut self) -> &mut PathBuf {
        &mut self.data
    }

    fn check(&self) -> Result<(), String> {
        let (ttl, within) = (self.event_ttl_s, EVENT_TTL_S);
        if !within.contains(&ttl) {
            return Err(format!(
                "event_ttl_s: {ttl} is not within {} and {}",
                within.start(),
                within.end()
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use daemon::config::{Loaded, keys, parse};

    use super::*;

    #[test]
    fn the_sample_holds_the_defaults() {
        let sample = include_str!("../cloudcore.toml");
        assert_eq!(parse::<Config>(sample).unwrap(), Loaded::default());
        // Every key is in it, those without a default as a comment.
        for key in keys::<Config>().keys() {
            assert!(sample.contains(&format!("{key} = ")), "{key}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let loaded: Loaded<Config> = parse("apii = 1\nlog = \"debug\"").unwrap();
        assert_eq!(
            (loaded.config.log, loaded.unknown),
            (Level::Debug, vec!["apii".to_owned()])
        );
        let said = |text: &str| parse::<Config>(text).unwrap_err();
        assert!(
            said("log = \"loud\"").contains("`loud`, expected one of `error`"),
            "{}",
            said("log = \"loud\"")
        );
        assert!(said("api = \"nowhere\"").starts_with("line 1 (api = \"nowhere\"): "));
        for (seconds, is_good) in [(59, false), (60, true), (604_800, true), (604_801, false)] {
            let parsed = parse::<Config>(&format!("event_ttl_s = {seconds}"));
            let expected = format!("event_ttl_s: {seconds} is not within 60 and 604800");
            assert!(
                parsed
                    .as_ref()
                    .map_or_else(|error| error.contains(&expected), |_| is_good),
                "{parsed:?}"
            );
        }
    }
}
