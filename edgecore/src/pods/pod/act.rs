//! Acting: carries out what the plan says. What fails is noted and tried again later; nothing here decides.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use super::look::{hash, render};
use super::{Done, PodTask};
use crate::pods::auth::credentials;
use crate::pods::build;
use crate::pods::desk::{Clock, Desk, Severity};
use crate::pods::env;
use crate::pods::files::{self, Host};
use crate::pods::logs;
use crate::pods::plan::{Step, TERM, Work};
use crate::pods::seccomp;
use crate::pods::spec::PullPolicy;
use crate::pods::volumes::{self, VolumeError};
use crate::removal;
use crate::runtime::{Image, Runtime, RuntimeError, explain};

/// As much is kept of why a container could not be started.
const START_ERROR_BYTES_MAX: usize = 4096;

/// A step that failed, in words for the pod's status.
type Tried = Result<(), String>;

impl<R: Runtime, D: Desk, C: Clock> PodTask<R, D, C> {
    /// Carries out one step.
    pub(super) async fn act(&mut self, step: Step) {
        let (work, tried, reason) = match step {
            Step::Event { container, severity, reason, message } => {
                return self.event(container.as_deref(), severity, reason, message).await;
            }
            Step::Pull { container } => return self.pull(container).await,
            // The task ends with it: see `run`.
            Step::Gone => return,
            Step::Volumes => (Work::Volumes, self.write_volumes().await, "FailedMount"),
            Step::Prepare => (Work::Prepare, self.prepare().await, "FailedCreatePodSandBox"),
            Step::Release => (Work::Release, self.release().await, "FailedKillPod"),
            Step::Create { container, attempt } => {
                let tried = self.create(&container, attempt).await;
                (Work::Create(container), tried, "Failed")
            }
            Step::Start { container, id } => {
                let tried = self.start(&container, &id).await;
                (Work::Start(container), tried, "Failed")
            }
            Step::Signal { id, signal } => {
                let runtime = &self.shared.runtime;
                let tried = if signal == TERM {
                    runtime.stop(&id).await
                } else {
                    runtime.signal(&id, signal).await
                };
                (Work::Signal(id), gone_is_done(tried), "FailedKillPod")
            }
            Step::Remove { id } => {
                let tried = self.shared.runtime.remove(&id).await;
                (Work::Remove(id), gone_is_done(tried), "FailedKillPod")
            }
        };
        match tried {
            Ok(()) => drop(self.failures.remove(&work)),
            Err(message) => {
                let container = match &work {
                    Work::Create(name) | Work::Start(name) => Some(name.clone()),
                    _ => None,
                };
                self.failed(work, message.clone());
                let message = match container {
                    Some(_) => format!("Error: {message}"),
                    None => message,
                };
                self.event(container.as_deref(), Severity::Warning, reason, message)
                    .await;
            }
        }
    }

    async fn write_volumes(&mut self) -> Tried {
        let Some(wanted) = &self.wanted else { return Ok(()) };
        let objects = self.objects().await.map_err(|error| error.to_string())?;
        let addresses = self.shared.desk.addresses();
        let (list, _) = render(&wanted.pod.raw, &self.around(&wanted.pod, &objects, &addresses));
        let written = hash(&list);
        let root = self.shared.config.folders.pods.clone();
        let folder = self.shared.config.folders.volumes(self.uid);
        let group = build::fs_group(&wanted.pod.raw);
        let mount_memory = self.shared.config.mount_memory;
        blocking(move || {
            // Containers get the folders below one by one; nobody else on the host has a way in.
            fs::create_dir_all(&root).map_err(VolumeError::io("making folder", &root))?;
            let closed = fs::Permissions::from_mode(0o700);
            fs::set_permissions(&root, closed).map_err(VolumeError::io("closing", &root))?;
            for volume in &list {
                volumes::write(volume, &folder.join(&volume.name), group, mount_memory)?;
            }
            Ok(())
        })
        .await?;
        self.written = Some(written);
        self.cleaned = false;
        Ok(())
    }

    async fn prepare(&mut self) -> Tried {
        let Some(wanted) = &self.wanted else { return Ok(()) };
        let host = read_host().await;
        let sandbox = build::sandbox(&wanted.pod, &host);
        self.cleaned = false;
        let network = self.shared.runtime.prepare(&sandbox).await.map_err(full)?;
        let addresses = self.shared.desk.addresses();
        let shown = if wanted.pod.host_network {
            &addresses
        } else {
            &network.addresses
        };
        let texts = [
            ("hosts", files::hosts(&wanted.pod, shown, &host)),
            ("hostname", format!("{}\n", files::hostname(&wanted.pod, &host))),
            ("resolv.conf", files::resolv_conf(&wanted.pod, &host)),
        ];
        let folder = self.shared.config.folders.etc(self.uid);
        blocking(move || {
            fs::create_dir_all(&folder).map_err(VolumeError::io("making folder", &folder))?;
            for (name, text) in &texts {
                write_in_place(&folder.join(name), text)?;
            }
            Ok(())
        })
        .await?;
        self.network = Some(network);
        Ok(())
    }

