//! Where a pod's things lie on the disk.

use std::path::PathBuf;

use proto::object::Uid;

use super::spec::Pod;

/// The folders of all pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folders {
    /// Volumes and files of the pods, one folder each.
    pub pods: PathBuf,
    /// Their logs.
    pub logs: PathBuf,
}

impl Default for Folders {
    fn default() -> Self {
        Self {
            pods: "/var/lib/edgehold/pods".into(),
            logs: "/var/log/edgehold/pods".into(),
        }
    }
}

impl Folders {
    /// The node's own seccomp profiles (`Localhost`): beside the pods.
    pub fn seccomp(&self) -> PathBuf {
        self.pods.with_file_name("seccomp")
    }

    pub fn pod(&self, pod: Uid) -> PathBuf {
        self.pods.join(pod.to_string())
    }

    pub fn volumes(&self, pod: Uid) -> PathBuf {
        self.pod(pod).join("volumes")
    }

    /// The files that stand in the containers' `/etc`.
    pub fn etc(&self, pod: Uid) -> PathBuf {
        self.pod(pod).join("etc")
    }

    /// Where an attempt leaves its last words.
    pub fn last_words(&self, pod: Uid, container: &str, attempt: u32) -> PathBuf {
        self.pod(pod).join("ends").join(format!("{container}.{attempt}"))
    }

    pub fn pod_logs(&self, namespace: &str, name: &str, pod: Uid) -> PathBuf {
        self.logs.join(format!("{namespace}_{name}_{pod}"))
    }

    pub fn container_logs(&self, pod: &Pod, container: &str) -> PathBuf {
        self.pod_logs(&pod.key.namespace, &pod.key.name, pod.uid)
            .join(container)
    }

    pub fn log(&self, pod: &Pod, container: &str, attempt: u32) -> PathBuf {
        self.container_logs(pod, container).join(format!("{attempt}.log"))
    }
}
