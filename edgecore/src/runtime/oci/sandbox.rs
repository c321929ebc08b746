//! What the containers of a pod share: network, IPC and UTS namespaces, shared memory, and the pod's network.
//!
//! No process keeps them: each namespace is mounted on a file below the run folder (as `ip netns` does), which the
//! containers' specifications name. A reboot takes them all away, and [`Sandboxes::prepare`] makes them again.
//!
//! A pod without the host's network gets a network namespace with a loopback device. When the node has a pod network
//! (CNI), the pod is attached to it; without one the pod has no address, and nothing outside it can reach it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use proto::object::Uid;

use super::cni::{self, Attachment, CniError, Pod};
use super::names;
use crate::runtime::{Network, RuntimeError, Sandbox, explain};
use crate::sys;

/// A pod's `/dev/shm`; what everybody else gives.
const SHARED_MEMORY: &str = "mode=1777,size=65536k";

const PREPARE: &str = "preparing the pod's sandbox";
const RELEASE: &str = "releasing the pod's sandbox";

/// The namespaces a pod may have, as files of its folder.
const NAMESPACES: [(&str, libc::c_int); 3] = [
    ("net", libc::CLONE_NEWNET),
    ("uts", libc::CLONE_NEWUTS),
    ("ipc", libc::CLONE_NEWIPC),
];

/// All sandboxes of one runtime.
#[derive(Debug)]
pub(in crate::runtime) struct Sandboxes {
    /// Emptied by a reboot.
    run_dir: PathBuf,
    /// Survives one.
    state_dir: PathBuf,
    cgroup_parent: String,
    /// `None` where this process may attach nothing.
    cni: Option<cni::Config>,
    /// The attachments that were checked since this process started.
    checked: Mutex<BTreeSet<Uid>>,
}

impl Sandboxes {
    pub(in crate::runtime) fn new(
        run_dir: PathBuf,
        state_dir: PathBuf,
        cgroup_parent: String,
        cni: Option<cni::Config>,
    ) -> Self {
        Self {
            run_dir,
            state_dir,
            cgroup_parent,
            cni,
            checked: Mutex::default(),
        }
    }

    /// Where a pod's namespaces and shared memory are.
    pub(in crate::runtime) fn folder(&self, pod: Uid) -> PathBuf {
        self.run_dir.join("pods").join(pod.to_string())
    }

    pub(in crate::runtime) fn cgroup_parent(&self) -> &str {
        &self.cgroup_parent
    }

    /// Makes what is missing.
    pub(in crate::runtime) async fn prepare(&self, sandbox: &Sandbox) -> Result<Network, RuntimeError> {
        let folder = self.folder(sandbox.pod);
        let wanted = sandbox.clone();
        let made = on_thread(move || make(&folder, &wanted))
            .await
            .map_err(failed(PREPARE))?;
        match &self.cni {
            Some(cni) if !sandbox.host_network => self.attach(cni, sandbox, made).await,
            Some(_) | None => Ok(Network::default()),
        }
    }

    /// Attaches the pod to the node's pod network; `anew` when its namespace is new, so that nothing in it is attached.
    async fn attach(&self, cni: &cni::Config, sandbox: &Sandbox, anew: bool) -> Result<Network, RuntimeError> {
        let known = self.read(sandbox.pod).map_err(failed(PREPARE))?;
        if let Some(attachment) = known.filter(|attachment| attachment.result.is_some() && !anew) {
            if self.note_checked(sandbox.pod) {
                return Ok(Network { addresses: attachment.addresses() });
            }
            match cni.check(&attachment).await {
                Ok(()) => return Ok(Network { addresses: attachment.addresses() }),
                // Repaired below, in the same namespace, under the containers that run in it.
                Err(error) => {
                    let reason = explain(&error);
                    tracing::warn!(pod = %sandbox.pod, reason, "the pod's network is not as it was; attaching it again");
                }
            }
        }
        // What an earlier attempt, or the time before a reboot, left behind.
        self.detach(sandbox.pod, PREPARE).await?;
        let Some(network) = cni.network().map_err(refused(PREPARE))? else {
            return Ok(Network::default());
        };
        let pod = Pod {
            uid: sandbox.pod.to_string(),
            namespace: sandbox.namespace.clone(),
            name: sandbox.name.clone(),
            netns: self.folder(sandbox.pod).join("net"),
        };
        let mut attachment = Attachment { network, pod, result: None };
        self.write(sandbox.pod, &attachment).map_err(failed(PREPARE))?;
        cni.add(&mut attachment).await.map_err(refused(PREPARE))?;
        self.write(sandbox.pod, &attachment).map_err(failed(PREPARE))?;
        self.note_checked(sandbox.pod);
        Ok(Network { addresses: attachment.addresses() })
    }

    async fn detach(&self, pod: Uid, action: &'static str) -> Result<(), RuntimeError> {
        let Some(cni) = &self.cni else { return Ok(()) };
        let Some(attachment) = self.read(pod).map_err(failed(action))? else {
            return Ok(());
        };
        cni.del(&attachment).await.map_err(refused(action))?;
        std::fs::remove_file(self.record(pod)).map_err(failed(action))
    }

