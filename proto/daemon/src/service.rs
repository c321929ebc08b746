//! What a service manager wants to hear of a process that it started: that it is up, that it still lives, that it ends.
//!
//! systemd's protocol: datagrams of `KEY=VALUE` lines to the socket that `NOTIFY_SOCKET` names. Written by hand, for it
//! is this file. Nobody listening is no failure: the same program runs under a shell.
//!
//! The watchdog is fed only after the process has proved that it answers. The proof comes from the daemon; that it is
//! asked for at all proves that the runtime's thread goes round.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// A status is a line for people; it is cut to this.
pub const STATUS_BYTES_MAX: usize = 256;

/// The service manager, if there is one that wants to hear.
#[derive(Debug, Default)]
pub struct Service {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// How often it wants to hear at least.
    watchdog: Option<Duration>,
}

impl Service {
    /// As the environment of this process names it. A manager that cannot be reached is told of and done without.
    pub fn from_environment() -> Self {
        let variable = |name: &str| std::env::var_os(name);
        Self::named(variable, std::process::id()).unwrap_or_else(|error| {
            tracing::warn!("the service manager cannot be told how this process is: {error}");
            Self::default()
        })
    }

    fn named(variable: impl Fn(&str) -> Option<OsString>, own_pid: u32) -> io::Result<Self> {
        let Some(name) = variable("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Ok(Self::default());
        };
        let number = |name: &str| variable(name).and_then(|text| text.to_str()?.parse::<u64>().ok());
        // A child of the process that is watched has its environment, and is not it.
        let watched = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(own_pid));
        let watchdog = number("WATCHDOG_USEC").filter(|micros| watched && *micros > 0);
        let socket = UnixDatagram::unbound()?;
        // A manager that does not read is no reason to stand still.
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket: Some((socket, address(&name)?)),
            watchdog: watchdog.map(Duration::from_micros),
        })
    }

    /// The process is up.
    pub fn ready(&self) {
        self.say("READY=1");
    }

    /// What it is doing, for people.
    pub fn status(&self, text: &str) {
        let line = text.lines().next().unwrap_or_default();
        self.say(&format!(
            "STATUS={}",
            &line[..line.floor_char_boundary(STATUS_BYTES_MAX)]
        ));
    }

    /// Says that the process is up, feeds the watchdog for as long as `answers` comes true, and says that it ends when it
    /// does.
    ///
    /// The interval is slept on the runtime's clock, which stands still while the machine is suspended: so does the
    /// manager's.
    pub async fn run<A, F>(self, answers: A, stop: CancellationToken) -> anyhow::Result<()>
    where
        A: Fn() -> F + Send,
        F: Future<Output = ()> + Send,
    {
        self.ready();
        match self.watchdog {
            None => stop.cancelled().await,
            Some(watchdog) => {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = self.feed(watchdog / 2, answers) => {}
                }
            }
        }
        self.say("STOPPING=1");
        Ok(())
    }

    async fn feed<A, F>(&self, every: Duration, answers: A)
    where
        A: Fn() -> F,
        F: Future<Output = ()>,
    {
        let mut said = false;
        loop {
            if timeout(every, answers()).await.is_ok() {
                self.say("WATCHDOG=1");
                said = false;
                sleep(every).await;
            } else if !std::mem::replace(&mut said, true) {
                tracing::error!("this process does not answer itself: the service manager is to start it anew");
            }
        }
    }

    fn say(&self, text: &str) {
        let Some((socket, address)) = &self.socket else {
            return;
        };
        if let Err(error) = socket.send_to_addr(text.as_bytes(), address) {
            tracing::debug!("telling the service manager {text}: {error}");
        }
    }
}

/// A path, or a name without a file, which begins with `@`.
fn address(name: &OsStr) -> io::Result<SocketAddr> {
    match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest),
        [b'/', ..] => SocketAddr::from_pathname(name),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("NOTIFY_SOCKET: {} is neither a path nor a name after @", name.display()),
        )),
    }
}

#[cfg(test)]
mod tests;
