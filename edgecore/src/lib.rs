//! The edge core: what runs on a node.

pub mod alarm;
pub mod check;
pub mod clock;
pub mod config;
pub mod desk;
pub mod identity;
pub mod images;
pub mod link;
pub mod network;
pub mod node;
pub mod oci;
mod pages;
pub mod pods;
mod removal;
pub mod rootless;
pub mod run;
pub mod runtime;
pub mod seccomp;
pub mod shelf;
pub mod status;
pub mod store;
mod sys;
pub mod tunnels;
