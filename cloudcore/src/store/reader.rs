//! Connections that only read, for revisions other than the present one.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use daemon::seal::SealingKey;
use daemon::sqlite::{self, Mode, SqliteError};
use rusqlite::Connection;
use tokio::sync::Semaphore;

use super::locked;
use super::schema::{MIGRATIONS, RowError};

/// The most reads of the database at a time; more wait.
const READERS_MAX: usize = 4;

/// A read of the database that failed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("opening a reader")]
    Open(#[source] SqliteError),
    #[error("reading history")]
    Row(#[source] RowError),
    #[error("the reader died")]
    Died(#[source] tokio::task::JoinError),
    #[error("the store is closed")]
    Closed,
}

/// A few connections, opened when they are first needed.
#[derive(Debug)]
pub(super) struct Readers {
    path: PathBuf,
    seal: Arc<SealingKey>,
    free: Mutex<Vec<Connection>>,
    permits: Arc<Semaphore>,
}

impl Readers {
    pub(super) fn new(path: &Path, seal: Arc<SealingKey>) -> Self {
        Self {
            path: path.to_owned(),
            seal,
            free: Mutex::default(),
            permits: Arc::new(Semaphore::new(READERS_MAX)),
        }
    }

    /// Runs `query` on a thread that may block, on one snapshot of the database.
    pub(super) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        query: impl FnOnce(&Connection, &SealingKey) -> Result<T, RowError> + Send + 'static,
    ) -> Result<T, ReadError> {
        let permit = Arc::clone(&self.permits)
            .acquire_owned()
            .await
            .map_err(|_| ReadError::Closed)?;
        let readers = Arc::clone(self);
        tokio::task::spawn_blocking(move || {
            let _permit = permit;
            readers.run_now(query)
        })
        .await
        .map_err(ReadError::Died)?
    }

    /// Runs `query` here, on one snapshot of the database.
    pub(super) fn run_now<T>(
        &self,
        query: impl FnOnce(&Connection, &SealingKey) -> Result<T, RowError>,
    ) -> Result<T, ReadError> {
        if self.permits.is_closed() {
            return Err(ReadError::Closed);
        }
        let free = locked(&self.free).pop();
        let mut connection = match free {
            Some(connection) => connection,
            None => sqlite::open(&self.path, &MIGRATIONS, Mode::Reader).map_err(ReadError::Open)?,
        };
        let found = connection
            .transaction()
            .map_err(RowError::from)
            .and_then(|snapshot| query(&snapshot, &self.seal))
            .map_err(ReadError::Row)?;
        let mut free = locked(&self.free);
        if free.len() < READERS_MAX && !self.permits.is_closed() {
            free.push(connection);
        }
        Ok(found)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// No more reads; the connections close, so that the last one of all is the writer's.
    pub(super) fn close(&self) {
        self.permits.close();
        locked(&self.free).clear();
    }
}
