//! Programs of other machines on this one: the kernel is told to start them under Debian's static emulators.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ship::{ARM64, ARMHF, Machine};

const FOLDER: &str = "/proc/sys/fs/binfmt_misc";

/// What runs programs of other machines for as long as it lives. What was registered before stays.
#[derive(Debug)]
pub struct Foreign {
    registered: Vec<PathBuf>,
    /// Nobody had mounted the kernel's table.
    mounted: bool,
}

impl Foreign {
    /// For both kinds of ARM. Needs root and qemu-user-static.
    pub fn arm() -> Self {
        let mounted = !Path::new(FOLDER).join("register").exists();
        if mounted {
            crate::ship::run("mount", ["-t", "binfmt_misc", "binfmt_misc", FOLDER]);
        }
        let mut foreign = Self { registered: Vec::new(), mounted };
        foreign.register(ARM64, "/usr/bin/qemu-aarch64-static");
        foreign.register(ARMHF, "/usr/bin/qemu-arm-static");
        foreign
    }

    fn register(&mut self, machine: Machine, emulator: &str) {
        assert!(
            Path::new(emulator).exists(),
            "apt-get install qemu-user-static: {emulator} is not there"
        );
        let name = format!("edgehold-test-{}-{}", std::process::id(), machine.name);
        let (magic, mask): (String, String) = machine.magic().map(|(byte, mask)| (hex(byte), hex(mask))).unzip();
        // F: the emulator is opened now, so that it is found from within other root file systems.
        let line = format!(":{name}:M:0:{magic}:{mask}:{emulator}:F");
        fs::write(Path::new(FOLDER).join("register"), line).expect("telling the kernel of an emulator");
        self.registered.push(Path::new(FOLDER).join(name));
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        for file in &self.registered {
            // It goes with the table otherwise.
            let _ = fs::write(file, "-1");
        }
        if self.mounted {
            let _ = Command::new("umount").arg(FOLDER).status();
        }
    }
}

fn hex(byte: u8) -> String {
    format!("\\x{byte:02x}")
}
