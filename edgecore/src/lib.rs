//! The edge core: what runs on a node.

pub mod identity;
pub mod link;
pub mod runtime;
