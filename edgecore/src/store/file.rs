//! What the store's thread does with its connection.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, PoisonError};

use daemon::seal::SealingKey;
use proto::delta::DeltaError;
use proto::digest::EntryHash;
use proto::object::{Epoch, Key, Revision, Uid};
use proto::session::CommitError;
use proto::session::edge::{Batch, Desired as Op, Recovered, Report, Reported};
use proto::value::{Value, canonical};
use rusqlite::{Connection, ErrorCode, OptionalExtension as _, Row, Transaction, params};

use super::{Committed, Job, PodReport, Waiting, restore};
use crate::pods::{Desired, Entries, Unreadable};

/// The database and the key to what is sealed in it.
pub(super) struct File {
    connection: Connection,
    seal: SealingKey,
    pub(super) floor_ms: Arc<AtomicI64>,
    pub(super) waiting: Waiting,
}

impl File {
    pub(super) fn new(connection: Connection, seal: SealingKey) -> rusqlite::Result<Self> {
        let floor_ms = number(&connection, "floor")?.cast_signed();
        Ok(Self {
            connection,
            seal,
            floor_ms: Arc::new(AtomicI64::new(floor_ms)),
            waiting: Waiting::default(),
        })
    }

    pub(super) fn work(&mut self, job: Job) {
        // Who no longer waits gets no answer; what was asked for is done all the same.
        match job {
            Job::Commit(batch, reply) => drop(reply.send(self.commit(*batch))),
            Job::Entry(key, reply) => drop(reply.send(logged(self.entry(&key)).unwrap_or(Err(Unreadable)))),
            Job::Entries(kind, reply) => {
                drop(reply.send(logged(self.entries(kind.as_str())).unwrap_or_default()));
            }
            Job::Reported(reply) => {
                drop(reply.send(logged(reported(&self.connection)).unwrap_or_default()));
            }
            Job::Memory(uid, reply) => drop(reply.send(logged(self.memory(uid)).ok_or(Unreadable))),
            Job::Remember(uid, memory, reply) => {
                self.remember(uid, memory);
                let _ = reply.send(());
            }
            Job::Answer(reply) | Job::Close(reply) => {
                let _ = reply.send(());
            }
        }
    }

    fn commit(&mut self, batch: Batch) -> Result<Committed, CommitError> {
        let Self { connection, seal, floor_ms, waiting } = self;
        let floor_ms = floor_ms.load(Ordering::Relaxed);
        // Nobody waits for the lock while the disk is at work.
        let memories = std::mem::take(&mut *waiting.lock().unwrap_or_else(PoisonError::into_inner));
        let commit = |connection: &mut Connection| {
            let transaction = connection.transaction()?;
            for (pod, memory) in &memories {
                remember(&transaction, *pod, memory)?;
            }
            // Later, so that a deletion takes what was remembered along.
            let committed = write(&transaction, seal, batch)?;
            set(&transaction, "floor", &floor_ms.to_le_bytes())?;
            transaction.commit()?;
            Ok(committed)
        };
        let committed = commit(connection);
        if committed.is_err() {
            let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
            for (pod, memory) in memories {
                waiting.entry(pod).or_insert(memory);
            }
        }
        committed.map_err(|error: rusqlite::Error| {
            let full = error.sqlite_error_code() == Some(ErrorCode::DiskFull);
            tracing::error!("writing the node's store: {error}");
            if full { CommitError::Full } else { CommitError::Failed }
        })
    }

    fn entry(&self, key: &Key) -> rusqlite::Result<Result<Option<Arc<Desired>>, Unreadable>> {
        let mut statement = self.connection.prepare_cached(
            "SELECT uid, kind, namespace, name, revision, body FROM desired WHERE kind = ? AND namespace = ? AND name = ?",
        )?;
        let read = |row: &Row<'_>| desired(row, &self.seal);
        let found = statement.query_row(params![key.kind.as_str(), key.namespace, key.name], read);
        Ok(found.optional()?.transpose())
    }

    fn entries(&self, kind: &str) -> rusqlite::Result<Entries> {
        let mut statement = self.connection.prepare_cached(
            "SELECT uid, kind, namespace, name, revision, body FROM desired WHERE kind = ? ORDER BY namespace, name",
        )?;
        let rows = statement.query_map([kind], |row| desired(row, &self.seal))?;
        let mut entries = Entries { read_whole: true, ..Entries::default() };
        for row in rows {
            match row? {
                Ok(entry) => entries.list.push(entry),
                Err(Unreadable) => entries.read_whole = false,
            }
        }
        Ok(entries)
    }

