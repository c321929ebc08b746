//! An image's accounts, from its root file system.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use rustix::fs::OFlags;

use super::inside;

/// Larger account files are refused.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// `/etc/passwd` and `/etc/group` below `root`, empty when there is none. No link in them leads out of it.
pub(in crate::runtime) fn read(root: &Path) -> io::Result<(String, String)> {
    let root = File::open(root)?;
    Ok((account_file(&root, "etc/passwd")?, account_file(&root, "etc/group")?))
}

fn account_file(root: &File, name: &str) -> io::Result<String> {
    // Looked at before it is opened: a device may act on the machine when it is.
    let place = match inside::open(root, Path::new(name), OFlags::PATH) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        place => File::from(place?),
    };
    if !place.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let file = File::open(inside::name(&place))?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() > usize::try_from(FILE_BYTES_MAX).expect("a megabyte") {
        return Err(io::Error::other("it is too large"));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
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
        let passwd = || account_file(&root, "etc/passwd");
        assert_eq!(passwd().unwrap(), "");
        std::fs::write(folder.join("etc/passwd"), "inside").unwrap();
        assert_eq!(passwd().unwrap(), "inside");
        std::os::unix::fs::symlink("/etc/passwd", folder.join("etc/group")).unwrap();
        assert_eq!(account_file(&root, "etc/group").unwrap(), "inside");
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
