//! Edgehold's cloud core: what should be.

pub mod hub;
pub mod pki;
pub mod store;
