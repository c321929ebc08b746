//! A tree of files as a value: made up, read from a disk, and as a layer's archive.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    Folder,
    File(Vec<u8>),
    Symlink(String),
    Fifo,
    Device(u32, u32),
}

/// One file; the names of one file share its group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) kind: Kind,
    pub(crate) mode: u32,
    pub(crate) owner: u32,
    pub(crate) group: u32,
    pub(crate) modified: i64,
    pub(crate) attributes: BTreeMap<String, Vec<u8>>,
    /// The first of its names, when it has several.
    pub(crate) first: Option<String>,
}

/// By path, without a leading slash.
pub(crate) type Tree = BTreeMap<String, Node>;

impl Node {
    pub(crate) fn new(kind: Kind) -> Self {
        let mode = match kind {
            Kind::Folder => 0o755,
            Kind::Symlink(_) => 0o777,
            _ => 0o644,
        };
        Self {
            kind,
            mode,
            owner: 0,
            group: 0,
            modified: 1_000_000_000,
            attributes: BTreeMap::new(),
            first: None,
        }
    }

    pub(crate) fn file(content: &str) -> Self {
        Self::new(Kind::File(content.into()))
    }

    pub(crate) fn link(target: &str) -> Self {
        Self::new(Kind::Symlink(target.into()))
    }

    pub(crate) fn folder() -> Self {
        Self::new(Kind::Folder)
    }
}

pub(crate) fn tree(nodes: &[(&str, Node)]) -> Tree {
    nodes
        .iter()
        .map(|(path, node)| ((*path).to_owned(), node.clone()))
        .collect()
}

/// What is on the disk.
pub(crate) fn read(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut names: BTreeMap<(u64, u64), Vec<String>> = BTreeMap::new();
    let mut todo = vec![root.to_owned()];
    while let Some(folder) = todo.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let metadata = std::fs::symlink_metadata(&path).unwrap();
            let kind = metadata.file_type();
            let kind = if kind.is_dir() {
                todo.push(path.clone());
                Kind::Folder
            } else if kind.is_symlink() {
                Kind::Symlink(std::fs::read_link(&path).unwrap().to_str().unwrap().to_owned())
            } else if kind.is_file() {
                Kind::File(std::fs::read(&path).unwrap())
            } else if kind.is_fifo() {
                Kind::Fifo
            } else {
                Kind::Device(rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()))
            };
            let shown = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            if metadata.nlink() > 1 && kind != Kind::Folder {
                names
                    .entry((metadata.dev(), metadata.ino()))
                    .or_default()
                    .push(shown.clone());
            }
            let node = Node {
                kind,
                mode: metadata.mode() & 0o7777,
                owner: metadata.uid(),
                group: metadata.gid(),
                modified: metadata.mtime(),
                attributes: attributes(&path),
                first: None,
            };
            tree.insert(shown, node);
        }
    }
    for mut group in names.into_values().filter(|group| group.len() > 1) {
        group.sort();
        for name in &group {
            tree.get_mut(name).unwrap().first = Some(group[0].clone());
        }
    }
    tree
}

fn attributes(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut list = vec![0; 4096];
    let length = rustix::fs::llistxattr(path, list.as_mut_slice()).unwrap();
    let keys = list[..length].split(|byte| *byte == 0).filter(|key| !key.is_empty());
    keys.map(|key| {
        let mut value = vec![0; 4096];
        let length = rustix::fs::lgetxattr(path, CString::new(key).unwrap(), value.as_mut_slice()).unwrap();
        value.truncate(length);
        (String::from_utf8(key.to_vec()).unwrap(), value)
    })
    .collect()
}

/// What differs, for people.
pub(crate) fn same(what: &str, found: &Tree, expected: &Tree) {
    let paths: std::collections::BTreeSet<&String> = found.keys().chain(expected.keys()).collect();
    for path in paths {
        assert_eq!(found.get(path), expected.get(path), "{what}: {path}");
    }
}

/// A layer's archive.
#[derive(Debug, Default)]
pub(crate) struct Layer(Vec<u8>);

impl Layer {
    /// All of a tree.
    pub(crate) fn of(tree: &Tree) -> Self {
        Self::between(&Tree::new(), tree, false)
    }

