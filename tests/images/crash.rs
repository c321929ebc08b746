//! Ended at any moment: there is the old image or the new one, and the next import goes through.

use std::collections::BTreeSet;
use std::process::Command;

use edgecore::images::store::RootKind;

use super::archive::{Image, KINDS, Place, program};
use super::tree::{Node, Tree, same, text, tree};

/// Every so many system calls a process is ended at one.
const STEP: usize = 7;

/// Two images of one name with a layer in common.
fn images() -> [(Image, Tree); 2] {
    let base = tree(&[
        ("d", Node::folder()),
        ("d/a", Node::file("a")),
        ("d/b", Node::file("b")),
    ]);
    let mut old = base.clone();
    old.insert("d/old".into(), Node::file("o"));
    let mut new = base.clone();
    new.remove("d/a");
    new.insert("d/new".into(), Node::file("n"));
    let mut newer = new.clone();
    newer.insert("e".into(), Node::folder());
    let name = "images.test/crash:1";
    [
        (Image::of(name, &[base.clone(), old.clone()], false), old),
        (Image::of(name, &[base, new, newer.clone()], false), newer),
    ]
}

#[tokio::test]
async fn images_survive_an_end_at_any_system_call() {
    let [(old, old_tree), (new, new_tree)] = images();
    for kind in KINDS {
        let mut ended = 0;
        for at in (1..).step_by(STEP) {
            let place = Place::new(kind);
            let before = place.take(&old).await;
            let archive = place.path("new.tar");
            new.write(&archive);
            // Each process at its own so-manieth call: the one that takes in, or the one that unpacks.
            let inject = format!("--inject=%file,%desc:signal=SIGKILL:when={at}");
            let kind_word = if kind == RootKind::Copy { "copy" } else { "overlay" };
            let output = Command::new("strace")
                .args(["-f", "-o", "/dev/null", "-e", "trace=%file,%desc", &inject])
                .arg(program())
                .args(["import", text(&place.path("images")), text(&archive), kind_word])
                .output()
                .unwrap();
            let what = format!("{kind:?}, at call {at}");
            // Whoever starts next sees one of the two, whole.
            let found = place.store.image(&old.name).unwrap().unwrap();
            let expected = if found == before { &old_tree } else { &new_tree };
            same(&what, &place.seen(&found), expected);
            // And goes on, as if nothing had been.
            let after = place.take(&new).await;
            same(&what, &place.seen(&after), &new_tree);
            let collected = place.store.collect(&BTreeSet::new()).unwrap();
            assert!(!collected.busy, "{what}");
            let layers = if kind == RootKind::Overlay { 3 } else { 1 };
            assert_eq!(place.counts(), [1, 0, 2, 0, layers, 0, 0], "{what}");
            if output.status.success() {
                assert!(found != before, "{what}");
                break;
            }
            ended += 1;
        }
        assert!(ended > 10, "{kind:?}: only {ended} ends");
    }
}