    /// Takes everything away; repeatable.
    pub(in crate::runtime) async fn release(&self, pod: Uid) -> Result<(), RuntimeError> {
        self.detach(pod, RELEASE).await?;
        self.checked.lock().unwrap_or_else(PoisonError::into_inner).remove(&pod);
        let (folder, cgroup) = (self.folder(pod), names::pod_cgroup(&self.cgroup_parent, pod));
        let removed = on_thread(move || {
            unmake(&folder)?;
            super::cgroup::remove(&cgroup)
        });
        removed.await.map_err(failed(RELEASE))
    }

    /// Whether it was checked before.
    fn note_checked(&self, pod: Uid) -> bool {
        !self.checked.lock().unwrap_or_else(PoisonError::into_inner).insert(pod)
    }

    fn record(&self, pod: Uid) -> PathBuf {
        self.state_dir.join("cni").join(format!("{pod}.json"))
    }

    fn read(&self, pod: Uid) -> io::Result<Option<Attachment>> {
        match std::fs::read(self.record(pod)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            // A damaged one is as good as none.
            bytes => Ok(serde_json::from_slice(&bytes?).ok()),
        }
    }

    fn write(&self, pod: Uid, attachment: &Attachment) -> io::Result<()> {
        let path = self.record(pod);
        std::fs::create_dir_all(self.state_dir.join("cni"))?;
        let new = path.with_extension("new");
        let mut file = std::fs::File::create(&new)?;
        file.write_all(&serde_json::to_vec(attachment)?)?;
        // On the disk before anything is attached: a lost record is an address lost for good.
        file.sync_all()?;
        std::fs::rename(new, path)
    }
}

/// Whether the network namespace was made now.
fn make(folder: &Path, sandbox: &Sandbox) -> io::Result<bool> {
    std::fs::create_dir_all(folder)?;
    let wanted = |name| match name {
        "ipc" => !sandbox.host_ipc,
        _ => !sandbox.host_network,
    };
    let mounted = mounted()?;
    let missing: Vec<_> = NAMESPACES
        .into_iter()
        .map(|(name, flag)| (name, folder.join(name), flag))
        .filter(|(name, path, _)| wanted(name) && !mounted.contains(path))
        .collect();
    if !sandbox.host_ipc && !mounted.contains(&folder.join("shm")) {
        let shm = folder.join("shm");
        std::fs::create_dir_all(&shm)?;
        let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
        sys::mount(Path::new("shm"), &shm, "tmpfs", flags, SHARED_MEMORY)?;
    }
    if missing.is_empty() {
        return Ok(false);
    }
    sys::unshare(missing.iter().fold(0, |flags, (_, _, flag)| flags | flag))?;
    for (name, path, _) in &missing {
        match *name {
            "net" => sys::loopback_up()?,
            "uts" => sys::set_hostname(&sandbox.hostname)?,
            _ => {}
        }
        std::fs::write(path, "")?;
        sys::mount(
            &Path::new("/proc/thread-self/ns").join(name),
            path,
            "",
            libc::MS_BIND,
            "",
        )?;
    }
    Ok(missing.iter().any(|(name, _, _)| *name == "net"))
}

fn unmake(folder: &Path) -> io::Result<()> {
    let mounted = mounted()?;
    for name in ["net", "uts", "ipc", "shm"] {
        let path = folder.join(name);
        if mounted.contains(&path) {
            sys::unmount(&path)?;
        }
    }
    missing_is_fine(std::fs::remove_dir_all(folder))
}

fn missing_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Every mount point this process sees.
fn mounted() -> io::Result<BTreeSet<PathBuf>> {
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    Ok(table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(unescaped)
        .collect())
}

/// A path as it is: the kernel writes blanks and backslashes as three digits.
fn unescaped(path: &str) -> PathBuf {
    let mut parts = path.split('\\');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        match part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => bytes.extend([&[byte], &part.as_bytes()[3..]].concat()),
            None => bytes.extend([b"\\", part.as_bytes()].concat()),
        }
    }
    OsString::from_vec(bytes).into()
}

/// Runs something on a thread of its own, which may leave this process' namespaces because it ends.
pub(in crate::runtime) async fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (done, result) = tokio::sync::oneshot::channel();
    std::thread::Builder::new()
        .name("namespaces".into())
        .spawn(move || drop(done.send(work())))?;
    result.await.map_err(io::Error::other)?
}

fn failed(action: &'static str) -> impl Fn(io::Error) -> RuntimeError {
    move |error| match error.kind() {
        io::ErrorKind::StorageFull => RuntimeError::DiskFull { action },
        _ => RuntimeError::Failed { action, reason: error.to_string() },
    }
}

fn refused(action: &'static str) -> impl Fn(CniError) -> RuntimeError {
    move |error| RuntimeError::Failed { action, reason: explain(&error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_read_as_the_kernel_writes_them() {
        for (written, path) in [
            ("/run/edgehold", "/run/edgehold"),
            (r"/a\040b\134c", r"/a b\c"),
            (r"/tab\011", "/tab\t"),
            (r"/\12", r"/\12"),
            ("/ä\\040ö", "/ä ö"),
        ] {
            assert_eq!(unescaped(written), Path::new(path), "{written}");
        }
    }

    #[test]
    fn an_error_is_told_with_its_causes() {
        let error = CniError::Run { plugin: "bridge".into(), source: io::Error::other("no") };
        assert_eq!(explain(&error), "running the plugin bridge: no");
        // One that says its cause itself is not made to say it again.
        let error = io::Error::other(io::Error::other("no"));
        assert_eq!(explain(&error), "no");
    }
}
