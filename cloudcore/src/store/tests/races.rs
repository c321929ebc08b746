//! Many at once.

use std::collections::BTreeMap;

use tokio::task::JoinSet;

use super::*;

/// The first object of a kind is made while the kind is listed and watched: all see it, whatever comes first.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_first_object_of_a_kind_is_seen_by_all() {
    const KINDS: usize = 10_000;
    const AT_ONCE: usize = 100;
    let place = Place::new();
    let store = place.open();
    let round = |store: Store, at: usize| async move {
        let kind = format!("First{at}");
        let key = Key::new(kind.as_str(), "default", "a");
        let value = object("v1", &kind, &key, random::uid(), ("spec", ""));
        let first = key.clone();
        let scope = Scope::kind(kind.as_str());
        let mut early = store.watch(scope.clone(), store.revision()).unwrap();

        let mut making = JoinSet::new();
        making.spawn({
            let store = store.clone();
            async move { one(&store, Op::Create { key, value }).await.unwrap() }
        });
        // Before the commit, somewhere around it, or right behind its publication.
        match at % 3 {
            0 => {}
            1 => {
                for _ in 0..at % 50 {
                    tokio::task::yield_now().await;
                }
            }
            _ => {
                let published = async {
                    while store.get(&first).is_none() {
                        tokio::task::yield_now().await;
                    }
                };
                tokio::time::timeout(DEADLINE, published).await.unwrap();
            }
        }
        let list = store.list(&scope, At::Latest, None, None).await.unwrap();
        let mut late = store.watch(scope.clone(), list.revision).unwrap();
        let made = making.join_next().await.unwrap().unwrap();

        // Who made it sees it in a list, at once.
        let after = store.list(&scope, At::Latest, None, None).await.unwrap();
        assert_eq!(after.items, [Arc::clone(&made)]);
        assert_eq!(next(&mut early).await.unwrap().after.as_ref(), Some(&made));
        // Who listed before and watched from there sees it exactly once.
        let listed_before = list.items.is_empty();
        if listed_before {
            assert!(list.revision < made.revision);
            assert_eq!(next(&mut late).await.unwrap().after.as_ref(), Some(&made));
        } else {
            assert_eq!(list.items, [made]);
            assert!(late.seen() >= list.revision);
        }
        listed_before
    };
    let mut rounds = JoinSet::new();
    let mut listed_before = 0;
    for at in 0..KINDS {
        if rounds.len() >= AT_ONCE {
            listed_before += usize::from(rounds.join_next().await.unwrap().unwrap());
        }
        rounds.spawn(round(store.clone(), at));
    }
    while let Some(done) = rounds.join_next().await {
        listed_before += usize::from(done.unwrap());
    }
    // Neither side of the race was left out.
    assert!((KINDS / 10..KINDS * 9 / 10).contains(&listed_before), "{listed_before}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_list_and_what_follows_it_make_the_present() {
    const WRITERS: usize = 4;
    const WRITES: usize = 150;
    let place = Place::new();
    // Small enough for watchers to fall behind now and then.
    let store = Store::open(Config {
        line: LineLimits { changes: 8, bytes: 1 << 20 },
        recent: LineLimits { changes: 16, bytes: 1 << 20 },
        ..place.config()
    })
    .unwrap();
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let store = store.clone();
        writers.spawn(async move {
            for at in 0..WRITES {
                // Names are shared between writers: each write may meet another's.
                let name = format!("c{}", (at * 7 + writer) % 20);
                let key = config_map_key(&name);
                let found = store.get(&key);
                let op = match (&found, at % 5) {
                    (Some(_), 4) => Op::Delete { key, when: When::ANY },
                    (Some(found), _) => Op::Replace {
                        value: config_map(&name, found.uid, &format!("{writer}/{at}")),
                        when: When::unchanged(found),
                        key,
                    },
                    (None, _) => Op::Create { value: config_map(&name, random::uid(), ""), key },
                };
                match one(&store, op).await {
                    Ok(_) => {}
                    Err(error) => assert!(error.is_conflict(), "{error}"),
                }
            }
        });
    }
    let mut watchers = JoinSet::new();
    let (stop, stopped) = tokio::sync::watch::channel(None::<Revision>);
    for slowness in 0..6 {
        let (store, mut stopped) = (store.clone(), stopped.clone());
        watchers.spawn(async move {
            let scope = Scope::kind("ConfigMap");
            let list = store.list(&scope, At::Latest, None, None).await.unwrap();
            let mut state: BTreeMap<Key, Arc<Stored>> = list
                .items
                .into_iter()
                .map(|object| (object.key.clone(), object))
                .collect();
            let mut watch = store.watch(scope, list.revision).unwrap();
            let mut last = list.revision;
            loop {
                if let Some(end) = *stopped.borrow()
                    && watch.seen() >= end
                {
                    return state;
                }
                for _ in 0..slowness * 20 {
                    tokio::task::yield_now().await;
                }
                let change = tokio::select! {
                    change = watch.next() => change.unwrap(),
                    _ = stopped.changed() => continue,
                };
                assert!(change.revision > last);
                last = change.revision;
                // Each change follows from what was there before it.
                let key = change.object().key.clone();
                let before = match change.after {
                    Some(after) => state.insert(key, after),
                    None => state.remove(&key),
                };
                assert_eq!(before, change.before);
            }
        });
    }
    while let Some(done) = writers.join_next().await {
        done.unwrap();
    }
    stop.send(Some(store.revision())).unwrap();
    let list = store
        .list(&Scope::kind("ConfigMap"), At::Latest, None, None)
        .await
        .unwrap();
    let present: BTreeMap<Key, Arc<Stored>> = list
        .items
        .into_iter()
        .map(|object| (object.key.clone(), object))
        .collect();
    assert!(!present.is_empty());
    while let Some(state) = watchers.join_next().await {
        assert_eq!(state.unwrap(), present);
    }
    drop((store, stopped));
    let store = place.open();
    let list = store
        .list(&Scope::kind("ConfigMap"), At::Latest, None, None)
        .await
        .unwrap();
    assert!(list.items.iter().eq(present.values()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_that_count_together_lose_nothing() {
    const EACH: usize = 300;
    let place = Place::new();
    let store = place.open();
    write(&store, "sum", "0").await;
    let mut writers = JoinSet::new();
    for _ in 0..2 {
        let store = store.clone();
        writers.spawn(async move {
            let mut conflicts = 0;
            for _ in 0..EACH {
                loop {
                    let found = store.get(&config_map_key("sum")).unwrap();
                    let sum: usize = text(&found).parse().unwrap();
                    let op = Op::Replace {
                        key: found.key.clone(),
                        value: config_map("sum", found.uid, &(sum + 1).to_string()),
                        when: When::unchanged(&found),
                    };
                    match one(&store, op).await {
                        Ok(_) => break,
                        Err(CommitError::Conflict { .. }) => conflicts += 1,
                        Err(error) => panic!("{error}"),
                    }
                }
            }
            conflicts
        });
    }
    while let Some(done) = writers.join_next().await {
        done.unwrap();
    }
    assert_eq!(
        text(&store.get(&config_map_key("sum")).unwrap()),
        (2 * EACH).to_string()
    );
    assert_eq!(store.revision().0, FIRST.0 + 1 + 2 * EACH as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_wait_share_a_transaction() {
    const REQUESTS: usize = 2000;
    let place = Place::new();
    let store = place.open();
    let mut requests = JoinSet::new();
    for at in 0..REQUESTS {
        let store = store.clone();
        requests.spawn(async move {
            // Every other one fails, and takes nobody with it.
            let name = format!("c{}", at / 2);
            let op = Op::Create {
                key: config_map_key(&name),
                value: config_map(&name, random::uid(), ""),
            };
            store.commit(Lane::Status, vec![op]).await.is_ok()
        });
    }
    let mut passed = 0;
    while let Some(done) = requests.join_next().await {
        passed += usize::from(done.unwrap());
    }
    assert_eq!(passed, REQUESTS / 2);
    assert_eq!(store.revision().0, FIRST.0 + passed as u64);
    assert!(
        store.transactions() < passed as u64,
        "{} transactions",
        store.transactions()
    );
}
