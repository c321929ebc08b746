//! An edge core that is not root: it goes into a user namespace of its own, in which it is.
//!
//! In there everything that makes a container works as it does for root, on what belongs to this user and to nobody else:
//! mounts (in a mount namespace of its own), other namespaces, other users where `/etc/subuid` and `/etc/subgid` give it
//! some. It is entered before there is any thread or anything opened, in place, so that a service manager still knows its
//! process.
//!
//! What was mounted in there is seen in there only, and pods outlive the edge core that started them. So the next one joins
//! the namespaces of a shim that lives (`runtime::embedded::living`), which the kernel allows to the user that made
//! them. Where nothing lives the namespaces are gone, with all that was mounted: for pods that is a reboot.
//! `docs/decisions/0018-rootless.md` has what was left out and why.

mod delegation;
pub mod ids;
mod make;
pub mod probe;
mod refusal;

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use rustix::thread::{CapabilitySet, ThreadNameSpaceType, capabilities, move_into_thread_name_spaces};

pub use self::refusal::Refusal;
use crate::config::{Config, RuntimeName, user};
use crate::runtime::embedded::living::{Living, living};
use crate::sys;

/// What an edge core without root has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rootless {
    /// The cgroup controllers that hold its pods to their limits.
    pub controllers: BTreeSet<String>,
    /// What is not as good as it could be, with its fix.
    pub notes: Vec<String>,
}

/// Why there is no edge core without root.
#[derive(Debug, thiserror::Error)]
pub enum RootlessError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("joining the namespaces of the pods that run")]
    Join(#[source] io::Error),
    #[error("making namespaces without root")]
    Make(#[source] io::Error),
    #[error(
        "runtime: containerd takes root, and this is user {uid}: set runtime = \"embedded\" or \"auto\", or run it as root"
    )]
    Containerd { uid: u32 },
}

/// Whether this process may do by itself what an edge core does.
pub fn is_needed() -> bool {
    match capabilities(None) {
        Ok(held) => !held.effective.contains(CapabilitySet::SYS_ADMIN),
        // An emulator may not know the call.
        Err(_) => !rustix::process::geteuid().is_root(),
    }
}

/// Leaves the keys of whoever started this process behind: containers are not to find them. A kernel without keys has none
/// to find. There must be no second thread, and so there is no log yet: an error is for whoever has one.
pub fn leave_keys() -> io::Result<()> {
    match sys::own_keyring() {
        Err(error) if error.kind() == io::ErrorKind::QuotaExceeded => Err(error),
        _ => Ok(()),
    }
}

/// Goes into the namespaces of this node where that is needed, and fits the configuration to them. There must be no
/// second thread.
pub fn enter(config: &mut Config) -> Result<(), RootlessError> {
    if config.runtime == RuntimeName::Fake || !is_needed() {
        return Ok(());
    }
    let uid = rustix::process::getuid().as_raw();
    match config.runtime {
        // It may be that somebody lets this process do what it takes; containerd says whether.
        RuntimeName::Containerd if uid == 0 => return Ok(()),
        RuntimeName::Containerd => return Err(RootlessError::Containerd { uid }),
        RuntimeName::Auto | RuntimeName::Embedded | RuntimeName::Fake => config.runtime = RuntimeName::Embedded,
    }
    // The names that were given on the command line are those of this folder.
    let here = std::env::current_dir();
    let delegated = delegation::find();
    user::forget_other_boots(&config.run);
    // Others may enter the folders above it, and who starts with a umask of its own would let them in.
    let _ = daemon::files::private_folder(&config.logs);
    let mut notes = if join_pods(config).map_err(RootlessError::Join)? {
        Vec::new()
    } else {
        make::make()?
    };
    if let Ok(here) = here {
        let _ = std::env::set_current_dir(here);
    }
    let (parent, controllers) = match delegated {
        Some(delegated) => delegated.prepare(&config.pods.cgroup),
        None => Default::default(),
    };
    if parent.is_empty() {
        notes.push(delegation::NONE.to_owned());
    }
    config.pods.cgroup = parent;
    config.rootless = Some(Rootless { controllers, notes });
    Ok(())
}

/// Goes to where the node's pods are; whether any are there. A process that is about to end may still answer, and has no
/// namespaces any more: once it has ended, there is another one, or none.
fn join_pods(config: &Config) -> io::Result<bool> {
    while let Some(living) = living(&config.embedded(), &config.run) {
        match join(&living) {
            Ok(()) => return Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => living.ended()?,
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

fn join(living: &Living) -> io::Result<()> {
    sys::only_thread()?;
    let process = living.process();
    match living {
        Living::Shim(_) => {
            let both = ThreadNameSpaceType::USER | ThreadNameSpaceType::MOUNT;
            Ok(move_into_thread_name_spaces(process, both)?)
        }
        // Its mounts are those of a container.
        Living::Container(_) => {
            move_into_thread_name_spaces(process, ThreadNameSpaceType::USER)?;
            sys::unshare(libc::CLONE_NEWNS)?;
            own_mounts()
        }
    }
}

/// What is mounted from now on is seen in this mount namespace only; what the host mounts is seen here as well.
fn own_mounts() -> io::Result<()> {
    sys::mount(Path::new("none"), Path::new("/"), "", libc::MS_REC | libc::MS_SLAVE, "")
}
