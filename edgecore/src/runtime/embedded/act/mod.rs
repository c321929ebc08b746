//! The short-lived processes that make a container's first process, and run commands beside it: `edgecore` under another
//! first argument. All that is known of `libcontainer` is here; it forks, so there must be no second thread.
//!
//! What comes of it goes to standard input, which is a pipe to whoever started this ([`Report`]).

mod devices;
mod execute;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::fchown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use libcontainer::container::ContainerStatus;
use libcontainer::container::builder::ContainerBuilder;
use libcontainer::syscall::syscall::SyscallType;
use oci_spec::runtime::Spec;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, waitpid};

use self::execute::Execute;
use super::record::CODE_UNKNOWN;
use super::shim::container::{CONSOLE, STDERR, STDOUT};

/// The first argument.
pub(super) const WORD: &str = "container-act";
/// The second.
pub(super) const CREATE: &str = "create";
pub(super) const EXEC: &str = "exec";

/// Below a pod's run folder: what `libcontainer` keeps of each container.
pub(super) const STATES: &str = "oci";
/// In a container's run folder: its first process.
pub(super) const PID: &str = "pid";
/// In a container's folder that stays: its specification.
pub(super) const SPEC: &str = "config.json";

/// No report is longer.
pub(super) const REPORT_BYTES_MAX: usize = 2048;

/// The exit code of what could not be run.
const CODE_NOT_RUN: i32 = 128;

const USAGE: u8 = 64;

/// What is said, as a byte and what follows it.
const MADE: u8 = b'P';
const FAULT: u8 = b'E';
const ENDED: u8 = b'X';
const LATE: u8 = b'T';

/// What came of a command.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Ended(i32),
    /// It was killed at its limit.
    Late,
    Fault(String),
}

/// The process that a report says was made.
pub(super) fn made_pid(said: &[u8]) -> Option<u32> {
    match said {
        [MADE, a, b, c, d, ..] => Some(u32::from_le_bytes([*a, *b, *c, *d])),
        _ => None,
    }
}

/// What a report says went wrong.
pub(super) fn fault(said: &[u8]) -> Option<String> {
    let rest = if said.first() == Some(&MADE) {
        said.get(5..)?
    } else {
        said
    };
    match rest {
        [FAULT, text @ ..] => Some(String::from_utf8_lossy(text).into_owned()),
        _ => None,
    }
}

/// What a command's report says.
pub(super) fn outcome(said: &[u8]) -> Outcome {
    match said {
        [ENDED, a, b, c, d] => Outcome::Ended(i32::from_le_bytes([*a, *b, *c, *d])),
        [LATE] => Outcome::Late,
        _ => Outcome::Fault(fault(said).unwrap_or_else(|| "it ended without a word".to_owned())),
    }
}

/// Runs it; `args` are those after [`WORD`].
pub(super) fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    favour_nobody();
    let args: Option<Vec<String>> = args.map(|arg| arg.into_string().ok()).collect();
    let args = args.unwrap_or_default();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    // The shim that started this reads its own from elsewhere.
    let (Ok(report), Ok(())) = (Report::open(), crate::sys::no_signal_waits()) else {
        return ExitCode::from(USAGE);
    };
    let done = match args.as_slice() {
        [CREATE, folder, run, id, user, group] => match (user.parse(), group.parse()) {
            (Ok(user), Ok(group)) => create(Path::new(folder), Path::new(run), id, (user, group), &report),
            _ => return ExitCode::from(USAGE),
        },
        [EXEC, folder, run, id, limit_ms, command @ ..] => match limit_ms.parse() {
            Ok(limit_ms) => exec(
                Path::new(folder),
                Path::new(run),
                id,
                Duration::from_millis(limit_ms),
                command,
                &report,
            ),
            Err(_) => return ExitCode::from(USAGE),
        },
        _ => return ExitCode::from(USAGE),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            report.say(FAULT, reason.as_bytes());
            ExitCode::FAILURE
        }
    }
}

/// The edge core may be spared when memory runs out; what it runs is not. Raising the score takes no privilege.
fn favour_nobody() {
    const SCORE: &str = "/proc/self/oom_score_adj";
    let score = std::fs::read_to_string(SCORE)
        .ok()
        .and_then(|text| text.trim().parse::<i32>().ok());
    if score.is_some_and(|score| score < 0) {
        let _ = std::fs::write(SCORE, "0");
    }
}

/// A copy of standard input that is closed when a program is run.
#[derive(Debug)]
struct Report(File);

impl Report {
    fn open() -> io::Result<Self> {
        Ok(Self(File::from(io::stdin().as_fd().try_clone_to_owned()?)))
    }

    fn say(&self, what: u8, text: &[u8]) {
        let mut bytes = vec![what];
        bytes.extend_from_slice(&text[..text.len().min(REPORT_BYTES_MAX - 16)]);
        // Whoever does not listen any more has no use for it.
        let _ = (&self.0).write_all(&bytes);
    }
}

