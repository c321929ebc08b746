//! `RuntimeDefault`: which system calls a container may make where a pod asks for the runtime's own profile. It is what
//! users of Docker and containerd know by that name, as data.
//!
//! Everything not named is denied with EPERM. Absent on purpose, as there: what reaches beyond the container (kernel
//! modules, clocks, mounts, other namespaces, swap, accounting), key rings (not namespaced), userfaultfd and io_uring
//! (their record), kexec. Some of it comes with the capability it is guarded by.

use super::compile::{ENOSYS, EPERM};
use super::table::Family;
use crate::oci::seccomp::{Action, Arch, Arg, Operator, Profile, Rule};
use crate::oci::{Capabilities, Capability};

/// For every container.
const ALLOWED: &str = "
    _llseek _newselect accept accept4 access adjtimex alarm bind brk cachestat capget capset chdir chmod chown chown32
    clock_adjtime clock_adjtime64 clock_getres clock_getres_time64 clock_gettime clock_gettime64 clock_nanosleep
    clock_nanosleep_time64 close close_range connect copy_file_range creat dup dup2 dup3 epoll_create epoll_create1
    epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd eventfd2 execve execveat exit
    exit_group faccessat faccessat2 fadvise64 fadvise64_64 fallocate fanotify_mark fchdir fchmod fchmodat fchmodat2
    fchown fchown32 fchownat fcntl fcntl64 fdatasync fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat
    fstat64 fstatat64 fstatfs fstatfs64 fsync ftruncate ftruncate64 futex futex_requeue futex_time64 futex_wait
    futex_waitv futex_wake futimesat get_robust_list get_thread_area getcpu getcwd getdents getdents64 getegid
    getegid32 geteuid geteuid32 getgid getgid32 getgroups getgroups32 getitimer getpeername getpgid getpgrp getpid
    getppid getpriority getrandom getresgid getresgid32 getresuid getresuid32 getrlimit getrusage getsid getsockname
    getsockopt gettid gettimeofday getuid getuid32 getxattr getxattrat inotify_add_watch inotify_init inotify_init1
    inotify_rm_watch io_cancel io_destroy io_getevents io_pgetevents io_pgetevents_time64 io_setup io_submit ioctl
    ioprio_get ioprio_set ipc kill landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown lchown32
    lgetxattr link linkat listen listmount listxattr listxattrat llistxattr lremovexattr lseek lsetxattr lstat lstat64
    madvise map_shadow_stack membarrier memfd_create memfd_secret mincore mkdir mkdirat mknod mknodat mlock mlock2
    mlockall mmap mmap2 mprotect mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedreceive_time64 mq_timedsend
    mq_timedsend_time64 mq_unlink mremap mseal msgctl msgget msgrcv msgsnd msync munlock munlockall munmap
    name_to_handle_at nanosleep newfstatat open openat openat2 pause pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc
    pkey_free pkey_mprotect poll ppoll ppoll_time64 prctl pread64 preadv preadv2 prlimit64 process_mrelease
    process_vm_readv process_vm_writev pselect6 pselect6_time64 ptrace pwrite64 pwritev pwritev2 read readahead
    readlink readlinkat readv recv recvfrom recvmmsg recvmmsg_time64 recvmsg remap_file_pages removexattr removexattrat
    rename renameat renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo
    rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_sigtimedwait_time64 rt_tgsigqueueinfo sched_get_priority_max
    sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval
    sched_rr_get_interval_time64 sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield seccomp
    select semctl semget semop semtimedop semtimedop_time64 send sendfile sendfile64 sendmmsg sendmsg sendto
    set_robust_list set_thread_area set_tid_address setfsgid setfsgid32 setfsuid setfsuid32 setgid setgid32 setgroups
    setgroups32 setitimer setpgid setpriority setregid setregid32 setresgid setresgid32 setresuid setresuid32 setreuid
    setreuid32 setrlimit setsid setsockopt setuid setuid32 setxattr setxattrat shmat shmctl shmdt shmget shutdown
    sigaltstack signalfd signalfd4 sigprocmask sigreturn socketcall socketpair splice stat stat64 statfs statfs64
    statmount statx symlink symlinkat sync sync_file_range syncfs sysinfo tee tgkill time timer_create timer_delete
    timer_getoverrun timer_gettime timer_gettime64 timer_settime timer_settime64 timerfd_create timerfd_gettime
    timerfd_gettime64 timerfd_settime timerfd_settime64 times tkill truncate truncate64 ugetrlimit umask uname unlink
    unlinkat uretprobe utime utimensat utimensat_time64 utimes vfork vmsplice wait4 waitid waitpid write writev
";

/// What only some machines have.
const ALLOWED_X86: &str = "arch_prctl modify_ldt";
const ALLOWED_ARM: &str = "arm_fadvise64_64 arm_sync_file_range breakpoint cacheflush set_tls";
const ALLOWED_RISCV: &str = "riscv_flush_icache riscv_hwprobe";

