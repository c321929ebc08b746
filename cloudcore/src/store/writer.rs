//! The one thread that writes. It takes the waiting requests in groups, one transaction and one fsync for each group,
//! publishes what was committed, and answers.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};

use daemon::seal::SealingKey;
use daemon::{clock, random, sqlite};
use proto::object::{Epoch, Revision};
use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior, params};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio_util::sync::CancellationToken;

use super::commit::{CommitError, Prepared};
use super::compact::{Compaction, Past, compact};
use super::draft::{Draft, Outcome, RecordKey};
use super::lanes::{Lane, Lanes};
use super::retain::{Bases, History, HistoryLimits};
use super::schema::{cost, number, set_state, write, write_record};
use super::stored::Change;
use super::{Shared, locked, read, written};

/// How far a new epoch is ahead of the last revision that is known of the old one: more than any store can have served
/// since the copy was made (5,000 writes a second for seven years), and little enough for 8,000 restores before a
/// revision no longer fits the numbers of JavaScript.
pub const EPOCH_GAP: u64 = 1 << 40;

/// What waits for the writer.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) job: Job,
    /// The room that it takes up in its lane.
    pub(super) _permit: OwnedSemaphorePermit,
}

#[derive(Debug)]
pub(super) enum Job {
    Commit {
        ops: Vec<Prepared>,
        reply: oneshot::Sender<Outcome>,
    },
    Renew {
        above: Revision,
        reply: oneshot::Sender<Result<(), CommitError>>,
    },
}

/// Where requests wait.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    state: Mutex<InboxState>,
    wake: Condvar,
    /// Cancelled when the writer has ended.
    pub(super) ended: CancellationToken,
}

#[derive(Debug, Default)]
struct InboxState {
    lanes: Lanes<Request>,
    closed: bool,
}

impl Inbox {
    pub(super) fn push(&self, lane: Lane, cost: u32, request: Request) -> Result<(), CommitError> {
        let mut state = locked(&self.state);
        if state.closed {
            return Err(CommitError::Closed);
        }
        state.lanes.push(lane, cost, request);
        drop(state);
        self.wake.notify_one();
        Ok(())
    }

    /// No new requests; those that wait are still done.
    pub(super) fn close(&self) {
        locked(&self.state).closed = true;
        self.wake.notify_one();
    }

    /// The next group; waits for one. None when there will be none.
    fn next(&self) -> Option<Vec<Request>> {
        let mut state = locked(&self.state);
        loop {
            if !state.lanes.is_empty() {
                return Some(state.lanes.take());
            }
            if state.closed {
                return None;
            }
            state = self.wake.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}

/// The writer's own.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) connection: Connection,
    pub(super) shared: Arc<Shared>,
    pub(super) seal: Arc<SealingKey>,
    pub(super) history: History,
    pub(super) bases: Bases,
    pub(super) history_limits: HistoryLimits,
    pub(super) objects_bytes_max: usize,
}

/// What one transaction writes.
#[derive(Debug)]
struct Group {
    changes: Vec<Change>,
    records: BTreeMap<RecordKey, Option<Arc<[u8]>>>,
    revision: Revision,
}

/// Tells everybody that the writer is gone, however it went.
struct End(Arc<Shared>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.inbox.close();
        // What still waits is dropped, which its callers notice.
        locked(&self.0.inbox.state).lanes = Lanes::default();
        self.0.lines.close();
        self.0.inbox.ended.cancel();
    }
}

impl Writer {
    /// Works until the inbox is closed and empty.
    pub(super) fn run(mut self) {
        let _end = End(Arc::clone(&self.shared));
        while let Some(group) = self.shared.inbox.next() {
            let mut commits = Vec::new();
            let mut renewals = Vec::new();
            let mut permits = Vec::new();
            for request in group {
                permits.push(request._permit);
                match request.job {
                    Job::Commit { ops, reply } => commits.push((ops, reply)),
                    Job::Renew { above, reply } => renewals.push((above, reply)),
                }
            }
            self.commit(commits);
            for (above, reply) in renewals {
                // Nobody may wait for the answer any more; the work is done all the same.
                let _ = reply.send(self.renew(above).map_err(refusal));
            }
        }
        if let Err(error) = self.save_marks() {
            tracing::warn!(%error, "saving what nodes have acknowledged");
        }
        self.shared.readers.close();
        if let Err(error) = sqlite::close(self.connection) {
            tracing::warn!(error = %format_args!("{:#}", anyhow::Error::new(error)), "closing the store");
        }
    }

    fn commit(&mut self, requests: Vec<(Vec<Prepared>, oneshot::Sender<Outcome>)>) {
        let (group, outcomes) = {
            let current = read(&self.shared.current);
            let mut draft = Draft::new(&current, self.objects_bytes_max);
            let outcomes: Vec<Outcome> = requests.iter().map(|(ops, _)| draft.request(ops)).collect();
            let revision = draft.revision();
            let Draft { changes, records, .. } = draft;
            (Group { changes, records, revision }, outcomes)
        };
        let saved = if group.changes.is_empty() && group.records.is_empty() {
            Ok(())
        } else {
            self.save(group)
        };
        let failed = match saved {
            Ok(()) => None,
            Err(error) => Some(refusal(error)),
        };
        match failed {
            // Where there is no room for all there may be for some, and the outcomes of the others hung on those.
            Some(CommitError::Full) if requests.len() > 1 => {
                for request in requests {
                    self.commit(vec![request]);
                }
            }
            failed => {
                for ((_, reply), outcome) in requests.into_iter().zip(outcomes) {
                    let outcome = match &failed {
                        Some(error) => outcome.and(Err(error.clone())),
                        None => outcome,
                    };
                    // Nobody may wait for the answer any more; the work is done all the same.
                    let _ = reply.send(outcome);
                }
            }
        }
    }

