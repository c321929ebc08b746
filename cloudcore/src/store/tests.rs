//! The store from outside. `laws` compares it with a model, `races` runs many at once, `retention` is about what is
//! kept for how long, `files` about what is on the disk.

mod files;
mod laws;
mod races;
mod retention;

use std::time::Duration;

use daemon::random;
use proto::digest::EntryHash;
use proto::value::Value;
use tempfile::TempDir;

use super::open::FIRST;
use super::*;

/// Where a test gives up waiting.
const DEADLINE: Duration = Duration::from_secs(30);

struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn config(&self) -> Config {
        Config::new(self.folder.path())
    }

    fn open(&self) -> Store {
        Store::open(self.config()).unwrap()
    }
}

/// A history that forgets everything at once.
const NO_HISTORY: HistoryLimits = HistoryLimits {
    age: Duration::ZERO,
    writes: 0,
    bytes: usize::MAX,
    bases_bytes: usize::MAX,
};

fn config_map_key(name: &str) -> Key {
    Key::new("ConfigMap", "default", name)
}

fn config_map(name: &str, uid: Uid, data: &str) -> Value {
    object("v1", "ConfigMap", &config_map_key(name), uid, ("data", data))
}

fn object(version: &str, kind: &str, key: &Key, uid: Uid, (field, text): (&str, &str)) -> Value {
    let mut value = Value::from([("apiVersion", version), ("kind", kind)]);
    value.set(&["metadata", "name"], key.name.as_str());
    if !key.namespace.is_empty() {
        value.set(&["metadata", "namespace"], key.namespace.as_str());
    }
    value.set(&["metadata", "uid"], uid.to_string());
    value.set(&[field, "text"], text);
    value
}

fn pod_key(name: &str) -> Key {
    Key::new("Pod", "default", name)
}

fn pod(name: &str, uid: Uid, node: &str) -> Value {
    let mut pod = object("v1", "Pod", &pod_key(name), uid, ("spec", "x"));
    if !node.is_empty() {
        pod.set(&["spec", "nodeName"], node);
    }
    pod
}

async fn one(store: &Store, op: Op) -> Result<Arc<Stored>, CommitError> {
    let done = store.commit(Lane::Api, vec![op]).await?;
    Ok(done.into_iter().next().flatten().unwrap())
}

/// Writes a config map, whether it is there or not.
async fn write(store: &Store, name: &str, data: &str) -> Arc<Stored> {
    let key = config_map_key(name);
    let op = match store.get(&key) {
        Some(object) => Op::Replace {
            value: config_map(name, object.uid, data),
            when: When::unchanged(&object),
            key,
        },
        None => Op::Create { value: config_map(name, random::uid(), data), key },
    };
    one(store, op).await.unwrap()
}

async fn make_pod(store: &Store, name: &str, node: &str) -> Arc<Stored> {
    let key = pod_key(name);
    one(store, Op::Create { key, value: pod(name, random::uid(), node) })
        .await
        .unwrap()
}

async fn delete(store: &Store, key: &Key) -> Arc<Stored> {
    one(store, Op::Delete { key: key.clone(), when: When::ANY })
        .await
        .unwrap()
}

async fn names(store: &Store, scope: &Scope, at: At) -> Result<Vec<String>, ListError> {
    let page = store.list(scope, at, None, None).await?;
    Ok(page.items.iter().map(|object| object.key.name.clone()).collect())
}

async fn next(watch: &mut Watch) -> Result<Change, Expired> {
    tokio::time::timeout(DEADLINE, watch.next())
        .await
        .expect("a change in time")
}

