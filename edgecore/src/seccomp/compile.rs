//! From a profile, as the OCI runtime specification has it, to a program for the kernel.
//!
//! The program asks first which way the call came (`arch`), then finds its number by binary search over ranges of
//! numbers with one answer, then looks at arguments where the profile has conditions on them. What it means is what
//! runc makes of the same profile:
//! - A rule without conditions is for every call of that name, whatever other rules say of it. Otherwise the first rule
//!   whose conditions all hold counts.
//! - Numbers that the kernel had not given away when the table was written are answered with ENOSYS where the profile
//!   denies by default, so that a C library falls back to what it did before.

use std::collections::BTreeMap;

use super::SeccompError;
use super::bpf::{
    AND, Assembler, INSTRUCTIONS_MAX, Instruction, JUMP_EQUAL, JUMP_GREATER, JUMP_GREATER_EQUAL, LOAD, Label,
};
use super::table::{Arch, Family};
use crate::oci::seccomp::{Action, Arch as SpecArch, Arg, Operator, Profile};

/// `SECCOMP_RET_*`.
pub(crate) const KILL_PROCESS: u32 = 0x8000_0000;
pub(crate) const KILL_THREAD: u32 = 0;
pub(crate) const TRAP: u32 = 0x0003_0000;
pub(crate) const ERRNO: u32 = 0x0005_0000;
pub(crate) const TRACE: u32 = 0x7ff0_0000;
pub(crate) const LOG: u32 = 0x7ffc_0000;
pub(crate) const ALLOW: u32 = 0x7fff_0000;

pub(crate) const EPERM: u32 = 1;
/// The same number on every architecture here.
pub(crate) const ENOSYS: u32 = 38;
/// The kernel cuts what is larger.
const ERRNO_MAX: u32 = 4095;
/// A system call has that many arguments.
const ARGUMENTS: usize = 6;

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const ARGS: u32 = 16;

/// What is answered to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Answer {
    Always(u32),
    /// The first rule whose conditions all hold, else the default.
    Rules(Vec<(Vec<Arg>, u32)>),
}

/// Which half of an argument comes first in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Endian {
    Little,
    Big,
}

impl Endian {
    pub(crate) const HERE: Self = if cfg!(target_endian = "big") {
        Self::Big
    } else {
        Self::Little
    };

    fn low(self, argument: u32) -> u32 {
        ARGS + 8 * argument + if self == Self::Big { 4 } else { 0 }
    }

    fn high(self, argument: u32) -> u32 {
        ARGS + 8 * argument + if self == Self::Big { 0 } else { 4 }
    }
}

/// The program for a profile on machines of a family.
pub(crate) fn compile(profile: &Profile, family: Family, endian: Endian) -> Result<Vec<Instruction>, SeccompError> {
    let default = answer(profile.default_action, profile.default_errno_ret, "defaultAction")?;
    let mut assembler = Assembler::default();
    let mut sections = Vec::new();
    for arch in family.archs().iter().filter(|arch| is_wanted(profile, family, **arch)) {
        let ranges = ranges(profile, *arch, default)?;
        let search = search(&mut assembler, &ranges, default, endian);
        sections.push((*arch, assembler.then(LOAD, NUMBER, search)));
    }
    // A call that came another way has other numbers: nothing can be said of it.
    let mut other = assembler.ret(KILL_PROCESS);
    for (arch, section) in sections {
        other = assembler.branch(JUMP_EQUAL, arch.audit(), section, other);
    }
    assembler.then(LOAD, ARCH, other);
    let program = assembler.finish();
    if program.len() > INSTRUCTIONS_MAX {
        return Err(SeccompError::TooLong { length: program.len() });
    }
    Ok(program)
}

