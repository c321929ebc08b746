//! Whether an edge core without root would work here, found out by doing it: a copy of this process goes into namespaces of
//! its own, and says how far it came. Nothing of it is left when it ends.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::process::{WaitOptions, waitpid};
use serde::{Deserialize, Serialize};

use super::ids::Ids;
use super::{RootlessError, delegation, is_needed, make};
use crate::config::{Config, RuntimeName};
use crate::runtime::explain;
use crate::sys;

/// What a user's edge core would have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Why there would be none, with the fix.
    pub refused: Option<String>,
    /// How many users and groups there are in its containers.
    pub users: u64,
    pub groups: u64,
    /// What is not as good as it could be, with its fix.
    pub notes: Vec<String>,
    /// The cgroup that is this user's, and what controls it.
    pub delegated: Option<(String, BTreeSet<String>)>,
}

/// `None` where it would not be one without root. There must be no second thread.
pub fn look(config: &Config) -> Option<Found> {
    let embedded = matches!(config.runtime, RuntimeName::Auto | RuntimeName::Embedded);
    if !embedded || !is_needed() {
        return None;
    }
    let found = tried().unwrap_or_else(|error| Found {
        refused: Some(format!("trying what it takes: {error}")),
        ..Found::default()
    });
    Some(Found {
        delegated: delegation::find().map(|found| found.look()),
        ..found
    })
}

fn tried() -> io::Result<Found> {
    sys::only_thread()?;
    let (said, say) = io::pipe()?;
    let mut ours = Some(said);
    let pid = sys::fork(|| {
        drop(ours.take());
        let text = serde_json::to_vec(&inside()).unwrap_or_default();
        let said = File::from(OwnedFd::from(say)).write_all(&text);
        u8::from(said.is_err())
    })?;
    let mut text = Vec::new();
    if let Some(mut said) = ours {
        said.read_to_end(&mut text)?;
    }
    waitpid(Some(pid), WaitOptions::empty())?;
    Ok(serde_json::from_slice(&text)?)
}

fn inside() -> Found {
    let refused = |refused: String| Found { refused: Some(refused), ..Found::default() };
    let notes = match make::make() {
        Ok(notes) => notes,
        Err(RootlessError::Refused(refusal)) => return refused(refusal.text()),
        Err(error) => return refused(explain(&error)),
    };
    let found = Found {
        users: Ids::users().count(),
        groups: Ids::groups().count(),
        notes,
        ..Found::default()
    };
    match container() {
        Ok(()) => found,
        Err(reason) => Found { refused: Some(reason), ..found },
    }
}

/// What every container has of the kernel. `Err` is what to tell people.
fn container() -> Result<(), String> {
    let all = libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    sys::unshare(all).map_err(|error| format!("namespaces of a container are refused: {error}"))?;
    let shown = [("proc", "/proc"), ("sysfs", "/sys")];
    // The first process in its namespace: what it mounts is that one's.
    let pid = sys::fork(|| {
        let mount = |(kind, place): &(&str, &str)| sys::mount(Path::new(kind), Path::new(place), kind, 0, "");
        let failed = shown.iter().position(|one| mount(one).is_err());
        failed.map_or(0, |at| u8::try_from(at + 1).unwrap_or(u8::MAX))
    });
    let pid = pid.map_err(|error| format!("making a process: {error}"))?;
    let ended = waitpid(Some(pid), WaitOptions::empty()).map_err(|error| format!("waiting for a process: {error}"))?;
    let code = ended.and_then(|(_, status)| status.exit_status()).unwrap_or(i32::MAX);
    let failed = usize::try_from(code).ok().and_then(|code| code.checked_sub(1));
    let Some(failed) = failed else { return Ok(()) };
    let (kind, place) = shown.get(failed).copied().unwrap_or(("what it takes", "/"));
    Err(format!(
        "a container cannot mount {kind}, because something covers parts of {place} here, as container engines do: run the \
         edge core on the machine itself, or where nothing is mounted below {place}"
    ))
}
