//! The laws of patches, and their coding under abuse.

use proptest::prelude::*;

use super::*;
use crate::dictionary::Dictionary;
use crate::value::json;

fn tree() -> impl Strategy<Value = Value> {
    let name = prop_oneof![
        Just("name".to_owned()),
        Just("containers".to_owned()),
        Just("status".to_owned()),
        "[a-d]{1,2}".prop_map(|name| name),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-3i64..200).prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_filter_map("finite", Value::float),
        "[a-c]{0,2}".prop_map(Value::from),
        Just(Value::from("True")),
        (0i64..4_000_000_000).prop_map(|seconds| Value::from(crate::time::rfc3339(seconds))),
        proptest::collection::vec(any::<u8>(), 0..4).prop_map(|bytes| Value::Bytes(bytes.into())),
    ];
    leaf.prop_recursive(4, 40, 5, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::List),
            proptest::collection::btree_map(name.clone(), inner.clone(), 0..5)
                .prop_map(|fields| Value::Map(fields.into())),
            // Lists of objects with a merge key, some of them the same.
            proptest::collection::vec(("[a-e]", inner), 0..5).prop_map(|elements| {
                let list = elements
                    .into_iter()
                    .map(|(name, rest)| [("name", Value::from(name)), ("v", rest)].into());
                [("containers", Value::List(list.collect()))].into()
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_patch_makes_the_new_from_the_old(base in tree(), new in tree()) {
        let patch = diff(&base, &new);
        prop_assert_eq!(patch.apply(&base).unwrap(), new);
    }

    #[test]
    fn nothing_changed_is_an_empty_patch_or_the_same_leaf(base in tree()) {
        let patch = diff(&base, &base);
        let leaf = !matches!(base, Value::Map(_) | Value::List(_));
        prop_assert!(patch.is_empty() || leaf);
    }

    #[test]
    fn a_coding_is_read_as_written(base in tree(), new in tree()) {
        for dictionary in [Dictionary::full(), Dictionary::shared(0, Dictionary::empty().hash()).unwrap()] {
            prop_assert_eq!(decode_value(&encode_value(&new, dictionary), dictionary).unwrap(), new.clone());
            let patch = diff(&base, &new);
            prop_assert_eq!(decode_patch(&encode_patch(&patch, dictionary), dictionary).unwrap(), patch);
        }
    }

    #[test]
    fn canonical_forms_are_one_to_one(one in tree(), other in tree()) {
        use crate::value::canonical::{decode, encode};
        prop_assert_eq!(decode(&encode(&one)).unwrap(), one.clone());
        prop_assert_eq!(encode(&one) == encode(&other), one == other);
    }
}

fn parse(text: &str) -> Value {
    json::parse(text.as_bytes()).unwrap()
}

#[test]
fn cases() {
    let check = |base: &str, new: &str, patch: Patch| {
        let (base, new) = (parse(base), parse(new));
        assert_eq!(diff(&base, &new), patch);
        assert_eq!(patch.apply(&base).unwrap(), new);
    };
    let fields = |removed: &[&str], changed: Vec<(&str, Patch)>| Patch::Fields {
        removed: removed.iter().map(|field| (*field).to_owned()).collect(),
        changed: changed
            .into_iter()
            .map(|(field, patch)| (field.to_owned(), patch))
            .collect(),
    };
    let set = |value: &str| Patch::Set(parse(value));
    // A null is a value; an absent field is none.
    check(
        r#"{"a":1,"b":2}"#,
        r#"{"a":null,"c":3}"#,
        fields(&["b"], vec![("a", set("null")), ("c", set("3"))]),
    );
    // A number is compared as a whole, also past 2^53.
    check(
        r#"{"a":9007199254740993}"#,
        r#"{"a":9007199254740992}"#,
        fields(&[], vec![("a", set("9007199254740992"))]),
    );
    // A change of type.
    check(
        r#"{"a":{"b":1},"c":0}"#,
        r#"{"a":[1],"c":0}"#,
        fields(&[], vec![("a", set("[1]"))]),
    );
    // Elements with a merge key are found wherever they moved.
    let env = |patch| fields(&[], vec![("env", patch)]);
    check(
        r#"{"env":[{"name":"a","value":"1"},{"name":"b"},{"name":"c"}]}"#,
        r#"{"env":[{"name":"c"},{"name":"a","value":"2"},{"name":"d"}]}"#,
        env(Patch::Splice(vec![
            Piece::Keep { from: 2, count: 1 },
            Piece::Change { from: 0, patch: fields(&[], vec![("value", set("\"2\""))]) },
            Piece::New(parse(r#"{"name":"d"}"#)),
        ])),
    );
    // The same key twice: by place.
    check(
        r#"{"env":[{"name":"a"},{"name":"a"}]}"#,
        r#"{"env":[{"name":"a"},{"name":"a","value":"1"}]}"#,
        env(Patch::Elements(vec![(1, fields(&[], vec![("value", set("\"1\""))]))])),
    );
    // An element taken out in the middle of a list without keys.
    check(
        "[1,2,3,4]",
        "[1,3,4]",
        Patch::Splice(vec![
            Piece::Keep { from: 0, count: 1 },
            Piece::Keep { from: 2, count: 2 },
        ]),
    );
}

#[test]
fn a_patch_for_another_tree_is_an_error() {
    let check = |base: &str, patch: Patch, error: DeltaError| assert_eq!(patch.apply(&parse(base)), Err(error));
    let fields = |removed: &[&str], changed: &[&str]| Patch::Fields {
        removed: removed.iter().map(|field| (*field).to_owned()).collect(),
        changed: changed
            .iter()
            .map(|field| ((*field).to_owned(), Patch::Elements(vec![])))
            .collect(),
    };
    check("1", fields(&[], &[]), DeltaError::NotMap);
    check("{}", fields(&["a"], &[]), DeltaError::NoField);
    check("{}", fields(&[], &["a"]), DeltaError::NoField);
    check("{}", Patch::Elements(vec![]), DeltaError::NotList);
    check(
        "[1]",
        Patch::Elements(vec![(1, Patch::Set(Value::Null))]),
        DeltaError::NoElement,
    );
    let keep = |from, count| Piece::Keep { from, count };
    check("[1]", Patch::Splice(vec![keep(0, 2)]), DeltaError::NoElement);
    check("[1]", Patch::Splice(vec![keep(1, usize::MAX)]), DeltaError::NoElement);
    check("[1]", Patch::Splice(vec![keep(0, 1), keep(0, 1)]), DeltaError::Twice);
}

/// What a kubelet-like status looks like when one container's readiness flips: the case that the wire is tuned for.
#[test]
fn a_readiness_flip_is_small() {
    let status = |ready: &str, flag: &str, at: &str| {
        parse(&format!(
            r#"{{"phase":"Running","conditions":[
                {{"type":"PodReadyToStartContainers","status":"True","lastTransitionTime":"2026-11-30T02:50:00Z"}},
                {{"type":"Initialized","status":"True","lastTransitionTime":"2026-11-30T02:50:00Z"}},
                {{"type":"Ready","status":"{ready}","lastTransitionTime":"{at}"}},
                {{"type":"ContainersReady","status":"{ready}","lastTransitionTime":"{at}"}}],
              "containerStatuses":[{{"name":"web","ready":{flag},"restartCount":0,"started":true}}]}}"#
        ))
    };
    let patch = diff(
        &status("True", "true", "2026-11-30T02:51:00Z"),
        &status("False", "false", "2026-11-30T02:52:00Z"),
    );
    let coding = encode_patch(&patch, Dictionary::full());
    assert!(coding.len() <= 26, "{} bytes", coding.len());
    assert_eq!(decode_patch(&coding, Dictionary::full()), Ok(patch));
}

