//! Opening: the folder, the key, the file, and what memory needs of it.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, RwLock};

use daemon::files::{self, FileError};
use daemon::seal::{KeyError, SealingKey};
use daemon::sqlite::{self, Mode, SqliteError};
use daemon::{clock, random};
use proto::object::{Epoch, Revision};
use rusqlite::Connection;
use tokio::sync::Semaphore;

use super::backup;
use super::current::{Current, Recent};
use super::reader::Readers;
use super::retain::{Base, Bases, History, HistoryLimits, Holder, Mark, Marks};
use super::schema::{self, RowError, number, revision, set_state, state};
use super::watch::LineLimits;
use super::writer::{Inbox, Writer, begin_epoch};
use super::{LANE_COST_MAX, Owner, Shared, Store, history};

/// The database in the data folder.
pub(super) const DATABASE: &str = "cloud.db";
/// The sealing key in the data folder, where no other place is configured.
pub(super) const KEY: &str = "cloud.key";
const LOCK: &str = "lock";

/// The revision of an empty store. Not 0, which clients read as "any".
pub(super) const FIRST: Revision = Revision(1);

/// How the store is set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The data folder; made if need be. One process at a time.
    pub folder: PathBuf,
    /// Where the sealing key is, if not in the data folder: a systemd credential, say.
    pub sealing_key: Option<PathBuf>,
    pub history: HistoryLimits,
    /// What may wait in memory for one watcher.
    pub line: LineLimits,
    /// The latest changes, kept in memory for watchers that start or are a little behind.
    pub recent: LineLimits,
    /// What all current objects may come to. Writes that would make them more are refused as [`Full`](super::CommitError::Full).
    pub objects_bytes_max: usize,
    /// What the database may grow to.
    pub file_bytes_max: u64,
}

impl Config {
    /// The defaults, for a data folder.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            sealing_key: None,
            history: HistoryLimits::default(),
            line: LineLimits::default(),
            recent: LineLimits { changes: 4096, bytes: 16 << 20 },
            objects_bytes_max: 2 << 30,
            file_bytes_max: 64 << 30,
        }
    }
}

/// A store that did not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("creating the data folder {}", path.display())]
    Folder {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("taking the data folder")]
    Lock(#[source] FileError),
    #[error("opening the database")]
    Database(#[source] SqliteError),
    #[error("the sealing key {} is missing: without it the secrets of this database cannot be read", path.display())]
    KeyMissing { path: PathBuf },
    #[error("taking the sealing key")]
    Key(#[source] KeyError),
    #[error("the database was sealed with key {database}, and {} is key {file}", path.display())]
    OtherKey { path: PathBuf, database: String, file: String },
    #[error("setting up the database")]
    SetUp(#[source] rusqlite::Error),
    #[error("loading the database")]
    Load(#[source] RowError),
    #[error("starting the writer")]
    Thread(#[source] io::Error),
}

impl OpenError {
    /// The file itself is bad. Nothing here sets it aside: what a cloud core holds is worth a person's look.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Database(error) => error.is_damage(),
            Self::Load(RowError::Form { .. } | RowError::Sealed { .. }) => true,
            _ => false,
        }
    }
}

impl Store {
    /// Opens the store of a data folder, or makes it. Blocks while it loads.
    pub fn open(config: Config) -> Result<Self, OpenError> {
        let folder = &config.folder;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(|source| OpenError::Folder { path: folder.clone(), source })?;
        let lock = files::lock(&folder.join(LOCK)).map_err(OpenError::Lock)?;
        let path = folder.join(DATABASE);
        let mut connection = sqlite::open(&path, &schema::MIGRATIONS, Mode::Durable).map_err(OpenError::Database)?;
        let seal = Arc::new(set_up(&mut connection, &config)?);
        let loaded = load(&connection, &seal, &config).map_err(OpenError::Load)?;
        let readers = Arc::new(Readers::new(&path, Arc::clone(&seal)));
        let shared = Arc::new(Shared {
            current: Arc::new(RwLock::new(loaded.current)),
            lines: Arc::default(),
            readers,
            marks: Mutex::new(loaded.marks),
            inbox: Inbox::default(),
            room: [(); 3].map(|()| Arc::new(Semaphore::new(LANE_COST_MAX as usize))),
            line: config.line,
            transactions: AtomicU64::new(0),
        });
        let writer = Writer {
            connection,
            shared: Arc::clone(&shared),
            seal,
            history: loaded.history,
            bases: loaded.bases,
            history_limits: config.history,
            objects_bytes_max: config.objects_bytes_max,
        };
        let thread = std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || writer.run())
            .map_err(OpenError::Thread)?;
        let owner = Owner {
            shared: Arc::clone(&shared),
            writer: Mutex::new(Some(thread)),
            _lock: lock,
        };
        Ok(Self { shared, _owner: Arc::new(owner) })
    }
}

/// What a new file needs, and what a back-up needs to live again. Returns the key.
fn set_up(connection: &mut Connection, config: &Config) -> Result<SealingKey, OpenError> {
    let path = config.sealing_key.clone().unwrap_or_else(|| config.folder.join(KEY));
    let sealed_with: Option<String> = state(connection, "key").map_err(OpenError::SetUp)?;
    let key = match (path.exists(), &sealed_with) {
        (true, _) => SealingKey::load(&path).map_err(OpenError::Key)?,
        (false, None) => SealingKey::create(&path).map_err(OpenError::Key)?,
        (false, Some(_)) => return Err(OpenError::KeyMissing { path }),
    };
    match sealed_with {
        Some(database) if database != key.id().to_string() => {
            return Err(OpenError::OtherKey { path, database, file: key.id().to_string() });
        }
        Some(_) => restore(connection).map_err(OpenError::SetUp)?,
        None => create(connection, &key).map_err(OpenError::SetUp)?,
    }
    let page: u64 = connection
        .query_row("PRAGMA page_size", [], |row| row.get::<_, u32>(0))
        .map_err(OpenError::SetUp)?
        .into();
    let pages = i64::try_from(config.file_bytes_max / page).unwrap_or(i64::MAX);
    connection
        .query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))
        .map_err(OpenError::SetUp)?;
    Ok(key)
}

