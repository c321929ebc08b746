//! Images taken in: complete or not at all, going on where a link broke, with what is wrong said.

use std::collections::BTreeSet;
use std::path::PathBuf;

use edgecore::images::store::{ImageStore, RootKind, StoreError, Stored};
use edgecore::images::{Reference, Registry as Client, Source, Trust};
use edgecore::runtime::explain;
use proto::time::Wall;

use super::archive::{Image, KINDS, Place, open};
use super::registry::Registry;
use super::tree::{Layer, Node, Tree, gzip, same, tree};

/// A layer that is large enough to be cut.
fn large() -> Tree {
    let mut seed = 1_u64;
    let mut byte = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        seed.to_le_bytes()[7]
    };
    let content: Vec<u8> = (0..600_000).map(|_| byte()).collect();
    tree(&[("large", Node::new(super::tree::Kind::File(content)))])
}

fn client(name: &str) -> Source {
    let trust = Trust {
        extra: None,
        clock: std::sync::Arc::new(|| Wall { ms: 1_780_000_000_000, trusted: true }),
    };
    Source::Registry(Box::new(Client::new(Reference::parse(name).unwrap(), &[], trust)))
}

async fn pull(place: &Place, name: &str) -> Result<Stored, StoreError> {
    Box::pin(place.store.pull(name, client(name))).await
}

#[tokio::test]
async fn images_are_kept_once_and_not_written_again() {
    let trees = [
        tree(&[("a", Node::file("a"))]),
        tree(&[("a", Node::file("a")), ("b", Node::file("b"))]),
    ];
    for kind in KINDS {
        let place = Place::new(kind);
        let image = Image::of("images.test/a:1", &trees, false);
        let stored = place.take(&image).await;
        assert_eq!(stored.config.config.as_ref().unwrap().user.as_deref(), Some("7"));
        let whole = if kind == RootKind::Overlay { 2 } else { 1 };
        assert_eq!(place.counts(), [1, 0, 2, 0, whole, 0, 0]);
        let times = || {
            let folders = ["names", "blobs", "layers", "work", "partial", "incoming"];
            folders.map(|name| {
                std::fs::metadata(place.path("images").join(name))
                    .unwrap()
                    .modified()
                    .unwrap()
            })
        };
        let before = times();
        assert_eq!(place.take(&image).await, stored);
        assert_eq!(times(), before);
        // What is shared below is not unpacked again.
        let mut more = trees.to_vec();
        more.push(tree(&[("c", Node::file("c"))]));
        let other = place.take(&Image::of("images.test/b:1", &more, false)).await;
        assert_eq!(place.counts()[4], whole + 1);
        same("shared", &place.seen(&other), &more[2]);
        let names: Vec<String> = place.store.names().unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(
            BTreeSet::from_iter(names),
            BTreeSet::from(["images.test/a:1".into(), "images.test/b:1".into()])
        );
        assert_eq!(
            open(place.folder.path(), kind).image("images.test/b:1").unwrap(),
            Some(other)
        );
    }
}

#[tokio::test]
async fn images_pulled_go_on_where_the_link_broke() {
    for kind in KINDS {
        let place = Place::new(kind);
        let archive = place.path("archive.tar");
        Image::of("images.test/large:1", &[large()], false).write(&archive);
        let registry = Registry::start();
        registry.push(&archive, "team/large", "1", |_| {});
        let name = format!("{}/team/large:1", registry.host);
        let error = pull(&place, &format!("{}/team/other:1", registry.host))
            .await
            .unwrap_err();
        assert!(explain(&error).contains("does not know it"), "{error:?}");

        registry.behave(|state| state.cut_after = Some(250_000));
        for _ in 0..2 {
            let error = pull(&place, &name).await.unwrap_err();
            assert!(matches!(error, StoreError::Image { .. }), "{error:?}");
            assert_eq!(place.store.image(&name).unwrap(), None);
            // Garbage is not what is on its way.
            assert_eq!(place.store.collect(&BTreeSet::new()).unwrap().partials, 0);
        }
        registry.behave(|state| state.cut_after = None);
        let stored = pull(&place, &name).await.unwrap();
        same("pulled", &place.seen(&stored), &large());
        assert_eq!(place.counts(), [1, 0, 2, 0, 1, 0, 0]);
        let seen = registry.behave(|state| std::mem::take(&mut state.seen));
        let offsets = seen.iter().filter(|line| line.contains("/blobs/"));
        let offsets = offsets.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok());
        assert_eq!(
            offsets.filter(|offset| *offset > 0).collect::<Vec<_>>(),
            [250_000, 500_000]
        );
        // Nothing new: one question.
        pull(&place, &name).await.unwrap();
        assert_eq!(registry.behave(|state| state.seen.len()), 1);
    }
}

