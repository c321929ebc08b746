//! What is on the disk: sealing, back-ups, skew, damage, no room.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use rusqlite::Connection;

use super::super::open::{DATABASE, KEY};
use super::*;

/// The files as a power cut would leave them: the database and its log, while the store runs.
fn cut(from: &Path) -> Place {
    let copy = Place::new();
    for name in [DATABASE, "cloud.db-wal", KEY] {
        fs::copy(from.join(name), copy.folder.path().join(name)).unwrap();
    }
    copy
}

#[tokio::test]
async fn a_store_that_was_cut_off_is_what_it_said_it_was() {
    let place = Place::new();
    let store = place.open();
    let first = write(&store, "a", "1").await;
    let second = write(&store, "b", "1").await;
    let copy = cut(place.folder.path());
    write(&store, "a", "2").await;

    let other = copy.open();
    assert_eq!((other.revision(), other.epoch()), (second.revision, store.epoch()));
    assert_eq!(
        (other.get(&first.key), other.get(&second.key)),
        (Some(first), Some(second))
    );
    // Its history is there as well.
    let mut watch = other.watch(Scope::kind("ConfigMap"), FIRST).unwrap();
    assert_eq!(next(&mut watch).await.unwrap().revision, Revision(2));
    assert_eq!(next(&mut watch).await.unwrap().revision, Revision(3));
    let revision = store.revision();
    drop(store);
    let store = place.open();
    assert_eq!(store.revision(), revision);
    assert_eq!(text(&store.get(&config_map_key("a")).unwrap()), "2");
}

#[tokio::test]
async fn a_folder_has_one_store() {
    let place = Place::new();
    let store = place.open();
    assert!(matches!(Store::open(place.config()), Err(OpenError::Lock(_))));
    // A handle more keeps it open, the last one that goes closes it.
    let handle = store.clone();
    drop(store);
    write(&handle, "a", "1").await;
    drop(handle);
    // The clean stop: no log is left, and the next start has nothing to check.
    assert!(!place.folder.path().join("cloud.db-wal").exists());
    place.open();
}

const SECRET: &str = "correct horse battery staple";

#[tokio::test]
async fn secrets_are_in_no_file() {
    let place = Place::new();
    let store = place.open();
    let key = Key::new("Secret", "default", "s");
    let uid = random::uid();
    let value = object("v1", "Secret", &key, uid, ("data", SECRET));
    let made = one(&store, Op::Create { key: key.clone(), value: value.clone() })
        .await
        .unwrap();
    let mut changed = value;
    changed.set(&["data", "more"], SECRET);
    one(
        &store,
        Op::Replace { key: key.clone(), value: changed, when: When::ANY },
    )
    .await
    .unwrap();
    let record = Op::PutRecord {
        space: "ca",
        id: "key".to_owned(),
        bytes: SECRET.as_bytes().to_vec(),
    };
    store.commit(Lane::Control, vec![record]).await.unwrap();
    // To show that looking finds something.
    write(&store, "a", "plain text").await;
    store.backup(&place.folder.path().join("copy")).await.unwrap();

    let found = |text: &str| {
        let files = fs::read_dir(place.folder.path()).unwrap();
        let bytes: Vec<Vec<u8>> = files.map(|file| fs::read(file.unwrap().path()).unwrap()).collect();
        bytes
            .iter()
            .any(|file| file.windows(text.len()).any(|part| part == text.as_bytes()))
    };
    assert!(found("plain text"));
    assert!(!found(SECRET));
    // Nor is a hash that guesses could be tried on.
    let hash = made.projection.unwrap();
    let plain_hash = Connection::open(place.folder.path().join(DATABASE)).unwrap().query_row(
        "SELECT count(*) FROM versions WHERE projection = ?1",
        [hash.0],
        |row| row.get::<_, i64>(0),
    );
    assert_eq!(plain_hash, Ok(0));

    let now = store.get(&key);
    let before = store.get_at(&key, made.revision).await.unwrap().unwrap();
    assert_eq!(before.value(), made.value());
    drop(store);
    assert!(!found(SECRET));
    let store = place.open();
    assert_eq!(store.get(&key), now);
    assert_eq!(store.record("ca", "key").as_deref(), Some(SECRET.as_bytes()));
}

