//! Containers as folders: made up to their record, mounted again after a reboot, taken away. All of it blocks.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use proto::object::Uid;

use super::folders::Folders;
use super::record::{self, Made, RecordError};
use super::{CREATE, REMOVE, START, act, failed, missing_is_fine, recorded, stored};
use crate::images::store::{ImageId, ImageStore, Stored};
use crate::oci::{Mount, Spec};
use crate::runtime::log_shim::Target;
use crate::runtime::oci::spec::{self, Input, Machine};
use crate::runtime::oci::{accounts, cgroup, limits, names, passwd};
use crate::runtime::{Container, RuntimeError, Sandbox, Seen, explain};
use crate::seccomp::privileges::Entry;

const COLLECT: &str = "taking away images that nothing needs";

pub(super) struct Maker {
    pub(super) images: ImageStore,
    pub(super) folders: Folders,
    pub(super) machine: Machine,
    /// The cgroup controllers, where they are not the machine's.
    pub(super) controllers: Option<BTreeSet<String>>,
    pub(super) cgroup_parent: String,
    pub(super) log_bytes_max: u64,
    pub(super) log_files_max: u32,
}

impl Maker {
    /// Makes a container up to its record, which comes last.
    pub(super) fn make(&self, sandbox: &Sandbox, container: &Container, shared: &Path) -> Result<String, RuntimeError> {
        let id = names::id(&container.labels);
        let folder = self.folders.container(sandbox.pod, &id);
        if let Some(known) = record::read::<Made>(&folder.join(record::MADE)).map_err(recorded(CREATE))? {
            if known.labels() == container.labels {
                return Ok(id);
            }
            let reason = format!(
                "attempt {} was made before, from another spec",
                container.labels.attempt
            );
            return Err(RuntimeError::Invalid { action: CREATE, reason });
        }
        let missing = || RuntimeError::Missing {
            action: CREATE,
            what: format!("the image {}", container.image),
        };
        let image = self
            .images
            .image(&container.image)
            .map_err(stored(CREATE))?
            .ok_or_else(missing)?;
        let controllers = self.controllers.clone().unwrap_or_else(cgroup::controllers);
        let container = &*limits::kept(container, &controllers);
        let made = self.make_whole(sandbox, container, shared, &image, &folder);
        if made.is_err() && !folder.join(record::MADE).exists() {
            // Without its record it is no container.
            let _ = self.unmake(sandbox.pod, &id);
        }
        made.map(|()| id)
    }

    fn make_whole(
        &self,
        sandbox: &Sandbox,
        container: &Container,
        shared: &Path,
        image: &Stored,
        folder: &Path,
    ) -> Result<(), RuntimeError> {
        let invalid = |reason| RuntimeError::Invalid { action: CREATE, reason };
        std::fs::create_dir_all(folder).map_err(failed(CREATE))?;
        let root = self.images.mount_root(image, folder).map_err(stored(CREATE))?;
        let run = image.config.config.clone().unwrap_or_default();
        let user = run.user.as_deref().unwrap_or_default();
        let (passwd, group) = if accounts::needs_files(user, &container.security) {
            passwd::read(&root.path).map_err(failed(CREATE))?
        } else {
            (String::new(), String::new())
        };
        let account = accounts::resolve(user, &container.security, &passwd, &group).map_err(invalid)?;
        let (account, lost) = account.within(&self.machine).map_err(invalid)?;
        if !lost.is_empty() {
            tracing::warn!(
                pod = %container.labels.pod_called(),
                container = container.labels.container,
                groups = ?lost,
                "it is in no such group: this user may not bring it in (edgecore check)"
            );
        }
        let mut spec = spec::build(&Input {
            sandbox,
            container,
            image: &run,
            account: &account,
            machine: &self.machine,
            shared,
            cgroup_parent: &self.cgroup_parent,
        })
        .map_err(invalid)?;
        spec.root.path = root.path;
        if !self.machine.unified_cgroups && !self.cgroup_parent.is_empty() {
            show_own_cgroups(&mut spec, &cgroup::roots(), container.security.privileged);
        }
        Entry::prepare(&mut spec).map_err(|error| invalid(explain(&error)))?;
        let spec = serde_json::to_vec(&spec).map_err(|error| invalid(error.to_string()))?;
        daemon::files::replace(&folder.join(act::SPEC), &spec, 0o600)
            .map_err(RecordError::from)
            .map_err(recorded(CREATE))?;
        let log = Target {
            bytes_max: self.log_bytes_max,
            files_max: self.log_files_max,
            path: container.log.clone(),
        };
        let made = Made {
            image: container.image.clone(),
            image_id: image.id.to_string(),
            cgroup: names::cgroup(&self.cgroup_parent, &container.labels),
            tty: container.tty,
            owner: (account.uid, account.gid),
            log: log.to_string(),
            ..Made::of(&container.labels)
        };
        record::write(&folder.join(record::MADE), &made).map_err(recorded(CREATE))
    }

