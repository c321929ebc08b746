//! The edge core: what runs on a node.

pub mod identity;
pub mod images;
pub mod link;
pub mod pods;
pub mod runtime;
pub mod store;