#[tokio::test]
async fn a_database_wants_its_own_key() {
    let (place, other) = (Place::new(), Place::new());
    drop((place.open(), other.open()));
    let key = place.folder.path().join(KEY);
    fs::copy(other.folder.path().join(KEY), &key).unwrap();
    assert!(matches!(Store::open(place.config()), Err(OpenError::OtherKey { .. })));
    fs::remove_file(&key).unwrap();
    assert!(matches!(Store::open(place.config()), Err(OpenError::KeyMissing { .. })));
    // It never makes a new key for an old database.
    assert!(!key.exists());
}

#[tokio::test]
async fn a_sealed_body_opens_in_its_own_row_only() {
    let place = Place::new();
    let store = place.open();
    for name in ["a", "b"] {
        let key = Key::new("Secret", "default", name);
        let value = object("v1", "Secret", &key, random::uid(), ("data", name));
        one(&store, Op::Create { key, value }).await.unwrap();
    }
    drop(store);
    let file = Connection::open(place.folder.path().join(DATABASE)).unwrap();
    file.execute_batch("UPDATE bodies SET bytes = (SELECT bytes FROM bodies WHERE revision = 2) WHERE revision = 3")
        .unwrap();
    drop(file);
    assert!(matches!(
        Store::open(place.config()),
        Err(OpenError::Load(RowError::Sealed { .. }))
    ));
}

#[tokio::test]
async fn a_back_up_begins_a_new_epoch() {
    let place = Place::new();
    let store = place.open();
    let kept = write(&store, "a", "1").await;
    make_pod(&store, "p", "n").await;
    store.set_low_water("n", Some(store.revision()));
    let file = place.folder.path().join("copy.db");
    let at = store.backup(&file).await.unwrap();
    assert_eq!(at, store.revision());
    // Another process can make one as well, beside this one.
    assert_eq!(backup_folder(place.folder.path(), &file).unwrap(), at);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let lost = write(&store, "b", "1").await;

    let new = Place::new();
    fs::copy(&file, new.folder.path().join(DATABASE)).unwrap();
    assert!(matches!(Store::open(new.config()), Err(OpenError::KeyMissing { .. })));
    fs::copy(place.folder.path().join(KEY), new.folder.path().join(KEY)).unwrap();
    let restored = new.open();
    assert_ne!(restored.epoch(), store.epoch());
    assert_eq!(restored.revision(), Revision(at.0 + EPOCH_GAP));
    assert_eq!(restored.get(&kept.key), Some(Arc::clone(&kept)));
    assert_eq!(restored.get(&lost.key), None);
    assert_eq!(restored.low_water("n"), None);
    // Whoever watched the old store must list again, from whatever revision.
    for revision in [kept.revision, at, lost.revision] {
        assert!(restored.watch(Scope::kind("ConfigMap"), revision).is_err());
        assert!(
            restored
                .list(&Scope::kind("Pod"), At::Exact(revision), None, None)
                .await
                .is_err()
        );
    }
    let next = write(&restored, "b", "2").await;
    assert_eq!(next.revision, Revision(at.0 + EPOCH_GAP + 1));
    // It is a store like any other now: the epoch lasts.
    let epoch = restored.epoch();
    drop(restored);
    let restored = new.open();
    assert_eq!((restored.epoch(), restored.revision()), (epoch, next.revision));
    assert_eq!(restored.get(&next.key), Some(next));
}

#[tokio::test]
async fn a_back_up_of_a_busy_store_is_of_one_moment() {
    let place = Place::new();
    let store = place.open();
    let file = place.folder.path().join("copy.db");
    let writer = async {
        for at in 0..200 {
            // Both or none are in any snapshot.
            let pair = ["a", "b"].map(|side| {
                let name = format!("{side}{at}");
                Op::Create {
                    key: config_map_key(&name),
                    value: config_map(&name, random::uid(), ""),
                }
            });
            store.commit(Lane::Api, pair.to_vec()).await.unwrap();
        }
    };
    let backups = async {
        let mut at = Vec::new();
        for _ in 0..5 {
            at.push(store.backup(&file).await.unwrap());
        }
        at
    };
    let ((), at) = tokio::join!(writer, backups);
    assert!(at.is_sorted());
    let copy = Place::new();
    fs::copy(&file, copy.folder.path().join(DATABASE)).unwrap();
    fs::copy(place.folder.path().join(KEY), copy.folder.path().join(KEY)).unwrap();
    let names = names(&copy.open(), &Scope::kind("ConfigMap"), At::Latest)
        .await
        .unwrap();
    let (a, b): (Vec<_>, Vec<_>) = names.iter().partition(|name| name.starts_with('a'));
    assert_eq!(a.len(), b.len());
    assert_eq!(names.len() as u64 + 1, at[4].0);
}

