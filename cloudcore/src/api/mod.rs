//! The Kubernetes-compatible API: one engine for every kind, with kinds described by data.

pub mod codec;
pub mod kinds;
pub mod schema;