/// Makes the first process of a container, up to where it waits to be told to run.
fn create(folder: &Path, run: &Path, id: &str, owner: (u32, u32), report: &Report) -> Result<(), String> {
    let own = run.join(id);
    let spec = spec(folder)?;
    let terminal = spec
        .process()
        .as_ref()
        .and_then(|process| process.terminal())
        .unwrap_or(false);
    let mut builder = ContainerBuilder::new(id.to_owned(), SyscallType::default())
        .with_root_path(run.join(STATES))
        .and_then(|builder| builder.with_pid_file(Some(own.join(PID))))
        .map_err(causes)?
        .with_executor(Execute::new(report.0.try_clone().map_err(causes)?, &spec, true).map_err(causes)?);
    if terminal {
        builder = builder.with_console_socket(Some(own.join(CONSOLE)));
    } else {
        builder = builder
            .with_stdin(File::open("/dev/null").map_err(causes)?)
            .with_stdout(output(&own.join(STDOUT), owner)?)
            .with_stderr(output(&own.join(STDERR), owner)?);
    }
    let init = builder.as_init(folder).with_systemd(false).with_detach(true);
    let mut container = init.build().map_err(causes)?;
    if let Err(error) = devices::limit(&spec) {
        let _ = container.delete(true);
        return Err(format!(
            "limiting its devices (the kernel needs CONFIG_CGROUP_BPF): {error}"
        ));
    }
    // So that commands may be run in it; who starts it is the shim, which knows nothing of this state.
    container.set_status(ContainerStatus::Running).save().map_err(causes)?;
    let pid = container.pid().map_or(0, Pid32::number);
    report.say(MADE, &pid.to_le_bytes());
    Ok(())
}

/// A process id of whichever crate, as a number.
trait Pid32 {
    fn number(self) -> u32;
}

impl<T: Into<i32>> Pid32 for T {
    fn number(self) -> u32 {
        u32::try_from(self.into()).unwrap_or(0)
    }
}

/// The writing end of a container's output. It can be read as well, so that nobody is told of a broken pipe while there is
/// no shim; and it is the container's own, so that what runs in it may open it by its name.
fn output(path: &Path, owner: (u32, u32)) -> Result<OwnedFd, String> {
    let file = File::options().read(true).write(true).open(path).map_err(causes)?;
    fchown(&file, Some(owner.0), Some(owner.1)).map_err(causes)?;
    Ok(file.into())
}

/// Runs a command in a container and waits for its end, or makes an end of it.
fn exec(folder: &Path, run: &Path, id: &str, limit: Duration, command: &[&str], report: &Report) -> Result<(), String> {
    let spec = spec(folder)?;
    let mut process = spec.process().clone().ok_or("the container's record is damaged")?;
    process
        .set_args(Some(command.iter().map(|word| (*word).to_owned()).collect()))
        .set_terminal(Some(false));
    let path = run.join(id).join(format!("exec-{}.json", std::process::id()));
    let document = Document::write(&path, &process).map_err(causes)?;
    let stdout = io::stdout().as_fd().try_clone_to_owned().map_err(causes)?;
    let null = File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .map_err(causes)?;
    let built = ContainerBuilder::new(id.to_owned(), SyscallType::default())
        .with_root_path(run.join(STATES))
        .map_err(causes)?
        .with_executor(Execute::new(report.0.try_clone().map_err(causes)?, &spec, false).map_err(causes)?)
        .with_stdin(null.try_clone().map_err(causes)?)
        .with_stdout(stdout.try_clone().map_err(causes)?)
        .with_stderr(stdout)
        .as_tenant()
        .with_process(Some(&document.0))
        .with_detach(true)
        .build();
    drop(document);
    // The end of what it says is its own and not this process' as well.
    rustix::stdio::dup2_stdout(&null).map_err(causes)?;
    let pid = built.map_err(causes)?;
    let pid = Pid::from_raw(pid.as_raw()).ok_or("it has no process")?;
    let handle = pidfd_open(pid, PidfdFlags::empty()).map_err(causes)?;
    let late = !ended(&handle, limit).map_err(causes)?;
    if late {
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
    let status = waitpid(Some(pid), WaitOptions::empty()).map_err(causes)?;
    if late {
        report.say(LATE, &[]);
    } else {
        let code = status.map_or(CODE_UNKNOWN, |(_, status)| super::shim::code(status));
        report.say(ENDED, &code.to_le_bytes());
    }
    Ok(())
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

fn spec(folder: &Path) -> Result<Spec, String> {
    Spec::load(folder.join(SPEC)).map_err(causes)
}

/// A file that goes when it is dropped.
struct Document(PathBuf);

impl Document {
    fn write(path: &Path, process: &oci_spec::runtime::Process) -> io::Result<Self> {
        std::fs::write(path, serde_json::to_vec(process)?)?;
        Ok(Self(path.to_owned()))
    }
}

impl Drop for Document {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The terminal that a container hands over, for the shim.
pub(super) fn terminal(peer: &UnixStream) -> io::Result<File> {
    let mut name = [0; 256];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut received = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [io::IoSliceMut::new(&mut name)];
    recvmsg(peer, &mut parts, &mut received, RecvFlags::CMSG_CLOEXEC)?;
    let descriptors = received.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let file = File::from(descriptors.ok_or_else(|| io::Error::other("no terminal was handed over"))?);
    rustix::io::ioctl_fionbio(&file, true)?;
    Ok(file)
}

/// An error with its causes, each once.
fn causes(error: impl std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_as_far_as_it_came() {
        assert_eq!((made_pid(b""), fault(b"")), (None, None));
        assert_eq!((made_pid(b"P\x01\0\0"), fault(b"P\x01\0\0")), (None, None));
        let made = b"P\x01\x02\0\0";
        assert_eq!((made_pid(made), fault(made)), (Some(0x201), None));
        let both = b"P\x01\0\0\0Eno such file";
        assert_eq!(
            (made_pid(both), fault(both).as_deref()),
            (Some(1), Some("no such file"))
        );
        assert_eq!((made_pid(b"Ebad"), fault(b"Ebad").as_deref()), (None, Some("bad")));
        assert_eq!(outcome(b"X\xff\xff\xff\xff"), Outcome::Ended(-1));
        assert_eq!(outcome(b"T"), Outcome::Late);
        assert_eq!(outcome(b"Ebad"), Outcome::Fault("bad".into()));
        assert!(matches!(outcome(b"X\0"), Outcome::Fault(_)));
    }
}
