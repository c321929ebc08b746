use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;

use tempfile::TempDir;

use super::*;
use crate::images::tar::testing::{changed, end, entry, link, pax};

/// Puts layers on each other and says what is there: path, kind or content; links with `->`.
struct Sandbox {
    folder: TempDir,
}

impl Sandbox {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("root")).unwrap();
        std::fs::write(folder.path().join("outside"), "untouched").unwrap();
        Self { folder }
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    fn apply(&self, members: &[Vec<u8>]) -> Result<Applied, Fault> {
        self.apply_with(members, Limits { room_bytes: u64::MAX })
    }

    fn apply_with(&self, members: &[Vec<u8>], limits: Limits) -> Result<Applied, Fault> {
        let archive = [members.concat(), end()].concat();
        let tree = Tree::open(&self.root()).unwrap();
        apply(&mut Reader::new(&archive[..]), &tree, limits)
    }

    fn seen(&self) -> Vec<String> {
        let mut seen = Vec::new();
        let mut todo = vec![self.root()];
        while let Some(folder) = todo.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let shown = path.strip_prefix(self.root()).unwrap().display().to_string();
                let kind = std::fs::symlink_metadata(&path).unwrap().file_type();
                seen.push(if kind.is_symlink() {
                    format!("{shown} -> {}", std::fs::read_link(&path).unwrap().display())
                } else if kind.is_dir() {
                    todo.push(path);
                    format!("{shown}/")
                } else if kind.is_file() {
                    format!("{shown}={}", std::fs::read_to_string(&path).unwrap())
                } else {
                    format!("{shown} special")
                });
            }
        }
        seen.sort();
        seen
    }

    /// Nothing but the root was touched.
    fn is_confined(&self) -> bool {
        let outside: Vec<_> = std::fs::read_dir(self.folder.path()).unwrap().collect();
        outside.len() == 2 && std::fs::read(self.folder.path().join("outside")).unwrap() == b"untouched"
    }
}

/// A member of this user's own: anybody may run these.
fn own(name: &str, kind: u8, content: &[u8]) -> Vec<u8> {
    changed(name, kind, content, mine)
}

