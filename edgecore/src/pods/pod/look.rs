//! Looking: what is there of a pod, and what could be made of it.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Read as _;

use proto::object::Key;
use proto::object::references::references;
use proto::time::Wall;
use proto::value::Value;

use super::PodTask;
use crate::pods::desk::{Clock, Desk, Unreadable};
use crate::pods::env::{self, ConfigError, Surroundings};
use crate::pods::logs;
use crate::pods::plan::{ImageState, Observed, Volumes, Work};
use crate::pods::probe::{Health, Prober};
use crate::pods::refs::Objects;
use crate::pods::spec::{ContainerSpec, Pod};
use crate::pods::volumes::{self, Volume};
use crate::runtime::{Runtime, RuntimeError, Seen, State, explain};

/// As much of a container's last words is kept.
const LAST_WORDS_BYTES_MAX: u64 = 4096;
/// As many lines of its log stand in for them.
const LAST_LINES_MAX: usize = 80;
const LAST_LINES_BYTES_MAX: usize = 2048;

/// One look at a pod.
#[derive(Debug)]
pub(super) struct Looked {
    containers: Vec<Seen>,
    images: BTreeMap<String, ImageState>,
    missing: BTreeMap<String, String>,
    wrong: BTreeMap<String, (&'static str, String)>,
    health: BTreeMap<String, Health>,
    messages: BTreeMap<String, String>,
    volumes: Volumes,
    addresses: Vec<String>,
    wall: Wall,
}

impl Looked {
    pub(super) fn observed<'a, R: Runtime, D, C>(&'a self, task: &'a PodTask<R, D, C>) -> Observed<'a> {
        Observed {
            containers: Some(&self.containers),
            network: task.network.as_ref(),
            volumes: self.volumes,
            images: &self.images,
            missing: &self.missing,
            wrong: &self.wrong,
            health: &self.health,
            failures: &task.failures,
            messages: &self.messages,
            unstartable: &task.unstartable,
            refusals: task
                .wanted
                .as_ref()
                .map(|wanted| wanted.refusals.as_slice())
                .unwrap_or_default(),
            cleaned: task.cleaned,
            runtime: task.shared.runtime.name(),
            first: task.first,
            addresses: &self.addresses,
            wall: self.wall,
        }
    }
}

impl<R: Runtime, D: Desk, C: Clock> PodTask<R, D, C> {
    /// Looks at everything the plan needs; `None` while the runtime does not answer, or the store cannot be read.
    pub(super) async fn look(&mut self) -> Option<Looked> {
        let containers = match self.shared.runtime.list_pod(self.uid).await {
            Ok(containers) => containers,
            Err(error) => {
                tracing::debug!(pod = %self.key, error = &error as &dyn std::error::Error, "cannot look");
                return None;
            }
        };
        self.forget_failures(&containers);
        let mut looked = Looked {
            images: BTreeMap::new(),
            missing: BTreeMap::new(),
            wrong: BTreeMap::new(),
            health: BTreeMap::new(),
            messages: BTreeMap::new(),
            volumes: Volumes::Ready,
            addresses: self.shared.desk.addresses(),
            wall: self.shared.clock.wall(),
            containers,
        };
        self.tend_probers(&looked.containers);
        for (name, prober) in &self.probers {
            looked.health.insert(name.clone(), prober.health().clone());
        }
        let Some(wanted) = &self.wanted else {
            return Some(looked);
        };
        for spec in &wanted.pod.containers {
            if let Some(words) = self.last_words(&wanted.pod, spec, &looked.containers) {
                looked.messages.insert(spec.name.clone(), words);
            }
        }
        if wanted.pod.deleting || self.memory.ended.is_some() || !wanted.refusals.is_empty() {
            return Some(looked);
        }
        let objects = self.objects().await.ok()?;
        for spec in &wanted.pod.containers {
            let running = looked.containers.iter().any(|seen| {
                seen.labels.container == spec.name
                    && seen.labels.hash == spec.hash
                    && matches!(seen.state, State::Running { .. })
            });
            if running || looked.images.contains_key(&spec.image) {
                continue;
            }
            let present = match self.shared.runtime.image(&spec.image).await {
                Ok(image) => image.is_some(),
                // It is told when there is a runtime again.
                Err(RuntimeError::Unreachable { .. }) => return None,
                Err(error) => {
                    let reason = match error {
                        RuntimeError::Invalid { .. } => "InvalidImageName",
                        _ => "ImageInspectError",
                    };
                    looked.wrong.insert(spec.image.clone(), (reason, explain(&error)));
                    continue;
                }
            };
            let state = ImageState {
                present,
                pulling: self.pulling.contains(&spec.image),
                fetched: self.fetched.contains(&spec.image),
            };
            looked.images.insert(spec.image.clone(), state);
        }
        let around = self.around(&wanted.pod, &objects, &looked.addresses);
        let (list, failed) = render(&wanted.pod.raw, &around);
        for spec in &wanted.pod.containers {
            let mounts = spec.raw.list_at(&["volumeMounts"]).iter();
            let volume = mounts
                .filter_map(|mount| failed.get(mount.text_at(&["name"])?))
                .next()
                .map(ToString::to_string);
            let env = || env::resolve(&spec.raw, &around).err().map(|error| error.to_string());
            if let Some(message) = volume.or_else(env) {
                looked.missing.insert(spec.name.clone(), message);
            }
        }
        if self.written != Some(hash(&list)) {
            looked.volumes = Volumes::Stale;
        }
        Some(looked)
    }