#[tokio::test]
async fn images_that_came_damaged_are_fetched_anew() {
    let place = Place::new(RootKind::Overlay);
    let archive = place.path("archive.tar");
    Image::of("images.test/large:1", &[large()], false).write(&archive);
    let registry = Registry::start();
    registry.push(&archive, "team/large", "1", |_| {});
    let name = format!("{}/team/large:1", registry.host);
    registry.behave(|state| state.damage = true);
    for _ in 0..2 {
        let error = pull(&place, &name).await.unwrap_err();
        assert!(matches!(error, StoreError::Layer { .. }), "{error:?}");
        assert_eq!(place.counts(), [0, 1, 2, 0, 0, 0, 0]);
    }
    registry.behave(|state| state.damage = false);
    pull(&place, &name).await.unwrap();
}

#[tokio::test]
async fn images_keep_their_names_until_the_new_ones_are_complete() {
    let place = Place::new(RootKind::Overlay);
    let archive = place.path("archive.tar");
    Image::of("images.test/large:1", &[large()], false).write(&archive);
    let registry = Registry::start();
    registry.push(&archive, "team/large", "1", |_| {});
    let name = format!("{}/team/large:1", registry.host);
    let old = pull(&place, &name).await.unwrap();
    let mut newer = large();
    newer.insert("newer".into(), Node::file("n"));
    Image::of("images.test/large:1", &[newer.clone()], false).write(&archive);
    registry.push(&archive, "team/large", "1", |_| {});
    registry.behave(|state| state.cut_after = Some(1000));
    pull(&place, &name).await.unwrap_err();
    place.store.collect(&BTreeSet::new()).unwrap();
    assert_eq!(place.store.image(&name).unwrap(), Some(old.clone()));
    same("old", &place.seen(&old), &large());
    registry.behave(|state| state.cut_after = None);
    let new = pull(&place, &name).await.unwrap();
    assert_ne!(new, old);
    same("new", &place.seen(&new), &newer);
    assert_eq!(place.counts(), [1, 0, 2, 0, 1, 0, 0]);
    // By digest, which is checked.
    let by_digest = format!(
        "{}/team/large@{}",
        registry.host,
        "sha256:".to_owned() + &"0".repeat(64)
    );
    assert!(pull(&place, &by_digest).await.is_err());
}

/// What is wrong with an image is said with its layer and path, and nothing of it stays.
#[tokio::test]
async fn images_that_are_wrong_say_where() {
    let sound = Layer::of(&tree(&[("d", Node::folder()), ("d/f", Node::file("x"))])).bytes();
    let member = |path: &str, node: Node, link: Option<&str>| {
        let mut layer = Layer::default();
        layer.member(path, &node, link);
        layer.bytes()
    };
    let packed = gzip(&sound);
    let cases: Vec<(&str, Vec<u8>, Vec<u8>, &str)> = vec![
        ("cut", packed[..packed.len() / 2].to_vec(), sound.clone(), ""),
        (
            "another diff id",
            packed.clone(),
            b"another".to_vec(),
            "its unpacked content has the digest",
        ),
        (
            "no archive",
            b"not an archive at all".to_vec(),
            b"not an archive at all".to_vec(),
            "cut off",
        ),
        (
            "out",
            gzip(&member("../x", Node::file("x"), None)),
            member("../x", Node::file("x"), None),
            "../x: its path goes up",
        ),
        (
            "a link to nothing",
            gzip(&member("h", Node::file(""), Some("none"))),
            member("h", Node::file(""), Some("none")),
            "h: what it links to, none, is not there",
        ),
    ];
    for kind in KINDS {
        let place = Place::new(kind);
        let archive = place.path("archive.tar");
        let base = (gzip(&sound), sound.clone());
        for (what, sent, plain, reason) in &cases {
            let layers = vec![base.clone(), (sent.clone(), plain.clone())];
            Image { name: "images.test/bad:1".into(), layers }.write(&archive);
            let error = place.store.import(&archive).await.unwrap_err();
            let StoreError::Layer { layer, image, .. } = &error else {
                panic!("{what}: {error:?}");
            };
            assert_eq!(*layer, edgecore::images::Digest::of(sent).to_string(), "{what}");
            assert_eq!(image, "images.test/bad:1", "{what}");
            assert!(error.to_string().contains(reason), "{what}: {error}");
            assert_eq!(place.store.image("images.test/bad:1").unwrap(), None, "{what}");
            assert_eq!(place.counts()[5], 0, "{what}");
        }
        // Given up, all of it goes.
        let good = Image { name: "images.test/bad:1".into(), layers: vec![base] };
        place.take(&good).await;
        place.store.collect(&BTreeSet::new()).unwrap();
        assert_eq!(place.counts(), [1, 0, 2, 0, 1, 0, 0]);
    }
}

