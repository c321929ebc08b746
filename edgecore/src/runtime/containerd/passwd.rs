//! Reads an image's accounts from its mounted root file system.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use containerd_client::types::Mount;

use crate::sys;

/// Larger account files are refused.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// `/etc/passwd` and `/etc/group`, empty when the image has none. `folder` is made, mounted on and removed.
pub(super) fn read(mounts: &[Mount], folder: &Path) -> io::Result<(String, String)> {
    std::fs::create_dir_all(folder)?;
    // Left behind when the edge core died in the middle of this.
    while sys::unmount(folder).is_ok() {}
    let mounted = Mounted::new(mounts, folder)?;
    let root = File::open(folder)?;
    let files = account_file(&root, c"etc/passwd").and_then(|passwd| Ok((passwd, account_file(&root, c"etc/group")?)));
    drop(root);
    drop(mounted);
    std::fs::remove_dir(folder)?;
    files
}

fn account_file(root: &File, name: &std::ffi::CStr) -> io::Result<String> {
    let file = match sys::open_below(root, name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        file => file?,
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() > usize::try_from(FILE_BYTES_MAX).expect("a megabyte") {
        return Err(io::Error::other("it is too large"));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_file_is_read_up_to_its_limit_and_never_from_outside() {
        let folder = std::env::temp_dir().join(format!("edgehold-accounts-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(folder.join("etc")).unwrap();
        let root = File::open(&folder).unwrap();
        let passwd = || account_file(&root, c"etc/passwd");
        assert_eq!(passwd().unwrap(), "");
        std::fs::write(folder.join("etc/passwd"), "inside").unwrap();
        assert_eq!(passwd().unwrap(), "inside");
        std::os::unix::fs::symlink("/etc/passwd", folder.join("etc/group")).unwrap();
        assert_eq!(account_file(&root, c"etc/group").unwrap(), "inside");
        let limit = usize::try_from(FILE_BYTES_MAX).unwrap();
        std::fs::write(folder.join("etc/passwd"), vec![b'x'; limit]).unwrap();
        assert_eq!(passwd().unwrap().len(), limit);
        std::fs::write(folder.join("etc/passwd"), vec![b'x'; limit + 1]).unwrap();
        assert!(passwd().is_err());
        std::fs::remove_file(folder.join("etc/passwd")).unwrap();
        std::fs::create_dir(folder.join("etc/passwd")).unwrap();
        assert!(passwd().is_err());
    }
}
