//! The process that holds one pod's containers: `edgecore` under another first argument.
//!
//! It is the parent of their first processes, reads what they write, writes down how each ended before it tells anybody,
//! and does as little besides as can be: `main` must call [`main`] before anything else, and nothing here needs a runtime,
//! a thread or a parser. What does (making a container) is done by short-lived processes that it starts from its own
//! program, `/proc/self/exe`: an upgrade that replaces the file changes nothing for a shim that runs.
//!
//! It has its own cgroup below the pod's, so that whatever ends the edge core leaves it. Killed itself, it leaves the
//! containers: they hold their outputs open themselves, and the next shim takes over what still runs. How such a container
//! ends is then not known any more, only that it did.

pub(super) mod container;
mod serve;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use daemon::clock::mono;
use proto::time::Mono;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, WaitOptions, WaitStatus};

use self::container::Container;
use self::serve::{Client, Listener};
use super::record;
use super::wire::{self, Answer, CONTAINERS_MAX, Held, LOCK, Request};
use crate::pages;
use crate::runtime::oci::cgroup;
use crate::sys;

/// The first argument of a shim.
pub(super) const WORD: &str = "pod-shim";

/// A shim that holds nothing waits this long for the next attempt.
const IDLE: Duration = Duration::from_secs(5);

/// From when a container was started, or has ended, until what that took of the program counts as done with.
const REST: Duration = Duration::from_secs(3);

/// What is read from an output at once.
const READ_BYTES_MAX: usize = 16 * 1024;

const USAGE: u8 = 64;

/// Runs a shim; `args` are those after [`WORD`]: the pod's folder that stays, the one that a reboot empties, its cgroup.
pub(super) fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.collect();
    let [data, run, cgroup] = args.as_slice() else {
        return ExitCode::from(USAGE);
    };
    let Some(cgroup) = cgroup.to_str() else {
        return ExitCode::from(USAGE);
    };
    // Whoever started this waits for the end of this output: nothing said is well.
    let mut said = io::stdout();
    match Shim::set_up(data.into(), run.into(), cgroup) {
        Ok(mut shim) => {
            if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
                let _ = rustix::stdio::dup2_stdout(&null);
            }
            match shim.run() {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            }
        }
        Err(error) => {
            let _ = write!(said, "{error}");
            ExitCode::FAILURE
        }
    }
}

struct Shim {
    /// The pod's folder that stays.
    data: PathBuf,
    /// The one that a reboot empties, which is also the current one: paths below it may be longer than a socket's may.
    run: PathBuf,
    signals: File,
    listener: Listener,
    clients: Vec<Client>,
    containers: Vec<Container>,
    /// When it ends if nothing comes.
    idle: Option<Mono>,
    /// When what was done last is over: what it took of the program is given back then.
    rests: Option<Mono>,
    buffer: Vec<u8>,
    ending: bool,
    /// There is only one for a pod.
    _lock: File,
}

/// What is waited for, in the order in which it is asked.
#[derive(Clone, Copy)]
enum Source {
    Signals,
    Listener,
    Client(usize),
    Output(usize, usize),
    Report(usize),
    Adopted(usize),
}

impl Shim {
    fn set_up(data: PathBuf, run: PathBuf, cgroup: &str) -> io::Result<Self> {
        // Not in the session of whoever started it; fails where it leads one already.
        let _ = rustix::process::setsid();
        let _ = sys::own_keyring();
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        std::env::set_current_dir(&run)?;
        let lock = File::options().create(true).truncate(false).write(true).open(LOCK)?;
        // Another one is about to end, or whoever started this one gives up on it.
        lock.lock()?;
        if !cgroup.is_empty() {
            cgroup::join(&format!("{cgroup}/shim"));
        }
        let signals = File::from(sys::signals()?);
        let mut shim = Self {
            data,
            run,
            signals,
            listener: Listener::bind()?,
            clients: Vec::new(),
            containers: Vec::new(),
            idle: None,
            rests: Some(mono() + REST),
            buffer: vec![0; READ_BYTES_MAX],
            ending: false,
            _lock: lock,
        };
        shim.adopt()?;
        Ok(shim)
    }

