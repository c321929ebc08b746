//! The cloud core: what should be, the API to say so, and the hub that tells the nodes.

pub mod api;
pub mod controllers;
pub mod hub;
pub mod pki;
pub mod scheduler;
pub mod store;