fn mine(header: &mut [u8; 512]) {
    let (owner, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    header[108..115].copy_from_slice(format!("{owner:07o}").as_bytes());
    header[116..123].copy_from_slice(format!("{group:07o}").as_bytes());
    if header[156] == b'5' {
        header[100..107].copy_from_slice(b"0000755");
    }
}

fn file(name: &str, content: &str) -> Vec<u8> {
    own(name, b'0', content.as_bytes())
}

fn folder(name: &str) -> Vec<u8> {
    own(name, b'5', b"")
}

fn soft(name: &str, target: &str) -> Vec<u8> {
    changed(name, b'2', b"", |header| {
        mine(header);
        header[157..157 + target.len()].copy_from_slice(target.as_bytes());
    })
}

/// Applies layers and compares what is there.
fn check(layers: &[&[Vec<u8>]], expected: &[&str]) {
    let sandbox = Sandbox::new();
    for layer in layers {
        sandbox.apply(layer).unwrap();
    }
    assert_eq!(sandbox.seen(), expected);
    assert!(sandbox.is_confined());
}

#[test]
fn members_are_made() {
    check(
        &[&[
            folder("./"),
            folder("a"),
            file("a/f", "x"),
            file("/b/c/g", "y"),
            soft("s", "a/f"),
            link("h", b'1', "a/f"),
            own("fifo", b'6', b""),
        ]],
        &[
            "a/",
            "a/f=x",
            "b/",
            "b/c/",
            "b/c/g=y",
            "fifo special",
            "h=x",
            "s -> a/f",
        ],
    );
}

#[test]
fn a_later_one_replaces_but_folders_merge() {
    check(
        &[&[
            file("twice", "1"),
            file("twice", "2"),
            folder("d"),
            file("d/kept", "k"),
            folder("d"),
            folder("e"),
            file("e/lost", "l"),
            file("e", "file"),
            soft("l", "d"),
            folder("l"),
            file("l/own", "o"),
        ]],
        &["d/", "d/kept=k", "e=file", "l/", "l/own=o", "twice=2"],
    );
}

#[test]
fn what_is_marked_goes_from_below_only() {
    let below = [
        folder("d"),
        file("d/one", "1"),
        file("d/two", "2"),
        folder("d/sub"),
        file("d/sub/x", "x"),
        file("gone", "g"),
    ];
    let expected_one = ["d/", "d/sub/", "d/sub/x=x", "d/two=2"];
    check(&[&below, &[file("d/.wh.one", ""), file(".wh.gone", "")]], &expected_one);
    // Gone and made anew, in either order.
    let anew = ["d/", "d/one=new", "d/sub/", "d/sub/x=x", "d/two=2", "gone=g"];
    check(&[&below, &[file("d/.wh.one", ""), file("d/one", "new")]], &anew);
    check(&[&below, &[file("d/one", "new"), file("d/.wh.one", "")]], &anew);
    // A folder that hides all that is below it, in either order.
    let hidden = ["d/", "d/new=n", "gone=g"];
    check(
        &[&below, &[folder("d"), file("d/.wh..wh..opq", ""), file("d/new", "n")]],
        &hidden,
    );
    check(
        &[&below, &[folder("d"), file("d/new", "n"), file("d/.wh..wh..opq", "")]],
        &hidden,
    );
    // What is in a folder that nobody named stays with it.
    let deep = ["d/", "d/sub/", "d/sub/new=n", "gone=g"];
    check(&[&below, &[file("d/sub/new", "n"), file("d/.wh..wh..opq", "")]], &deep);
    check(&[&below, &[file("d/sub/new", "n"), file(".wh.d", "")]], &deep);
    // Marks of what is not there, and what others keep for themselves.
    check(
        &[&[
            file("no/.wh.x", ""),
            file(".wh.x", ""),
            file(".wh..wh.plnk", ""),
            file("no/.wh..wh..opq", ""),
        ]],
        &[],
    );
}

#[test]
fn paths_lead_through_links_of_the_image() {
    let below = [
        folder("usr"),
        folder("usr/lib"),
        soft("lib", "usr/lib"),
        soft("abs", "/usr"),
        soft("late", "made"),
    ];
    check(
        &[
            &below,
            &[
                file("lib/a", "a"),
                file("abs/lib/b", "b"),
                // The link is there before what it leads to.
                file("late/c", "c"),
                file("lib/.wh.none", ""),
            ],
        ],
        &[
            "abs -> /usr",
            "late -> made",
            "lib -> usr/lib",
            "made/",
            "made/c=c",
            "usr/",
            "usr/lib/",
            "usr/lib/a=a",
            "usr/lib/b=b",
        ],
    );
}

/// Archives that want out, or want what no image may. Each is refused, or stays inside; nothing outside is touched.
#[test]
fn nothing_gets_out() {
    let up = "../".repeat(20);
    let deep = format!("{}outside", "d/".repeat(DEPTH + 1));
    let long = "n".repeat(256);
    let name = |path: &str| [pax(&[("path", path.as_bytes())]), file("x", "evil")].concat();
    let hard = |name: &str, target: &str| [pax(&[("linkpath", target.as_bytes())]), link(name, b'1', "x")].concat();
    type Case<'a> = (&'a str, Vec<Vec<u8>>, Option<&'a str>);
    let cases: &[Case<'_>] = &[
        ("up", vec![file("../outside", "evil")], Some("goes up")),
        (
            "up in the middle",
            vec![folder("a"), file("a/../../outside", "evil")],
            Some("goes up"),
        ),
        ("absolute", vec![file("/outside", "inside")], None),
        ("a link up", vec![soft("l", &up), file("l/outside", "inside")], None),
        (
            "an absolute link",
            vec![soft("l", "/"), file("l/outside", "inside")],
            None,
        ),
        (
            "a chain of links",
            vec![soft("a", "b/.."), soft("b", ".."), file("a/outside", "inside")],
            None,
        ),
        (
            "over a link",
            vec![soft("outside", "../outside"), file("outside", "inside")],
            None,
        ),
        (
            "a link in a circle",
            vec![soft("a", "b"), soft("b", "a"), file("a/x", "x")],
            Some("too many links"),
        ),
        ("hard, up", vec![hard("h", "../outside")], Some("goes up")),
        ("hard, absolute", vec![hard("h", "/outside")], Some("is not there")),
        (
            "hard, through a link",
            vec![soft("l", &up), hard("h", "l/outside")],
            Some("is not there"),
        ),
        (
            "hard, to a link that leads out",
            vec![soft("l", "../outside"), hard("h", "l"), file("h", "inside")],
            None,
        ),
        ("hard, to itself", vec![hard("h", "h")], Some("is not there")),
        (
            "hard, to a folder",
            vec![folder("d"), hard("h", "d")],
            Some("is a folder"),
        ),
        ("gone, up", vec![file("../.wh.outside", "")], Some("goes up")),
        (
            "gone, through a link",
            vec![soft("l", ".."), file("l/.wh.outside", "")],
            None,
        ),
        (
            "gone, the folder itself",
            vec![folder("d"), file("d/.wh..", "")],
            Some("marks nothing"),
        ),
        (
            "gone, the folder above",
            vec![folder("d"), file("d/.wh...", "")],
            Some("marks nothing"),
        ),
        ("gone, nothing", vec![file(".wh.", "")], Some("marks nothing")),
        (
            "all gone, through a link",
            vec![soft("l", ".."), file("l/.wh..wh..opq", "")],
            None,
        ),
        (
            "through a file",
            vec![file("f", "x"), file("f/x", "x")],
            Some("through a file"),
        ),
        (
            "a folder for a file",
            vec![file("f", "x"), folder("f"), file("f/x", "x")],
            None,
        ),
        (
            "the mark of overlayfs",
            vec![own("m", b'3', b"")],
            Some("mark of what is gone"),
        ),
        ("too deep", vec![name(&deep)], Some("too deep")),
        ("a long name", vec![name(&long)], Some("name too long")),
        (
            "a long path",
            vec![name(&"d/".repeat(tree::PATH_BYTES_MAX))],
            Some("too long"),
        ),
        ("a zero", vec![name("a\0b")], Some("zero byte")),
        ("a link to nowhere", vec![soft("l", "")], Some("without a target")),
        ("an unknown kind", vec![own("k", b'X', b"")], Some("unknown kind")),
        (
            "nobody",
            vec![[pax(&[("uid", b"4294967295")]), file("f", "")].concat()],
            Some("no user"),
        ),
    ];
    for (what, members, refused) in cases {
        let sandbox = Sandbox::new();
        let result = sandbox.apply(members);
        match (refused, &result) {
            (Some(reason), Err(Fault::Bad { reason: said, .. })) => {
                assert!(said.to_lowercase().contains(reason), "{what}: {said}");
            }
            (None, Ok(_)) => {}
            other => panic!("{what}: {other:?}"),
        }
        assert!(sandbox.is_confined(), "{what}");
    }
}

const DEPTH: usize = tree::DEPTH_MAX;

#[test]
fn depth_ends_at_its_limit() {
    let path = |depth: usize| {
        [
            pax(&[("path", format!("{}f", "d/".repeat(depth)).as_bytes())]),
            file("x", ""),
        ]
        .concat()
    };
    let sandbox = Sandbox::new();
    sandbox.apply(&[path(DEPTH)]).unwrap();
    assert!(matches!(sandbox.apply(&[path(DEPTH + 1)]), Err(Fault::Bad { .. })));
    // Whatever is there can be removed.
    let top = File::open(sandbox.folder.path()).unwrap();
    removal::remove(top.as_fd(), b"root").unwrap();
    assert!(!sandbox.root().exists());
}

#[test]
fn what_a_container_dug_is_removed() {
    let sandbox = Sandbox::new();
    let mut at = rustix::fs::open(sandbox.root(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    // Deeper than a process has descriptors, and than a path can be.
    for _ in 0..1500 {
        tree::make_folder(at.as_fd(), b"deeper-than-a-path").unwrap();
        rustix::fs::symlinkat("..", &at, "up").unwrap();
        at = tree::open_folder(at.as_fd(), b"deeper-than-a-path").unwrap();
    }
    let top = File::open(sandbox.folder.path()).unwrap();
    removal::remove(top.as_fd(), b"root").unwrap();
    assert!(!sandbox.root().exists());
    removal::remove(top.as_fd(), b"root").unwrap();
}

#[test]
fn everything_a_header_says_is_kept() {
    let sandbox = Sandbox::new();
    let described = |name: &str, kind: u8, mode: &[u8; 7], content: &[u8]| {
        changed(name, kind, content, |header| {
            mine(header);
            header[100..107].copy_from_slice(mode);
            header[136..147].copy_from_slice(format!("{:011o}", 1_000_000_000).as_bytes());
        })
    };
    let attributes = [
        pax(&[
            ("SCHILY.xattr.user.note", b"a\nb\0c"),
            ("SCHILY.xattr.trusted.overlay.opaque", b"y"),
        ]),
        described("f", b'0', b"0104751", b"x"),
    ];
    let applied = sandbox
        .apply(&[
            attributes.concat(),
            described("d", b'5', b"0001777", b""),
            // The folder's time is from its header all the same.
            file("d/later", ""),
        ])
        .unwrap();
    assert_eq!((applied.members, applied.bytes), (3, 1));
    let metadata = |name: &str| std::fs::symlink_metadata(sandbox.root().join(name)).unwrap();
    assert_eq!(metadata("f").permissions().mode() & 0o7777, 0o4751);
    assert_eq!(metadata("d").permissions().mode() & 0o7777, 0o1777);
    assert_eq!(
        (metadata("f").mtime(), metadata("d").mtime()),
        (1_000_000_000, 1_000_000_000)
    );
    let path = sandbox.root().join("f");
    if applied.left_out == 0 {
        let mut value = [0; 16];
        let length = rustix::fs::lgetxattr(&path, "user.note", &mut value[..]).unwrap();
        assert_eq!(&value[..length], b"a\nb\0c");
    }
    assert!(rustix::fs::lgetxattr(&path, "trusted.overlay.opaque", &mut [0; 4][..]).is_err());
}

#[test]
fn holes_stay_holes() {
    let sandbox = Sandbox::new();
    let records = [
        ("GNU.sparse.size", &b"1073741824"[..]),
        ("GNU.sparse.map", b"1073741820,4"),
    ];
    sandbox.apply(&[[pax(&records), file("s", "tail")].concat()]).unwrap();
    let metadata = std::fs::metadata(sandbox.root().join("s")).unwrap();
    assert_eq!(metadata.len(), 1 << 30);
    assert!(metadata.blocks() < 1000, "{}", metadata.blocks());
}

#[test]
fn room_ends_where_it_is_said_to() {
    let members = [file("a", "1234"), file("b", "5678")];
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.apply_with(&members, Limits { room_bytes: 8 }).unwrap().bytes, 8);
    assert_eq!(
        Sandbox::new().apply_with(&members, Limits { room_bytes: 7 }),
        Err(Fault::Full)
    );
}

#[test]
fn damage_says_where_it_is() {
    let sandbox = Sandbox::new();
    let mut cut = entry("whole", b'0', b"");
    cut.extend(&entry("cut", b'0', &[1; 1000])[..700]);
    let tree = Tree::open(&sandbox.root()).unwrap();
    let fault = apply(&mut Reader::new(&cut[..]), &tree, Limits { room_bytes: u64::MAX }).unwrap_err();
    assert!(
        matches!(&fault, Fault::Bad { path, reason } if path == "cut" && reason.contains("cut off")),
        "{fault}"
    );
    let fault = sandbox.apply(&[file("sound", ""), vec![b'x'; 512]]).unwrap_err();
    assert!(
        matches!(&fault, Fault::Bad { path, .. } if path == "after sound"),
        "{fault}"
    );
}
