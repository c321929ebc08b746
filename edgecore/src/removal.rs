//! Taking away folders that somebody else filled: containers, images.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

/// So many levels are open at once, by two descriptors each: a service may have no more than a thousand.
const LEVELS_MAX: usize = 64;

/// Removes what is at a path, with all in it; nothing there is fine.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(());
    };
    match File::open(parent) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(parent) => remove(parent.as_fd(), name.as_bytes()),
    }
}

/// Removes whatever has this name, with all in it; nothing there is fine. Links are removed, never followed.
///
/// A container may have made folders deeper than there are descriptors: what is too deep is first moved up.
pub(crate) fn remove(at: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    match rustix::fs::unlinkat(at, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(errno) => return Err(errno.into()),
    }
    let folder = open_folder(at, name)?;
    let mut moved = 0;
    loop {
        let before = moved;
        clear(folder.as_fd(), folder.as_fd(), 0, &mut moved)?;
        if moved == before {
            break;
        }
    }
    drop(folder);
    Ok(rustix::fs::unlinkat(at, name, AtFlags::REMOVEDIR)?)
}

/// Empties `folder`, `depth` levels below `top`, where what is too deep ends up.
fn clear(folder: BorrowedFd<'_>, top: BorrowedFd<'_>, depth: usize, moved: &mut u64) -> io::Result<()> {
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        if entry.file_type() != FileType::Directory {
            match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => continue,
                Err(Errno::ISDIR | Errno::PERM) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        if depth == LEVELS_MAX {
            move_up(folder, name, top, moved)?;
            continue;
        }
        let inner = open_folder(folder, name)?;
        clear(inner.as_fd(), top, depth + 1, moved)?;
        drop(inner);
        rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR)?;
    }
    Ok(())
}

/// Moves what is too deep up, under a name that nothing has there.
fn move_up(folder: BorrowedFd<'_>, name: &[u8], top: BorrowedFd<'_>, moved: &mut u64) -> io::Result<()> {
    loop {
        let hidden = format!(".edgehold-deep-{moved}");
        *moved += 1;
        match rustix::fs::renameat(folder, name, top, hidden.as_str()) {
            Ok(()) => return Ok(()),
            // Whoever made it so deep may have thought of this name, too.
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Opens a folder for listing, never through a link.
pub(crate) fn open_folder(at: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, flags, Mode::empty())
}

#[cfg(test)]
pub(crate) mod testing {
    use rustix::process::{Resource, Rlimit, setrlimit};

    use super::*;

    /// A folder in a folder, and so on, made without a path; more of them than this process may have descriptors from
    /// now on.
    pub(crate) fn deep(top: &Path) {
        let mut at = OwnedFd::from(File::open(top).unwrap());
        for _ in 0..12 * LEVELS_MAX {
            rustix::fs::mkdirat(at.as_fd(), "d", Mode::RWXU).unwrap();
            at = open_folder(at.as_fd(), b"d").unwrap();
        }
        let limit = Some(4 * LEVELS_MAX as u64);
        setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_deeper_than_there_are_descriptors_go_whatever_else_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().join("top");
        for (name, is_file) in [(".edgehold-deep-0", false), (".edgehold-deep-1", true)] {
            let path = top.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            if is_file {
                std::fs::write(path, "x").unwrap();
            } else {
                std::fs::create_dir_all(path.join("full")).unwrap();
            }
        }
        testing::deep(&top);
        let target = folder.path().join("elsewhere");
        std::fs::write(&target, "stays").unwrap();
        std::os::unix::fs::symlink(&target, top.join("link")).unwrap();
        remove_tree(&top).unwrap();
        assert!(!top.exists());
        assert!(target.exists());
        remove_tree(&top).unwrap();
        remove_tree(&top.join("below/nothing")).unwrap();
    }
}
