//! Layers copied onto each other, where they cannot be seen through an overlay.
//!
//! Understands what overlayfs left in a layer (marks of what is gone, folders that hide those below), so that images
//! unpacked while there were overlays can still be run after a kernel came without them.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::unpack::tree::{
    DEPTH_MAX, attributes, clear_attributes, is_root, join, make_folder, names, open_folder, proc_path,
};
use crate::removal::remove;

/// What the kernel is asked to copy at once.
const COPY_BYTES: usize = 16 * 1024 * 1024;

/// The attributes that say that a folder hides what is below it.
const OPAQUE: [&str; 2] = ["trusted.overlay.opaque", "user.overlay.opaque"];

/// Puts folders below `layers`, topmost first, on each other into `target`, which exists.
pub(super) fn stack(layers: &Path, from: &[String], target: &Path) -> io::Result<()> {
    let open = |path: &Path| {
        rustix::fs::open(
            path,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
    };
    let target = open(target)?;
    for name in from.iter().rev() {
        let layer = open(&layers.join(name))?;
        let mut copy = Copy { root: &target, links: HashMap::new() };
        copy.folder(layer.as_fd(), target.as_fd(), &[], 0)?;
    }
    Ok(())
}

struct Copy<'a> {
    root: &'a OwnedFd,
    /// Where the first name of a file with several is.
    links: HashMap<u64, Vec<u8>>,
}

impl Copy<'_> {
    fn folder(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>, path: &[u8], depth: usize) -> io::Result<()> {
        if depth > DEPTH_MAX {
            return Err(io::Error::other("a layer is too deep"));
        }
        for name in names(from)? {
            let name = name.to_bytes();
            let stat = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?;
            let kind = FileType::from_raw_mode(stat.st_mode);
            if kind == FileType::CharacterDevice && stat.st_rdev == 0 {
                remove(to, name)?;
            } else if kind == FileType::Directory {
                self.inner(from, to, name, &join(path, name), &stat, depth)?;
            } else {
                remove(to, name)?;
                self.file(from, to, name, &join(path, name), &stat, kind)?;
            }
        }
        Ok(())
    }

    fn inner(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &[u8],
        path: &[u8],
        stat: &Stat,
        depth: usize,
    ) -> io::Result<()> {
        let there = match rustix::fs::statat(to, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) => Some(FileType::from_raw_mode(there.st_mode)),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(errno.into()),
        };
        let merged = there == Some(FileType::Directory) && !is_opaque(from, name);
        if !merged {
            remove(to, name)?;
            make_folder(to, name)?;
        }
        let (inner, made) = (open_folder(from, name)?, open_folder(to, name)?);
        self.folder(inner.as_fd(), made.as_fd(), path, depth + 1)?;
        if merged {
            // What the upper one does not have, it does not have any more.
            clear_attributes(to, name)?;
        }
        describe(from, to, name, stat)
    }

    fn file(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &[u8],
        path: &[u8],
        stat: &Stat,
        kind: FileType,
    ) -> io::Result<()> {
        if stat.st_nlink > 1 {
            if let Some(first) = self.links.get(&stat.st_ino) {
                return Ok(rustix::fs::linkat(
                    self.root,
                    first.as_slice(),
                    to,
                    name,
                    AtFlags::empty(),
                )?);
            }
            self.links.insert(stat.st_ino, path.to_vec());
        }
        match kind {
            FileType::RegularFile => content(from, to, name, stat)?,
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(from, name, Vec::new())?;
                rustix::fs::symlinkat(target, to, name)?;
            }
            kind => rustix::fs::mknodat(to, name, kind, Mode::RUSR, stat.st_rdev)?,
        }
        describe(from, to, name, stat)
    }
}

/// Copies what a file holds, holes as holes, without a second copy where the file system can.
fn content(from: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &[u8], stat: &Stat) -> io::Result<()> {
    let source = rustix::fs::openat(
        from,
        name,
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let target = rustix::fs::openat(to, name, flags, Mode::RUSR | Mode::WUSR)?;
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(&source, SeekFrom::Data(at)) {
            Ok(start) => start,
            // Only a hole is left.
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL) => at,
            Err(errno) => return Err(errno.into()),
        };
        let end = rustix::fs::seek(&source, SeekFrom::Hole(start))
            .unwrap_or(size)
            .min(size);
        part(&source, &target, start, end)?;
        at = end;
    }
    File::from(target).set_len(size)
}

fn part(source: &OwnedFd, target: &OwnedFd, start: u64, end: u64) -> io::Result<()> {
    let (mut from, mut to) = (start, start);
    while from < end {
        let length = usize::try_from(end - from).unwrap_or(COPY_BYTES).min(COPY_BYTES);
        match rustix::fs::copy_file_range(source, Some(&mut from), target, Some(&mut to), length) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            // Old kernels, and file systems that cannot.
            Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL | Errno::XDEV | Errno::PERM) => {
                let mut buffer = vec![0; length.min(64 * 1024)];
                let count = rustix::io::pread(source, &mut buffer, from)?;
                if count == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                let written = rustix::io::pwrite(target, &buffer[..count], to)?;
                let written = u64::try_from(written).expect("a buffer");
                (from, to) = (from + written, to + written);
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Owner first: it takes setuid and capabilities away.
fn describe(from: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &[u8], stat: &Stat) -> io::Result<()> {
    let (owner, group) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    match rustix::fs::chownat(to, name, Some(owner), Some(group), AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::PERM | Errno::INVAL) if !is_root() => {}
        owned => owned?,
    }
    for key in attributes(from, name)? {
        let path = proc_path(from, name);
        let length = rustix::fs::lgetxattr_query(path.as_slice(), key.as_slice())?;
        let mut value = vec![0; length];
        let length = rustix::fs::lgetxattr(path.as_slice(), key.as_slice(), value.as_mut_slice())?;
        value.truncate(length);
        match rustix::fs::lsetxattr(proc_path(to, name), key.as_slice(), &value, XattrFlags::empty()) {
            Ok(()) | Err(Errno::NOTSUP) => {}
            Err(Errno::PERM) if !is_root() => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
        rustix::fs::chmodat(to, name, Mode::from_raw_mode(stat.st_mode), AtFlags::empty())?;
    }
    let time = |seconds, nanos| Timespec { tv_sec: seconds, tv_nsec: nanos };
    let times = Timestamps {
        last_access: time(stat.st_atime, i64::try_from(stat.st_atime_nsec).unwrap_or(0)),
        last_modification: time(stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or(0)),
    };
    Ok(rustix::fs::utimensat(to, name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

fn is_opaque(folder: BorrowedFd<'_>, name: &[u8]) -> bool {
    let path = proc_path(folder, name);
    OPAQUE.iter().any(|key| {
        let mut value = [0; 1];
        matches!(rustix::fs::lgetxattr(path.as_slice(), *key, &mut value[..]), Ok(1)) && value == *b"y"
    })
}
