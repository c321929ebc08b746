//! Edgehold's cloud core: what should be.

pub mod store;
