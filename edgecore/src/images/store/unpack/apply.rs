//! The members of a layer's archive, put into a tree that shows what is below it.
//!
//! The tree is either an overlay mount of the layers below, whose upper folder becomes the new layer (the kernel
//! then writes down what goes away, keeps what is only seen through, and copies a file up when a link needs it), or
//! a plain folder with everything in it. Hence nothing here knows how a layer is kept, and a path means what it would
//! mean in a container of the image: `lib/x` goes to `usr/lib/x` where `lib` is a link, hard links reach files below.
//!
//! As containerd does it: the root folder itself is as it is, whatever an archive says of it; a folder on a folder
//! is merged, everything else replaces; what marks something as gone only takes away what is from below.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::fs::File;
use std::hash::BuildHasher as _;
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::tree::{self, Found, Split, Stray, Tree, is_overlays, is_root, proc_path, shown};
use crate::images::tar::read::{Kind, Member, Reader};
use crate::removal;

/// The times of folders are set at the end; more than this for their paths is refused.
pub(super) const FOLDER_BYTES_MAX: usize = 64 * 1024 * 1024;

const COPY_BYTES: usize = 64 * 1024;
/// Of a mode: runs as its owner, as its group.
const SET_IDS: u32 = 0o6000;

const GONE: &[u8] = b".wh.";
const ALL_GONE: &[u8] = b".wh..wh..opq";
/// What AUFS kept for itself.
const OTHERS_OWN: &[u8] = b".wh..wh.";

/// Why a layer could not be unpacked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub(in crate::images::store) enum Fault {
    /// The image is wrong.
    #[error("{path}: {reason}")]
    Bad { path: String, reason: String },
    /// Its content is not what its digest says.
    #[error("its {what} content has the digest {found}, not {expected}")]
    Digest { what: String, expected: String, found: String },
    #[error("the disk is full")]
    Full,
    /// The machine would not.
    #[error("{path}: {reason}")]
    Machine { path: String, reason: String },
}

/// What a layer may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// What may be written before the disk counts as full.
    pub(super) room_bytes: u64,
}

/// What was done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::images::store) struct Applied {
    pub(in crate::images::store) members: u64,
    pub(in crate::images::store) bytes: u64,
    /// Devices and owners this process may not make, and attributes this file system does not have.
    pub(in crate::images::store) left_out: u64,
}

/// Puts an archive into `tree`.
pub(super) fn apply<R: Read>(archive: &mut Reader<R>, tree: &Tree, limits: Limits) -> Result<Applied, Fault> {
    let mut work = Work {
        tree,
        limits,
        applied: Applied::default(),
        hasher: RandomState::new(),
        ours: HashSet::new(),
        last: None,
        folders: Vec::new(),
        folder_bytes: 0,
        buffer: vec![0; COPY_BYTES],
    };
    let mut path = Vec::new();
    loop {
        let member = archive.next().map_err(|error| {
            let after = if path.is_empty() {
                "the start".to_owned()
            } else {
                shown(&path)
            };
            reading(&format!("after {after}"), &error)
        })?;
        let Some(member) = member else { break };
        path.clone_from(&member.path);
        work.applied.members += 1;
        work.member(archive, &member)
            .map_err(|trouble| trouble.fault(&shown(&member.path)))?;
    }
    work.times()?;
    Ok(work.applied)
}

struct Work<'a> {
    tree: &'a Tree,
    limits: Limits,
    applied: Applied,
    hasher: RandomState,
    /// Hashes of the real paths that this layer made, and of the folders they are in.
    ours: HashSet<u64>,
    /// The folder of the last member, by the name it was asked for.
    last: Option<(Vec<u8>, Found)>,
    /// Folders whose times are to be set.
    folders: Vec<(Vec<u8>, (i64, u32))>,
    folder_bytes: usize,
    buffer: Vec<u8>,
}

/// Why a member could not be made.
enum Trouble {
    Bad(String),
    Full,
    Io(io::Error),
    Reading(io::Error),
}

