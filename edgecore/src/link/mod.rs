//! The way to the cloud.

mod carry;
pub mod dial;
pub mod network;
pub mod quic;
pub mod session;
