//! Classic BPF as seccomp runs it, and an assembler for it.
//!
//! Jumps only lead forward, and those with a condition at most 255 instructions far. So programs are written from their
//! end: what a jump leads to is there already, its distance is known, and one that is too far gets a jump without a
//! condition (which has no such limit) in between.

use std::collections::BTreeMap;

/// The kernel takes no longer program (`BPF_MAXINSNS`).
pub(crate) const INSTRUCTIONS_MAX: usize = 4096;

/// One instruction, in the kernel's form (`struct sock_filter`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Instruction {
    pub(crate) code: u16,
    pub(crate) yes: u8,
    pub(crate) no: u8,
    pub(crate) value: u32,
}

/// A = the 32 bits at this offset of `struct seccomp_data`.
pub(crate) const LOAD: u16 = 0x20;
/// A = A & value.
pub(crate) const AND: u16 = 0x54;
pub(crate) const JUMP: u16 = 0x05;
pub(crate) const JUMP_EQUAL: u16 = 0x15;
pub(crate) const JUMP_GREATER: u16 = 0x25;
pub(crate) const JUMP_GREATER_EQUAL: u16 = 0x35;
pub(crate) const RETURN: u16 = 0x06;

/// An instruction that is there already: how many there are from it to the end, with itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Label(usize);

/// Writes a program from its end.
#[derive(Debug, Default)]
pub(crate) struct Assembler {
    backwards: Vec<Instruction>,
    /// The returns closest to the beginning, by value.
    returns: BTreeMap<u32, Label>,
}

impl Assembler {
    /// The program, first instruction first.
    pub(crate) fn finish(mut self) -> Vec<Instruction> {
        self.backwards.reverse();
        self.backwards
    }

    pub(crate) fn ret(&mut self, value: u32) -> Label {
        if let Some(label) = self.returns.get(&value)
            && self.distance(*label) < usize::from(u8::MAX)
        {
            return *label;
        }
        let label = self.push(RETURN, 0, 0, value);
        self.returns.insert(value, label);
        label
    }

    /// Does something to A, then goes on at `next`.
    pub(crate) fn then(&mut self, code: u16, value: u32, next: Label) -> Label {
        self.directly_before(next);
        self.push(code, 0, 0, value)
    }

    /// Compares A with the value.
    pub(crate) fn branch(&mut self, code: u16, value: u32, yes: Label, no: Label) -> Label {
        // What leads to the second may move the first one away by one.
        let yes = self.near(yes, 1);
        let no = self.near(no, 0);
        let distance = |label| u8::try_from(self.distance(label)).expect("`near` saw to it");
        let (yes, no) = (distance(yes), distance(no));
        self.push(code, yes, no, value)
    }

    fn push(&mut self, code: u16, yes: u8, no: u8, value: u32) -> Label {
        self.backwards.push(Instruction { code, yes, no, value });
        Label(self.backwards.len())
    }

    /// How many instructions the next one to be written would jump over.
    fn distance(&self, label: Label) -> usize {
        self.backwards.len() - label.0
    }

    fn near(&mut self, label: Label, margin: usize) -> Label {
        if self.distance(label) + margin <= usize::from(u8::MAX) {
            return label;
        }
        self.jump(label)
    }

    fn directly_before(&mut self, label: Label) {
        if self.distance(label) > 0 {
            self.jump(label);
        }
    }

    fn jump(&mut self, label: Label) -> Label {
        let distance = u32::try_from(self.distance(label)).expect("programs are far shorter");
        self.push(JUMP, 0, 0, distance)
    }
}
