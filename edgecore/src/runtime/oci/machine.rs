//! What this machine offers to containers, read once.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use oci_spec::runtime::{Capabilities, Capability, LinuxDevice, LinuxDeviceType};
use rustix::thread::CapabilitySet;

use super::spec::Machine;

/// The capabilities in the order of their bits in the kernel.
const CAPABILITIES: [Capability; 41] = [
    Capability::Chown,
    Capability::DacOverride,
    Capability::DacReadSearch,
    Capability::Fowner,
    Capability::Fsetid,
    Capability::Kill,
    Capability::Setgid,
    Capability::Setuid,
    Capability::Setpcap,
    Capability::LinuxImmutable,
    Capability::NetBindService,
    Capability::NetBroadcast,
    Capability::NetAdmin,
    Capability::NetRaw,
    Capability::IpcLock,
    Capability::IpcOwner,
    Capability::SysModule,
    Capability::SysRawio,
    Capability::SysChroot,
    Capability::SysPtrace,
    Capability::SysPacct,
    Capability::SysAdmin,
    Capability::SysBoot,
    Capability::SysNice,
    Capability::SysResource,
    Capability::SysTime,
    Capability::SysTtyConfig,
    Capability::Mknod,
    Capability::Lease,
    Capability::AuditWrite,
    Capability::AuditControl,
    Capability::Setfcap,
    Capability::MacOverride,
    Capability::MacAdmin,
    Capability::Syslog,
    Capability::WakeAlarm,
    Capability::BlockSuspend,
    Capability::AuditRead,
    Capability::Perfmon,
    Capability::Bpf,
    Capability::CheckpointRestore,
];

/// Reads what there is. What cannot be read is not there.
pub(in crate::runtime) fn read() -> Machine {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let held = bounding(&status);
    let capabilities = CAPABILITIES
        .into_iter()
        .enumerate()
        .filter(|(bit, _)| held >> bit & 1 == 1);
    let mut devices = Vec::new();
    find_devices(Path::new("/dev"), &mut devices);
    Machine {
        capabilities: capabilities
            .map(|(_, capability)| (capability.to_string(), capability))
            .collect(),
        unified_cgroups: super::cgroup::is_unified(),
        devices,
    }
}

/// Capabilities as the kernel has them.
pub(in crate::runtime) fn capability_set(names: &Capabilities) -> CapabilitySet {
    let held = CAPABILITIES.iter().enumerate().filter(|(_, name)| names.contains(name));
    CapabilitySet::from_bits_retain(held.fold(0, |bits, (bit, _)| bits | 1 << bit))
}

/// The bounding set in `/proc/self/status`.
fn bounding(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("CapBnd:"));
    line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0)
}

/// Every device below a folder, except those each container has its own of.
fn find_devices(folder: &Path, found: &mut Vec<LinuxDevice>) {
    const OWN: [&str; 8] = ["pts", "shm", "fd", "mqueue", "console", ".lxc", ".lxd-mounts", ".udev"];
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(about) = entry.metadata() else { continue };
        if entry.file_name().to_str().is_some_and(|name| OWN.contains(&name)) {
            continue;
        }
        if about.is_dir() {
            find_devices(&path, found);
        } else if let Some(device) = device(&path, &about) {
            found.push(device);
        }
    }
}

fn device(path: &Path, about: &Metadata) -> Option<LinuxDevice> {
    let kind = about.file_type();
    let kind = match (kind.is_char_device(), kind.is_block_device()) {
        (true, _) => LinuxDeviceType::C,
        (_, true) => LinuxDeviceType::B,
        _ => return None,
    };
    let number = about.rdev();
    // How Linux packs the two halves of a device number.
    let major = number >> 8 & 0xfff | number >> 32 & 0xffff_f000;
    let minor = number & 0xff | number >> 12 & 0xffff_ff00;
    let mut device = LinuxDevice::default();
    device
        .set_path(path.to_owned())
        .set_typ(kind)
        .set_major(i64::try_from(major).ok()?)
        .set_minor(i64::try_from(minor).ok()?)
        .set_file_mode(Some(about.mode() & 0o7777))
        .set_uid(Some(about.uid()))
        .set_gid(Some(about.gid()));
    Some(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_the_kernels() {
        assert_eq!(bounding("Name:\tx\nCapBnd:\t000001ffffffffff\n"), 0x1ff_ffff_ffff);
        assert_eq!(bounding("CapBnd:\tnonsense"), 0);
        assert_eq!(bounding(""), 0);
        assert_eq!(CAPABILITIES[12], Capability::NetAdmin);
        assert_eq!(CAPABILITIES[21], Capability::SysAdmin);
        assert_eq!(CAPABILITIES[40], Capability::CheckpointRestore);
        let two = Capabilities::from([Capability::Chown, Capability::SysAdmin]);
        assert_eq!(capability_set(&two), CapabilitySet::CHOWN | CapabilitySet::SYS_ADMIN);
    }

    #[test]
    fn device_numbers_are_taken_apart() {
        let null = device(Path::new("/dev/null"), &std::fs::metadata("/dev/null").unwrap()).unwrap();
        assert_eq!((null.typ(), null.major(), null.minor()), (LinuxDeviceType::C, 1, 3));
        assert_eq!(device(Path::new("/"), &std::fs::metadata("/").unwrap()), None);
    }
}
