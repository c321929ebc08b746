//! What is kept for how long: history for watchers and lists, bases for nodes.

use rusqlite::Connection;

use super::super::open::DATABASE;
use super::*;

fn rows(place: &Place, table: &str) -> i64 {
    Connection::open(place.folder.path().join(DATABASE))
        .unwrap()
        .query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0))
        .unwrap()
}

/// Nothing but what is kept on purpose: no history, no changes in memory.
fn forgetful(place: &Place) -> Store {
    Store::open(Config {
        history: NO_HISTORY,
        recent: LineLimits { changes: 0, bytes: 0 },
        ..place.config()
    })
    .unwrap()
}

async fn report(store: &Store, object: &Stored, node: &str, text: &str) -> Arc<Stored> {
    let op = Op::Report {
        uid: object.uid,
        node: node.to_owned(),
        value: Some(Value::from([("phase", text)])),
    };
    one(store, op).await.unwrap()
}

/// Commits that let go of what is due, until nothing is: each forgets what came before it.
async fn settle(store: &Store) {
    for at in 0..4u8 {
        let op = Op::PutRecord { space: "settle", id: String::new(), bytes: vec![at] };
        store.commit(Lane::Api, vec![op]).await.unwrap();
    }
}

#[tokio::test]
async fn what_is_forgotten_is_expired() {
    let place = Place::new();
    let history = HistoryLimits { writes: 10, ..NO_HISTORY };
    let store = Store::open(Config { history, ..place.config() }).unwrap();
    let key = config_map_key("a");
    for at in 0..100 {
        write(&store, "a", &at.to_string()).await;
    }
    settle(&store).await;
    let (oldest, latest) = (store.oldest(), store.revision());
    assert_eq!(latest.0 - oldest.0, 10);
    let scope = Scope::kind("ConfigMap");
    let too_old = Revision(oldest.0 - 1);
    let expired = Expired { asked: too_old, oldest };
    assert_eq!(store.watch(scope.clone(), too_old).unwrap_err(), expired);
    assert_eq!(store.get_at(&key, too_old).await, Err(expired));
    let list = store.list(&scope, At::Exact(too_old), None, None).await;
    assert!(matches!(list, Err(ListError::Expired(error)) if error == expired));

    let mut watch = store.watch(scope.clone(), oldest).unwrap();
    for revision in oldest.0 + 1..=latest.0 {
        let change = next(&mut watch).await.unwrap();
        assert_eq!(change.revision, Revision(revision));
        assert_eq!(store.get_at(&key, change.revision).await, Ok(change.after.clone()));
        assert_eq!(change.before.unwrap().revision, Revision(revision - 1));
    }
    assert_eq!(names(&store, &scope, At::Exact(oldest)).await.unwrap(), ["a"]);
    // Nothing else is left in the file.
    assert_eq!(
        (rows(&place, "versions"), rows(&place, "bodies"), rows(&place, "bases")),
        (11, 11, 0)
    );
}

#[tokio::test]
async fn nothing_is_left_of_what_is_gone() {
    let place = Place::new();
    let store = forgetful(&place);
    for round in 0..10 {
        for name in ["a", "b", "c"] {
            write(&store, name, &round.to_string()).await;
        }
        let pod = make_pod(&store, "p", "n").await;
        for text in ["x", "y"] {
            report(&store, &pod, "n", text).await;
        }
        delete(&store, &pod_key("p")).await;
        if round % 3 == 0 {
            delete(&store, &config_map_key("c")).await;
        }
    }
    settle(&store).await;
    assert_eq!(
        (rows(&place, "versions"), rows(&place, "bodies"), rows(&place, "bases")),
        (2, 2, 0)
    );
    assert_eq!(store.oldest(), store.revision());
    // Also across restarts.
    delete(&store, &config_map_key("a")).await;
    drop(store);
    let store = forgetful(&place);
    settle(&store).await;
    assert_eq!((rows(&place, "versions"), rows(&place, "bodies")), (1, 1));
}

#[tokio::test]
async fn history_is_bounded_in_bytes() {
    let place = Place::new();
    let history = HistoryLimits { bytes: 100_000, ..HistoryLimits::default() };
    let store = Store::open(Config { history, ..place.config() }).unwrap();
    for at in 0..100 {
        write(&store, "a", &format!("{at}{}", "x".repeat(9000))).await;
    }
    settle(&store).await;
    let kept = store.revision().0 - store.oldest().0;
    assert!((5..=11).contains(&kept), "{kept}");
    assert!(rows(&place, "bodies") <= 12);
}

