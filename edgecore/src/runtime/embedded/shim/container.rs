//! One container in its shim's hands: being made, started, running, ended.

use std::fs::File;
use std::io::{self, PipeWriter, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use proto::time::Mono;
use rustix::process::{Pid, Signal};

use super::pid;
use crate::runtime::embedded::act::{self, REPORT_BYTES_MAX};
use crate::runtime::embedded::first;
use crate::runtime::embedded::record::{self, Exit, Made, Moment};
use crate::runtime::embedded::wire::Answer;
use crate::runtime::explain;
use crate::runtime::log_shim::file::LogFile;
use crate::runtime::log_shim::lines::Lines;
use crate::runtime::log_shim::{self, Target};
use crate::runtime::oci::cgroup;
use crate::sys;

/// What is read of an output whose container has ended, at most: what it left behind may write on.
const REST_BYTES_MAX: usize = 1024 * 1024;

/// How often to look whether there is room for how a container ended.
const ROOM_LOOK: Duration = Duration::from_secs(5);

pub(super) struct Container {
    id: String,
    /// Its folder that stays.
    folder: PathBuf,
    cgroup: String,
    init: Init,
    outputs: [(Option<File>, Lines); 2],
    log: LogFile,
    /// Lets it run.
    release: Option<PipeWriter>,
    /// Where its terminal comes from.
    console: Option<UnixListener>,
    /// Whom to answer once it runs or cannot.
    asked: Option<u64>,
    answer: Option<Answer>,
    changed: bool,
    /// How it ended, as long as there is no room to write it down, and when to try again.
    unwritten: Option<(Exit, Mono)>,
    done: bool,
}

enum Init {
    /// Being made, or made and not told yet to run.
    Making {
        report: File,
        said: Vec<u8>,
        pid: Option<u32>,
    },
    Child(u32),
    /// Another shim's child once.
    Adopted(u32, OwnedFd),
}

impl Container {
    /// Has the first process made; what comes of it is reported.
    pub(super) fn start(folder: &Path, run: &Path, id: String, asked: u64) -> io::Result<Self> {
        let made = made(folder)?;
        let own = Path::new(&id);
        // What an attempt that was cut short left behind.
        let _ = std::fs::remove_dir_all(own);
        std::fs::create_dir_all(own)?;
        let (outputs, console) = if made.tty {
            ([None, None], Some(console(own)?))
        } else {
            ([Some(fifo(&own.join(STDOUT))?), Some(fifo(&own.join(STDERR))?)], None)
        };
        let (report, theirs) = io::pipe()?;
        let (released, release) = io::pipe()?;
        let (user, group) = made.owner;
        Command::new("/proc/self/exe")
            .arg0("edgecore")
            .args([act::WORD, act::CREATE])
            .args([folder, run])
            .args([&id, &user.to_string(), &group.to_string()])
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::from(released))
            .stderr(Stdio::null())
            .spawn()?;
        let report = File::from(OwnedFd::from(report));
        rustix::io::ioctl_fionbio(&report, true)?;
        let mut container = Self::new(id, folder, &made, outputs)?;
        container.init = Init::Making { report, said: Vec::new(), pid: None };
        container.release = Some(release);
        container.console = console;
        container.asked = Some(asked);
        Ok(container)
    }

    /// Takes over from a shim that was killed; `None` where there is nothing to hold.
    pub(super) fn adopt(folder: &Path, id: String) -> Option<Self> {
        let made = made(folder).ok()?;
        let ended = record::read::<Exit>(&folder.join(record::EXIT));
        let own = PathBuf::from(&id);
        if !matches!(ended, Ok(None)) || own.join(record::EXIT).exists() {
            return None;
        }
        let started = record::read::<Moment>(&folder.join(record::STARTED)).ok()?;
        let process = first::find(&own, &made.cgroup);
        let Some(started) = started else {
            // Made and never told to run: it is made anew.
            if let Some((_, handle)) = process {
                let _ = rustix::process::pidfd_send_signal(handle, Signal::KILL);
            }
            return None;
        };
        let outputs = if made.tty {
            [None, None]
        } else {
            [fifo(&own.join(STDOUT)).ok(), fifo(&own.join(STDERR)).ok()]
        };
        let mut container = Self::new(id, folder, &made, outputs).ok()?;
        match process {
            Some((number, handle)) if started.boot == daemon::clock::boot_id() => {
                container.init = Init::Adopted(number, handle);
            }
            _ => container.end(record::CODE_UNKNOWN, &mut [0; 1024]),
        }
        Some(container)
    }

    fn new(id: String, folder: &Path, made: &Made, outputs: [Option<File>; 2]) -> io::Result<Self> {
        let target = made.log.parse::<Target>().map_err(io::Error::other)?;
        let mut log = LogFile::new(target);
        log.begin();
        let [stdout, stderr] = outputs;
        Ok(Self {
            id,
            folder: folder.to_owned(),
            cgroup: made.cgroup.clone(),
            init: Init::Child(0),
            outputs: [(stdout, Lines::new("stdout")), (stderr, Lines::new("stderr"))],
            log,
            release: None,
            console: None,
            asked: None,
            answer: None,
            changed: false,
            unwritten: None,
            done: false,
        })
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn pid(&self) -> u32 {
        match &self.init {
            Init::Making { pid, .. } => pid.unwrap_or(0),
            Init::Child(pid) | Init::Adopted(pid, _) => *pid,
        }
    }

    pub(super) fn is(&self, other: Pid) -> bool {
        !self.has_ended() && pid(self.pid()) == Some(other)
    }

    pub(super) fn output(&self, number: usize) -> Option<BorrowedFd<'_>> {
        self.outputs[number].0.as_ref().map(|file| file.as_fd())
    }

    pub(super) fn report(&self) -> Option<BorrowedFd<'_>> {
        match &self.init {
            Init::Making { report, .. } => Some(report.as_fd()),
            Init::Child(_) | Init::Adopted(..) => None,
        }
    }

    pub(super) fn adopted(&self) -> Option<BorrowedFd<'_>> {
        match &self.init {
            Init::Adopted(_, handle) if !self.has_ended() => Some(handle.as_fd()),
            Init::Adopted(..) | Init::Making { .. } | Init::Child(_) => None,
        }
    }

    pub(super) fn take_answer(&mut self) -> Option<(u64, Answer)> {
        let answer = self.answer.take()?;
        Some((self.asked.take()?, answer))
    }

    pub(super) fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Somebody else asks for its start: an edge core that came anew, or did not hear the answer in time.
    pub(super) fn ask(&mut self, client: u64) -> Option<Answer> {
        if matches!(self.init, Init::Making { .. }) {
            self.asked = Some(client);
            None
        } else {
            Some(Answer::Done)
        }
    }

    fn has_ended(&self) -> bool {
        self.done || self.unwritten.is_some()
    }

    pub(super) fn is_done(&self) -> bool {
        self.done
    }

    pub(super) fn signal(&self, number: u32) -> Answer {
        let Some(signal) = sys::signal(number) else {
            return Answer::Refused(format!("{number} is no signal"));
        };
        if self.has_ended() {
            return Answer::Missing;
        }
        let sent = match &self.init {
            Init::Adopted(_, handle) => rustix::process::pidfd_send_signal(handle, signal),
            // Ours until it is waited for, so that the number is nobody else's.
            Init::Child(_) | Init::Making { .. } => match pid(self.pid()) {
                Some(pid) => rustix::process::kill_process(pid, signal),
                None => return Answer::Missing,
            },
        };
        match sent {
            Ok(()) => Answer::Done,
            Err(rustix::io::Errno::SRCH) => Answer::Missing,
            Err(error) => Answer::Refused(error.to_string()),
        }
    }

    /// Reads what the making says so far.
    pub(super) fn read_report(&mut self) {
        let Init::Making { report, said, pid } = &mut self.init else {
            return;
        };
        let mut buffer = [0; 512];
        loop {
            match report.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => {
                    let room = REPORT_BYTES_MAX.saturating_sub(said.len());
                    said.extend_from_slice(&buffer[..count.min(room)]);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if pid.is_none() {
                        *pid = act::made_pid(said);
                        if pid.is_some()
                            && let Err(error) = self.release()
                        {
                            self.give_up(format!("it was made and cannot be let run: {error}"));
                        }
                    }
                    return;
                }
                Err(_) => break,
            }
        }
        // The end of the report: the program runs, or nothing of it does.
        let (number, fault) = (act::made_pid(said).or(*pid), act::fault(said));
        match (number, fault) {
            (Some(number), None) => {
                self.init = Init::Child(number);
                self.answer = Some(Answer::Done);
                self.changed = true;
            }
            // Its end is that of a container.
            (Some(number), Some(fault)) => {
                self.init = Init::Child(number);
                self.answer = Some(Answer::Refused(fault));
            }
            (None, fault) => {
                self.answer = Some(Answer::Refused(
                    fault.unwrap_or_else(|| "making it ended without a word".into()),
                ));
                self.done = true;
            }
        }
    }

    /// It was made: that it is started is written down, and then it is.
    fn release(&mut self) -> io::Result<()> {
        if let Some(console) = self.console.take() {
            let (peer, _) = console.accept()?;
            self.outputs[0].0 = Some(act::take_terminal(&peer)?);
        }
        record::write(&self.folder.join(record::STARTED), &Moment::now())
            .map_err(|error| io::Error::other(explain(&error)))?;
        let mut release = self.release.take().ok_or(io::ErrorKind::NotFound)?;
        release.write_all(&[0])
    }

    /// Whatever was made is ended; nothing was started.
    fn give_up(&mut self, reason: String) {
        if let Some(pid) = pid(self.pid()) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        self.answer = Some(Answer::Refused(reason));
        self.done = !self.folder.join(record::STARTED).exists();
    }

    /// Copies some of an output to the log.
    pub(super) fn copy(&mut self, number: usize, buffer: &mut [u8]) -> bool {
        let (file, lines) = &mut self.outputs[number];
        let stamp = log_shim::stamp();
        let mut records = Vec::new();
        let more = match file.as_mut().map_or(Ok(0), |file| file.read(buffer)) {
            Ok(0) => false,
            Ok(count) => {
                lines.push(&buffer[..count], &stamp, &mut records);
                true
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            // A terminal without its container.
            Err(_) => false,
        };
        if !more {
            lines.finish(&stamp, &mut records);
            *file = None;
        }
        self.log.append(&records, &stamp);
        more
    }

    /// It has ended: the rest of what it said, and then how, which is on the disk before it is told.
    pub(super) fn end(&mut self, code: i32, buffer: &mut [u8]) {
        for number in 0..2 {
            let mut read = 0;
            while read < REST_BYTES_MAX && self.copy(number, buffer) {
                read += buffer.len();
            }
        }
        self.read_report();
        let exit = Exit {
            code,
            oom_killed: cgroup::was_oom_killed(&self.cgroup),
            at: Moment::now(),
        };
        self.write_down(exit);
    }

    /// In the run folder where the other has no room: known until the next reboot at least. Where neither has, it is kept
    /// here until one does: to everybody else it runs.
    fn write_down(&mut self, exit: Exit) {
        let folders = [self.folder.as_path(), Path::new(&self.id)];
        let written = folders.map(|folder| folder.join(record::EXIT));
        if written.iter().any(|path| record::write(path, &exit).is_ok()) {
            self.unwritten = None;
            self.changed = true;
            self.done = true;
        } else {
            self.unwritten = Some((exit, daemon::clock::mono() + ROOM_LOOK));
        }
    }

    /// When to look whether there is room for how it ended.
    pub(super) fn tries_again(&self) -> Option<Mono> {
        self.unwritten.map(|(_, at)| at)
    }

    pub(super) fn try_again(&mut self) {
        if let Some((exit, at)) = self.unwritten
            && daemon::clock::mono() >= at
        {
            self.write_down(exit);
        }
    }
}

/// The two outputs, as FIFOs of the container's run folder.
pub(in crate::runtime::embedded) const STDOUT: &str = "stdout";
pub(in crate::runtime::embedded) const STDERR: &str = "stderr";
/// Where a container with a terminal hands that over.
pub(in crate::runtime::embedded) const CONSOLE: &str = "console.sock";

fn made(folder: &Path) -> io::Result<Made> {
    let made = record::read::<Made>(&folder.join(record::MADE)).map_err(io::Error::other)?;
    made.ok_or_else(|| io::Error::other("there is no such container"))
}

/// The reading end of a FIFO, made if need be.
fn fifo(path: &Path) -> io::Result<File> {
    match sys::make_fifo(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

fn console(own: &Path) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(own.join(CONSOLE))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
