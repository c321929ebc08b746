//! What was: reads at older revisions, each from one snapshot of the database.

use std::sync::Arc;

use daemon::seal::SealingKey;
use proto::object::{Key, Revision};
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::schema::{COLUMNS, RowError, key, number, revision, state, stored};
use super::stored::{Change, Scope, Stored};
use super::watch::LineLimits;

/// The last write that history knows nothing of any more.
pub(super) fn floor(snapshot: &Connection) -> Result<Revision, RowError> {
    Ok(state(snapshot, "floor")?.map_or(Revision(0), revision))
}

/// Objects of a scope as they were at a revision that history still knows, behind a place; and how many follow.
pub(super) fn page(
    snapshot: &Connection,
    seal: &SealingKey,
    scope: &Scope,
    at: Revision,
    after: Option<&(String, String)>,
    limit: usize,
) -> Result<(Vec<Arc<Stored>>, usize), RowError> {
    // The version of each key that was the newest then; a deletion is a version too, and shows nothing.
    const FOUND: &str = "FROM versions v LEFT JOIN bodies b ON b.revision = v.body_at
        WHERE v.kind = ?1 AND (?2 IS NULL OR v.namespace = ?2) AND (?3 IS NULL OR v.node = ?3)
        AND (v.namespace, v.name) > (?4, ?5) AND v.gone = 0
        AND v.revision = (SELECT max(w.revision) FROM versions w
            WHERE w.kind = v.kind AND w.namespace = v.namespace AND w.name = v.name AND w.revision <= ?6)";
    let (namespace, name) = after.map_or(("", ""), |(namespace, name)| (namespace, name));
    let rows_max = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut statement = snapshot.prepare_cached(&format!(
        "SELECT {COLUMNS} {FOUND} ORDER BY v.namespace, v.name LIMIT ?7"
    ))?;
    let kind = scope.kind.as_str();
    let mut rows = statement.query(params![
        kind,
        scope.namespace,
        scope.node,
        namespace,
        name,
        number(at),
        rows_max
    ])?;
    let mut items: Vec<Arc<Stored>> = Vec::new();
    while let Some(row) = rows.next()? {
        items.push(Arc::new(stored(row, seal)?));
    }
    let Some(last) = items.last().filter(|_| items.len() >= limit) else {
        return Ok((items, 0));
    };
    let remaining: i64 = snapshot
        .prepare_cached(&format!("SELECT count(*) {FOUND}"))?
        .query_row(
            params![
                kind,
                scope.namespace,
                scope.node,
                last.key.namespace,
                last.key.name,
                number(at)
            ],
            |row| row.get(0),
        )?;
    Ok((items, usize::try_from(remaining).unwrap_or(0)))
}

/// An object as it was at a revision that history still knows.
pub(super) fn object(
    snapshot: &Connection,
    seal: &SealingKey,
    key: &Key,
    at: Revision,
) -> Result<Option<Arc<Stored>>, RowError> {
    one(snapshot
        .prepare_cached(&format!(
            "SELECT {COLUMNS} FROM (
                     SELECT * FROM versions WHERE kind = ?1 AND namespace = ?2 AND name = ?3 AND revision <= ?4
                     ORDER BY revision DESC LIMIT 1
                 ) v LEFT JOIN bodies b ON b.revision = v.body_at WHERE v.gone = 0"
        ))?
        .query_row(params![key.kind.as_str(), key.namespace, key.name, number(at)], |row| {
            Ok(stored(row, seal))
        }))
}

/// What a node held of an object at a revision older than history.
pub(super) fn base(
    snapshot: &Connection,
    seal: &SealingKey,
    key: &Key,
    at: Revision,
) -> Result<Option<Arc<Stored>>, RowError> {
    let kept = one(snapshot
        .prepare_cached(&format!(
            "SELECT {COLUMNS} FROM bases v JOIN bodies b ON b.revision = v.body_at
                 WHERE v.kind = ?1 AND v.namespace = ?2 AND v.name = ?3 AND v.projected <= ?4 AND v.until > ?4"
        ))?
        .query_row(params![key.kind.as_str(), key.namespace, key.name, number(at)], |row| {
            Ok(stored(row, seal))
        }))?;
    if kept.is_some() {
        return Ok(kept);
    }
    let oldest = object(snapshot, seal, key, floor(snapshot)?)?;
    Ok(oldest.filter(|object| object.projection.is_some() && object.projected <= at))
}

