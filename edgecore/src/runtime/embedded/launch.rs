//! Starting shims.

use std::path::PathBuf;
use std::process::Stdio;

use proto::object::Uid;
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use tokio::time::timeout;

use super::folders::Folders;
use super::{QUICK, failed, shim};
use crate::runtime::RuntimeError;
use crate::runtime::oci::names;

pub(super) const SHIM: &str = "starting the pod's shim";

/// What a shim is started with.
#[derive(Debug, Clone)]
pub(super) struct Launcher {
    pub(super) program: PathBuf,
    pub(super) cgroup_parent: String,
}

impl Launcher {
    /// It listens when this returns. One that is about to end is waited for.
    pub(super) async fn launch(&self, pod: Uid, folders: &Folders) -> Result<(), RuntimeError> {
        let run = folders.run(pod);
        std::fs::create_dir_all(&run).map_err(failed(SHIM))?;
        let mut child = Command::new(&self.program)
            .arg0("edgecore")
            .arg(shim::WORD)
            .args([folders.pod(pod), run])
            .arg(names::pod_cgroup(&self.cgroup_parent, pod))
            // What a service manager hands down is not for containers.
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed(SHIM))?;
        let mut said = Vec::new();
        let ready = async {
            if let Some(stdout) = &mut child.stdout {
                stdout.read_to_end(&mut said).await?;
            }
            Ok(())
        };
        let ready = timeout(QUICK, ready).await;
        match ready {
            Ok(Ok(())) if said.is_empty() => Ok(()),
            Ok(Ok(())) => Err(RuntimeError::Failed {
                action: SHIM,
                reason: String::from_utf8_lossy(&said).into_owned(),
            }),
            Ok(Err(error)) => Err(failed(SHIM)(error)),
            Err(_) => {
                let _ = child.start_kill();
                Err(RuntimeError::Timeout { action: SHIM, limit: QUICK })
            }
        }
    }
}
