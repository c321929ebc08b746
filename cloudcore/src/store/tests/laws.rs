//! The store against a model of it: an ordered map for each revision.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Act {
    Create(u8),
    Replace {
        name: u8,
        data: u8,
        stale: bool,
    },
    Delete {
        name: u8,
    },
    /// Several in one commit, of which any may fail all.
    Pair(u8, u8),
    Reopen,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (0..6u8).prop_map(Act::Create),
        5 => (0..6u8, 0..4u8, any::<bool>()).prop_map(|(name, data, stale)| Act::Replace { name, data, stale }),
        2 => (0..6u8).prop_map(|name| Act::Delete { name }),
        2 => (0..6u8, 0..6u8).prop_map(|(one, other)| Act::Pair(one, other)),
        1 => Just(Act::Reopen),
    ]
}

/// Name to text and revision.
type State = BTreeMap<String, (String, u64)>;

#[derive(Debug)]
struct Model {
    revision: u64,
    now: State,
    /// The state after each revision.
    past: BTreeMap<u64, State>,
}

impl Model {
    fn step(&mut self, change: impl FnOnce(&mut State, u64)) {
        self.revision += 1;
        change(&mut self.now, self.revision);
        self.past.insert(self.revision, self.now.clone());
    }
}

async fn list(store: &Store, at: At) -> State {
    let page = store.list(&Scope::kind("ConfigMap"), at, None, None).await.unwrap();
    let items = page.items.iter();
    items
        .map(|object| (object.key.name.clone(), (text(object), object.revision.0)))
        .collect()
}

async fn run(acts: Vec<Act>) {
    let place = Place::new();
    let mut store = place.open();
    let mut model = Model {
        revision: FIRST.0,
        now: State::new(),
        past: BTreeMap::from([(FIRST.0, State::new())]),
    };
    let create = |name: &str| Op::Create {
        key: config_map_key(name),
        value: config_map(name, random::uid(), "new"),
    };
    for act in acts {
        match act {
            Act::Create(name) => {
                let name = name.to_string();
                let done = one(&store, create(&name)).await;
                if model.now.contains_key(&name) {
                    assert!(matches!(done, Err(CommitError::Exists(_))));
                } else {
                    done.unwrap();
                    model.step(|now, at| drop(now.insert(name, ("new".to_owned(), at))));
                }
            }
            Act::Replace { name, data, stale } => {
                let (name, data) = (name.to_string(), data.to_string());
                let key = config_map_key(&name);
                let uid = store.get(&key).map_or_else(random::uid, |object| object.uid);
                let revision = model.now.get(&name).map_or(FIRST.0, |(_, at)| *at) - u64::from(stale);
                let when = When { revision: Some(Revision(revision)), ..When::ANY };
                let done = one(&store, Op::Replace { key, value: config_map(&name, uid, &data), when }).await;
                match model.now.get(&name) {
                    None => assert!(matches!(done, Err(CommitError::NotFound(_)))),
                    Some(_) if stale => assert!(matches!(done, Err(CommitError::Conflict { .. }))),
                    Some((same, at)) if *same == data => assert_eq!(done.unwrap().revision.0, *at),
                    Some(_) => {
                        done.unwrap();
                        model.step(|now, at| drop(now.insert(name, (data, at))));
                    }
                }
            }
            Act::Delete { name } => {
                let name = name.to_string();
                let done = one(&store, Op::Delete { key: config_map_key(&name), when: When::ANY }).await;
                assert_eq!(done.is_ok(), model.now.contains_key(&name));
                if done.is_ok() {
                    model.step(|now, _| drop(now.remove(&name)));
                }
            }
            Act::Pair(one, other) => {
                let names = [one.to_string(), other.to_string()];
                let done = store
                    .commit(Lane::Status, names.iter().map(|name| create(name)).collect())
                    .await;
                let passes = one != other && !names.iter().any(|name| model.now.contains_key(name));
                assert_eq!(done.is_ok(), passes);
                if passes {
                    for name in names {
                        model.step(|now, at| drop(now.insert(name, ("new".to_owned(), at))));
                    }
                }
            }
            Act::Reopen => {
                drop(store);
                store = place.open();
            }
        }
        assert_eq!(store.revision().0, model.revision);
        assert_eq!(list(&store, At::Latest).await, model.now);
    }

    // Every revision can be told, and what a watch from it delivers leads to the present.
    for (revision, state) in &model.past {
        let mut state = state.clone();
        assert_eq!(list(&store, At::Exact(Revision(*revision))).await, state);
        let mut watch = store.watch(Scope::kind("ConfigMap"), Revision(*revision)).unwrap();
        for expected in revision + 1..=model.revision {
            let change = next(&mut watch).await.unwrap();
            assert_eq!(change.revision.0, expected);
            let name = change.object().key.name.clone();
            assert_eq!(
                change.before.as_ref().map(|object| object.revision.0),
                state.get(&name).map(|(_, at)| *at)
            );
            match &change.after {
                Some(after) => state.insert(name, (text(after), expected)),
                None => state.remove(&name),
            };
            assert_eq!(Some(&state), model.past.get(&expected));
        }
    }
}

/// What may happen while nodes are away.
#[derive(Debug, Clone)]
enum Life {
    Pod {
        name: u8,
        node: u8,
    },
    Spec {
        name: u8,
        data: u8,
    },
    Report {
        name: u8,
        data: u8,
    },
    DeletePod {
        name: u8,
    },
    Config {
        name: u8,
        data: u8,
    },
    DeleteConfig {
        name: u8,
    },
    /// A node acknowledges what there is.
    Acknowledge {
        node: u8,
    },
    Settle,
    Reopen,
}

