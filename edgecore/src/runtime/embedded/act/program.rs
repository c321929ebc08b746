//! The last steps before a container's program runs: its user, its capabilities, its folder, its filter.
//!
//! A seccomp filter is loaded as late as can be; then, and not before, goes what loading it took.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::process::{Gid, Uid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_keep_capabilities, set_no_new_privs, set_thread_gid,
    set_thread_groups, set_thread_uid,
};

use super::during;
use crate::oci::{Process, Spec};
use crate::runtime::explain;
use crate::runtime::oci::machine;
use crate::seccomp::privileges::Entry;
use crate::sys;

/// What others may not do with what it makes, unless it says otherwise.
const UMASK: Mode = Mode::from_raw_mode(0o022);

/// A container's program, or a command beside it.
pub(super) struct Program {
    process: Process,
    entry: Entry,
    /// Those of this process, where nobody may change them: an ordinary user with no ranges.
    keeps_groups: bool,
}

impl Program {
    /// `spec` is the container's, as it was prepared.
    pub(super) fn of(spec: &Spec, command: Option<&[&str]>) -> Result<Self, String> {
        let mut process = spec.process.clone();
        if let Some(command) = command {
            process.args = command.iter().map(|word| (*word).to_owned()).collect();
        }
        let entry = Entry::of(spec).map_err(|error| explain(&error))?;
        // Read here: the container has its own /proc, or none.
        let keeps_groups = process.user.additional_gids.is_empty() && !machine::may_set_groups();
        Ok(Self { process, entry, keeps_groups })
    }

    pub(super) fn owner(&self) -> (Uid, Gid) {
        let user = &self.process.user;
        (Uid::from_raw(user.uid), Gid::from_raw(user.gid))
    }

    /// Becomes the container's user, in its folder, with what it may do and nothing else.
    pub(super) fn prepare(&self) -> Result<(), String> {
        // Where it gets none (too many of this user's, for one), it has that of its pod or its edge core, which is as empty.
        let _ = sys::own_keyring();
        let folder = &self.process.cwd;
        let early = rustix::process::chdir(folder);
        self.set_user().map_err(during("becoming its user"))?;
        if early.is_err() {
            // Perhaps only the user itself may.
            rustix::process::chdir(folder).map_err(during(&format!("entering its folder {}", folder.display())))?;
        }
        let here = rustix::process::getcwd(Vec::new()).map_err(during("looking where it is"))?;
        if !here.to_bytes().starts_with(b"/") {
            return Err(format!("its folder {} is not in the container", folder.display()));
        }
        rustix::process::umask(UMASK);
        if self.process.no_new_privileges {
            set_no_new_privs(true).map_err(during("giving up new privileges"))?;
        }
        Ok(())
    }

    fn set_user(&self) -> io::Result<()> {
        let sets = &self.process.capabilities;
        let bounding = machine::capability_set(&sets.bounding);
        // Also those that have no name yet; what this kernel does not know is an error, and not in its set.
        for capability in (0..u64::BITS).map(|bit| CapabilitySet::from_bits_retain(1 << bit)) {
            if !bounding.contains(capability) && capability_is_in_bounding_set(capability).unwrap_or(false) {
                remove_capability_from_bounding_set(capability)?;
            }
        }
        let (uid, gid) = self.owner();
        set_keep_capabilities(true)?;
        let groups = &self.process.user.additional_gids;
        if !self.keeps_groups {
            set_thread_groups(&groups.iter().map(|group| Gid::from_raw(*group)).collect::<Vec<_>>())?;
        }
        set_thread_gid(gid)?;
        set_thread_uid(uid)?;
        set_keep_capabilities(false)?;
        set_capabilities(
            None,
            CapabilitySets {
                effective: machine::capability_set(&sets.effective),
                permitted: machine::capability_set(&sets.permitted),
                inheritable: machine::capability_set(&sets.inheritable),
            },
        )?;
        clear_ambient_capability_set()?;
        Ok(())
    }

    /// Loads the filter, and drops what that took: nothing runs without the filter that it asked for.
    pub(super) fn filter(&self) -> Result<(), String> {
        self.entry.enter().map_err(|error| explain(&error))
    }

    /// Becomes the program; returns what is in the way.
    pub(super) fn run(&self) -> String {
        let (args, env) = (&self.process.args, &self.process.env);
        let program = args.first().map(String::as_str).unwrap_or_default();
        let error = run(program, args, env);
        let hint = match error.raw_os_error() {
            Some(libc::ENOEXEC) => ": it is for another kind of machine, or has no #! line",
            _ => "",
        };
        format!("running {program}: {error}{hint}")
    }
}

/// A name without a slash is looked for as a shell does, but what is no program is never handed to a shell.
fn run(program: &str, args: &[String], env: &[String]) -> io::Error {
    let strings = |strings: &[String]| {
        strings
            .iter()
            .map(|text| CString::new(text.as_str()))
            .collect::<Result<Vec<_>, _>>()
    };
    let (args, env_strings) = match (strings(args), strings(env)) {
        (Ok(args), Ok(env)) => (args, env),
        (Err(error), _) | (_, Err(error)) => return error.into(),
    };
    let path = env
        .iter()
        .find_map(|pair| pair.strip_prefix("PATH="))
        .unwrap_or_default();
    let mut found = io::Error::from_raw_os_error(libc::ENOENT);
    for path in candidates(program, path.as_ref()) {
        let Ok(name) = CString::new(path.as_os_str().as_bytes()) else {
            continue;
        };
        let error = sys::become_program(&name, &args, &env_strings);
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {}
            // There may be another one that is not closed to us.
            io::ErrorKind::PermissionDenied => found = error,
            _ => return error,
        }
    }
    found
}

/// Where a program may be.
fn candidates(program: &str, path: &Path) -> Vec<PathBuf> {
    if program.contains('/') {
        return vec![program.into()];
    }
    std::env::split_paths(path).map(|folder| folder.join(program)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_looked_for_by_its_name_only() {
        let path = Path::new("/bin:/usr/bin");
        assert_eq!(candidates("/x/sh", path), [Path::new("/x/sh")]);
        assert_eq!(candidates("./sh", path), [Path::new("./sh")]);
        assert_eq!(candidates("sh", path), [Path::new("/bin/sh"), Path::new("/usr/bin/sh")]);
    }

    #[test]
    fn what_is_in_the_way_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let name = |name: &str| folder.path().join(name).display().to_string();
        assert_eq!(run(&name("none"), &[], &[]).kind(), io::ErrorKind::NotFound);
        std::fs::write(folder.path().join("closed"), "x").unwrap();
        assert_eq!(run(&name("closed"), &[], &[]).kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(run("a", &["a\0b".to_owned()], &[]).kind(), io::ErrorKind::InvalidInput);
    }
}
