//! What programs answer, on every architecture, in a machine for BPF of our own; `kernel_tests` asks the kernel.

use std::collections::BTreeSet;

use super::SeccompError;
use super::bpf::{INSTRUCTIONS_MAX, Instruction};
use super::compile::{ALLOW, ENOSYS, EPERM, ERRNO, Endian, KILL_PROCESS, KILL_THREAD, LOG, TRACE, TRAP, compile};
use super::machine::{Call, run, verify};
use super::profile;
use super::table::{Arch, Family};
use crate::oci::seccomp::{Action, Arch as SpecArch, Arg, Operator, Profile, Rule};
use crate::oci::{Capabilities, Capability};

const FAMILIES: [Family; 3] = [Family::X86, Family::Arm, Family::Riscv];
const DENIED: u32 = ERRNO | EPERM;
const NOT_THERE: u32 = ERRNO | ENOSYS;

const CLONE_NEWUSER: u64 = 0x1000_0000;
const SIGCHLD: u64 = 17;
const AF_INET: u64 = 2;
const AF_VSOCK: u64 = 40;

fn made(profile: &Profile, family: Family) -> Vec<Instruction> {
    let program = compile(profile, family, Endian::Little).unwrap();
    verify(&program);
    program
}

fn answer(program: &[Instruction], call: Call) -> u32 {
    run(program, call, Endian::Little).0
}

fn profile(default: Action, rules: Vec<Rule>) -> Profile {
    Profile {
        default_action: default,
        default_errno_ret: None,
        architectures: Vec::new(),
        flags: Vec::new(),
        syscalls: rules,
    }
}

fn rule(name: &str, action: Action, args: &[Arg]) -> Rule {
    Rule {
        names: vec![name.to_owned()],
        action,
        errno_ret: None,
        args: args.to_vec(),
    }
}

fn arg(index: usize, op: Operator, value: u64, value_two: u64) -> Arg {
    Arg { index, value, value_two: Some(value_two), op }
}

#[test]
fn the_table_is_that_of_this_machine() {
    let here = Arch::here();
    for (name, number) in [
        ("read", libc::SYS_read),
        ("openat", libc::SYS_openat),
        ("clone", libc::SYS_clone),
        ("execve", libc::SYS_execve),
        ("socket", libc::SYS_socket),
        ("unshare", libc::SYS_unshare),
        ("prctl", libc::SYS_prctl),
        ("capset", libc::SYS_capset),
        ("bpf", libc::SYS_bpf),
        ("seccomp", libc::SYS_seccomp),
        ("clone3", libc::SYS_clone3),
        ("faccessat2", libc::SYS_faccessat2),
        ("futex_waitv", libc::SYS_futex_waitv),
    ] {
        assert_eq!(usize::try_from(here.number(name)), usize::try_from(number), "{name}");
    }
}

#[test]
fn every_call_has_one_name_and_every_name_of_the_profile_a_call() {
    let mut known = BTreeSet::new();
    for arch in FAMILIES.iter().flat_map(|family| family.archs()) {
        known.extend(arch.calls().map(|(name, _)| name));
        let numbers: BTreeSet<_> = arch.calls().map(|(_, number)| number).collect();
        assert_eq!(numbers.len(), arch.calls().count(), "{arch:?}");
        assert!(numbers.len() > 300, "{arch:?}: {}", numbers.len());
    }
    let mut seen = BTreeSet::new();
    for name in profile::names() {
        assert!(known.contains(name), "{name}");
        seen.insert(name);
    }
    assert!(seen.len() > 350, "{}", seen.len());
}

