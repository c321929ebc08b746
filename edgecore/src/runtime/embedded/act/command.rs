//! Runs a command beside a container's first process.
//!
//! A number may be another process' by the time it is used: what is entered is the process that a descriptor stands for,
//! once that process was seen to be the container's.
//!
//! What is seen from inside the container is the command's process only, and it is made last: a copy of this one enters
//! everything, becomes the container's user and loads its filter while it is still a process of the host's alone; then it
//! makes the command's, which was never anything more. A container that may look into other processes finds nothing there
//! that it could not do itself, and one that stops them stops no clock: this process is out of its reach.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use proto::time::Mono;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, waitpid};
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};

use super::cgroups::Cgroups;
use super::child::{Child, Parent};
use super::create::load;
use super::program::Program;
use super::{ENDED, LATE, REPORT_BYTES_MAX, Report, during, favour_as};
use crate::oci::{NamespaceKind, Spec};
use crate::runtime::embedded::first;
use crate::runtime::embedded::record::CODE_UNKNOWN;
use crate::runtime::embedded::shim;
use crate::sys;

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
    favour_as(&spec);
    let program = Program::of(&spec, Some(command))?;
    let (number_of_first, first) = first_process(&spec, &run.join(id)).map_err(during("finding its first process"))?;
    let cgroups = Cgroups::of(&spec);
    let kinds = spec.linux.namespaces.iter().map(|namespace| namespace.kind);
    let own = kinds.fold(ThreadNameSpaceType::empty(), |all, kind| all | entered(kind));
    let null = File::options().read(true).write(true).open("/dev/null");
    let null = null.map_err(during("opening /dev/null"))?;
    let output = io::stdout()
        .as_fd()
        .try_clone_to_owned()
        .map_err(during("its output"))?;
    // Who makes the command's process ends before it does.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(during("taking its process over"))?;
    let until = daemon::clock::mono() + limit;
    let mut child = Child::fork(|parent| enter(&first, own, &null, output, &program, &parent))
        .map_err(during("making its process"))?;
    // The end of what it says is its own, and not this process' as well.
    rustix::stdio::dup2_stdout(&null).map_err(during("its output"))?;
    if let Err(reason) = cgroups.add_beside(child.pid, number_of_first) {
        child.end();
        return Err(reason);
    }
    child.go_on();
    let (maker, mut said) = (child.pid, Vec::new());
    let heard = hear(child.said(), until, &mut said).map_err(during("listening to its process"))?;
    let command = number(&said);
    let process = command.unwrap_or(maker);
    let late = !heard || !ended(process, until).map_err(during("waiting for it"))?;
    if late {
        let _ = kill_process(process, Signal::KILL);
    }
    let mut status = waitpid(Some(maker), WaitOptions::empty()).map_err(during("waiting for it"))?;
    if let Some(command) = command {
        status = waitpid(Some(command), WaitOptions::empty()).map_err(during("waiting for it"))?;
    }
    let fault = said.get(command.map_or(0, |_| NUMBER_BYTES)..).unwrap_or_default();
    if late {
        report.say(LATE, &[]);
    } else if !fault.is_empty() {
        return Err(String::from_utf8_lossy(fault).into_owned());
    } else if command.is_none() {
        return Err(
            "its process ended while it was made; was there memory, and does its seccomp profile let it make one?"
                .to_owned(),
        );
    } else {
        let code = status.map_or(CODE_UNKNOWN, |(_, status)| shim::code(status));
        report.say(ENDED, &code.to_le_bytes());
    }
    Ok(())
}

/// A mark, and the number of the command's process.
const NUMBER_BYTES: usize = 5;
/// No text begins with it.
const NUMBER: u8 = 1;

fn number(said: &[u8]) -> Option<Pid> {
    match said {
        [NUMBER, a, b, c, d, ..] => Pid::from_raw(i32::from_le_bytes([*a, *b, *c, *d])),
        _ => None,
    }
}

