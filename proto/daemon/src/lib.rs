//! What both daemons need at the rim, where the pure crates end: clocks, randomness, files, databases, tasks, logs.
//!
//! Nothing here decides anything. [`clock`] is the one place that reads a clock; everything below the rim gets its
//! time as an argument.

pub mod clock;
pub mod files;
pub mod logging;
pub mod random;
pub mod reconcile;
pub mod seal;
pub mod sqlite;
pub mod supervisor;
