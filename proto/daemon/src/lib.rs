//! .

pub mod reconcile;
