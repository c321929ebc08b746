//! The process between a container's outputs and its log file.
//!
//! containerd's shim starts one for each container (stdio `binary://`), outside the edge core and containerd, and hands
//! it the reading ends of two pipes. Hence a log neither loses a line nor blocks the container when the edge core or
//! containerd stops, dies or is replaced, and no daemon has to be told to turn a file over: this process does it
//! itself. It is the edge core's own executable under another first argument, so that its pages are shared; `main`
//! must call [`main`] before anything else, a tokio runtime above all: what it costs per container is a stack and two
//! buffers.
//!
//! It ends when both pipes are closed. Signals to stop are ignored, because containerd's shim sends SIGTERM while
//! lines may still be in the pipes, and closes those itself.

pub(super) mod file;
pub(super) mod lines;

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use proto::time::rfc3339;

use self::file::LogFile;
use self::lines::Lines;
use crate::sys;

/// The first argument of a log process.
pub const WORD: &str = "log-shim";

/// What is read from a pipe at once.
const READ_BYTES_MAX: usize = 16 * 1024;

/// The descriptors containerd's shim hands over.
const STDOUT: i32 = 3;
const STDERR: i32 = 4;
const READY: i32 = 5;

const USAGE: u8 = 64;

/// Where a log goes and how large it gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// A file is turned over once it is this large; it gets larger by one read at most.
    pub bytes_max: u64,
    /// How many files are kept, the current one among them.
    pub files_max: u32,
    pub path: PathBuf,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.bytes_max, self.files_max, self.path.display())
    }
}

/// Not a log target.
#[derive(Debug, thiserror::Error)]
#[error("expected <bytes>:<files>:<path>")]
pub struct TargetError;

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let mut parts = text.splitn(3, ':');
        let mut part = || parts.next().ok_or(TargetError);
        let bytes_max = part()?.parse().map_err(|_| TargetError)?;
        let files_max = part()?.parse().map_err(|_| TargetError)?;
        let path = PathBuf::from(part()?);
        if path.is_absolute() {
            Ok(Self { bytes_max, files_max, path })
        } else {
            Err(TargetError)
        }
    }
}

/// Runs a log process; `args` are those after [`WORD`].
pub fn main(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let target = args.next().and_then(|text| text.to_str()?.parse().ok());
    let Some(target) = target else {
        return ExitCode::from(USAGE);
    };
    sys::ignore_stop_signals();
    match streams().and_then(|[stdout, stderr]| copy(stdout, stderr, LogFile::new(target))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn streams() -> io::Result<[File; 2]> {
    let streams = [sys::inherited(STDOUT)?, sys::inherited(STDERR)?];
    // The shim starts the container once it read this.
    sys::inherited(READY)?.write_all(b"1")?;
    Ok(streams)
}

/// Copies both outputs until both are closed.
fn copy(stdout: File, stderr: File, mut log: LogFile) -> io::Result<()> {
    log.begin();
    let mut inputs = [
        (Some(stdout), Lines::new("stdout")),
        (Some(stderr), Lines::new("stderr")),
    ];
    let mut buffer = vec![0; READ_BYTES_MAX];
    let mut records = Vec::new();
    while inputs.iter().any(|(file, _)| file.is_some()) {
        let ready = sys::readable(inputs.each_ref().map(|(file, _)| file.as_ref().map(File::as_fd)))?;
        let stamp = stamp();
        for ((file, lines), _) in inputs.iter_mut().zip(ready).filter(|(_, ready)| *ready) {
            let count = file.as_mut().map_or(Ok(0), |file| file.read(&mut buffer))?;
            if count == 0 {
                lines.finish(&stamp, &mut records);
                *file = None;
            } else {
                lines.push(&buffer[..count], &stamp, &mut records);
            }
        }
        log.append(&records, &stamp);
        records.clear();
    }
    Ok(())
}

/// Now, as the format has it: RFC 3339 with nanoseconds.
pub(super) fn stamp() -> String {
    let (seconds, nanos) = daemon::clock::realtime();
    format!("{}.{nanos:09}Z", rfc3339(seconds).trim_end_matches('Z'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_written_as_it_is_read() {
        let target = Target {
            bytes_max: 10,
            files_max: 3,
            path: "/var/log/a:b/0.log".into(),
        };
        assert_eq!(target.to_string().parse::<Target>().unwrap(), target);
        for text in ["", "10", "10:3", "10:3:", "10:3:relative", "x:3:/a", "10:-1:/a"] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_stamp_is_rfc3339_with_nanoseconds() {
        let stamp = stamp();
        assert_eq!(stamp.len(), "2016-10-06T00:17:09.669794202Z".len(), "{stamp}");
        assert!(stamp.ends_with('Z') && stamp.as_bytes()[19] == b'.', "{stamp}");
    }

    #[test]
    fn both_outputs_end_up_in_the_file() {
        let path = std::env::temp_dir().join(format!("edgehold-log-{}-copy/0.log", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let (stdout, mut to_stdout) = io::pipe().unwrap();
        let (stderr, mut to_stderr) = io::pipe().unwrap();
        let file = |pipe: io::PipeReader| File::from(std::os::fd::OwnedFd::from(pipe));
        let writer = std::thread::spawn(move || {
            for number in 0..10_000 {
                writeln!(to_stdout, "out {number}").unwrap();
                writeln!(to_stderr, "err {number}").unwrap();
            }
            write!(to_stdout, "no newline").unwrap();
        });
        let log = LogFile::new(Target { bytes_max: 1 << 30, files_max: 1, path: path.clone() });
        copy(file(stdout), file(stderr), log).unwrap();
        writer.join().unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        for (stream, word, count) in [("stdout", "out", 10_001), ("stderr", "err", 10_000)] {
            let lines: Vec<&str> = text
                .lines()
                .filter_map(|line| line.split_once(&format!(" {stream} F ")))
                .map(|l| l.1)
                .collect();
            assert_eq!(lines.len(), count);
            assert!(
                lines
                    .iter()
                    .take(10_000)
                    .enumerate()
                    .all(|(at, line)| *line == format!("{word} {at}"))
            );
        }
        assert!(text.contains("stdout F no newline\n"));
    }
}
