//! What the hub's QUIC runs on: a thread of its own.
//!
//! A beat of a node is one datagram in and, 25 ms later, one out. On the runtime that everything shares its workers
//! hand such work to each other, and seven times a beat one of them is woken; a thread that does it all sleeps through
//! everything but the two. What connections and streams are for stays where it is, on the shared runtime.

use std::io;
use std::net::UdpSocket;
use std::pin::Pin;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use daemon::udp::Socket;
use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};
use tokio::runtime::{Builder, Handle};
use tokio_util::sync::CancellationToken;

/// The thread's name, as `ps` shows it.
const NAME: &str = "quic";

/// The thread. It has ended, and every connection with it, when this is dropped.
#[derive(Debug)]
pub(super) struct Thread {
    handle: Handle,
    end: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Thread {
    pub(super) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (handle, end) = (runtime.handle().clone(), CancellationToken::new());
        let ended = end.clone();
        let thread = thread::Builder::new()
            .name(NAME.to_owned())
            .spawn(move || runtime.block_on(ended.cancelled()))?;
        Ok(Self { handle, end, thread: Some(thread) })
    }

    /// For an endpoint: its tasks, timers and socket are the thread's.
    pub(super) fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::new(OnThread(self.handle.clone()))
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.end.cancel();
        // It waits for nothing but this.
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the hub's thread died");
        }
    }
}

#[derive(Debug)]
struct OnThread(Handle);

impl Runtime for OnThread {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        let _inside = self.0.enter();
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        let _inside = self.0.enter();
        TokioRuntime.spawn(future);
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        let _inside = self.0.enter();
        Ok(Arc::new(Socket::new(socket)?))
    }

    fn now(&self) -> Instant {
        TokioRuntime.now()
    }
}
