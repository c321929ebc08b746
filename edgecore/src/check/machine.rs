//! What a machine offers to an edge core and its containers: seen once, then judged by pure functions, one line each.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;

use rustix::fs::{StatVfsMountFlags, statvfs};

use super::folders::{Place, Room};
use super::{Line, elf};
use crate::config::Config;
use crate::seccomp;

/// The oldest kernel with every system call that is used here (`openat2`; `setns` by a process).
const KERNEL_MIN: (u32, u32) = (5, 8);
/// The oldest one that tells 32-bit programs of times after January 2038.
const TIME64_MIN: (u32, u32) = (5, 1);

/// The oldest one that mounts overlays in a user namespace.
const USER_OVERLAY_MIN: (u32, u32) = (5, 11);

/// What is put into the run folder for a pod is a few KiB; below this it ends with the next pods.
const RUN_BYTES_MIN: u64 = 1 << 20;
const RUN_FILES_MIN: u64 = 256;

/// What no container can be without.
const NAMESPACES: [&str; 5] = ["ipc", "mnt", "net", "pid", "uts"];

/// The controllers that limits of pods take.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

/// Where a kernel's command line is kept, and what makes a change of it count.
const COMMAND_LINES: [(&str, &str); 3] = [
    (
        "/boot/firmware/cmdline.txt",
        "the one line in /boot/firmware/cmdline.txt, reboot",
    ),
    ("/boot/cmdline.txt", "the one line in /boot/cmdline.txt, reboot"),
    (
        "/etc/default/grub",
        "GRUB_CMDLINE_LINUX in /etc/default/grub, update-grub, reboot",
    ),
];
const COMMAND_LINE: &str = "the kernel's command line, reboot";

/// A machine as it was seen.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    /// Without these nothing else is known.
    proc: bool,
    sys: bool,
    /// This program: for which machine, and its bits.
    arch: &'static str,
    bits: u32,
    time_bits: u32,
    /// The length of its file, and the least it must have.
    file: Option<(u64, u64)>,
    /// What the kernel calls its machine, and its release.
    kernel_arch: String,
    release: String,
    file_systems: String,
    overlay_module: bool,
    /// The file system of the data folder, where an overlay cannot write to it.
    data_without_overlay: Option<&'static str>,
    namespaces: BTreeSet<String>,
    user_namespaces_max: u64,
    filters: bool,
    ipv6: Ipv6,
    root_read_only: bool,
    run: Option<Room>,
    cgroups: Cgroups,
    command_line: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ipv6 {
    /// The kernel has none.
    Absent,
    /// It is switched off.
    Off,
    On,
}

#[derive(Debug, Clone, Default)]
struct Cgroups {
    /// What the kernel has (/proc/cgroups).
    table: String,
    /// What version 2 controls, where that is in use.
    unified: Option<String>,
    /// The hierarchies of version 1 that can be reached.
    mounted: BTreeSet<String>,
}

/// What containers here are to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Need {
    /// Any at all.
    pub(super) containers: bool,
    /// The runtime cannot do without overlayfs.
    pub(super) overlay: bool,
    /// Images are unpacked into the data folder.
    pub(super) unpacks: bool,
    /// The edge core is not root; its cgroups have a line of their own.
    pub(super) rootless: bool,
}

