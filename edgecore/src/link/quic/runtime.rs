//! What QUIC runs on: the asynchronous runtime, but for its socket and its timers.
//!
//! Timers are the process's alarm where there is one, so that a beat wakes the process once. And whenever a connection has
//! done something it looks at its timer, which tells those who watch over it that there may be something new.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use daemon::clock::mono;
use daemon::udp::Socket;
use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};
use tokio::sync::Notify;

use crate::alarm::{Alarm, Sleep};

/// A runtime for the connections of one endpoint.
#[derive(Debug)]
pub(super) struct Driven {
    pub(super) alarm: Option<Alarm>,
    /// Told whenever a connection did something.
    pub(super) told: Arc<Notify>,
}

impl Runtime for Driven {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        let told = Arc::clone(&self.told);
        match &self.alarm {
            Some(alarm) => {
                let left = at.saturating_duration_since(self.now());
                Box::pin(OnAlarm { sleep: alarm.sleep_until(mono() + whole(left)), at, told })
            }
            None => Box::pin(OnWheel { timer: TokioRuntime.new_timer(at), told }),
        }
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        TokioRuntime.spawn(future);
    }

    fn wrap_udp_socket(&self, socket: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        Ok(Arc::new(Socket::new(socket)?))
    }

    fn now(&self) -> Instant {
        TokioRuntime.now()
    }
}

#[derive(Debug)]
struct OnAlarm {
    sleep: Sleep,
    at: Instant,
    told: Arc<Notify>,
}

impl AsyncTimer for OnAlarm {
    fn reset(mut self: Pin<&mut Self>, at: Instant) {
        self.at = at;
        let left = at.saturating_duration_since(TokioRuntime.now());
        self.sleep.reset(mono() + whole(left));
    }

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.told.notify_one();
        ready!(Pin::new(&mut self.sleep).poll(context));
        // The two clocks run apart while the machine is suspended.
        let left = self.at.saturating_duration_since(TokioRuntime.now());
        if left.is_zero() {
            return Poll::Ready(());
        }
        self.sleep.reset(mono() + whole(left));
        Pin::new(&mut self.sleep).poll(context)
    }
}

#[derive(Debug)]
struct OnWheel {
    timer: Pin<Box<dyn AsyncTimer>>,
    told: Arc<Notify>,
}

impl AsyncTimer for OnWheel {
    fn reset(mut self: Pin<&mut Self>, at: Instant) {
        self.timer.as_mut().reset(at);
    }

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.told.notify_one();
        self.timer.as_mut().poll(context)
    }
}

/// In the whole milliseconds that the alarm counts in, and surely over by then: that clock's own fraction is not known.
fn whole(left: Duration) -> Duration {
    left + Duration::from_micros(1999)
}