    /// What makes `new` of `old`: what differs with the folders it is in, and marks of what is gone. `hide` marks a
    /// folder that lost much as hiding everything, as some builders do.
    pub(crate) fn between(old: &Tree, new: &Tree, hide: bool) -> Self {
        let mut layer = Self::default();
        let mut wanted = std::collections::BTreeSet::new();
        let mut gone = std::collections::BTreeSet::new();
        let mut hiding = std::collections::BTreeSet::new();
        for (path, node) in new {
            if old.get(path) != Some(node) {
                wanted.insert(path.clone());
                // All names of a file come together.
                let same = new
                    .iter()
                    .filter(|(_, other)| node.first.is_some() && other.first == node.first);
                wanted.extend(same.map(|(path, _)| path.clone()));
            }
        }
        for path in old.keys().filter(|path| !new.contains_key(*path)) {
            let parent = parent(path);
            // What a folder was replaced by says it all.
            if parent.is_empty() || is_folder(new, parent) && is_folder(old, parent) {
                gone.insert(path.clone());
                wanted.insert(parent.to_owned());
            }
        }
        if hide {
            hiding.extend(
                gone.iter()
                    .map(|path| parent(path).to_owned())
                    .filter(|parent| !parent.is_empty()),
            );
            let hidden = |path: &str| hiding.iter().any(|folder| path.starts_with(&format!("{folder}/")));
            gone.retain(|path| !hidden(path));
            wanted.extend(new.keys().filter(|path| hidden(path)).cloned());
        }
        for path in wanted.clone() {
            let mut at = parent(&path);
            while !at.is_empty() {
                wanted.insert(at.to_owned());
                at = parent(at);
            }
        }
        wanted.remove("");
        for path in &gone {
            let (folder, name) = path
                .rsplit_once('/')
                .map_or(("", path.as_str()), |(folder, name)| (folder, name));
            let mark = if folder.is_empty() {
                format!(".wh.{name}")
            } else {
                format!("{folder}/.wh.{name}")
            };
            layer.member(&mark, &Node::file(""), None);
        }
        let mut written: BTreeMap<&str, &str> = BTreeMap::new();
        for path in &wanted {
            let Some(node) = new.get(path) else { continue };
            let before = node.first.as_deref().and_then(|first| written.get(first)).copied();
            layer.member(path, node, before);
            if let Some(first) = &node.first {
                written.entry(first).or_insert(path);
            }
            if hiding.contains(path) {
                layer.member(&format!("{path}/.wh..wh..opq"), &Node::file(""), None);
            }
        }
        layer
    }

    /// One member; `link` is another name of it that was there before.
    pub(crate) fn member(&mut self, path: &str, node: &Node, link: Option<&str>) {
        let mut records = Vec::new();
        let mut record = |key: &str, value: &[u8]| {
            let rest = key.len() + value.len() + 3;
            let length = (1..8)
                .map(|digits| rest + digits)
                .find(|length| length.to_string().len() + rest == *length);
            records.extend(format!("{} {key}=", length.unwrap()).bytes());
            records.extend(value);
            records.push(b'\n');
        };
        record("path", path.as_bytes());
        let (kind, content, target) = match (&node.kind, link) {
            (_, Some(first)) => (b'1', &[][..], first),
            (Kind::Folder, _) => (b'5', &[][..], ""),
            (Kind::File(content), _) => (b'0', content.as_slice(), ""),
            (Kind::Symlink(target), _) => (b'2', &[][..], target.as_str()),
            (Kind::Fifo, _) => (b'6', &[][..], ""),
            (Kind::Device(..), _) => (b'3', &[][..], ""),
        };
        if !target.is_empty() {
            record("linkpath", target.as_bytes());
        }
        for (key, value) in &node.attributes {
            record(&format!("SCHILY.xattr.{key}"), value);
        }
        self.block("pax", b'x', &Node::file(""), &records);
        self.block("member", kind, node, content);
    }

    fn block(&mut self, name: &str, kind: u8, node: &Node, content: &[u8]) {
        let mut header = [0; 512];
        let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
        put(0, name);
        put(100, &format!("{:07o}", node.mode));
        put(108, &format!("{:07o}", node.owner));
        put(116, &format!("{:07o}", node.group));
        put(124, &format!("{:011o}", content.len()));
        put(136, &format!("{:011o}", node.modified));
        put(257, "ustar\0");
        if let Kind::Device(major, minor) = node.kind {
            put(329, &format!("{major:07o}"));
            put(337, &format!("{minor:07o}"));
        }
        header[156] = kind;
        header[148..156].fill(b' ');
        let sum: u64 = header.iter().map(|byte| u64::from(*byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        self.0.extend(header);
        self.0.extend(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
    }

    /// The archive, ended.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        [&self.0[..], &[0; 1024]].concat()
    }
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

fn is_folder(tree: &Tree, path: &str) -> bool {
    tree.get(path).is_some_and(|node| node.kind == Kind::Folder)
}

/// A path's bytes never matter here, but must be text.
pub(crate) fn text(path: &Path) -> &str {
    std::str::from_utf8(path.as_os_str().as_bytes()).unwrap()
}
