//! The few system calls the runtimes need and the standard library does not have, each behind a safe function.
//!
//! All `unsafe` of the runtimes is here.
#![expect(unsafe_code, reason = "system calls without a safe wrapper in std")]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

/// Takes over a descriptor this process was started with.
///
/// Fails when it is not open. The caller must be the only one to ask for it.
pub(super) fn inherited(fd: RawFd) -> io::Result<File> {
    // SAFETY: F_GETFD only asks whether the descriptor is open.
    check(unsafe { libc::fcntl(fd, libc::F_GETFD) })?;
    // SAFETY: it is open, and nothing else in this process knows of it.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Waits until at least one of the descriptors can be read or was hung up; says which.
pub(super) fn readable<const N: usize>(fds: [Option<BorrowedFd<'_>>; N]) -> io::Result<[bool; N]> {
    // A negative descriptor is skipped by poll.
    let mut polled = fds.map(|fd| libc::pollfd {
        fd: fd.map_or(-1, |fd| fd.as_raw_fd()),
        events: libc::POLLIN,
        revents: 0,
    });
    let count = libc::nfds_t::try_from(N).expect("a handful");
    // SAFETY: `polled` holds `count` entries and outlives the call.
    match check(unsafe { libc::poll(polled.as_mut_ptr(), count, -1) }) {
        Ok(_) => Ok(polled.map(|entry| entry.revents != 0)),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok([false; N]),
        Err(error) => Err(error),
    }
}

/// From now on SIGTERM, SIGINT and SIGPIPE do nothing to this process.
pub(super) fn ignore_stop_signals() {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGPIPE] {
        // SAFETY: SIG_IGN installs no handler.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