#[tokio::test]
async fn a_side_that_is_behind_starts_a_new_epoch() {
    let place = Place::new();
    let store = place.open();
    let object = write(&store, "a", "1").await;
    let mut watch = store.watch(Scope::kind("ConfigMap"), store.revision()).unwrap();
    store.set_low_water("n", Some(object.revision));
    let epoch = store.epoch();
    store.renew(Revision(1000)).await.unwrap();
    assert_ne!(store.epoch(), epoch);
    assert_eq!(
        (store.revision(), store.low_water("n")),
        (Revision(1000 + EPOCH_GAP), None)
    );
    assert!(store.watch(Scope::kind("ConfigMap"), object.revision).is_err());
    // Who was watching has missed nothing and goes on.
    let changed = write(&store, "a", "2").await;
    let change = next(&mut watch).await.unwrap();
    assert_eq!(
        (change.before, change.after),
        (Some(object), Some(Arc::clone(&changed)))
    );
    let epoch = store.epoch();
    drop((watch, store));
    let store = place.open();
    assert_eq!((store.epoch(), store.get(&changed.key)), (epoch, Some(changed)));
}

#[tokio::test]
async fn an_older_binary_opens_a_newer_file_that_says_so() {
    let place = Place::new();
    let made = write(&place.open(), "a", "1").await;
    let alter = |readable_from: u32| {
        let file = Connection::open(place.folder.path().join(DATABASE)).unwrap();
        file.execute_batch("PRAGMA user_version = 2").unwrap();
        file.execute(
            "UPDATE meta SET value = ?1 WHERE name = 'readable_from'",
            [readable_from],
        )
        .unwrap();
    };
    alter(1);
    let store = place.open();
    assert_eq!(store.get(&made.key), Some(made));
    write(&store, "a", "2").await;
    drop(store);
    alter(2);
    let error = Store::open(place.config()).unwrap_err();
    assert!(
        matches!(
            error,
            OpenError::Database(SqliteError::Newer { found: 2, known: 1, .. })
        ),
        "{error}"
    );
}

#[tokio::test]
async fn a_damaged_file_is_called_one() {
    let place = Place::new();
    write(&place.open(), "a", "1").await;
    fs::write(place.folder.path().join(DATABASE), [b'x'; 8192]).unwrap();
    let error = Store::open(place.config()).unwrap_err();
    assert!(error.is_damage(), "{error}");
}

#[tokio::test]
async fn a_full_disk_loses_nothing_and_passes() {
    let place = Place::new();
    // Room for some of it, and a history that gives room back at once.
    let config = Config {
        file_bytes_max: 2 << 20,
        history: NO_HISTORY,
        ..place.config()
    };
    let store = Store::open(config).unwrap();
    let large = "x".repeat(200_000);
    let mut made = Vec::new();
    let full = loop {
        let name = format!("c{}", made.len());
        let op = Op::Create {
            key: config_map_key(&name),
            value: config_map(&name, random::uid(), &large),
        };
        match one(&store, op).await {
            Ok(object) => made.push(object),
            Err(error) => break error,
        }
    };
    assert!(matches!(full, CommitError::Full), "{full}");
    assert!(made.len() > 3);
    assert_eq!(store.revision(), made.last().unwrap().revision);
    // Of several that come together, those that fit pass.
    let small = Op::PutRecord { space: "s", id: "small".to_owned(), bytes: vec![1] };
    let too_large = Op::PutRecord { space: "s", id: "large".to_owned(), bytes: vec![0; 500_000] };
    let (one_small, one_large) = tokio::join!(
        store.commit(Lane::Api, vec![small]),
        store.commit(Lane::Api, vec![too_large])
    );
    one_small.unwrap();
    assert!(matches!(one_large, Err(CommitError::Full)));

    for object in &made[..2] {
        delete(&store, &object.key).await;
    }
    // The transaction after a deletion lets its body go, and there is room again.
    store
        .commit(
            Lane::Api,
            vec![Op::PutRecord { space: "s", id: "x".to_owned(), bytes: vec![1] }],
        )
        .await
        .unwrap();
    write(&store, "again", &large).await;
    let names_before = names(&store, &Scope::kind("ConfigMap"), At::Latest).await.unwrap();
    drop(store);
    let store = place.open();
    assert_eq!(
        names(&store, &Scope::kind("ConfigMap"), At::Latest).await.unwrap(),
        names_before
    );
    store.check().await.unwrap();
}