    async fn create(&mut self, name: &str, attempt: u32) -> Tried {
        let Some(wanted) = &self.wanted else { return Ok(()) };
        let Some(spec) = wanted.pod.container(name) else {
            return Ok(());
        };
        let objects = self.objects().await.map_err(|error| error.to_string())?;
        let addresses = self.shared.desk.addresses();
        let around = self.around(&wanted.pod, &objects, &addresses);
        let invocation = env::resolve(&spec.raw, &around).map_err(|error| error.to_string())?;
        let (list, _) = render(&wanted.pod.raw, &around);
        let folders = &self.shared.config.folders;
        let words = folders.last_words(self.uid, name, attempt);
        let log_folder = folders.container_logs(&wanted.pod, name);
        let asked = seccomp::asked(&wanted.pod.raw, &spec.raw);
        let profiles = folders.seccomp();
        let seccomp = tokio::task::spawn_blocking(move || seccomp::resolve(asked, &profiles));
        let seccomp = seccomp.await.map_err(|error| error.to_string())?;
        let seccomp = seccomp.map_err(|error| explain(&error))?;
        blocking(move || {
            // A container does not feel its log: what finds no room there is lost, and the log process tries again.
            if let Err(error) = fs::create_dir_all(&log_folder) {
                tracing::warn!("no logs yet: making folder {}: {error}", log_folder.display());
            }
            logs::sweep(&log_folder, attempt);
            if let Some(folder) = words.parent() {
                fs::create_dir_all(folder).map_err(VolumeError::io("making folder", folder))?;
            }
            sweep_words(&words, attempt);
            fs::write(&words, "").map_err(VolumeError::io("making", &words))?;
            // Whoever the container runs as may leave its last words.
            let open = fs::Permissions::from_mode(0o666);
            fs::set_permissions(&words, open).map_err(VolumeError::io("opening", &words))
        })
        .await?;
        let memory_bytes = self.shared.config.allocatable.memory_bytes;
        let container = build::container(&wanted.pod, spec, attempt, invocation, &list, folders, memory_bytes);
        let mut container = container.map_err(|error| explain(&error))?;
        container.security.seccomp = seccomp;
        container.limits.pids_max = self.shared.config.pids_max.into();
        let sandbox = build::sandbox(&wanted.pod, &read_host().await);
        self.shared.runtime.create(&sandbox, &container).await.map_err(full)?;
        let image = spec.image.clone();
        if !self.fetched.contains(&image) {
            let message = format!("Container image {image:?} already present on machine");
            self.event(Some(name), Severity::Normal, "Pulled", message).await;
        }
        let message = format!("Created container: {name}");
        self.event(Some(name), Severity::Normal, "Created", message).await;
        Ok(())
    }

    async fn start(&mut self, name: &str, id: &str) -> Tried {
        match self.shared.runtime.start(id).await {
            // That is its end, which the next look takes in; there is nothing to try again.
            Err(error @ RuntimeError::NotStarted { .. }) => {
                let mut why = full(error);
                why.truncate(why.floor_char_boundary(START_ERROR_BYTES_MAX));
                self.event(Some(name), Severity::Warning, "Failed", format!("Error: {why}"))
                    .await;
                self.unstartable.insert(id.to_owned(), why);
                return Ok(());
            }
            other => other.map_err(full)?,
        }
        let message = format!("Started container {name}");
        self.event(Some(name), Severity::Normal, "Started", message).await;
        Ok(())
    }

    /// Gives the sandbox and the folders back; the logs stay until the pod is gone.
    async fn release(&mut self) -> Tried {
        self.shared.runtime.release(self.uid).await.map_err(full)?;
        self.network = None;
        self.written = None;
        let folders = &self.shared.config.folders;
        let (pod, volumes) = (folders.pod(self.uid), folders.volumes(self.uid));
        blocking(move || {
            volumes::remove(&volumes)?;
            remove_folder(&pod)
        })
        .await?;
        self.cleaned = true;
        Ok(())
    }

    /// The pod's last act. Says whether the cloud was told that it is gone.
    pub(super) async fn leave(&mut self) -> bool {
        let folders = &self.shared.config.folders;
        let logs = folders.pod_logs(&self.key.namespace, &self.key.name, self.uid);
        if let Err(error) = blocking(move || remove_folder(&logs)).await {
            tracing::warn!(pod = %self.key, error, "logs stay behind");
        }
        // In this order: a pod that is not said to be gone is asked for again, and found to be nothing.
        self.shared.desk.remember(self.uid, None).await;
        // What was not wanted is not known to the cloud as this node's. Or it is, again, and then it is not gone.
        let wanted = self.wanted.is_some();
        if wanted {
            self.shared.desk.gone(self.uid).await;
        }
        wanted
    }