fn create(connection: &mut Connection, key: &SealingKey) -> Result<(), rusqlite::Error> {
    let transaction = connection.transaction()?;
    set_state(&transaction, "epoch", i64::from_le_bytes(random::bytes()))?;
    for name in ["revision", "floor", "dropped"] {
        set_state(&transaction, name, number(FIRST))?;
    }
    set_state(&transaction, "key", key.id().to_string())?;
    transaction.commit()
}

/// A back-up has missed what was served since it was made.
fn restore(connection: &mut Connection) -> Result<(), rusqlite::Error> {
    if state::<i64>(connection, backup::MARK)?.is_none() {
        return Ok(());
    }
    let transaction = connection.transaction()?;
    let last = state(&transaction, "revision")?.map_or(FIRST, revision);
    let (epoch, first) = begin_epoch(&transaction, last)?;
    transaction.execute("DELETE FROM state WHERE name = ?1", [backup::MARK])?;
    transaction.commit()?;
    tracing::info!(%epoch, revision = %first, "a back-up was opened: a new epoch begins");
    Ok(())
}

/// What the file holds, as memory has it.
#[derive(Debug)]
struct Loaded {
    current: Current,
    history: History,
    marks: Marks,
    bases: Bases,
}

fn load(connection: &Connection, seal: &SealingKey, config: &Config) -> Result<Loaded, RowError> {
    let epoch = state(connection, "epoch")?.map_or_else(Epoch::default, |epoch: i64| Epoch(epoch.cast_unsigned()));
    let revision_of = |name| Ok::<_, RowError>(state(connection, name)?.map_or(FIRST, revision));
    let (latest, floor, dropped) = (revision_of("revision")?, revision_of("floor")?, revision_of("dropped")?);
    let recent = Recent::new(latest, config.recent.changes, config.recent.bytes);
    let mut current = Current::new(epoch, latest, floor, recent);
    history::load(connection, seal, |object| current.load(&object))?;
    for (space, id, bytes) in schema::records(connection, seal)? {
        current.publish_record((space, id), Some(bytes.into()));
    }

    let mut past = History::default();
    let now = clock::mono();
    let mut statement =
        connection.prepare("SELECT revision, cost FROM versions WHERE revision > ?1 ORDER BY revision")?;
    let mut rows = statement.query([number(dropped)])?;
    while let Some(row) = rows.next()? {
        past.push(revision(row.get(0)?), now, history::length(row, 1)?);
    }

    let mut marks = Marks::default();
    marks.cut(floor);
    let mut statement = connection.prepare("SELECT node, revision, whole FROM marks")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let mark = Mark { revision: revision(row.get(1)?), whole: row.get(2)? };
        marks.load(row.get::<_, String>(0)?.into(), mark);
    }

    let mut bases = Bases::default();
    let mut statement = connection.prepare(
        "SELECT v.revision, v.kind, v.namespace, v.name, v.node, v.projected, v.until,
             length(b.bytes) + coalesce(length(v.report), 0)
         FROM bases v JOIN bodies b ON b.revision = v.body_at",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let node: Option<String> = row.get(4)?;
        let base = Base {
            holder: Holder::of(&schema::key(row, 1)?, node.as_deref()),
            from: revision(row.get(5)?),
            until: revision(row.get(6)?),
            bytes: history::length(row, 7)?,
        };
        bases.insert(revision(row.get(0)?), base);
    }
    Ok(Loaded { current, history: past, marks, bases })
}
