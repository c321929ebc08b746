//! What layers make: random histories of trees, what other programs pack, and the cases people meet.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::process::Command;

use edgecore::images::manifest::LAYERS_MAX;
use edgecore::images::store::RootKind;

use super::archive::{Image, KINDS, Place};
use super::tree::{Kind, Layer, Node, Tree, read, same, text, tree};

/// Numbers from a seed.
#[derive(Debug)]
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % limit
    }

    fn number(&mut self, limit: u32) -> u32 {
        u32::try_from(self.below(usize::try_from(limit).unwrap())).unwrap()
    }

    fn node(&mut self) -> Node {
        let kind = match self.below(12) {
            0..4 => Kind::Folder,
            4..8 => Kind::File(
                (0..self.below(3000))
                    .map(|at| u8::try_from(at % 251).unwrap())
                    .collect(),
            ),
            8..10 => Kind::Symlink(["/a", "../b/c", "nowhere", "a/b"][self.below(4)].to_owned()),
            10 => Kind::Fifo,
            _ => Kind::Device(1, self.number(10)),
        };
        self.describe(Node::new(kind))
    }

    fn describe(&mut self, mut node: Node) -> Node {
        if !matches!(node.kind, Kind::Symlink(_)) {
            node.mode = [0o644, 0o755, 0o4755, 0o2711, 0o1777, 0o600][self.below(6)];
        }
        node.owner = self.number(3) * 1000;
        node.group = self.number(70_000);
        node.modified = i64::from(self.number(2_000_000_000));
        if matches!(node.kind, Kind::File(_) | Kind::Folder) && self.below(4) == 0 {
            node.attributes
                .insert("user.note".into(), format!("a\n{}", self.below(9)).into());
        }
        if matches!(node.kind, Kind::File(_)) && self.below(8) == 0 {
            // cap_net_raw, version 2.
            let mut value = vec![1, 0, 0, 2, 0, 0x20, 0, 0];
            value.resize(20, 0);
            node.attributes.insert("security.capability".into(), value);
        }
        node
    }

    fn path(&mut self, tree: &Tree) -> String {
        let folders: Vec<&String> = tree
            .iter()
            .filter(|(_, node)| node.kind == Kind::Folder)
            .map(|(path, _)| path)
            .collect();
        let name = ["a", "b", "c", "d", ".e", "f g"][self.below(6)];
        match self.below(folders.len() + 2).checked_sub(2) {
            Some(at) if folders[at].matches('/').count() < 4 => format!("{}/{name}", folders[at]),
            _ => name.to_owned(),
        }
    }

    /// Changes a tree a little.
    fn change(&mut self, tree: &mut Tree) {
        let some = |dice: &mut Self, tree: &Tree| tree.keys().nth(dice.below(tree.len().max(1))).cloned();
        match self.below(10) {
            0..5 => {
                let path = self.path(tree);
                let node = self.node();
                let merged = node.kind == Kind::Folder && tree.get(&path).is_some_and(|old| old.kind == Kind::Folder);
                if !merged {
                    remove(tree, &path);
                }
                tree.insert(path, node);
            }
            5..7 => {
                if let Some(path) = some(self, tree) {
                    remove(tree, &path);
                }
            }
            7..9 => {
                if let Some(path) = some(self, tree) {
                    let old = tree[&path].clone();
                    let new = self.describe(Node { attributes: BTreeMap::new(), ..old.clone() });
                    // All names of a file say the same of it.
                    for (other, node) in tree.iter_mut() {
                        if *other == path || node.first.is_some() && node.first == old.first {
                            *node = new.clone();
                        }
                    }
                }
            }
            _ => {
                let from = some(self, tree).filter(|path| matches!(tree[path].kind, Kind::File(_)));
                let path = self.path(tree);
                if let Some(from) = from.filter(|from| !path.starts_with(&**from) && !from.starts_with(&path)) {
                    remove(tree, &path);
                    let first = tree[&from].first.clone().unwrap_or_else(|| from.clone());
                    tree.get_mut(&from).unwrap().first = Some(first);
                    let node = tree[&from].clone();
                    tree.insert(path, node);
                }
            }
        }
        regroup(tree);
    }
}

