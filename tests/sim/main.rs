//! One cloud and several edges in one thread, under a virtual clock and a seed.
//!
//! The machines and the executor are the real ones; the disks, the wires and the workloads are models. Faults come from
//! the seed: frames lost, doubled and reordered, links cut in one or both directions, both ends killed at any step and in
//! the middle of a commit, reboots, full disks, an edge's disk replaced by an older copy, the cloud's store restored from
//! a back-up or silently put back. After every step the invariants are checked; at the end everything heals, and then it
//! must converge, fall silent, and stay silent over a reconnect.
//!
//! `SIM_SEED=n` runs one seed and prints what happened; `SIM_SEEDS=n` sets how many are run, `SIM_FIRST=n` from which on.
//! `scripts/sabotage` takes rules out of the code and expects that this notices.

mod cloud;
mod edge;
mod random;
mod world;

use std::sync::atomic::{AtomicU64, Ordering};

use world::World;

/// Seeds in every run of the tests.
const SEEDS: u64 = 10_000;

#[test]
fn every_seed_converges() {
    if let Some(seed) = number("SIM_SEED") {
        World::new(seed, true).run();
        return;
    }
    let seeds = number("SIM_SEEDS").unwrap_or(SEEDS);
    let first = number("SIM_FIRST").unwrap_or(0);
    let next = AtomicU64::new(first);
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let worker = || {
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= first + seeds {
                    return;
                }
                let run = std::panic::catch_unwind(|| World::new(seed, false).run());
                assert!(run.is_ok(), "seed {seed} failed; SIM_SEED={seed} shows how");
            }
        };
        for worker in (0..threads).map(|_| scope.spawn(worker)).collect::<Vec<_>>() {
            assert!(worker.join().is_ok(), "a seed failed, see above");
        }
    });
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable}={text} is no number")),
    )
}