impl Machine {
    /// This one.
    pub(super) fn observe(config: &Config) -> Self {
        let names = |folder: &str| -> BTreeSet<String> {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            entries
                .filter_map(|entry| entry.file_name().into_string().ok())
                .collect()
        };
        let system = rustix::system::uname();
        let release = system.release().to_string_lossy().into_owned();
        // What an emulator does not make up.
        let kernel_arch = match text("/proc/sys/kernel/arch") {
            arch if arch.is_empty() => system.machine().to_string_lossy().into_owned(),
            arch => arch,
        };
        let modules = format!("/lib/modules/{release}/kernel/fs/overlayfs");
        Self {
            proc: Path::new("/proc/self/stat").exists(),
            sys: Path::new("/sys/fs").exists(),
            arch: std::env::consts::ARCH,
            bits: usize::BITS,
            time_bits: if bytes_of(|time: &libc::timespec| &time.tv_sec) >= 8 {
                64
            } else {
                32
            },
            file: own_file(),
            kernel_arch,
            file_systems: text("/proc/filesystems"),
            data_without_overlay: Place::observe(&config.data)
                .ok()
                .and_then(|place| place.without_overlay()),
            overlay_module: names(&modules).iter().any(|name| name.starts_with("overlay.ko")),
            namespaces: names("/proc/self/ns"),
            user_namespaces_max: text("/proc/sys/user/max_user_namespaces").parse().unwrap_or(0),
            filters: seccomp::is_supported(),
            ipv6: if !Path::new("/proc/net/if_inet6").exists() {
                Ipv6::Absent
            } else if text("/proc/sys/net/ipv6/conf/all/disable_ipv6") == "1" {
                Ipv6::Off
            } else {
                Ipv6::On
            },
            root_read_only: statvfs("/").is_ok_and(|root| root.f_flag.contains(StatVfsMountFlags::RDONLY)),
            run: Place::observe(&config.run).ok().and_then(|place| place.room()),
            cgroups: Cgroups {
                table: text("/proc/cgroups"),
                unified: fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").ok(),
                mounted: names("/sys/fs/cgroup"),
            },
            command_line: COMMAND_LINES
                .into_iter()
                .find(|(file, _)| Path::new(file).exists())
                .map_or(COMMAND_LINE, |(_, line)| line),
            release,
        }
    }

    /// What there is to say of it.
    pub(super) fn lines(&self, need: Need) -> Vec<Line> {
        if !self.proc {
            let fix = "not mounted, and nothing else can be seen without: mount -t proc proc /proc";
            return vec![Line::missing("proc", fix)];
        }
        let mut lines = vec![self.program(), self.kernel(), self.time()];
        lines.push(self.ipv6());
        lines.extend(self.root_disk());
        lines.extend(self.run_room());
        if need.containers {
            if !self.sys {
                let fix = "not mounted: mount -t sysfs sysfs /sys, and cgroups below /sys/fs/cgroup";
                lines.push(Line::missing("sys", fix));
            }
            lines.push(self.namespaces());
            if !need.rootless {
                lines.push(self.cgroups());
            }
            lines.extend([self.overlay(need), self.seccomp()]);
        }
        lines
    }

    fn program(&self) -> Line {
        if let Some((length, least)) = self.file.filter(|(length, least)| length < least) {
            let fix = format!(
                "its file has {length} bytes of at least {least}: it was cut short; copy it again, and compare it with its checksum"
            );
            return Line::missing("program", fix);
        }
        let native = match self.arch {
            "x86_64" => self.kernel_arch == "x86_64",
            "aarch64" => self.kernel_arch == "aarch64",
            "arm" => self.kernel_arch.starts_with("arm") || self.kernel_arch == "aarch64",
            "riscv64" => self.kernel_arch == "riscv64",
            _ => true,
        };
        let (arch, kernel) = (self.arch, &self.kernel_arch);
        if !native {
            let detail = format!(
                "made for {arch}, and emulated on {kernel}: slow, and not all of it works; install the edge core for {kernel}"
            );
            Line::note("program", detail)
        } else if self.bits == 32 && kernel.ends_with("64") {
            let detail = format!(
                "made for {arch}, on a 64-bit kernel ({kernel}): it takes images for {arch} only; the edge core for {kernel} takes those for 64 bits"
            );
            Line::note("program", detail)
        } else {
            Line::good("program", format!("whole, and made for {arch}"))
        }
    }

