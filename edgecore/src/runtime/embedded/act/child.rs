//! A copy of this process with two pipes to it: it waits to be told to go on, and says what is in its way.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use super::{REPORT_BYTES_MAX, during};

/// The exit code of what could not be run, as everybody's.
const CODE_NOT_RUN: u8 = 128;

/// What the copy says when all is well; anything else is what is not.
const READY: u8 = 0;

pub(super) struct Child {
    pub(super) pid: Pid,
    go: Option<File>,
    said: File,
}

/// The copy's side.
pub(super) struct Parent {
    go: File,
    said: File,
}

impl Child {
    /// Forks; `work` is what the copy does. Whatever it returns, the copy ends: a program that it becomes is not seen here.
    pub(super) fn fork(work: impl FnOnce(Parent) -> Result<(), String>) -> io::Result<Self> {
        crate::sys::only_thread()?;
        let (may_go, go) = io::pipe()?;
        let (said, say) = io::pipe()?;
        let parent = Parent { go: file(may_go), said: file(say) };
        let mut to_say = parent.said.try_clone()?;
        let mut ours = Some((file(go), file(said)));
        let pid = crate::sys::fork(|| {
            // The copy is not to wait for itself.
            drop(ours.take());
            if let Err(reason) = work(parent) {
                let _ = to_say.write_all(reason.as_bytes());
            }
            CODE_NOT_RUN
        })?;
        let (go, said) = ours.ok_or_else(|| io::Error::other("both sides were taken"))?;
        Ok(Self { pid, go: Some(go), said })
    }

    pub(super) fn go_on(&mut self) {
        if let Some(mut go) = self.go.take() {
            // One that is gone says so where it is listened to.
            let _ = go.write_all(&[READY]);
        }
    }

    /// Waits until it is ready, or says why it is not.
    pub(super) fn is_ready(&mut self) -> Result<(), String> {
        let mut said = Vec::new();
        let mut byte = [0];
        loop {
            match self.said.read(&mut byte) {
                Ok(0) if said.is_empty() => return Err("its process ended while it was made; was there memory?".into()),
                Ok(0) => return Err(String::from_utf8_lossy(&said).into_owned()),
                Ok(_) if said.is_empty() && byte == [READY] => return Ok(()),
                Ok(_) if said.len() < REPORT_BYTES_MAX => said.push(byte[0]),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(during("listening to its process")(error)),
            }
        }
    }

    /// Where what it says is read, by who knows what to make of it.
    pub(super) fn said(&mut self) -> &mut File {
        &mut self.said
    }

    /// Kills it and waits for its end.
    pub(super) fn end(self) {
        let _ = kill_process(self.pid, Signal::KILL);
        let _ = waitpid(Some(self.pid), WaitOptions::empty());
    }
}

impl Parent {
    /// Until it is told to go on.
    pub(super) fn wait(&self) -> Result<(), String> {
        (&self.go).read_exact(&mut [0]).map_err(during("waiting to go on"))
    }

    /// Where it is heard.
    pub(super) fn voice(&self) -> &File {
        &self.said
    }

    /// From now on nobody listens.
    pub(super) fn ready(self) {
        let _ = (&self.said).write_all(&[READY]);
    }
}

fn file(pipe: impl Into<OwnedFd>) -> File {
    File::from(pipe.into())
}
