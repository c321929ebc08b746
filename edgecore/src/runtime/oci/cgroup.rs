//! Cgroups of both versions, by their files. One with an empty name is none: who is not root may have none.

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::path::{Component, Path, PathBuf};

pub(crate) const ROOT: &str = "/sys/fs/cgroup";

/// What limits something, where there is one tree for everything.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

/// Has the cgroups below one limited as well (version 2). A controller that is not there, or held by somebody else, is missed
/// where a limit is set.
pub(crate) fn hand_on(folder: &Path) {
    for controller in CONTROLLERS {
        let _ = std::fs::write(folder.join("cgroup.subtree_control"), format!("+{controller}"));
    }
}

/// Whether there is one tree for everything (version 2). Where version 1 has what limits, one may be mounted beside it.
pub(crate) fn is_unified() -> bool {
    Path::new(ROOT).join("cgroup.controllers").exists()
}

/// The controllers that this machine has, by name.
pub(in crate::runtime) fn controllers() -> BTreeSet<String> {
    let unified = std::fs::read_to_string(Path::new(ROOT).join("cgroup.controllers"));
    if let Ok(names) = unified {
        return names.split_whitespace().map(str::to_owned).collect();
    }
    let names = mounted(Path::new(ROOT)).into_iter();
    names
        .filter_map(|path| path.file_name()?.to_str().map(str::to_owned))
        .collect()
}

/// Whether the kernel killed something in a cgroup for lack of memory.
pub(in crate::runtime) fn was_oom_killed(cgroup: &str) -> bool {
    if cgroup.is_empty() {
        return false;
    }
    let cgroup = cgroup.trim_start_matches('/');
    let files = [
        format!("memory/{cgroup}/memory.oom_control"),
        format!("{cgroup}/memory.events"),
    ];
    let texts = files
        .iter()
        .filter_map(|file| std::fs::read_to_string(Path::new(ROOT).join(file)).ok());
    texts.into_iter().any(|text| oom_kills(&text) > 0)
}

/// The counter in `memory.oom_control` (v1) or `memory.events` (v2): both have it as `oom_kill N`.
fn oom_kills(text: &str) -> u64 {
    let count = text
        .lines()
        .find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok());
    count.unwrap_or(0)
}

/// Moves this process into a cgroup, in every hierarchy that takes it: what it starts does not end with whoever started
/// it. How many did.
pub(in crate::runtime) fn join(cgroup: &str) -> usize {
    let own = |hierarchy: &PathBuf| -> io::Result<()> {
        let folder = hierarchy.join(cgroup.trim_start_matches('/'));
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join("cgroup.procs"), "0")
    };
    let joined = roots().into_iter().filter(|hierarchy| own(hierarchy).is_ok());
    joined.count()
}

/// The processes in a cgroup and those below it.
pub(in crate::runtime) fn processes(cgroup: &str) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    if cgroup.is_empty() {
        return found;
    }
    assert!(
        !cgroup.trim_matches('/').is_empty(),
        "the root's processes are everybody's"
    );
    for root in roots() {
        collect(&root.join(cgroup.trim_start_matches('/')), &mut found);
    }
    found
}

/// The cgroup of version 2 that a process is in, which must be `own` or below it.
pub(in crate::runtime) fn below(own: &Path, process: u32) -> io::Result<PathBuf> {
    let text = std::fs::read_to_string(format!("/proc/{process}/cgroup"))?;
    unified(&text)
        .filter(|path| path.starts_with(own) && path.components().all(|part| part != Component::ParentDir))
        .ok_or_else(|| io::Error::other("its first process has left it"))
}

/// The one of version 2, in the text of `/proc/PID/cgroup`.
fn unified(text: &str) -> Option<PathBuf> {
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new(ROOT).join(path))
}

fn collect(folder: &Path, found: &mut BTreeSet<u32>) {
    let text = std::fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    found.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect(&entry.path(), found);
        }
    }
}

/// Lets everything in a cgroup and those below it run again: what is frozen does not end, whoever kills it (version 1).
pub(in crate::runtime) fn thaw(cgroup: &str) {
    if cgroup.is_empty() {
        return;
    }
    for root in roots() {
        thaw_tree(&root.join(cgroup.trim_start_matches('/')));
    }
}

