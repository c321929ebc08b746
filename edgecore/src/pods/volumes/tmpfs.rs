//! Folders in memory.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Mounts a tmpfs on a folder unless something is mounted there already.
pub(super) fn ensure(folder: &Path, size_bytes: Option<u64>) -> io::Result<()> {
    if is_mounted(folder)? {
        return Ok(());
    }
    let path = c_path(folder)?;
    let options = match size_bytes {
        Some(size) => CString::new(format!("size={size}"))?,
        None => CString::default(),
    };
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    #[expect(unsafe_code, reason = "mount(2) has no safe form in std")]
    // SAFETY: every pointer is to a string that ends in NUL and lives over the call.
    let done = unsafe {
        libc::mount(
            c"tmpfs".as_ptr(),
            path.as_ptr(),
            c"tmpfs".as_ptr(),
            flags,
            options.as_ptr().cast(),
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Unmounts what is mounted on a folder; nothing when nothing is.
pub(super) fn release(folder: &Path) -> io::Result<()> {
    while folder.is_dir() && !folder.is_symlink() && is_mounted(folder)? {
        let path = c_path(folder)?;
        #[expect(unsafe_code, reason = "umount2(2) has no safe form in std")]
        // SAFETY: the pointer is to a string that ends in NUL and lives over the call.
        let done = unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Whether a folder is on another file system than the one it stands in.
fn is_mounted(folder: &Path) -> io::Result<bool> {
    let parent = folder.parent().unwrap_or(folder);
    Ok(fs::metadata(folder)?.dev() != fs::metadata(parent)?.dev())
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}
