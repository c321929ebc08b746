//! .

pub mod controllers;
pub mod scheduler;
