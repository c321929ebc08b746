//! The few system calls that the standard library does not have, each behind a safe function.
//!
//! All `unsafe` of the edge core is here.
#![expect(unsafe_code, reason = "system calls without a safe wrapper in std")]

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use tokio::io::unix::AsyncFd;

/// Takes over a descriptor this process was started with.
///
/// Fails when it is not open. The caller must be the only one to ask for it.
pub(crate) fn inherited(fd: RawFd) -> io::Result<File> {
    // SAFETY: F_GETFD only asks whether the descriptor is open.
    check(unsafe { libc::fcntl(fd, libc::F_GETFD) })?;
    // SAFETY: it is open, and nothing else in this process knows of it.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Unmaps the pages of a mapping of a file to which nothing was ever written: the next use maps them again.
pub(crate) fn forget_clean_pages(at: Range<usize>) -> io::Result<()> {
    // SAFETY: the pages of a private mapping that were never written to are the file's, before and afterwards; no byte
    // that anybody reads changes.
    check(unsafe { libc::madvise(at.start as *mut libc::c_void, at.len(), libc::MADV_DONTNEED) })?;
    Ok(())
}

/// A descriptor that tasks can wait for.
pub(crate) fn register(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: what is registered owns the descriptor and keeps it open, and an `OwnedFd` always has the same one.
    Ok(unsafe { AsyncFd::register(fd) }?)
}

/// Waits until at least one of the descriptors can be read or was hung up; says which.
pub(crate) fn readable<const N: usize>(fds: [Option<BorrowedFd<'_>>; N]) -> io::Result<[bool; N]> {
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
pub(crate) fn ignore_stop_signals() {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGPIPE] {
        // SAFETY: SIG_IGN installs no handler.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

pub(crate) fn make_fifo(path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: `path` is a C string that outlives the call.
    check(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }).map(drop)
}

pub(crate) fn mount(source: &Path, target: &Path, kind: &str, flags: libc::c_ulong, data: &str) -> io::Result<()> {
    let (source, target) = (c_path(source)?, c_path(target)?);
    let (kind, data) = (CString::new(kind)?, CString::new(data)?);
    // SAFETY: four C strings that outlive the call.
    check(unsafe {
        libc::mount(
            source.as_ptr(),
            target.as_ptr(),
            kind.as_ptr(),
            flags,
            data.as_ptr().cast(),
        )
    })
    .map(drop)
}

/// Unmounts now for new users, and for good once nobody uses it.
pub(crate) fn unmount(target: &Path) -> io::Result<()> {
    let target = c_path(target)?;
    // SAFETY: `target` is a C string that outlives the call.
    check(unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW) }).map(drop)
}

/// Puts the calling thread, and only it, into new namespaces.
pub(crate) fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: changes nothing in memory.
    check(unsafe { libc::unshare(flags) }).map(drop)
}

/// Sets the host name of the calling thread's UTS namespace.
pub(crate) fn set_hostname(name: &str) -> io::Result<()> {
    // SAFETY: pointer and length are those of `name`.
    check(unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) }).map(drop)
}

/// Brings the loopback device of the calling thread's network namespace up.
pub(crate) fn loopback_up() -> io::Result<()> {
    const SIOCGIFFLAGS: libc::Ioctl = 0x8913;
    const SIOCSIFFLAGS: libc::Ioctl = 0x8914;
    /// `struct ifreq` as these two calls use it.
    #[repr(C)]
    struct Request {
        name: [u8; libc::IFNAMSIZ],
        flags: libc::c_short,
        rest: [u8; 22],
    }
    // SAFETY: makes a descriptor.
    let fd = check(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: it was made above and is known to nobody else.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut request = Request { name: [0; libc::IFNAMSIZ], flags: 0, rest: [0; 22] };
    request.name[..2].copy_from_slice(b"lo");
    // SAFETY: `request` has the layout and at least the size the kernel reads and writes.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGIFFLAGS, &raw mut request) })?;
    request.flags |= libc::c_short::try_from(libc::IFF_UP).expect("1");
    // SAFETY: as above.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCSIFFLAGS, &raw mut request) }).map(drop)
}

/// Opens a file below `root` for reading, resolving every link as if `root` were the root of everything: what a
/// container image says can never name a file of the host.
pub(crate) fn open_below(root: &File, path: &CStr) -> io::Result<File> {
    const RESOLVE_IN_ROOT: u64 = 0x10;
    const RESOLVE_NO_MAGICLINKS: u64 = 0x02;
    /// `struct open_how`.
    #[repr(C)]
    struct How {
        flags: u64,
        mode: u64,
        resolve: u64,
    }
    let how = How {
        flags: u64::try_from(libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK).expect("flags are positive"),
        mode: 0,
        resolve: RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS,
    };
    // SAFETY: `path` and `how` outlive the call, and the size is that of `how`.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_openat2,
            root.as_raw_fd(),
            path.as_ptr(),
            &raw const how,
            size_of::<How>(),
        )
    };
    let fd = RawFd::try_from(fd)
        .ok()
        .filter(|fd| *fd >= 0)
        .ok_or_else(io::Error::last_os_error)?;
    // SAFETY: it was made above and is known to nobody else.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