/// A call's answer as the profile's text says it: slowly, one rule after the other.
fn slowly(profile: &Profile, name: &str, args: [u64; 6]) -> u32 {
    let value = |action, errno: Option<u32>| match action {
        Action::Allow => ALLOW,
        Action::Errno => ERRNO | errno.unwrap_or(EPERM),
        other => panic!("the default profile has no {other:?}"),
    };
    let holds = |arg: &Arg| {
        let (given, wanted) = (args[arg.index], arg.value);
        match arg.op {
            Operator::Eq => given == wanted,
            Operator::MaskedEq => given & wanted == arg.value_two.unwrap(),
            other => panic!("the default profile has no {other:?}"),
        }
    };
    let rules: Vec<_> = profile
        .syscalls
        .iter()
        .filter(|rule| rule.names.iter().any(|known| known == name))
        .collect();
    let always = rules.iter().find(|rule| rule.args.is_empty());
    let some = rules.iter().find(|rule| rule.args.iter().all(holds));
    match always.or(some) {
        Some(rule) => value(rule.action, rule.errno_ret),
        None => value(profile.default_action, profile.default_errno_ret),
    }
}

#[test]
fn the_program_says_what_the_profile_says_of_every_call() {
    let everything: Capabilities = [Capability::SysAdmin, Capability::SysTime, Capability::SysPtrace].into();
    for capabilities in [Capabilities::new(), everything] {
        for family in FAMILIES {
            let profile = profile::runtime_default(&capabilities, Some(family));
            for endian in [Endian::Little, Endian::Big] {
                let program = compile(&profile, family, endian).unwrap();
                verify(&program);
                assert!(program.len() < 400, "{family:?}: {}", program.len());
                for arch in family.archs() {
                    every_call(&profile, &program, *arch, endian);
                }
            }
        }
    }
}

fn every_call(profile: &Profile, program: &[Instruction], arch: Arch, endian: Endian) {
    let calls: Vec<(&str, u32)> = arch.calls().collect();
    let last = calls.iter().map(|(_, number)| *number).max().unwrap();
    for first in [
        0,
        2,
        0x8,
        AF_VSOCK,
        AF_VSOCK | 1 << 32,
        0x2_0000,
        CLONE_NEWUSER | SIGCHLD,
        0xffff_ffff,
        u64::MAX,
    ] {
        let args = [first, 0, 0, 0, 0, 0];
        for number in 0..=last.min(0xf_0010) + 2 {
            if number > 1000 && number < 0xe_fff0 {
                continue;
            }
            let known = calls.iter().find(|(_, known)| *known == number);
            let expected = known.map_or(NOT_THERE, |(name, _)| slowly(profile, name, args));
            let call = Call { arch: arch.audit(), number, args };
            let (found, steps) = run(program, call, endian);
            assert_eq!(found, expected, "{arch:?} {number} {known:x?} {first:#x}");
            assert!(steps < 50, "{steps} instructions for {number} are slow");
        }
    }
}