    /// Makes the root of a container again that a reboot took away.
    pub(super) fn mount(&self, pod: Uid, seen: &Seen) -> Result<(), RuntimeError> {
        let image = self.images.image(&seen.image).map_err(stored(START))?;
        let Some(image) = image.filter(|image| image.id.as_str() == seen.image_id) else {
            self.unmake(pod, &seen.id)?;
            let reason = "the image it was made from is gone; it is made again".to_owned();
            return Err(RuntimeError::Failed { action: START, reason });
        };
        let folder = self.folders.container(pod, &seen.id);
        self.images.mount_root(&image, &folder).map(drop).map_err(stored(START))
    }

    /// The image's name and the pod of every container.
    pub(super) fn users(&self) -> Result<Vec<(String, String)>, RuntimeError> {
        let made = self.all_made()?.into_iter();
        Ok(made
            .map(|made| {
                let pod = made.labels().pod_called();
                (made.image, pod)
            })
            .collect())
    }

    fn all_made(&self) -> Result<Vec<Made>, RuntimeError> {
        let mut all = Vec::new();
        for pod in self.folders.pods() {
            for id in self.folders.containers(pod) {
                let path = self.folders.container(pod, &id).join(record::MADE);
                all.extend(record::read::<Made>(&path).map_err(recorded(COLLECT))?);
            }
        }
        Ok(all)
    }

    /// Takes away the images that no name and no container needs any more.
    pub(super) fn collect(&self) -> Result<(), RuntimeError> {
        let made = self.all_made()?;
        let used: BTreeSet<_> = made
            .iter()
            .filter_map(|made| ImageId::parse(&made.image_id).ok())
            .collect();
        self.images.collect(&used).map(drop).map_err(stored(COLLECT))
    }

    /// Takes away what is left of a container that has no process any more; the record last.
    pub(super) fn unmake(&self, pod: Uid, id: &str) -> Result<(), RuntimeError> {
        let folder = self.folders.container(pod, id);
        let run = self.folders.run(pod);
        let made = record::read::<Made>(&folder.join(record::MADE));
        self.images.remove_root(&folder).map_err(stored(REMOVE))?;
        missing_is_fine(std::fs::remove_dir_all(run.join(id))).map_err(failed(REMOVE))?;
        if let Ok(Some(made)) = made {
            cgroup::remove(&made.cgroup).map_err(failed(REMOVE))?;
        }
        missing_is_fine(std::fs::remove_dir_all(&folder)).map_err(failed(REMOVE))
    }
}

/// Where each controller has a tree of its own (version 1), a container sees its own cgroups. It changes none unless it may
/// do everything: a root that holds no capability for it could otherwise lift its limits.
fn show_own_cgroups(spec: &mut Spec, roots: &[PathBuf], privileged: bool) {
    let Some(at) = spec.mounts.iter().position(|mount| mount.kind == "cgroup") else {
        return;
    };
    let options = |options: &[&str]| options.iter().map(|option| (*option).to_owned()).collect();
    let place = spec.mounts[at].destination.clone();
    let path = spec.linux.cgroups_path.trim_start_matches('/');
    let access = if privileged { "rw" } else { "ro" };
    let own = roots.iter().filter_map(|root| {
        Some(Mount {
            destination: place.join(root.file_name()?),
            kind: "bind".to_owned(),
            source: root.join(path),
            options: options(&["rbind", "rprivate", access, "nosuid", "noexec", "nodev"]),
        })
    });
    let folder = Mount {
        destination: place.clone(),
        kind: "tmpfs".to_owned(),
        source: "tmpfs".into(),
        options: options(&["nosuid", "noexec", "nodev", "mode=755", "size=64k"]),
    };
    let all: Vec<_> = std::iter::once(folder).chain(own).collect();
    spec.mounts.splice(at..=at, all);
}
