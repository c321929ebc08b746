//! The edge core's side of a shim's socket.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recv, send, socket_with,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::timeout;

use super::wire::{self, Answer, Request, SOCKET};
use crate::sys;

/// Why a shim did not answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    /// There is none, or it ended before it answered.
    #[error("there is no shim")]
    Gone,
    #[error("speaking to the shim")]
    Io(#[from] io::Error),
    #[error("the shim took longer than {0:?}")]
    Late(Duration),
    #[error("the shim's answer")]
    Wire(#[from] wire::WireError),
}

/// A connection to a shim.
#[derive(Debug)]
pub(super) struct Client {
    socket: AsyncFd<OwnedFd>,
}

impl Client {
    /// To the shim of a run folder.
    pub(super) fn connect(folder: &Path) -> Result<Self, ClientError> {
        let socket = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        connect(&socket, folder).map_err(none)?;
        Ok(Self { socket: sys::register(socket, Interest::READABLE)? })
    }

    pub(super) fn ask(&self, request: &Request) -> Result<(), ClientError> {
        // The first thing on a new connection always has room.
        send(self.socket.get_ref(), &wire::encode(request), SendFlags::NOSIGNAL).map_err(|error| none(error.into()))?;
        Ok(())
    }

    pub(super) async fn answer(&self) -> Result<Answer, ClientError> {
        let mut bytes = vec![0; wire::MESSAGE_BYTES_MAX];
        loop {
            let mut ready = self.socket.readable().await?;
            match recv(self.socket.get_ref(), &mut bytes[..], RecvFlags::empty()) {
                Ok((_, 0)) => return Err(ClientError::Gone),
                Ok((_, length)) => return Ok(wire::decode(&bytes[..length])?),
                Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(none(error.into())),
            }
        }
    }
}

/// One to speak to a shim with.
pub(super) fn socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// To the shim of a run folder.
pub(super) fn connect(socket: &OwnedFd, folder: &Path) -> io::Result<()> {
    // By way of the open folder, because a socket's path is short.
    let opened = File::options()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_DIRECTORY)
        .open(folder)?;
    let path = format!("/proc/self/fd/{}/{SOCKET}", opened.as_raw_fd());
    Ok(rustix::net::connect(socket, &SocketAddrUnix::new(path.as_str())?)?)
}

/// Asks one thing.
pub(super) async fn ask(folder: &Path, request: &Request, limit: Duration) -> Result<Answer, ClientError> {
    let client = Client::connect(folder)?;
    client.ask(request)?;
    timeout(limit, client.answer())
        .await
        .map_err(|_| ClientError::Late(limit))?
}

/// What a shim that is not there, or just ended, looks like.
fn none(error: io::Error) -> ClientError {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound};
    match error.kind() {
        NotFound | ConnectionRefused | ConnectionReset | BrokenPipe => ClientError::Gone,
        _ => ClientError::Io(error),
    }
}