    /// Takes over what an earlier shim held.
    fn adopt(&mut self) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.data)? {
            let Some(id) = entry?.file_name().to_str().map(str::to_owned) else {
                continue;
            };
            if self.containers.len() < CONTAINERS_MAX
                && let Some(container) = Container::adopt(&self.data.join(&id), id)
            {
                self.containers.push(container);
            }
        }
        Ok(())
    }

    fn run(&mut self) -> io::Result<()> {
        while !self.ending {
            let ready = self.wait()?;
            // From the back, so that what is taken out moves nothing that is still to be looked at.
            for source in ready.into_iter().rev() {
                match source {
                    Source::Signals => self.reap(),
                    Source::Listener => self.clients.extend(self.listener.accept()),
                    Source::Client(at) => self.serve(at),
                    Source::Output(at, output) => {
                        self.containers[at].copy(output, &mut self.buffer);
                    }
                    Source::Report(at) => self.read_report(at),
                    Source::Adopted(at) => self.containers[at].end(record::CODE_UNKNOWN, &mut self.buffer),
                }
            }
            self.settle();
        }
        Ok(())
    }

    /// Waits until something is to be done; says what.
    fn wait(&mut self) -> io::Result<Vec<Source>> {
        let rested = self.rests.take_if(|at| mono() >= *at).is_some();
        let mut fds: Vec<(Source, BorrowedFd<'_>)> = vec![
            (Source::Signals, self.signals.as_fd()),
            (Source::Listener, self.listener.as_fd()),
        ];
        for (at, client) in self.clients.iter().enumerate() {
            fds.push((Source::Client(at), client.as_fd()));
        }
        for (at, container) in self.containers.iter().enumerate() {
            for output in 0..2 {
                fds.extend(container.output(output).map(|fd| (Source::Output(at, output), fd)));
            }
            fds.extend(container.report().map(|fd| (Source::Report(at), fd)));
            fds.extend(container.adopted().map(|fd| (Source::Adopted(at), fd)));
        }
        let mut polled: Vec<_> = fds
            .iter()
            .map(|(_, fd)| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
            .collect();
        let retries = self.containers.iter().filter_map(Container::tries_again);
        let limit = self.idle.into_iter().chain(self.rests).chain(retries).min().map(|at| {
            let left = at.since(mono());
            Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(0),
                tv_nsec: left.subsec_nanos().into(),
            }
        });
        if rested {
            // What it was started with is most of it, and a shim waits for most of its life: as the last thing before it does,
            // so that little comes back.
            let _ = pages::give_back();
        }
        match poll(&mut polled, limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = polled
            .iter()
            .zip(&fds)
            .filter(|(polled, _)| !polled.revents().is_empty());
        Ok(ready.map(|(_, (source, _))| *source).collect())
    }

    /// Takes in every child that ended: first processes, what made them, and whatever these left behind.
    fn reap(&mut self) {
        let mut drop_signals = [0; 512];
        while self.signals.read(&mut drop_signals).is_ok() {}
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            // Whoever made it has said so before it ended, and it can only be waited for after that.
            for at in 0..self.containers.len() {
                self.read_report(at);
            }
            if let Some(container) = self.containers.iter_mut().find(|container| container.is(pid)) {
                container.end(code(status), &mut self.buffer);
            }
        }
    }

    fn read_report(&mut self, at: usize) {
        self.containers[at].read_report();
    }

    /// After each round: answers, tells, forgets, and sees whether anything is left to do.
    fn settle(&mut self) {
        let mut changed = false;
        for container in &mut self.containers {
            container.try_again();
            if let Some((client, answer)) = container.take_answer() {
                for client in self.clients.iter_mut().filter(|known| known.number == client) {
                    client.send(&answer);
                }
            }
            changed |= container.take_change();
        }
        self.containers.retain(|container| !container.is_done());
        if changed {
            self.rests = Some(mono() + REST);
            for client in self.clients.iter_mut().filter(|client| client.watches) {
                client.send(&Answer::Changed);
            }
        }
        self.clients.retain(|client| !client.gone);
        if !self.containers.is_empty() {
            self.idle = None;
        } else if let Some(at) = self.idle {
            self.ending |= mono() >= at;
        } else {
            self.idle = Some(mono() + IDLE);
        }
    }

    fn serve(&mut self, at: usize) {
        let mut bytes = [0; wire::MESSAGE_BYTES_MAX];
        let Some(request) = self.clients[at].receive(&mut bytes) else {
            return;
        };
        let answer = match request {
            Ok(request) => self.answer(request, self.clients[at].number, at),
            Err(error) => Some(Answer::Refused(error.to_string())),
        };
        if let Some(answer) = answer {
            self.clients[at].send(&answer);
        }
    }

    /// `None` when the answer comes later.
    fn answer(&mut self, request: Request, client: u64, at: usize) -> Option<Answer> {
        match request {
            Request::List => {
                let held = self
                    .containers
                    .iter()
                    .map(|container| Held { id: container.id().to_owned(), pid: container.pid() });
                Some(Answer::Containers(held.collect()))
            }
            Request::Watch => {
                self.clients[at].watches = true;
                Some(Answer::Changed)
            }
            Request::Signal { id, signal } => {
                let held = self.containers.iter().find(|container| container.id() == id);
                Some(held.map_or(Answer::Missing, |container| container.signal(signal)))
            }
            Request::Start { id } => {
                if let Some(held) = self.containers.iter_mut().find(|container| container.id() == id) {
                    return held.ask(client);
                }
                if self.containers.len() >= CONTAINERS_MAX {
                    return Some(Answer::Refused(format!(
                        "the pod holds {CONTAINERS_MAX} containers already"
                    )));
                }
                match Container::start(&self.data.join(&id), &self.run, id, client) {
                    Ok(container) => {
                        self.containers.push(container);
                        None
                    }
                    Err(error) => Some(Answer::Refused(error.to_string())),
                }
            }
            Request::End => {
                self.ending = self.containers.is_empty();
                Some(Answer::Done)
            }
        }
    }
}

/// As shells have it.
pub(super) fn code(status: WaitStatus) -> i32 {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => code,
        (None, Some(signal)) => 128 + signal,
        (None, None) => record::CODE_UNKNOWN,
    }
}

fn pid(number: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(number).ok()?)
}