    fn memory(&self, uid: Uid) -> rusqlite::Result<Option<Vec<u8>>> {
        let mut statement = self
            .connection
            .prepare_cached("SELECT body FROM memory WHERE uid = ?")?;
        statement.query_row([uid.0], |row| row.get(0)).optional()
    }

    /// What finds no room now is kept with the next commit that does.
    fn remember(&self, uid: Uid, memory: Option<Vec<u8>>) {
        let waiting = || self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting().remove(&uid);
        let kept = match &memory {
            Some(body) => remember(&self.connection, uid, body),
            None => forget(&self.connection, uid),
        };
        if logged(kept).is_none()
            && let Some(body) = memory
        {
            // What was said meanwhile is newer.
            waiting().entry(uid).or_insert(body);
        }
    }

    /// Everything that was durable when the process last ended.
    pub(super) fn recover(&mut self) -> rusqlite::Result<Recovered> {
        let connection = &self.connection;
        let mut recovered = Recovered {
            epoch: Epoch(number(connection, "epoch")?),
            applied: Revision(number(connection, "applied")?),
            incarnation: state(connection, "incarnation")?.unwrap_or_default(),
            number: number(connection, "number")?,
            ..Recovered::default()
        };
        let mut statement = connection.prepare("SELECT uid FROM desired")?;
        let uids = statement
            .query_map([], |row| row.get(0).map(Uid))?
            .collect::<rusqlite::Result<Vec<_>>>()?;
        for uid in uids {
            // An entry that cannot be read is not held: the cloud sends it again.
            if let Some((key, projection)) = stored(connection, &self.seal, uid)? {
                recovered.held.insert(uid, EntryHash::of(&key, uid, &projection));
            }
        }
        let mut statement = connection.prepare("SELECT uid, latest, acked, settled FROM reports")?;
        let rows = statement.query_map([], |row| {
            let latest: Vec<u8> = row.get(1)?;
            Ok((
                Uid(row.get(0)?),
                latest,
                row.get::<_, Option<Vec<u8>>>(2)?,
                row.get::<_, bool>(3)?,
            ))
        })?;
        for row in rows {
            let (uid, latest, acked, settled) = row?;
            // A row that cannot be read is reported anew.
            let Some(latest) = report(uid, latest) else { continue };
            let acked = if settled {
                Some(Arc::clone(&latest))
            } else {
                acked.and_then(|acked| report(uid, acked))
            };
            recovered.reports.insert(uid, Reported { latest, acked });
        }
        let mut statement = connection.prepare("SELECT uid FROM gone")?;
        recovered.gone = statement
            .query_map([], |row| row.get(0).map(Uid))?
            .collect::<rusqlite::Result<BTreeSet<_>>>()?;
        let mut statement = connection.prepare("SELECT number, body FROM events ORDER BY number")?;
        let rows = statement.query_map([], |row| Ok((unsigned(row.get(0)?), row.get(1)?)))?;
        recovered.events = rows.collect::<rusqlite::Result<VecDeque<_>>>()?;
        Ok(recovered)
    }
}

fn remember(connection: &Connection, uid: Uid, memory: &[u8]) -> rusqlite::Result<()> {
    let sql = "INSERT INTO memory (uid, body) VALUES (?1, ?2)
        ON CONFLICT (uid) DO UPDATE SET body = ?2 WHERE body <> ?2";
    connection
        .prepare_cached(sql)?
        .execute(params![uid.0, memory])
        .map(drop)
}

fn forget(connection: &Connection, uid: Uid) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached("DELETE FROM memory WHERE uid = ?")?;
    statement.execute([uid.0]).map(drop)
}

