//! Folders in memory.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::sys;

/// What a folder in memory begins with; the kernel's defaults where nothing is said.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Memory {
    pub(super) size_bytes: Option<u64>,
    pub(super) mode: Option<u32>,
    pub(super) group: Option<u32>,
}

impl Memory {
    fn options(&self) -> String {
        let size = self.size_bytes.map(|size| format!("size={size}"));
        let mode = self.mode.map(|mode| format!("mode={mode:o}"));
        let group = self.group.map(|group| format!("gid={group}"));
        size.into_iter().chain(mode).chain(group).collect::<Vec<_>>().join(",")
    }
}

/// Mounts a tmpfs on a folder unless something is mounted there already.
pub(super) fn ensure(folder: &Path, memory: &Memory) -> io::Result<()> {
    if is_mounted(folder)? {
        return Ok(());
    }
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    sys::mount(Path::new("tmpfs"), folder, "tmpfs", flags, &memory.options())
}

/// Unmounts what is mounted on a folder; nothing when nothing is.
pub(super) fn release(folder: &Path) -> io::Result<()> {
    while folder.is_dir() && !folder.is_symlink() && is_mounted(folder)? {
        sys::unmount(folder)?;
    }
    Ok(())
}

/// Whether a folder is on another file system than the one it stands in.
fn is_mounted(folder: &Path) -> io::Result<bool> {
    let parent = folder.parent().unwrap_or(folder);
    Ok(fs::metadata(folder)?.dev() != fs::metadata(parent)?.dev())
}
