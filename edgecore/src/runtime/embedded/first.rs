//! Which process is a container's first one, as its pod's run folder has it.
//!
//! A number may be another process' by the time it is used. With a cgroup, only what is in it is the container's; without
//! one (an edge core that is not root may have none), a process is told by when it was started.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::runtime::oci::cgroup;

/// In a container's run folder.
const FILE: &str = "pid";

/// Writes it down; `cgroup` is empty where there is none.
pub(super) fn write(own: &Path, pid: Pid, cgroup: &str) -> io::Result<()> {
    let number = pid.as_raw_nonzero().to_string();
    let text = if cgroup.is_empty() {
        format!("{number} {}", started(&number)?)
    } else {
        number
    };
    std::fs::write(own.join(FILE), text)
}

/// The process while it lives: its number, and what it stays known by.
pub(super) fn find(own: &Path, cgroup: &str) -> Option<(u32, OwnedFd)> {
    let text = std::fs::read_to_string(own.join(FILE)).ok()?;
    let mut words = text.split_whitespace();
    let word = words.next()?;
    let number: u32 = word.parse().ok()?;
    let handle = pidfd_open(Pid::from_raw(i32::try_from(number).ok()?)?, PidfdFlags::empty()).ok()?;
    let is_it = if cgroup.is_empty() {
        words.next() == started(word).ok().as_deref()
    } else {
        cgroup::processes(cgroup).contains(&number)
    };
    is_it.then_some((number, handle))
}

/// When a process was started, by the machine's own count. One that ended and waits for its parent is none.
fn started(number: &str) -> io::Result<String> {
    let text = std::fs::read_to_string(format!("/proc/{number}/stat"))?;
    // What it calls itself may be anything; it is in brackets. Counted from there, it is the twentieth.
    let rest = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut words = rest.split_whitespace();
    let has_ended = |state: &str| ["Z", "X"].contains(&state);
    let lives = words.next().is_some_and(|state| !has_ended(state));
    let word = words.nth(18).filter(|_| lives);
    word.map(str::to_owned).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_from_another_with_its_number() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path();
        assert!(find(own, "").is_none());
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_child(&child);
        write(own, pid, "").unwrap();
        assert_eq!(find(own, "").map(|(number, _)| number), Some(child.id()));
        // As if it had been started at another time; and as if somebody had not written that down.
        for text in [format!("{} 1", child.id()), child.id().to_string()] {
            std::fs::write(own.join(FILE), text).unwrap();
            assert!(find(own, "").is_none());
        }
        write(own, pid, "").unwrap();
        child.kill().unwrap();
        // It waits for its parent, which has not asked yet.
        let ended = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let mut ended = [rustix::event::PollFd::new(&ended, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut ended, None).unwrap();
        assert!(find(own, "").is_none());
        child.wait().unwrap();
        assert!(find(own, "").is_none());
        // With a cgroup nothing but the number is written, which earlier releases read.
        write(own, rustix::process::getpid(), "/no/such").unwrap();
        let text = std::fs::read_to_string(own.join(FILE)).unwrap();
        assert_eq!(text, std::process::id().to_string());
        assert!(find(own, "/no/such").is_none());
    }
}