fn write(transaction: &Transaction<'_>, seal: &SealingKey, batch: Batch) -> rusqlite::Result<Committed> {
    let mut committed = Committed { outcome: Vec::new(), changed: Vec::new() };
    for op in batch.desired {
        match op {
            Op::Upsert { uid, key, revision, change } => {
                let held = |of: Uid| stored(transaction, seal, of);
                let own = held(uid)?;
                let key = key.or_else(|| own.as_ref().map(|(key, _)| key.clone()));
                let base = match &change {
                    proto::session::edge::Change::Patch { base, .. } if *base != uid => held(*base)?,
                    _ => own,
                };
                let value = change.apply(|_| base.map(|(_, projection)| projection));
                committed.outcome.push(match (value, key) {
                    (Ok(value), Some(key)) => {
                        put(transaction, seal, uid, &key, revision, &value)?;
                        let hash = EntryHash::of(&key, uid, &value);
                        committed.changed.push(key);
                        Ok(hash)
                    }
                    (Ok(_), None) => Err(DeltaError::NoField),
                    (Err(error), _) => Err(error),
                });
            }
            Op::Delete { uid } => {
                committed
                    .changed
                    .extend(stored(transaction, seal, uid)?.map(|(key, _)| key));
                transaction
                    .prepare_cached("DELETE FROM desired WHERE uid = ?")?
                    .execute([uid.0])?;
                forget(transaction, uid)?;
            }
        }
    }
    if batch.whole {
        for table in ["reports", "gone", "events"] {
            transaction.execute(&format!("DELETE FROM {table}"), [])?;
        }
    }
    write_reports(transaction, batch.reports)?;
    for (uid, gone) in batch.gone {
        let sql = if gone {
            "INSERT OR IGNORE INTO gone (uid) VALUES (?)"
        } else {
            "DELETE FROM gone WHERE uid = ?"
        };
        transaction.prepare_cached(sql)?.execute([uid.0])?;
    }
    for (number, body) in batch.events {
        let sql = "INSERT OR REPLACE INTO events (number, body) VALUES (?, ?)";
        transaction
            .prepare_cached(sql)?
            .execute(params![signed(number), body])?;
        set(transaction, "number", &number.to_le_bytes())?;
    }
    if let Some(done) = batch.events_done {
        transaction
            .prepare_cached("DELETE FROM events WHERE number <= ?")?
            .execute([signed(done)])?;
    }
    if let Some((epoch, revision)) = batch.mark {
        set(transaction, "epoch", &epoch.0.to_le_bytes())?;
        set(transaction, "applied", &revision.0.to_le_bytes())?;
    }
    if let Some(incarnation) = batch.incarnation {
        set(transaction, "incarnation", &incarnation)?;
    }
    Ok(committed)
}

fn write_reports(transaction: &Transaction<'_>, rows: BTreeMap<Uid, Option<Reported>>) -> rusqlite::Result<()> {
    for (uid, row) in rows {
        match row {
            Some(Reported { latest, acked }) => {
                let settled = acked.as_ref().is_some_and(|acked| acked.hash == latest.hash);
                let acked = acked.filter(|_| !settled).map(|acked| acked.form.clone());
                let sql = "INSERT OR REPLACE INTO reports (uid, latest, acked, settled) VALUES (?, ?, ?, ?)";
                transaction
                    .prepare_cached(sql)?
                    .execute(params![uid.0, latest.form, acked, settled])?;
            }
            None => {
                transaction
                    .prepare_cached("DELETE FROM reports WHERE uid = ?")?
                    .execute([uid.0])?;
            }
        }
    }
    Ok(())
}

fn put(
    transaction: &Transaction<'_>,
    seal: &SealingKey,
    uid: Uid,
    key: &Key,
    revision: Revision,
    value: &Value,
) -> rusqlite::Result<()> {
    let form = canonical::encode(value);
    let body = if is_sealed(key) { seal.seal(&uid.0, &form) } else { form };
    let sql = "INSERT OR REPLACE INTO desired (uid, kind, namespace, name, revision, body) VALUES (?, ?, ?, ?, ?, ?)";
    let row = params![
        uid.0,
        key.kind.as_str(),
        key.namespace,
        key.name,
        signed(revision.0),
        body
    ];
    transaction.prepare_cached(sql)?.execute(row).map(drop)
}

/// The key and the projection of an entry; `None` also for one that cannot be read, which the cloud sends again.
fn stored(connection: &Connection, seal: &SealingKey, uid: Uid) -> rusqlite::Result<Option<(Key, Value)>> {
    let mut statement = connection.prepare_cached("SELECT kind, namespace, name, body FROM desired WHERE uid = ?")?;
    let read = |row: &Row<'_>| {
        let key = Key::new(
            row.get::<_, String>(0)?.as_str(),
            row.get::<_, String>(1)?,
            row.get::<_, String>(2)?,
        );
        let body: Vec<u8> = row.get(3)?;
        Ok(open(&key, uid, &body, seal).map(|value| (key, value)))
    };
    statement.query_row([uid.0], read).optional().map(Option::flatten)
}

fn desired(row: &Row<'_>, seal: &SealingKey) -> rusqlite::Result<Result<Arc<Desired>, Unreadable>> {
    let uid = Uid(row.get(0)?);
    let key = Key::new(
        row.get::<_, String>(1)?.as_str(),
        row.get::<_, String>(2)?,
        row.get::<_, String>(3)?,
    );
    let revision = Revision(unsigned(row.get(4)?));
    let body: Vec<u8> = row.get(5)?;
    let projection = open(&key, uid, &body, seal).ok_or(Unreadable);
    Ok(projection.map(|projection| {
        let value = restore(&key, uid, projection);
        Arc::new(Desired { key, uid, revision, value })
    }))
}