/// Removes a file, or a folder with all in it.
fn remove(tree: &mut Tree, path: &str) {
    let inside = format!("{path}/");
    tree.retain(|other, _| other != path && !other.starts_with(&inside));
    regroup(tree);
}

/// Names a file's names after the first of them.
fn regroup(tree: &mut Tree) {
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, node) in tree.iter() {
        if let Some(first) = &node.first {
            groups.entry(first.clone()).or_default().push(path.clone());
        }
    }
    for group in groups.into_values() {
        let first = (group.len() > 1).then(|| group[0].clone());
        for path in group {
            tree.get_mut(&path).unwrap().first.clone_from(&first);
        }
    }
}

const HISTORIES: u64 = 40;

/// An image whose layers tell how a tree came to be, and the tree.
pub(crate) fn history(seed: u64) -> (Image, Tree) {
    let mut dice = Dice(seed);
    let mut at = Tree::new();
    let mut trees = Vec::new();
    for _ in 0..=dice.below(4) {
        for _ in 0..=dice.below(25) {
            dice.change(&mut at);
        }
        trees.push(at.clone());
    }
    (
        Image::of(&format!("images.test/random:{seed}"), &trees, seed.is_multiple_of(2)),
        at,
    )
}

#[tokio::test]
async fn images_of_random_histories_are_the_trees_they_were_made_of() {
    for kind in KINDS {
        let place = Place::new(kind);
        for seed in 0..HISTORIES {
            let (image, expected) = history(seed);
            let stored = place.take(&image).await;
            same(&format!("{kind:?}, seed {seed}"), &place.seen(&stored), &expected);
        }
    }
}

#[tokio::test]
async fn images_layers_mean_what_they_mean_on_those_below() {
    let node = Node::file;
    let mut folder = Node::folder();
    (folder.mode, folder.owner, folder.modified) = (0o2750, 33, 7);
    let below = tree(&[
        ("usr", Node::folder()),
        ("usr/lib", folder.clone()),
        ("usr/lib/kept", node("k")),
        ("lib", Node::link("usr/lib")),
        ("one", node("1")),
    ]);
    // Nobody describes the folders, or the link, again.
    let mut above = Layer::default();
    above.member("lib/new", &node("n"), None);
    above.member("usr/lib/linked", &node(""), Some("one"));
    above.member("lib/.wh.kept", &node(""), None);
    let image = Image::new("images.test/links:1", &[Layer::of(&below), above]);
    for kind in KINDS {
        let place = Place::new(kind);
        let stored = place.take(&image).await;
        let mut seen = place.seen(&stored);
        // Only the time of a folder changes that something is put into.
        for path in ["usr/lib", "usr"] {
            seen.get_mut(path).unwrap().modified = below[path].modified;
        }
        let mut expected = below.clone();
        expected.remove("usr/lib/kept");
        expected.insert("usr/lib/new".into(), node("n"));
        expected.insert("usr/lib/linked".into(), node("1"));
        for path in ["one", "usr/lib/linked"] {
            expected.get_mut(path).unwrap().first = Some("one".into());
        }
        same(&format!("{kind:?}"), &seen, &expected);
    }
}