    fn kernel(&self) -> Line {
        match version(&self.release) {
            Some(found) if found < KERNEL_MIN => {
                let (major, minor) = KERNEL_MIN;
                let fix = format!("{} is older than {major}.{minor}: install a newer one", self.release);
                Line::missing("kernel", fix)
            }
            Some(_) | None => Line::good("kernel", self.release.clone()),
        }
    }

    fn time(&self) -> Line {
        const END: &str = "there is no time after 19 January 2038";
        let old_kernel = self.bits == 32 && version(&self.release).is_some_and(|found| found < TIME64_MIN);
        if old_kernel {
            let (major, minor) = TIME64_MIN;
            let fix = format!("of 32 bits in this kernel, {END}: install {major}.{minor} or newer");
            Line::note("time", fix)
        } else if self.time_bits < 64 {
            Line::note(
                "time",
                format!("of 32 bits in this build, {END}: install the released edge core"),
            )
        } else {
            Line::good("time", "of 64 bits")
        }
    }

    fn ipv6(&self) -> Line {
        let without = "the cloud is reached over IPv4 alone, and pods have no IPv6";
        match self.ipv6 {
            Ipv6::On => Line::good("IPv6", "the kernel has it"),
            Ipv6::Off => Line::note(
                "IPv6",
                format!("switched off, {without}: sysctl -w net.ipv6.conf.all.disable_ipv6=0 brings it back"),
            ),
            Ipv6::Absent => Line::note(
                "IPv6",
                format!(
                    "the kernel has none, {without}: modprobe ipv6, or take ipv6.disable=1 out of {}",
                    self.command_line
                ),
            ),
        }
    }

    /// The folders that are written to have lines of their own.
    fn root_disk(&self) -> Option<Line> {
        let detail = "read-only: fine where the folders above are on another; else mount -o remount,rw /, and see in dmesg \
                      whether the disk is failing";
        self.root_read_only.then(|| Line::note("rootfs", detail))
    }

    fn run_room(&self) -> Option<Line> {
        let room = self.run.as_ref()?;
        let short = match (room.bytes < RUN_BYTES_MIN, room.files < RUN_FILES_MIN) {
            (true, _) => format!("{} KiB", room.bytes >> 10),
            (_, true) => format!("room for {} files", room.files),
            (false, false) => return None,
        };
        let folder = room.folder.display();
        Some(Line::note(
            "runfs",
            format!(
                "{short} left for {folder}, and every pod takes some: mount -o remount,size=32M,nr_inodes=0 /run, or another \
                 folder as `run` in the configuration"
            ),
        ))
    }

    fn namespaces(&self) -> Line {
        let lacking: Vec<_> = NAMESPACES
            .into_iter()
            .filter(|name| !self.namespaces.contains(*name))
            .collect();
        if !lacking.is_empty() {
            let lacking = lacking.join(", ");
            let fix = format!(
                "the kernel lacks {lacking}: use one with CONFIG_NAMESPACES, CONFIG_PID_NS, CONFIG_NET_NS, CONFIG_IPC_NS, \
                 CONFIG_UTS_NS"
            );
            return Line::missing("namespaces", fix);
        }
        let all = NAMESPACES.join(", ");
        Line::good(
            "namespaces",
            match (self.namespaces.contains("user"), self.user_namespaces_max) {
                (true, 1..) => format!("{all}, user"),
                (true, 0) => {
                    format!("{all}; user ones are off (sysctl user.max_user_namespaces), and not needed as root")
                }
                (false, _) => format!("{all}; no user ones (CONFIG_USER_NS), which are not needed as root"),
            },
        )
    }