#[test]
fn what_runtime_default_allows_and_denies() {
    let none = Capabilities::new();
    let check = |capabilities: &Capabilities, name: &str, args: &[u64], expected: u32| {
        for family in FAMILIES {
            let program = made(&profile::runtime_default(capabilities, Some(family)), family);
            for arch in family.archs() {
                let Some((_, number)) = arch.calls().find(|(known, _)| *known == name) else {
                    continue;
                };
                let found = answer(&program, Call::new(*arch, number, args));
                assert_eq!(found, expected, "{name} {args:x?} on {arch:?} with {capabilities:?}");
            }
        }
    };
    for name in [
        "read",
        "openat",
        "execve",
        "futex",
        "time",
        "select",
        "arch_prctl",
        "set_tls",
        "cacheflush",
    ] {
        check(&none, name, &[], ALLOW);
    }
    for name in [
        "mount",
        "umount2",
        "setns",
        "unshare",
        "bpf",
        "reboot",
        "init_module",
        "keyctl",
        "add_key",
        "request_key",
        "kexec_load",
        "swapon",
        "pivot_root",
        "open_by_handle_at",
        "perf_event_open",
        "userfaultfd",
        "io_uring_setup",
        "settimeofday",
        "clock_settime",
        "clock_settime64",
        "acct",
        "syslog",
        "quotactl",
        "iopl",
        "vhangup",
        "chroot",
        "kcmp",
        "mbind",
        "nfsservctl",
        "lookup_dcookie",
        "fanotify_init",
        "move_pages",
        "get_tls",
        "usr26",
    ] {
        check(&none, name, &[], DENIED);
    }
    // Arguments.
    for (personality, expected) in [
        (0, ALLOW),
        (8, ALLOW),
        (0x2_0000, ALLOW),
        (0x2_0008, ALLOW),
        (0xffff_ffff, ALLOW),
    ] {
        check(&none, "personality", &[personality], expected);
    }
    for personality in [1, 0x4_0000, 0x1_0000_0008, 0x40_0000, u64::MAX] {
        check(&none, "personality", &[personality], DENIED);
    }
    for (flags, expected) in [
        (SIGCHLD, ALLOW),
        (0x3d_0f00, ALLOW),
        (CLONE_NEWUSER | SIGCHLD, DENIED),
        (0x2_0000, DENIED),
        (0x0200_0000, DENIED),
        (0x4000_0000, DENIED),
        (0x1_0000_0011, ALLOW),
    ] {
        check(&none, "clone", &[flags], expected);
    }
    check(&none, "clone3", &[], NOT_THERE);
    for (domain, expected) in [
        (1, ALLOW),
        (AF_INET, ALLOW),
        (10, ALLOW),
        (16, ALLOW),
        (41, ALLOW),
        (AF_VSOCK, DENIED),
        // The kernel looks at the lower half only.
        (AF_VSOCK | 1 << 32, DENIED),
    ] {
        check(&none, "socket", &[domain], expected);
    }
    // Capabilities.
    for (capability, name) in [
        (Capability::SysAdmin, "mount"),
        (Capability::SysAdmin, "unshare"),
        (Capability::SysAdmin, "clone3"),
        (Capability::SysAdmin, "fsopen"),
        (Capability::Bpf, "bpf"),
        (Capability::Perfmon, "perf_event_open"),
        (Capability::DacReadSearch, "open_by_handle_at"),
        (Capability::SysBoot, "reboot"),
        (Capability::SysChroot, "chroot"),
        (Capability::SysModule, "finit_module"),
        (Capability::SysNice, "mbind"),
        (Capability::SysPacct, "acct"),
        (Capability::SysPtrace, "kcmp"),
        (Capability::SysRawio, "iopl"),
        (Capability::SysTime, "clock_settime"),
        (Capability::SysTime, "settimeofday"),
        (Capability::SysTtyConfig, "vhangup"),
        (Capability::Syslog, "syslog"),
    ] {
        check(&[capability].into(), name, &[], ALLOW);
        check(
            &[Capability::NetAdmin].into(),
            name,
            &[],
            if name == "clone3" { NOT_THERE } else { DENIED },
        );
    }
    check(&[Capability::SysAdmin].into(), "clone", &[CLONE_NEWUSER], ALLOW);
}

#[test]
fn what_is_newer_or_no_call_is_not_there() {
    for family in FAMILIES {
        let program = made(&profile::runtime_default(&Capabilities::new(), Some(family)), family);
        for arch in family.archs() {
            for number in [467, 500, 9999, 0x8000_0000, u32::MAX] {
                assert_eq!(
                    answer(&program, Call::new(*arch, number, &[])),
                    NOT_THERE,
                    "{arch:?} {number}"
                );
            }
        }
    }
}

