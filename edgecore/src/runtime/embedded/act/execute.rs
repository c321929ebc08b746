//! The last moment before a container's program runs: its namespaces, root, user and capabilities are its own by now.
//!
//! A seccomp filter is loaded here, as late as can be; then, and not before, goes what loading it took.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::Arc;

use libcontainer::workload::{Executor, ExecutorError, ExecutorValidationError};
use oci_spec::runtime::Spec;

use super::{CODE_NOT_RUN, FAULT, Report};

/// Runs the program, or reports why not.
#[derive(Debug, Clone)]
pub(super) struct Execute {
    report: Arc<Report>,
    /// The container's own program, and not a command beside it.
    first: bool,
}

impl Execute {
    pub(super) fn new(report: File, first: bool) -> Self {
        Self { report: Arc::new(Report(report)), first }
    }
}

impl Executor for Execute {
    fn exec(&self, spec: &Spec) -> Result<(), ExecutorError> {
        let args = spec.process().as_ref().and_then(|process| process.args().clone());
        let Some((program, args)) = args.as_deref().and_then(<[String]>::split_first) else {
            return Err(ExecutorError::InvalidArg);
        };
        // Nothing of this process' signals stays: the standard library sees to it.
        let error = Command::new(program).args(args).exec();
        let hint = match error.raw_os_error() {
            Some(libc::ENOEXEC) => ": it is for another kind of machine, or has no #! line",
            _ => "",
        };
        let reason = format!("running {program}: {error}{hint}");
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
