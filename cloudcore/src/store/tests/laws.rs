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

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn the_store_is_its_model(acts in prop::collection::vec(act(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(acts));
    }
}
