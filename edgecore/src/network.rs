//! The machine's network as it is now, and word of when it changes.
//!
//! A node that lost its cloud dials less and less often. When a cable is put back or a modem gets its address, waiting
//! for the next try would be a minute lost; so the kernel's news of links, addresses and routes are listened to, and
//! those that may be a way out are passed on. The links of pods come and go without being one: they hang at a bridge.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::sys;

/// News come in bursts; this long after the last one, or that long after the first, they are looked at.
const SETTLED: Duration = Duration::from_millis(300);
const SETTLED_MAX: Duration = Duration::from_secs(3);

/// Read at one time; the kernel cuts what is longer, and then it counts as any change.
const NEWS_BYTES_MAX: usize = 8192;

/// Links that are known at one time. Beyond, a new one counts as a way out each time it is heard of.
const LINKS_MAX: usize = 1024;

/// The kernel's groups of news: links, addresses and routes of both families (`RTMGRP_*`).
const GROUPS: u32 = 0x1 | 0x10 | 0x40 | 0x100 | 0x400;

/// How often the network may have changed so far; whoever waits for another number is told.
pub type Changes = watch::Receiver<u64>;

/// Listens until stopped. Where the kernel does not tell, nothing is passed on: what waits for it has timers as well.
pub async fn listen(changes: watch::Sender<u64>, stop: CancellationToken) -> anyhow::Result<()> {
    let listener = async {
        let mut listener = Listener::new()?;
        loop {
            listener.change().await?;
            changes.send_modify(|count| *count += 1);
        }
    };
    tokio::select! {
        () = stop.cancelled() => return Ok(()),
        ended = listener => {
            let Err(error): io::Result<std::convert::Infallible> = ended;
            tracing::warn!("the kernel does not tell of the network's changes: {error}");
        }
    }
    stop.cancelled().await;
    Ok(())
}

