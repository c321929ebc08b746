//! The store: every object, every write in one order, and what was a little while ago.
//!
//! # How it works
//! **One order.** Every write of an object takes the next [`Revision`], over all kinds. The operations of a commit take
//! consecutive ones; all of them happen or none. A [`Epoch`] is one life of that order: it is new when the store is
//! made, when a back-up is opened, and on [`Store::renew`]; the revision then jumps ahead by [`EPOCH_GAP`], so that no
//! revision is ever served twice.
//!
//! **One writer.** [`Store::commit`] encodes and measures in the caller's task and queues the request in its [`Lane`].
//! One thread takes what waits as a group (`lanes`: urgent first, with a share for each lane), works out what every
//! request comes to (`draft`: pure, from what is current), writes one transaction, and pays one fsync for all. Each
//! request has its own outcome. A request that was queued is done, also when nobody waits for its outcome any more.
//!
//! **One copy.** What is current is in memory (`current`), as the canonical form of each object in shared bytes, indexed
//! by kind and place, by uid, and for pods by node. The writer publishes a group there after its commit and before it
//! answers, so a caller sees its own write and nobody sees what could still be lost.
//!
//! **History.** In the file every write is a row of `versions`, deletions too; bodies stand apart, because a report
//! makes a new version of an object and leaves its body alone. Lists and objects at older revisions and slow watchers
//! read from there, on connections of their own, each from one snapshot. What history keeps, and what it keeps beyond
//! that for nodes that have been away, is in `retain`; letting go rides on transactions that are written anyway.
//!
//! **Watching** (`watch`) starts behind any revision that history knows, and delivers every later change once and in
//! order, or says [`Expired`].
//!
//! **Sealing.** Bodies of Secrets and all records are sealed with the key file, bound to their place; the file, its log
//! and every back-up hold no secret text. In memory they are plain.
//!
//! # Invariants
//! - `floor <= revision`; what was at `floor` or later can be told exactly, unless the bytes of history say otherwise,
//!   in which case the floor has moved.
//! - What is current, as readers see it, is what a reopened store would have, or a moment behind it.
//! - Locks are taken in the order: current, lines, one line; marks alone. None is held across an await or an fsync.
//! - An idle store writes nothing.

mod backup;
mod commit;
mod compact;
mod current;
mod draft;
mod held;
mod history;
mod lanes;
mod open;
pub mod overlay;
pub mod projection;
mod reader;
mod retain;
mod schema;
mod stored;
mod watch;
mod writer;

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;

use daemon::sqlite::{self, SqliteError};
use proto::object::{Epoch, Key, Revision, Uid};
use tokio::sync::{Semaphore, oneshot};

pub use self::backup::{BackupError, backup_folder};
pub use self::commit::{CommitError, OBJECT_BYTES_MAX, OPS_MAX, Op, When};
pub use self::lanes::Lane;
pub use self::open::{Config, OpenError};
pub use self::reader::ReadError;
pub use self::retain::{HistoryLimits, MARKS_MAX};
pub use self::schema::RowError;
pub use self::stored::{Change, Scope, Stored};
pub use self::watch::{Expired, LineLimits, Watch};
pub use self::writer::EPOCH_GAP;

use self::commit::Prepared;
use self::current::Current;
use self::reader::Readers;
use self::retain::Marks;
use self::watch::Lines;
use self::writer::{Inbox, Job, Request};

/// What may wait in one lane, in the unit of a group's cost: about as many requests, or as many KiB. Callers wait
/// beyond that.
const LANE_COST_MAX: u32 = 16 * 1024;

/// What a list is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// As it is now.
    Latest,
    /// As it was then.
    Exact(Revision),
}

/// One page of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The revision that the whole list is of.
    pub revision: Revision,
    /// In the order of namespace and name.
    pub items: Vec<Arc<Stored>>,
    /// There are more behind the last one.
    pub more: bool,
    /// How many.
    pub remaining: usize,
}

impl Page {
    /// Where the next page goes on: what to pass as `after`.
    pub fn last(&self) -> Option<(String, String)> {
        let key = &self.items.last()?.key;
        Some((key.namespace.clone(), key.name.clone()))
    }
}