#[tokio::test]
async fn a_slow_watcher_skips_nothing() {
    let place = Place::new();
    let store = Store::open(Config {
        line: LineLimits { changes: 4, bytes: 1 << 20 },
        recent: LineLimits { changes: 2, bytes: 1 << 20 },
        ..place.config()
    })
    .unwrap();
    let mut watch = store.watch(Scope::kind("ConfigMap"), FIRST).unwrap();
    let mut expected = FIRST.0;
    for round in 0..20 {
        // From less than the line holds to far more.
        for at in 0..round * 2 {
            write(&store, "a", &format!("{round}/{at}")).await;
        }
        let last = store.revision().0;
        while expected < last {
            expected += 1;
            let change = next(&mut watch).await.unwrap();
            assert_eq!(change.revision, Revision(expected));
            assert_eq!(watch.seen().0, if expected < last { expected } else { last });
        }
    }
}

#[tokio::test]
async fn a_watcher_that_is_too_slow_is_told() {
    let place = Place::new();
    let store = Store::open(Config {
        line: LineLimits { changes: 2, bytes: 1 << 20 },
        recent: LineLimits { changes: 0, bytes: 0 },
        history: NO_HISTORY,
        ..place.config()
    })
    .unwrap();
    let mut watch = store.watch(Scope::kind("ConfigMap"), FIRST).unwrap();
    for at in 0..10 {
        write(&store, "a", &at.to_string()).await;
    }
    assert_eq!(next(&mut watch).await.unwrap().revision, Revision(2));
    assert_eq!(next(&mut watch).await.unwrap().revision, Revision(3));
    let expired = next(&mut watch).await.unwrap_err();
    assert_eq!((expired.asked, expired.oldest), (Revision(3), store.oldest()));
}

#[tokio::test]
async fn a_line_is_bounded_in_bytes() {
    let place = Place::new();
    let store = Store::open(Config {
        line: LineLimits { changes: 100, bytes: 3000 },
        recent: LineLimits { changes: 0, bytes: 0 },
        ..place.config()
    })
    .unwrap();
    let mut watch = store.watch(Scope::kind("ConfigMap"), FIRST).unwrap();
    for at in 0..10 {
        write(
            &store,
            &format!("c{at}"),
            &"x".repeat(if at == 5 { 10_000 } else { 1000 }),
        )
        .await;
    }
    for revision in 2..=11 {
        assert_eq!(next(&mut watch).await.unwrap().revision, Revision(revision));
    }
}

#[tokio::test]
async fn what_a_node_holds_is_kept_for_it() {
    let place = Place::new();
    let store = forgetful(&place);
    let node = Scope::pods_of("n");
    let kept = make_pod(&store, "kept", "n").await;
    let changed = make_pod(&store, "changed", "n").await;
    let deleted = make_pod(&store, "deleted", "n").await;
    make_pod(&store, "elsewhere", "m").await;
    let shared = write(&store, "shared", "old").await;
    let mark = store.revision();
    store.set_low_water("n", Some(mark));
    assert_eq!(store.low_water("n"), Some(mark));

    // The node is away; life goes on.
    let mut value = changed.body();
    value.set(&["spec", "text"], "new");
    one(&store, Op::Replace { key: changed.key.clone(), value, when: When::ANY })
        .await
        .unwrap();
    delete(&store, &deleted.key).await;
    make_pod(&store, "new", "n").await;
    write(&store, "shared", "new").await;
    write(&store, "shared", "newer").await;
    delete(&store, &pod_key("elsewhere")).await;
    for text in ["Pending", "Running"] {
        report(&store, &kept, "n", text).await;
    }
    settle(&store).await;
    assert!(store.oldest() > mark);

    // Told again after a restart.
    for _ in 0..2 {
        let held = async |object: &Stored| store.get_at(&object.key, mark).await.unwrap().unwrap();
        assert_eq!(held(&changed).await, changed);
        assert_eq!(held(&deleted).await, deleted);
        assert_eq!(held(&shared).await, shared);
        // Only its report has changed: the projection that the node holds is that of today.
        let now = held(&kept).await;
        assert_eq!((now.projection, now.projected), (kept.projection, kept.projected));
        assert_eq!(
            names(&store, &node, At::Exact(mark)).await.unwrap(),
            ["changed", "deleted", "kept"]
        );
        assert_eq!(store.held(&deleted.key, mark).as_ref(), Some(&deleted));
        assert_eq!(store.pods_held("n", mark).unwrap().len(), 3);
        // What the node does not hold is not kept, and what was not there then is not made up.
        assert!(store.get_at(&pod_key("elsewhere"), mark).await.is_err());
        assert!(store.get_at(&pod_key("new"), mark).await.is_err());
        assert!(names(&store, &Scope::pods_of("m"), At::Exact(mark)).await.is_err());
        assert_eq!(rows(&place, "bases"), 3);
    }
    drop(store);
    let store = forgetful(&place);
    assert_eq!(store.low_water("n"), Some(mark));
    assert_eq!(store.get_at(&shared.key, mark).await, Ok(Some(shared)));
    assert_eq!(
        names(&store, &node, At::Exact(mark)).await.unwrap(),
        ["changed", "deleted", "kept"]
    );
    let page = store
        .list(
            &node,
            At::Exact(mark),
            Some(("default".into(), "changed".into())),
            Some(1),
        )
        .await
        .unwrap();
    assert_eq!((page.items[0].key.name.as_str(), page.remaining), ("deleted", 1));

    // Once the node has caught up, all of it goes.
    store.set_low_water("n", Some(store.revision()));
    settle(&store).await;
    assert_eq!(rows(&place, "bases"), 0);
    assert_eq!(rows(&place, "versions"), rows(&place, "bodies"));
    store.set_low_water("n", None);
    settle(&store).await;
    assert_eq!(rows(&place, "marks"), 0);
}