    fn cgroups(&self) -> Line {
        let Cgroups { table, unified, mounted } = &self.cgroups;
        let enabled = |name: &str| {
            table.lines().any(|line| {
                let mut words = line.split_whitespace();
                words.next() == Some(name) && words.next_back() == Some("1")
            })
        };
        // What the table says is of version 1 only.
        let there = |name: &&str| match unified {
            Some(controllers) => controllers.split_whitespace().any(|controller| controller == *name),
            None => enabled(name),
        };
        let version = if unified.is_some() { 2 } else { 1 };
        let off: Vec<_> = CONTROLLERS.into_iter().filter(|name| !there(name)).collect();
        let unmounted = |name: &&str| unified.is_none() && !mounted.contains(*name);
        let unmounted: Vec<_> = CONTROLLERS.into_iter().filter(unmounted).collect();
        if !off.is_empty() {
            let mut fixes = Vec::new();
            if off.contains(&"memory") {
                let line = self.command_line;
                fixes.push(format!("add cgroup_enable=memory cgroup_memory=1 to {line}"));
            }
            if off.iter().any(|name| *name != "memory") {
                fixes.push("use a kernel with CONFIG_CFS_BANDWIDTH and CONFIG_CGROUP_PIDS".to_owned());
            }
            let (off, fixes) = (off.join(", "), fixes.join("; "));
            Line::missing(
                "cgroups",
                format!("{off} is off (version {version}), pods are not held to such limits: {fixes}"),
            )
        } else if !unmounted.is_empty() {
            let unmounted = unmounted.join(", ");
            let fix = "apt-get install cgroupfs-mount, boot with systemd, or mount -t cgroup2 none /sys/fs/cgroup";
            Line::missing(
                "cgroups",
                format!("{unmounted} is not mounted below /sys/fs/cgroup: {fix}"),
            )
        } else {
            Line::good("cgroups", format!("version {version} with {}", CONTROLLERS.join(", ")))
        }
    }

    fn overlay(&self, need: Need) -> Line {
        let old = version(&self.release).filter(|found| need.rootless && *found < USER_OVERLAY_MIN);
        if let Some((major, minor)) = old {
            let (new_major, new_minor) = USER_OVERLAY_MIN;
            let detail = format!(
                "Linux {major}.{minor} mounts none for who is not root, so every container is a copy of its image: \
                 {new_major}.{new_minor} or newer saves time and disk"
            );
            return Line::note("overlayfs", detail);
        }
        if let Some(name) = self.data_without_overlay.filter(|_| need.unpacks) {
            let detail = format!(
                "the data folder is on {name}, which no overlay can write to, so every container is a copy of its image: \
                 `data` on ext4, xfs, btrfs or f2fs saves time and disk"
            );
            Line::note("overlayfs", detail)
        } else if self.file_systems.split_whitespace().any(|word| word == "overlay") {
            Line::good("overlayfs", "the kernel has it")
        } else if self.overlay_module {
            Line::good("overlayfs", "a module of the kernel, loaded when it is first used")
        } else if need.overlay {
            let fix = "the kernel lacks it: modprobe overlay, or containerd.snapshotter = \"native\"";
            Line::missing("overlayfs", fix)
        } else {
            let detail =
                "the kernel lacks it, so every container is a copy of its image: modprobe overlay saves time and disk";
            Line::note("overlayfs", detail)
        }
    }

    fn seccomp(&self) -> Line {
        if self.filters {
            Line::good("seccomp", "the kernel takes filters")
        } else {
            let detail = "the kernel takes no filters: pods that ask for a profile are refused; use one with CONFIG_SECCOMP_FILTER";
            Line::note("seccomp", detail)
        }
    }
}

/// How wide a field is, without a name for its type.
fn bytes_of<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

fn text(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// The length of this program's file, and the least it must have.
fn own_file() -> Option<(u64, u64)> {
    let mut file = File::open("/proc/self/exe").ok()?;
    let length = file.metadata().ok()?.len();
    let mut header = [0; elf::HEADER_BYTES];
    file.read_exact(&mut header).ok()?;
    Some((length, elf::length(&header)?))
}

/// The first two numbers of a release (`6.1.0-18-arm64`).
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
