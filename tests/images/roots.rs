//! Roots of containers: kept over reboots, taken away whole, made of what they were made of.

use std::collections::BTreeSet;
use std::process::Command;

use edgecore::images::store::{ImageStore, RootKind, StoreError};

use super::archive::{Image, KINDS, Place, open, program};
use super::tree::{Node, Tree, read, same, text, tree};

fn small() -> [Tree; 2] {
    let first = tree(&[
        ("d", Node::folder()),
        ("d/gone", Node::file("g")),
        ("d/kept", Node::file("k")),
        ("r", Node::folder()),
        ("r/old", Node::file("o")),
    ]);
    let mut second = first.clone();
    second.remove("d/gone");
    second.insert("d/new".into(), Node::file("n"));
    [first, second]
}

/// Writes into a root as a container would: new, changed, gone, replaced.
fn write(root: &std::path::Path) {
    std::fs::write(root.join("d/written"), "w").unwrap();
    std::fs::write(root.join("d/kept"), "changed").unwrap();
    std::fs::remove_file(root.join("d/new")).unwrap();
    std::fs::remove_dir_all(root.join("r")).unwrap();
    std::fs::create_dir(root.join("r")).unwrap();
}

#[tokio::test]
async fn images_roots_keep_what_was_written_over_a_reboot_and_a_moved_tag() {
    for kind in KINDS {
        let place = Place::new(kind);
        let stored = place.take(&Image::of("images.test/a:1", &small(), false)).await;
        let root = place.root(&stored, "c");
        assert_eq!(root.kind, kind);
        same("fresh", &read(&root.path), &small()[1]);
        write(&root.path);
        let written = read(&root.path);
        assert_eq!(place.root(&stored, "c"), root);
        same("again", &read(&root.path), &written);
        // Another image has the name now; garbage is taken away; the machine reboots.
        let other = place
            .take(&Image::of("images.test/a:1", &[tree(&[("x", Node::file("x"))])], false))
            .await;
        // Those of both: one of them is in use.
        let layers = if kind == RootKind::Overlay { 3 } else { 2 };
        assert_eq!(place.counts()[4], layers);
        if kind == RootKind::Overlay {
            let umount = Command::new("umount").arg(&root.path).status().unwrap();
            assert!(umount.success());
        }
        let store = open(place.folder.path(), kind);
        assert_eq!(store.mount_root(&other, &place.path("c")).unwrap(), root);
        same("rebooted", &read(&root.path), &written);
        // Somebody is in it: it goes all the same, and its layers with it.
        let inside = std::fs::File::open(root.path.join("d/kept")).unwrap();
        for _ in 0..2 {
            store.remove_root(&place.path("c")).unwrap();
        }
        drop(inside);
        assert_eq!(std::fs::read_dir(place.path("c")).unwrap().count(), 0);
        assert_eq!(place.counts(), [1, 0, 2, 0, 1, 0, 0]);
    }
}

#[tokio::test]
async fn images_roots_are_apart() {
    for kind in KINDS {
        let place = Place::new(kind);
        let stored = place.take(&Image::of("images.test/a:1", &small(), false)).await;
        let (one, two) = (place.root(&stored, "one"), place.root(&stored, "two"));
        write(&one.path);
        same("two", &read(&two.path), &small()[1]);
        place.store.remove_root(&place.path("one")).unwrap();
        same("two", &read(&two.path), &small()[1]);
        same("three", &read(&place.root(&stored, "three").path), &small()[1]);
        for name in ["two", "three"] {
            place.store.remove_root(&place.path(name)).unwrap();
        }
    }
}

#[tokio::test]
async fn images_run_on_when_overlays_are_gone() {
    let place = Place::new(RootKind::Overlay);
    let stored = place.take(&Image::of("images.test/a:1", &small(), true)).await;
    let root = place.root(&stored, "c");
    write(&root.path);
    let written = read(&root.path);
    assert!(Command::new("umount").arg(&root.path).status().unwrap().success());
    // The same folder under a kernel that cannot mount them.
    let store = open(place.folder.path(), RootKind::Copy);
    for _ in 0..2 {
        let root = store.mount_root(&stored, &place.path("c")).unwrap();
        assert_eq!(root.kind, RootKind::Copy);
        same("copied", &read(&root.path), &written);
    }
    std::fs::write(root.path.join("more"), "m").unwrap();
    let fresh = store.mount_root(&stored, &place.path("fresh")).unwrap();
    same("fresh", &read(&fresh.path), &small()[1]);
    // And back: what was copied stays a copy.
    let store = open(place.folder.path(), RootKind::Overlay);
    let root = store.mount_root(&stored, &place.path("c")).unwrap();
    assert_eq!((root.kind, root.path.join("more").exists()), (RootKind::Copy, true));
}

#[tokio::test]
async fn images_of_nothing_have_an_empty_root() {
    for kind in KINDS {
        let place = Place::new(kind);
        let stored = place.take(&Image::of("images.test/nothing:1", &[], false)).await;
        let root = place.root(&stored, "c");
        assert!(read(&root.path).is_empty());
        place.store.remove_root(&place.path("c")).unwrap();
    }
}

/// Whether overlays work is found out by trying, on the file system in question.
#[test]
fn images_are_copied_where_overlays_do_not_work() {
    let folder = tempfile::tempdir().unwrap();
    let kind = |path: &std::path::Path| ImageStore::open(path.to_owned(), program()).unwrap().kind();
    assert_eq!(kind(&folder.path().join("disk")), RootKind::Overlay);
    let [lower, upper, work, merged] = ["lower", "upper", "work", "merged"].map(|name| folder.path().join(name));
    for path in [&lower, &upper, &work, &merged] {
        std::fs::create_dir(path).unwrap();
    }
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        text(&lower),
        text(&upper),
        text(&work)
    );
    let mount = Command::new("mount")
        .args(["-t", "overlay", "overlay", "-o", &options])
        .arg(&merged)
        .status();
    assert!(mount.unwrap().success());
    // An overlay is no place for what overlays write.
    let found = kind(&merged.join("images"));
    assert!(Command::new("umount").arg(&merged).status().unwrap().success());
    assert_eq!(found, RootKind::Copy);
    // Nothing of the trial is left.
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(text(folder.path())));
    assert_eq!(std::fs::read_dir(folder.path().join("disk/work")).unwrap().count(), 0);
}

#[tokio::test]
async fn images_say_what_a_root_misses() {
    let place = Place::new(RootKind::Overlay);
    let stored = place.take(&Image::of("images.test/a:1", &small(), false)).await;
    assert!(place.store.forget("images.test/a:1").unwrap());
    assert!(!place.store.forget("images.test/a:1").unwrap());
    assert_eq!(place.store.image("images.test/a:1").unwrap(), None);
    // Whoever says that an image is in use keeps it, name or not.
    assert_eq!(
        place
            .store
            .collect(&BTreeSet::from([stored.id.clone()]))
            .unwrap()
            .layers,
        0
    );
    assert_eq!(place.store.collect(&BTreeSet::new()).unwrap().layers, 2);
    let error = place.store.mount_root(&stored, &place.path("c")).unwrap_err();
    assert!(matches!(error, StoreError::Missing { .. }), "{error}");
}
