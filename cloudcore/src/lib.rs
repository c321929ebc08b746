//! Edgehold's cloud core: what should be.

pub mod controllers;
pub mod scheduler;
pub mod store;
