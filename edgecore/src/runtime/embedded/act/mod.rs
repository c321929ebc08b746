//! The short-lived processes that make a container's first process, and run commands beside it: `edgecore` under another
//! first argument. They fork, so there must be no second thread.
//!
//! What comes of it goes to standard input, which is a pipe to whoever started this ([`Report`]).
//!
//! [`mod@create`] and [`command`] say what is done in which order; [`child`] is the copy that becomes the container's process,
//! [`cgroups`] and [`devices`] limit it, [`root`] and [`terminal`] are what it sees, [`program`] is what it becomes, and
//! [`seal`] keeps the host safe from what it enters.

mod cgroups;
mod child;
mod command;
mod create;
mod devices;
mod program;
mod root;
mod seal;
mod terminal;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use self::command::exec;
use self::create::create;
pub(super) use self::create::load;
pub(super) use self::terminal::take as take_terminal;
use crate::oci::Spec;
use crate::runtime::explain;
use crate::runtime::oci::oom;
use crate::sys;

/// The first argument.
pub(super) const WORD: &str = "container-act";
/// The second.
pub(super) const CREATE: &str = "create";
pub(super) const EXEC: &str = "exec";

/// In a container's folder that stays: its specification.
pub(super) const SPEC: &str = "config.json";

/// No report is longer.
pub(super) const REPORT_BYTES_MAX: usize = 2048;

const USAGE: u8 = 64;

/// What is said, as a byte and what follows it.
const MADE: u8 = b'P';
const FAULT: u8 = b'E';
const ENDED: u8 = b'X';
const LATE: u8 = b'T';

/// What came of a command.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Ended(i32),
    /// It was killed at its limit.
    Late,
    Fault(String),
}

/// The process that a report says was made.
pub(super) fn made_pid(said: &[u8]) -> Option<u32> {
    match said {
        [MADE, a, b, c, d, ..] => Some(u32::from_le_bytes([*a, *b, *c, *d])),
        _ => None,
    }
}

/// What a report says went wrong.
pub(super) fn fault(said: &[u8]) -> Option<String> {
    let rest = if said.first() == Some(&MADE) {
        said.get(5..)?
    } else {
        said
    };
    match rest {
        [FAULT, text @ ..] => Some(String::from_utf8_lossy(text).into_owned()),
        _ => None,
    }
}

/// What a command's report says.
pub(super) fn outcome(said: &[u8]) -> Outcome {
    match said {
        [ENDED, a, b, c, d] => Outcome::Ended(i32::from_le_bytes([*a, *b, *c, *d])),
        [LATE] => Outcome::Late,
        _ => Outcome::Fault(fault(said).unwrap_or_else(|| "it ended without a word".to_owned())),
    }
}

/// Runs it; `args` are those after [`WORD`].
pub(super) fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.collect();
    // The shim that started this reads its own from elsewhere.
    let (Ok(report), Ok(()), Ok(())) = (Report::open(), sys::no_signal_waits(), sys::keep_descriptors()) else {
        return ExitCode::from(USAGE);
    };
    if args.first().is_none_or(|word| word != seal::SEALED) {
        let error = seal::start_over(&args);
        report.say(
            FAULT,
            format!("sealing the edge core's own program: {error}").as_bytes(),
        );
        return ExitCode::FAILURE;
    }
    let args: Option<Vec<String>> = args.into_iter().skip(1).map(|arg| arg.into_string().ok()).collect();
    let args = args.unwrap_or_default();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args.as_slice() {
        _ if seal::hide().is_err() => Err("hiding from containers is not possible".to_owned()),
        [CREATE, folder, run, id, user, group] => {
            match (user.parse(), group.parse(), io::stdout().as_fd().try_clone_to_owned()) {
                (Ok(user), Ok(group), Ok(released)) => create(
                    Path::new(folder),
                    Path::new(run),
                    id,
                    (user, group),
                    &report,
                    File::from(released),
                ),
                _ => return ExitCode::from(USAGE),
            }
        }
        [EXEC, folder, run, id, limit_ms, command @ ..] => match limit_ms.parse() {
            Ok(limit_ms) => exec(
                Path::new(folder),
                Path::new(run),
                id,
                Duration::from_millis(limit_ms),
                command,
                &report,
            ),
            Err(_) => return ExitCode::from(USAGE),
        },
        _ => return ExitCode::from(USAGE),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            report.say(FAULT, reason.as_bytes());
            ExitCode::FAILURE
        }
    }
}

/// The edge core may be spared when memory runs out; what it runs is as its specification says, and not spared where an
/// earlier release made that.
fn favour_as(spec: &Spec) {
    match (spec.process.oom_score_adj, oom::own()) {
        // As low as this process was before is allowed in any case; another edge core may have made the container.
        (Some(score), _) => drop(oom::set(score)),
        (None, Some(..0)) => drop(oom::set(0)),
        (None, _) => {}
    }
}

/// A copy of standard input that is closed when a program is run.
#[derive(Debug)]
struct Report(File);

impl Report {
    fn open() -> io::Result<Self> {
        Ok(Self(File::from(io::stdin().as_fd().try_clone_to_owned()?)))
    }

    fn say(&self, what: u8, text: &[u8]) {
        let mut bytes = vec![what];
        bytes.extend_from_slice(&text[..text.len().min(REPORT_BYTES_MAX - 16)]);
        // Whoever does not listen any more has no use for it.
        let _ = (&self.0).write_all(&bytes);
    }
}

/// For errors: what was being done.
fn during<E: std::error::Error>(action: &str) -> impl Fn(E) -> String {
    move |error| format!("{action}: {}", explain(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_as_far_as_it_came() {
        assert_eq!((made_pid(b""), fault(b"")), (None, None));
        assert_eq!((made_pid(b"P\x01\0\0"), fault(b"P\x01\0\0")), (None, None));
        let made = b"P\x01\x02\0\0";
        assert_eq!((made_pid(made), fault(made)), (Some(0x201), None));
        let both = b"P\x01\0\0\0Eno such file";
        assert_eq!(
            (made_pid(both), fault(both).as_deref()),
            (Some(1), Some("no such file"))
        );
        assert_eq!((made_pid(b"Ebad"), fault(b"Ebad").as_deref()), (None, Some("bad")));
        assert_eq!(outcome(b"X\xff\xff\xff\xff"), Outcome::Ended(-1));
        assert_eq!(outcome(b"T"), Outcome::Late);
        assert_eq!(outcome(b"Ebad"), Outcome::Fault("bad".into()));
        assert!(matches!(outcome(b"X\0"), Outcome::Fault(_)));
    }
}
