//! The tables, and one version to and from its row.

use daemon::seal::{SealError, SealingKey};
use daemon::sqlite::{Migration, Migrations};
use proto::digest::EntryHash;
use proto::object::{Key, Kind, Revision, Uid};
use proto::value::canonical::CanonicalError;
use rusqlite::types::FromSql;
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::projection;
use super::stored::{Change, Form, Report, Stored};

/// A released step never changes.
pub(super) const MIGRATIONS: Migrations = Migrations(&[Migration {
    sql: "
-- What there is one of: epoch, revision, floor, dropped, key, backup.
CREATE TABLE state (name TEXT PRIMARY KEY, value ANY NOT NULL) STRICT, WITHOUT ROWID;

-- Every write that history knows and every object that is: one row per revision. A deletion is a row as well.
CREATE TABLE versions (
    revision INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    uid BLOB NOT NULL,
    created INTEGER NOT NULL,
    projected INTEGER NOT NULL,
    -- Not of what is sealed: a hash would let guesses be checked.
    projection BLOB,
    node TEXT,
    body_at INTEGER NOT NULL,
    report_node TEXT,
    report BLOB,
    -- The version that this one replaced.
    previous INTEGER,
    gone INTEGER NOT NULL,
    -- Bytes that are kept only for as long as this write is history.
    cost INTEGER NOT NULL
) STRICT;
CREATE INDEX versions_by_key ON versions (kind, namespace, name, revision);

-- Bodies stand apart, because a report makes a version and leaves the body as it is.
CREATE TABLE bodies (revision INTEGER PRIMARY KEY, bytes BLOB NOT NULL) STRICT;

-- Versions that have left history, and that some node still holds: the node's base for a patch.
CREATE TABLE bases (
    revision INTEGER PRIMARY KEY,
    until INTEGER NOT NULL,
    kind TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    uid BLOB NOT NULL,
    created INTEGER NOT NULL,
    projected INTEGER NOT NULL,
    projection BLOB,
    node TEXT,
    body_at INTEGER NOT NULL,
    report_node TEXT,
    report BLOB
) STRICT;
CREATE INDEX bases_by_key ON bases (kind, namespace, name);
CREATE INDEX bases_by_body ON bases (body_at);

-- The revision that each node has acknowledged. It is whole while everything the node held then can be told.
CREATE TABLE marks (node TEXT PRIMARY KEY, revision INTEGER NOT NULL, whole INTEGER NOT NULL) STRICT, WITHOUT ROWID;

-- Small sealed things that are no objects.
CREATE TABLE records (
    space TEXT NOT NULL, id TEXT NOT NULL, bytes BLOB NOT NULL, PRIMARY KEY (space, id)
) STRICT, WITHOUT ROWID;
",
    readable_from: 1,
}]);

/// The columns of a version in `versions v` or `bases v`, with its body in `bodies b`; [`stored`] reads them.
pub(super) const COLUMNS: &str = "v.revision, v.kind, v.namespace, v.name, v.uid, v.created, v.projected, v.projection,
    v.node, v.body_at, v.report_node, v.report, b.bytes";

/// What a version costs beside its bytes: its row and the entry in the index.
const ROW_COST: usize = 300;

/// A row that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RowError {
    #[error("reading the database")]
    Sqlite(#[from] rusqlite::Error),
    #[error("opening the sealed {what}")]
    Sealed {
        what: String,
        #[source]
        source: SealError,
    },
    #[error("decoding the stored form of {key} at revision {revision}")]
    Form {
        key: Key,
        revision: Revision,
        #[source]
        source: CanonicalError,
    },
}

