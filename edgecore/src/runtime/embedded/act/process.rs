//! Making processes of containers, with `libcontainer`: all that is known of it is here. It forks, so there must be no second
//! thread.
//!
//! It is left out of programs for 32-bit machines, for which `libcontainer` 0.7 does not compile: a kernel's number of a file
//! system has another width there.

mod devices;
mod execute;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::fchown;
use std::path::{Path, PathBuf};
use std::time::Duration;

use libcontainer::container::ContainerStatus;
use libcontainer::container::builder::ContainerBuilder;
use libcontainer::syscall::syscall::SyscallType;
use oci_spec::runtime::Spec;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, waitpid};

use self::execute::Execute;
use super::super::record::CODE_UNKNOWN;
use super::super::shim;
use super::super::shim::container::{CONSOLE, STDERR, STDOUT};
use super::{ENDED, LATE, MADE, PID, Report, SPEC, STATES, causes};

/// The exit code of what could not be run.
const CODE_NOT_RUN: i32 = 128;

/// Makes the first process of a container, up to where it waits to be told to run.
pub(super) fn create(folder: &Path, run: &Path, id: &str, owner: (u32, u32), report: &Report) -> Result<(), String> {
    let own = run.join(id);
    let spec = spec(folder)?;
    make_own_cgroups(&spec).map_err(causes)?;
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

/// What a container sees of its cgroups is mounted before all of them are made.
fn make_own_cgroups(spec: &Spec) -> io::Result<()> {
    let path = spec.linux().as_ref().and_then(|linux| linux.cgroups_path().as_deref());
    let Some(path) = path.map(|path| path.strip_prefix("/").unwrap_or(path)) else {
        return Ok(());
    };
    let sources = spec
        .mounts()
        .iter()
        .flatten()
        .filter_map(|mount| mount.source().as_deref());
    let mut own = sources.filter(|source| source.starts_with("/sys/fs/cgroup") && source.ends_with(path));
    own.try_for_each(std::fs::create_dir_all)
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
pub(super) fn exec(
    folder: &Path,
    run: &Path,
    id: &str,
    limit: Duration,
    command: &[&str],
    report: &Report,
) -> Result<(), String> {
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
        let code = status.map_or(CODE_UNKNOWN, |(_, status)| shim::code(status));
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
