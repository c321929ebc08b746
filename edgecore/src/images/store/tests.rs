use std::collections::BTreeSet;

use super::folder::{Layer, Name, RootRecord};
use super::pull::OTHERS_MAX;
use super::*;

fn store(folder: &Path) -> ImageStore {
    ImageStore::open_as(folder.join("images"), "/no/program".into(), RootKind::Overlay).unwrap()
}

fn digest(text: &str) -> Digest {
    Digest::of(text.as_bytes())
}

/// What is on cards out there is read by every release to come.
#[test]
fn records_are_written_as_ever() {
    let check = |record: &dyn erased::Json, expected: String| assert_eq!(record.json(), expected);
    let (a, b) = (digest("a"), digest("b"));
    check(
        &Name::new("docker.io/library/web:1", &a),
        format!(r#"{{"version":1,"name":"docker.io/library/web:1","manifest":"{a}"}}"#),
    );
    check(
        &Layer::new(&a, Some(&b), 7),
        format!(r#"{{"version":1,"chain":"{a}","below":"{b}","bytes":7}}"#),
    );
    check(
        &Layer::new(&a, None, 0),
        format!(r#"{{"version":1,"chain":"{a}","below":null,"bytes":0}}"#),
    );
    check(
        &RootRecord::new(Path::new("/data/c"), RootKind::Copy, vec![a.clone(), b.clone()]),
        format!(r#"{{"version":1,"folder":"/data/c","kind":"Copy","chain":["{a}","{b}"]}}"#),
    );
}

mod erased {
    /// Whatever is written as JSON.
    pub(super) trait Json {
        fn json(&self) -> String;
    }

    impl<T: serde::Serialize> Json for T {
        fn json(&self) -> String {
            serde_json::to_string(self).unwrap()
        }
    }
}

#[test]
fn a_damaged_record_does_not_count_and_ends_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    let name = Name::new("docker.io/library/web:1", &digest("a"));
    store.shared.folder.point(&name).unwrap();
    assert_eq!(store.shared.folder.name(&name.name).unwrap().as_ref(), Some(&name));
    let names = folder.path().join("images/names");
    let path = std::fs::read_dir(&names).unwrap().next().unwrap().unwrap().path();
    // Torn at every byte.
    let whole = std::fs::read(&path).unwrap();
    for length in 0..whole.len() {
        std::fs::write(&path, &whole[..length]).unwrap();
        assert_eq!(store.image("web:1").unwrap(), None);
        // What it meant is not known, so nothing may go.
        assert!(matches!(
            store.collect(&BTreeSet::new()),
            Err(StoreError::Record { .. })
        ));
    }
    // Whoever needs it makes it again.
    store.shared.folder.point(&name).unwrap();
    store.collect(&BTreeSet::new()).unwrap();
    // A newer one is not touched.
    let newer = String::from_utf8(whole)
        .unwrap()
        .replace(r#""version":1"#, r#""version":2"#);
    std::fs::write(&path, newer).unwrap();
    assert!(matches!(
        store.image("web:1"),
        Err(StoreError::Newer { version: 2, .. })
    ));
    assert!(matches!(store.collect(&BTreeSet::new()), Err(StoreError::Newer { .. })));
}

#[test]
fn only_so_many_images_are_on_their_way() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    for at in 0..=OTHERS_MAX + 1 {
        store
            .shared
            .folder
            .expect(&Name::new(&format!("i:{at}"), &digest("a")), OTHERS_MAX)
            .unwrap();
        assert_eq!(
            store.shared.folder.incoming().unwrap().len(),
            (at + 1).min(OTHERS_MAX + 1)
        );
    }
    let names = store.shared.folder.incoming().unwrap();
    assert!(names.iter().any(|name| name.name == format!("i:{}", OTHERS_MAX + 1)));
}

#[test]
fn nothing_is_taken_away_while_something_is_put_in() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (store(folder.path()), store(folder.path()));
    let held = one.shared.folder.hold().unwrap();
    let also = other.shared.folder.hold().unwrap();
    assert!(other.collect(&BTreeSet::new()).unwrap().busy);
    drop(held);
    assert!(one.collect(&BTreeSet::new()).unwrap().busy);
    drop(also);
    assert!(!one.collect(&BTreeSet::new()).unwrap().busy);
}

#[test]
fn a_document_that_rotted_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    let bytes = b"document";
    let digest = Digest::of(bytes);
    store.shared.folder.put_blob(&digest, bytes).unwrap();
    std::fs::write(folder.path().join("images/blobs").join(digest.hex()), b"documenT").unwrap();
    assert_eq!(store.shared.folder.blob(&digest).unwrap(), None);
    // It is put in again.
    store.shared.folder.put_blob(&digest, bytes).unwrap();
    assert_eq!(store.shared.folder.blob(&digest).unwrap().as_deref(), Some(&bytes[..]));
}

/// Layers that stand on each other, and who needs them: the whole of it, without a disk.
#[test]
fn layers_go_from_the_top_and_only_unneeded() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    let put = |chain: &str, below: Option<&str>| {
        let tree = store.shared.folder.staging().unwrap().join("tree");
        std::fs::create_dir(&tree).unwrap();
        let below = below.map(digest);
        store
            .shared
            .folder
            .commit(&tree, &Layer::new(&digest(chain), below.as_ref(), 1))
            .unwrap();
    };
    put("a", None);
    put("b", Some("a"));
    put("c", Some("b"));
    put("d", Some("a"));
    // Without its top a chain is complete, without what is below it is not.
    assert_eq!(
        store.shared.folder.stack(&digest("c")).unwrap(),
        Some(["c", "b", "a"].map(digest).to_vec())
    );
    let container = folder.path().join("container");
    std::fs::create_dir(&container).unwrap();
    let root = RootRecord::new(&container, RootKind::Overlay, vec![digest("b")]);
    store.shared.folder.put_root(&root).unwrap();
    let collected = store.collect(&BTreeSet::new()).unwrap();
    assert_eq!((collected.layers, collected.bytes), (2, 2));
    assert_eq!(
        store.shared.folder.stack(&digest("b")).unwrap(),
        Some(["b", "a"].map(digest).to_vec())
    );
    assert_eq!(store.shared.folder.stack(&digest("c")).unwrap(), None);
    // A root whose folder is gone needs nothing.
    std::fs::remove_dir(&container).unwrap();
    assert_eq!(store.collect(&BTreeSet::new()).unwrap().layers, 2);
}

#[test]
fn a_circle_of_layers_is_no_stack() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    for (chain, below) in [("a", "b"), ("b", "a")] {
        let tree = store.shared.folder.staging().unwrap().join("tree");
        std::fs::create_dir(&tree).unwrap();
        let layer = Layer::new(&digest(chain), Some(&digest(below)), 0);
        store.shared.folder.commit(&tree, &layer).unwrap();
    }
    assert_eq!(store.shared.folder.stack(&digest("a")).unwrap(), None);
}
