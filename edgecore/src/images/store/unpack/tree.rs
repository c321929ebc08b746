//! A folder taken for the root of everything: what an image calls a file leads to what is in it, and never out.
//!
//! Paths are walked name by name with `O_NOFOLLOW`, and links are followed here, with this folder as their root, so
//! that neither an absolute target nor any number of `..` leads out. The kernel has the same as one call (`openat2` with
//! `RESOLVE_IN_ROOT`), but not before 5.6 and not under every seccomp filter, and it does not make what is missing:
//! one way that works everywhere is better than two, and the last folder is kept open, so that most members cost
//! no walk at all. Nobody else changes the folder meanwhile.

use std::collections::VecDeque;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;

pub(in crate::images::store) use crate::removal::open_folder;
use crate::rootless::ids::Ids;

/// Longer paths are refused, as by the kernel.
pub(in crate::images::store) const PATH_BYTES_MAX: usize = 4096;

/// Deeper folders are refused: each level costs a descriptor while a path is walked or a folder copied.
pub(in crate::images::store) const DEPTH_MAX: usize = 128;

/// As the kernel has it.
const LINKS_MAX: usize = 40;

const FOLDER: OFlags = OFlags::PATH
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Why a path leads nowhere.
#[derive(Debug)]
pub(super) enum Stray {
    /// What the image says is wrong.
    Bad(&'static str),
    Io(io::Error),
}

impl From<Errno> for Stray {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// A path of an archive: the names that lead to its folder, and its own.
#[derive(Debug)]
pub(super) struct Split<'a> {
    pub(super) folder: Vec<&'a [u8]>,
    pub(super) name: &'a [u8],
}

/// Parts a path of an archive. `None` is the root itself.
pub(super) fn split(path: &[u8]) -> Result<Option<Split<'_>>, Stray> {
    if path.len() > PATH_BYTES_MAX {
        return Err(Stray::Bad("its path is too long"));
    }
    if path.contains(&0) {
        return Err(Stray::Bad("its path has a zero byte"));
    }
    // An absolute path means this root.
    let mut names: Vec<&[u8]> = path
        .split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty() && *name != b".")
        .collect();
    if names.contains(&&b".."[..]) {
        return Err(Stray::Bad("its path goes up with \"..\""));
    }
    Ok(names.pop().map(|name| Split { folder: names, name }))
}

/// A folder that was found: its descriptor and where it really is below the root.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) fd: OwnedFd,
    pub(super) path: Vec<u8>,
}

impl Found {
    /// The real path of something in it.
    pub(super) fn child(&self, name: &[u8]) -> Vec<u8> {
        join(&self.path, name)
    }
}

pub(in crate::images::store) fn join(folder: &[u8], name: &[u8]) -> Vec<u8> {
    if folder.is_empty() {
        name.to_vec()
    } else {
        [folder, b"/", name].concat()
    }
}

/// The root.
#[derive(Debug)]
pub(super) struct Tree {
    root: OwnedFd,
}

