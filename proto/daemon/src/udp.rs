//! A socket for QUIC that wakes nobody for what has left.
//!
//! The kernel says with every datagram that has left that there is room for another one, and an idle process would wake
//! for it. This socket takes it that there is room, and asks to be told of it only once a send found none.

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use quinn::udp::{RecvMeta, Transmit, UdpSocketState};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The socket of an endpoint.
#[derive(Debug)]
pub struct Socket {
    socket: UdpSocket,
    state: UdpSocketState,
    /// The same socket, for what comes in.
    readable: AsyncFd<OwnedFd>,
    /// And for room, from a send that found none until there is some: one for all who wait.
    room: Mutex<Option<Arc<AsyncFd<OwnedFd>>>>,
}

impl Socket {
    /// Takes a bound socket; needs the runtime's IO.
    pub fn new(socket: UdpSocket) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        socket.set_nonblocking(true)?;
        let readable = register(&socket, Interest::READABLE)?;
        let room = Mutex::default();
        Ok(Self { socket, state, readable, room })
    }

    fn room(&self) -> MutexGuard<'_, Option<Arc<AsyncFd<OwnedFd>>>> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on until there is room, who wants to send waits for it.
    fn ask_for_room(&self) -> io::Result<()> {
        let mut room = self.room();
        if room.is_none() {
            *room = Some(Arc::new(register(&self.socket, Interest::WRITABLE)?));
        }
        Ok(())
    }

    /// Returns when there may be room.
    async fn has_room(self: Arc<Self>, waiting: Arc<AsyncFd<OwnedFd>>) -> io::Result<()> {
        drop(waiting.writable().await?);
        // Whoever finds none again asks anew.
        self.room().take_if(|room| Arc::ptr_eq(room, &waiting));
        Ok(())
    }
}

fn register(socket: &UdpSocket, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    let own = socket.as_fd().try_clone_to_owned()?;
    #[expect(unsafe_code, reason = "tokio registers descriptors that it cannot know to stay open")]
    // SAFETY: what is registered owns the descriptor and keeps it open, and an `OwnedFd` always has the same one.
    Ok(unsafe { AsyncFd::register_with_interest(own, interest) }?)
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Room { socket: self, waits: None })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let sent = self.state.send((&self.socket).into(), transmit);
        if sent
            .as_ref()
            .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        {
            self.ask_for_room()?;
        }
        sent
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

/// One connection's wait for room.
struct Room {
    socket: Arc<Socket>,
    waits: Option<Waits>,
}

type Waits = Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>;

impl UdpPoller for Room {
    fn poll_writable(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.waits.is_none() {
            let Some(waiting) = self.socket.room().clone() else {
                return Poll::Ready(Ok(()));
            };
            self.waits = Some(Box::pin(Arc::clone(&self.socket).has_room(waiting)));
        }
        let Some(waits) = &mut self.waits else {
            return Poll::Ready(Ok(()));
        };
        let found = ready!(waits.as_mut().poll(context));
        self.waits = None;
        Poll::Ready(found)
    }
}

impl std::fmt::Debug for Room {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Room")
            .field("waits", &self.waits.is_some())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::os::unix::net::UnixDatagram;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(10);

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
        let count = poll_fn(|context| socket.poll_recv(context, &mut [IoSliceMut::new(&mut buffer)], &mut about));
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
        // There is room, so whoever asks needs not wait.
        let mut room = Arc::new(one).create_io_poller();
        for _ in 0..2 {
            let found = poll_fn(|context| Poll::Ready(room.as_mut().poll_writable(context))).await;
            assert!(matches!(found, Poll::Ready(Ok(()))));
        }
    }

    /// A socket of the kernel that fills up: nobody reads at its other end.
    #[tokio::test]
    async fn all_who_found_no_room_are_told_when_there_is_some() {
        let (near, far) = UnixDatagram::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        while near.send(&[0; 1024]).is_ok() {}
        let socket = Arc::new(Socket {
            state: UdpSocketState::new((&local()).into()).unwrap(),
            readable: register(&local(), Interest::READABLE).unwrap(),
            socket: UdpSocket::from(OwnedFd::from(near)),
            room: Mutex::default(),
        });
        socket.ask_for_room().unwrap();
        let mut rooms: Vec<_> = (0..3).map(|_| Arc::clone(&socket).create_io_poller()).collect();
        for room in &mut rooms {
            let found = poll_fn(|context| Poll::Ready(room.as_mut().poll_writable(context))).await;
            assert!(found.is_pending(), "there was room in a full socket");
        }
        let mut buffer = [0; 1024];
        far.set_nonblocking(true).unwrap();
        while far.recv(&mut buffer).is_ok() {}
        for room in &mut rooms {
            let told = timeout(DEADLINE, poll_fn(|context| room.as_mut().poll_writable(context)));
            told.await.expect("nobody told it").unwrap();
        }
        assert!(socket.room().is_none(), "it is told of room that it has");
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
