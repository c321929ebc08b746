//! Where nodes connect.

pub mod quic;