/// The pods that a node held at a revision older than history.
pub(super) fn bases_of(
    snapshot: &Connection,
    seal: &SealingKey,
    scope: &Scope,
    at: Revision,
) -> Result<Vec<Arc<Stored>>, RowError> {
    let mut statement = snapshot.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM bases v JOIN bodies b ON b.revision = v.body_at
         WHERE v.kind = ?1 AND v.node = ?2 AND v.projected <= ?3 AND v.until > ?3"
    ))?;
    let mut rows = statement.query(params![scope.kind.as_str(), scope.node, number(at)])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push(Arc::new(stored(row, seal)?));
    }
    let (oldest, _) = page(snapshot, seal, scope, floor(snapshot)?, None, usize::MAX)?;
    found.extend(oldest.into_iter().filter(|object| object.projected <= at));
    found.retain(|object| scope.contains(object));
    found.sort_by(|one, other| one.key.cmp(&other.key));
    Ok(found)
}

/// Whether everything that a node held at `at` can still be told.
pub(super) fn is_whole(snapshot: &Connection, node: &str, at: Revision) -> Result<bool, RowError> {
    let mark = snapshot
        .prepare_cached("SELECT whole FROM marks WHERE node = ?1 AND revision = ?2")?
        .query_row(params![node, number(at)], |row| row.get(0))
        .optional()?;
    Ok(mark.unwrap_or(false))
}

/// Changes that concern one of the scopes, after one revision and up to another, as many as the limits let
/// through and at least one; and the revision up to which these are all.
pub(super) fn changes(
    snapshot: &Connection,
    seal: &SealingKey,
    scopes: &[Scope],
    after: Revision,
    up_to: Revision,
    limits: LineLimits,
) -> Result<(Vec<Change>, Revision), RowError> {
    let mut statement = snapshot.prepare_cached(
        "SELECT v.revision, v.kind, v.namespace, v.name, v.node, v.gone, v.previous, p.node
         FROM versions v LEFT JOIN versions p ON p.revision = v.previous
         WHERE v.revision > ?1 AND v.revision <= ?2 ORDER BY v.revision",
    )?;
    let mut rows = statement.query(params![number(after), number(up_to)])?;
    let mut changes: Vec<Change> = Vec::new();
    let mut bytes = 0;
    while let Some(row) = rows.next()? {
        let at = revision(row.get(0)?);
        let key = key(row, 1)?;
        let (node, node_before): (Option<String>, Option<String>) = (row.get(4)?, row.get(7)?);
        let concerns = |scope: &Scope| {
            scope.contains_parts(&key, node.as_deref()) || scope.contains_parts(&key, node_before.as_deref())
        };
        if !scopes.iter().any(concerns) {
            continue;
        }
        let version = |at: Option<i64>| at.map_or(Ok(None), |at| version(snapshot, seal, at));
        let gone: bool = row.get(5)?;
        let change = Change {
            revision: at,
            before: version(row.get(6)?)?,
            after: version((!gone).then_some(number(at)))?,
        };
        bytes += change.bytes();
        changes.push(change);
        if changes.len() >= limits.changes || bytes >= limits.bytes {
            return Ok((changes, at));
        }
    }
    Ok((changes, up_to))
}

fn version(snapshot: &Connection, seal: &SealingKey, at: i64) -> Result<Option<Arc<Stored>>, RowError> {
    one(snapshot
        .prepare_cached(&format!(
            "SELECT {COLUMNS} FROM versions v JOIN bodies b ON b.revision = v.body_at WHERE v.revision = ?1"
        ))?
        .query_row([at], |row| Ok(stored(row, seal))))
}

fn one(found: rusqlite::Result<Result<Stored, RowError>>) -> Result<Option<Arc<Stored>>, RowError> {
    found.optional()?.transpose().map(|object| object.map(Arc::new))
}

/// Every object as it is now, handed over one by one.
pub(super) fn load(
    snapshot: &Connection,
    seal: &SealingKey,
    mut take: impl FnMut(Arc<Stored>),
) -> Result<(), RowError> {
    let mut statement = snapshot.prepare(&format!(
        "SELECT {COLUMNS} FROM versions v JOIN bodies b ON b.revision = v.body_at WHERE v.gone = 0
         AND v.revision = (SELECT max(w.revision) FROM versions w
            WHERE w.kind = v.kind AND w.namespace = v.namespace AND w.name = v.name)"
    ))?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        take(Arc::new(stored(row, seal)?));
    }
    Ok(())
}

/// The number in a column, as a length.
pub(super) fn length(row: &Row<'_>, at: usize) -> Result<usize, rusqlite::Error> {
    Ok(usize::try_from(row.get::<_, i64>(at)?).unwrap_or(usize::MAX))
}
