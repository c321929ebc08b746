//! The cloud core: what should be, the API to say so, and the hub that tells the nodes.

pub mod admin;
pub mod allocator;
pub mod api;
pub mod config;
pub mod controllers;
pub mod hub;
pub mod pki;
pub mod scheduler;
pub mod serve;
pub mod store;
