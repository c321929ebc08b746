//! The tables of `node.db`.

use daemon::sqlite::{Migration, Migrations};

pub(super) const MIGRATIONS: Migrations = Migrations(&[Migration {
    sql: "
        -- What should be here. `body` is the canonical form of the projection, sealed for a Secret.
        CREATE TABLE desired (
            uid BLOB PRIMARY KEY,
            kind TEXT NOT NULL,
            namespace TEXT NOT NULL,
            name TEXT NOT NULL,
            revision INTEGER NOT NULL,
            body BLOB NOT NULL
        ) WITHOUT ROWID;
        CREATE INDEX desired_key ON desired (kind, namespace, name);
        -- What was seen of it last, and what of that the cloud has acknowledged; null when that is the same.
        CREATE TABLE reports (
            uid BLOB PRIMARY KEY,
            latest BLOB NOT NULL,
            acked BLOB,
            settled INTEGER NOT NULL
        ) WITHOUT ROWID;
        -- What is being deleted and of which nothing is left here.
        CREATE TABLE gone (uid BLOB PRIMARY KEY) WITHOUT ROWID;
        -- Events that the cloud has not acknowledged.
        CREATE TABLE events (number INTEGER PRIMARY KEY, body BLOB NOT NULL);
        -- What pods remember of themselves.
        CREATE TABLE memory (uid BLOB PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID;
        -- Single values: epoch, applied, incarnation, number.
        CREATE TABLE state (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
    ",
    readable_from: 1,
}]);
