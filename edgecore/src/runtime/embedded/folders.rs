//! Where the embedded runtime keeps what.

use std::path::{Path, PathBuf};

use proto::object::Uid;

/// In the run folder: a folder for each pod.
const RUN: &str = "shims";

/// The two trees: one stays, one is emptied by a reboot.
#[derive(Debug, Clone)]
pub(super) struct Folders {
    data: PathBuf,
    run: PathBuf,
}

impl Folders {
    pub(super) fn new(data: &Path, run: &Path) -> Self {
        Self { data: data.join("pods"), run: run.join(RUN) }
    }

    /// A pod's records.
    pub(super) fn pod(&self, pod: Uid) -> PathBuf {
        self.data.join(pod.to_string())
    }

    /// A container's records, specification and root.
    pub(super) fn container(&self, pod: Uid, id: &str) -> PathBuf {
        self.pod(pod).join(id)
    }

    /// A pod's shim, its socket, and what its containers need while they run.
    pub(super) fn run(&self, pod: Uid) -> PathBuf {
        self.run.join(pod.to_string())
    }

    /// Every pod there is anything of.
    pub(super) fn pods(&self) -> Vec<Uid> {
        names(&self.data).iter().filter_map(|name| name.parse().ok()).collect()
    }

    /// Every container of a pod there is anything of.
    pub(super) fn containers(&self, pod: Uid) -> Vec<String> {
        names(&self.pod(pod))
    }
}

/// In order, so that two looks are the same.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}
