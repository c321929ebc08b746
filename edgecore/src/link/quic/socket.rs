//! The socket below QUIC. It is told of what came in, and of room for what goes out only while it waits for that: the
//! kernel says with every datagram that has left that there is room for another one, and an idle process would wake for it.

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use quinn::udp::{RecvMeta, Transmit, UdpSocketState};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::sys;

#[derive(Debug)]
pub(super) struct Socket {
    socket: UdpSocket,
    state: UdpSocketState,
    /// The same socket, for what comes in.
    readable: AsyncFd<OwnedFd>,
}

impl Socket {
    pub(super) fn new(socket: UdpSocket) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        socket.set_nonblocking(true)?;
        let readable = sys::register(socket.as_fd().try_clone_to_owned()?, Interest::READABLE)?;
        Ok(Self { socket, state, readable })
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Room { socket: self, writable: None })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.state.send((&self.socket).into(), transmit)
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        about: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut ready = ready!(self.readable.poll_read_ready(context))?;
            let received = ready.try_io(|_| self.state.recv((&self.socket).into(), buffers, about));
            if let Ok(received) = received {
                return Poll::Ready(received);
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }

    fn max_transmit_segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.state.gro_segments()
    }
}

/// Waits for room after a send that found none.
#[derive(Debug)]
struct Room {
    socket: Arc<Socket>,
    writable: Option<AsyncFd<OwnedFd>>,
}

impl UdpPoller for Room {
    fn poll_writable(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let socket = Arc::clone(&self.socket);
        let writable = match &self.writable {
            Some(writable) => writable,
            // One of its own each time: another waiter is not to take its news.
            None => self.writable.insert(sys::register(
                socket.socket.as_fd().try_clone_to_owned()?,
                Interest::WRITABLE,
            )?),
        };
        let found = ready!(writable.poll_write_ready(context)).map(drop);
        self.writable = None;
        Poll::Ready(found)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    fn transmit(to: SocketAddr, contents: &[u8]) -> Transmit<'_> {
        Transmit {
            destination: to,
            ecn: None,
            contents,
            segment_size: None,
            src_ip: None,
        }
    }

    fn local() -> UdpSocket {
        UdpSocket::bind("127.0.0.1:0").unwrap()
    }

    async fn receive(socket: &Socket) -> Vec<u8> {
        let (mut buffer, mut about) = ([0; 1500], [RecvMeta::default()]);
        let count =
            std::future::poll_fn(|context| socket.poll_recv(context, &mut [IoSliceMut::new(&mut buffer)], &mut about));
        assert_eq!(count.await.unwrap(), 1);
        buffer[..about[0].len].to_vec()
    }

    #[tokio::test]
    async fn datagrams_come_and_go() {
        let (one, other) = (Socket::new(local()).unwrap(), Socket::new(local()).unwrap());
        let waiting = async {
            let first = receive(&other).await;
            other.try_send(&transmit(one.local_addr().unwrap(), b"back")).unwrap();
            first
        };
        let sending = async {
            tokio::task::yield_now().await;
            one.try_send(&transmit(other.local_addr().unwrap(), b"there")).unwrap();
            receive(&one).await
        };
        let (first, second) = tokio::join!(waiting, sending);
        assert_eq!((first.as_slice(), second.as_slice()), (&b"there"[..], &b"back"[..]));
        // There is room, so whoever waits for it waits for nothing, and more than once.
        let mut room = Arc::new(one).create_io_poller();
        for _ in 0..2 {
            std::future::poll_fn(|context| room.as_mut().poll_writable(context))
                .await
                .unwrap();
        }
    }

    /// Waits until a thread sleeps, and says how often it has.
    fn sleeps(thread: i32) -> u64 {
        loop {
            let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
            let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
            if line("State:").starts_with('S') {
                return line("voluntary_ctxt_switches:").parse().unwrap();
            }
            thread::yield_now();
        }
    }

    #[test]
    fn what_leaves_wakes_nobody() {
        const DATAGRAMS: u64 = 30;
        let (tell, told) = mpsc::channel();
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let socket = Arc::new(Socket::new(local()).unwrap());
                let thread = rustix::thread::gettid().as_raw_nonzero().get();
                tell.send((Arc::clone(&socket), thread)).unwrap();
                tokio::select! {
                    _ = receive(&socket) => panic!("nothing was sent here"),
                    _ = ended => {}
                }
            });
        });
        let (socket, sleeper) = told.recv().unwrap();
        let sink = local();
        let mut buffer = [0; 16];
        let mut exchange = |count| {
            for _ in 0..count {
                socket.try_send(&transmit(sink.local_addr().unwrap(), b"x")).unwrap();
                // It has left when it is there; then the news of it would be, too.
                sink.recv(&mut buffer).unwrap();
                sleeps(sleeper);
            }
        };
        exchange(3);
        let before = sleeps(sleeper);
        exchange(DATAGRAMS);
        let woken = sleeps(sleeper) - before;
        end.send(()).unwrap();
        thread.join().unwrap();
        assert!(
            woken < DATAGRAMS / 2,
            "woken {woken} times by {DATAGRAMS} datagrams that left"
        );
    }
}
