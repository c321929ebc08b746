//! SQLite as both daemons use it: opened, checked and migrated in one place.
//!
//! A file says two things about its schema. `user_version` is the number of migrations it has been through;
//! `readable_from`, in the table `meta`, is the oldest such number whose binary still reads it right. A binary older
//! than the file opens it when `readable_from` allows, so an update can be rolled back.
//!
//! A clean stop leaves no write-ahead log behind, because the last connection folds it into the file and takes it away.
//! One with anything in it is therefore the mark of an unclean stop, which costs no write of its own, and the only time
//! at which the file is checked before use.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension as _, TransactionBehavior};

/// How long a statement waits for another connection of this process. Nobody holds a lock for long: one writer.
const BUSY_WAIT: Duration = Duration::from_secs(10);

/// The pages of [`Mode::Alone`]: a change touches a few, whatever is in the rest of them.
const SMALL_PAGE_BYTES: u32 = 1024;

/// What [`Mode::Alone`] keeps of its file in memory, where SQLite would take up to 2 MB: what is read again is in the
/// kernel's cache of the file.
const SMALL_CACHE_KIB: i32 = 128;

/// What a write-ahead log shrinks back to after it had to grow.
const WAL_BYTES: u64 = 16 << 20;

/// A database that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SqliteError {
    #[error("creating {}", path.display())]
    Create {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("opening {}", path.display())]
    Open {
        path: PathBuf,
        #[source]
        source: rusqlite::Error,
    },
    #[error("{} is damaged: {detail}", path.display())]
    Damaged { path: PathBuf, detail: String },
    #[error(
        "{} has schema {found}, readable from schema {readable_from} on; this binary knows schema {known}",
        path.display()
    )]
    Newer { path: PathBuf, found: u32, readable_from: u32, known: u32 },
    #[error("migrating {} to schema {to}", path.display())]
    Migrate {
        path: PathBuf,
        to: u32,
        #[source]
        source: rusqlite::Error,
    },
    #[error("closing the database")]
    Close(#[source] rusqlite::Error),
    #[error("setting {} aside", path.display())]
    SetAside {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl SqliteError {
    /// The file itself is bad: set it aside and start over, where that is allowed. Everything else may heal by itself.
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged { .. })
    }

    /// The disk is full, as far as SQLite tells: making the index beside the log fails as an error of the disk.
    pub fn is_for_lack_of_room(&self) -> bool {
        match self {
            Self::Create { source, .. } => source.kind() == io::ErrorKind::StorageFull,
            Self::Open { source, .. } | Self::Migrate { source, .. } => matches!(
                source.sqlite_error_code(),
                Some(ErrorCode::DiskFull | ErrorCode::SystemIoFailure | ErrorCode::CannotOpen)
            ),
            Self::Damaged { .. } | Self::Newer { .. } | Self::Close(_) | Self::SetAside { .. } => false,
        }
    }
}

/// The schema of a database as a list of steps, of which released ones never change.
#[derive(Debug, Clone, Copy)]
pub struct Migrations(pub &'static [Migration]);

/// One step of a schema.
#[derive(Debug, Clone, Copy)]
pub struct Migration {
    pub sql: &'static str,
    /// The oldest schema whose binary reads and writes a file right that has been through this step: the number of
    /// steps that binary knows.
    pub readable_from: u32,
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The one that writes; what it committed has reached the disk.
    Durable,
    /// The same for a file of small rows on a card that wears out: the only connection to it, in small pages. What it
    /// writes is the log and nothing else; the index of the log, which others would need, stays in memory. So it also
    /// opens on a disk with no room for one.
    Alone,
    /// The one that writes; a power cut may cost the last commits, never the file.
    Relaxed,
    /// One of those that only read a file which a writer has opened before.
    Reader,
}

/// Opens the database at `path`. A writer makes it if need be (0600), checks it after an unclean stop, and brings its
/// schema up to date.
pub fn open(path: &Path, migrations: &Migrations, mode: Mode) -> Result<Connection, SqliteError> {
    if mode == Mode::Reader {
        return connect(path, mode).map_err(|source| classify(path, source));
    }
    let unclean = is_unclean(path);
    // SQLite gives its other files the mode of this one.
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(|source| SqliteError::Create { path: path.to_owned(), source })?;
    let mut connection = connect(path, mode).map_err(|source| classify(path, source))?;
    if unclean {
        tracing::info!(path = %path.display(), "checking the database after an unclean stop");
        check(&connection, path, Check::Quick)?;
    }
    migrate(&mut connection, path, migrations)?;
    Ok(connection)
}

/// Whether a log with anything in it was left. An empty one is what a reader of a file that nobody had open leaves.
fn is_unclean(path: &Path) -> bool {
    std::fs::metadata(wal(path)).is_ok_and(|log| log.len() > 0)
}

/// How much of a file a check looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// The structure of every page.
    Quick,
    /// Indexes against their tables as well: for the background.
    Full,
}

