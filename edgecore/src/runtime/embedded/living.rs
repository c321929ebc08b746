//! Something of a node's pods that lives: its namespaces are those of the next edge core without root.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::time::Duration;

use proto::object::Uid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::SocketFlags;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::process::{PidfdFlags, pidfd_open};

use super::folders::Folders;
use super::record::{self, Made};
use super::{client, first};

/// How long a shim that has a lot to do may take to be connected to.
const CONNECT: Duration = Duration::from_secs(10);

/// A process, as what it stays known by.
#[derive(Debug)]
pub(crate) enum Living {
    /// All that was mounted is there for it.
    Shim(OwnedFd),
    Container(OwnedFd),
}

/// A shim of those below the runtime's two folders, or else a container whose shim was killed.
pub(crate) fn living(data: &Path, run: &Path) -> Option<Living> {
    let folders = Folders::new(data, run);
    let pods = folders.pods();
    let shim = pods.iter().find_map(|pod| shim(&folders.run(*pod)).ok());
    let container = || {
        let of_pod = |pod: Uid| folders.containers(pod).into_iter().map(move |id| (pod, id));
        pods.iter().copied().flat_map(of_pod).find_map(|(pod, id)| {
            let made = record::read::<Made>(&folders.container(pod, &id).join(record::MADE)).ok()??;
            first::find(&folders.run(pod).join(&id), &made.cgroup)
        })
    };
    shim.map(Living::Shim)
        .or_else(|| container().map(|(_, process)| Living::Container(process)))
}

/// Whoever listens there.
fn shim(folder: &Path) -> io::Result<OwnedFd> {
    let socket = client::socket(SocketFlags::CLOEXEC)?;
    set_socket_timeout(&socket, Timeout::Send, Some(CONNECT))?;
    client::connect(&socket, folder)?;
    let process = pidfd_open(socket_peercred(&socket)?.pid, PidfdFlags::empty())?;
    // It is still there, and so the number was not another's when it was looked up.
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let socket = socket.as_fd();
    let mut polled = [PollFd::new(&socket, PollFlags::IN)];
    poll(&mut polled, Some(&now))?;
    if polled[0].revents().is_empty() {
        Ok(process)
    } else {
        Err(io::ErrorKind::ConnectionReset.into())
    }
}