/// A revision as SQLite keeps it.
pub(super) fn number(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

/// A revision as SQLite kept it.
pub(super) fn revision(number: i64) -> Revision {
    Revision(u64::try_from(number).unwrap_or(0))
}

/// Whether bodies of this kind are sealed.
fn is_sealed(kind: &Kind) -> bool {
    kind.as_str() == "Secret"
}

/// What a sealed body is bound to: moved to another object or version, it does not open.
fn body_context(key: &Key, uid: Uid, body_at: Revision) -> Vec<u8> {
    format!("body\0{}\0{}\0{}\0{uid}\0{body_at}", key.kind, key.namespace, key.name).into_bytes()
}

fn record_context(space: &str, id: &str) -> Vec<u8> {
    format!("record\0{space}\0{id}").into_bytes()
}

/// The bytes that are only kept because `change` is remembered: those of the version before.
pub(super) fn cost(change: &Change) -> usize {
    let before = change.before.as_ref().map_or(0, |before| {
        let shared = change
            .after
            .as_ref()
            .is_some_and(|after| after.body_at == before.body_at);
        before.bytes() - if shared { before.body.len() } else { 0 }
    });
    before + ROW_COST
}

/// Writes one change.
pub(super) fn write(connection: &Connection, seal: &SealingKey, change: &Change) -> Result<(), rusqlite::Error> {
    let object = change.object();
    let gone = change.after.is_none();
    let report = object.report.as_ref().filter(|_| !gone);
    let projection = object.projection.filter(|_| !is_sealed(&object.key.kind));
    connection
        .prepare_cached(
            "INSERT INTO versions VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)",
        )?
        .execute(params![
            number(change.revision),
            object.key.kind.as_str(),
            object.key.namespace,
            object.key.name,
            object.uid.0,
            number(object.created),
            number(object.projected),
            projection.map(|hash| hash.0),
            object.node(),
            number(object.body_at),
            report.map(|report| &*report.node),
            report.map(|report| report.form.bytes()),
            change.before.as_ref().map(|before| number(before.revision)),
            gone,
            i64::try_from(cost(change)).unwrap_or(i64::MAX),
        ])?;
    if !gone && object.body_at == change.revision {
        let mut insert = connection.prepare_cached("INSERT INTO bodies VALUES (?1, ?2)")?;
        if is_sealed(&object.key.kind) {
            let context = body_context(&object.key, object.uid, object.body_at);
            insert.execute(params![
                number(object.body_at),
                seal.seal(&context, object.body.bytes())
            ])?;
        } else {
            insert.execute(params![number(object.body_at), object.body.bytes()])?;
        }
    }
    Ok(())
}

/// The key in the columns `kind, namespace, name` from `at` on.
pub(super) fn key(row: &Row<'_>, at: usize) -> Result<Key, rusqlite::Error> {
    Ok(Key {
        kind: Kind::from(row.get_ref(at)?.as_str()?),
        namespace: row.get(at + 1)?,
        name: row.get(at + 2)?,
    })
}

/// The version in a row of [`COLUMNS`].
pub(super) fn stored(row: &Row<'_>, seal: &SealingKey) -> Result<Stored, RowError> {
    let key = key(row, 1)?;
    let at = revision(row.get(0)?);
    let uid = Uid(row.get(4)?);
    let body_at = revision(row.get(9)?);
    let decode =
        |bytes: &[u8]| Form::checked(bytes).map_err(|source| RowError::Form { key: key.clone(), revision: at, source });
    let bytes = row.get_ref(12)?.as_blob().map_err(rusqlite::Error::from)?;
    let body = if is_sealed(&key.kind) {
        let plain = seal
            .open(&body_context(&key, uid, body_at), bytes)
            .map_err(|source| RowError::Sealed { what: key.to_string(), source })?;
        decode(&plain)?
    } else {
        decode(bytes)?
    };
    let report = match row.get::<_, Option<String>>(10)? {
        Some(node) => Some(Report {
            node: node.into(),
            form: decode(row.get_ref(11)?.as_blob().map_err(rusqlite::Error::from)?)?,
        }),
        None => None,
    };
    let mut object = Stored {
        uid,
        revision: at,
        created: revision(row.get(5)?),
        projected: revision(row.get(6)?),
        projection: row.get::<_, Option<_>>(7)?.map(EntryHash),
        node: row.get::<_, Option<String>>(8)?.map(Into::into),
        body,
        body_at,
        report,
        key,
    };
    if object.projection.is_none() && projection::reaches_nodes(object.key.kind.as_str()) {
        object.projection = projection::entry_hash(&object.key, uid, &object.body());
    }
    Ok(object)
}

/// Puts or takes away a record.
pub(super) fn write_record(
    connection: &Connection,
    seal: &SealingKey,
    (space, id): (&str, &str),
    bytes: Option<&[u8]>,
) -> Result<(), rusqlite::Error> {
    match bytes {
        Some(bytes) => connection
            .prepare_cached("INSERT INTO records VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET bytes = excluded.bytes")?
            .execute(params![space, id, seal.seal(&record_context(space, id), bytes)])?,
        None => connection
            .prepare_cached("DELETE FROM records WHERE space = ?1 AND id = ?2")?
            .execute(params![space, id])?,
    };
    Ok(())
}

/// Every record, opened.
pub(super) fn records(connection: &Connection, seal: &SealingKey) -> Result<Vec<(String, String, Vec<u8>)>, RowError> {
    let mut statement = connection.prepare("SELECT space, id, bytes FROM records")?;
    let mut rows = statement.query([])?;
    let mut records = Vec::new();
    while let Some(row) = rows.next()? {
        let (space, id): (String, String) = (row.get(0)?, row.get(1)?);
        let bytes = row.get_ref(2)?.as_blob().map_err(rusqlite::Error::from)?;
        let plain = seal
            .open(&record_context(&space, &id), bytes)
            .map_err(|source| RowError::Sealed { what: format!("record {space}/{id}"), source })?;
        records.push((space, id, plain));
    }
    Ok(records)
}

/// One of the things there is one of.
pub(super) fn state<T: FromSql>(connection: &Connection, name: &str) -> Result<Option<T>, rusqlite::Error> {
    connection
        .prepare_cached("SELECT value FROM state WHERE name = ?1")?
        .query_row([name], |row| row.get(0))
        .optional()
}

pub(super) fn set_state(
    connection: &Connection,
    name: &str,
    value: impl rusqlite::ToSql,
) -> Result<(), rusqlite::Error> {
    connection
        .prepare_cached("INSERT INTO state VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = excluded.value")?
        .execute(params![name, value])
        .map(drop)
}