/// A list that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    #[error(transparent)]
    Expired(#[from] Expired),
    #[error("revision {asked} is in the future: the last one is {latest}")]
    Future { asked: Revision, latest: Revision },
    #[error("reading an older revision")]
    Failed(#[source] ReadError),
}

/// The store. Cloning it makes another handle; the last one to go ends the writer and closes the file.
#[derive(Debug, Clone)]
pub struct Store {
    shared: Arc<Shared>,
    /// Goes last and with the last handle only.
    _owner: Arc<Owner>,
}

/// What handles and the writer share.
#[derive(Debug)]
struct Shared {
    current: Arc<RwLock<Current>>,
    lines: Arc<Lines>,
    readers: Arc<Readers>,
    marks: Mutex<Marks>,
    inbox: Inbox,
    /// One for each lane.
    room: [Arc<Semaphore>; 3],
    line: LineLimits,
    transactions: AtomicU64,
}

/// Ends the writer.
#[derive(Debug)]
struct Owner {
    shared: Arc<Shared>,
    writer: Mutex<Option<JoinHandle<()>>>,
    /// Given back when the file is closed.
    _lock: File,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.inbox.close();
        // Short: the groups that wait already, and the last write of the file.
        if let Some(writer) = locked(&self.writer).take()
            && writer.join().is_err()
        {
            tracing::error!("the store's writer died");
        }
    }
}

impl Store {
    /// Does all of `ops` or nothing, and returns what each object is now; of a deleted one what it was last; of a
    /// record, and of a report that came too late, nothing. On return the commit is on the disk and everybody sees it.
    ///
    /// Dropping the future does not take back what was handed over.
    pub async fn commit(&self, lane: Lane, ops: Vec<Op>) -> Result<Vec<Option<Arc<Stored>>>, CommitError> {
        if ops.len() > OPS_MAX {
            return Err(CommitError::TooMany(ops.len()));
        }
        let ops = ops.into_iter().map(Prepared::new).collect::<Result<Vec<_>, _>>()?;
        let cost = ops.iter().fold(0u32, |sum, op| sum.saturating_add(op.cost())).max(1);
        let (reply, outcome) = oneshot::channel();
        self.hand_over(lane, cost, Job::Commit { ops, reply }).await?;
        outcome.await.map_err(|_| CommitError::Closed)?
    }

    /// Begins a new epoch, ahead of everything that this store has served and of `above`: what a node has shown to be
    /// known of a life of this store that the store itself has lost. All marks are forgotten.
    pub async fn renew(&self, above: Revision) -> Result<(), CommitError> {
        let (reply, outcome) = oneshot::channel();
        self.hand_over(Lane::Control, 1, Job::Renew { above, reply }).await?;
        outcome.await.map_err(|_| CommitError::Closed)?
    }

    async fn hand_over(&self, lane: Lane, cost: u32, job: Job) -> Result<(), CommitError> {
        let room = Arc::clone(&self.shared.room[lane as usize]);
        let permit = room
            .acquire_many_owned(cost.min(LANE_COST_MAX))
            .await
            .map_err(|_| CommitError::Closed)?;
        self.shared.inbox.push(lane, cost, Request { job, _permit: permit })
    }

    /// The object at a key.
    pub fn get(&self, key: &Key) -> Option<Arc<Stored>> {
        read(&self.shared.current).get(key).cloned()
    }

    pub fn by_uid(&self, uid: Uid) -> Option<Arc<Stored>> {
        read(&self.shared.current).by_uid(uid).cloned()
    }

    /// The object that stood at a key at a revision.
    ///
    /// Where history does not go back that far, this is what a node that has acknowledged that revision holds: a version
    /// with the same projection, if a mark ([`Self::set_low_water`]) has kept it. Its report may be a later one.
    pub async fn get_at(&self, key: &Key, at: Revision) -> Result<Option<Arc<Stored>>, Expired> {
        {
            let current = read(&self.shared.current);
            if at == current.revision {
                return Ok(current.get(key).cloned());
            }
            if at > current.revision {
                return Err(Expired { asked: at, oldest: current.floor });
            }
        }
        let wanted = key.clone();
        let found = self
            .shared
            .readers
            .run(move |snapshot, seal| {
                let floor = history::floor(snapshot)?;
                if at >= floor {
                    return history::object(snapshot, seal, &wanted, at).map(Ok);
                }
                let base = history::base(snapshot, seal, &wanted, at)?;
                Ok(base.map(Some).ok_or(Expired { asked: at, oldest: floor }))
            })
            .await;
        found.unwrap_or_else(|error| {
            tracing::error!(error = %format_args!("{:#}", anyhow::Error::new(error)), %key, "reading an older revision");
            Err(Expired { asked: at, oldest: self.revision() })
        })
    }

