//! The part of the cgroup tree that this user may change, which is where its pods' cgroups go. Only with version 2: a part
//! of one tree can be handed to a user, and systemd hands one to everybody's service manager.
//!
//! Pods' cgroups are made as far up in it as can be: in that of the user's service manager they are beside the edge core's
//! unit, and whoever ends or restarts that leaves them alone.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use crate::runtime::cgroup::{ROOT, hand_on, is_unified};

/// What to say where there is none.
pub(super) const NONE: &str = "no cgroup is delegated to this user (cgroups of version 2, and a systemd user unit), so pods \
                               are not held to their limits";

/// Where this edge core goes when it would be in the way of its pods.
const OWN: &str = "edgecore";

/// A cgroup that is this user's, with all below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Delegated {
    /// As `/proc/self/cgroup` has it.
    path: String,
    /// This process is in it itself.
    is_own: bool,
}

/// This process', judged by who may write to it; before anything is entered.
pub(super) fn find() -> Option<Delegated> {
    let text = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let may_change = |cgroup: &str| {
        let folder = folder(cgroup);
        ["", "cgroup.procs", "cgroup.subtree_control"]
            .iter()
            .all(|name| access(folder.join(name), Access::WRITE_OK).is_ok())
    };
    is_unified().then(|| topmost(&text, may_change))?
}

/// The uppermost one that can be changed, through nothing but such.
fn topmost(text: &str, may_change: impl Fn(&str) -> bool) -> Option<Delegated> {
    let own = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mut found = None;
    let mut next = Some(own);
    while let Some(cgroup) = next.filter(|cgroup| cgroup.len() > 1 && may_change(cgroup)) {
        found = Some(cgroup);
        next = cgroup.rsplit_once('/').map(|(above, _)| above);
    }
    found.map(|path| Delegated { path: path.to_owned(), is_own: path == own })
}

impl Delegated {
    /// What it is and what controls it; nothing is made.
    pub(super) fn look(self) -> (String, BTreeSet<String>) {
        let names = std::fs::read_to_string(folder(&self.path).join("cgroup.controllers")).unwrap_or_default();
        let names = names.split_whitespace().map(str::to_owned).collect();
        (self.path, names)
    }

    /// Makes the parent of all pods' cgroups in it: its path and its controllers. Empty where it turns out that it cannot.
    pub(super) fn prepare(&self, below: &str) -> (String, BTreeSet<String>) {
        let base = folder(&self.path);
        if self.is_own {
            // A cgroup that hands controllers on holds no process.
            let own = base.join(OWN);
            let _ = std::fs::create_dir(&own);
            let _ = std::fs::write(own.join("cgroup.procs"), "0");
        }
        let mut parent = base;
        for name in below.split('/').filter(|name| !name.is_empty()) {
            hand_on(&parent);
            parent.push(name);
            let _ = std::fs::create_dir(&parent);
        }
        match std::fs::read_to_string(parent.join("cgroup.controllers")) {
            Ok(names) => (
                format!("{}{below}", self.path),
                names.split_whitespace().map(str::to_owned).collect(),
            ),
            Err(_) => Default::default(),
        }
    }
}

fn folder(cgroup: &str) -> PathBuf {
    Path::new(ROOT).join(cgroup.trim_start_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_go_as_far_up_as_may_be_changed() {
        const MANAGER: &str = "/user.slice/user-1000.slice/user@1000.service";
        let unit = format!("{MANAGER}/app.slice/edgecore.service");
        let check = |text: &str, may: &dyn Fn(&str) -> bool, expected: Option<(&str, bool)>| {
            let found = topmost(text, may);
            let found = found.as_ref().map(|found| (found.path.as_str(), found.is_own));
            assert_eq!(found, expected, "{text}");
        };
        let text = format!("1:name=systemd:/x\n0::{unit}\n");
        check(&text, &|path| path.starts_with(MANAGER), Some((MANAGER, false)));
        check(&text, &|path| path == unit, Some((&unit, true)));
        check(&text, &|_| false, None);
        // Not through one that is somebody else's.
        check(&text, &|path| path == MANAGER, None);
        check("0::/\n", &|_| true, None);
        check("0::/a\n", &|_| true, Some(("/a", true)));
        check("3:cpu:/x\n", &|_| true, None);
    }
}
