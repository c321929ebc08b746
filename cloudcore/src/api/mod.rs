//! The Kubernetes-compatible API: one engine for every kind, with kinds described by data.

pub mod codec;
pub mod defaults;
pub mod kinds;
pub mod patch;
pub mod quote;
pub mod schema;
pub mod strategy;
pub mod validate;

#[cfg(test)]
mod replay;
