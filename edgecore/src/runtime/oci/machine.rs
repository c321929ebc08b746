//! What this machine offers to containers, read once.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use rustix::thread::CapabilitySet;

use super::oom;
use super::spec::Machine;
use crate::oci::{Capabilities, Capability, Device, DeviceKind};
use crate::rootless::ids::Ids;

/// Reads what there is. What cannot be read is not there.
pub(in crate::runtime) fn read() -> Machine {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let held = bounding(&status);
    let capabilities = Capability::ALL.iter().enumerate();
    let mut devices = Vec::new();
    find_devices(Path::new("/dev"), &mut devices);
    Machine {
        capabilities: capabilities
            .filter(|(bit, _)| held >> bit & 1 == 1)
            .map(|(_, capability)| *capability)
            .collect(),
        unified_cgroups: super::cgroup::is_unified(),
        devices,
        users: Ids::users(),
        groups: Ids::groups(),
        may_set_groups: may_set_groups(),
        oom_score_adj_min: oom_score_adj_min(),
        rootless: false,
    }
}

/// Whether a process may leave groups: not where an ordinary user is alone in its namespace.
pub(in crate::runtime) fn may_set_groups() -> bool {
    std::fs::read_to_string("/proc/self/setgroups").map_or(true, |text| text.trim() != "deny")
}

/// Tried, because it takes a capability outside of all user namespaces: what this process has once it has lowered its own
/// as far as that goes, which is put back.
fn oom_score_adj_min() -> i32 {
    const LOWEST: i32 = -1000;
    let Some(own) = oom::own() else { return 0 };
    if oom::set(LOWEST).is_err() {
        return own;
    }
    let _ = oom::set(own);
    LOWEST
}

/// Capabilities as the kernel has them.
pub(in crate::runtime) fn capability_set(names: &Capabilities) -> CapabilitySet {
    let held = Capability::ALL
        .iter()
        .enumerate()
        .filter(|(_, name)| names.contains(name));
    CapabilitySet::from_bits_retain(held.fold(0, |bits, (bit, _)| bits | 1 << bit))
}

/// The bounding set in `/proc/self/status`.
fn bounding(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("CapBnd:"));
    line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0)
}

/// Every device below a folder, except those each container has its own of.
fn find_devices(folder: &Path, found: &mut Vec<Device>) {
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

fn device(path: &Path, about: &Metadata) -> Option<Device> {
    let kind = about.file_type();
    let kind = match (kind.is_char_device(), kind.is_block_device()) {
        (true, _) => DeviceKind::Character,
        (_, true) => DeviceKind::Block,
        _ => return None,
    };
    let number = about.rdev();
    // How Linux packs the two halves of a device number.
    let major = number >> 8 & 0xfff | number >> 32 & 0xffff_f000;
    let minor = number & 0xff | number >> 12 & 0xffff_ff00;
    Some(Device {
        path: path.to_owned(),
        kind,
        major: u32::try_from(major).ok()?,
        minor: u32::try_from(minor).ok()?,
        file_mode: about.mode() & 0o7777,
        uid: about.uid(),
        gid: about.gid(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_the_kernels() {
        assert_eq!(bounding("Name:\tx\nCapBnd:\t000001ffffffffff\n"), 0x1ff_ffff_ffff);
        assert_eq!(bounding("CapBnd:\tnonsense"), 0);
        assert_eq!(bounding(""), 0);
        assert_eq!(Capability::ALL[12], Capability::NetAdmin);
        assert_eq!(Capability::ALL[21], Capability::SysAdmin);
        assert_eq!(Capability::ALL[40], Capability::CheckpointRestore);
        let two = Capabilities::from([Capability::Chown, Capability::SysAdmin]);
        assert_eq!(capability_set(&two), CapabilitySet::CHOWN | CapabilitySet::SYS_ADMIN);
    }

    #[test]
    fn device_numbers_are_taken_apart() {
        let null = device(Path::new("/dev/null"), &std::fs::metadata("/dev/null").unwrap()).unwrap();
        assert_eq!((null.kind, null.major, null.minor), (DeviceKind::Character, 1, 3));
        assert_eq!(device(Path::new("/"), &std::fs::metadata("/").unwrap()), None);
    }
}
