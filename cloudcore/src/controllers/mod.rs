//! The controllers: each a pure plan over what should be and what is, woken by key.
//!
//! A [`Controller`] says which kinds wake which keys and plans one key at a time; the plan is a list of writes with
//! preconditions. [`driver`] is the one task shape that carries all of them out. Nothing here remembers a decision:
//! what a controller keeps in memory (since when a pod has been seen ready, what a node has reserved) can be lost at any
//! moment and only costs time.
//!
//! Invariants, each held by the simulation: never more pods of a workload than its replicas and surge, pods on silent
//! nodes counted; never fewer available than allowed by an act of ours; nothing is moved because a node is silent.

pub mod conditions;
pub mod daemonset;
pub mod deployment;
pub mod driver;
pub mod endpointslice;
pub mod event_ttl;
pub mod garbage;
pub mod namespace;
pub mod node_life;
pub mod owner;
pub mod plan;
pub mod pods;
pub mod replicaset;
pub mod sessions;
pub mod view;

#[cfg(test)]
pub(crate) mod model;
#[cfg(test)]
mod simulation;

use proto::object::Key;
use reconcile::Lane;

pub use driver::{Clock, Config, clock, run};

use plan::Plan;
use view::{Change, Now, View};

/// How many writes one plan makes at most; the rest follows when the first are done.
pub const WRITES_MAX: usize = 500;

/// A controller: what wakes it and what it plans.
pub trait Controller: Send {
    /// For logs and events.
    fn name(&self) -> &'static str;

    /// The kinds whose keys it plans: all of them are looked at again in the slow lane.
    fn plans(&self) -> &'static [&'static str];

    /// The kinds whose changes it wants to see.
    fn watches(&self) -> &'static [&'static str];

    /// Takes a change into what it keeps in memory. Sees every object once at start, and then every change in order,
    /// each before [`Controller::wake`].
    fn observe(&mut self, _change: &Change, _now: Now) {}

    /// Forgets what it keeps in memory: everything is about to be observed anew.
    fn forget(&mut self) {}

    /// Which keys a change concerns.
    fn wake(&mut self, change: &Change, view: &dyn View, now: Now) -> Vec<(Key, Lane)>;

    /// What to do about a key.
    fn plan(&mut self, key: &Key, view: &dyn View, now: Now) -> Plan;

    /// How the writes of a plan ended: called exactly once for every plan that had any.
    fn ended(&mut self, _key: &Key, _committed: bool) {}
}

/// Keys that a change makes due at once.
pub(crate) fn at_once(keys: impl IntoIterator<Item = Key>) -> Vec<(Key, Lane)> {
    keys.into_iter().map(|key| (key, Lane::Fast)).collect()
}

/// A 64-bit FNV-1a hash: for names that must be the same after a restart, not against forgery.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
