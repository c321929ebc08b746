//! Reads an image's accounts from a snapshot that is mounted for it.

use std::io;
use std::path::{Path, PathBuf};

use containerd_client::types::Mount;

use crate::runtime::oci::passwd;
use crate::sys;

/// `/etc/passwd` and `/etc/group`, empty when the image has none. `folder` is made, mounted on and removed.
pub(super) fn read(mounts: &[Mount], folder: &Path) -> io::Result<(String, String)> {
    std::fs::create_dir_all(folder)?;
    // Left behind when the edge core died in the middle of this.
    while sys::unmount(folder).is_ok() {}
    let mounted = Mounted::new(mounts, folder)?;
    let files = passwd::read(folder);
    drop(mounted);
    std::fs::remove_dir(folder)?;
    files
}

/// A snapshot's mounts, undone when dropped.
struct Mounted(Vec<PathBuf>);

impl Mounted {
    fn new(mounts: &[Mount], folder: &Path) -> io::Result<Self> {
        let mut done = Self(Vec::new());
        for mount in mounts {
            let (mut flags, mut data) = (libc::MS_RDONLY, Vec::new());
            for option in &mount.options {
                match option.as_str() {
                    "ro" | "rw" => {}
                    "bind" => flags |= libc::MS_BIND,
                    "rbind" => flags |= libc::MS_BIND | libc::MS_REC,
                    other => data.push(other),
                }
            }
            sys::mount(Path::new(&mount.source), folder, &mount.r#type, flags, &data.join(","))?;
            done.0.push(folder.to_owned());
        }
        Ok(done)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        for folder in self.0.iter().rev() {
            let _ = sys::unmount(folder);
        }
    }
}
