//! A short queue that costs what is in it.
//!
//! Each connected node has two of them, which are empty nearly always. Tokio's own channel keeps a block for 32 messages
//! and half a kilobyte beside it for as long as it lives: 2.9 KB a node for the two.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// A queue with room for `max` messages.
pub(super) fn queue<T>(max: usize) -> (Sender<T>, Receiver<T>) {
    let state = State { messages: VecDeque::new(), senders: 1, received: true };
    let queue = Arc::new(Queue {
        state: Mutex::new(state),
        max,
        came: Notify::new(),
        room: Notify::new(),
    });
    (Sender(Arc::clone(&queue)), Receiver(queue))
}

#[derive(Debug)]
struct Queue<T> {
    state: Mutex<State<T>>,
    max: usize,
    /// A message came, or the last sender went: for the receiver.
    came: Notify,
    /// There is room, or the receiver went: for one sender, who passes it on.
    room: Notify,
}

#[derive(Debug)]
struct State<T> {
    messages: VecDeque<T>,
    senders: usize,
    /// Whether there is still somebody who receives.
    received: bool,
}

/// Why a message was not taken; it is given back.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused<T> {
    Full(T),
    /// Nobody receives any more.
    Over(T),
}

/// Puts messages into the queue.
#[derive(Debug)]
pub(super) struct Sender<T>(Arc<Queue<T>>);

/// Takes messages out of the queue. When it is dropped, what is in the queue is, too.
#[derive(Debug)]
pub(super) struct Receiver<T>(Arc<Queue<T>>);

impl<T> Sender<T> {
    pub(super) fn try_send(&self, message: T) -> Result<(), Refused<T>> {
        let has_room = {
            let mut state = self.0.lock();
            if !state.received {
                return Err(Refused::Over(message));
            }
            if state.messages.len() >= self.0.max {
                return Err(Refused::Full(message));
            }
            state.messages.push_back(message);
            state.messages.len() < self.0.max
        };
        self.0.came.notify_one();
        if has_room {
            // Two messages may have been taken between two senders' look and their wait, which are told of one.
            self.0.room.notify_one();
        }
        Ok(())
    }

    /// Waits for room; gives the message back when nobody receives any more.
    pub(super) async fn send(&self, mut message: T) -> Result<(), T> {
        loop {
            message = match self.try_send(message) {
                Ok(()) => return Ok(()),
                Err(Refused::Over(message)) => {
                    // So is it for the next one who waits.
                    self.0.room.notify_one();
                    return Err(message);
                }
                Err(Refused::Full(message)) => message,
            };
            self.0.room.notified().await;
        }
    }
}

impl<T> Receiver<T> {
    /// The next message; none when the queue is empty and the last sender is gone. May be abandoned: nothing is lost.
    pub(super) async fn recv(&mut self) -> Option<T> {
        loop {
            {
                let mut state = self.0.lock();
                if let Some(message) = state.messages.pop_front() {
                    if state.messages.is_empty() {
                        // A queue at rest holds no memory.
                        state.messages = VecDeque::new();
                    }
                    self.0.room.notify_one();
                    return Some(message);
                }
                if state.senders == 0 {
                    return None;
                }
            }
            self.0.came.notified().await;
        }
    }
}

impl<T> Queue<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.lock().senders += 1;
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let last = {
            let mut state = self.0.lock();
            state.senders -= 1;
            state.senders == 0
        };
        if last {
            self.0.came.notify_one();
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let left = {
            let mut state = self.0.lock();
            state.received = false;
            std::mem::take(&mut state.messages)
        };
        self.0.room.notify_one();
        // What is in it may itself hold a sender of this queue.
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::task::JoinSet;
    use tokio::time::timeout;

    use super::*;

    const MAX: usize = 4;

    #[tokio::test(start_paused = true)]
    async fn it_is_full_at_its_limit_and_empty_costs_nothing() {
        let (sender, mut receiver) = queue(MAX);
        for message in 0..MAX {
            assert_eq!(sender.try_send(message), Ok(()));
        }
        assert_eq!(sender.try_send(MAX), Err(Refused::Full(MAX)));
        let waiting = timeout(Duration::from_secs(1), sender.send(MAX));
        assert!(waiting.await.is_err(), "it went into a full queue");
        for message in 0..MAX {
            assert_eq!(receiver.recv().await, Some(message));
        }
        assert_eq!(sender.0.lock().messages.capacity(), 0);
        let waiting = timeout(Duration::from_secs(1), receiver.recv());
        assert!(waiting.await.is_err(), "it came from an empty queue");
        sender.send(9).await.unwrap();
        drop(sender);
        assert_eq!(receiver.recv().await, Some(9));
        assert_eq!(receiver.recv().await, None);
    }

    /// Many who send, some of whom give up while they wait; nobody is left waiting while there is room.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn nobody_waits_in_vain() {
        const SENDERS: u32 = 16;
        const EACH: u32 = 2000;
        let (sender, mut receiver) = queue(MAX);
        let mut tasks = JoinSet::new();
        for of in 0..SENDERS {
            let sender = sender.clone();
            tasks.spawn(async move {
                for number in 0..EACH {
                    if number % 7 == 0 {
                        // Looks once, and goes away again if it has to wait.
                        let mut sent = std::pin::pin!(sender.send((of, u32::MAX)));
                        std::future::poll_fn(|context| {
                            let _ready = sent.as_mut().poll(context).is_ready();
                            std::task::Poll::Ready(())
                        })
                        .await;
                    }
                    sender.send((of, number)).await.unwrap();
                }
            });
        }
        drop(sender);
        let mut next = [0; SENDERS as usize];
        let all = async {
            while let Some((of, number)) = receiver.recv().await {
                if number != u32::MAX {
                    let next = &mut next[usize::try_from(of).unwrap()];
                    assert_eq!(number, *next, "out of order");
                    *next += 1;
                }
            }
        };
        timeout(Duration::from_mins(1), all).await.expect("somebody waits");
        assert_eq!(next, [EACH; SENDERS as usize]);
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
    }

    #[tokio::test]
    async fn who_sends_into_a_queue_that_is_over_is_told_so() {
        let (sender, receiver) = queue(1);
        sender.try_send(0).unwrap();
        let mut tasks = JoinSet::new();
        for message in 1..=3 {
            let sender = sender.clone();
            tasks.spawn(async move { sender.send(message).await });
        }
        tokio::task::yield_now().await;
        drop(receiver);
        let mut back = Vec::new();
        while let Some(ended) = tasks.join_next().await {
            back.push(ended.unwrap().unwrap_err());
        }
        back.sort_unstable();
        assert_eq!(back, [1, 2, 3]);
        assert_eq!(sender.try_send(4), Err(Refused::Over(4)));
    }
}
