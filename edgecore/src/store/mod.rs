//! The node's store: what should be here, what was reported, what is still to be said, what pods remember.
//!
//! One thread owns the one connection to `node.db`; everybody else holds a [`NodeStore`] and asks. A commit is durable
//! when it is answered, and one that was handed over is done. An idle store writes nothing.
//!
//! Entries are kept as the cloud's projections, which is what patches and digests are about; [`restore`] gives them back
//! their names. Secret bodies are sealed with a key file of its own. A damaged file is set aside and a new one begun: the
//! cloud fills it again, and pods run on.

mod file;
mod schema;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use daemon::seal::{KeyError, SealingKey};
use daemon::sqlite::{self, Mode, SqliteError};
use proto::object::{Key, Kind, Revision, Uid};
use proto::session::CommitError;
use proto::session::edge::{Batch, Outcome, Recovered};
use proto::value::Value;
use rusqlite::ErrorCode;
use tokio::sync::{mpsc, oneshot};

use self::file::File;
use crate::pods::{Desired, Entries, Unreadable};

/// The database in the data folder.
pub const DATABASE: &str = "node.db";

const SEALING_KEY: &str = "sealing.key";

/// Requests that wait for the thread; more wait in their callers.
const JOBS_MAX: usize = 64;

/// The store's handle. The thread ends when the last one is dropped.
#[derive(Debug, Clone)]
pub struct NodeStore {
    jobs: mpsc::Sender<Job>,
    /// The latest time that was ever sure, to be saved with the next commit.
    floor_ms: Arc<AtomicI64>,
    waiting: Waiting,
    /// A view was held whole once: what is not in the store is not wanted. One that was just begun does not know.
    synced: Arc<AtomicBool>,
}

/// A pod for people who ask.
#[derive(Debug, Clone, PartialEq)]
pub struct PodReport {
    pub key: Key,
    /// Its status as it was last reported, if it was.
    pub latest: Option<Value>,
    /// Somebody wants it gone.
    pub deleting: bool,
    /// Nothing is left of it here, and the cloud has not heard so yet.
    pub gone: bool,
}

/// What pods want remembered with the next commit.
type Waiting = Arc<Mutex<BTreeMap<Uid, Vec<u8>>>>;

/// What a commit did, and the keys of the entries that it changed.
#[derive(Debug)]
pub struct Committed {
    pub outcome: Outcome,
    pub changed: Vec<Key>,
}

