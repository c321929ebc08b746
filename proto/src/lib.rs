//! The language both cores speak.
//!
//! Everything here is pure: no IO, no clock, no randomness, no task. Time and seeds are arguments, maps are ordered, and
//! every state machine is driven from outside, so that the daemons and the simulator run the same code.

pub mod admin;
pub mod delta;
pub mod dictionary;
pub mod digest;
pub mod enrol;
pub mod frame;
pub mod object;
pub mod session;
pub mod time;
pub mod tunnel;
pub mod value;
