//! What the tests of this folder share.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use proto::object::{Key, Revision, Uid};
use proto::value::{Value, json};

use super::desk::Desired;
use super::spec::Pod;

/// A folder that goes with its test.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("edgehold-pods-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The pod `n/p` with this spec.
pub(super) fn desired(uid: u8, spec: &str) -> Desired {
    let spec = json::parse(spec.as_bytes()).unwrap();
    let uid = Uid::random([uid; 16]);
    let metadata = Value::from([("name", "p".to_owned()), ("namespace", "n".to_owned()), ("uid", uid.to_string())]);
    let value = Value::from([
        ("apiVersion", Value::from("v1")),
        ("kind", "Pod".into()),
        ("metadata", metadata),
        ("spec", spec),
    ]);
    Desired {
        key: Key::new("Pod", "n", "p"),
        uid,
        revision: Revision(1),
        value,
    }
}

pub(super) fn pod(spec: &str) -> Pod {
    Pod::parse(&desired(7, spec))
}
