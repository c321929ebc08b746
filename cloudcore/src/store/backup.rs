//! A back-up is one file, made while the store runs, which says of itself that it is one.
//!
//! Opened as the database of a new data folder (beside the sealing key, which is kept apart from it), it begins a new
//! epoch.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use daemon::files::{self, FileError};
use daemon::sqlite::{self, Mode, SqliteError};
use proto::object::Revision;
use rusqlite::Connection;
use rusqlite::backup::{Backup, StepResult};

use super::open::DATABASE;
use super::reader::ReadError;
use super::schema::{MIGRATIONS, revision, set_state, state};

/// The mark of a back-up in `state`.
pub(super) const MARK: &str = "backup";

/// Copies the store of a data folder that may be in use by another process, and says at which revision. The sealing key
/// is not in it.
pub fn backup_folder(folder: &Path, to: &Path) -> Result<Revision, BackupError> {
    let mut reader = sqlite::open(&folder.join(DATABASE), &MIGRATIONS, Mode::Reader).map_err(BackupError::Open)?;
    let snapshot = reader
        .transaction()
        .map_err(|source| BackupError::Copy { path: to.to_owned(), source })?;
    copy(&snapshot, to)
}

/// A back-up that was not made. What stood in its place still does.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error("opening the store for a back-up")]
    Open(#[source] SqliteError),
    #[error("reading the store for a back-up")]
    Read(#[source] ReadError),
    #[error("creating {}", path.display())]
    Create {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("copying the store to {}", path.display())]
    Copy {
        path: PathBuf,
        #[source]
        source: rusqlite::Error,
    },
    #[error("the store was too busy to be copied to {}", path.display())]
    Busy { path: PathBuf },
    #[error("putting the back-up in its place")]
    Place(#[source] FileError),
}

/// Copies a snapshot to `path`, and says at which revision it was taken.
pub(super) fn copy(snapshot: &Connection, path: &Path) -> Result<Revision, BackupError> {
    let temporary = files::temporary(path).map_err(BackupError::Place)?;
    let created = |source| BackupError::Create { path: temporary.clone(), source };
    let copied = |source| BackupError::Copy { path: temporary.clone(), source };
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(created(error)),
        Ok(()) | Err(_) => {}
    }
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary)
        .map_err(created)?;
    let at = fill(snapshot, &temporary).map_err(copied)?;
    let Some(at) = at else {
        return Err(BackupError::Busy { path: path.to_owned() });
    };
    File::open(&temporary)
        .and_then(|file| file.sync_all())
        .map_err(created)?;
    files::put_in_place(&temporary, path).map_err(BackupError::Place)?;
    Ok(at)
}

/// The revision of the copy; none when another connection was in the way.
fn fill(snapshot: &Connection, path: &Path) -> Result<Option<Revision>, rusqlite::Error> {
    let mut copy = Connection::open(path)?;
    // All pages in one step: the snapshot holds nobody up, and the copy is of one moment.
    if Backup::new(snapshot, &mut copy)?.step(-1)? != StepResult::Done {
        return Ok(None);
    }
    // One file, without a log that could get lost on the way.
    copy.query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(()))?;
    set_state(&copy, MARK, 1)?;
    let at = state(&copy, "revision")?.map_or(Revision(0), revision);
    copy.close().map_err(|(_, error)| error)?;
    Ok(Some(at))
}
