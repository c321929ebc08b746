//! What both daemons need at the rim.

pub mod carrier;
pub mod der;
pub mod framing;
pub mod trust;
