//! A container's terminal: made in the container, held by its shim.

use std::fs::File;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::fs::{OFlags, fchown};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use rustix::process::{Uid, ioctl_tiocsctty};
use rustix::pty::{ptsname, unlockpt};

use super::root::Root;
use crate::runtime::oci::inside::{self, Kind};
use crate::sys;

/// Makes a terminal, this session's own, and hands its other end over. What is returned is what the container reads from,
/// writes to and says its errors to. Its group is that of all terminals, as the file system says.
pub(super) fn make(root: &Root, console: &UnixStream, owner: Uid) -> io::Result<[OwnedFd; 3]> {
    let flags = OFlags::RDWR | OFlags::NOCTTY;
    let held = root.open(Path::new("/dev/pts/ptmx"), flags)?;
    unlockpt(&held)?;
    // Named as the host would have it; in the container it has the same number.
    let name = ptsname(&held, Vec::new())?;
    let number = name.to_str().ok().and_then(|name| name.rsplit('/').next());
    let number = number.ok_or_else(|| io::Error::other("the terminal has no number"))?;
    let terminal = root.open(&Path::new("/dev/pts").join(number), flags)?;
    fchown(&terminal, Some(owner), None)?;
    let place = inside::place(root, Path::new("/dev/console"), Kind::File)?;
    sys::mount(&inside::name(&terminal), &inside::name(&place), "", libc::MS_BIND, "")?;
    ioctl_tiocsctty(&terminal)?;
    let descriptors = [held.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = SendAncillaryBuffer::new(&mut space);
    if !message.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(
        console,
        &[IoSlice::new(name.to_bytes())],
        &mut message,
        SendFlags::NOSIGNAL,
    )?;
    Ok([terminal.try_clone()?, terminal.try_clone()?, terminal])
}

/// The terminal that a container hands over, for the shim.
pub(in crate::runtime::embedded) fn take(peer: &UnixStream) -> io::Result<File> {
    let mut name = [0; 256];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut received = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [io::IoSliceMut::new(&mut name)];
    recvmsg(peer, &mut parts, &mut received, RecvFlags::CMSG_CLOEXEC)?;
    let descriptors = received.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let file = File::from(descriptors.ok_or_else(|| io::Error::other("no terminal was handed over"))?);
    rustix::io::ioctl_fionbio(&file, true)?;
    Ok(file)
}