fn text(object: &Stored) -> String {
    let value = object.value();
    let data = value
        .text_at(&["data", "text"])
        .or_else(|| value.text_at(&["spec", "text"]));
    data.unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_write_is_seen_by_its_caller() {
    let place = Place::new();
    let store = place.open();
    assert_eq!((store.revision(), store.oldest()), (FIRST, FIRST));
    let made = write(&store, "a", "1").await;
    assert_eq!(
        (made.revision, made.created, made.projected),
        (Revision(2), Revision(2), Revision(2))
    );
    assert_eq!(store.get(&config_map_key("a")), Some(Arc::clone(&made)));
    assert_eq!(store.by_uid(made.uid), Some(Arc::clone(&made)));
    assert_eq!(made.value().text_at(&["metadata", "resourceVersion"]), Some("2"));
    assert_eq!(made.body().text_at(&["metadata", "resourceVersion"]), None);

    let changed = write(&store, "a", "2").await;
    assert_eq!(
        (changed.revision, changed.created, changed.projected),
        (Revision(3), Revision(2), Revision(3))
    );
    // The same once more is no write.
    assert_eq!(write(&store, "a", "2").await, changed);
    assert_eq!(store.revision(), Revision(3));

    assert_eq!(delete(&store, &config_map_key("a")).await, changed);
    assert_eq!((store.get(&config_map_key("a")), store.by_uid(made.uid)), (None, None));
    assert_eq!(store.revision(), Revision(4));
}

#[tokio::test]
async fn every_refusal_has_its_name() {
    let place = Place::new();
    let store = place.open();
    let object = write(&store, "a", "1").await;
    let key = config_map_key("a");
    let other = random::uid();
    let refused = async |op| {
        let error = one(&store, op).await.unwrap_err();
        assert!(!error.is_retryable());
        error.to_string()
    };
    let value = || config_map("a", object.uid, "2");
    let wrong_revision = When { revision: Some(Revision(1)), ..When::ANY };
    let wrong_uid = When { uid: Some(other), ..When::ANY };
    let create = |key: &Key, value: Value| Op::Create { key: key.clone(), value };
    let replace = |when| Op::Replace { key: key.clone(), value: value(), when };

    assert_eq!(
        refused(create(&key, value())).await,
        "ConfigMap/default/a exists already"
    );
    assert_eq!(
        refused(create(&config_map_key("b"), config_map("b", object.uid, ""))).await,
        format!("the uid {} belongs to ConfigMap/default/a", object.uid)
    );
    assert_eq!(
        refused(replace(wrong_revision)).await,
        "ConfigMap/default/a is at revision 2, not 1"
    );
    assert_eq!(
        refused(replace(wrong_uid)).await,
        format!("ConfigMap/default/a has the uid {}, not {other}", object.uid)
    );
    assert_eq!(
        refused(Op::Replace {
            key: key.clone(),
            value: config_map("a", other, "2"),
            when: When::ANY
        })
        .await,
        format!("ConfigMap/default/a has the uid {}, not {other}", object.uid)
    );
    assert_eq!(
        refused(Op::Delete { key: key.clone(), when: wrong_revision }).await,
        "ConfigMap/default/a is at revision 2, not 1"
    );
    assert_eq!(
        refused(Op::Delete { key: config_map_key("b"), when: When::ANY }).await,
        "ConfigMap/default/b does not exist"
    );
    for (field, value) in [
        ("metadata.name", config_map("b", other, "")),
        ("metadata.namespace", object_in_no_namespace(other)),
        ("kind", pod("b", other, "")),
        ("metadata.uid", {
            let mut value = config_map("b", other, "");
            value.set(&["metadata", "uid"], "x");
            value
        }),
    ] {
        let name = if field == "metadata.name" { "x" } else { "b" };
        assert_eq!(
            refused(create(&config_map_key(name), value)).await,
            format!("{field} of ConfigMap/default/{name} is missing or does not fit its place")
        );
    }
    assert_eq!(store.revision(), Revision(2));
}

fn object_in_no_namespace(uid: Uid) -> Value {
    object("v1", "ConfigMap", &Key::new("ConfigMap", "", "b"), uid, ("data", ""))
}

#[tokio::test]
async fn a_commit_happens_as_a_whole() {
    let place = Place::new();
    let store = place.open();
    let create = |name: &str| Op::Create {
        key: config_map_key(name),
        value: config_map(name, random::uid(), ""),
    };
    let drop_a = Op::Delete { key: config_map_key("a"), when: When::ANY };
    let put = Op::PutRecord { space: "s", id: "i".to_owned(), bytes: vec![1] };
    let done = store
        .commit(
            Lane::Api,
            vec![create("a"), create("b"), drop_a, put.clone(), create("a")],
        )
        .await
        .unwrap();
    let revisions: Vec<_> = done.iter().flatten().map(|object| object.revision.0).collect();
    // The deletion took a revision of its own, and returned what it deleted.
    assert_eq!(revisions, [2, 3, 2, 5]);
    assert_eq!(store.revision(), Revision(5));

    let again = vec![
        create("c"),
        Op::DeleteRecord { space: "s", id: "i".to_owned() },
        create("b"),
    ];
    assert!(matches!(
        store.commit(Lane::Api, again).await,
        Err(CommitError::Exists(_))
    ));
    assert_eq!(store.revision(), Revision(5));
    assert_eq!(store.get(&config_map_key("c")), None);
    assert_eq!(store.record("s", "i").as_deref(), Some([1].as_slice()));
}

#[tokio::test]
async fn records_can_be_compared() {
    let place = Place::new();
    let store = place.open();
    let id = || "token".to_owned();
    let swap = async |from: Option<&[u8]>, to: &[u8]| {
        let expect = Op::ExpectRecord { space: "tokens", id: id(), bytes: from.map(<[u8]>::to_vec) };
        let put = Op::PutRecord { space: "tokens", id: id(), bytes: to.to_vec() };
        store.commit(Lane::Control, vec![expect, put]).await.map(drop)
    };
    swap(None, b"2").await.unwrap();
    assert!(matches!(swap(None, b"9").await, Err(CommitError::Record { .. })));
    swap(Some(b"2"), b"1").await.unwrap();
    let error = swap(Some(b"2"), b"1").await.unwrap_err();
    assert!(error.is_conflict());
    assert_eq!(store.records("tokens"), [(id(), Arc::from(b"1".as_slice()))]);
    assert_eq!(store.record("others", "token"), None);
    // Records take no revisions.
    assert_eq!(store.revision(), FIRST);
}

#[tokio::test]
async fn a_report_is_its_nodes_own() {
    let place = Place::new();
    let store = place.open();
    let pod = make_pod(&store, "a", "n1").await;
    let report = |node: &str, phase: &str| Op::Report {
        uid: pod.uid,
        node: node.to_owned(),
        value: Some(Value::from([("phase", phase)])),
    };
    let running = one(&store, report("n1", "Running")).await.unwrap();
    assert_eq!(running.value().text_at(&["status", "phase"]), Some("Running"));
    assert_eq!(running.body().get("status"), None);
    // What a node says of a pod never comes back to it.
    assert_eq!((running.revision, running.projected), (Revision(3), Revision(2)));
    assert_eq!(running.projection, pod.projection);
    assert_eq!(
        one(&store, report("n1", "Running")).await.unwrap().revision,
        Revision(3)
    );
    assert!(matches!(
        one(&store, report("n2", "Failed")).await,
        Err(CommitError::NotItsNode { .. })
    ));

    // One on what is gone fails nothing that comes with it.
    let late = Op::Report {
        uid: random::uid(),
        node: "n1".to_owned(),
        value: Some(Value::map()),
    };
    let put = Op::PutRecord { space: "s", id: "received".to_owned(), bytes: vec![7] };
    assert_eq!(store.commit(Lane::Status, vec![late, put]).await.unwrap(), [None, None]);
    assert_eq!(store.record("s", "received").as_deref(), Some([7].as_slice()));

    // The report outlives a change of the spec, and a restart.
    let mut value = running.body();
    value.set(&["spec", "text"], "y");
    let replaced = one(&store, Op::Replace { key: pod.key.clone(), value, when: When::ANY })
        .await
        .unwrap();
    assert_eq!(replaced.value().text_at(&["status", "phase"]), Some("Running"));
    drop(store);
    let store = place.open();
    assert_eq!(store.get(&pod.key), Some(replaced));
    let cleared = Op::Report { uid: pod.uid, node: "n1".to_owned(), value: None };
    assert_eq!(one(&store, cleared).await.unwrap().report(), None);
}

#[tokio::test]
async fn what_does_not_reach_nodes_has_no_projection() {
    let place = Place::new();
    let store = place.open();
    let key = Key::new("Deployment.apps", "default", "d");
    let value = object("apps/v1", "Deployment", &key, random::uid(), ("spec", ""));
    let made = one(&store, Op::Create { key, value }).await.unwrap();
    assert_eq!(made.projection, None);
    let config = write(&store, "a", "1").await;
    let projection = projection::project(&config.body()).unwrap();
    assert_eq!(
        config.projection,
        Some(EntryHash::of(&config.key, config.uid, &projection))
    );
}

#[tokio::test]
async fn sizes_end_at_their_limits() {
    let place = Place::new();
    let store = place.open();
    let empty = config_map("a", random::uid(), "");
    let of_size = |bytes: usize| {
        // The text's own length takes two more bytes once it is long.
        let mut value = empty.clone();
        let text = "x".repeat(bytes - proto::value::canonical::encode(&empty).len() - 2);
        value.set(&["data", "text"], text);
        value
    };
    let key = config_map_key("a");
    let error = one(
        &store,
        Op::Create { key: key.clone(), value: of_size(OBJECT_BYTES_MAX + 1) },
    )
    .await
    .unwrap_err();
    assert!(
        matches!(error, CommitError::TooLarge { bytes, .. } if bytes == OBJECT_BYTES_MAX + 1),
        "{error}"
    );
    let made = one(&store, Op::Create { key, value: of_size(OBJECT_BYTES_MAX) })
        .await
        .unwrap();
    assert_eq!(made.bytes(), OBJECT_BYTES_MAX);

    let record = |bytes| vec![Op::PutRecord { space: "s", id: String::new(), bytes: vec![0; bytes] }];
    store.commit(Lane::Api, record(OBJECT_BYTES_MAX)).await.unwrap();
    assert!(matches!(
        store.commit(Lane::Api, record(OBJECT_BYTES_MAX + 1)).await,
        Err(CommitError::TooLarge { .. })
    ));
    let many = |count| vec![Op::DeleteRecord { space: "s", id: String::new() }; count];
    store.commit(Lane::Api, many(OPS_MAX)).await.unwrap();
    assert!(matches!(
        store.commit(Lane::Api, many(OPS_MAX + 1)).await,
        Err(CommitError::TooMany(_))
    ));
}

#[tokio::test]
async fn objects_together_end_at_their_limit() {
    let place = Place::new();
    let store = Store::open(Config { objects_bytes_max: 3000, ..place.config() }).unwrap();
    write(&store, "a", &"x".repeat(1000)).await;
    write(&store, "b", &"x".repeat(1000)).await;
    let key = config_map_key("c");
    let large = || Op::Create {
        key: key.clone(),
        value: config_map("c", random::uid(), &"x".repeat(1000)),
    };
    let error = one(&store, large()).await.unwrap_err();
    assert!(matches!(error, CommitError::Full));
    assert!(error.is_retryable());
    // What makes things smaller always passes.
    write(&store, "a", "").await;
    one(&store, large()).await.unwrap();
}

#[tokio::test]
async fn lists_go_page_by_page_at_one_revision() {
    let place = Place::new();
    let store = place.open();
    for name in ["a", "b", "c", "d", "e"] {
        write(&store, name, "1").await;
    }
    let scope = Scope::namespace("ConfigMap", "default");
    let first = store.list(&scope, At::Latest, None, Some(2)).await.unwrap();
    assert_eq!((first.more, first.remaining, first.revision), (true, 3, Revision(6)));
    // What happens meanwhile is not in the pages that follow.
    delete(&store, &config_map_key("d")).await;
    write(&store, "c", "2").await;
    write(&store, "bb", "new").await;
    let at = At::Exact(first.revision);
    let second = store.list(&scope, at, first.last(), Some(2)).await.unwrap();
    let texts: Vec<_> = second
        .items
        .iter()
        .map(|object| (object.key.name.as_str(), text(object)))
        .collect();
    assert_eq!(texts, [("c", "1".to_owned()), ("d", "1".to_owned())]);
    assert_eq!(
        (second.more, second.remaining, second.revision),
        (true, 1, first.revision)
    );
    let third = store.list(&scope, at, second.last(), Some(2)).await.unwrap();
    assert_eq!((third.items.len(), third.more, third.remaining), (1, false, 0));
    let rest = store.list(&scope, At::Latest, first.last(), None).await.unwrap();
    assert_eq!((rest.items.len(), rest.more), (3, false));

    assert_eq!(
        names(&store, &Scope::kind("ConfigMap"), at).await.unwrap(),
        ["a", "b", "c", "d", "e"]
    );
    assert!(
        names(&store, &Scope::namespace("ConfigMap", "defaul"), at)
            .await
            .unwrap()
            .is_empty()
    );
    assert!(
        names(&store, &Scope::kind("Secret"), At::Latest)
            .await
            .unwrap()
            .is_empty()
    );
    let future = store.list(&scope, At::Exact(Revision(100)), None, None).await;
    assert!(matches!(future, Err(ListError::Future { latest: Revision(9), .. })));
}

#[tokio::test]
async fn pods_are_found_by_their_node() {
    let place = Place::new();
    let store = place.open();
    make_pod(&store, "a", "n1").await;
    make_pod(&store, "b", "n2").await;
    let c = make_pod(&store, "c", "").await;
    let before = store.revision();
    let mut watch = store.watch(Scope::pods_of("n1"), before).unwrap();
    let bound = Op::Replace {
        key: c.key.clone(),
        value: pod("c", c.uid, "n1"),
        when: When::ANY,
    };
    one(&store, bound).await.unwrap();
    let of_n1 = Scope::pods_of("n1");
    assert_eq!(names(&store, &of_n1, At::Latest).await.unwrap(), ["a", "c"]);
    assert_eq!(names(&store, &of_n1, At::Exact(before)).await.unwrap(), ["a"]);
    assert_eq!(
        names(&store, &Scope::pods_of("n3"), At::Latest).await.unwrap(),
        Vec::<String>::new()
    );
    let change = next(&mut watch).await.unwrap();
    assert_eq!(change.before.as_deref().and_then(Stored::node), None);
    assert_eq!(change.after.as_deref().and_then(Stored::node), Some("n1"));
    // A pod that leaves a node is news for who watches that node, too.
    let mut old = store.watch(Scope::pods_of("n2"), store.revision()).unwrap();
    let b = store.get(&pod_key("b")).unwrap();
    let moved = Op::Replace {
        key: b.key.clone(),
        value: pod("b", b.uid, "n1"),
        when: When::ANY,
    };
    one(&store, moved).await.unwrap();
    assert_eq!(next(&mut old).await.unwrap(), next(&mut watch).await.unwrap());
    delete(&store, &pod_key("a")).await;
    assert_eq!(names(&store, &of_n1, At::Latest).await.unwrap(), ["b", "c"]);
}

#[tokio::test]
async fn a_watch_delivers_what_follows() {
    let place = Place::new();
    let store = place.open();
    write(&store, "a", "1").await;
    let from = store.revision();
    let mut watch = store.watch(Scope::kind("ConfigMap"), from).unwrap();
    assert_eq!(watch.seen(), from);
    let second = write(&store, "a", "2").await;
    make_pod(&store, "p", "n").await;
    assert_eq!(watch.seen(), from);
    let change = next(&mut watch).await.unwrap();
    assert_eq!(
        (change.revision, change.after.clone()),
        (second.revision, Some(Arc::clone(&second)))
    );
    assert_eq!(change.before.map(|object| text(&object)).as_deref(), Some("1"));
    // A pod concerns nobody here: it counts as seen.
    assert_eq!(watch.seen(), store.revision());
    delete(&store, &config_map_key("a")).await;
    let change = next(&mut watch).await.unwrap();
    assert_eq!(
        change,
        Change {
            revision: store.revision(),
            before: Some(second),
            after: None
        }
    );

    // From the middle, and over several scopes at once.
    let scopes = vec![Scope::kind("Pod"), Scope::kind("ConfigMap"), Scope::pods_of("n")];
    let mut all = store.watch_many(scopes, Revision(2)).unwrap();
    for revision in 3..=5 {
        assert_eq!(next(&mut all).await.unwrap().revision, Revision(revision));
    }
    assert_eq!(all.seen(), Revision(5));
}

#[tokio::test]
async fn a_watch_from_the_future_waits_for_it() {
    let place = Place::new();
    let store = place.open();
    let mut watch = store.watch(Scope::kind("ConfigMap"), Revision(3)).unwrap();
    for data in ["1", "2", "3"] {
        write(&store, "a", data).await;
    }
    assert_eq!(next(&mut watch).await.unwrap().revision, Revision(4));
}

#[tokio::test]
async fn a_commit_that_nobody_waits_for_is_done() {
    let place = Place::new();
    let store = place.open();
    let mut watch = store.watch(Scope::kind("ConfigMap"), FIRST).unwrap();
    let op = Op::Create {
        key: config_map_key("a"),
        value: config_map("a", random::uid(), ""),
    };
    {
        let mut commit = Box::pin(store.commit(Lane::Api, vec![op]));
        // One poll hands the request over; then its caller goes away.
        let _ = futures_poll(commit.as_mut()).await;
    }
    assert_eq!(next(&mut watch).await.unwrap().object().key, config_map_key("a"));
}

/// Polls a future once.
async fn futures_poll<F: Future>(mut future: std::pin::Pin<&mut F>) -> std::task::Poll<F::Output> {
    std::future::poll_fn(|context| std::task::Poll::Ready(future.as_mut().poll(context))).await
}

#[tokio::test]
async fn the_end_of_the_store_ends_its_watches() {
    let place = Place::new();
    let store = place.open();
    let mut watch = store.watch(Scope::kind("ConfigMap"), FIRST).unwrap();
    write(&store, "a", "1").await;
    drop(store);
    // What was published is still delivered.
    assert_eq!(next(&mut watch).await.unwrap().revision, Revision(2));
    assert!(next(&mut watch).await.is_err());
}
