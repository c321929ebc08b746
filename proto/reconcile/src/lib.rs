//! The keyed work queue that every reconciler of both cores runs on: pure, like all of `proto`.
//!
//! A reconciler is handed a key, never an event: it reads what should be and what is, acts, and says by an [`Outcome`]
//! when to be handed the key again. So events may be lost, doubled or reordered. The [`Queue`] decides which key runs
//! when; `daemon::reconcile` is the task that asks it.

mod backoff;
mod queue;

pub use backoff::{Backoff, Jitter};
pub use queue::{Lane, Limits, Outcome, Queue, SLOW_EVERY};
