//! What both daemons need at the rim, where the pure crates end: clocks, randomness, files, databases, tasks, logs;
//! what the two cores carry between each other, and whom they trust.
//!
//! Nothing here decides anything. [`clock`] is the one place that reads a clock; everything below the rim gets its
//! time as an argument.

pub mod carrier;
pub mod clock;
pub mod command_line;
pub mod config;
pub mod der;
pub mod files;
pub mod framing;
pub mod logging;
pub mod pem;
pub mod random;
pub mod reconcile;
pub mod seal;
pub mod service;
pub mod sqlite;
pub mod supervisor;
pub mod trust;
pub mod udp;