#[test]
fn no_profile_lets_another_way_of_calling_through() {
    let open = profile(Action::Allow, vec![rule("getpid", Action::Errno, &[])]);
    let program = made(&open, Family::X86);
    let getpid = Arch::X86_64.number("getpid");
    assert_eq!(answer(&program, Call::new(Arch::X86_64, getpid, &[])), DENIED);
    assert_eq!(answer(&program, Call::new(Arch::X86_64, getpid + 1, &[])), ALLOW);
    // A denied call by its x32 number.
    assert_eq!(
        answer(&program, Call::new(Arch::X86_64, getpid | 0x4000_0000, &[])),
        NOT_THERE
    );
    // The profile lists no 32-bit calls.
    assert_eq!(answer(&program, Call::new(Arch::X86, 1, &[])), KILL_PROCESS);
    let mut both = open;
    both.architectures = vec![SpecArch::X86, SpecArch::Arm];
    let program = made(&both, Family::X86);
    assert_eq!(answer(&program, Call::new(Arch::X86, 1, &[])), ALLOW);
    assert_eq!(
        answer(&program, Call::new(Arch::X86, Arch::X86.number("getpid"), &[])),
        DENIED
    );
    assert_eq!(answer(&program, Call::new(Arch::Aarch64, 1, &[])), KILL_PROCESS);
    let program = made(&both, Family::Arm);
    assert_eq!(answer(&program, Call::new(Arch::Arm, 0x90_0000 + 4, &[])), NOT_THERE);
    assert_eq!(answer(&program, Call::new(Arch::Arm, 4, &[])), ALLOW);
    for (other, name) in [(0x4000_00f3, "riscv32"), (0x0000_0028, "big-endian arm"), (0, "none")] {
        for family in FAMILIES {
            let program = made(&both, family);
            assert_eq!(
                answer(&program, Call { arch: other, number: 1, args: [0; 6] }),
                KILL_PROCESS,
                "{name}"
            );
        }
    }
}

