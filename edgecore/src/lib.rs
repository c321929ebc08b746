//! The edge core: what runs on a node.

pub mod pods;
pub mod runtime;
