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

use rustix::process::Signal;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::seccomp::Instruction;

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

/// A descriptor that tasks can wait for, for what they are interested in.
pub(crate) fn register(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: what is registered owns the descriptor and keeps it open, and an `OwnedFd` always has the same one.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest) }?)
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

/// From now on processes in the cgroup (of version 2) may use the devices that `program`, in the kernel's own code, allows.
pub(crate) fn limit_devices(cgroup: &File, program: &[u64]) -> io::Result<()> {
    const PROG_LOAD: libc::c_int = 5;
    const PROG_ATTACH: libc::c_int = 8;
    const PROG_TYPE_CGROUP_DEVICE: u32 = 15;
    const CGROUP_DEVICE: u32 = 6;
    const ALLOW_MULTI: u32 = 2;
    /// The first fields of `union bpf_attr`; the kernel takes the rest as zero.
    #[repr(C)]
    struct Load {
        kind: u32,
        count: u32,
        code: u64,
        license: u64,
    }
    #[repr(C)]
    struct Attach {
        cgroup: u32,
        program: u32,
        kind: u32,
        flags: u32,
    }
    let descriptor = |fd: RawFd| u32::try_from(fd).map_err(io::Error::other);
    let load = Load {
        kind: PROG_TYPE_CGROUP_DEVICE,
        count: u32::try_from(program.len()).map_err(io::Error::other)?,
        code: u64::try_from(program.as_ptr().addr()).map_err(io::Error::other)?,
        license: u64::try_from(c"".as_ptr().addr()).map_err(io::Error::other)?,
    };
    // SAFETY: `load`, the code and the text it points to outlive the call; the size is that of `load`.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, PROG_LOAD, &raw const load, size_of::<Load>()) };
    let fd = RawFd::try_from(fd)
        .ok()
        .filter(|fd| *fd >= 0)
        .ok_or_else(io::Error::last_os_error)?;
    // SAFETY: it was made above and is known to nobody else.
    let loaded = unsafe { OwnedFd::from_raw_fd(fd) };
    let attach = Attach {
        cgroup: descriptor(cgroup.as_raw_fd())?,
        program: descriptor(loaded.as_raw_fd())?,
        kind: CGROUP_DEVICE,
        flags: ALLOW_MULTI,
    };
    // SAFETY: `attach` outlives the call; the size is that of `attach`.
    let attached = unsafe { libc::syscall(libc::SYS_bpf, PROG_ATTACH, &raw const attach, size_of::<Attach>()) };
    if attached == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Real-time ones included.
const SIGNAL_MAX: libc::c_int = 64;

/// Becomes another program with this environment; returns only what is in the way. `args` has the program's own name first.
pub(crate) fn become_program(path: &CStr, args: &[CString], env: &[CString]) -> io::Error {
    let list = |strings: &[CString]| -> Vec<_> {
        let strings = strings.iter().map(|string| string.as_ptr());
        strings.chain([std::ptr::null()]).collect()
    };
    let (args, env) = (list(args), list(env));
    // SAFETY: the path and two lists of C strings that end with null, all of which outlive the call; SIG_DFL installs no
    // handler, and is an error for what is no signal. The standard library ignores SIGPIPE, and whoever started this may
    // have ignored others; a program expects that none is.
    unsafe {
        for signal in 1..=SIGNAL_MAX {
            libc::signal(signal, libc::SIG_DFL);
        }
        libc::execve(path.as_ptr(), args.as_ptr(), env.as_ptr());
    }
    io::Error::last_os_error()
}

/// Fails where there is a second thread.
pub(crate) fn only_thread() -> io::Result<()> {
    if std::fs::read_dir("/proc/self/task")?.count() == 1 {
        Ok(())
    } else {
        Err(io::Error::other("there is more than one thread"))
    }
}

/// Makes a copy of this process, in which `work` runs and says with which code it ends; the copy's number. There must be
/// [`only_thread`]: the copy would not have another one, nor what that holds.
pub(crate) fn fork(work: impl FnOnce() -> u8) -> io::Result<rustix::process::Pid> {
    const PANICKED: u8 = 101;
    // SAFETY: with one thread the copy is whole, and it never returns to what called this.
    match check(unsafe { libc::fork() })? {
        0 => {
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(PANICKED);
            // SAFETY: ends the copy, without what the original has to do at its own end.
            unsafe { libc::_exit(code.into()) }
        }
        pid => rustix::process::Pid::from_raw(pid).ok_or_else(|| io::Error::other("the kernel gave no number")),
    }
}

/// Whatever this process was started with besides the standard streams is closed when it becomes another program.
pub(crate) fn keep_descriptors() -> io::Result<()> {
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let number = entry?.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok());
        if let Some(number) = number.filter(|number| *number > libc::STDERR_FILENO) {
            // SAFETY: only changes what happens to a descriptor at the next program; fails for one that is not open.
            unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
    Ok(())
}

/// Opens a file where it cannot be written to by anybody who gets hold of the descriptor: through a mount of its own that is
/// nowhere to be seen. Takes Linux 5.12.
pub(crate) fn open_sealed(path: &CStr) -> io::Result<OwnedFd> {
    // The same number everywhere, as all system calls since 5.1; not every libc crate has them.
    const SYS_OPEN_TREE: libc::c_long = 428;
    const SYS_MOUNT_SETATTR: libc::c_long = 442;
    const OPEN_TREE_CLONE: libc::c_int = 1;
    const MOUNT_ATTR_RDONLY: u64 = 1;
    /// `struct mount_attr`.
    #[repr(C)]
    struct Attributes {
        set: u64,
        clear: u64,
        propagation: u64,
        user_namespace: u64,
    }
    let flags = OPEN_TREE_CLONE | libc::O_CLOEXEC;
    // SAFETY: `path` outlives the call.
    let fd = unsafe { libc::syscall(SYS_OPEN_TREE, libc::AT_FDCWD, path.as_ptr(), flags) };
    let fd = check(RawFd::try_from(fd).map_err(io::Error::other)?)?;
    // SAFETY: it was made above and is known to nobody else.
    let tree = unsafe { OwnedFd::from_raw_fd(fd) };
    let attributes = Attributes {
        set: MOUNT_ATTR_RDONLY,
        clear: 0,
        propagation: 0,
        user_namespace: 0,
    };
    // SAFETY: the path is empty, so the tree itself is meant; `attributes` outlives the call, and the size is its own.
    let set = unsafe {
        libc::syscall(
            SYS_MOUNT_SETATTR,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<Attributes>(),
        )
    };
    check(RawFd::try_from(set).map_err(io::Error::other)?)?;
    Ok(tree)
}

/// Lets every signal happen again: what a process keeps from happening is kept from what it starts as well.
pub(crate) fn no_signal_waits() -> io::Result<()> {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` makes `set` a valid set, and it outlives both calls.
    check(unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut())
    })
    .map(drop)
}

/// Keeps the signals that would end this process, and the one that says that a child ended, from happening: they are read
/// from what is returned. What this process starts must call [`no_signal_waits`].
pub(crate) fn signals() -> io::Result<OwnedFd> {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` makes `set` a valid set, the others only add to it, and it outlives all calls.
    let fd = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        check(libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()))?;
        check(libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))?
    };
    // SAFETY: it was made above and is known to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A signal by its number, but those two that C libraries keep for themselves.
