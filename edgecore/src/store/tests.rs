//! The store on a real file.

use proto::delta::{Patch, diff};
use proto::digest::{EntryHash, Inventory};
use proto::object::Epoch;
use proto::session::edge::{Change, Desired as Op, Report, Reported};
use proto::value::json;

use super::*;

fn parse(text: &str) -> Value {
    json::parse(text.as_bytes()).unwrap()
}

fn upsert(uid: Uid, key: Option<Key>, change: Change) -> Op {
    Op::Upsert { uid, key, revision: Revision(7), change }
}

fn desired(ops: Vec<Op>) -> Batch {
    Batch { desired: ops, ..Batch::default() }
}

#[tokio::test]
async fn what_was_committed_is_recovered() {
    let folder = tempfile::tempdir().unwrap();
    let (pod, like, secret) = (Uid([1; 16]), Uid([2; 16]), Uid([3; 16]));
    let one = parse(r#"{"apiVersion":"v1","spec":{"image":"a","args":["x"]}}"#);
    let two = parse(r#"{"apiVersion":"v1","spec":{"image":"b","args":["x"]}}"#);
    let hidden = parse(r#"{"apiVersion":"v1","data":{"key":"cGFzc3dvcmQ="}}"#);
    let key = |kind: &str, name: &str| Key::new(kind, "n", name);
    let report = |text: &str| Arc::new(Report::new(pod, &parse(text)));
    let expected = {
        let (store, recovered) = NodeStore::open(folder.path()).unwrap();
        assert_eq!(recovered, Recovered::default());
        let batch = desired(vec![
            upsert(pod, Some(key("Pod", "one")), Change::Full(one.clone())),
            // Against another entry of the same batch.
            upsert(
                like,
                Some(key("Pod", "two")),
                Change::Patch { base: pod, patch: diff(&one, &two) },
            ),
            upsert(secret, Some(key("Secret", "s")), Change::Full(hidden.clone())),
        ]);
        let committed = store.commit(batch).await.unwrap();
        assert_eq!(
            committed.changed,
            [key("Pod", "one"), key("Pod", "two"), key("Secret", "s")]
        );
        let held: Inventory = [
            (pod, EntryHash::of(&key("Pod", "one"), pod, &one)),
            (like, EntryHash::of(&key("Pod", "two"), like, &two)),
            (secret, EntryHash::of(&key("Secret", "s"), secret, &hidden)),
        ]
        .into_iter()
        .collect();
        let hashes: Vec<_> = committed.outcome.into_iter().collect::<Result<_, _>>().unwrap();
        assert_eq!(hashes, [pod, like, secret].map(|uid| held.hash(uid).unwrap()));
        let (latest, acked) = (report(r#"{"phase":"Running"}"#), report(r#"{"phase":"Pending"}"#));
        let batch = Batch {
            reports: [
                (
                    pod,
                    Some(Reported { latest: Arc::clone(&latest), acked: Some(Arc::clone(&acked)) }),
                ),
                (
                    like,
                    Some(Reported {
                        latest: Arc::clone(&latest),
                        acked: Some(Arc::clone(&latest)),
                    }),
                ),
            ]
            .into(),
            gone: [(like, true)].into(),
            events: vec![(1, vec![1]), (2, vec![2]), (3, vec![3])],
            events_done: Some(1),
            mark: Some((Epoch(u64::MAX), Revision(9))),
            incarnation: Some([5; 8]),
            ..Batch::default()
        };
        store.commit(batch).await.unwrap();
        store.remember(pod, Some(vec![4])).await;
        store.close().await;
        let like_report = Arc::new(Report::new(like, &parse(r#"{"phase":"Running"}"#)));
        Recovered {
            epoch: Epoch(u64::MAX),
            applied: Revision(9),
            incarnation: [5; 8],
            number: 3,
            held,
            reports: [
                (pod, Reported { latest, acked: Some(acked) }),
                (
                    like,
                    Reported { latest: Arc::clone(&like_report), acked: Some(like_report) },
                ),
            ]
            .into(),
            gone: [like].into(),
            events: [(2, vec![2]), (3, vec![3])].into(),
        }
    };
    let (store, recovered) = NodeStore::open(folder.path()).unwrap();
    assert_eq!(recovered, expected);
    let entry = store.entry(key("Secret", "s")).await.unwrap().unwrap();
    assert_eq!(entry.value.text_at(&["data", "key"]), Some("cGFzc3dvcmQ="));
    assert_eq!(entry.value.text_at(&["metadata", "name"]), Some("s"));
    assert_eq!(store.entries(Kind::from("Pod")).await.list.len(), 2);
    assert_eq!(store.memory(pod).await, Ok(Some(vec![4])));
    // A deletion takes the memory along.
    store.commit(desired(vec![Op::Delete { uid: pod }])).await.unwrap();
    assert_eq!(
        (store.entry(key("Pod", "one")).await, store.memory(pod).await),
        (Ok(None), Ok(None))
    );
}

#[tokio::test]
async fn a_memory_rides_on_the_next_commit_and_is_not_lost_without_one() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = NodeStore::open(folder.path()).unwrap();
    let (one, two, deleted) = (Uid([1; 16]), Uid([2; 16]), Uid([3; 16]));
    for uid in [one, deleted] {
        store.remember_with_next(uid, vec![1]);
    }
    assert_eq!(store.memory(one).await, Ok(None));
    store.commit(desired(vec![Op::Delete { uid: deleted }])).await.unwrap();
    assert_eq!(
        (store.memory(one).await, store.memory(deleted).await),
        (Ok(Some(vec![1])), Ok(None))
    );
    // It waits no longer: what came after it stays.
    store.remember(one, Some(vec![2])).await;
    store.remember_waiting(one).await;
    store.commit(Batch::default()).await.unwrap();
    assert_eq!(store.memory(one).await, Ok(Some(vec![2])));
    store.remember_with_next(two, vec![3]);
    store.remember_waiting(two).await;
    assert_eq!(store.memory(two).await, Ok(Some(vec![3])));
}

#[tokio::test]
async fn a_memory_that_rode_on_a_commit_that_failed_waits_for_the_next() {
    let folder = tempfile::tempdir().unwrap();
    NodeStore::open(folder.path()).unwrap().0.close().await;
    rusqlite::Connection::open(folder.path().join(DATABASE))
        .unwrap()
        .execute_batch("CREATE TRIGGER no BEFORE INSERT ON gone BEGIN SELECT RAISE(ABORT, 'no'); END")
        .unwrap();
    let (store, _) = NodeStore::open(folder.path()).unwrap();
    let (uid, gone) = (Uid([1; 16]), Uid([2; 16]));
    store.remember_with_next(uid, vec![1]);
    let batch = Batch { gone: [(gone, true)].into(), ..Batch::default() };
    store.commit(batch).await.unwrap_err();
    assert_eq!(store.memory(uid).await, Ok(None));
    store.commit(Batch::default()).await.unwrap();
    assert_eq!(store.memory(uid).await, Ok(Some(vec![1])));
}

#[tokio::test]
async fn a_patch_that_does_not_fit_changes_nothing_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = NodeStore::open(folder.path()).unwrap();
    let (uid, other) = (Uid([1; 16]), Uid([2; 16]));
    let key = Key::new("Pod", "n", "one");
    let patch = Patch::Elements(vec![]);
    let batch = desired(vec![
        upsert(uid, Some(key.clone()), Change::Full(parse("{}"))),
        upsert(uid, None, Change::Patch { base: uid, patch: patch.clone() }),
        upsert(other, Some(key.clone()), Change::Patch { base: other, patch }),
        upsert(other, None, Change::Full(parse("{}"))),
    ]);
    let outcome = store.commit(batch).await.unwrap().outcome;
    assert!(matches!(outcome[..], [Ok(_), Err(_), Err(_), Err(_)]), "{outcome:?}");
    assert_eq!(store.entries(Kind::from("Pod")).await.list.len(), 1);
}

#[tokio::test]
async fn secrets_stand_in_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = NodeStore::open(folder.path()).unwrap();
    let secret = parse(r#"{"data":{"key":"c2VjcmV0LXRleHQ="}}"#);
    let key = Key::new("Secret", "n", "s");
    store
        .commit(desired(vec![upsert(Uid([1; 16]), Some(key), Change::Full(secret))]))
        .await
        .unwrap();
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        assert!(!bytes.windows(10).any(|window| window == b"c2VjcmV0LX"));
    }
}

#[tokio::test]
async fn a_store_that_was_just_begun_does_not_know_what_is_not_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let key = Key::new("Pod", "n", "one");
    let fill = || desired(vec![upsert(Uid([1; 16]), Some(key.clone()), Change::Full(parse("{}")))]);
    let complete = async |store: &NodeStore| store.entries(Kind::from("Pod")).await.is_complete();
    {
        let (store, _) = NodeStore::open(folder.path()).unwrap();
        store.commit(fill()).await.unwrap();
        assert!(!complete(&store).await);
        assert!(store.note_synced());
        assert!(complete(&store).await);
        assert!(!store.note_synced(), "not for the first time");
        store.close().await;
    }
    // It was not durable that all was there.
    let (store, _) = NodeStore::open(folder.path()).unwrap();
    assert!(!complete(&store).await);
    let mark = Batch { mark: Some((Epoch(1), Revision(7))), ..Batch::default() };
    store.commit(mark).await.unwrap();
    store.close().await;
    let (store, _) = NodeStore::open(folder.path()).unwrap();
    assert!(complete(&store).await);
}

#[tokio::test]
async fn damage_that_reading_finds_sets_the_store_aside() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(DATABASE);
    let (store, _) = NodeStore::open(folder.path()).unwrap();
    let pods = (0..200).map(|number| {
        let key = Key::new("Pod", "n", format!("p{number}"));
        let body = Change::Full(parse(&format!(r#"{{"spec":"{}"}}"#, "x".repeat(100))));
        upsert(Uid([number; 16]), Some(key), body)
    });
    store.commit(desired(pods.collect())).await.unwrap();
    store.close().await;
    // A clean stop: nothing looks at the pages before they are read.
    let mut bytes = std::fs::read(&path).unwrap();
    let half = bytes.len() / 2;
    bytes[half..].fill(0xa5);
    std::fs::write(&path, bytes).unwrap();
    let (store, recovered) = NodeStore::open(folder.path()).unwrap();
    assert_eq!(recovered, Recovered::default());
    assert!(!store.entries(Kind::from("Pod")).await.is_complete());
    assert!(folder.path().join(format!("{DATABASE}.damaged")).exists());
}

#[tokio::test]
async fn who_asks_is_told_by_the_store_or_by_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = NodeStore::open(folder.path()).unwrap();
    let key = Key::new("Pod", "n", "one");
    let leaving = Key::new("Pod", "n", "two");
    let deleted = parse(r#"{"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z"}}"#);
    let mut batch = desired(vec![
        upsert(Uid([1; 16]), Some(key.clone()), Change::Full(parse("{}"))),
        upsert(Uid([2; 16]), Some(leaving.clone()), Change::Full(deleted)),
    ]);
    batch.gone.insert(Uid([2; 16]), true);
    store.commit(batch).await.unwrap();
    let pod = |key, gone| PodReport { key, latest: None, deleting: gone, gone };
    let expected = vec![pod(key, false), pod(leaving, true)];
    assert_eq!(store.reported().await, expected);
    // Nobody else reads it now.
    assert_eq!(read_reported(folder.path()).unwrap(), None);
    store.close().await;
    assert_eq!(read_reported(folder.path()).unwrap(), Some(expected));
    // Who read it did not keep it from being opened, nor left the mark of an unclean stop.
    drop(NodeStore::open(folder.path()).unwrap());
}

#[tokio::test]
async fn a_damaged_store_is_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    {
        let (store, _) = NodeStore::open(folder.path()).unwrap();
        let key = Key::new("Pod", "n", "one");
        let batch = desired(vec![upsert(Uid([1; 16]), Some(key), Change::Full(parse("{}")))]);
        store.commit(batch).await.unwrap();
        store.close().await;
    }
    std::fs::write(
        folder.path().join(DATABASE),
        "not a database at all, but long enough to look at",
    )
    .unwrap();
    let (store, recovered) = NodeStore::open(folder.path()).unwrap();
    assert_eq!(recovered, Recovered::default());
    assert!(store.entries(Kind::from("Pod")).await.list.is_empty());
    assert!(
        std::fs::read_dir(folder.path())
            .unwrap()
            .any(|file| { file.unwrap().file_name().to_string_lossy().contains("damaged") })
    );
}

#[tokio::test]
async fn it_answers_when_its_thread_does_and_never_without_one() {
    use tokio::task::yield_now;

    let folder = tempfile::tempdir().unwrap();
    let (store, _) = NodeStore::open(folder.path()).unwrap();
    store.answers().await;
    // As a disk would that takes its time.
    let waiting = Arc::clone(&store.waiting);
    let (held, is_held) = oneshot::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let holder = thread::spawn(move || {
        let guard = waiting.lock().unwrap();
        held.send(()).unwrap();
        released.recv().unwrap();
        drop(guard);
    });
    is_held.await.unwrap();
    let (commit, answers) = (store.commit(Batch::default()), store.answers());
    let mut both = Box::pin(async { tokio::join!(commit, answers) });
    for _ in 0..1000 {
        tokio::select! {
            biased;
            _ = &mut both => panic!("it answered while its thread was held up"),
            () = yield_now() => {}
        }
    }
    release.send(()).unwrap();
    both.await.0.unwrap();
    holder.join().unwrap();

    store.close().await;
    let later = Duration::from_millis(50);
    assert!(tokio::time::timeout(later, store.answers()).await.is_err());
}
