//! What the executor is handed here: disks that may be full or die at a commit, wires that collect, a clock that stands.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use proto::digest::EntryHash;
use proto::object::Uid;
use proto::session::{Carrier, CommitError, Listener, Timer, Wire, cloud, edge};
use proto::time::Mono;

use crate::cloud::Store;
use crate::edge::Disk;

/// Runs until the first wait; only a crash waits.
pub(super) fn poll_once(future: impl Future<Output = ()>) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    matches!(pin!(future).poll(&mut context), Poll::Ready(()))
}

/// Whether a process dies before or after its commit is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    Before,
    After,
}

pub(super) struct EdgeDisk<'a> {
    pub(super) disk: &'a mut Disk,
    pub(super) full: bool,
    pub(super) crash: Option<When>,
    pub(super) commits: &'a mut u64,
}

impl proto::session::Disk<edge::Batch, edge::Outcome> for EdgeDisk<'_> {
    async fn commit(&mut self, batch: edge::Batch) -> Result<edge::Outcome, CommitError> {
        if self.crash == Some(When::Before) {
            std::future::pending::<()>().await;
        }
        if self.full {
            return Err(CommitError::Full);
        }
        *self.commits += 1;
        let outcome = self.disk.commit(batch);
        if self.crash == Some(When::After) {
            std::future::pending::<()>().await;
        }
        outcome
    }
}

pub(super) struct CloudDisk<'a> {
    pub(super) store: &'a Mutex<Store>,
    pub(super) node: usize,
    pub(super) crash: Option<When>,
    pub(super) reported: &'a mut BTreeSet<(usize, Uid, EntryHash)>,
    pub(super) removed: &'a mut BTreeSet<(usize, Uid)>,
    pub(super) commits: &'a mut u64,
}

impl proto::session::Disk<cloud::Batch, ()> for CloudDisk<'_> {
    async fn commit(&mut self, batch: cloud::Batch) -> Result<(), CommitError> {
        if self.crash == Some(When::Before) {
            std::future::pending::<()>().await;
        }
        *self.commits += 1;
        self.reported.extend(
            batch
                .reports
                .iter()
                .map(|(uid, report)| (self.node, *uid, EntryHash::of_report(*uid, report))),
        );
        self.removed.extend(batch.gone.iter().map(|uid| (self.node, *uid)));
        self.store
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .commit(self.node, batch)?;
        if self.crash == Some(When::After) {
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

#[derive(Default)]
pub(super) struct Rim {
    pub(super) sent: Vec<(Carrier, Vec<u8>)>,
    pub(super) hung_up: Vec<Carrier>,
}

impl Wire for Rim {
    async fn send(&mut self, carrier: Carrier, frame: Vec<u8>) {
        self.sent.push((carrier, frame));
    }

    fn hang_up(&mut self, carrier: Carrier) {
        self.hung_up.push(carrier);
    }
}

pub(super) struct Clock {
    pub(super) now: u64,
    pub(super) at: Option<Mono>,
}

impl Timer for Clock {
    fn now(&self) -> Mono {
        Mono(self.now)
    }

    fn wake_at(&mut self, at: Option<Mono>) {
        self.at = at;
    }
}

pub(super) struct News<N>(pub(super) Vec<N>);

impl<N> Listener<N> for News<N> {
    fn hear(&mut self, news: N) {
        self.0.push(news);
    }
}