/// A store on a disk of 100 MiB, and where that is.
fn on_a_small_disk(place: &Place, kind: RootKind) -> (ImageStore, PathBuf) {
    let disk = place.path("images");
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=100m", "tmpfs"])
        .arg(&disk)
        .status()
        .unwrap();
    assert!(mounted.success());
    (open(place.folder.path(), kind), disk)
}

/// What came of an image before the disk was full is shown, can be taken away, and gives way to another.
#[tokio::test]
async fn what_came_of_an_image_that_never_arrives_gives_way() {
    let zeros = |count: usize| Node::new(super::tree::Kind::File(vec![0; count << 20]));
    let (below, above) = (
        tree(&[("below", zeros(50))]),
        tree(&[("below", zeros(50)), ("above", zeros(80))]),
    );
    let huge = Image::of("images.test/huge:1", &[below, above], false);
    let other = Image::of("images.test/other:1", &[tree(&[("other", zeros(40))])], false);
    for kind in KINDS {
        let place = Place::new(kind);
        let (store, _) = on_a_small_disk(&place, kind);
        let archive = place.path("archive.tar");
        let fails = async || {
            huge.write(&archive);
            let error = store.import(&archive).await.unwrap_err();
            assert!(matches!(error, StoreError::DiskFull { .. }), "{kind:?}: {error:?}");
            assert_eq!(
                store.names().unwrap(),
                [("images.test/huge:1".to_owned(), None)],
                "{kind:?}"
            );
        };
        fails().await;
        other.write(&archive);
        store.import(&archive).await.unwrap();
        let names: Vec<_> = store.names().unwrap().into_iter().map(|(name, _)| name).collect();
        assert!(names.contains(&"images.test/other:1".to_owned()), "{kind:?}: {names:?}");
        for name in names {
            assert!(store.forget(&name).unwrap(), "{kind:?}: {name}");
        }
        assert!(!store.forget("images.test/huge:1").unwrap(), "{kind:?}");
        store.collect(&BTreeSet::new()).unwrap();
        fails().await;
        assert!(store.forget("images.test/huge:1").unwrap(), "{kind:?}");
        store.collect(&BTreeSet::new()).unwrap();
        assert_eq!(place.counts(), [0; 7], "{kind:?}");
    }
}

/// A bomb, or just too much: the disk is not filled, and what was begun is gone.
#[tokio::test]
async fn images_larger_than_the_disk_are_refused_and_leave_nothing() {
    let zeros = super::tree::Kind::File(vec![0; 80 << 20]);
    let image = Image::of("images.test/bomb:1", &[tree(&[("zeros", Node::new(zeros))])], false);
    assert!(image.layers[0].0.len() < 1 << 20, "a bomb is small");
    for kind in KINDS {
        let place = Place::new(kind);
        let (store, disk) = on_a_small_disk(&place, kind);
        let archive = place.path("archive.tar");
        image.write(&archive);
        let error = store.import(&archive).await.unwrap_err();
        assert!(matches!(error, StoreError::DiskFull { .. }), "{error:?}");
        assert_eq!(place.counts(), [0, 1, 2, 0, 0, 0, 0]);
        let stat = rustix::fs::statvfs(&disk).unwrap();
        assert!(stat.f_bavail * stat.f_frsize > 95 << 20, "{kind:?}");
        // The same disk takes what fits.
        let small = Image::of("images.test/small:1", &[tree(&[("a", Node::file("a"))])], false);
        small.write(&archive);
        store.import(&archive).await.unwrap();
    }
}
