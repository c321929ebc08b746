//! The edge core on emulated machines with kernels, clocks and disks of their own: booted, cut off, and cut from power.
//!
//! Needs what `scripts/install-deps` brings, and the static edge core that `scripts/cross` makes.
#![expect(clippy::unwrap_used, reason = "what supports a test fails by panicking, too")]

mod boot;
mod disk;
mod drive;
mod pods;
mod power;
mod rootless;
mod site;
