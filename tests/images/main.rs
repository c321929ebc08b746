//! The node's own image store, on a real disk, with real mounts.
//!
//! Needs root, for owners, devices and mounts, containerd to compare with, and strace to end a process at a system call.
#![expect(clippy::unwrap_used, reason = "what supports a test fails by panicking, too")]

mod archive;
mod crash;
mod others;
#[path = "../containerd/registry.rs"]
mod registry;
mod roots;
mod taking_in;
mod tree;
mod trees;
