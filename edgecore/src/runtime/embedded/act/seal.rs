//! Keeps this program's file out of the hands of containers.
//!
//! What enters a container can be looked at from in there. A root in it could open the file of a process of ours, or have
//! one started by naming `/proc/self/exe` as the interpreter of a script that we are to run, and later write to that file,
//! which is the host's. So what enters runs from a file that nobody can write to, and cannot be looked at.

use std::ffi::{CString, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use super::WORD;
use crate::runtime::oci::inside;
use crate::sys;

/// The argument of one that does.
pub(super) const SEALED: &str = "sealed";

const OWN: &str = "/proc/self/exe";

/// Starts this process over, with these arguments, from a file that nobody can write to; returns what is in the way.
pub(super) fn start_over(args: &[OsString]) -> io::Error {
    let file = match sealed() {
        Ok(file) => file,
        Err(error) => return error,
    };
    let words = ["edgecore", WORD, SEALED].map(OsString::from);
    let words: Result<Vec<_>, _> = words
        .iter()
        .chain(args)
        .map(|word| CString::new(word.as_bytes()))
        .collect();
    match (words, CString::new(inside::name(&file).as_os_str().as_bytes())) {
        (Ok(words), Ok(path)) => sys::become_program(&path, &words, &[]),
        (Err(error), _) | (_, Err(error)) => error.into(),
    }
}

/// No other process of the same user may look into this one, up to its next program.
pub(super) fn hide() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// The same by the name of its file, if that still is the one that runs.
fn by_name() -> io::Result<Option<OwnedFd>> {
    let path = CString::new(std::fs::read_link(OWN)?.as_os_str().as_bytes())?;
    let named = sys::open_sealed(&path)?;
    let (running, found) = (rustix::fs::stat(OWN)?, rustix::fs::fstat(&named)?);
    let is_it = (running.st_dev, running.st_ino) == (found.st_dev, found.st_ino);
    Ok(is_it.then_some(named))
}

/// This program through a read-only mount of its own; before Linux 5.12 a copy in memory.
fn sealed() -> io::Result<OwnedFd> {
    match sys::open_sealed(c"/proc/self/exe") {
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {}
        // The mount it was started from is of another mount namespace: that of an edge core without root before it went
        // into its own. Here it has the same name, unless the file was replaced.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            if let Ok(Some(named)) = by_name() {
                return Ok(named);
            }
        }
        other => return other,
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let copy = File::from(memfd_create("edgecore", flags)?);
    io::copy(&mut File::open(OWN)?, &mut &copy)?;
    fcntl_add_seals(
        &copy,
        SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE,
    )?;
    Ok(copy.into())
}