/// The addresses under which this machine is seen from elsewhere, by the routes it has; nothing is sent to find out.
pub fn addresses() -> Vec<String> {
    let by_route = |bind: &str, towards: &str| {
        let socket = UdpSocket::bind(bind).ok()?;
        socket.connect(towards).ok()?;
        let address = socket.local_addr().ok()?.ip();
        (!address.is_loopback() && !address.is_unspecified()).then(|| address.to_string())
    };
    [
        by_route("0.0.0.0:0", "192.0.2.1:9"),
        by_route("[::]:0", "[2001:db8::1]:9"),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Hears the kernel's news.
#[derive(Debug)]
pub struct Listener {
    socket: AsyncFd<OwnedFd>,
    ways: Ways,
}

impl Listener {
    pub fn new() -> io::Result<Self> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
        Ok(Self {
            socket: sys::register(socket, Interest::READABLE)?,
            ways: Ways::default(),
        })
    }

    /// Returns when there may be another way out.
    pub async fn change(&mut self) -> io::Result<()> {
        loop {
            self.hear().await?;
            let burst = async {
                while let Ok(heard) = timeout(SETTLED, self.hear()).await {
                    heard?;
                }
                Ok(())
            };
            // Too long a burst is looked at as far as it went.
            timeout(SETTLED_MAX, burst).await.unwrap_or(Ok::<_, io::Error>(()))?;
            if self.ways.settle() {
                return Ok(());
            }
        }
    }

    async fn hear(&mut self) -> io::Result<()> {
        loop {
            let mut ready = self.socket.readable().await?;
            match receive(self.socket.get_ref()) {
                Ok(events) => {
                    events.into_iter().for_each(|event| self.ways.hear(event));
                    return Ok(());
                }
                Err(Errno::AGAIN) => ready.clear_ready(),
                Err(Errno::INTR) => {}
                // Some were lost.
                Err(Errno::NOBUFS) => {
                    self.ways.hear(Event::Route);
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn receive(socket: &OwnedFd) -> Result<Vec<Event>, Errno> {
    let mut news = [0; NEWS_BYTES_MAX];
    let (heard, _) = recv(socket, &mut news, RecvFlags::empty())?;
    Ok(events(news.get(..heard).unwrap_or_default()))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Link {
        index: u32,
        /// With a carrier.
        up: bool,
        /// Part of a bridge or the like.
        enslaved: bool,
    },
    LinkGone(u32),
    Address(u32),
    /// A default route, or something that is not known.
    Route,
}

/// What may be a way out.
#[derive(Debug, Default)]
struct Ways {
    /// Those that are up: whether they are enslaved.
    up: BTreeMap<u32, bool>,
    /// What came up, or got an address, since it was last settled.
    fresh: BTreeSet<u32>,
    route: bool,
}

impl Ways {
    fn hear(&mut self, event: Event) {
        match event {
            Event::Link { index, up: true, enslaved } => {
                if self.up.len() >= LINKS_MAX && !self.up.contains_key(&index) {
                    self.route = true;
                } else if self.up.insert(index, enslaved).is_none() {
                    self.fresh.insert(index);
                }
            }
            Event::Link { index, up: false, .. } | Event::LinkGone(index) => {
                self.up.remove(&index);
                self.fresh.remove(&index);
            }
            Event::Address(index) => {
                if self.fresh.len() < LINKS_MAX {
                    self.fresh.insert(index);
                }
            }
            Event::Route => self.route = true,
        }
    }

    /// Whether there may be another way out since this was last asked.
    fn settle(&mut self) -> bool {
        let fresh = std::mem::take(&mut self.fresh);
        let enslaved = |index| self.up.get(index).copied().unwrap_or(false);
        std::mem::take(&mut self.route) || fresh.iter().any(|index| !enslaved(index))
    }
}

/// Message types and attributes of `rtnetlink(7)`.
mod wire {
    pub(super) const NEW_LINK: u16 = 16;
    pub(super) const GONE_LINK: u16 = 17;
    pub(super) const NEW_ADDRESS: u16 = 20;
    pub(super) const NEW_ROUTE: u16 = 24;
    pub(super) const HEADER_BYTES: usize = 16;
    /// Of `ifinfomsg`.
    pub(super) const LINK_BYTES: usize = 16;
    pub(super) const FAMILY_ANY: u8 = 0;
    /// `IFF_LOWER_UP`, `IFF_LOOPBACK`.
    pub(super) const LOWER_UP: u32 = 0x1_0000;
    pub(super) const LOOPBACK: u32 = 0x8;
    /// `IFLA_MASTER`.
    pub(super) const MASTER: u16 = 10;
}

/// The news in what the kernel sent; what is cut off or not understood says nothing.
fn events(mut news: &[u8]) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some((length, kind)) = u32_at(news, 0).zip(u16_at(news, 4)) {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let Some(body) = news.get(wire::HEADER_BYTES..length) else {
            break;
        };
        events.extend(event(kind, body));
        news = news.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    events
}

fn event(kind: u16, body: &[u8]) -> Option<Event> {
    let index = u32_at(body, 4)?;
    match kind {
        // A bridge tells of its ports in messages of its own family.
        wire::NEW_LINK if *body.first()? == wire::FAMILY_ANY => {
            let flags = u32_at(body, 8)?;
            let up = flags & wire::LOWER_UP != 0 && flags & wire::LOOPBACK == 0;
            let enslaved = attributes(body.get(wire::LINK_BYTES..)?, wire::MASTER);
            Some(Event::Link { index, up, enslaved })
        }
        wire::GONE_LINK if *body.first()? == wire::FAMILY_ANY => Some(Event::LinkGone(index)),
        wire::NEW_ADDRESS => Some(Event::Address(index)),
        // Towards everywhere: the length of its destination is nought.
        wire::NEW_ROUTE if *body.get(1)? == 0 => Some(Event::Route),
        _ => None,
    }
}

/// Whether an attribute is among these.
fn attributes(mut list: &[u8], wanted: u16) -> bool {
    while let Some((length, kind)) = u16_at(list, 0).zip(u16_at(list, 2)) {
        if kind == wanted {
            return true;
        }
        // One that has no length of its own would be read for ever.
        let length = usize::from(length).max(4).next_multiple_of(4);
        list = list.get(length..).unwrap_or_default();
    }
    false
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(wire::HEADER_BYTES + body.len()).unwrap();
        let head = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], body].concat();
        let padded = head.len().next_multiple_of(4);
        [head, vec![0; padded]].concat()[..padded].to_vec()
    }

    fn link(family: u8, index: u32, flags: u32, attributes: &[u8]) -> Vec<u8> {
        [
            &[family, 0, 1, 0],
            &index.to_ne_bytes()[..],
            &flags.to_ne_bytes(),
            &[0; 4],
            attributes,
        ]
        .concat()
    }

    #[test]
    fn news_are_read() {
        // IFLA_IFNAME "a", padded; IFLA_MASTER 7.
        let master = [&[6, 0, 3, 0, b'a', 0, 0, 0, 8, 0, 10, 0][..], &7_u32.to_ne_bytes()].concat();
        let news = [
            message(wire::NEW_LINK, &link(0, 2, wire::LOWER_UP | 1, &[])),
            message(wire::NEW_LINK, &link(0, 3, 1, &[])),
            message(wire::NEW_LINK, &link(0, 4, wire::LOWER_UP, &master)),
            message(wire::NEW_LINK, &link(7, 4, wire::LOWER_UP, &[])),
            message(wire::NEW_LINK, &link(0, 1, wire::LOWER_UP | wire::LOOPBACK, &[])),
            message(wire::GONE_LINK, &link(0, 4, 0, &[])),
            message(wire::NEW_ADDRESS, &[2, 24, 0, 0, 9, 0, 0, 0]),
            message(wire::NEW_ROUTE, &[2, 0, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0]),
            message(wire::NEW_ROUTE, &[2, 24, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0]),
        ]
        .concat();
        let expected = [
            Event::Link { index: 2, up: true, enslaved: false },
            Event::Link { index: 3, up: false, enslaved: false },
            Event::Link { index: 4, up: true, enslaved: true },
            Event::Link { index: 1, up: false, enslaved: false },
            Event::LinkGone(4),
            Event::Address(u32::from_ne_bytes([9, 0, 0, 0])),
            Event::Route,
        ];
        assert_eq!(events(&news), expected);
        for end in 0..news.len() {
            // Cut anywhere, what stood before the cut is still read.
            let cut = events(&news[..end]);
            assert_eq!(cut, expected[..cut.len()]);
        }
        // An attribute and a message without a length.
        assert!(!attributes(&[0, 0, 3, 0], wire::MASTER));
        assert_eq!(events(&[0; 64]), []);
    }

    #[test]
    fn a_way_out_is_told_once() {
        let up = |index| Event::Link { index, up: true, enslaved: false };
        let down = |index| Event::Link { index, up: false, enslaved: false };
        let mut ways = Ways::default();
        assert!(!ways.settle());
        ways.hear(up(2));
        assert!(ways.settle());
        // Something else about the same link.
        ways.hear(up(2));
        assert!(!ways.settle());
        ways.hear(down(2));
        assert!(!ways.settle());
        ways.hear(up(2));
        assert!(ways.settle());
        ways.hear(Event::Address(2));
        assert!(ways.settle());
        ways.hear(Event::Route);
        assert!(ways.settle());
        assert!(!ways.settle());
    }

    #[test]
    fn the_links_of_pods_are_none() {
        let mut ways = Ways::default();
        // A link comes up before it is put at the bridge.
        ways.hear(Event::Link { index: 5, up: true, enslaved: false });
        ways.hear(Event::Link { index: 5, up: true, enslaved: true });
        assert!(!ways.settle());
        ways.hear(Event::Address(5));
        assert!(!ways.settle());
        // One that is gone again before anything settled.
        ways.hear(Event::Link { index: 6, up: true, enslaved: false });
        ways.hear(Event::LinkGone(6));
        assert!(!ways.settle());
    }

    #[test]
    fn links_past_the_limit_count_as_ways_out() {
        let mut ways = Ways::default();
        let links = u32::try_from(LINKS_MAX).unwrap();
        for index in 0..links {
            ways.hear(Event::Link { index, up: true, enslaved: true });
        }
        assert!(!ways.settle());
        ways.hear(Event::Link { index: links, up: true, enslaved: true });
        assert!(ways.settle());
        assert_eq!(ways.up.len(), LINKS_MAX);
    }
}
