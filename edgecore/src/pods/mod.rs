//! Pods: makes what should run on this node run, keeps it so, and says what changed.
//!
//! [`plan`] decides about one pod and is pure. One task per pod ([`Runner`] owns them) looks, plans, keeps the memory,
//! reports, and carries the steps out over the seam [`crate::runtime::Runtime`]; everything it knows can be lost at any
//! moment but what the [`Desk`] remembers. So there is no recovery path: a start is a first look.
//!
//! What a pod gets here and in a Kubernetes cluster differs in this:
//!
//! - `imagePullPolicy: Always` fetches before the first container of a pod, not before each restart, and falls back to
//!   the image that is here when the registry cannot be reached: a restart needs no network.
//! - No environment variables for services, no service account token volume (it is left out, not refused).
//! - `emptyDir.sizeLimit` bounds memory-backed folders only.
//! - `lifecycle` hooks, gRPC and HTTPS probes, `hostPort` without the host's network, and every volume that is not
//!   emptyDir, hostPath, configMap, secret, downwardAPI or projected are refused with their path ([`supported`]).

pub mod auth;
pub mod build;
mod check;
pub mod desk;
pub mod env;
mod events;
pub mod files;
pub mod folders;
pub mod logs;
pub mod memory;
pub mod plan;
mod pod;
pub mod probe;
pub mod refs;
mod runner;
pub mod seccomp;
pub mod spec;
pub mod status;
pub mod supported;
pub mod volumes;

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use desk::{Clock, Desired, Desk, Entries, Machine, PodEvent, Severity, Unreadable};
pub use events::{EVENT_REPEAT, EVENTS_MAX};
pub use folders::Folders;
pub use pod::{PULL_RETRY_FIRST, PULL_RETRY_MAX, RETRY_FIRST, RETRY_MAX};
pub use runner::{Config, PULLS_MAX, Pods, RESYNC, Runner, WAKES_MAX, new};