/// Archives as programs of others write them, in each of their forms.
#[tokio::test]
async fn images_packed_by_others_are_the_trees_they_packed() {
    let place = Place::new(RootKind::Overlay);
    let from = place.path("from");
    let mut nodes = tree(&[
        ("d", Node::folder()),
        ("d/f", Node::file("x")),
        ("link", Node::link("d/f")),
    ]);
    nodes.get_mut("d/f").unwrap().mode = 0o4711;
    // Two names, as ustar parts them; more than a header's hundred bytes together.
    let long = "long".repeat(20);
    nodes.insert(format!("d/{long}"), Node::folder());
    nodes.insert(format!("d/{long}/{long}"), Node::file("long"));
    let source = Image::of("images.test/from:1", &[nodes], false);
    let stored = place.take(&source).await;
    let root = place.root(&stored, "from").path;
    assert!(root.starts_with(&from));
    std::fs::hard_link(root.join("d/f"), root.join("hard")).unwrap();
    let sparse = std::fs::File::create(root.join("sparse")).unwrap();
    for at in [0, 1 << 20, 3 << 20] {
        std::os::unix::fs::FileExt::write_all_at(&sparse, &[b's'; 5000], at).unwrap();
    }
    sparse.set_len(5 << 20).unwrap();
    drop(sparse);
    let expected = read(&root);
    let pack = |what: &str, command: &mut Command| {
        let output = command.output().unwrap();
        assert!(
            output.status.success(),
            "{what}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        output.stdout
    };
    let gnu = |format: &str, words: &[&str]| {
        let mut command = Command::new("tar");
        command.args(["--numeric-owner", "--format", format]).args(words);
        pack(format, command.args(["-C", text(&root), "-c", "."]))
    };
    let python = |format: &str| {
        let script = "import sys, tarfile\n\
            t = tarfile.open(fileobj=sys.stdout.buffer, mode='w|', format=getattr(tarfile, sys.argv[1]))\n\
            t.add(sys.argv[2], arcname='.')\n\
            t.close()";
        pack(
            format,
            Command::new("python3").args(["-c", script, format, text(&root)]),
        )
    };
    let packed = [
        ("gnu", gnu("gnu", &["--sparse"])),
        ("oldgnu", gnu("oldgnu", &["--sparse"])),
        (
            "pax 0.0",
            gnu("posix", &["--sparse", "--sparse-version=0.0", "--xattrs"]),
        ),
        ("pax 0.1", gnu("posix", &["--sparse", "--sparse-version=0.1"])),
        ("pax 1.0", gnu("posix", &["--sparse", "--sparse-version=1.0"])),
        ("ustar", gnu("ustar", &[])),
        ("python, pax", python("PAX_FORMAT")),
        ("python, gnu", python("GNU_FORMAT")),
    ];
    for (what, plain) in packed {
        let name = format!("images.test/packed:{}", what.replace([' ', ','], "-"));
        let stored = place.take(&Image { name, layers: vec![(plain.clone(), plain)] }).await;
        let root = place.root(&stored, "packed").path;
        let mut seen = read(&root);
        // Fractions of seconds are cut where a form has none; the root is nobody's to describe.
        for (path, node) in &mut seen {
            let wanted = expected[path].modified;
            assert!((node.modified - wanted).abs() <= 1, "{what}: {path}");
            node.modified = wanted;
        }
        same(what, &seen, &expected);
        if what.starts_with(['g', 'o']) || what.starts_with("pax") {
            let blocks = std::fs::metadata(root.join("sparse")).unwrap().blocks();
            assert!(blocks * 512 < 1 << 20, "{what}: {blocks}");
        }
        place.store.remove_root(&place.path("packed")).unwrap();
    }
    place.store.remove_root(&from).unwrap();
}

#[tokio::test]
async fn images_layers_end_at_their_limit() {
    let layers = |count: usize| {
        let one = |at: usize| {
            let mut layer = Layer::default();
            layer.member(&format!("f{at}"), &Node::file("x"), None);
            layer
        };
        Image::new("images.test/many:1", &(0..count).map(one).collect::<Vec<_>>())
    };
    let place = Place::new(RootKind::Overlay);
    let stored = place.take(&layers(LAYERS_MAX)).await;
    let root = place.root(&stored, "many");
    // All of them fit into one mount.
    assert_eq!(root.kind, RootKind::Overlay);
    assert_eq!(read(&root.path).len(), LAYERS_MAX);
    place.store.remove_root(&place.path("many")).unwrap();
    let archive = place.path("archive.tar");
    layers(LAYERS_MAX + 1).write(&archive);
    let error = place.store.import(&archive).await.unwrap_err();
    assert!(
        edgecore::runtime::explain(&error).contains("more than 128 layers"),
        "{error:?}"
    );
    assert_eq!(place.store.image("images.test/many:1").unwrap(), Some(stored));
}
