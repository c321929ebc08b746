//! The system calls of each architecture, by name. They are data: a constant of libc exists for its own target only.

/// Written by `scripts/syscalls` from the kernel's headers. A text, so that it takes no relocations and is read only
/// where a filter is made.
const TABLE: &str = include_str!("syscalls.txt");

/// What the kernel calls a way of making system calls. 32-bit ones are also those of programs on a 64-bit kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Arch {
    X86_64,
    X86,
    Aarch64,
    Arm,
    Riscv64,
}

impl Arch {
    /// `AUDIT_ARCH_*`, as the kernel hands it to filters.
    pub(crate) fn audit(self) -> u32 {
        match self {
            Self::X86_64 => 0xc000_003e,
            Self::X86 => 0x4000_0003,
            Self::Aarch64 => 0xc000_00b7,
            Self::Arm => 0x4000_0028,
            Self::Riscv64 => 0xc000_00f3,
        }
    }

    /// Numbers from here on are of another, older or rarer way to call (x32, ARM's OABI). No filter lets them through:
    /// they would go around what it says of the same calls by their usual numbers.
    pub(crate) fn refused_from(self) -> Option<u32> {
        match self {
            Self::X86_64 => Some(0x4000_0000),
            Self::Arm => Some(0x90_0000),
            Self::X86 | Self::Aarch64 | Self::Riscv64 => None,
        }
    }

    /// The names and numbers of its system calls.
    pub(crate) fn calls(self) -> impl Iterator<Item = (&'static str, u32)> {
        let column = self as usize;
        let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
        lines.filter_map(move |line| {
            let mut words = line.split(' ');
            let name = words.next()?;
            let number = words.nth(column)?.parse().ok()?;
            Some((name, number))
        })
    }
}

/// Ways to call that a machine has: a kernel and those it is compatible with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    X86,
    Arm,
    Riscv,
}

impl Family {
    /// That of the machine this program was built for; `None` where there is no table of it.
    pub(crate) const fn here() -> Option<Self> {
        if cfg!(any(target_arch = "x86_64", target_arch = "x86")) {
            Some(Self::X86)
        } else if cfg!(any(target_arch = "aarch64", target_arch = "arm")) {
            Some(Self::Arm)
        } else if cfg!(target_arch = "riscv64") {
            Some(Self::Riscv)
        } else {
            None
        }
    }

    /// The first one is the usual one. A 32-bit build may well run on a 64-bit kernel (Raspberry Pi OS).
    pub(crate) fn archs(self) -> &'static [Arch] {
        match self {
            Self::X86 => &[Arch::X86_64, Arch::X86],
            Self::Arm => &[Arch::Aarch64, Arch::Arm],
            Self::Riscv => &[Arch::Riscv64],
        }
    }
}

#[cfg(test)]
impl Arch {
    /// How programs of this build call.
    pub(crate) fn here() -> Self {
        let here = match std::env::consts::ARCH {
            "x86_64" => Self::X86_64,
            "aarch64" => Self::Aarch64,
            "arm" => Self::Arm,
            "riscv64" => Self::Riscv64,
            other => panic!("no table of {other}"),
        };
        assert!(Family::here().unwrap().archs().contains(&here));
        here
    }

    /// The number of a call that every architecture has, or that this one is known to have.
    pub(crate) fn number(self, name: &str) -> u32 {
        let found = self.calls().find(|(known, _)| *known == name);
        found.unwrap_or_else(|| panic!("{self:?} has no {name}")).1
    }
}
