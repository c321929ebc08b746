//! How soon the kernel ends this process, and what it starts, when the machine's memory runs out.

use std::io;

const SCORE: &str = "/proc/self/oom_score_adj";

/// `None` where there is no such thing.
pub(in crate::runtime) fn own() -> Option<i32> {
    std::fs::read_to_string(SCORE).ok()?.trim().parse().ok()
}

/// Raising takes no privilege; lowering takes `CAP_SYS_RESOURCE`, or that it was as low before.
pub(in crate::runtime) fn set(score: i32) -> io::Result<()> {
    std::fs::write(SCORE, score.to_string())
}
