//! One timer of the kernel for every long wait of a process that mostly waits.
//!
//! The asynchronous runtime's timers are a wheel: a wait of half a minute costs the process three wake-ups, because the
//! wheel turns in steps, and one that was put off still rings at its first time. On a node that runs on a battery, or
//! whose memory is small, every wake-up counts: here a wait wakes the process once, and one that was put off not at all.
//! It also counts the time in which the machine is suspended, which the wheel does not.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use daemon::clock::mono;
use proto::time::Mono;
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::sys;

/// The timer; clones are one. Somebody must [`ring`](Alarm::ring) it.
#[derive(Debug, Clone)]
pub struct Alarm {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    timer: AsyncFd<OwnedFd>,
    waits: Mutex<Waits>,
}

#[derive(Debug, Default)]
struct Waits {
    /// Who waits until when; the number tells waits of one time apart.
    sleepers: BTreeMap<(Mono, u64), Waker>,
    numbers: u64,
    /// What the kernel's timer is set to.
    set: Option<Mono>,
}

impl Alarm {
    /// Needs the runtime's IO.
    pub fn new() -> io::Result<Self> {
        let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        let timer = sys::register(timer, Interest::READABLE)?;
        Ok(Self { shared: Arc::new(Shared { timer, waits: Mutex::default() }) })
    }

    /// Wakes whoever's time has come, for ever. Nobody is woken while nothing polls this.
    pub async fn ring(&self) -> io::Result<()> {
        loop {
            let mut ready = self.shared.timer.readable().await?;
            match rustix::io::read(self.shared.timer.get_ref(), &mut [0_u8; 8]) {
                // Set to another time since it went off.
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            ready.clear_ready();
            let due = {
                let mut waits = self.shared.waits();
                let later = waits
                    .sleepers
                    .split_off(&(mono() + std::time::Duration::from_millis(1), 0));
                let due = std::mem::replace(&mut waits.sleepers, later);
                waits.set = None;
                self.shared.set(&mut waits);
                due
            };
            due.into_values().for_each(Waker::wake);
        }
    }

    /// Sleeps until `at`.
    pub fn sleep_until(&self, at: Mono) -> Sleep {
        Sleep { alarm: self.clone(), at, waits: None }
    }
}

impl Shared {
    fn waits(&self) -> MutexGuard<'_, Waits> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the timer to the first of all waits.
    fn set(&self, waits: &mut Waits) {
        let first = waits.sleepers.first_key_value().map(|((at, _), _)| *at);
        if first == waits.set {
            return;
        }
        // All zeroes take it back; no wait is at zero, which has passed.
        let ms = first.map_or(0, |at| i64::try_from(at.0).unwrap_or(i64::MAX));
        let value = Timespec { tv_sec: ms / 1000, tv_nsec: (ms % 1000) * 1_000_000 };
        let once = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: value,
        };
        timerfd_settime(self.timer.get_ref(), TimerfdTimerFlags::ABSTIME, &once)
            .expect("it is a timer, and the time is one");
        waits.set = first;
    }
}

/// One wait; over when its time has come.
#[derive(Debug)]
pub struct Sleep {
    alarm: Alarm,
    at: Mono,
    /// How it is known to the alarm.
    waits: Option<(Mono, u64)>,
}

impl Sleep {
    /// Waits until another time instead, from the next poll on.
    pub fn reset(&mut self, at: Mono) {
        self.at = at;
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut waits = this.alarm.shared.waits();
        if mono() >= this.at {
            if let Some(key) = this.waits.take() {
                waits.sleepers.remove(&key);
                this.alarm.shared.set(&mut waits);
            }
            return Poll::Ready(());
        }
        if this.waits.is_some_and(|(at, _)| at != this.at)
            && let Some(key) = this.waits.take()
        {
            waits.sleepers.remove(&key);
        }
        let key = this.waits.unwrap_or_else(|| {
            waits.numbers += 1;
            (this.at, waits.numbers)
        });
        this.waits = Some(key);
        waits.sleepers.insert(key, context.waker().clone());
        this.alarm.shared.set(&mut waits);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.waits {
            let mut waits = self.alarm.shared.waits();
            waits.sleepers.remove(&key);
            self.alarm.shared.set(&mut waits);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Runs a future beside the ringing of its alarm.
    async fn rung<T>(alarm: &Alarm, work: impl Future<Output = T>) -> T {
        tokio::select! {
            done = work => done,
            broken = alarm.ring() => panic!("{broken:?}"),
        }
    }

    fn set(alarm: &Alarm) -> Option<Mono> {
        alarm.shared.waits().set
    }

    #[tokio::test]
    async fn everybody_is_woken_at_his_time_and_in_order() {
        let alarm = Alarm::new().unwrap();
        // They all wait before the first one is woken, on an emulated board as well.
        let now = mono() + Duration::from_millis(500);
        let order = Mutex::new(Vec::new());
        let sleeper = async |ms: u64| {
            let at = now + Duration::from_millis(ms);
            alarm.sleep_until(at).await;
            assert!(mono() >= at);
            order.lock().unwrap().push(ms);
        };
        rung(&alarm, async {
            tokio::join!(sleeper(40), sleeper(5), sleeper(20), sleeper(5), sleeper(0))
        })
        .await;
        assert_eq!(*order.lock().unwrap(), [0, 5, 5, 20, 40]);
        assert_eq!(set(&alarm), None);
        assert!(alarm.shared.waits().sleepers.is_empty());
    }

    #[tokio::test]
    async fn the_timer_follows_the_first_wait_wherever_it_goes() {
        let alarm = Alarm::new().unwrap();
        let after = |s: u64| mono() + Duration::from_secs(s);
        let (near, far, further) = (after(100), after(200), after(300));
        let poll = |sleep: &mut Sleep| Pin::new(sleep).poll(&mut Context::from_waker(Waker::noop()));
        let (mut first, mut second) = (alarm.sleep_until(far), alarm.sleep_until(near));
        assert!(poll(&mut first).is_pending());
        assert_eq!(set(&alarm), Some(far));
        assert!(poll(&mut second).is_pending());
        assert_eq!(set(&alarm), Some(near));
        // Put off: the process is not woken at the time that no longer counts.
        second.reset(further);
        assert!(poll(&mut second).is_pending());
        assert_eq!(set(&alarm), Some(far));
        drop(first);
        assert_eq!(set(&alarm), Some(further));
        second.reset(Mono(0));
        assert!(poll(&mut second).is_ready());
        assert_eq!(set(&alarm), None);
    }

    #[tokio::test]
    async fn a_wait_that_is_abandoned_and_taken_up_again_ends_in_time() {
        let alarm = Alarm::new().unwrap();
        let at = mono() + Duration::from_millis(20);
        rung(&alarm, async {
            loop {
                let mut sleep = alarm.sleep_until(at);
                tokio::select! {
                    biased;
                    () = &mut sleep => break,
                    () = alarm.sleep_until(mono() + Duration::from_millis(1)) => {}
                }
            }
        })
        .await;
        assert!(mono() >= at);
    }
}