fn entered(kind: NamespaceKind) -> ThreadNameSpaceType {
    match kind {
        NamespaceKind::Mount => ThreadNameSpaceType::MOUNT,
        NamespaceKind::Cgroup => ThreadNameSpaceType::CONTROL_GROUP,
        NamespaceKind::Uts => ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME,
        NamespaceKind::Ipc => ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION,
        NamespaceKind::Network => ThreadNameSpaceType::NETWORK,
        // Of the next process that is made.
        NamespaceKind::Pid => ThreadNameSpaceType::PROCESS_ID,
    }
}

/// Becomes what a process of the container is, and makes one there.
fn enter(
    first: &OwnedFd,
    own: ThreadNameSpaceType,
    null: &File,
    output: OwnedFd,
    program: &Program,
    parent: &Parent,
) -> Result<(), String> {
    parent.wait()?;
    let all = [
        NamespaceKind::Mount,
        NamespaceKind::Cgroup,
        NamespaceKind::Uts,
        NamespaceKind::Ipc,
        NamespaceKind::Network,
        NamespaceKind::Pid,
    ];
    let all = all
        .into_iter()
        .fold(ThreadNameSpaceType::empty(), |all, kind| all | entered(kind));
    let entered = match move_into_thread_name_spaces(first.as_fd(), all) {
        // Those of the host that it is in are not to be entered by who is not the host's root, and need not be.
        Err(rustix::io::Errno::PERM) => move_into_thread_name_spaces(first.as_fd(), own),
        entered => entered,
    };
    entered.map_err(during("entering the container"))?;
    rustix::stdio::dup2_stdin(null).map_err(during("its input"))?;
    rustix::stdio::dup2_stdout(&output).map_err(during("its output"))?;
    rustix::stdio::dup2_stderr(&output).map_err(during("its errors"))?;
    drop(output);
    program.prepare()?;
    program.filter()?;
    let (told, tell) = io::pipe().map_err(during("making a pipe"))?;
    let (mut voice, mut tell) = (parent.voice(), Some(tell));
    let made = sys::fork(|| {
        // It is not to wait for itself.
        drop(tell.take());
        beside(program, told, voice)
    })
    .map_err(during("making its process (its seccomp profile must let it make one)"))?;
    let mut said = vec![NUMBER];
    said.extend(made.as_raw_nonzero().get().to_le_bytes());
    voice.write_all(&said).map_err(during("saying its number"))?;
    // A process that has not heard it would be nobody's.
    let told = tell.map_or(Ok(()), |mut tell| tell.write_all(&[0]));
    told.map_err(during("letting it run"))
}

/// What the command's process does, once its number is known.
fn beside(program: &Program, mut told: io::PipeReader, mut voice: &File) -> u8 {
    const CODE_NOT_RUN: u8 = 128;
    if told.read_exact(&mut [0]).is_err() || rustix::process::setsid().is_err() {
        return CODE_NOT_RUN;
    }
    let _ = voice.write_all(program.run().as_bytes());
    CODE_NOT_RUN
}

/// The container's first process.
fn first_process(spec: &Spec, own: &Path) -> io::Result<(u32, OwnedFd)> {
    let ended = || io::Error::other("it has ended");
    first::find(own, &spec.linux.cgroups_path).ok_or_else(ended)
}

/// Reads to the end, or as long as there is time; whether it came to the end.
fn hear(from: &mut File, until: Mono, said: &mut Vec<u8>) -> io::Result<bool> {
    let mut buffer = [0; 512];
    while ready(from.as_fd(), until)? {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(true),
            Ok(count) => said.extend_from_slice(&buffer[..count.min(REPORT_BYTES_MAX.saturating_sub(said.len()))]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// Whether a process ended in time.
fn ended(process: Pid, until: Mono) -> io::Result<bool> {
    ready(pidfd_open(process, PidfdFlags::empty())?.as_fd(), until)
}

/// Whether there is something to read before the time is over.
fn ready(from: BorrowedFd<'_>, until: Mono) -> io::Result<bool> {
    loop {
        let left = until.since(daemon::clock::mono());
        let left = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::new(&from, PollFlags::IN)], Some(&left)) {
            Ok(count) => return Ok(count > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
