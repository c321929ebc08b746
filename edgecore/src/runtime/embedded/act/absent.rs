//! A program that makes no processes of containers; which runtime a node has is chosen with that in mind.

use std::path::Path;
use std::time::Duration;

use super::Report;

const ABSENT: &str = "this program is for a 32-bit machine, which runs containers with containerd only";

pub(super) fn create(_: &Path, _: &Path, _: &str, _: (u32, u32), _: &Report) -> Result<(), String> {
    Err(ABSENT.to_owned())
}

pub(super) fn exec(_: &Path, _: &Path, _: &str, _: Duration, _: &[&str], _: &Report) -> Result<(), String> {
    Err(ABSENT.to_owned())
}
