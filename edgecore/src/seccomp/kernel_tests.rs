//! What the kernel makes of our programs: threads of this process load one and make system calls. They need no root (a
//! thread may give up new privileges), and run on every architecture and kernel this crate's tests are taken to.

use std::process::Command;
use std::thread;

use super::table::Arch;
use super::{Filter, is_supported, runtime_default};
use crate::oci::Capabilities;
use crate::oci::seccomp::{Action, Profile, Rule};
use crate::sys::raw_call;

const AF_VSOCK: usize = 40;
const CLONE_FS: usize = 0x200;
const CLONE_NEWNS: usize = 0x2_0000;

/// Runs something in a thread of its own, under a filter or without.
fn thread_under<T: Send + 'static>(filter: Option<Filter>, act: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = thread::spawn(move || {
        if let Some(filter) = filter {
            rustix::thread::set_no_new_privs(true).unwrap();
            filter.load().unwrap();
        }
        act()
    });
    thread.join().unwrap()
}

fn default_filter() -> Filter {
    Filter::compile(&runtime_default(&Capabilities::new())).unwrap()
}

#[test]
fn denied_calls_are_denied() {
    assert!(is_supported());
    let denied: [(&str, &[usize]); 11] = [
        // Each would be something else without a filter, and do no harm.
        ("unshare", &[0]),
        ("keyctl", &[9999]),
        ("bpf", &[9999]),
        ("swapon", &[0]),
        ("reboot", &[0, 0]),
        ("umount2", &[0, 0]),
        ("setns", &[usize::MAX, 0]),
        ("userfaultfd", &[usize::MAX]),
        ("io_uring_setup", &[0, 0]),
        ("clone", &[CLONE_NEWNS | CLONE_FS]),
        ("socket", &[AF_VSOCK, 9999]),
    ];
    for (name, args) in denied {
        let number = Arch::here().number(name);
        assert_eq!(
            thread_under(Some(default_filter()), move || raw_call(number, args)),
            Err(libc::EPERM),
            "{name}"
        );
        let root = rustix::process::geteuid().is_root();
        assert!(
            !root || thread_under(None, move || raw_call(number, args)) != Err(libc::EPERM),
            "{name} is denied without a filter, too: it shows nothing"
        );
    }
    // Too old for the kernel, so that C libraries take what they took before.
    for number in [Arch::here().number("clone3"), 9999] {
        assert_eq!(
            thread_under(Some(default_filter()), move || raw_call(number, &[])),
            Err(libc::ENOSYS)
        );
    }
}

#[test]
fn allowed_calls_are_made() {
    let (pid, own) = thread_under(Some(default_filter()), || {
        let pid = raw_call(Arch::here().number("getpid"), &[]).unwrap();
        let personality = raw_call(Arch::here().number("personality"), &[0xffff_ffff]).unwrap();
        assert_eq!(personality & 0xff, 0, "Linux");
        let other = raw_call(Arch::here().number("personality"), &[1]);
        assert_eq!(other, Err(libc::EPERM));
        let socket = std::net::UdpSocket::bind("127.0.0.1:0");
        assert!(socket.is_ok(), "{socket:?}");
        let other = thread::spawn(|| raw_call(Arch::here().number("unshare"), &[0]));
        assert_eq!(
            other.join().unwrap(),
            Err(libc::EPERM),
            "what it starts is under it as well"
        );
        // A program: loader, C library, allocator, threads.
        let own = Command::new(std::env::current_exe().unwrap())
            .arg("--list")
            .output()
            .unwrap();
        (pid, own)
    });
    assert_eq!(usize::try_from(std::process::id()).unwrap(), pid);
    assert!(own.status.success(), "{own:?}");
    assert!(String::from_utf8_lossy(&own.stdout).contains("allowed_calls_are_made"));
}

/// A filter holds whatever it denies, also what a thread needs to end well: so this one denies little.
#[test]
fn a_profile_of_ones_own_is_compiled_for_this_kernel() {
    let profile = Profile {
        default_action: Action::Allow,
        default_errno_ret: None,
        architectures: Vec::new(),
        flags: Vec::new(),
        syscalls: vec![Rule {
            names: vec!["getppid".to_owned(), "of_no_kernel".to_owned()],
            action: Action::Errno,
            errno_ret: Some(77),
            args: Vec::new(),
        }],
    };
    let filter = Filter::compile(&profile).unwrap();
    let found = thread_under(Some(filter), || raw_call(Arch::here().number("getppid"), &[]));
    assert_eq!(found, Err(77));
}

/// The kernel's other way in on x86_64, as programs for 32 bits use it.
#[cfg(target_arch = "x86_64")]
#[test]
fn calls_the_32_bit_way_have_the_32_bit_numbers() {
    use crate::sys::raw_call_x86;

    let number = |name| Arch::X86.number(name);
    let unfiltered = thread_under(None, move || raw_call_x86(number("unshare"), 0));
    if unfiltered == Err(libc::ENOSYS) {
        panic!("this kernel runs no programs for 32 bits (CONFIG_IA32_EMULATION): run this test on one that does");
    }
    thread_under(Some(default_filter()), move || {
        assert!(raw_call_x86(number("getpid"), 0).is_ok());
        assert_eq!(raw_call_x86(number("unshare"), 0), Err(libc::EPERM));
        assert_eq!(raw_call_x86(number("clone3"), 0), Err(libc::ENOSYS));
        assert_eq!(raw_call_x86(number("socket"), 40), Err(libc::EPERM));
        assert_eq!(raw_call_x86(9999, 0), Err(libc::ENOSYS));
        // By its x32 number.
        assert_eq!(
            raw_call(0x4000_0000 | Arch::X86_64.number("getpid"), &[]),
            Err(libc::ENOSYS)
        );
    });
}

#[test]
fn without_privileges_a_filter_is_not_loaded() {
    // Root may; a thread with no capabilities may not.
    let refused = thread::spawn(|| {
        let none = rustix::thread::CapabilitySet::empty();
        let sets = rustix::thread::CapabilitySets { effective: none, permitted: none, inheritable: none };
        rustix::thread::set_capabilities(None, sets).unwrap();
        default_filter().load().unwrap_err()
    });
    let error = refused.join().unwrap();
    assert!(
        crate::runtime::explain(&error).starts_with("loading the seccomp filter: Permission denied"),
        "{error:?}"
    );
}