#[test]
fn only_a_short_patch_that_stood_in_full_is_said_again() {
    let dictionary = Dictionary::full();
    let fields = |text: &str| Patch::Fields {
        removed: vec![],
        changed: vec![("a-field".to_owned(), Patch::Set(Value::from(text)))],
    };
    // What stands around the text takes 13 bytes. Texts are said again in another way, which makes the third one short.
    for (length, count, again) in [(19, 2, 1), (19, 4, 2), (20, 2, 0), (20, 3, 1)] {
        let one = fields(&"x".repeat(length));
        let patch = Patch::Elements((0..count).map(|index| (index, one.clone())).collect());
        let coding = encode_patch(&patch, dictionary);
        let said_again = coding.iter().filter(|byte| **byte == 22).count();
        assert_eq!(said_again, again, "{length}: {coding:?}");
        assert_eq!(decode_patch(&coding, dictionary), Ok(patch));
    }
    let refused = |coding: &[u8]| assert_eq!(decode_patch(coding, dictionary), Err(DeltaError::NoElement));
    // Nothing before it; the one before was said again itself.
    refused(&[18, 1, 0, 22]);
    refused(&[18, 3, 0, 1, 1, 22, 2, 22]);
    // The one before is too long.
    let long = [vec![6, 31], vec![b'x'; 31]].concat();
    refused(&[vec![18, 2, 0], long, vec![1, 22]].concat());
}

/// Thousands of mutated codings: every one is read or refused, none panics or makes a tree much larger than itself.
#[test]
fn mutated_codings_never_panic() {
    let dictionary = Dictionary::full();
    let base = parse(r#"{"spec":{"containers":[{"name":"a","args":["x","y"]},{"name":"b"}]},"n":[1,2,300,-4,0.5]}"#);
    let new = parse(r#"{"spec":{"containers":[{"name":"b","tty":true},{"name":"a","args":["y"]}]},"n":[2,1],"z":"q"}"#);
    let codings = [
        encode_value(&base, dictionary),
        encode_patch(&diff(&base, &new), dictionary),
    ];
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        usize::try_from(seed % below as u64).unwrap()
    };
    for round in 0..20_000 {
        let mut coding = codings[round % 2].clone();
        for _ in 0..=random(3) {
            let at = random(coding.len());
            match random(4) {
                0 => coding[at] = u8::try_from(random(256)).unwrap(),
                1 => coding.truncate(at + 1),
                2 => coding.insert(at, u8::try_from(random(256)).unwrap()),
                _ => coding[at] ^= 1 << random(8),
            }
        }
        if let Ok(patch) = decode_patch(&coding, dictionary) {
            let _ = patch.apply(&base);
        }
        let _ = decode_value(&coding, dictionary);
        let _ = crate::value::canonical::decode(&coding);
    }
}
