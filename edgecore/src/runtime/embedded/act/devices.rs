//! Which devices a container has and may use. Where there is one cgroup tree for everything (version 2) a program in the
//! kernel says so; version 1 has files for it.

use std::fs::File;
use std::io;

use super::cgroups::Cgroups;
use crate::oci::Spec;
use crate::sys;

/// The devices that every container finds in `/dev`.
pub(super) const NODES: [(&str, u32, u32); 6] = [
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
];

/// What every container may read and write; `None` is every minor number. Null, zero, full, random, urandom, tty, console
/// of its own, terminals and what makes them.
const ALLOWED: [(u32, Option<u32>); 9] = [
    (1, Some(3)),
    (1, Some(5)),
    (1, Some(7)),
    (1, Some(8)),
    (1, Some(9)),
    (5, Some(0)),
    (5, Some(1)),
    (5, Some(2)),
    (136, None),
];

/// In the kernel's `struct bpf_cgroup_dev_ctx`.
const CHARACTER: u32 = 2;
const MAKE: u32 = 1;

/// Limits a container's cgroup to the devices that its specification allows.
pub(super) fn limit(spec: &Spec, cgroups: &Cgroups) -> io::Result<()> {
    let rules = &spec.linux.resources.devices;
    if rules.is_empty() || rules.iter().any(|rule| rule.allow) {
        return Ok(());
    }
    if cgroups.is_unified {
        let folder = cgroups.with("cgroup.procs").ok_or(io::ErrorKind::NotFound)?;
        return sys::limit_devices(&File::open(folder)?, &program());
    }
    if cgroups.with("devices.deny").is_none() {
        // A kernel without this controller keeps none from anybody.
        return Ok(());
    }
    cgroups.write("devices.deny", "a")?;
    lines().iter().try_for_each(|line| cgroups.write("devices.allow", line))
}

/// As version 1 takes them.
fn lines() -> Vec<String> {
    let any = ["c *:* m", "b *:* m"].map(str::to_owned);
    let named = ALLOWED.iter().map(|(major, minor)| {
        let minor = minor.map_or_else(|| "*".to_owned(), |minor| minor.to_string());
        format!("c {major}:{minor} rwm")
    });
    any.into_iter().chain(named).collect()
}

/// Making any device node is allowed, as everywhere: using it is what counts.
fn program() -> Vec<u64> {
    // Registers: 1 the context, 2 what is asked, 3 the kind of device, 4 and 5 its numbers.
    let mut code = vec![
        load(2, 0),
        instruction(0xbf, 3, 2, 0, 0),
        instruction(0x54, 3, 0, 0, 0xffff),
        instruction(0x77, 2, 0, 0, 16),
        load(4, 4),
        load(5, 8),
    ];
    let rules: usize = ALLOWED
        .iter()
        .map(|(_, minor)| if minor.is_some() { 2 } else { 1 })
        .sum();
    // Two jumps, the rules, and the two ways out.
    let deny = code.len() + 2 + rules;
    let allow = deny + 2;
    let jump = |code: &mut Vec<u64>, operation: u8, register: u8, value: u32, to: usize| {
        let offset = i16::try_from(to - code.len() - 1).expect("the program is short");
        code.push(instruction(operation, register, 0, offset, value));
    };
    const EQUAL: u8 = 0x15;
    const NOT_EQUAL: u8 = 0x55;
    jump(&mut code, EQUAL, 2, MAKE, allow);
    jump(&mut code, NOT_EQUAL, 3, CHARACTER, deny);
    for (major, minor) in ALLOWED {
        match minor {
            Some(minor) => {
                let next = code.len() + 2;
                jump(&mut code, NOT_EQUAL, 4, major, next);
                jump(&mut code, EQUAL, 5, minor, allow);
            }
            None => jump(&mut code, EQUAL, 4, major, allow),
        }
    }
    for answer in [0, 1] {
        code.push(instruction(0xb7, 0, 0, 0, answer));
        code.push(instruction(0x95, 0, 0, 0, 0));
    }
    code
}

/// A word of the context into a register.
fn load(register: u8, offset: i16) -> u64 {
    instruction(0x61, register, 1, offset, 0)
}