pub(crate) fn signal(number: u32) -> Option<Signal> {
    const REAL_TIME: std::ops::RangeInclusive<i32> = 34..=64;
    let number = i32::try_from(number).ok()?;
    Signal::from_named_raw(number).or_else(|| {
        // SAFETY: the kernel knows it, and no C library keeps it for itself.
        REAL_TIME
            .contains(&number)
            .then(|| unsafe { Signal::from_raw_unchecked(number) })
    })
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

/// Gives the calling thread, and what it starts, an empty session keyring: keys of whoever started it are out of reach.
pub(crate) fn own_keyring() -> io::Result<()> {
    const JOIN_SESSION_KEYRING: libc::c_long = 1;
    let unnamed = std::ptr::null::<libc::c_char>();
    // SAFETY: without a name the kernel reads nothing.
    let joined = unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, unnamed) };
    if joined < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Whether the kernel takes programs that say which system calls may be made.
pub(crate) fn takes_filters() -> bool {
    const SECCOMP_GET_ACTION_AVAIL: libc::c_uint = 2;
    let action: u32 = libc::SECCOMP_RET_ERRNO;
    // SAFETY: the kernel reads four bytes at `action`, which outlives the call.
    let known = unsafe { libc::syscall(libc::SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) };
    known == 0
}

/// The calling thread, and what it starts, can from now on make those system calls only that `program` allows.
pub(crate) fn load_filter(program: &[Instruction], flags: u32) -> io::Result<()> {
    let length = program.len().try_into();
    let program = libc::sock_fprog {
        len: length.map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?,
        // Read only. `Instruction` is laid out as `struct sock_filter`.
        filter: program.as_ptr().cast_mut().cast(),
    };
    // SAFETY: `program` points to `len` instructions that outlive the call, which copies them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const program,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
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

/// Any system call with numbers only, for tests of what may be made; an error is its number.
#[cfg(test)]
pub(crate) fn raw_call(number: u32, args: &[usize]) -> Result<usize, i32> {
    let arg = |at: usize| args.get(at).copied().unwrap_or_default();
    let number = libc::c_long::from(i32::try_from(number).expect("numbers are small"));
    // SAFETY: no argument is an address, so the kernel reads and writes no memory of ours.
    let result = unsafe { libc::syscall(number, arg(0), arg(1), arg(2), arg(3), arg(4), arg(5)) };
    usize::try_from(result).map_err(|_| io::Error::last_os_error().raw_os_error().unwrap_or_default())
}

/// A system call as programs for 32 bits make it.
#[cfg(all(test, target_arch = "x86_64"))]
pub(crate) fn raw_call_x86(number: u32, first: u32) -> Result<u32, i32> {
    let mut result = i64::from(number);
    // SAFETY: no argument is an address. The compiler keeps rbx for itself, so it is put back.
    unsafe {
        std::arch::asm!(
            "xchg {first}, rbx",
            "int 0x80",
            "xchg {first}, rbx",
            first = inout(reg) u64::from(first) => _,
            inout("rax") result,
            in("rcx") 0, in("rdx") 0, in("rsi") 0, in("rdi") 0,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    let low = i32::try_from(result & 0xffff_ffff).or_else(|_| i32::try_from((result & 0xffff_ffff) - (1 << 32)));
    let result = low.expect("32 bits");
    u32::try_from(result).map_err(|_| -result)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This thread's session keyring; `None` where the kernel has none.
    fn keyring() -> Option<usize> {
        const GET_KEYRING_ID: usize = 0;
        const SESSION: usize = (-3_isize).cast_unsigned();
        let number = u32::try_from(libc::SYS_keyctl).unwrap();
        raw_call(number, &[GET_KEYRING_ID, SESSION, 0]).ok()
    }

    #[test]
    fn keys_of_who_started_it_are_left_behind() {
        let before = keyring();
        let own = || own_keyring().ok().and_then(|()| keyring());
        let (first, second) = std::thread::spawn(move || (own(), own())).join().unwrap();
        // Under an emulator there are none.
        if before.is_some() {
            assert!(first.is_some() && second.is_some());
            assert!(first != before && second != before && first != second);
        }
    }
}
