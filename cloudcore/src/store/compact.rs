//! Lets go of what history no longer keeps, as part of a transaction that is written anyway.

use std::sync::Mutex;

use proto::object::{Key, Revision};
use proto::time::Mono;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::history::length;
use super::locked;
use super::retain::{Base, Bases, History, HistoryLimits, Holder, Marks};
use super::schema::{key, number, revision};

/// A transaction lets at least this many writes go, if so many are due, and twice as many as it brings: history shrinks
/// faster than it grows, and no commit waits for much of it.
const DROPS_MIN: usize = 64;

/// How many bases a transaction looks at to see whether a node still holds them.
const LOOKS: usize = 64;

/// What a transaction has let go of; to be taken over into memory once it is committed.
#[derive(Debug)]
pub(super) struct Compaction {
    /// The oldest writes of history, in number.
    pub(super) dropped: usize,
    /// The last of them.
    pub(super) floor: Option<Revision>,
    pub(super) kept: Vec<(Revision, Base)>,
    pub(super) released: Vec<Revision>,
    /// Holders that lost a base they may need, for want of room.
    pub(super) broken: Vec<Base>,
}

/// What there is to go by.
#[derive(Debug)]
pub(super) struct Past<'a> {
    pub(super) history: &'a History,
    pub(super) bases: &'a mut Bases,
    pub(super) marks: &'a Mutex<Marks>,
    pub(super) limits: &'a HistoryLimits,
    pub(super) floor: Revision,
}

/// Lets go of what is due after a transaction with so many writes.
pub(super) fn compact(
    connection: &Connection,
    past: Past<'_>,
    now: Mono,
    writes: usize,
) -> Result<Compaction, rusqlite::Error> {
    let due = past
        .history
        .due(past.limits, past.floor, now, DROPS_MIN.max(2 * writes));
    let mut compaction = Compaction {
        dropped: due.len(),
        floor: due.last().copied(),
        kept: Vec::new(),
        released: past.bases.unwanted(&locked(past.marks), LOOKS),
        broken: Vec::new(),
    };
    if let Some(floor) = compaction.floor {
        locked(past.marks).cut(floor);
    }
    for at in due {
        compaction.kept.extend(forget(connection, past.marks, at)?);
    }
    let more = compaction.kept.iter().map(|(_, base)| base.bytes).sum();
    for at in past.bases.surplus(more, past.limits.bases_bytes) {
        if !compaction.released.contains(&at) {
            compaction.broken.extend(past.bases.get(at).cloned());
            compaction.released.push(at);
        }
    }
    for at in &compaction.released {
        release(connection, *at)?;
    }
    Ok(compaction)
}

/// Forgets one write: the version that it replaced goes, or becomes a base.
fn forget(
    connection: &Connection,
    marks: &Mutex<Marks>,
    at: Revision,
) -> Result<Option<(Revision, Base)>, rusqlite::Error> {
    let found = connection
        .prepare_cached(
            "SELECT kind, namespace, name, projected, body_at, previous, gone FROM versions WHERE revision = ?1",
        )?
        .query_row([number(at)], |row| {
            let (projected, body_at): (i64, i64) = (row.get(3)?, row.get(4)?);
            let (previous, gone): (Option<i64>, bool) = (row.get(5)?, row.get(6)?);
            Ok((key(row, 0)?, projected, body_at, previous, gone))
        })
        .optional()?;
    let Some((key, projected, body_at, previous, gone)) = found else {
        return Ok(None);
    };
    let mut kept = None;
    if let Some(previous) = previous
        && let Some((base, body_before)) = base_of(connection, &key, previous, at)?
    {
        // Where the projection stayed the same, the next version is as good a base; and a deletion ends what was held.
        let is_last_of_its_projection = gone || base.from != revision(projected);
        if is_last_of_its_projection && locked(marks).want(&base.holder, base.from, base.until) {
            connection
                .prepare_cached(
                    "INSERT INTO bases SELECT revision, ?2, kind, namespace, name, uid, created, projected, projection,
                         node, body_at, report_node, report FROM versions WHERE revision = ?1",
                )?
                .execute(params![previous, number(at)])?;
            kept = Some((revision(previous), base));
        }
        delete_version(connection, previous)?;
        if gone || body_before != body_at {
            free_body(connection, body_before)?;
        }
    }
    if gone {
        delete_version(connection, number(at))?;
    }
    Ok(kept)
}

/// What the version before a write would be as a base, and where its body is.
fn base_of(
    connection: &Connection,
    key: &Key,
    previous: i64,
    until: Revision,
) -> Result<Option<(Base, i64)>, rusqlite::Error> {
    connection
        .prepare_cached(
            "SELECT v.node, v.projected, v.body_at, length(b.bytes) + coalesce(length(v.report), 0)
             FROM versions v JOIN bodies b ON b.revision = v.body_at WHERE v.revision = ?1",
        )?
        .query_row([previous], |row| {
            let node: Option<String> = row.get(0)?;
            let base = Base {
                holder: Holder::of(key, node.as_deref()),
                from: revision(row.get(1)?),
                until,
                bytes: length(row, 3)?,
            };
            Ok((base, row.get(2)?))
        })
        .optional()
}

/// A base that nobody needs any more, or that there is no room for.
///
/// Its body goes with it. No version in history has the same one: that would be a report on the same object, with the
/// same projection, which is then the base instead.
fn release(connection: &Connection, at: Revision) -> Result<(), rusqlite::Error> {
    let body_at: Option<i64> = connection
        .prepare_cached("DELETE FROM bases WHERE revision = ?1 RETURNING body_at")?
        .query_row([number(at)], |row| row.get(0))
        .optional()?;
    body_at.map_or(Ok(()), |body_at| free_body(connection, body_at))
}

fn delete_version(connection: &Connection, at: i64) -> Result<(), rusqlite::Error> {
    connection
        .prepare_cached("DELETE FROM versions WHERE revision = ?1")?
        .execute([at])
        .map(drop)
}

/// A body that no version has any more; a base may still have it.
fn free_body(connection: &Connection, at: i64) -> Result<(), rusqlite::Error> {
    connection
        .prepare_cached(
            "DELETE FROM bodies WHERE revision = ?1 AND NOT EXISTS (SELECT 1 FROM bases WHERE body_at = ?1)",
        )?
        .execute([at])
        .map(drop)
}
