//! The Kubernetes-compatible API: one engine for every kind, with kinds described by data.

pub mod auth;
pub mod body;
pub mod codec;
pub mod defaults;
pub mod discovery;
pub mod kinds;
pub mod media;
pub mod patch;
pub mod path;
pub mod query;
pub mod quote;
#[cfg(test)]
mod replay;
pub mod schema;
pub mod status;
pub mod strategy;
pub mod table;
pub mod validate;
mod yaml;
