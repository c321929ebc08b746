//! What can be read of this machine. Nothing here decides.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::pressure::{Disk, Supply};

/// The folders that fill up: the node's own files, the pods' logs, the images.
#[derive(Debug, Clone)]
pub(super) struct Places {
    pub data: PathBuf,
    pub logs: PathBuf,
    pub images: Option<PathBuf>,
}

/// The file systems of these places, each once.
pub(super) fn disks(places: &Places) -> Vec<Supply> {
    let mut known = BTreeSet::new();
    let folders = [
        Some((&places.data, false)),
        Some((&places.logs, false)),
        places.images.as_ref().map(|images| (images, true)),
    ];
    let mut supplies = Vec::new();
    for (folder, images) in folders.into_iter().flatten() {
        let is_new = fs::metadata(folder).is_ok_and(|metadata| known.insert(metadata.dev()));
        if let Some(disk) = is_new.then(|| disk(folder, images)).flatten() {
            supplies.extend(Supply::disk(&disk));
        }
    }
    supplies
}

fn disk(folder: &Path, images: bool) -> Option<Disk> {
    let file_system = rustix::fs::statvfs(folder).ok()?;
    Some(Disk {
        path: folder.display().to_string(),
        images,
        bytes_free: file_system.f_bavail.saturating_mul(file_system.f_frsize),
        bytes: file_system.f_blocks.saturating_mul(file_system.f_frsize),
        inodes_free: file_system.f_favail,
        inodes: file_system.f_files,
    })
}

/// How large the file system of a folder is, in bytes.
pub(super) fn storage(folder: &Path) -> u64 {
    disk(folder, false).map_or(0, |disk| disk.bytes)
}

/// What memory there is, and how much of it could be had.
pub(super) fn memory() -> Supply {
    let text = text("/proc/meminfo");
    Supply::memory(kilobytes(&text, "MemAvailable:"), kilobytes(&text, "MemTotal:"))
}

/// All of the memory, in bytes.
pub(super) fn memory_bytes() -> u64 {
    kilobytes(&text("/proc/meminfo"), "MemTotal:")
}

fn kilobytes(meminfo: &str, field: &str) -> u64 {
    let value = meminfo.lines().find_map(|line| line.strip_prefix(field));
    let value = value.and_then(|value| value.trim().trim_end_matches(" kB").parse::<u64>().ok());
    value.unwrap_or(0).saturating_mul(1024)
}

/// The process ids in use: every thread has one.
pub(super) fn pids() -> Supply {
    let number = |path: &str| line(path).parse::<u64>().unwrap_or(u64::MAX);
    let most = number("/proc/sys/kernel/pid_max").min(number("/proc/sys/kernel/threads-max"));
    match threads(&text("/proc/loadavg")) {
        Some(used) if most < u64::MAX => Supply::pids(used, most),
        Some(_) | None => Supply::pids(0, 0),
    }
}

/// `0.20 0.18 0.12 1/80 11206`: 80 of them.
fn threads(loadavg: &str) -> Option<u64> {
    loadavg.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok()
}

fn text(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

pub(super) fn line(path: &str) -> String {
    text(path).trim().to_owned()
}

pub(super) fn os_image() -> String {
    let release = text("/etc/os-release");
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.unwrap_or("Linux").trim_matches('"').to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::pressure::Pressure;
    use super::*;

    #[test]
    fn this_machine_has_something_to_say() {
        assert!(memory_bytes() > 0 && storage(Path::new("/")) > 0);
        assert!(!line("/proc/sys/kernel/osrelease").is_empty());
        assert_ne!(memory(), Supply::memory(0, memory_bytes()));
        assert_ne!(pids(), Supply::pids(0, 0));
        assert_eq!(Pressure::default().judge(&[pids()]), None);
    }

    #[test]
    fn a_file_system_is_measured_once() {
        let folder = tempfile::tempdir().unwrap();
        let (data, logs) = (folder.path().join("data"), folder.path().join("logs"));
        fs::create_dir(&data).unwrap();
        let places = |images: Option<PathBuf>| Places { data: data.clone(), logs: logs.clone(), images };
        // Folders that are not there yet are nobody's shortage.
        assert_eq!(disks(&places(None)).len(), 2);
        fs::create_dir(&logs).unwrap();
        assert_eq!(disks(&places(Some(logs.clone()))).len(), 2);
        assert_eq!(disks(&places(Some("/proc".into()))).len(), 4);
    }

    #[test]
    fn the_kernels_texts_are_read() {
        let meminfo = "MemTotal:         512000 kB\nMemFree:            100 kB\nMemAvailable:      2000 kB\n";
        assert_eq!(kilobytes(meminfo, "MemAvailable:"), 2_048_000);
        assert_eq!(kilobytes(meminfo, "SwapFree:"), 0);
        assert_eq!(threads("0.20 0.18 0.12 1/80 11206\n"), Some(80));
        assert_eq!(threads(""), None);
    }
}
