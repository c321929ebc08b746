//! A shim's socket: who may speak, one message at a time, nobody waited for.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, recv,
    send, socket_with,
};

use crate::runtime::embedded::wire::{self, Answer, Request, SOCKET, WireError};

/// Connections waiting to be taken.
const BACKLOG: i32 = 8;

pub(super) struct Listener {
    socket: OwnedFd,
    next: u64,
}

impl Listener {
    /// In the current folder, in the place of whichever was there.
    pub(super) fn bind() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let new = format!("{SOCKET}.new");
        let _ = std::fs::remove_file(&new);
        bind(&socket, &SocketAddrUnix::new(new.as_str())?)?;
        listen(&socket, BACKLOG)?;
        std::fs::rename(new, SOCKET)?;
        Ok(Self { socket, next: 0 })
    }

    /// One who may speak: root, or who started this.
    pub(super) fn accept(&mut self) -> Option<Client> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = accept_with(&self.socket, flags).ok()?;
        let peer = socket_peercred(&socket).ok()?.uid;
        if !peer.is_root() && peer != rustix::process::geteuid() {
            return None;
        }
        self.next += 1;
        Some(Client { socket, number: self.next, watches: false, gone: false })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A connection.
pub(super) struct Client {
    socket: OwnedFd,
    pub(super) number: u64,
    pub(super) watches: bool,
    /// To be forgotten.
    pub(super) gone: bool,
}

impl Client {
    /// What it asks, if it asks anything.
    pub(super) fn receive(&mut self, bytes: &mut [u8]) -> Option<Result<Request, WireError>> {
        match recv(&self.socket, &mut *bytes, RecvFlags::TRUNC) {
            Ok((0, _)) => self.gone = true,
            // With `TRUNC` a message that was cut has its whole length.
            Ok((_, length)) if length > bytes.len() => return Some(Err(WireError::Garbled)),
            Ok((_, length)) => return Some(wire::decode(&bytes[..length])),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(_) => self.gone = true,
        }
        None
    }

    /// Whoever does not read what it is told is forgotten, comes back and looks.
    pub(super) fn send(&mut self, answer: &Answer) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        self.gone |= send(&self.socket, &wire::encode(answer), flags).is_err();
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