/// A store that cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("preparing the sealing key")]
    Key(#[source] KeyError),
    #[error("opening the node's store")]
    File(#[source] SqliteError),
    #[error("reading the node's store")]
    Read(#[source] rusqlite::Error),
    #[error("starting the store's thread")]
    Thread(#[source] std::io::Error),
}

#[derive(Debug)]
enum Job {
    Commit(Box<Batch>, oneshot::Sender<Result<Committed, CommitError>>),
    Entry(Key, oneshot::Sender<Result<Option<Arc<Desired>>, Unreadable>>),
    Entries(Kind, oneshot::Sender<Entries>),
    Reported(oneshot::Sender<Vec<PodReport>>),
    Memory(Uid, oneshot::Sender<Result<Option<Vec<u8>>, Unreadable>>),
    Remember(Uid, Option<Vec<u8>>, oneshot::Sender<()>),
    Answer(oneshot::Sender<()>),
    Close(oneshot::Sender<()>),
}

impl NodeStore {
    /// Opens the store in the data folder and recovers what was durable.
    pub fn open(folder: &Path) -> Result<(Self, Recovered), OpenError> {
        let (mut file, recovered) = match open_and_recover(folder) {
            Err(error) if error.is_damage() => {
                let aside = sqlite::set_aside(&folder.join(DATABASE)).map_err(OpenError::File)?;
                let error = anyhow::Error::new(error);
                tracing::error!(aside = %aside.display(), "the node's store is damaged and was set aside: {error:#}");
                open_and_recover(folder)?
            }
            other => other?,
        };
        let synced = Arc::new(AtomicBool::new(recovered.applied > Revision::default()));
        let floor_ms = Arc::clone(&file.floor_ms);
        let waiting = Arc::clone(&file.waiting);
        let (jobs, mut queue) = mpsc::channel::<Job>(JOBS_MAX);
        let work = move || {
            let mut closed = None;
            while let Some(job) = queue.blocking_recv() {
                match job {
                    Job::Close(reply) => {
                        closed = Some(reply);
                        break;
                    }
                    job => file.work(job),
                }
            }
            // Folds the log into the file: the mark of a clean stop.
            drop(file);
            // Nobody need wait for it.
            closed.map(|reply| reply.send(()));
        };
        thread::Builder::new()
            .name("store".to_owned())
            .spawn(work)
            .map_err(OpenError::Thread)?;
        Ok((Self { jobs, floor_ms, waiting, synced }, recovered))
    }

    /// The latest time that was ever sure, in milliseconds since 1970.
    pub fn floor_ms(&self) -> i64 {
        self.floor_ms.load(Ordering::Relaxed)
    }

    /// Moves it on; it is saved with the next commit that happens anyway.
    pub fn note_floor(&self, ms: i64) {
        self.floor_ms.fetch_max(ms, Ordering::Relaxed);
    }

    /// The view is held whole; says whether that was never so before.
    pub fn note_synced(&self) -> bool {
        !self.synced.swap(true, Ordering::Relaxed)
    }

    /// Makes a batch durable, all or nothing. Dropping the future does not take it back.
    pub async fn commit(&self, batch: Batch) -> Result<Committed, CommitError> {
        self.ask(|reply| Job::Commit(Box::new(batch), reply))
            .await
            .unwrap_or(Err(CommitError::Failed))
    }

    /// One entry.
    pub async fn entry(&self, key: Key) -> Result<Option<Arc<Desired>>, Unreadable> {
        self.ask(|reply| Job::Entry(key, reply))
            .await
            .unwrap_or(Err(Unreadable))
    }

    /// Every entry of a kind, in the order of namespace and name.
    pub async fn entries(&self, kind: Kind) -> Entries {
        let entries = self.ask(|reply| Job::Entries(kind, reply)).await.unwrap_or_default();
        Entries { synced: self.synced.load(Ordering::Relaxed), ..entries }
    }

    /// The pods and what was last reported of each, in the order of namespace and name: for people who ask.
    pub async fn reported(&self) -> Vec<PodReport> {
        self.ask(Job::Reported).await.unwrap_or_default()
    }

    /// What a pod remembers.
    pub async fn memory(&self, pod: Uid) -> Result<Option<Vec<u8>>, Unreadable> {
        self.ask(|reply| Job::Memory(pod, reply))
            .await
            .unwrap_or(Err(Unreadable))
    }

    /// Keeps what a pod remembers, or drops it.
    pub async fn remember(&self, pod: Uid, memory: Option<Vec<u8>>) {
        self.ask(|reply| Job::Remember(pod, memory, reply)).await;
    }

    /// Keeps what a pod remembers with the next commit, whoever makes it.
    pub fn remember_with_next(&self, pod: Uid, memory: Vec<u8>) {
        self.waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(pod, memory);
    }

    /// Keeps it now, if no commit has.
    pub async fn remember_waiting(&self, pod: Uid) {
        let memory = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&pod);
        if let Some(memory) = memory {
            self.remember(pod, Some(memory)).await;
        }
    }

    /// Comes true when the thread has done what it was asked before. It touches no disk.
    pub async fn answers(&self) {
        if self.ask(Job::Answer).await.is_none() {
            // A thread that is gone never answers.
            std::future::pending::<()>().await;
        }
    }

    /// Closes the file; whoever asks afterwards gets nothing.
    pub async fn close(&self) {
        self.ask(Job::Close).await;
    }

    /// `None` when the thread is gone, which ends the process by other ways.
    async fn ask<T>(&self, job: impl FnOnce(oneshot::Sender<T>) -> Job) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.jobs.send(job(reply)).await.ok()?;
        answer.await.ok()
    }
}

impl OpenError {
    /// The file itself is bad: it is set aside, and a new one begun.
    fn is_damage(&self) -> bool {
        match self {
            Self::File(error) => error.is_damage(),
            Self::Read(error) => {
                let damage = [ErrorCode::DatabaseCorrupt, ErrorCode::NotADatabase];
                error.sqlite_error_code().is_some_and(|code| damage.contains(&code))
            }
            Self::Key(_) | Self::Thread(_) => false,
        }
    }
}

fn open_and_recover(folder: &Path) -> Result<(File, Recovered), OpenError> {
    let mut file = open_file(folder)?;
    let recovered = file.recover().map_err(OpenError::Read)?;
    Ok((file, recovered))
}

fn open_file(folder: &Path) -> Result<File, OpenError> {
    let key: PathBuf = folder.join(SEALING_KEY);
    let seal = if key.exists() {
        SealingKey::load(&key)
    } else {
        SealingKey::create(&key)
    };
    let seal = seal.map_err(OpenError::Key)?;
    let connection = sqlite::open(&folder.join(DATABASE), &schema::MIGRATIONS, Mode::Alone);
    let connection = connection.map_err(OpenError::File)?;
    File::new(connection, seal).map_err(OpenError::Read)
}

/// [`NodeStore::reported`] of a store that no edge core has open; `None` when one has.
pub fn read_reported(folder: &Path) -> Result<Option<Vec<PodReport>>, OpenError> {
    let connection = sqlite::open(&folder.join(DATABASE), &schema::MIGRATIONS, Mode::Reader);
    let connection = connection.map_err(OpenError::File)?;
    connection.busy_timeout(Duration::ZERO).map_err(OpenError::Read)?;
    match file::reported(&connection) {
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => Ok(None),
        reported => reported.map(Some).map_err(OpenError::Read),
    }
}

/// An entry as an object: a projection with the names that stand beside it.
pub fn restore(key: &Key, uid: Uid, mut projection: Value) -> Value {
    projection.set(&["kind"], key.kind.kind());
    projection.set(&["metadata", "name"], key.name.as_str());
    if !key.namespace.is_empty() {
        projection.set(&["metadata", "namespace"], key.namespace.as_str());
    }
    projection.set(&["metadata", "uid"], uid.to_string());
    projection
}

#[cfg(test)]
mod tests;