impl From<Stray> for Trouble {
    fn from(stray: Stray) -> Self {
        match stray {
            Stray::Bad(reason) => Self::Bad(reason.to_owned()),
            Stray::Io(error) => Self::Io(error),
        }
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Errno> for Trouble {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

impl Trouble {
    fn fault(self, path: &str) -> Fault {
        let path = path.to_owned();
        match self {
            Self::Bad(reason) => Fault::Bad { path, reason },
            Self::Full => Fault::Full,
            Self::Reading(error) => reading(&path, &error),
            Self::Io(error) => match Errno::from_io_error(&error) {
                Some(Errno::NOSPC | Errno::DQUOT) => Fault::Full,
                // What another image would not have led to.
                Some(
                    Errno::NAMETOOLONG
                    | Errno::LOOP
                    | Errno::NOTDIR
                    | Errno::ISDIR
                    | Errno::NOENT
                    | Errno::INVAL
                    | Errno::PERM
                    | Errno::EXIST
                    | Errno::MLINK
                    | Errno::FBIG
                    | Errno::RANGE
                    | Errno::TOOBIG,
                ) => Fault::Bad { path, reason: error.to_string() },
                _ => Fault::Machine { path, reason: error.to_string() },
            },
        }
    }
}

/// An error of the archive: its own, unless the system says otherwise.
fn reading(path: &str, error: &io::Error) -> Fault {
    let (path, reason) = (path.to_owned(), error.to_string());
    if error.raw_os_error().is_some() {
        Fault::Machine { path, reason }
    } else {
        Fault::Bad { path, reason }
    }
}

impl Work<'_> {
    fn member<R: Read>(&mut self, archive: &mut Reader<R>, member: &Member) -> Result<(), Trouble> {
        let Some(Split { folder: names, name }) = tree::split(&member.path)? else {
            return Ok(());
        };
        if name == ALL_GONE {
            return self.all_gone(&names);
        }
        if name.starts_with(OTHERS_OWN) {
            return Ok(());
        }
        if let Some(gone) = name.strip_prefix(GONE) {
            return self.gone(&names, gone);
        }
        let folder = self.folder(&names)?;
        let result = self.make(archive, member, &folder, name);
        self.last = Some((names.join(&b'/'), folder));
        result
    }

    /// The folder a member goes to, made where it is missing.
    fn folder(&mut self, names: &[&[u8]]) -> Result<Found, Trouble> {
        let asked = names.join(&b'/');
        if let Some((known, found)) = self.last.take()
            && known == asked
        {
            return Ok(found);
        }
        let found = self.tree.folder(names, true)?.expect("it is made");
        // Whoever marks a folder above as gone means what was there before, not this way in.
        for (at, byte) in found.path.iter().enumerate() {
            if *byte == b'/' {
                self.ours.insert(self.hasher.hash_one(&found.path[..at]));
            }
        }
        self.ours.insert(self.hasher.hash_one(&found.path[..]));
        Ok(found)
    }

    fn make<R: Read>(
        &mut self,
        archive: &mut Reader<R>,
        member: &Member,
        folder: &Found,
        name: &[u8],
    ) -> Result<(), Trouble> {
        let at = folder.fd.as_fd();
        let path = folder.child(name);
        let there = match rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(FileType::from_raw_mode(stat.st_mode)),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(errno.into()),
        };
        let merged = there == Some(FileType::Directory) && member.kind == Kind::Folder;
        if there.is_some() && !merged {
            removal::remove(at, name)?;
        }
        match member.kind {
            // What it is described as replaces what it was.
            Kind::Folder if merged => tree::clear_attributes(at, name)?,
            Kind::Folder => tree::make_folder(at, name)?,
            Kind::File => self.file(archive, member, at, name)?,
            Kind::Symlink => {
                if member.target.is_empty() || member.target.contains(&0) {
                    return Err(Trouble::Bad("a link without a target".into()));
                }
                rustix::fs::symlinkat(member.target.as_slice(), at, name)?;
            }
            Kind::Link => {
                self.link(member, at, name)?;
                // It has what the other name has.
                self.ours.insert(self.hasher.hash_one(&path[..]));
                return Ok(());
            }
            Kind::Fifo => rustix::fs::mknodat(at, name, FileType::Fifo, Mode::RUSR, 0)?,
            Kind::Device { block: false, major: 0, minor: 0 } => {
                return Err(Trouble::Bad(
                    "a device that overlayfs takes for the mark of what is gone".into(),
                ));
            }
            Kind::Device { block, major, minor } => {
                let kind = if block {
                    FileType::BlockDevice
                } else {
                    FileType::CharacterDevice
                };
                let device = rustix::fs::makedev(major, minor);
                match rustix::fs::mknodat(at, name, kind, Mode::RUSR, device) {
                    // In a user namespace nobody may; a container has devices of its own anyway.
                    Err(Errno::PERM) => {
                        self.applied.left_out += 1;
                        return Ok(());
                    }
                    made => made?,
                }
            }
        }
        self.ours.insert(self.hasher.hash_one(&path[..]));
        self.describe(member, at, name)?;
        if member.kind == Kind::Folder {
            self.folder_bytes += path.len();
            if self.folder_bytes > FOLDER_BYTES_MAX {
                return Err(Trouble::Bad("the paths of its folders are too long together".into()));
            }
            self.folders.push((path, member.modified));
        }
        Ok(())
    }

    fn file<R: Read>(
        &mut self,
        archive: &mut Reader<R>,
        member: &Member,
        at: BorrowedFd<'_>,
        name: &[u8],
    ) -> Result<(), Trouble> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::openat(at, name, flags, Mode::RUSR | Mode::WUSR)?);
        let Some(parts) = &member.parts else {
            return self.copy(archive, &mut file, member.size);
        };
        for (offset, length) in parts {
            file.seek(SeekFrom::Start(*offset))?;
            self.copy(archive, &mut file, *length)?;
        }
        Ok(file.set_len(member.size)?)
    }

    fn copy<R: Read>(&mut self, archive: &mut Reader<R>, file: &mut File, mut left: u64) -> Result<(), Trouble> {
        while left > 0 {
            let room = usize::try_from(left).unwrap_or(COPY_BYTES).min(COPY_BYTES);
            let count = archive.read(&mut self.buffer[..room]).map_err(Trouble::Reading)?;
            if count == 0 {
                return Err(Trouble::Bad("it is cut off".into()));
            }
            let bytes = u64::try_from(count).expect("a buffer");
            self.applied.bytes += bytes;
            if self.applied.bytes > self.limits.room_bytes {
                return Err(Trouble::Full);
            }
            file.write_all(&self.buffer[..count])?;
            left -= bytes;
        }
        Ok(())
    }

    fn link(&self, member: &Member, at: BorrowedFd<'_>, name: &[u8]) -> Result<(), Trouble> {
        let missing = || Trouble::Bad(format!("what it links to, {}, is not there", shown(&member.target)));
        let Split { folder: names, name: target } = tree::split(&member.target)?.ok_or_else(missing)?;
        let folder = self.tree.folder(&names, false)?.ok_or_else(missing)?;
        match rustix::fs::linkat(&folder.fd, target, at, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Err(missing()),
            Err(Errno::PERM) => Err(Trouble::Bad(format!(
                "what it links to, {}, is a folder",
                shown(&member.target)
            ))),
            linked => Ok(linked?),
        }
    }

    /// Owner first: it takes setuid and capabilities away.
    fn describe(&mut self, member: &Member, at: BorrowedFd<'_>, name: &[u8]) -> Result<(), Trouble> {
        let bad = |_| Trouble::Bad("its owner is no user".into());
        let owner = id(member.owner).map(Uid::from_raw).map_err(bad)?;
        let group = id(member.group).map(Gid::from_raw).map_err(bad)?;
        let mut mode = member.mode;
        match rustix::fs::chownat(at, name, Some(owner), Some(group), AtFlags::SYMLINK_NOFOLLOW) {
            // All is this user's own: who is root in its user namespace. The second is said of who is not in that.
            Err(Errno::PERM | Errno::INVAL) if !is_root() => {
                self.applied.left_out += 1;
                // It would give the rights of this user instead of those of the one it belongs to.
                mode &= !SET_IDS;
            }
            owned => owned?,
        }
        for (key, value) in &member.attributes {
            self.attribute(at, name, key, value)?;
        }
        if member.kind != Kind::Symlink {
            rustix::fs::chmodat(at, name, Mode::from_raw_mode(mode), AtFlags::empty())?;
        }
        if member.kind != Kind::Folder {
            rustix::fs::utimensat(at, name, &stamps(member.modified), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(())
    }

    fn attribute(&mut self, at: BorrowedFd<'_>, name: &[u8], key: &[u8], value: &[u8]) -> Result<(), Trouble> {
        if is_overlays(key) {
            return Ok(());
        }
        match rustix::fs::lsetxattr(proc_path(at, name), key, value, XattrFlags::empty()) {
            Err(Errno::NOTSUP) => {
                self.applied.left_out += 1;
                Ok(())
            }
            Err(Errno::PERM) if !is_root() => {
                self.applied.left_out += 1;
                Ok(())
            }
            Err(errno) => {
                let key = shown(key);
                match Trouble::from(errno).fault("") {
                    Fault::Bad { reason, .. } => Err(Trouble::Bad(format!("setting its attribute {key}: {reason}"))),
                    _ => Err(errno.into()),
                }
            }
            Ok(()) => Ok(()),
        }
    }

    /// One name of the layers below is no more.
    fn gone(&mut self, names: &[&[u8]], name: &[u8]) -> Result<(), Trouble> {
        if matches!(name, b"" | b"." | b"..") {
            return Err(Trouble::Bad("it marks nothing as gone".into()));
        }
        if let Some(folder) = self.tree.folder(names, false)? {
            self.take_away(&folder.child(name), folder.fd.as_fd(), name)?;
        }
        Ok(())
    }

    /// Nothing of the layers below is left in a folder.
    fn all_gone(&mut self, names: &[&[u8]]) -> Result<(), Trouble> {
        if let Some(folder) = self.tree.folder(names, false)? {
            self.empty(&folder.path, tree::open_folder(folder.fd.as_fd(), b".")?.as_fd())?;
        }
        Ok(())
    }

    fn empty(&mut self, path: &[u8], folder: BorrowedFd<'_>) -> Result<(), Trouble> {
        for name in tree::names(folder)? {
            self.take_away(&tree::join(path, name.to_bytes()), folder, name.to_bytes())?;
        }
        Ok(())
    }

    /// Removes what is from below; what this layer made stays, wherever in the archive the mark stands.
    fn take_away(&mut self, path: &[u8], at: BorrowedFd<'_>, name: &[u8]) -> Result<(), Trouble> {
        if !self.ours.contains(&self.hasher.hash_one(path)) {
            self.last = None;
            return Ok(removal::remove(at, name)?);
        }
        match tree::open_folder(at, name) {
            Ok(folder) => self.empty(path, folder.as_fd()),
            Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Sets the times of folders, now that nothing is put into them any more.
    fn times(&mut self) -> Result<(), Fault> {
        for (path, modified) in std::mem::take(&mut self.folders) {
            let set = || -> Result<(), Trouble> {
                let Some(Split { folder: names, name }) = tree::split(&path)? else {
                    return Ok(());
                };
                let Some(folder) = self.tree.folder(&names, false)? else {
                    return Ok(());
                };
                match rustix::fs::utimensat(&folder.fd, name, &stamps(modified), AtFlags::SYMLINK_NOFOLLOW) {
                    // A later member replaced it.
                    Err(Errno::NOENT) => Ok(()),
                    set => Ok(set?),
                }
            };
            set().map_err(|trouble| trouble.fault(&shown(&path)))?;
        }
        Ok(())
    }
}

/// All ones mean "leave it" to the kernel.
fn id(number: u32) -> Result<u32, ()> {
    if number == u32::MAX { Err(()) } else { Ok(number) }
}

fn stamps((seconds, nanos): (i64, u32)) -> Timestamps {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanos.into() };
    Timestamps { last_access: time, last_modification: time }
}

#[cfg(test)]
mod tests;
