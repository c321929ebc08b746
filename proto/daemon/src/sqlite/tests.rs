use std::fs;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};

use super::*;

const ONE: Migration = Migration {
    sql: "CREATE TABLE pets (name TEXT) STRICT",
    readable_from: 1,
};
const TWO: Migration = Migration {
    sql: "ALTER TABLE pets ADD COLUMN age INTEGER",
    readable_from: 1,
};
const THREE: Migration = Migration {
    sql: "ALTER TABLE pets RENAME COLUMN age TO years",
    readable_from: 3,
};
const FOUR: Migration = Migration {
    sql: "CREATE INDEX pets_by_name ON pets (name)",
    readable_from: 1,
};

const V1: Migrations = Migrations(&[ONE]);
const V2: Migrations = Migrations(&[ONE, TWO]);
const V3: Migrations = Migrations(&[ONE, TWO, THREE]);
const V4: Migrations = Migrations(&[ONE, TWO, THREE, FOUR]);

fn place() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("test.db");
    (folder, path)
}

fn text(connection: &Connection, sql: &str) -> String {
    connection.query_row(sql, [], |row| row.get(0)).unwrap()
}

/// Copies the files as they are on disk now: what a power cut would leave.
fn cut(path: &Path) -> (tempfile::TempDir, PathBuf) {
    let (folder, copy) = place();
    fs::copy(path, &copy).unwrap();
    fs::copy(wal(path), wal(&copy)).unwrap();
    (folder, copy)
}

#[test]
fn a_writer_is_durable_and_private() {
    let (_folder, path) = place();
    let writer = open(&path, &V1, Mode::Durable).unwrap();
    assert_eq!(text(&writer, "PRAGMA journal_mode"), "wal");
    assert_eq!(
        writer
            .query_row("PRAGMA synchronous", [], |row| row.get::<_, i64>(0))
            .unwrap(),
        2
    );
    writer.execute("INSERT INTO pets VALUES ('rex')", []).unwrap();
    for file in [path.clone(), wal(&path)] {
        assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    }
    let reader = open(&path, &V1, Mode::Reader).unwrap();
    assert_eq!(text(&reader, "SELECT name FROM pets"), "rex");
    assert!(reader.execute("DELETE FROM pets", []).is_err());
    let relaxed = open(&path, &V1, Mode::Relaxed).unwrap();
    assert_eq!(
        relaxed
            .query_row("PRAGMA synchronous", [], |row| row.get::<_, i64>(0))
            .unwrap(),
        1
    );
}

#[test]
fn who_only_read_left_no_mark_of_an_unclean_stop() {
    let (_folder, path) = place();
    let writer = open(&path, &V1, Mode::Alone).unwrap();
    writer.execute("INSERT INTO pets VALUES ('rex')", []).unwrap();
    close(writer).unwrap();
    let reader = open(&path, &V1, Mode::Reader).unwrap();
    assert_eq!(text(&reader, "SELECT name FROM pets"), "rex");
    drop(reader);
    assert!(wal(&path).exists(), "it cannot take it away");
    assert!(!is_unclean(&path));
}