/// Says whether the file is sound.
pub fn check(connection: &Connection, path: &Path, how: Check) -> Result<(), SqliteError> {
    let pragma = match how {
        Check::Quick => "PRAGMA quick_check(1)",
        Check::Full => "PRAGMA integrity_check(1)",
    };
    match connection.query_row(pragma, [], |row| row.get::<_, String>(0)) {
        Ok(answer) if answer == "ok" => Ok(()),
        Ok(detail) => Err(SqliteError::Damaged { path: path.to_owned(), detail }),
        Err(source) => Err(classify(path, source)),
    }
}

/// Closes a connection and says whether that went well. Closing the last one folds the log into the file: the clean
/// stop. Dropping it does the same in silence.
pub fn close(connection: Connection) -> Result<(), SqliteError> {
    connection.close().map_err(|(_, source)| SqliteError::Close(source))
}

/// Moves a damaged database out of the way, with what belongs to it, and says where to: one that was set aside earlier
/// is replaced. No connection may be open.
pub fn set_aside(path: &Path) -> Result<PathBuf, SqliteError> {
    let aside = beside(path, ".damaged");
    // The log before the file: a log without its file is ignored, a file without its log lacks commits.
    for suffix in ["-wal", "-shm", ""] {
        match std::fs::rename(beside(path, suffix), beside(&aside, suffix)) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(SqliteError::SetAside { path: path.to_owned(), source });
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(aside)
}

fn connect(path: &Path, mode: Mode) -> Result<Connection, rusqlite::Error> {
    // One thread per connection at a time is what Rust's types already make sure of.
    let flags = match mode {
        Mode::Durable | Mode::Alone | Mode::Relaxed => {
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX
        }
        Mode::Reader => OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    };
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_WAIT)?;
    match mode {
        Mode::Reader => connection.pragma_update(None, "query_only", true)?,
        Mode::Durable | Mode::Alone | Mode::Relaxed => {
            if mode == Mode::Alone {
                // For a file that is new; another one keeps what it has.
                connection.pragma_update(None, "page_size", SMALL_PAGE_BYTES)?;
                // Before anything looks at the log: only then is no index made.
                connection.query_row("PRAGMA locking_mode = EXCLUSIVE", [], |_| Ok(()))?;
                connection.pragma_update(None, "cache_size", -SMALL_CACHE_KIB)?;
            }
            connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
            let synchronous = if mode == Mode::Relaxed { "NORMAL" } else { "FULL" };
            connection.pragma_update(None, "synchronous", synchronous)?;
            connection.query_row(&format!("PRAGMA journal_size_limit = {WAL_BYTES}"), [], |_| Ok(()))?;
        }
    }
    Ok(connection)
}

fn migrate(connection: &mut Connection, path: &Path, migrations: &Migrations) -> Result<(), SqliteError> {
    let numbered = || (1..).zip(migrations.0);
    let known = numbered().last().map_or(0, |(number, _)| number);
    let (found, readable_from) = schema(connection).map_err(|source| classify(path, source))?;
    if found > known {
        if readable_from > known {
            return Err(SqliteError::Newer { path: path.to_owned(), found, readable_from, known });
        }
        tracing::warn!(path = %path.display(), found, known, "the database has a newer schema, which this binary can use");
        return Ok(());
    }
    for (to, migration) in numbered().filter(|(number, _)| *number > found) {
        step(connection, to, migration).map_err(|source| match classify(path, source) {
            SqliteError::Open { path, source } => SqliteError::Migrate { path, to, source },
            other => other,
        })?;
    }
    Ok(())
}

/// `user_version` and `readable_from`.
fn schema(connection: &Connection) -> Result<(u32, u32), rusqlite::Error> {
    let found: u32 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    if found == 0 {
        return Ok((0, 0));
    }
    let readable_from = connection
        .query_row("SELECT value FROM meta WHERE name = 'readable_from'", [], |row| {
            row.get(0)
        })
        .optional()?;
    Ok((found, readable_from.unwrap_or(found)))
}

fn step(connection: &mut Connection, to: u32, migration: &Migration) -> Result<(), rusqlite::Error> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction
        .execute_batch("CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value ANY) STRICT, WITHOUT ROWID")?;
    transaction.execute_batch(migration.sql)?;
    // A later step never makes a file readable again to binaries that an earlier one has shut out.
    transaction.execute(
        "INSERT INTO meta VALUES ('readable_from', ?1)
         ON CONFLICT DO UPDATE SET value = max(value, excluded.value)",
        [migration.readable_from],
    )?;
    transaction.pragma_update(None, "user_version", to)?;
    transaction.commit()
}

fn wal(path: &Path) -> PathBuf {
    beside(path, "-wal")
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Tells a bad file from a bad moment.
fn classify(path: &Path, source: rusqlite::Error) -> SqliteError {
    let path = path.to_owned();
    match source.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            SqliteError::Damaged { path, detail: source.to_string() }
        }
        _ => SqliteError::Open { path, source },
    }
}

#[cfg(test)]
mod tests;
