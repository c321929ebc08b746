//! What is shipped: packages and images as `images/` makes them, of real programs or of files that only look like some.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::processes::repository;

/// A kind of machine, as `images/` calls it and as Rust does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    pub name: &'static str,
    /// Its name at Debian.
    pub debian: &'static str,
    pub target: &'static str,
    /// Its name in an index: architecture and variant.
    pub platform: (&'static str, Option<&'static str>),
    /// Whether it is of 64 bits, and its number in an ELF header.
    elf: (bool, u8),
}

pub const AMD64: Machine = Machine {
    name: "amd64",
    debian: "amd64",
    target: "x86_64-unknown-linux-musl",
    platform: ("amd64", None),
    elf: (true, 62),
};
pub const ARM64: Machine = Machine {
    name: "arm64",
    debian: "arm64",
    target: "aarch64-unknown-linux-musl",
    platform: ("arm64", Some("v8")),
    elf: (true, 183),
};
pub const ARMHF: Machine = Machine {
    name: "armhf",
    debian: "armhf",
    target: "armv7-unknown-linux-musleabihf",
    platform: ("arm", Some("v7")),
    elf: (false, 40),
};
pub const ARMV6: Machine = Machine {
    name: "armv6",
    debian: "armhf",
    target: "arm-unknown-linux-musleabihf",
    platform: ("arm", Some("v6")),
    elf: (false, 40),
};

/// Those that images and packages are made for unless others are asked for.
pub const MACHINES: [Machine; 3] = [AMD64, ARM64, ARMHF];

/// What this machine is called there.
pub const HERE: &str = if cfg!(target_arch = "aarch64") {
    "arm64"
} else {
    "amd64"
};

/// Our programs.
pub const PROGRAMS: [&str; 3] = ["edgecore", "cloudcore", "edgectl"];

/// A folder of programs as cargo leaves them, and under which profile.
#[derive(Debug, Clone)]
pub struct Programs {
    pub folder: PathBuf,
    pub profile: String,
}

impl Programs {
    /// What `scripts/cross` built: in cargo's target folder and with the profile for nodes, or where `SHIP_PROGRAMS` and
    /// `SHIP_PROFILE` say.
    pub fn built() -> Self {
        let variable = |name: &str| std::env::var(name).ok();
        let folder = variable("SHIP_PROGRAMS").map(PathBuf::from);
        Self {
            folder: folder.unwrap_or_else(|| repository().join("target")),
            profile: variable("SHIP_PROFILE").unwrap_or_else(|| "release-small".to_owned()),
        }
    }

    /// Those of the version before, in the folder that `SHIP_BEFORE` names. Until there is a release they are these.
    pub fn before() -> Self {
        let built = Self::built();
        let folder = std::env::var_os("SHIP_BEFORE").map(PathBuf::from);
        Self {
            folder: folder.unwrap_or(built.folder),
            profile: built.profile,
        }
    }

    /// Files that have the headers of programs for every machine, and do nothing.
    pub fn headers(folder: &Path) -> Self {
        let programs = Self {
            folder: folder.to_owned(),
            profile: "release-small".to_owned(),
        };
        for machine in [AMD64, ARM64, ARMHF, ARMV6] {
            for name in PROGRAMS {
                programs.place(machine, name, &header(machine));
            }
        }
        programs
    }

    pub fn path(&self, machine: Machine, name: &str) -> PathBuf {
        self.folder.join(machine.target).join(&self.profile).join(name)
    }

    pub fn place(&self, machine: Machine, name: &str, content: &[u8]) {
        let path = self.path(machine, name);
        fs::create_dir_all(path.parent().expect("it is in a folder")).expect("making a folder");
        fs::write(path, content).expect("writing a program");
    }

    /// Runs a script of `images/` on these programs.
    pub fn script(&self, script: &str, words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Output {
        Command::new(repository().join("images").join(script))
            .arg("--programs")
            .arg(&self.folder)
            .args(["--profile", &self.profile])
            .args(words)
            // Its modules are not to leave anything in the source.
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .output()
            .expect("the script starts")
    }

    /// A package of these programs, made under a version.
    pub fn package(&self, out: &Path, name: &str, machine: Machine, version: &str) -> PathBuf {
        let out_word = out.display().to_string();
        said(&self.script(
            "deb",
            ["--package", name, "--version", version, &out_word, machine.name],
        ));
        let suffix = if machine == ARMV6 { "-armv6" } else { "" };
        out.join(format!("{name}_{version}_{}{suffix}.deb", machine.debian))
    }
}

/// An archive of a sample workload's image, below a folder where it is built when it is not there.
pub fn archive(folder: &Path, name: &str, arch: &str) -> PathBuf {
    let folder = folder.join("images");
    let archive = folder.join(format!("{name}-{arch}.tar"));
    if !archive.exists() {
        let status = Command::new(repository().join("images/build"))
            .arg(&folder)
            .args([arch, name])
            .stdout(Stdio::null())
            .status()
            .expect("the script starts");
        assert!(status.success(), "images/build {name} for {arch}");
    }
    archive
}

impl Machine {
    /// The first bytes of its programs, each with the bits that count: which system it is for does not, and a program may
    /// be one that can be moved.
    pub(crate) fn magic(self) -> impl Iterator<Item = (u8, u8)> {
        let mask = |at| match at {
            7 => 0,
            16 => 0xfe,
            _ => 0xff,
        };
        let header = header(self).into_iter().take(20);
        header.enumerate().map(move |(at, byte)| (byte, mask(at)))
    }
}

/// The first 64 bytes of a program that is linked statically and has nothing in it.
fn header(machine: Machine) -> [u8; 64] {
    let (is_wide, number) = machine.elf;
    let mut header = [0; 64];
    header[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', if is_wide { 2 } else { 1 }, 1, 1]);
    header[16] = 2;
    header[18] = number;
    header
}

/// What a command printed that has to succeed.
pub fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let all = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{}: {all}", output.status);
    text(&output.stdout)
}

/// Runs a command that has to succeed.
pub fn run(program: &str, words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> String {
    said(&Command::new(program).args(words).output().expect("the program starts"))
}