fn life() -> impl Strategy<Value = Life> {
    let (name, node, data) = (0..4u8, 0..2u8, 0..3u8);
    prop_oneof![
        4 => (name.clone(), node.clone()).prop_map(|(name, node)| Life::Pod { name, node }),
        4 => (name.clone(), data.clone()).prop_map(|(name, data)| Life::Spec { name, data }),
        4 => (name.clone(), data.clone()).prop_map(|(name, data)| Life::Report { name, data }),
        3 => name.clone().prop_map(|name| Life::DeletePod { name }),
        3 => (name.clone(), data).prop_map(|(name, data)| Life::Config { name, data }),
        1 => name.prop_map(|name| Life::DeleteConfig { name }),
        3 => node.prop_map(|node| Life::Acknowledge { node }),
        3 => Just(Life::Settle),
        1 => Just(Life::Reopen),
    ]
}

/// What a node holds: its pods and every config map, by the hashes of their projections.
type Held = BTreeMap<Key, Option<EntryHash>>;

fn node_name(node: u8) -> String {
    format!("n{node}")
}

async fn held(store: &Store, node: u8) -> Held {
    let mut held = Held::new();
    for scope in [Scope::pods_of(node_name(node)), Scope::kind("ConfigMap")] {
        let page = store.list(&scope, At::Latest, None, None).await.unwrap();
        held.extend(page.items.iter().map(|object| (object.key.clone(), object.projection)));
    }
    held
}

async fn run_life(lives: Vec<Life>, recent: usize) {
    let place = Place::new();
    // In the file nothing is kept but for the nodes.
    let config = || Config {
        history: NO_HISTORY,
        recent: LineLimits { changes: recent, bytes: usize::MAX },
        ..place.config()
    };
    let mut store = Store::open(config()).unwrap();
    let mut marks = BTreeMap::new();
    let mut settled = 0u32;
    for life in lives {
        match life {
            Life::Pod { name, node } => {
                let name = name.to_string();
                let value = pod(&name, random::uid(), &node_name(node));
                let _ = one(&store, Op::Create { key: pod_key(&name), value }).await;
            }
            Life::Spec { name, data } => {
                if let Some(pod) = store.get(&pod_key(&name.to_string())) {
                    let mut value = pod.body();
                    value.set(&["spec", "text"], data.to_string());
                    one(&store, Op::Replace { key: pod.key.clone(), value, when: When::ANY })
                        .await
                        .unwrap();
                }
            }
            Life::Report { name, data } => {
                if let Some(pod) = store.get(&pod_key(&name.to_string())) {
                    let value = Some(Value::from([("phase", data.to_string())]));
                    let node = pod.node().unwrap_or_default().to_owned();
                    one(&store, Op::Report { uid: pod.uid, node, value }).await.unwrap();
                }
            }
            Life::DeletePod { name } => {
                let _ = one(&store, Op::Delete { key: pod_key(&name.to_string()), when: When::ANY }).await;
            }
            Life::Config { name, data } => drop(write(&store, &name.to_string(), &data.to_string()).await),
            Life::DeleteConfig { name } => {
                let key = config_map_key(&name.to_string());
                let _ = one(&store, Op::Delete { key, when: When::ANY }).await;
            }
            Life::Acknowledge { node } => {
                store.set_low_water(&node_name(node), Some(store.revision()));
                marks.insert(node, (store.revision(), held(&store, node).await));
            }
            Life::Settle => {
                settled += 1;
                let op = Op::PutRecord {
                    space: "settle",
                    id: String::new(),
                    bytes: settled.to_le_bytes().to_vec(),
                };
                store.commit(Lane::Api, vec![op]).await.unwrap();
            }
            Life::Reopen => {
                drop(store);
                store = Store::open(config()).unwrap();
            }
        }
        for (node, (mark, held)) in &marks {
            for (key, projection) in held {
                let base = store.get_at(key, *mark).await.unwrap().unwrap();
                assert_eq!(base.projection, *projection);
                assert_eq!(store.held(key, *mark).unwrap().projection, *projection);
            }
            let page = store
                .list(&Scope::pods_of(node_name(*node)), At::Exact(*mark), None, None)
                .await
                .unwrap();
            let pods = held.keys().filter(|key| key.kind.as_str() == "Pod");
            assert!(page.items.iter().map(|object| &object.key).eq(pods.clone()));
            let pods_held = store.pods_held(&node_name(*node), *mark).unwrap();
            assert!(pods_held.iter().map(|object| &object.key).eq(pods));
            assert!(pods_held.iter().all(|pod| pod.projection == held[&pod.key]));
        }
    }
    // Once nobody holds anything old, nothing old is left.
    for node in 0..2 {
        store.set_low_water(&node_name(node), None);
    }
    for at in 0..5u8 {
        let op = Op::PutRecord { space: "settle", id: String::new(), bytes: vec![at] };
        store.commit(Lane::Api, vec![op]).await.unwrap();
    }
    let mut present = 0;
    for kind in ["Pod", "ConfigMap"] {
        present += store
            .list(&Scope::kind(kind), At::Latest, None, None)
            .await
            .unwrap()
            .items
            .len();
    }
    drop(store);
    let file = rusqlite::Connection::open(place.folder.path().join(open::DATABASE)).unwrap();
    for (table, rows) in [("versions", present), ("bodies", present), ("bases", 0), ("marks", 0)] {
        let found: i64 = file
            .query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0))
            .unwrap();
        assert_eq!(found, i64::try_from(rows).unwrap(), "{table}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_store_is_its_model(acts in prop::collection::vec(act(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(acts));
    }

    #[test]
    fn what_nodes_hold_can_be_told(lives in prop::collection::vec(life(), 1..60), recent in 0..30usize) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run_life(lives, recent));
    }
}