    /// Objects of a scope in the order of namespace and name: those behind `after`, at most `limit`.
    ///
    /// The pods of a node can also be had at the revision of that node's mark, however old, while nothing of it was let
    /// go of; they are then what the node holds, as [`Self::get_at`] has it.
    pub async fn list(
        &self,
        scope: &Scope,
        at: At,
        after: Option<(String, String)>,
        limit: Option<usize>,
    ) -> Result<Page, ListError> {
        let limit = limit.unwrap_or(usize::MAX);
        let at = {
            let current = read(&self.shared.current);
            let latest = current.revision;
            match at {
                At::Exact(asked) if asked > latest => return Err(ListError::Future { asked, latest }),
                At::Exact(asked) if asked < latest => asked,
                At::Exact(_) | At::Latest => {
                    let (items, remaining) = current.page(scope, after.as_ref(), limit);
                    return Ok(Page { revision: latest, items, more: remaining > 0, remaining });
                }
            }
        };
        let scope = scope.clone();
        let found = self
            .shared
            .readers
            .run(move |snapshot, seal| {
                let floor = history::floor(snapshot)?;
                if at >= floor {
                    return history::page(snapshot, seal, &scope, at, after.as_ref(), limit).map(Ok);
                }
                match &scope.node {
                    Some(node) if history::is_whole(snapshot, node, at)? => {}
                    _ => return Ok(Err(Expired { asked: at, oldest: floor })),
                }
                let mut items = history::bases_of(snapshot, seal, &scope, at)?;
                if let Some(after) = &after {
                    items.retain(|object| (&object.key.namespace, &object.key.name) > (&after.0, &after.1));
                }
                let remaining = items.len().saturating_sub(limit);
                items.truncate(limit);
                Ok(Ok((items, remaining)))
            })
            .await
            .map_err(ListError::Failed)?;
        let (items, remaining) = found?;
        Ok(Page { revision: at, items, more: remaining > 0, remaining })
    }

    /// Everything that changes in a scope after a revision. One in the future is waited for.
    pub fn watch(&self, scope: Scope, after: Revision) -> Result<Watch, Expired> {
        self.watch_many(vec![scope], after)
    }

    /// Everything that changes in any of some scopes after a revision, in one order.
    pub fn watch_many(&self, scopes: Vec<Scope>, after: Revision) -> Result<Watch, Expired> {
        let shared = &self.shared;
        let current = read(&shared.current);
        Watch::start(
            (&shared.current, &current),
            &shared.lines,
            &shared.readers,
            scopes,
            after,
            shared.line,
        )
    }

    /// The last write.
    pub fn revision(&self) -> Revision {
        read(&self.shared.current).revision
    }

    /// The oldest revision that can be listed at and watched from.
    pub fn oldest(&self) -> Revision {
        read(&self.shared.current).floor
    }

    pub fn epoch(&self) -> Epoch {
        read(&self.shared.current).epoch
    }

    /// A small sealed thing that is no object.
    pub fn record(&self, space: &'static str, id: &str) -> Option<Arc<[u8]>> {
        read(&self.shared.current).record(space, id)
    }

    /// All records of a space, in the order of their ids.
    pub fn records(&self, space: &'static str) -> Vec<(String, Arc<[u8]>)> {
        read(&self.shared.current).records(space)
    }

    /// Says which revision a node has acknowledged, so that what it holds is kept; `None` when it holds nothing. Saved
    /// with the next transaction: losing it costs a full object instead of a patch.
    pub fn set_low_water(&self, node: &str, revision: Option<Revision>) {
        if !locked(&self.shared.marks).set(node, revision) {
            tracing::warn!(
                node,
                "more than {MARKS_MAX} nodes: this one gets full objects instead of patches"
            );
        }
    }

    /// The revision that a node has acknowledged, as far as it is known.
    pub fn low_water(&self, node: &str) -> Option<Revision> {
        locked(&self.shared.marks).get(node)
    }

    /// Copies the store to a file while it runs, and says at which revision. The sealing key is not in it.
    pub async fn backup(&self, path: &Path) -> Result<Revision, BackupError> {
        let path = path.to_owned();
        self.shared
            .readers
            .run(move |snapshot, _| Ok(backup::copy(snapshot, &path)))
            .await
            .map_err(BackupError::Read)?
    }

    /// Looks through the whole file for damage, beside the running store.
    pub async fn check(&self) -> Result<(), CheckError> {
        let path = self.shared.readers.path().to_owned();
        self.shared
            .readers
            .run(move |snapshot, _| Ok(sqlite::check(snapshot, &path, sqlite::Check::Full)))
            .await
            .map_err(CheckError::Read)?
            .map_err(CheckError::Damaged)
    }

    /// How many transactions were written since the store was opened: each is one fsync.
    pub fn transactions(&self) -> u64 {
        self.shared.transactions.load(Ordering::Relaxed)
    }

    /// Waits until the writer has ended, which it does not do by itself: the process should end as well.
    pub async fn ended(&self) {
        self.shared.inbox.ended.cancelled().await;
    }
}

/// A check that found something, or could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    #[error("checking the database")]
    Read(#[source] ReadError),
    #[error("the database is not sound")]
    Damaged(#[source] SqliteError),
}

#[cfg(test)]
mod tests;

// A panic in one reader says nothing about what the lock guards: nothing here is left half done.

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn written<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
