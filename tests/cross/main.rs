//! The edge core as it is built for other machines, run here by an emulator of their processors.
//!
//! `scripts/cross` builds it; `CROSS_PROFILE` names the profile whose programs are tested, `smoke` unless it is set.

#[cfg(test)]
mod smoke;
