//! The seam to the edge store: what should run, where reports go, what must be remembered.

use std::sync::Arc;

use daemon::clock;
use proto::object::{Key, Revision, Uid};
use proto::time::{BootId, Mono, Wall};
use proto::value::Value;

/// One object of the node's view as the store has it.
#[derive(Debug, Clone, PartialEq)]
pub struct Desired {
    pub key: Key,
    pub uid: Uid,
    pub revision: Revision,
    pub value: Value,
}

/// What is desired of one kind.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Entries {
    pub list: Vec<Arc<Desired>>,
    /// Nothing is missing for want of a store that reads.
    pub read_whole: bool,
    /// The store held all of it once. One that was lost and begun anew does not know what is wanted here.
    pub synced: bool,
}

impl Entries {
    /// Whether what is not listed is not wanted.
    pub fn is_complete(&self) -> bool {
        self.read_whole && self.synced
    }
}

/// Not known to be there, nor known not to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the node's store cannot be read")]
pub struct Unreadable;

/// What a pod's reconciler needs from the store. Every call is durable when it returns, an event within a second.
pub trait Desk: Send + Sync + 'static {
    /// The pods of this node.
    fn desired_pods(&self) -> impl Future<Output = Entries> + Send;

    /// One object: a pod, or a config map or secret that a pod refers to.
    fn desired(&self, key: &Key) -> impl Future<Output = Result<Option<Arc<Desired>>, Unreadable>> + Send;

    /// Replaces the whole status of a pod. Reporting what is already reported changes nothing.
    fn report(&self, pod: Uid, status: Value) -> impl Future<Output = ()> + Send;

    /// Nothing of the pod is left on this node.
    fn gone(&self, pod: Uid) -> impl Future<Output = ()> + Send;

    fn event(&self, event: PodEvent) -> impl Future<Output = ()> + Send;

    /// What [`Desk::remember`] kept.
    fn memory(&self, pod: Uid) -> impl Future<Output = Result<Option<Vec<u8>>, Unreadable>> + Send;

    /// Keeps a pod's memory, or drops it.
    fn remember(&self, pod: Uid, memory: Option<Vec<u8>>) -> impl Future<Output = ()> + Send;

    /// Remembers and reports: the memory is durable no later than the report. A store that can do both in one write to
    /// the disk does.
    fn keep(&self, pod: Uid, memory: Vec<u8>, status: Value) -> impl Future<Output = ()> + Send {
        async move {
            self.remember(pod, Some(memory)).await;
            self.report(pod, status).await;
        }
    }

    /// The node's addresses, the first one being the primary; empty while it has none.
    fn addresses(&self) -> Vec<String>;
}

/// Where time comes from: the machine, or a test.
pub trait Clock: Send + Sync + 'static {
    fn mono(&self) -> Mono;
    fn wall(&self) -> Wall;
    fn boot(&self) -> BootId;

    /// Sleeps until `at`; for ever when there is nothing to wait for.
    fn sleep_until(&self, at: Option<Mono>) -> impl Future<Output = ()> + Send {
        let now = self.mono();
        async move {
            match at {
                Some(at) => tokio::time::sleep(at.since(now)).await,
                None => std::future::pending().await,
            }
        }
    }
}

/// The machine's own clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct Machine;

impl Clock for Machine {
    fn mono(&self) -> Mono {
        clock::mono()
    }

    fn wall(&self) -> Wall {
        clock::wall()
    }

    fn boot(&self) -> BootId {
        clock::boot_id()
    }

    async fn sleep_until(&self, at: Option<Mono>) {
        clock::sleep_until(at).await;
    }
}

/// Whether an event is worth somebody's attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    Normal,
    Warning,
}

impl Severity {
    /// As an Event's `type` has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// Something that happened to a pod, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodEvent {
    pub pod: Key,
    pub uid: Uid,
    /// As `involvedObject.fieldPath` has it (`spec.containers{web}`); empty for the pod as a whole.
    pub field_path: String,
    pub severity: Severity,
    pub reason: &'static str,
    pub message: String,
    /// How often it happened since it was last said, at least 1.
    pub count: u32,
    pub at: Wall,
}
