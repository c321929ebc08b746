//! A machine for classic BPF, for tests: it does what the kernel does with a program, and refuses what the kernel does.

use super::bpf::{
    AND, INSTRUCTIONS_MAX, Instruction, JUMP, JUMP_EQUAL, JUMP_GREATER, JUMP_GREATER_EQUAL, LOAD, RETURN,
};
use super::compile::Endian;
use super::table::Arch;

/// One system call, as a filter sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub(super) arch: u32,
    pub(super) number: u32,
    pub(super) args: [u64; 6],
}

impl Call {
    pub(super) fn new(arch: Arch, number: u32, args: &[u64]) -> Self {
        let mut all = [0; 6];
        all[..args.len()].copy_from_slice(args);
        Self { arch: arch.audit(), number, args: all }
    }

    /// `struct seccomp_data`.
    fn bytes(self, endian: Endian) -> [u8; 64] {
        let mut bytes = [0; 64];
        let word = |value: u32| match endian {
            Endian::Little => value.to_le_bytes(),
            Endian::Big => value.to_be_bytes(),
        };
        let long = |value: u64| match endian {
            Endian::Little => value.to_le_bytes(),
            Endian::Big => value.to_be_bytes(),
        };
        bytes[..4].copy_from_slice(&word(self.number));
        bytes[4..8].copy_from_slice(&word(self.arch));
        for (at, arg) in self.args.into_iter().enumerate() {
            bytes[16 + 8 * at..][..8].copy_from_slice(&long(arg));
        }
        bytes
    }
}

/// What the kernel checks when a program is loaded.
pub(super) fn verify(program: &[Instruction]) {
    assert!((1..=INSTRUCTIONS_MAX).contains(&program.len()), "{}", program.len());
    for (at, instruction) in program.iter().enumerate() {
        let inside = |jump: usize| assert!(at + 1 + jump < program.len(), "{at}: {instruction:?} leads out");
        match instruction.code {
            LOAD => assert!(
                instruction.value < 64 && instruction.value % 4 == 0,
                "{at}: {instruction:?}"
            ),
            AND | RETURN => {}
            JUMP => inside(usize::try_from(instruction.value).unwrap()),
            JUMP_EQUAL | JUMP_GREATER | JUMP_GREATER_EQUAL => {
                inside(instruction.yes.into());
                inside(instruction.no.into());
            }
            code => panic!("{at}: {code:#x} is no instruction of ours"),
        }
    }
    assert_eq!(program.last().unwrap().code, RETURN, "a program ends with a return");
}

/// What the program answers, and how many instructions it took.
pub(super) fn run(program: &[Instruction], call: Call, endian: Endian) -> (u32, usize) {
    let data = call.bytes(endian);
    let (mut at, mut a, mut steps) = (0, 0_u32, 0);
    loop {
        let instruction = program[at];
        let value = instruction.value;
        steps += 1;
        at += 1;
        let mut branch = |holds: bool| at += usize::from(if holds { instruction.yes } else { instruction.no });
        match instruction.code {
            LOAD => {
                let bytes = data[usize::try_from(value).unwrap()..][..4].try_into().unwrap();
                a = match endian {
                    Endian::Little => u32::from_le_bytes(bytes),
                    Endian::Big => u32::from_be_bytes(bytes),
                };
            }
            AND => a &= value,
            JUMP => at += usize::try_from(value).unwrap(),
            JUMP_EQUAL => branch(a == value),
            JUMP_GREATER => branch(a > value),
            JUMP_GREATER_EQUAL => branch(a >= value),
            RETURN => return (value, steps),
            code => panic!("{code:#x} is no instruction of ours"),
        }
    }
}
