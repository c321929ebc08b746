//! The cloud core: what should be, for every node.

pub mod hub;
pub mod pki;