/// The family's usual way of calling always; others where the profile lists them.
fn is_wanted(profile: &Profile, family: Family, arch: Arch) -> bool {
    let word = match arch {
        Arch::X86_64 => SpecArch::X86_64,
        Arch::X86 => SpecArch::X86,
        Arch::Aarch64 => SpecArch::Aarch64,
        Arch::Arm => SpecArch::Arm,
        Arch::Riscv64 => SpecArch::Riscv64,
    };
    let native = if cfg!(target_arch = "arm") && family == Family::Arm {
        Arch::Arm
    } else {
        family.archs()[0]
    };
    arch == native || profile.architectures.contains(&word)
}

/// The kernel's word for an action.
fn answer(action: Action, errno: Option<u32>, field: &str) -> Result<u32, SeccompError> {
    let with_errno = |base: u32| match errno.unwrap_or(EPERM) {
        errno if errno > ERRNO_MAX => Err(SeccompError::profile(format!(
            "{field}: errno {errno} is above {ERRNO_MAX}"
        ))),
        errno => Ok(base | errno),
    };
    match action {
        Action::Allow => Ok(ALLOW),
        Action::Log => Ok(LOG),
        Action::Errno => with_errno(ERRNO),
        Action::Trace => with_errno(TRACE),
        Action::Trap => Ok(TRAP),
        Action::Kill | Action::KillThread => Ok(KILL_THREAD),
        Action::KillProcess => Ok(KILL_PROCESS),
        Action::Notify => Err(SeccompError::profile(format!(
            "{field}: SCMP_ACT_NOTIFY needs an agent, which this node has not; use SCMP_ACT_ERRNO"
        ))),
    }
}

/// What is answered to which numbers: each range goes from its first number to the next one's.
fn ranges(profile: &Profile, arch: Arch, default: u32) -> Result<Vec<(u32, Answer)>, SeccompError> {
    let mut by_name: BTreeMap<&str, Answer> = BTreeMap::new();
    for (at, rule) in profile.syscalls.iter().enumerate() {
        let field = format!("syscalls[{at}]");
        let answer = answer(rule.action, rule.errno_ret, &field)?;
        let alternatives = alternatives(&rule.args, &field)?;
        for name in &rule.names {
            let entry = by_name.entry(name).or_insert_with(|| Answer::Rules(Vec::new()));
            match entry {
                Answer::Always(_) => {}
                Answer::Rules(_) if alternatives.is_empty() => *entry = Answer::Always(answer),
                Answer::Rules(rules) => rules.extend(alternatives.iter().map(|all| (all.clone(), answer))),
            }
        }
    }
    // Names that it does not have are left out, as runc does: they are of other architectures, or newer than the table.
    let mut by_number: Vec<(u32, Answer)> = arch
        .calls()
        .map(|(name, number)| (number, by_name.remove(name).unwrap_or(Answer::Always(default))))
        .collect();
    by_number.sort_by_key(|(number, _)| *number);
    let unknown = Answer::Always(if is_denial(default) { ERRNO | ENOSYS } else { default });
    let mut ranges = Vec::new();
    let mut push = |from: u32, answer: Answer| {
        if ranges.last().is_none_or(|(_, last)| *last != answer) {
            ranges.push((from, answer));
        }
    };
    let mut next = 0;
    for (number, answer) in by_number {
        if number > next {
            push(next, unknown.clone());
        }
        push(number, answer);
        next = number + 1;
    }
    push(next, unknown);
    if let Some(from) = arch.refused_from() {
        push(from, Answer::Always(ERRNO | ENOSYS));
    }
    Ok(ranges)
}

fn is_denial(answer: u32) -> bool {
    !matches!(answer & 0xffff_0000, ALLOW | LOG | TRACE)
}

/// The conditions of a rule. Two of one argument are meant as alternatives, as runc has always taken them.
fn alternatives(args: &[Arg], field: &str) -> Result<Vec<Vec<Arg>>, SeccompError> {
    if let Some(arg) = args.iter().find(|arg| arg.index >= ARGUMENTS) {
        return Err(SeccompError::profile(format!(
            "{field}.args: there is no argument {}; the last one is {}",
            arg.index,
            ARGUMENTS - 1
        )));
    }
    let twice = args
        .iter()
        .enumerate()
        .any(|(at, arg)| args[..at].iter().any(|before| before.index == arg.index));
    Ok(if args.is_empty() {
        Vec::new()
    } else if twice {
        args.iter().map(|arg| vec![*arg]).collect()
    } else {
        vec![args.to_vec()]
    })
}

