//! The way to the cloud.

pub mod dial;
pub mod quic;