    /// Starts to fetch a container's image, beside everything else.
    async fn pull(&mut self, container: String) {
        // What cannot be read now is fetched at the next look.
        let Ok(mut objects) = self.objects().await else { return };
        let Ok(secrets) = self.pull_secrets(&mut objects).await else {
            return;
        };
        let Some(spec) = self.wanted.as_ref().and_then(|wanted| wanted.pod.container(&container)) else {
            return;
        };
        let image = spec.image.clone();
        if !self.pulling.insert(image.clone()) {
            return;
        }
        let message = format!("Pulling image {image:?}");
        self.event(Some(&container), Severity::Normal, "Pulling", message).await;
        let auth = credentials(&image, &secrets, &objects);
        let runtime = Arc::clone(&self.shared.runtime);
        let pulls = Arc::clone(&self.shared.pulls);
        self.jobs.spawn(async move {
            // The semaphore is never closed.
            let _permit = pulls.acquire_owned().await;
            let result = runtime.pull(&image, &auth).await;
            Done::Pulled { image, container, result }
        });
    }

    /// Takes in how a pull ended.
    pub(super) async fn pulled(&mut self, image: String, container: String, result: Result<Image, RuntimeError>) {
        self.pulling.remove(&image);
        match result {
            Ok(_) => {
                self.failures.remove(&Work::Pull(image.clone()));
                let message = format!("Successfully pulled image {image:?}");
                self.fetched.insert(image);
                self.event(Some(&container), Severity::Normal, "Pulled", message).await;
            }
            Err(error) => {
                let error = full(error);
                let spec = self.wanted.as_ref().and_then(|wanted| wanted.pod.container(&container));
                let always = spec.is_some_and(|spec| spec.pull == PullPolicy::Always);
                let here = always && matches!(self.shared.runtime.image(&image).await, Ok(Some(_)));
                let mut message = format!("Failed to pull image {image:?}: {error}");
                if here {
                    // Better the image that is here than no container: the registry may be away for weeks.
                    message.push_str("; using the one that is here");
                    self.fetched.insert(image.clone());
                } else {
                    self.failed(Work::Pull(image.clone()), error);
                }
                self.event(Some(&container), Severity::Warning, "Failed", message).await;
                if !here {
                    let message = format!("Back-off pulling image {image:?}");
                    self.event(Some(&container), Severity::Normal, "BackOff", message).await;
                }
            }
        }
    }
}

/// Signalling or removing what is gone is done.
fn gone_is_done(tried: Result<(), RuntimeError>) -> Tried {
    match tried {
        Err(RuntimeError::Missing { .. }) => Ok(()),
        other => other.map_err(full),
    }
}

fn full(error: RuntimeError) -> String {
    explain(&error)
}

/// Runs file work off the runtime's thread.
async fn blocking(work: impl FnOnce() -> Result<(), VolumeError> + Send + 'static) -> Tried {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(|error| explain(&error)),
        Err(error) => Err(error.to_string()),
    }
}

/// The host's own files, read anew: they change with the network.
async fn read_host() -> Host {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let read = tokio::task::spawn_blocking(move || Host {
        hostname: text("/proc/sys/kernel/hostname").trim().to_owned(),
        hosts: text("/etc/hosts"),
        resolv_conf: text("/etc/resolv.conf"),
    });
    read.await.unwrap_or_default()
}

/// Takes away the last words of all attempts but the one before `attempt`, whose file `words` is about to be: a container
/// that crashes for years leaves two files.
fn sweep_words(words: &Path, attempt: u32) {
    let (Some(folder), Some(name)) = (words.parent(), words.file_stem()) else {
        return;
    };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let of = path.extension().and_then(|text| text.to_str()?.parse().ok());
        if path.file_stem() == Some(name) && of.is_some_and(|of: u32| of.saturating_add(1) < attempt) {
            // What cannot be removed is tried again with the next attempt.
            let _ = fs::remove_file(path);
        }
    }
}

/// Rewrites a file that containers have mounted, keeping the file itself; nothing when it says the same already.
fn write_in_place(path: &Path, text: &str) -> Result<(), VolumeError> {
    if fs::read_to_string(path).is_ok_and(|now| now == text) {
        return Ok(());
    }
    fs::write(path, text).map_err(VolumeError::io("writing", path))?;
    let open = fs::Permissions::from_mode(0o644);
    fs::set_permissions(path, open).map_err(VolumeError::io("opening", path))
}

fn remove_folder(folder: &Path) -> Result<(), VolumeError> {
    removal::remove_tree(folder).map_err(VolumeError::io("removing", folder))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::testing::Folder;

    #[test]
    fn last_words_are_kept_of_this_attempt_and_the_one_before() {
        let folder = Folder::new();
        for name in ["c.0", "c.1", "c.2", "c.10", "c", "other.0", "c.d.0"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        sweep_words(&folder.path().join("c.3"), 3);
        let mut left: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["c", "c.10", "c.2", "c.d.0", "other.0"]);
    }
}