/// Finds the range that A, the number, is in.
fn search(assembler: &mut Assembler, ranges: &[(u32, Answer)], default: u32, endian: Endian) -> Label {
    if let [(_, answer)] = ranges {
        return match answer {
            Answer::Always(value) => assembler.ret(*value),
            Answer::Rules(rules) => chain(assembler, rules, default, endian),
        };
    }
    let (below, above) = ranges.split_at(ranges.len() / 2);
    let from = above[0].0;
    let above = search(assembler, above, default, endian);
    let below = search(assembler, below, default, endian);
    assembler.branch(JUMP_GREATER_EQUAL, from, above, below)
}

fn chain(assembler: &mut Assembler, rules: &[(Vec<Arg>, u32)], default: u32, endian: Endian) -> Label {
    let mut next = assembler.ret(default);
    for (conditions, answer) in rules.iter().rev() {
        let mut held = assembler.ret(*answer);
        for arg in conditions.iter().rev() {
            held = condition(assembler, arg, endian, held, next);
        }
        next = held;
    }
    next
}

/// A comparison of 64 bits, of which the machine takes 32 at a time.
fn condition(assembler: &mut Assembler, arg: &Arg, endian: Endian, yes: Label, no: Label) -> Label {
    let index = u32::try_from(arg.index).expect("checked: at most 5");
    let at = (endian.low(index), endian.high(index));
    let value = halves(arg.value);
    match arg.op {
        Operator::Eq => equal(assembler, at, value, yes, no),
        Operator::Ne => equal(assembler, at, value, no, yes),
        Operator::Gt => more(assembler, JUMP_GREATER, at, value, yes, no),
        Operator::Le => more(assembler, JUMP_GREATER, at, value, no, yes),
        Operator::Ge => more(assembler, JUMP_GREATER_EQUAL, at, value, yes, no),
        Operator::Lt => more(assembler, JUMP_GREATER_EQUAL, at, value, no, yes),
        Operator::MaskedEq => {
            let wanted = halves(arg.value_two.unwrap_or_default());
            let low = masked(assembler, at.0, value.0, wanted.0, yes, no);
            masked(assembler, at.1, value.1, wanted.1, low, no)
        }
    }
}

/// The lower and the higher half of something.
type Halves = (u32, u32);

fn halves(value: u64) -> Halves {
    let half = |value: u64| u32::try_from(value & 0xffff_ffff).expect("32 bits");
    (half(value), half(value >> 32))
}

fn equal(assembler: &mut Assembler, at: Halves, value: Halves, yes: Label, no: Label) -> Label {
    let low = assembler.branch(JUMP_EQUAL, value.0, yes, no);
    let low = assembler.then(LOAD, at.0, low);
    let high = assembler.branch(JUMP_EQUAL, value.1, low, no);
    assembler.then(LOAD, at.1, high)
}

/// `code` is how the lower halves compare where the higher ones are the same.
fn more(assembler: &mut Assembler, code: u16, at: Halves, value: Halves, yes: Label, no: Label) -> Label {
    let low = assembler.branch(code, value.0, yes, no);
    let low = assembler.then(LOAD, at.0, low);
    let same = assembler.branch(JUMP_EQUAL, value.1, low, no);
    let high = assembler.branch(JUMP_GREATER, value.1, yes, same);
    assembler.then(LOAD, at.1, high)
}

/// One half of a masked comparison; nothing to compare takes no instruction.
fn masked(assembler: &mut Assembler, at: u32, mask: u32, wanted: u32, yes: Label, no: Label) -> Label {
    if mask == 0 {
        return if wanted == 0 { yes } else { no };
    }
    let test = assembler.branch(JUMP_EQUAL, wanted, yes, no);
    let and = assembler.then(AND, mask, test);
    assembler.then(LOAD, at, and)
}
