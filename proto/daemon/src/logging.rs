//! Logs go to standard error, one line per record; whatever starts the process keeps them.

use tracing::Level;

/// A process that already has its logging.
#[derive(Debug, thiserror::Error)]
#[error("setting up logging")]
pub struct LoggingError(#[source] Box<dyn std::error::Error + Send + Sync>);

/// Sets up the logs of this process: everything at `level` and above. Called once, by `main`.
pub fn init(level: Level) -> Result<(), LoggingError> {
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .try_init()
        .map_err(LoggingError)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logging_is_set_up_once() {
        init(Level::WARN).unwrap();
        assert_eq!(init(Level::WARN).unwrap_err().to_string(), "setting up logging");
    }
}
