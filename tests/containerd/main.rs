//! The containerd runtime on a real containerd and runc: each test has a daemon, folders and cgroups of its own, and ends
//! by looking for leftovers.
//!
//! Needs root and the packages containerd, runc, containernetworking-plugins and iptables, and what `images/build`
//! needs.
#![expect(clippy::unwrap_used, reason = "what supports a test fails by panicking, too")]

mod check;
mod host;
mod images;
mod life;
mod limits;
mod logs;
mod main_job;
mod no_clock;
mod no_controller;
mod no_room;
mod no_runtime;
mod node;
mod pods;
mod pressure;
mod reconciler;
mod registry;
mod rootless;
mod safety;
mod seccomp;
mod shim;
mod shipped;
mod site;
mod unstartable;
