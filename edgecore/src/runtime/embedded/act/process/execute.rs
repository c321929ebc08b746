//! The last moment before a container's program runs: its namespaces, root, user and capabilities are its own by now.
//!
//! A seccomp filter is loaded here, as late as can be; then, and not before, goes what loading it took.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libcontainer::workload::{Executor, ExecutorError, ExecutorValidationError};
use oci_spec::runtime::Spec;

use super::super::{FAULT, Report};
use super::CODE_NOT_RUN;
use crate::runtime::explain;
use crate::seccomp::SeccompError;
use crate::seccomp::privileges::Entry;
use crate::sys;

/// Runs the program, or reports why not.
#[derive(Debug, Clone)]
pub(super) struct Execute {
    report: Arc<Report>,
    entry: Entry,
    /// The container's own program, and not a command beside it.
    first: bool,
}

impl Execute {
    /// `spec` is the container's, as it was prepared.
    pub(super) fn new(report: File, spec: &Spec, first: bool) -> Result<Self, SeccompError> {
        let entry = Entry::of(spec)?;
        Ok(Self { report: Arc::new(Report(report)), entry, first })
    }
}

impl Executor for Execute {
    fn exec(&self, spec: &Spec) -> Result<(), ExecutorError> {
        let args = spec.process().as_ref().and_then(|process| process.args().clone());
        let Some((program, args)) = args.as_deref().and_then(<[String]>::split_first) else {
            return Err(ExecutorError::InvalidArg);
        };
        let reason = match self.entry.enter() {
            // Nothing runs without the filter that it asked for.
            Err(error) => explain(&error),
            Ok(()) => {
                let error = run(program, args);
                let hint = match error.raw_os_error() {
                    Some(libc::ENOEXEC) => ": it is for another kind of machine, or has no #! line",
                    _ => "",
                };
                format!("running {program}: {error}{hint}")
            }
        };
        if self.first {
            self.report.say(FAULT, reason.as_bytes());
            std::process::exit(CODE_NOT_RUN);
        }
        Err(ExecutorError::Other(reason))
    }

    /// What cannot be run is told by running it.
    fn validate(&self, _: &Spec) -> Result<(), ExecutorValidationError> {
        Ok(())
    }
}

/// Becomes the program; returns what is in the way. A name without a slash is looked for as a shell does, but what is no
/// program is never handed to a shell.
fn run(program: &str, args: &[String]) -> io::Error {
    let words: Result<Vec<_>, _> = std::iter::once(program)
        .chain(args.iter().map(String::as_str))
        .map(CString::new)
        .collect();
    let words = match words {
        Ok(words) => words,
        Err(error) => return error.into(),
    };
    let mut found = io::Error::from_raw_os_error(libc::ENOENT);
    for path in candidates(
        program,
        std::env::var_os("PATH").as_deref().unwrap_or_default().as_ref(),
    ) {
        let Ok(name) = CString::new(path.as_os_str().as_bytes()) else {
            continue;
        };
        let error = sys::become_program(&name, &words);
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
        assert_eq!(run(&name("none"), &[]).kind(), io::ErrorKind::NotFound);
        std::fs::write(folder.path().join("closed"), "x").unwrap();
        assert_eq!(run(&name("closed"), &[]).kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(run("a\0b", &[]).kind(), io::ErrorKind::InvalidInput);
    }
}
