//! A pod as its reconciler reads it: parsed once per revision, with Kubernetes' defaults filled in.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use proto::object::{Key, Uid};
use proto::value::{Value, canonical};

use super::desk::Desired;
use super::probe::ProbeSpec;

/// How long a pod may take to stop when it does not say.
pub const GRACE_DEFAULT: Duration = Duration::from_secs(30);

/// When an ended container is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

impl RestartPolicy {
    /// Whether a container that ended with this code is started again.
    pub fn restarts(self, code: i32) -> bool {
        match self {
            Self::Always => true,
            Self::OnFailure => code != 0,
            Self::Never => false,
        }
    }
}

/// When an image is fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullPolicy {
    /// Before the first container of a pod is made from it. Later containers of the same pod use what is there, so
    /// that a restart needs no network.
    Always,
    IfNotPresent,
    Never,
}

/// What a container is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Runs to its end before the next one starts.
    Init,
    /// An init container with `restartPolicy: Always`: runs as long as the pod does.
    Sidecar,
    App,
}

/// One container of a pod's spec.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerSpec {
    pub name: String,
    pub role: Role,
    pub image: String,
    pub pull: PullPolicy,
    /// Of what makes a new container necessary when it changes.
    pub hash: u64,
    pub startup: Option<ProbeSpec>,
    pub liveness: Option<ProbeSpec>,
    pub readiness: Option<ProbeSpec>,
    /// The container as the manifest has it.
    pub raw: Part,
}

impl ContainerSpec {
    /// As an event's `fieldPath` has it.
    pub fn field_path(&self) -> String {
        let list = match self.role {
            Role::App => "containers",
            Role::Init | Role::Sidecar => "initContainers",
        };
        format!("spec.{list}{{{}}}", self.name)
    }
}

/// A pod that should be here.
#[derive(Debug, Clone, PartialEq)]
pub struct Pod {
    pub key: Key,
    pub uid: Uid,
    pub generation: Option<i64>,
    /// It has a deletion timestamp, which is never taken back.
    pub deleting: bool,
    /// How long stopping may take: the deletion's own grace while it is deleted, else the spec's.
    pub grace: Duration,
    pub policy: RestartPolicy,
    pub host_network: bool,
    pub deadline: Option<Duration>,
    /// Init containers and sidecars in their order, then the others.
    pub containers: Vec<ContainerSpec>,
    /// The pod as the manifest has it.
    pub raw: Part,
}

/// A part of a manifest, which stands in memory once.
#[derive(Debug, Clone)]
pub struct Part {
    whole: Arc<Desired>,
    /// A list of the spec and a place in it; `None` is the manifest itself.
    place: Option<(&'static str, usize)>,
}

impl Deref for Part {
    type Target = Value;

    fn deref(&self) -> &Value {
        let whole = &self.whole.value;
        match self.place {
            None => whole,
            Some((list, at)) => &whole.list_at(&["spec", list])[at],
        }
    }
}

impl PartialEq for Part {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Pod {
    /// Reads what passed [`super::supported::check_supported`]; what is malformed is read as absent.
    pub fn parse(desired: &Arc<Desired>) -> Self {
        let part = |place| Part { whole: Arc::clone(desired), place };
        let raw = &desired.value;
        let policy = match raw.text_at(&["spec", "restartPolicy"]) {
            Some("OnFailure") => RestartPolicy::OnFailure,
            Some("Never") => RestartPolicy::Never,
            _ => RestartPolicy::Always,
        };
        let seconds = |path: &[&str]| raw.int_at(path).and_then(|seconds| u64::try_from(seconds).ok());
        let deleting = raw.text_at(&["metadata", "deletionTimestamp"]).is_some();
        let grace = deleting
            .then(|| seconds(&["metadata", "deletionGracePeriodSeconds"]))
            .flatten()
            .or_else(|| seconds(&["spec", "terminationGracePeriodSeconds"]))
            .map_or(GRACE_DEFAULT, Duration::from_secs);
        let inits = (0..raw.list_at(&["spec", "initContainers"]).len()).map(|at| {
            let one = part(Some(("initContainers", at)));
            let role = match one.text_at(&["restartPolicy"]) {
                Some("Always") => Role::Sidecar,
                _ => Role::Init,
            };
            container(one, role)
        });
        let apps = (0..raw.list_at(&["spec", "containers"]).len())
            .map(|at| container(part(Some(("containers", at))), Role::App));
        Self {
            key: desired.key.clone(),
            uid: desired.uid,
            generation: raw.int_at(&["metadata", "generation"]),
            deleting,
            grace,
            policy,
            host_network: raw.flag_at(&["spec", "hostNetwork"]),
            deadline: seconds(&["spec", "activeDeadlineSeconds"]).map(Duration::from_secs),
            containers: inits.chain(apps).collect(),
            raw: part(None),
        }
    }

    pub fn container(&self, name: &str) -> Option<&ContainerSpec> {
        self.containers.iter().find(|container| container.name == name)
    }
}

fn container(raw: Part, role: Role) -> ContainerSpec {
    let text = |field: &str| raw.text_at(&[field]).unwrap_or_default().to_owned();
    let image = text("image");
    let pull = match raw.text_at(&["imagePullPolicy"]) {
        Some("Always") => PullPolicy::Always,
        Some("Never") => PullPolicy::Never,
        Some("IfNotPresent") => PullPolicy::IfNotPresent,
        _ if is_moving(&image) => PullPolicy::Always,
        _ => PullPolicy::IfNotPresent,
    };
    let probe = |field: &str| raw.get(field).and_then(|probe| ProbeSpec::parse(probe, &raw));
    ContainerSpec {
        name: text("name"),
        role,
        pull,
        hash: hash(&raw),
        startup: probe("startupProbe"),
        liveness: probe("livenessProbe"),
        readiness: probe("readinessProbe"),
        image,
        raw,
    }
}

/// Whether an image name has no tag or the tag `latest`, and no digest.
fn is_moving(image: &str) -> bool {
    let name = image.rsplit('/').next().unwrap_or(image);
    !name.contains('@') && name.split_once(':').is_none_or(|(_, tag)| tag == "latest")
}

/// FNV-1a over what names a container's program. Defaults that a newer cloud core adds elsewhere restart nothing.
fn hash(raw: &Value) -> u64 {
    let mut covered = Value::map();
    for field in ["name", "image", "command", "args", "workingDir"] {
        if let Some(value) = raw.get(field) {
            covered.set(&[field], value.clone());
        }
    }
    canonical::encode(&covered)
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_latest_moves() {
        for (image, moving) in [
            ("web", true),
            ("web:latest", true),
            ("web:1", false),
            ("host:5000/web", true),
            ("host:5000/web:1", false),
            ("web@sha256:0", false),
        ] {
            assert_eq!(is_moving(image), moving, "{image}");
        }
    }

    #[test]
    fn the_hash_covers_the_program_only() {
        let make = |json: &str| hash(&proto::value::json::parse(json.as_bytes()).unwrap());
        let base = make(r#"{"name":"a","image":"b:1"}"#);
        assert_eq!(base, make(r#"{"name":"a","image":"b:1","imagePullPolicy":"Always"}"#));
        assert_ne!(base, make(r#"{"name":"a","image":"b:2"}"#));
        assert_ne!(base, make(r#"{"name":"a","image":"b:1","args":["x"]}"#));
    }
}
