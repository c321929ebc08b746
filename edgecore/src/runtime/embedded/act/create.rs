//! Makes the first process of a container, up to where it waits to be let run.
//!
//! This process reads what the container is to be, makes its cgroups, enters the namespaces that its pod's containers
//! share, and forks. The copy is the container's first process; it waits until it is in its cgroups, makes the namespaces
//! of its own, its root and its terminal, and becomes the container's user. Then this one has done its work and ends, and
//! the shim is the other one's parent.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::fchown;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::thread::move_into_link_name_space;

use super::cgroups::Cgroups;
use super::child::{Child, Parent};
use super::program::Program;
use super::{FAULT, MADE, Report, SPEC, devices, during, favour_as, root, terminal};
use crate::oci::{NamespaceKind, Spec};
use crate::runtime::embedded::first as first_process;
use crate::runtime::embedded::shim::container::{CONSOLE, STDERR, STDOUT};
use crate::runtime::oci::cgroup;
use crate::sys;

/// What a container's first process reads, writes and says its errors to.
enum Streams {
    Files([OwnedFd; 3]),
    /// Where its terminal is handed over.
    Terminal(UnixStream),
}

/// `folder` is the container's that stays, `run` its pod's that a reboot empties; `released` says a byte when the container
/// may run, and ends when it is not to.
pub(super) fn create(
    folder: &Path,
    run: &Path,
    id: &str,
    owner: (u32, u32),
    report: &Report,
    released: File,
) -> Result<(), String> {
    let spec = load(folder)?;
    favour_as(&spec);
    let own = run.join(id);
    let program = Program::of(&spec, None)?;
    let streams = streams(&spec, &own, owner).map_err(during("opening its outputs"))?;
    let cgroups = Cgroups::make(&spec)?;
    let made = make(&spec, &cgroups, &own, streams, program, report, released);
    if made.is_err()
        && let Some(path) = cgroups.path()
    {
        // What still runs in it, if anything does, is the shim's to see.
        let _ = cgroup::remove(path);
    }
    made
}

fn make(
    spec: &Spec,
    cgroups: &Cgroups,
    own: &Path,
    streams: Streams,
    program: Program,
    report: &Report,
    released: File,
) -> Result<(), String> {
    enter_shared(spec)?;
    let mut child = Child::fork(|parent| first(spec, streams, program, parent, report, released))
        .map_err(during("making its process"))?;
    let set_up = (|| {
        first_process::write(own, child.pid, cgroups.path().unwrap_or_default())
            .map_err(during("writing down its process"))?;
        cgroups.add(child.pid)?;
        devices::limit(spec, cgroups).map_err(during(
            "limiting its devices (version 2 of cgroups takes CONFIG_CGROUP_BPF)",
        ))?;
        child.go_on();
        child.is_ready()
    })();
    if let Err(reason) = set_up {
        child.end();
        return Err(reason);
    }
    report.say(MADE, &child.pid.as_raw_nonzero().get().to_le_bytes());
    Ok(())
}

/// What the first process does.
fn first(
    spec: &Spec,
    streams: Streams,
    program: Program,
    parent: Parent,
    report: &Report,
    mut released: File,
) -> Result<(), String> {
    parent.wait()?;
    rustix::process::setsid().map_err(during("starting a session"))?;
    sys::unshare(namespaces(spec, false)).map_err(during("making namespaces of its own"))?;
    let root = root::Root::make(spec)?;
    let [input, output, errors] = match streams {
        Streams::Files(files) => files,
        Streams::Terminal(console) => {
            terminal::make(&root, &console, program.owner().0).map_err(during("making its terminal"))?
        }
    };
    root.enter(spec)?;
    rustix::stdio::dup2_stdin(&input).map_err(during("its input"))?;
    rustix::stdio::dup2_stdout(&output).map_err(during("its output"))?;
    rustix::stdio::dup2_stderr(&errors).map_err(during("its errors"))?;
    drop([input, output, errors]);
    program.prepare()?;
    parent.ready();
    let mut go = [0];
    if released.read_exact(&mut go).is_err() {
        // Whoever would let it run is gone.
        return Ok(());
    }
    // The shim hears of this itself: who made this process has ended.
    let fault = program.filter().err().unwrap_or_else(|| program.run());
    report.say(FAULT, fault.as_bytes());
    Ok(())
}

pub(in crate::runtime::embedded) fn load(folder: &Path) -> Result<Spec, String> {
    let path = folder.join(SPEC);
    let read = || -> io::Result<Spec> { Ok(serde_json::from_slice(&std::fs::read(&path)?)?) };
    read().map_err(during(&format!("reading {}", path.display())))
}

/// Enters the namespaces that have a name already; those of a process come about with the next one that is made.
fn enter_shared(spec: &Spec) -> Result<(), String> {
    for path in spec
        .linux
        .namespaces
        .iter()
        .filter_map(|namespace| namespace.path.as_deref())
    {
        let enter = || -> io::Result<()> {
            let file = File::open(path)?;
            Ok(move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), None)?)
        };
        enter().map_err(during(&format!("entering the pod's namespace {}", path.display())))?;
    }
    sys::unshare(namespaces(spec, true)).map_err(during("making a namespace for its processes"))
}

/// The namespaces to be made: that of process numbers, or all others.
fn namespaces(spec: &Spec, of_processes: bool) -> libc::c_int {
    let own = spec
        .linux
        .namespaces
        .iter()
        .filter(|namespace| namespace.path.is_none());
    own.filter(|namespace| (namespace.kind == NamespaceKind::Pid) == of_processes)
        .fold(0, |flags, namespace| flags | flag(namespace.kind))
}

fn flag(kind: NamespaceKind) -> libc::c_int {
    match kind {
        NamespaceKind::Mount => libc::CLONE_NEWNS,
        NamespaceKind::Cgroup => libc::CLONE_NEWCGROUP,
        NamespaceKind::Uts => libc::CLONE_NEWUTS,
        NamespaceKind::Ipc => libc::CLONE_NEWIPC,
        NamespaceKind::Pid => libc::CLONE_NEWPID,
        NamespaceKind::Network => libc::CLONE_NEWNET,
    }
}

fn streams(spec: &Spec, own: &Path, owner: (u32, u32)) -> io::Result<Streams> {
    if spec.process.terminal {
        // From where it is, which is the pod's run folder: a whole path may be longer than a socket's may.
        let name = Path::new(own.file_name().unwrap_or_default()).join(CONSOLE);
        return Ok(Streams::Terminal(UnixStream::connect(name)?));
    }
    Ok(Streams::Files([
        File::open("/dev/null")?.into(),
        output(&own.join(STDOUT), owner)?,
        output(&own.join(STDERR), owner)?,
    ]))
}

/// The writing end of a container's output. It can be read as well, so that nobody is told of a broken pipe while there is
/// no shim; and it is the container's own, so that what runs in it may open it by its name.
fn output(path: &Path, owner: (u32, u32)) -> io::Result<OwnedFd> {
    let file = File::options().read(true).write(true).open(path)?;
    fchown(&file, Some(owner.0), Some(owner.1))?;
    Ok(file.into())
}