impl Tree {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { root: rustix::fs::open(path, FOLDER, Mode::empty())? })
    }

    /// The folder these names lead to; with `make`, what is missing on the way is made.
    pub(super) fn folder(&self, names: &[&[u8]], make: bool) -> Result<Option<Found>, Stray> {
        let mut todo: VecDeque<Vec<u8>> = names.iter().map(|name| name.to_vec()).collect();
        let mut stack: Vec<(OwnedFd, Vec<u8>)> = Vec::new();
        let mut links = 0;
        while let Some(name) = todo.pop_front() {
            if name == b".." {
                // Above the root is the root.
                stack.pop();
                continue;
            }
            if stack.len() == DEPTH_MAX {
                return Err(Stray::Bad("it is too deep"));
            }
            let (at, path) = match stack.last() {
                Some((fd, path)) => (fd.as_fd(), path.as_slice()),
                None => (self.root.as_fd(), &[][..]),
            };
            let path = join(path, &name);
            match rustix::fs::openat(at, name.as_slice(), FOLDER, Mode::empty()) {
                Ok(fd) => stack.push((fd, path)),
                Err(Errno::NOENT) if !make => return Ok(None),
                Err(Errno::NOENT) => {
                    make_folder(at, &name)?;
                    stack.push((rustix::fs::openat(at, name.as_slice(), FOLDER, Mode::empty())?, path));
                }
                Err(Errno::NOTDIR | Errno::LOOP) => {
                    let target = match rustix::fs::readlinkat(at, name.as_slice(), Vec::new()) {
                        Ok(target) => target.into_bytes(),
                        Err(Errno::INVAL) => return Err(Stray::Bad("its path leads through a file")),
                        Err(errno) => return Err(errno.into()),
                    };
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(Stray::Bad("its path leads through too many links"));
                    }
                    if target.starts_with(b"/") {
                        stack.clear();
                    }
                    let names = target.split(|byte| *byte == b'/');
                    for name in names.rev().filter(|name| !name.is_empty() && *name != b".") {
                        todo.push_front(name.to_vec());
                    }
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        let (fd, path) = match stack.pop() {
            Some(found) => found,
            None => (self.root.try_clone().map_err(Stray::Io)?, Vec::new()),
        };
        Ok(Some(Found { fd, path }))
    }
}

/// Makes a folder as one is that nobody described, whatever this process' umask is.
pub(in crate::images::store) fn make_folder(at: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    let mode = Mode::from_raw_mode(0o755);
    rustix::fs::mkdirat(at, name, mode)?;
    rustix::fs::chmodat(at, name, mode, AtFlags::empty())
}

/// What a folder holds.
pub(in crate::images::store) fn names(folder: BorrowedFd<'_>) -> Result<Vec<CString>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    Ok(names)
}

/// How the kernel calls something in an open folder, for the calls that know no descriptors.
pub(in crate::images::store) fn proc_path(folder: BorrowedFd<'_>, name: &[u8]) -> Vec<u8> {
    use std::os::fd::AsRawFd as _;
    [format!("/proc/self/fd/{}/", folder.as_raw_fd()).as_bytes(), name].concat()
}

/// The names of the attributes, without overlayfs' own.
pub(in crate::images::store) fn attributes(folder: BorrowedFd<'_>, name: &[u8]) -> io::Result<Vec<Vec<u8>>> {
    let path = proc_path(folder, name);
    let mut list = match rustix::fs::llistxattr_query(path.as_slice()) {
        Ok(length) => vec![0; length],
        Err(Errno::NOTSUP) => return Ok(Vec::new()),
        Err(errno) => return Err(errno.into()),
    };
    let length = rustix::fs::llistxattr(path.as_slice(), list.as_mut_slice())?;
    list.truncate(length);
    let keys = list
        .split(|byte| *byte == 0)
        .filter(|key| !key.is_empty() && !is_overlays(key));
    Ok(keys.map(<[u8]>::to_vec).collect())
}

/// Takes the attributes away, as far as that is allowed.
pub(in crate::images::store) fn clear_attributes(folder: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    for key in attributes(folder, name)? {
        // What a security module put there is its own.
        let _ = rustix::fs::lremovexattr(proc_path(folder, name), key.as_slice());
    }
    Ok(())
}

/// Whether this process should be able to do whatever an image asks for. Not in a user namespace, whoever it is in there:
/// users that are not in it own nothing, and what is the whole machine's is not its.
pub(in crate::images::store) fn is_root() -> bool {
    rustix::process::geteuid().is_root() && !is_in_user_namespace()
}

/// Whether there are users outside.
pub(in crate::images::store) fn is_in_user_namespace() -> bool {
    Ids::users().count() < u64::from(u32::MAX)
}

/// What overlayfs writes down for itself: in an image it would be read as ours.
pub(in crate::images::store) fn is_overlays(key: &[u8]) -> bool {
    key.starts_with(b"trusted.overlay.") || key.starts_with(b"user.overlay.")
}

pub(in crate::images::store) fn shown(path: &[u8]) -> String {
    Path::new(OsStr::from_bytes(path)).display().to_string()
}
