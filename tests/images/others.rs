//! The same archive in containerd and here: the same tree, and two processes that take in the same at once.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use edgecore::images::store::RootKind;
use tests::cores::eventually;

use super::archive::{Image, KINDS, Place, open, program};
use super::tree::{Layer, Node, read, same, text, tree};
use super::trees::history;

/// A containerd of one's own.
struct Containerd {
    daemon: Child,
    socket: String,
}

impl Containerd {
    async fn start(folder: &Path) -> Self {
        let socket = text(&folder.join("c.sock")).to_owned();
        let daemon = Command::new("containerd")
            .args(["--address", &socket, "--config", "/dev/null"])
            .args([
                "--root",
                text(&folder.join("root")),
                "--state",
                text(&folder.join("state")),
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let containerd = Self { daemon, socket };
        let answers = async || containerd.ctr(&["version"]).status.success().then_some(());
        eventually("containerd answers", answers).await;
        containerd
    }

    fn ctr(&self, words: &[&str]) -> std::process::Output {
        Command::new("ctr")
            .args(["-a", &self.socket])
            .args(words)
            .output()
            .unwrap()
    }

    fn done(&self, words: &[&str]) {
        let output = self.ctr(words);
        assert!(output.status.success(), "{words:?}: {output:?}");
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

/// The image of the demo, as `images/build` makes it.
fn web() -> PathBuf {
    tests::ship::archive(Path::new(env!("CARGO_TARGET_TMPDIR")), "web", tests::ship::HERE)
}

/// What people meet: folders nobody describes, what is gone in both ways. Not what containerd 1.6 does not do on overlayfs:
/// lead a path through a link of a layer below (it makes a folder that hides the link), link to a file below (it fails).
fn met() -> Image {
    let mut folder = Node::folder();
    (folder.mode, folder.owner, folder.modified) = (0o2750, 33, 7);
    let below = tree(&[
        ("usr", Node::folder()),
        ("usr/lib", folder.clone()),
        ("usr/lib/kept", Node::file("k")),
        ("usr/lib/gone", Node::file("g")),
        ("lib", Node::link("usr/lib")),
        ("abs", Node::link("/usr/lib")),
        ("hidden", folder),
        ("hidden/old", Node::file("o")),
        ("one", Node::file("1")),
        ("becomes", Node::folder()),
        ("becomes/x", Node::file("x")),
    ]);
    let file = Node::file;
    let mut above = Layer::default();
    above.member("./usr/lib/new", &file("n"), None);
    above.member("usr/lib/.wh.gone", &file(""), None);
    above.member("hidden/", &Node::folder(), None);
    above.member("hidden/.wh..wh..opq", &file(""), None);
    above.member("hidden/new", &file("n"), None);
    above.member("becomes", &file("a file"), None);
    above.member("/deep/er/f", &file("d"), None);
    Image::new("images.test/met:1", &[Layer::of(&below), above])
}

#[tokio::test]
async fn images_are_what_containerd_makes_of_them() {
    let place = Place::new(RootKind::Overlay);
    // Its mounts do not bear the commas of ours.
    let folder = tempfile::tempdir().unwrap();
    let containerd = Containerd::start(folder.path()).await;
    let mut archives = vec![("images.edgehold.dev/web:1".to_owned(), web())];
    let mut made = vec![met()];
    made.extend((100..108).map(|seed| history(seed).0));
    for (at, image) in made.into_iter().enumerate() {
        let path = place.path(&format!("{at}.tar"));
        image.write(&path);
        archives.push((image.name, path));
    }
    let mut compared = 0;
    for (name, archive) in archives {
        containerd.done(&["images", "import", text(&archive)]);
        let target = folder.path().join("theirs");
        std::fs::create_dir_all(&target).unwrap();
        containerd.done(&["images", "mount", &name, text(&target)]);
        let mut theirs = read(&target);
        containerd.done(&["images", "unmount", "--rm", text(&target)]);
        for kind in KINDS {
            let store = open(place.folder.path(), kind);
            assert_eq!(store.import(&archive).await.unwrap(), [name.as_str()]);
            let stored = store.image(&name).unwrap().unwrap();
            let root = store.mount_root(&stored, &place.path("ours")).unwrap();
            let mut ours = read(&root.path);
            store.remove_root(&place.path("ours")).unwrap();
            // The time of a folder that nobody describes is that of its unpacking.
            for path in ["deep", "deep/er", "usr", "usr/lib"] {
                for tree in [&mut ours, &mut theirs] {
                    tree.entry(path.to_owned()).and_modify(|node| node.modified = 0);
                }
            }
            same(&format!("{name}, {kind:?}"), &ours, &theirs);
            compared += ours.len();
            assert!(store.forget(&name).unwrap());
            store.collect(&BTreeSet::new()).unwrap();
        }
    }
    assert!(compared > 200, "only {compared} files");
}

#[tokio::test]
async fn images_are_taken_in_by_several_processes_at_once() {
    for kind in KINDS {
        let place = Place::new(kind);
        let (image, expected) = history(7);
        let archive = place.path("archive.tar");
        image.write(&archive);
        let word = if kind == RootKind::Copy { "copy" } else { "overlay" };
        let import = || {
            let mut command = Command::new(program());
            command.args(["import", text(&place.path("images")), text(&archive), word]);
            command.spawn().unwrap()
        };
        for mut process in [import(), import(), import()] {
            assert!(process.wait().unwrap().success());
        }
        let stored = place.store.image(&image.name).unwrap().unwrap();
        same(word, &place.seen(&stored), &expected);
        place.store.collect(&BTreeSet::new()).unwrap();
        let layers = if kind == RootKind::Overlay {
            image.layers.len()
        } else {
            1
        };
        assert_eq!(place.counts(), [1, 0, 2, 0, layers, 0, 0]);
    }
}

/// Who is not root has copies, and all files are their own.
#[tokio::test]
async fn images_are_unpacked_by_anybody() {
    const NOBODY: u32 = 65534;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (image, expected) = history(3);
    image.write(&path("archive.tar"));
    std::fs::copy(program(), path("program")).unwrap();
    std::os::unix::fs::chown(folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let mut import = Command::new("setpriv");
    import.args([
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "--inh-caps=-all",
        "--no-new-privs",
        "--",
    ]);
    import.arg(path("program")).arg("import");
    let output = import
        .args([text(&path("images")), text(&path("archive.tar")), "copy"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let store = open(folder.path(), RootKind::Copy);
    let stored = store.image(&image.name).unwrap().unwrap();
    let root = store.mount_root(&stored, &path("root")).unwrap();
    let found = read(&root.path);
    let paths: Vec<&String> = found.keys().collect();
    let device = |node: &Node| matches!(node.kind, super::tree::Kind::Device(..));
    let wanted: Vec<&String> = expected
        .iter()
        .filter(|(_, node)| !device(node))
        .map(|(path, _)| path)
        .collect();
    assert_eq!(paths, wanted);
    assert!(found.values().all(|node| node.owner == NOBODY));
}