#[test]
fn alone_it_writes_the_log_and_nothing_else() {
    let (_folder, path) = place();
    let alone = open(&path, &V1, Mode::Alone).unwrap();
    alone.execute("INSERT INTO pets VALUES ('rex')", []).unwrap();
    let number = |pragma: &str| alone.query_row(pragma, [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(number("PRAGMA page_size"), i64::from(SMALL_PAGE_BYTES));
    assert_eq!(number("PRAGMA synchronous"), 2);
    let others: Vec<_> = fs::read_dir(path.parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|other| *other != path)
        .collect();
    assert_eq!(others, [wal(&path)]);
    let (_copy_folder, copy) = cut(&path);
    let recovered = open(&copy, &V1, Mode::Alone).unwrap();
    assert_eq!(text(&recovered, "SELECT name FROM pets"), "rex");
    close(alone).unwrap();
    let next = open(&path, &V1, Mode::Durable).unwrap();
    assert_eq!(text(&next, "SELECT name FROM pets"), "rex");
}

#[test]
fn migrations_run_once_and_in_order() {
    let (_folder, path) = place();
    let writer = open(&path, &V1, Mode::Durable).unwrap();
    writer.execute("INSERT INTO pets VALUES ('rex')", []).unwrap();
    close(writer).unwrap();
    for _ in 0..2 {
        let writer = open(&path, &V3, Mode::Durable).unwrap();
        assert_eq!(text(&writer, "SELECT name FROM pets WHERE years IS NULL"), "rex");
        assert_eq!(schema(&writer).unwrap(), (3, 3));
    }
}

#[test]
fn a_failing_migration_changes_nothing() {
    const BAD: Migrations = Migrations(&[
        ONE,
        Migration {
            sql: "CREATE TABLE owners (name TEXT) STRICT; DROP TABLE nothing",
            readable_from: 2,
        },
    ]);
    let (_folder, path) = place();
    open(&path, &V1, Mode::Durable).unwrap();
    let error = open(&path, &BAD, Mode::Durable).unwrap_err();
    assert!(matches!(error, SqliteError::Migrate { to: 2, .. }), "{error}");
    let writer = open(&path, &V1, Mode::Durable).unwrap();
    assert_eq!(schema(&writer).unwrap(), (1, 1));
    assert!(writer.prepare("SELECT * FROM owners").is_err());
}

#[test]
fn an_older_binary_opens_what_it_can_read() {
    let (_folder, path) = place();
    open(&path, &V2, Mode::Durable).unwrap();
    let older = open(&path, &V1, Mode::Durable).unwrap();
    older.execute("INSERT INTO pets (name) VALUES ('rex')", []).unwrap();
    // Opening it did not take the newer schema away.
    assert_eq!(schema(&older).unwrap(), (2, 1));
    drop(older);

    // The third step shuts older binaries out, and the fourth does not let them in again.
    for (newest, found) in [(&V3, 3), (&V4, 4)] {
        open(&path, newest, Mode::Durable).unwrap();
        match open(&path, &V2, Mode::Durable).unwrap_err() {
            SqliteError::Newer { found: in_file, readable_from: 3, known: 2, .. } => assert_eq!(in_file, found),
            error => panic!("{error}"),
        }
    }
    open(&path, &V3, Mode::Durable).unwrap();
}

#[test]
fn a_log_left_behind_is_the_mark_of_an_unclean_stop() {
    let (_folder, path) = place();
    let writer = open(&path, &V1, Mode::Durable).unwrap();
    writer.execute("INSERT INTO pets VALUES ('rex')", []).unwrap();
    let (_copy_folder, copy) = cut(&path);
    close(writer).unwrap();
    assert!(!wal(&path).exists());
    assert!(wal(&copy).exists());
    let recovered = open(&copy, &V1, Mode::Durable).unwrap();
    assert_eq!(text(&recovered, "SELECT name FROM pets"), "rex");
}

#[test]
fn damage_is_told_from_a_bad_moment() {
    let (_folder, path) = place();
    let writer = open(&path, &V1, Mode::Durable).unwrap();
    for _ in 0..1000 {
        writer
            .execute("INSERT INTO pets VALUES (printf('%0100d', 1))", [])
            .unwrap();
    }
    close(writer).unwrap();

    // A page in the middle is overwritten: noticed after an unclean stop, before anybody trusts the file.
    OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .write_all_at(&[0xff; 4096], 5 * 4096)
        .unwrap();
    fs::write(wal(&path), b"what was under way").unwrap();
    let error = open(&path, &V1, Mode::Durable).unwrap_err();
    assert!(error.is_damage(), "{error}");

    fs::write(&path, [b'x'; 8192]).unwrap();
    assert!(open(&path, &V1, Mode::Durable).unwrap_err().is_damage());
    // Out of the way it can be looked at, and a new one takes its place.
    let aside = set_aside(&path).unwrap();
    assert_eq!(fs::read(&aside).unwrap(), [b'x'; 8192]);
    assert!(!path.exists() && !wal(&path).exists());
    close(open(&path, &V1, Mode::Durable).unwrap()).unwrap();
    set_aside(&path).unwrap();
    assert_eq!(set_aside(&path).unwrap(), aside);
    let error = open(&path.join("below"), &V1, Mode::Durable).unwrap_err();
    assert!(!error.is_damage(), "{error}");
}

#[test]
fn the_full_check_passes_a_sound_file() {
    let (_folder, path) = place();
    let writer = open(&path, &V4, Mode::Durable).unwrap();
    check(&writer, &path, Check::Full).unwrap();
}

#[test]
fn alone_it_needs_no_index_beside_the_file() {
    let (_folder, path) = place();
    let writer = open(&path, &V1, Mode::Durable).unwrap();
    writer.execute("INSERT INTO pets VALUES ('kept')", []).unwrap();
    // As after a kill, and where the index would be, nothing can be made.
    let (_left, copy) = cut(&path);
    std::os::unix::fs::symlink("/proc/no/room", beside(&copy, "-shm")).unwrap();
    let error = open(&copy, &V1, Mode::Durable).unwrap_err();
    assert!(error.is_for_lack_of_room() && !error.is_damage(), "{error:?}");
    let alone = open(&copy, &V1, Mode::Alone).unwrap();
    alone.execute("INSERT INTO pets VALUES ('more')", []).unwrap();
    assert_eq!(text(&alone, "SELECT group_concat(name) FROM pets"), "kept,more");
    drop(alone);
    fs::remove_file(beside(&copy, "-shm")).unwrap();
    let later = open(&copy, &V1, Mode::Durable).unwrap();
    assert_eq!(text(&later, "SELECT group_concat(name) FROM pets"), "kept,more");
}
