//! Tells when this host's network changed, as the kernel says it over netlink: a plug, an address, a route.
//!
//! What changed is not read. Whether it helps, the next try finds out.

use std::io;
use std::net::UdpSocket as Datagrams;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use tokio::net::UdpSocket;

/// Links, addresses and routes of both families, as `linux/rtnetlink.h` numbers them.
const GROUPS: u32 = 0x1 | 0x10 | 0x40 | 0x100 | 0x400;

/// Messages taken at one go.
const MESSAGES_MAX: usize = 64;

/// Hears of changes.
#[derive(Debug)]
pub struct Network {
    /// Not of UDP: what is asked of it is what all sockets of datagrams do.
    socket: UdpSocket,
}

impl Network {
    /// Hears of changes from now on.
    pub fn watch() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
        Ok(Self { socket: UdpSocket::from_std(Datagrams::from(socket))? })
    }

    /// Waits for the next change; those that came together are one. May be abandoned and called again.
    pub async fn changed(&self) -> io::Result<()> {
        let mut buffer = [0; 64];
        match self.socket.recv(&mut buffer).await {
            // So many that some were lost.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOBUFS) => {}
            heard => drop(heard?),
        }
        for _ in 1..MESSAGES_MAX {
            if self.socket.try_recv(&mut buffer).is_err() {
                break;
            }
        }
        Ok(())
    }
}