/// `struct bpf_insn` on a little-endian machine, which all of ours are.
fn instruction(operation: u8, destination: u8, source: u8, offset: i16, value: u32) -> u64 {
    let [low, high] = offset.to_le_bytes();
    let [a, b, c, d] = value.to_le_bytes();
    u64::from_le_bytes([operation, destination | source << 4, low, high, a, b, c, d])
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const READ: u32 = 2;
    const WRITE: u32 = 4;
    const BLOCK: u32 = 1;

    /// As the kernel would run it.
    fn run(code: &[u64], asked: u32, kind: u32, major: u32, minor: u32) -> u64 {
        let context = [asked << 16 | kind, major, minor];
        let (mut registers, mut at) = ([0_u64; 6], 0);
        loop {
            let [operation, both, low, high, a, b, c, d] = code[at].to_le_bytes();
            let (to, from) = (usize::from(both & 15), usize::from(both >> 4));
            let offset = i16::from_le_bytes([low, high]);
            let value = u64::from(u32::from_le_bytes([a, b, c, d]));
            at += 1;
            let jumps = match operation {
                0x61 => {
                    registers[to] = context[usize::try_from(offset).unwrap() / 4].into();
                    false
                }
                0xbf => {
                    registers[to] = registers[from];
                    false
                }
                0x54 => {
                    registers[to] &= value;
                    false
                }
                0x77 => {
                    registers[to] >>= value;
                    false
                }
                0xb7 => {
                    registers[to] = value;
                    false
                }
                0x15 => registers[to] == value,
                0x55 => registers[to] != value,
                0x95 => return registers[0],
                other => panic!("{other:x}"),
            };
            if jumps {
                at += usize::try_from(offset).unwrap();
            }
        }
    }

    #[test]
    fn a_container_uses_its_own_devices_only() {
        let code = program();
        for (major, minor) in [
            (1, 3),
            (1, 5),
            (1, 7),
            (1, 8),
            (1, 9),
            (5, 0),
            (5, 2),
            (136, 0),
            (136, 77),
        ] {
            assert_eq!(run(&code, READ | WRITE, CHARACTER, major, minor), 1, "{major}:{minor}");
            assert_eq!(run(&code, READ | WRITE, BLOCK, major, minor), 0, "{major}:{minor}");
        }
        // Memory, the kernel's log, another terminal, a disk.
        for (kind, major, minor) in [(CHARACTER, 1, 1), (CHARACTER, 1, 11), (CHARACTER, 4, 1), (BLOCK, 8, 0)] {
            for asked in [READ, WRITE, MAKE | READ] {
                assert_eq!(run(&code, asked, kind, major, minor), 0, "{major}:{minor}");
            }
            assert_eq!(run(&code, MAKE, kind, major, minor), 1, "{major}:{minor}");
        }
    }

    #[test]
    fn both_versions_allow_the_same() {
        let lines = lines();
        assert_eq!(lines[..3], ["c *:* m", "b *:* m", "c 1:3 rwm"]);
        assert_eq!(lines.last().unwrap(), "c 136:* rwm");
        for (_, major, minor) in NODES {
            assert!(ALLOWED.contains(&(major, Some(minor))), "{major}:{minor}");
        }
    }

    /// Needs root and a cgroup tree of version 2, so that it is not run with the others.
    #[test]
    #[ignore = "needs root"]
    fn the_kernel_takes_the_program() {
        let root = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"]
            .into_iter()
            .find(|root| Path::new(root).join("cgroup.controllers").exists())
            .unwrap();
        let folder = Path::new(root).join(format!("edgehold-devices-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let limited = sys::limit_devices(&File::open(&folder).unwrap(), &program());
        let tried = std::process::Command::new("sh")
            .arg("-c")
            .arg("echo 0 >$0/cgroup.procs && cat /dev/null && ! head -c1 /dev/kmsg 2>&1")
            .arg(&folder)
            .output()
            .unwrap();
        std::fs::remove_dir(&folder).unwrap();
        limited.unwrap();
        let said = String::from_utf8_lossy(&tried.stdout).into_owned();
        assert!(
            tried.status.success() && said.contains("not permitted"),
            "{said} {tried:?}"
        );
    }
}
