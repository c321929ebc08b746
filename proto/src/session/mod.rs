//! The sync machines of both ends, and what carries out what they ask for.
//!
//! A machine is told what happened and asks for effects, in order. It never waits: the one executor ([`carry_out`]) does,
//! and it commits before it goes on, so that nothing is said before it is durable. The daemons and the simulator run the
//! same machines through the same executor.

pub mod cloud;
pub mod edge;
mod outgoing;
mod random;

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::delta::{DeltaError, decode_patch, decode_value};
use crate::dictionary::Dictionary;
use crate::frame::{Body, OBJECT_MAX};
use crate::time::Mono;
use crate::value::Value;

/// Frames that an end may have under way without an acknowledgement.
pub const WINDOW: usize = 8;

/// How long an end waits for any acknowledgement before it takes something for lost. The carrier tells of a broken link
/// much sooner; this is for what no carrier may do and some will.
pub const ACK_WAIT: Duration = Duration::from_secs(60);

/// How long the edge waits for the answer to its hello.
pub const WELCOME_WAIT: Duration = Duration::from_secs(10);

/// Hellos on one connection before the edge hangs up.
pub const HELLOS_MAX: u32 = 3;

/// One connection, by a number that its end gave it. A node that comes back may have two for a while, of which the cloud
/// keeps the older one until the newer one has confirmed its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Carrier(pub u64);

/// What a machine asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect<B, N> {
    /// Make this durable and tell the machine how it went before anything else.
    Commit(B),
    /// Send this frame over this carrier.
    Send(Carrier, Vec<u8>),
    /// End this carrier.
    Hangup(Carrier),
    /// Something that others want to know.
    Tell(N),
}

/// A state machine that [`carry_out`] can drive.
pub trait Machine {
    /// What it makes durable.
    type Batch;
    /// What a commit answers.
    type Outcome;
    /// What it tells others.
    type News;
    /// What it may look at.
    type Context: ?Sized;

    /// The next effect, if any.
    fn poll_effect(&mut self) -> Option<Effect<Self::Batch, Self::News>>;

    /// How the last commit went.
    fn committed(&mut self, now: Mono, outcome: Result<Self::Outcome, CommitError>, context: &Self::Context);

    /// When it wants to be woken.
    fn wake_at(&self) -> Option<Mono>;
}

/// Nothing of a commit became durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    #[error("the disk is full")]
    Full,
    #[error("the store does not write")]
    Failed,
}

/// Makes durable.
pub trait Disk<B, O> {
    fn commit(&mut self, batch: B) -> impl Future<Output = Result<O, CommitError>> + Send;
}

/// Carries frames to the other end.
pub trait Wire {
    /// Hands a frame over. A broken wire is told to the machine as lost, not here.
    fn send(&mut self, carrier: Carrier, frame: Vec<u8>) -> impl Future<Output = ()> + Send;

    fn hang_up(&mut self, carrier: Carrier);
}

/// Tells the time and wakes.
pub trait Timer {
    fn now(&self) -> Mono;

    /// Replaces the alarm that was set before.
    fn wake_at(&mut self, at: Option<Mono>);
}

/// Hears the news of a machine.
pub trait Listener<N> {
    fn hear(&mut self, news: N);
}

/// Carries out everything that the machine asks for, in order: what depends on a commit comes after it.
pub async fn carry_out<M, D, W, T, L>(
    machine: &mut M,
    context: &M::Context,
    disk: &mut D,
    wire: &mut W,
    timer: &mut T,
    listener: &mut L,
) where
    M: Machine,
    D: Disk<M::Batch, M::Outcome>,
    W: Wire,
    T: Timer,
    L: Listener<M::News>,
{
    while let Some(effect) = machine.poll_effect() {
        match effect {
            Effect::Commit(batch) => {
                let outcome = disk.commit(batch).await;
                machine.committed(timer.now(), outcome, context);
            }
            Effect::Send(carrier, frame) => wire.send(carrier, frame).await,
            Effect::Hangup(carrier) => wire.hang_up(carrier),
            Effect::Tell(news) => listener.hear(news),
        }
    }
    timer.wake_at(machine.wake_at());
}

/// Chunks of one body on their way in.
#[derive(Debug, Default)]
struct Assembly(Vec<u8>);

impl Assembly {
    fn push(&mut self, chunk: &[u8]) -> Result<(), Violation> {
        if self.0.len() + chunk.len() > OBJECT_MAX {
            return Err(Violation::TooLarge);
        }
        self.0.extend_from_slice(chunk);
        Ok(())
    }

    fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }
}

/// The content of a body, its chunks put together and its coding read.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    Full(Value),
    /// Against what is held of the same entry.
    Patch(crate::delta::Patch),
    /// Against what is held of the entry with this handle.
    Like(u32, crate::delta::Patch),
}

fn read(body: Body, assembly: &mut Assembly, dictionary: Dictionary) -> Result<Content, Violation> {
    Ok(match body {
        Body::Full(bytes) => Content::Full(decode_value(&bytes, dictionary)?),
        Body::Patch(bytes) => Content::Patch(decode_patch(&bytes, dictionary)?),
        Body::Like { handle, patch } => Content::Like(handle, decode_patch(&patch, dictionary)?),
        Body::FullChunks => Content::Full(decode_value(&assembly.take(), dictionary)?),
        Body::PatchChunks => Content::Patch(decode_patch(&assembly.take(), dictionary)?),
    })
}

/// What the other end must not do. The session ends; both cores go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    #[error("reading a frame")]
    Frame(#[from] crate::frame::FrameError),
    #[error("reading a body")]
    Body(#[from] DeltaError),
    #[error("a body in chunks is longer than {OBJECT_MAX}")]
    TooLarge,
    #[error("handle {0} was never given")]
    Handle(u32),
    #[error("a key is no list of kind, namespace and name")]
    Key,
    #[error("a prefix that cannot be")]
    Prefix,
    #[error("a frame that this end does not take")]
    Direction,
}