fn thaw_tree(folder: &Path) {
    for (file, value) in [("freezer.state", "THAWED"), ("cgroup.freeze", "0")] {
        // Only what is there already: a folder of another kind gets no file.
        let file = std::fs::File::options().write(true).open(folder.join(file));
        let _ = file.and_then(|mut file| file.write_all(value.as_bytes()));
    }
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            thaw_tree(&entry.path());
        }
    }
}

/// Removes a cgroup from the unified hierarchy or from every one there is, with those below it; one that is still busy is
/// an error, because something runs in it.
pub(in crate::runtime) fn remove(cgroup: &str) -> io::Result<()> {
    if cgroup.is_empty() {
        return Ok(());
    }
    remove_below(Path::new(ROOT), Path::new(cgroup.trim_start_matches('/')))
}

fn remove_below(root: &Path, cgroup: &Path) -> io::Result<()> {
    for hierarchy in hierarchies(root).into_iter().chain([root.to_owned()]) {
        missing_is_fine(remove_tree(&hierarchy.join(cgroup)))?;
    }
    Ok(())
}

/// Removes a cgroup and what is left below it: a shim that was killed has not removed its containers' own. One that holds
/// a process stays.
fn remove_tree(cgroup: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(cgroup)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            missing_is_fine(remove_tree(&entry.path()))?;
        }
    }
    std::fs::remove_dir(cgroup)
}

fn missing_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Where a cgroup may be: below the one tree of version 2, else below each of version 1.
pub(in crate::runtime) fn roots() -> Vec<PathBuf> {
    let root = Path::new(ROOT);
    if is_unified() {
        vec![root.to_owned()]
    } else {
        mounted(root)
    }
}

/// Without folders on which nothing is mounted: what is written there limits nothing.
fn mounted(root: &Path) -> Vec<PathBuf> {
    let mut found = hierarchies(root);
    found.retain(|hierarchy| hierarchy.join("cgroup.procs").exists());
    found
}

fn hierarchies(root: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_without_a_name_is_none_and_never_the_root() {
        assert!(processes("").is_empty() && !was_oom_killed(""));
        thaw("");
        remove("").unwrap();
    }

    #[test]
    fn oom_kills_are_read_from_both_kinds_of_cgroup() {
        assert_eq!(oom_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"), 3);
        assert_eq!(
            oom_kills("low 0\nhigh 0\nmax 7\noom 2\noom_kill 1\noom_group_kill 0\n"),
            1
        );
        assert_eq!(oom_kills(""), 0);
    }

    #[test]
    fn a_folder_on_which_nothing_is_mounted_is_no_hierarchy() {
        let root = tempfile::tempdir().unwrap();
        for name in ["memory", "pids"] {
            std::fs::create_dir(root.path().join(name)).unwrap();
        }
        std::fs::write(root.path().join("memory/cgroup.procs"), "").unwrap();
        assert_eq!(mounted(root.path()), [root.path().join("memory")]);
    }

    #[test]
    fn a_cgroup_is_removed_from_every_hierarchy_unless_something_runs_in_it() {
        let root = std::env::temp_dir().join(format!("edgehold-cgroup-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        let pod = Path::new("edgehold/pod1");
        for hierarchy in ["cpu", "memory"] {
            std::fs::create_dir_all(root.join(hierarchy).join(pod)).unwrap();
        }
        std::fs::create_dir_all(root.join("pids")).unwrap();
        remove_below(&root, pod).unwrap();
        assert!(!root.join("cpu").join(pod).exists() && !root.join("memory").join(pod).exists());
        remove_below(&root, pod).unwrap();
        std::fs::create_dir_all(root.join(pod).join("c-0")).unwrap();
        remove_below(&root, pod).unwrap();
        assert!(!root.join(pod).exists());
        // What no cgroup file system would hold stands for a process.
        std::fs::create_dir_all(root.join(pod)).unwrap();
        std::fs::write(root.join(pod).join("busy"), "").unwrap();
        assert!(remove_below(&root, pod).is_err());
        std::fs::remove_dir_all(&root).unwrap();
    }
}
