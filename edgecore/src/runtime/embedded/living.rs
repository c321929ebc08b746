//! Something of a node's pods that lives: its namespaces are those of the next edge core without root.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
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

/// How long a process may take for its last steps, which may wait for a disk.
const ENDING: Duration = Duration::from_secs(30);

/// A process, as what it stays known by.
#[derive(Debug)]
pub(crate) enum Living {
    /// All that was mounted is there for it.
    Shim(OwnedFd),
    Container(OwnedFd),
}

impl Living {
    pub(crate) fn process(&self) -> BorrowedFd<'_> {
        match self {
            Self::Shim(process) | Self::Container(process) => process.as_fd(),
        }
    }

    /// Waits for the end of one that has begun to end.
    pub(crate) fn ended(&self) -> io::Result<()> {
        let limit = Timespec::try_from(ENDING).map_err(io::Error::other)?;
        match poll(
            &mut [PollFd::from_borrowed_fd(self.process(), PollFlags::IN)],
            Some(&limit),
        )? {
            0 => Err(io::ErrorKind::TimedOut.into()),
            _ => Ok(()),
        }
    }
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
    // Both are still there, and so the number was not another's when it was looked up; nor has the process ended and left
    // its socket to another one.
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut polled = [socket.as_fd(), process.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    poll(&mut polled, Some(&now))?;
    if polled.iter().all(|polled| polled.revents().is_empty()) {
        Ok(process)
    } else {
        Err(io::ErrorKind::ConnectionReset.into())
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};

    use super::*;
    use crate::runtime::embedded::wire::SOCKET;

    #[test]
    fn whoever_listens_for_a_pod_is_found_while_it_does() {
        let folder = tempfile::tempdir().unwrap();
        let (data, run) = (folder.path().join("d"), folder.path().join("r"));
        let folders = Folders::new(&data, &run);
        let pod: Uid = "013c0a11-3c9e-462b-a7b0-9573b5e1cd84".parse().unwrap();
        assert!(living(&data, &run).is_none());
        std::fs::create_dir_all(folders.pod(pod)).unwrap();
        std::fs::create_dir_all(folders.run(pod)).unwrap();
        assert!(living(&data, &run).is_none());
        let shim = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        let path = folders.run(pod).join(SOCKET);
        bind(&shim, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&shim, 1).unwrap();
        assert!(matches!(living(&data, &run), Some(Living::Shim(_))));
        drop(shim);
        assert!(path.exists() && living(&data, &run).is_none());
    }

    #[test]
    fn one_that_ends_is_waited_for() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let process = || pidfd_open(rustix::process::Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        let (shim, container) = (Living::Shim(process()), Living::Container(process()));
        child.kill().unwrap();
        shim.ended().unwrap();
        assert!(child.try_wait().unwrap().is_some(), "it has ended by then");
        container.ended().unwrap();
    }
}
