//! Runs a command beside a container's first process.
//!
//! A number may be another process' by the time it is used: what is entered is the process that a descriptor stands for,
//! once that process was seen in the container's cgroup.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, waitpid};
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};

use super::cgroups::Cgroups;
use super::child::{Child, Parent};
use super::create::load;
use super::program::Program;
use super::{ENDED, LATE, PID, Report, during};
use crate::oci::Spec;
use crate::runtime::embedded::record::CODE_UNKNOWN;
use crate::runtime::embedded::shim;
use crate::runtime::oci::cgroup;

/// Waits for the command's end, or makes an end of it.
pub(super) fn exec(
    folder: &Path,
    run: &Path,
    id: &str,
    limit: Duration,
    command: &[&str],
    report: &Report,
) -> Result<(), String> {
    let spec = load(folder)?;
    let program = Program::of(&spec, Some(command))?;
    let first = first(&spec, &run.join(id)).map_err(during("finding its first process"))?;
    let cgroups = Cgroups::of(&spec);
    let null = File::options().read(true).write(true).open("/dev/null");
    let null = null.map_err(during("opening /dev/null"))?;
    let output = io::stdout()
        .as_fd()
        .try_clone_to_owned()
        .map_err(during("its output"))?;
    enter(&first, ThreadNameSpaceType::PROCESS_ID)?;
    let mut child =
        Child::fork(|parent| beside(&first, &null, output, program, parent)).map_err(during("making its process"))?;
    // The end of what it says is its own, and not this process' as well.
    rustix::stdio::dup2_stdout(&null).map_err(during("its output"))?;
    let runs = cgroups.add(child.pid).and_then(|()| {
        child.go_on();
        child.runs()
    });
    if let Err(reason) = runs {
        child.end();
        return Err(reason);
    }
    let handle = pidfd_open(child.pid, PidfdFlags::empty()).map_err(during("watching it"))?;
    let late = !ended(&handle, limit).map_err(during("waiting for it"))?;
    if late {
        let _ = kill_process(child.pid, Signal::KILL);
    }
    let status = waitpid(Some(child.pid), WaitOptions::empty()).map_err(during("waiting for it"))?;
    if late {
        report.say(LATE, &[]);
    } else {
        let code = status.map_or(CODE_UNKNOWN, |(_, status)| shim::code(status));
        report.say(ENDED, &code.to_le_bytes());
    }
    Ok(())
}

/// What the command's process does.
fn beside(first: &OwnedFd, null: &File, output: OwnedFd, program: Program, parent: Parent) -> Result<(), String> {
    parent.wait()?;
    rustix::process::setsid().map_err(during("starting a session"))?;
    let all = ThreadNameSpaceType::MOUNT
        | ThreadNameSpaceType::CONTROL_GROUP
        | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME
        | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION
        | ThreadNameSpaceType::NETWORK;
    enter(first, all)?;
    rustix::stdio::dup2_stdin(null).map_err(during("its input"))?;
    rustix::stdio::dup2_stdout(&output).map_err(during("its output"))?;
    rustix::stdio::dup2_stderr(&output).map_err(during("its errors"))?;
    drop(output);
    program.prepare()?;
    Err(program.run())
}

fn enter(first: &OwnedFd, namespaces: ThreadNameSpaceType) -> Result<(), String> {
    move_into_thread_name_spaces(first.as_fd(), namespaces).map_err(during("entering the container"))
}

/// The container's first process.
fn first(spec: &Spec, own: &Path) -> io::Result<OwnedFd> {
    let ended = || io::Error::other("it has ended");
    let number: i32 = std::fs::read_to_string(own.join(PID))?
        .trim()
        .parse()
        .map_err(io::Error::other)?;
    let pid = Pid::from_raw(number).ok_or_else(ended)?;
    let handle = pidfd_open(pid, PidfdFlags::empty())?;
    let path = &spec.linux.cgroups_path;
    let number = u32::try_from(number).unwrap_or(0);
    let lives = !path.is_empty() && cgroup::processes(path).contains(&number);
    if lives { Ok(handle) } else { Err(ended()) }
}

/// Whether a process ended within the limit.
fn ended(process: &OwnedFd, limit: Duration) -> io::Result<bool> {
    let until = daemon::clock::mono() + limit;
    loop {
        let left = until.since(daemon::clock::mono());
        let left = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&left)) {
            Ok(count) => return Ok(count > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