#[tokio::test]
async fn bases_are_bounded_in_bytes() {
    let place = Place::new();
    let store = Store::open(Config {
        history: HistoryLimits { bases_bytes: 5000, ..NO_HISTORY },
        recent: LineLimits { changes: 0, bytes: 0 },
        ..place.config()
    })
    .unwrap();
    let mut pods = Vec::new();
    for at in 0..10 {
        let name = format!("p{at}");
        let mut value = pod(&name, random::uid(), "n");
        value.set(&["spec", "text"], "x".repeat(1000));
        pods.push(one(&store, Op::Create { key: pod_key(&name), value }).await.unwrap());
    }
    let mark = store.revision();
    store.set_low_water("n", Some(mark));
    for pod in &pods[..3] {
        delete(&store, &pod.key).await;
    }
    settle(&store).await;
    assert_eq!(
        names(&store, &Scope::pods_of("n"), At::Exact(mark))
            .await
            .unwrap()
            .len(),
        10
    );
    for pod in &pods[3..] {
        delete(&store, &pod.key).await;
    }
    settle(&store).await;
    // What had to go is known to be gone: a list that is not whole is not given out as one.
    assert!(rows(&place, "bases") <= 4);
    assert!(names(&store, &Scope::pods_of("n"), At::Exact(mark)).await.is_err());
    assert!(store.get_at(&pods[0].key, mark).await.is_err());
    assert!(store.get_at(&pods[9].key, mark).await.is_ok());
}

#[tokio::test]
async fn a_mark_that_comes_too_late_promises_nothing() {
    let place = Place::new();
    let store = forgetful(&place);
    make_pod(&store, "a", "n").await;
    let late = store.revision();
    delete(&store, &pod_key("a")).await;
    settle(&store).await;
    store.set_low_water("n", Some(late));
    settle(&store).await;
    assert_eq!(
        (store.pods_held("n", late), store.held(&pod_key("a"), late)),
        (None, None)
    );
    assert!(names(&store, &Scope::pods_of("n"), At::Exact(late)).await.is_err());
}

#[tokio::test]
async fn a_new_epoch_lets_go_of_the_old_one() {
    let place = Place::new();
    let store = place.open();
    for at in 0..200 {
        write(&store, "a", &at.to_string()).await;
    }
    store.set_low_water("n", Some(Revision(100)));
    settle(&store).await;
    assert_eq!(rows(&place, "versions"), 200);
    store.renew(FIRST).await.unwrap();
    // Not all at once, and a restart does not lose track.
    settle(&store).await;
    drop(store);
    let store = place.open();
    settle(&store).await;
    assert_eq!(
        (rows(&place, "versions"), rows(&place, "bodies"), rows(&place, "bases")),
        (1, 1, 0)
    );
    assert_eq!(text(&store.get(&config_map_key("a")).unwrap()), "199");
    let list = names(&store, &Scope::kind("ConfigMap"), At::Exact(store.oldest())).await;
    assert_eq!(list.unwrap(), ["a"]);
}

#[tokio::test]
async fn a_full_line_reads_on_from_where_it_was_full() {
    let place = Place::new();
    let store = Store::open(Config {
        line: LineLimits { changes: 2, bytes: 1 << 20 },
        recent: LineLimits { changes: 0, bytes: 0 },
        history: HistoryLimits { writes: 10, ..NO_HISTORY },
        ..place.config()
    })
    .unwrap();
    let mut watch = store.watch(Scope::kind("Pod"), FIRST).unwrap();
    make_pod(&store, "a", "n").await;
    make_pod(&store, "b", "n").await;
    // What happens to others meanwhile pushes those pods out of history, and is none of this watcher's business.
    for at in 0..50 {
        write(&store, "a", &at.to_string()).await;
    }
    let third = make_pod(&store, "c", "n").await;
    assert!(store.oldest() > Revision(3));
    for revision in [Revision(2), Revision(3), third.revision] {
        assert_eq!(next(&mut watch).await.unwrap().revision, revision);
    }
}