    /// One transaction, and its publication.
    fn save(&mut self, group: Group) -> Result<(), rusqlite::Error> {
        let now = clock::mono();
        let floor = read(&self.shared.current).floor;
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        for change in &group.changes {
            write(&transaction, &self.seal, change)?;
        }
        for ((space, id), bytes) in &group.records {
            write_record(&transaction, &self.seal, (space, id), bytes.as_deref())?;
        }
        set_state(&transaction, "revision", number(group.revision))?;
        let past = Past {
            history: &self.history,
            bases: &mut self.bases,
            marks: &self.shared.marks,
            limits: &self.history_limits,
            floor,
        };
        let compaction = compact(&transaction, past, now, group.changes.len())?;
        if let Some(dropped) = compaction.floor {
            set_state(&transaction, "dropped", number(dropped))?;
            set_state(&transaction, "floor", number(dropped.max(floor)))?;
        }
        for base in &compaction.broken {
            locked(&self.shared.marks).broken(&base.holder, base.from, base.until);
        }
        let marks = locked(&self.shared.marks).unsaved();
        write_marks(&transaction, &marks)?;
        transaction.commit()?;
        self.shared.transactions.fetch_add(1, Ordering::Relaxed);
        locked(&self.shared.marks).saved(&marks);
        self.take_over(&group, compaction, now);
        self.publish(group);
        Ok(())
    }

    fn take_over(&mut self, group: &Group, compaction: Compaction, now: proto::time::Mono) {
        self.history.dropped(compaction.dropped);
        for change in &group.changes {
            self.history.push(change.revision, now, cost(change));
        }
        for at in compaction.released {
            self.bases.remove(at);
        }
        for (at, base) in compaction.kept {
            self.bases.insert(at, base);
        }
        if let Some(dropped) = compaction.floor {
            let mut current = written(&self.shared.current);
            current.floor = current.floor.max(dropped);
        }
    }

    fn publish(&self, group: Group) {
        let mut current = written(&self.shared.current);
        for change in &group.changes {
            current.publish(change);
            self.shared.lines.publish(change);
        }
        for (key, bytes) in group.records {
            current.publish_record(key, bytes);
        }
    }

    /// A new epoch, ahead of everything that may have been served and of `above`.
    fn renew(&mut self, above: Revision) -> Result<(), rusqlite::Error> {
        let last = read(&self.shared.current).revision;
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        let (epoch, revision) = begin_epoch(&transaction, last.max(above))?;
        transaction.commit()?;
        let mut marks = locked(&self.shared.marks);
        marks.cut(revision);
        marks.clear();
        drop(marks);
        written(&self.shared.current).renew(epoch, revision);
        Ok(())
    }

    fn save_marks(&mut self) -> Result<(), rusqlite::Error> {
        let marks = locked(&self.shared.marks).unsaved();
        if marks.is_empty() {
            return Ok(());
        }
        let transaction = self.connection.transaction()?;
        write_marks(&transaction, &marks)?;
        transaction.commit()
    }
}

fn write_marks(
    transaction: &Transaction<'_>,
    marks: &[(Arc<str>, Option<super::retain::Mark>)],
) -> Result<(), rusqlite::Error> {
    for (node, mark) in marks {
        match mark {
            Some(mark) => transaction
                .prepare_cached(
                    "INSERT INTO marks VALUES (?1, ?2, ?3)
                     ON CONFLICT DO UPDATE SET revision = excluded.revision, whole = excluded.whole",
                )?
                .execute(params![&**node, number(mark.revision), mark.whole])?,
            None => transaction
                .prepare_cached("DELETE FROM marks WHERE node = ?1")?
                .execute([&**node])?,
        };
    }
    Ok(())
}

/// Writes the start of a new epoch behind `last`. Nothing older than it can be watched from, and what nodes had
/// acknowledged before means nothing in it.
pub(super) fn begin_epoch(transaction: &Transaction<'_>, last: Revision) -> Result<(Epoch, Revision), rusqlite::Error> {
    let epoch = Epoch(u64::from_le_bytes(random::bytes()));
    let revision = Revision(last.0.saturating_add(EPOCH_GAP));
    set_state(transaction, "epoch", epoch.0.cast_signed())?;
    set_state(transaction, "revision", number(revision))?;
    set_state(transaction, "floor", number(revision))?;
    transaction.execute("DELETE FROM marks", [])?;
    Ok((epoch, revision))
}

/// Why the file did not take what was to be written.
fn refusal(error: rusqlite::Error) -> CommitError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => CommitError::Full,
        _ => {
            tracing::error!(%error, "writing to the store");
            CommitError::Failed(Arc::new(error))
        }
    }
}
