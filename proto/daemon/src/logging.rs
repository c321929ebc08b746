//! Logs go to standard error, one line per record; whatever starts the process keeps them.

use std::fmt;

use proto::time::rfc3339;
use serde::{Deserialize, Serialize};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::clock;

/// How much is told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
    Trace,
}

impl From<Level> for tracing::Level {
    fn from(level: Level) -> Self {
        match level {
            Level::Error => Self::ERROR,
            Level::Warn => Self::WARN,
            Level::Info => Self::INFO,
            Level::Debug => Self::DEBUG,
            Level::Trace => Self::TRACE,
        }
    }
}

/// A process that already has its logging.
#[derive(Debug, thiserror::Error)]
#[error("setting up logging")]
pub struct LoggingError(#[source] Box<dyn std::error::Error + Send + Sync>);

/// Crates whose records are wanted at the level that was asked for; libraries speak up from a warning on.
const OURS: [&str; 5] = ["cloudcore", "daemon", "edgecore", "proto", "reconcile"];

/// Sets up the logs of this process: everything of ours at `level` and above. Called once, by `main`.
pub fn init(level: Level) -> Result<(), LoggingError> {
    let level = tracing::Level::from(level);
    let ours = OURS.map(|target| (target, level));
    let filter = Targets::new()
        .with_default(level.min(tracing::Level::WARN))
        .with_targets(ours);
    // A line that finds no room, as on a full disk, is lost; telling standard error of it would end the process.
    let lines = tracing_subscriber::fmt::layer()
        .with_timer(Stamp)
        .with_writer(std::io::stderr)
        .log_internal_errors(false);
    tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .try_init()
        .map_err(|error| LoggingError(Box::new(error)))
}

/// A record's time: RFC 3339 with microseconds, by the one clock there is.
struct Stamp;

impl FormatTime for Stamp {
    fn format_time(&self, out: &mut Writer<'_>) -> fmt::Result {
        let (seconds, nanos) = clock::realtime();
        write!(out, "{}.{:06}Z", rfc3339(seconds).trim_end_matches('Z'), nanos / 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_has_microseconds() {
        let (before, _) = clock::realtime();
        let mut text = String::new();
        Stamp.format_time(&mut Writer::new(&mut text)).unwrap();
        let (after, _) = clock::realtime();
        let (seconds, fraction) = text.split_once('.').unwrap();
        let seconds = proto::time::parse_rfc3339(&format!("{seconds}Z")).unwrap();
        assert!((before..=after).contains(&seconds), "{text}");
        assert!(fraction.len() == 7 && fraction.ends_with('Z'), "{text}");
    }

    #[test]
    fn logging_is_set_up_once() {
        init(Level::Warn).unwrap();
        assert_eq!(init(Level::Warn).unwrap_err().to_string(), "setting up logging");
    }
}
