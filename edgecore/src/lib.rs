//! The edge core: what runs on a node.

pub mod images;
pub mod runtime;