#[tokio::test]
async fn an_idle_store_writes_nothing() {
    let place = Place::new();
    let store = Store::open(Config { history: NO_HISTORY, ..place.config() }).unwrap();
    write(&store, "a", "1").await;
    let files = || {
        let mut files: Vec<_> = fs::read_dir(place.folder.path())
            .unwrap()
            .map(|file| file.unwrap())
            .filter(|file| !file.file_name().to_string_lossy().ends_with("-shm"))
            .map(|file| (file.file_name(), fs::read(file.path()).unwrap()))
            .collect();
        files.sort();
        files
    };
    let before = files();
    // Nothing of this is a reason to write: what nodes acknowledge, what is read, what changes nothing.
    store.set_low_water("n", Some(store.revision()));
    write(&store, "a", "1").await;
    names(&store, &Scope::kind("ConfigMap"), At::Latest).await.unwrap();
    store.commit(Lane::Api, Vec::new()).await.unwrap();
    assert_eq!(files(), before);
    // A clean stop saves what was acknowledged.
    drop(store);
    assert_eq!(place.open().low_water("n"), Some(Revision(2)));
}

/// Names the data folder to the process that is going to be killed.
const VICTIM: &str = "EDGEHOLD_TEST_VICTIM";

/// Not a test by itself: writes until it is killed, and says what was acknowledged.
#[tokio::test]
async fn victim() {
    let Some(folder) = std::env::var_os(VICTIM) else { return };
    let store = Store::open(Config { history: NO_HISTORY, ..Config::new(folder) }).unwrap();
    for at in names(&store, &Scope::kind("ConfigMap"), At::Latest)
        .await
        .unwrap()
        .len()..
    {
        // Two at a time: a commit is there as a whole or not at all.
        let pair = ["a", "b"].map(|side| {
            let name = format!("{side}{at}");
            let kind = if side == "a" { "ConfigMap" } else { "Secret" };
            let key = Key::new(kind, "default", name);
            Op::Create {
                value: object("v1", kind, &key, random::uid(), ("data", "x")),
                key,
            }
        });
        store.commit(Lane::Api, pair.to_vec()).await.unwrap();
        println!("acknowledged {at}");
    }
}

#[tokio::test]
async fn killed_at_any_moment_it_has_what_it_acknowledged() {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    let place = Place::new();
    let mut epoch = None;
    for round in 1..=5 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "store::tests::files::victim", "--nocapture"])
            .env(VICTIM, place.folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok);
        let acknowledged = |line: String| line.strip_prefix("acknowledged ")?.parse::<usize>().ok();
        let enough = lines.by_ref().filter_map(acknowledged).nth(round * 7).unwrap();
        child.kill().unwrap();
        // What it still said before it died counts as well.
        let last = lines.filter_map(acknowledged).last().unwrap_or(enough);
        child.wait().unwrap();

        let store = place.open();
        let maps = names(&store, &Scope::kind("ConfigMap"), At::Latest)
            .await
            .unwrap()
            .len();
        let secrets = names(&store, &Scope::kind("Secret"), At::Latest).await.unwrap().len();
        assert!(maps == last + 1 || maps == last + 2, "{maps} of {last}");
        assert_eq!(maps, secrets);
        assert_eq!(store.revision().0, FIRST.0 + (maps + secrets) as u64);
        assert_eq!(*epoch.get_or_insert_with(|| store.epoch()), store.epoch());
    }
}