/// What a capability of the container brings.
const WITH_CAPABILITY: &[(Capability, &str)] = &[
    (Capability::Bpf, "bpf"),
    (Capability::DacReadSearch, "open_by_handle_at"),
    (Capability::Perfmon, "perf_event_open"),
    (
        Capability::SysAdmin,
        "bpf clone clone3 fanotify_init fsconfig fsmount fsopen fspick lookup_dcookie mount mount_setattr move_mount
        open_tree perf_event_open quotactl quotactl_fd setdomainname sethostname setns syslog umount umount2 unshare",
    ),
    (Capability::SysBoot, "reboot"),
    (Capability::SysChroot, "chroot"),
    (Capability::Syslog, "syslog"),
    (Capability::SysModule, "delete_module finit_module init_module"),
    (
        Capability::SysNice,
        "get_mempolicy mbind set_mempolicy set_mempolicy_home_node",
    ),
    (Capability::SysPacct, "acct"),
    (Capability::SysPtrace, "kcmp pidfd_getfd process_madvise"),
    (Capability::SysRawio, "ioperm iopl"),
    (Capability::SysTime, "clock_settime clock_settime64 settimeofday stime"),
    (Capability::SysTtyConfig, "vhangup"),
];

/// Linux, 32-bit Linux, each also with a 2.6 version for old programs, and asking which it is.
const PERSONALITIES: [u64; 5] = [0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// `CLONE_NEWNS`, `NEWCGROUP`, `NEWUTS`, `NEWIPC`, `NEWUSER`, `NEWPID`, `NEWNET`.
const CLONE_NAMESPACES: u64 = 0x7e02_0000;

/// Virtual sockets are in no namespace: they lead to the hypervisor and to other containers' listeners.
const AF_VSOCK: u64 = 40;
/// The families of sockets that there are have numbers of so many bits.
const FAMILY_BITS: u32 = 6;

/// The profile for a container with these capabilities.
pub(super) fn runtime_default(capabilities: &Capabilities, family: Option<Family>) -> Profile {
    let (archs, own) = match family {
        Some(Family::X86) => (vec![Arch::X86_64, Arch::X86], ALLOWED_X86),
        Some(Family::Arm) => (vec![Arch::Aarch64, Arch::Arm], ALLOWED_ARM),
        Some(Family::Riscv) => (vec![Arch::Riscv64], ALLOWED_RISCV),
        None => (Vec::new(), ""),
    };
    let mut rules = vec![allow(ALLOWED, &[]), allow(own, &[])];
    rules.extend(PERSONALITIES.map(|value| allow("personality", &[arg(Operator::Eq, value, None)])));
    rules.extend((0..FAMILY_BITS).map(no_vsock));
    for (_, calls) in WITH_CAPABILITY.iter().filter(|(held, _)| capabilities.contains(held)) {
        rules.push(allow(calls, &[]));
    }
    if !capabilities.contains(&Capability::SysAdmin) {
        let no_namespaces = arg(Operator::MaskedEq, CLONE_NAMESPACES, Some(0));
        rules.push(allow("clone", &[no_namespaces]));
        // Its flags are in memory, where no filter sees them: C libraries then take `clone`.
        rules.push(rule("clone3", Action::Errno, Some(ENOSYS), &[]));
    }
    Profile {
        default_action: Action::Errno,
        default_errno_ret: Some(EPERM),
        architectures: archs,
        flags: Vec::new(),
        syscalls: rules,
    }
}

/// Lets `socket` through where the family differs from [`AF_VSOCK`] in this bit. The kernel takes the lower 32 bits of
/// the argument only, so a plain "not equal" of all 64 would let one through that has a higher bit set as well.
fn no_vsock(bit: u32) -> Rule {
    let mask = 1 << bit;
    allow("socket", &[arg(Operator::MaskedEq, mask, Some(!AF_VSOCK & mask))])
}

fn arg(operator: Operator, value: u64, value_two: Option<u64>) -> Arg {
    Arg { index: 0, value, value_two, op: operator }
}

fn allow(names: &str, args: &[Arg]) -> Rule {
    rule(names, Action::Allow, None, args)
}

fn rule(names: &str, action: Action, errno: Option<u32>, args: &[Arg]) -> Rule {
    Rule {
        names: names.split_whitespace().map(str::to_owned).collect(),
        action,
        errno_ret: errno,
        args: args.to_vec(),
    }
}

/// Every name that the profile may ever speak of.
#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    let with_capability = WITH_CAPABILITY.iter().map(|(_, calls)| *calls);
    let all = [
        ALLOWED,
        ALLOWED_X86,
        ALLOWED_ARM,
        ALLOWED_RISCV,
        "personality socket clone clone3",
    ];
    all.into_iter().chain(with_capability).flat_map(str::split_whitespace)
}
