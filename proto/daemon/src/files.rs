//! Files outside the databases: replaced as a whole or not at all, and folders with one owner.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// A file that could not be replaced or locked.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("{} names no file", path.display())]
    Name { path: PathBuf },
    #[error("writing {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("putting {} in its place", path.display())]
    Rename {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("syncing the folder {}", path.display())]
    Folder {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is locked: another process uses this folder", path.display())]
    Locked { path: PathBuf },
    #[error("locking {}", path.display())]
    Lock {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Puts `bytes` at `path` with the permission bits `mode`: after a power cut there is the old file or the new one.
///
/// One writer per path; a file that an interrupted call left behind is cleared away by the next one.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> Result<(), FileError> {
    let temporary = temporary(path)?;
    write(&temporary, bytes, mode).map_err(|source| FileError::Write { path: temporary.clone(), source })?;
    put_in_place(&temporary, path)
}

/// Where a new file for `path` is written before it takes its place: in the same folder.
pub fn temporary(path: &Path) -> Result<PathBuf, FileError> {
    let Some(name) = path.file_name() else {
        return Err(FileError::Name { path: path.to_owned() });
    };
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(".new");
    Ok(path.with_file_name(hidden))
}

/// Gives the place at `path` to a synced file of the same folder.
pub fn put_in_place(temporary: &Path, path: &Path) -> Result<(), FileError> {
    fs::rename(temporary, path).map_err(|source| FileError::Rename { path: path.to_owned(), source })?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(|source| FileError::Folder { path: folder.to_owned(), source })
}

fn write(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    // The process's umask has had its say on the mode; the caller's word counts.
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Makes a folder that only this user may enter, with those above it; one that is there is left as it is.
pub fn private_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Takes the lock file at `path`, made if need be, for as long as the returned file lives. The kernel gives the lock
/// back when the process ends, however it ends.
pub fn lock(path: &Path) -> Result<File, FileError> {
    let failed = |source| FileError::Lock { path: path.to_owned(), source };
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(FileError::Locked { path: path.to_owned() }),
        Err(TryLockError::Error(source)) => Err(failed(source)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_with_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        replace(&path, b"one", 0o600).unwrap();
        // What a call that was cut short leaves behind is in nobody's way.
        fs::write(folder.path().join(".key.new"), b"half").unwrap();
        replace(&path, b"two", 0o644).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failed_replacement_keeps_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        replace(&path, b"one", 0o600).unwrap();
        // Something that cannot be cleared away stands where the temporary file goes.
        fs::create_dir(folder.path().join(".key.new")).unwrap();
        assert!(matches!(replace(&path, b"two", 0o600), Err(FileError::Write { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert!(matches!(
            replace(Path::new("/"), b"", 0o600),
            Err(FileError::Name { .. })
        ));
    }

    #[test]
    fn a_folder_has_one_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let held = lock(&path).unwrap();
        assert!(matches!(lock(&path), Err(FileError::Locked { .. })));
        drop(held);
        lock(&path).unwrap();
    }
}