#[test]
fn comparisons_are_of_64_bits() {
    let edges = [
        0,
        1,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        0x1_0000_0000,
        0x1_0000_0001,
        0x7fff_ffff_ffff_ffff,
        0x8000_0000_0000_0000,
        0xffff_ffff_0000_0000,
        u64::MAX,
    ];
    type Holds = fn(u64, u64, u64) -> bool;
    let operators: [(Operator, Holds); 7] = [
        (Operator::Eq, |given, value, _| given == value),
        (Operator::Ne, |given, value, _| given != value),
        (Operator::Lt, |given, value, _| given < value),
        (Operator::Le, |given, value, _| given <= value),
        (Operator::Gt, |given, value, _| given > value),
        (Operator::Ge, |given, value, _| given >= value),
        (Operator::MaskedEq, |given, mask, value| given & mask == value),
    ];
    let number = Arch::Riscv64.number("ioctl");
    for (operator, holds) in operators {
        for value in edges {
            for (index, two) in [(0, 0), (5, value), (3, 1)] {
                let rules = vec![rule("ioctl", Action::Allow, &[arg(index, operator, value, two)])];
                let profile = profile(Action::Errno, rules);
                for endian in [Endian::Little, Endian::Big] {
                    let program = compile(&profile, Family::Riscv, endian).unwrap();
                    verify(&program);
                    for given in edges {
                        let mut args = [7; 6];
                        args[index] = given;
                        let call = Call { arch: Arch::Riscv64.audit(), number, args };
                        let expected = if holds(given, value, two) { ALLOW } else { DENIED };
                        let (found, _) = run(&program, call, endian);
                        assert_eq!(
                            found, expected,
                            "{given:#x} {operator:?} {value:#x} {two:#x} {endian:?}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn rules_of_one_call() {
    let number = Arch::Riscv64.number("ioctl");
    let check = |rules: Vec<Rule>, args: &[u64], expected: u32| {
        let program = made(&profile(Action::Errno, rules.clone()), Family::Riscv);
        let found = answer(&program, Call::new(Arch::Riscv64, number, args));
        assert_eq!(found, expected, "{args:?} {rules:?}");
    };
    let equals = |index, value| arg(index, Operator::Eq, value, 0);
    // All conditions of a rule must hold; two of one argument are alternatives.
    let both = vec![rule("ioctl", Action::Allow, &[equals(0, 1), equals(1, 2)])];
    check(both.clone(), &[1, 2], ALLOW);
    check(both, &[1, 3], DENIED);
    let either = vec![rule("ioctl", Action::Allow, &[equals(0, 1), equals(0, 2)])];
    check(either.clone(), &[2], ALLOW);
    check(either, &[3], DENIED);
    // The first rule that holds, and before all one without conditions.
    let two = vec![
        rule("ioctl", Action::Trap, &[equals(0, 1)]),
        rule("ioctl", Action::Log, &[equals(1, 1)]),
    ];
    check(two.clone(), &[1, 1], TRAP);
    check(two.clone(), &[0, 1], LOG);
    check(two.clone(), &[0, 0], DENIED);
    let always = [two, vec![rule("ioctl", Action::Allow, &[])]].concat();
    check(always, &[1, 1], ALLOW);
    // What no architecture has is left out.
    check(vec![rule("no_such_call", Action::Allow, &[])], &[], DENIED);
    for (action, expected) in [
        (Action::Kill, KILL_THREAD),
        (Action::KillThread, KILL_THREAD),
        (Action::KillProcess, KILL_PROCESS),
        (Action::Trace, TRACE | EPERM),
    ] {
        check(vec![rule("ioctl", action, &[])], &[], expected);
    }
}

#[test]
fn what_cannot_be_compiled_is_said() {
    let check = |profile: &Profile, words: &[&str]| {
        let error = compile(profile, Family::X86, Endian::Little).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    };
    let notify = profile(
        Action::Errno,
        vec![rule("read", Action::Allow, &[]), rule("write", Action::Notify, &[])],
    );
    check(&notify, &["syscalls[1]", "SCMP_ACT_NOTIFY", "use SCMP_ACT_ERRNO"]);
    let mut errno = profile(Action::Errno, Vec::new());
    errno.default_errno_ret = Some(4095);
    assert!(compile(&errno, Family::X86, Endian::Little).is_ok());
    errno.default_errno_ret = Some(4096);
    check(&errno, &["defaultAction", "4096"]);
    let seventh = rule("read", Action::Allow, &[arg(6, Operator::Eq, 0, 0)]);
    check(
        &profile(Action::Errno, vec![seventh]),
        &["syscalls[0].args", "no argument 6"],
    );
}

#[test]
fn a_program_ends_at_what_the_kernel_takes() {
    // Far jumps all over: every alternative is a few instructions.
    let with = |alternatives: u64| {
        let rules = (0..alternatives).map(|value| {
            let args = [arg(1, Operator::Eq, value << 32 | value, 0)];
            rule("ioctl", Action::Allow, &args)
        });
        compile(&profile(Action::Errno, rules.collect()), Family::Riscv, Endian::Little)
    };
    let (mut most, mut too_many) = (0, 4096);
    while too_many - most > 1 {
        let middle = u64::midpoint(most, too_many);
        *(if with(middle).is_ok() { &mut most } else { &mut too_many }) = middle;
    }
    let program = with(most).unwrap();
    verify(&program);
    assert!(program.len() > INSTRUCTIONS_MAX - 8, "{}", program.len());
    let number = Arch::Riscv64.number("ioctl");
    for value in [0, 1, most / 2, most - 1] {
        let call = |second| Call::new(Arch::Riscv64, number, &[0, second]);
        assert_eq!(answer(&program, call(value << 32 | value)), ALLOW, "{value}");
        assert_eq!(answer(&program, call(value << 32 | (value + most))), DENIED, "{value}");
    }
    let error = with(most + 1).unwrap_err();
    assert!(
        matches!(error, SeccompError::TooLong { length } if length > INSTRUCTIONS_MAX),
        "{error}"
    );
    assert!(error.to_string().contains("4096"), "{error}");
}
