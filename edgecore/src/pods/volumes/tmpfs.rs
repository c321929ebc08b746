//! Folders in memory.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::sys;

/// Mounts a tmpfs on a folder unless something is mounted there already.
pub(super) fn ensure(folder: &Path, size_bytes: Option<u64>) -> io::Result<()> {
    if is_mounted(folder)? {
        return Ok(());
    }
    let options = size_bytes.map(|size| format!("size={size}")).unwrap_or_default();
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    sys::mount(Path::new("tmpfs"), folder, "tmpfs", flags, &options)
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