    pub(super) fn around<'a>(
        &'a self,
        pod: &'a Pod,
        objects: &'a Objects,
        host_addresses: &'a [String],
    ) -> Surroundings<'a> {
        Surroundings {
            pod: &pod.raw,
            objects,
            pod_addresses: if pod.host_network {
                host_addresses
            } else {
                &self.memory.addresses
            },
            host_addresses,
            allocatable: self.shared.config.allocatable,
        }
    }

    /// What the pod refers to, as far as it is here.
    pub(super) async fn objects(&self) -> Result<Objects, Unreadable> {
        let mut objects = Objects::default();
        let Some(wanted) = &self.wanted else { return Ok(objects) };
        for key in references(&wanted.pod.key.namespace, &wanted.pod.raw) {
            if let Some(desired) = self.shared.desk.desired(&key).await? {
                objects.insert(key, desired.value.clone());
            }
        }
        Ok(objects)
    }

    /// The pod's pull secrets: its own, or else its service account's.
    pub(super) async fn pull_secrets(&self, objects: &mut Objects) -> Result<Vec<Key>, Unreadable> {
        let Some(wanted) = &self.wanted else {
            return Ok(Vec::new());
        };
        let pod = &wanted.pod;
        let names = |list: &[Value]| -> Vec<Key> {
            let names = list.iter().filter_map(|one| one.text_at(&["name"]));
            names
                .map(|name| Key::new("Secret", &*pod.key.namespace, name))
                .collect()
        };
        let own = names(pod.raw.list_at(&["spec", "imagePullSecrets"]));
        if !own.is_empty() {
            return Ok(own);
        }
        let account = pod.raw.text_at(&["spec", "serviceAccountName"]).unwrap_or("default");
        let account = Key::new("ServiceAccount", &*pod.key.namespace, account);
        let Some(account) = self.shared.desk.desired(&account).await? else {
            return Ok(Vec::new());
        };
        let keys = names(account.value.list_at(&["imagePullSecrets"]));
        for key in &keys {
            if let Some(secret) = self.shared.desk.desired(key).await? {
                objects.insert(key.clone(), secret.value.clone());
            }
        }
        Ok(keys)
    }

    /// What failed about containers that are no longer there failed for the last time.
    fn forget_failures(&mut self, seen: &[Seen]) {
        self.failures.retain(|work, _| match work {
            Work::Signal(id) | Work::Remove(id) => seen.iter().any(|seen| seen.id == *id),
            _ => true,
        });
        self.unstartable.retain(|id, _| seen.iter().any(|seen| seen.id == *id));
    }

    /// Keeps one prober for each running container.
    fn tend_probers(&mut self, seen: &[Seen]) {
        let now = self.now();
        let mut probers = std::mem::take(&mut self.probers);
        let Some(wanted) = &self.wanted else { return };
        for spec in &wanted.pod.containers {
            let current = self
                .memory
                .containers
                .get(&spec.name)
                .and_then(|one| one.current.as_ref());
            // Before the first plan the memory may not know what is to be adopted; the next look tends to it.
            let Some(current) = current else { continue };
            let running = seen.iter().find(|seen| {
                seen.labels.container == spec.name
                    && seen.labels.attempt == current.number
                    && matches!(seen.state, State::Running { .. })
            });
            let Some(running) = running else { continue };
            let kept = probers
                .remove(&spec.name)
                .filter(|prober| prober.container_id() == running.id);
            let prober = kept.unwrap_or_else(|| {
                let known = current.running_since.map(|_| (current.started, current.ready));
                Box::new(Prober::new(spec, &running.id, current.number, known, now))
            });
            self.probers.insert(spec.name.clone(), prober);
        }
    }

    /// What an ended container left to say.
    fn last_words(&self, pod: &Pod, spec: &ContainerSpec, seen: &[Seen]) -> Option<String> {
        let current = self.memory.containers.get(&spec.name)?.current.as_ref()?;
        let ended = seen.iter().find(|seen| {
            seen.labels.container == spec.name
                && seen.labels.attempt == current.number
                && matches!(seen.state, State::Exited { .. })
        })?;
        let folders = &self.shared.config.folders;
        let path = folders.last_words(pod.uid, &spec.name, current.number);
        let mut words = Vec::new();
        if let Ok(file) = std::fs::File::open(path) {
            let _ = file.take(LAST_WORDS_BYTES_MAX).read_to_end(&mut words);
        }
        let failed = matches!(ended.state, State::Exited { code, .. } if code != 0);
        let policy = spec.raw.text_at(&["terminationMessagePolicy"]);
        if words.is_empty() && failed && policy == Some("FallbackToLogsOnError") {
            let log = folders.log(pod, &spec.name, current.number);
            return logs::last_lines(&log, LAST_LINES_MAX, LAST_LINES_BYTES_MAX);
        }
        (!words.is_empty()).then(|| String::from_utf8_lossy(&words).into_owned())
    }
}

/// The volumes that can be made, and why the others cannot.
pub(super) fn render(pod: &Value, around: &Surroundings<'_>) -> (Vec<Volume>, BTreeMap<String, ConfigError>) {
    let mut list = Vec::new();
    let mut failed = BTreeMap::new();
    for volume in pod.list_at(&["spec", "volumes"]) {
        let name = volume.text_at(&["name"]).unwrap_or_default().to_owned();
        match volumes::content(volume, around) {
            Ok(content) => list.push(Volume { name, content }),
            Err(error) => drop(failed.insert(name, error)),
        }
    }
    (list, failed)
}

pub(super) fn hash(list: &[Volume]) -> u64 {
    let mut hasher = DefaultHasher::new();
    list.hash(&mut hasher);
    hasher.finish()
}
