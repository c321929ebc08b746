//! OCI archives of made-up layers, and a store to put them in.

use std::path::{Path, PathBuf};
use std::process::Command;

use edgecore::images::Digest;
use edgecore::images::store::{ImageStore, Root, RootKind, Stored};
use serde_json::json;
use tempfile::TempDir;

use super::tree::{Layer, Tree, gzip, read, text};

pub(crate) const KINDS: [RootKind; 2] = [RootKind::Overlay, RootKind::Copy];

/// One image: its name, and its layers as they are sent and as they are inside.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) name: String,
    pub(crate) layers: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Image {
    pub(crate) fn new(name: &str, layers: &[Layer]) -> Self {
        let layers = layers
            .iter()
            .map(Layer::bytes)
            .map(|plain| (gzip(&plain), plain))
            .collect();
        Self { name: name.to_owned(), layers }
    }

    /// Layers that lead from nothing to the last of these trees.
    pub(crate) fn of(name: &str, trees: &[Tree], hide: bool) -> Self {
        let nothing = Tree::new();
        let before = std::iter::once(&nothing).chain(trees);
        let layers: Vec<Layer> = before
            .zip(trees)
            .map(|(old, new)| Layer::between(old, new, hide))
            .collect();
        Self::new(name, &layers)
    }

    /// Its documents and layers by digest, the manifest last.
    pub(crate) fn blobs(&self) -> Vec<Vec<u8>> {
        let diffs: Vec<String> = self
            .layers
            .iter()
            .map(|(_, plain)| Digest::of(plain).to_string())
            .collect();
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let config = json!({
            "architecture": architecture, "os": "linux",
            "config": { "User": "7", "Env": ["A=b"] },
            "rootfs": { "type": "layers", "diff_ids": diffs },
        });
        let config = serde_json::to_vec(&config).unwrap();
        let descriptor = |kind: &str, bytes: &[u8]| {
            json!({
                "mediaType": format!("application/vnd.oci.image.{kind}"),
                "digest": Digest::of(bytes).to_string(), "size": bytes.len(),
            })
        };
        let layers: Vec<_> = self
            .layers
            .iter()
            .map(|(sent, _)| descriptor("layer.v1.tar+gzip", sent))
            .collect();
        let manifest = json!({ "schemaVersion": 2, "config": descriptor("config.v1+json", &config), "layers": layers });
        let mut blobs: Vec<Vec<u8>> = self.layers.iter().map(|(sent, _)| sent.clone()).collect();
        blobs.extend([config, serde_json::to_vec(&manifest).unwrap()]);
        blobs
    }

    /// Writes it as an archive.
    pub(crate) fn write(&self, path: &Path) {
        let blobs = self.blobs();
        let manifest = blobs.last().unwrap();
        let index = json!({ "schemaVersion": 2, "manifests": [{
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": Digest::of(manifest).to_string(), "size": manifest.len(),
            "annotations": { "io.containerd.image.name": self.name },
        }] });
        let mut archive = Layer::default();
        let mut put = |name: &str, content: &[u8]| {
            let node = super::tree::Node::new(super::tree::Kind::File(content.to_vec()));
            archive.member(name, &node, None);
        };
        put("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#);
        put("index.json", &serde_json::to_vec(&index).unwrap());
        for blob in &blobs {
            put(&format!("blobs/sha256/{}", Digest::of(blob).hex()), blob);
        }
        std::fs::write(path, archive.bytes()).unwrap();
    }
}

/// A store of one's own, with a folder beside it for containers. Nothing stays mounted.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) folder: TempDir,
    pub(crate) store: ImageStore,
}

impl Place {
    pub(crate) fn new(kind: RootKind) -> Self {
        // The names of folders are part of what is mounted.
        let folder = tempfile::Builder::new().prefix("eh,images:").tempdir().unwrap();
        let store = open(folder.path(), kind);
        Self { folder, store }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) async fn take(&self, image: &Image) -> Stored {
        let archive = self.path("archive.tar");
        image.write(&archive);
        assert_eq!(self.store.import(&archive).await.unwrap(), [image.name.as_str()]);
        self.store.image(&image.name).unwrap().unwrap()
    }

    pub(crate) fn root(&self, image: &Stored, name: &str) -> Root {
        self.store.mount_root(image, &self.path(name)).unwrap()
    }

    /// The tree of an image.
    pub(crate) fn seen(&self, image: &Stored) -> Tree {
        let root = self.root(image, "seen");
        let tree = read(&root.path);
        self.store.remove_root(&self.path("seen")).unwrap();
        tree
    }

    /// What the store holds: names, on their way, documents, packed layers, layers, being worked at, thrown away.
    pub(crate) fn counts(&self) -> [usize; 7] {
        ["names", "incoming", "blobs", "partial", "layers", "work", "trash"].map(|folder| {
            let entries = std::fs::read_dir(self.path("images").join(folder)).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.filter(|name| !name.contains('.')).count()
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let prefix = text(self.folder.path()).to_owned();
        for point in mounts.lines().filter_map(|line| line.split(' ').nth(4)) {
            if point.starts_with(&prefix) {
                let _ = Command::new("umount").args(["-l", point]).status();
            }
        }
    }
}

pub(crate) fn open(folder: &Path, kind: RootKind) -> ImageStore {
    ImageStore::open_as(folder.join("images"), program(), kind).unwrap()
}

pub(crate) fn program() -> PathBuf {
    env!("CARGO_BIN_EXE_edgehold-image-store").into()
}