fn open(key: &Key, uid: Uid, body: &[u8], seal: &SealingKey) -> Option<Value> {
    let opened;
    let form = if is_sealed(key) {
        opened = seal
            .open(&uid.0, body)
            .map_err(|error| tracing::error!(%key, "an entry is unreadable: {error}"))
            .ok()?;
        &opened
    } else {
        body
    };
    canonical::decode(form)
        .map_err(|error| tracing::error!(%key, "an entry is unreadable: {error}"))
        .ok()
}

fn is_sealed(key: &Key) -> bool {
    key.kind.as_str() == "Secret"
}

fn report(uid: Uid, form: Vec<u8>) -> Option<Arc<Report>> {
    let value = canonical::decode(&form).ok()?;
    Some(Arc::new(Report { hash: EntryHash::of_report(uid, &value), form }))
}

fn state(connection: &Connection, name: &str) -> rusqlite::Result<Option<[u8; 8]>> {
    let mut statement = connection.prepare("SELECT value FROM state WHERE name = ?")?;
    statement.query_row([name], |row| row.get(0)).optional()
}

fn number(connection: &Connection, name: &str) -> rusqlite::Result<u64> {
    Ok(u64::from_le_bytes(state(connection, name)?.unwrap_or_default()))
}

fn set(connection: &Connection, name: &str, value: &[u8; 8]) -> rusqlite::Result<()> {
    let sql = "INSERT OR REPLACE INTO state (name, value) VALUES (?, ?)";
    connection.prepare_cached(sql)?.execute(params![name, value]).map(drop)
}

// SQLite's integers are signed; the bits are what counts.

fn signed(number: u64) -> i64 {
    number.cast_signed()
}

fn unsigned(number: i64) -> u64 {
    number.cast_unsigned()
}

fn logged<T>(result: rusqlite::Result<T>) -> Option<T> {
    result
        .map_err(|error| tracing::error!("reading or writing the node's store: {error}"))
        .ok()
}

/// The pods and their last reports, for people who ask.
pub(super) fn reported(connection: &Connection) -> rusqlite::Result<Vec<PodReport>> {
    let mut statement = connection.prepare(
        "SELECT d.namespace, d.name, r.latest, d.body, g.uid IS NOT NULL FROM desired d
            LEFT JOIN reports r ON r.uid = d.uid LEFT JOIN gone g ON g.uid = d.uid
            WHERE d.kind = 'Pod' ORDER BY d.namespace, d.name",
    )?;
    let rows = statement.query_map([], |row| {
        let latest: Option<Vec<u8>> = row.get(2)?;
        let body: Vec<u8> = row.get(3)?;
        // No pod's body is sealed.
        let pod = canonical::decode(&body).unwrap_or_default();
        Ok(PodReport {
            key: Key::new("Pod", row.get::<_, String>(0)?, row.get::<_, String>(1)?),
            latest: latest.and_then(|form| canonical::decode(&form).ok()),
            deleting: pod.text_at(&["metadata", "deletionTimestamp"]).is_some(),
            gone: row.get(4)?,
        })
    })?;
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::super::open_file;
    use super::*;

    /// Gives the file no more room, or room again.
    fn set_full(file: &File, full: bool) {
        // A limit below the size is taken as the size.
        let pages = if full { 1 } else { 1 << 30 };
        let set = file.connection.pragma_update(None, "max_page_count", pages);
        assert!(set.is_ok() || set == Err(rusqlite::Error::ExecuteReturnedResults));
    }

    /// More than a page has left.
    fn large(byte: u8) -> Vec<u8> {
        vec![byte; 20_000]
    }

    #[test]
    fn what_a_pod_remembers_on_a_full_disk_is_kept_with_the_next_commit() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = open_file(folder.path()).unwrap();
        let (one, two) = (Uid([1; 16]), Uid([2; 16]));
        set_full(&file, true);
        file.remember(one, Some(large(1)));
        file.remember(one, Some(large(2)));
        file.remember(two, Some(large(3)));
        assert_eq!(file.commit(Batch::default()).unwrap_err(), CommitError::Full);
        // Forgotten is forgotten, room or not.
        file.remember(two, None);
        set_full(&file, false);
        file.commit(Batch::default()).unwrap();
        drop(file);
        let file = open_file(folder.path()).unwrap();
        assert_eq!(file.memory(one).unwrap(), Some(large(2)));
        assert_eq!(file.memory(two).unwrap(), None);
    }
}
