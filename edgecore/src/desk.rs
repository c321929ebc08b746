//! The pods' desk: the node's store to read from, the session to report through.

use std::sync::{Arc, Mutex, PoisonError};

use proto::object::{Key, Kind, Uid};
use proto::session::edge::Input;
use proto::time::rfc3339;
use proto::value::Value;

use crate::link::session::Reporter;
use crate::pods::{Desired, Desk, Entries, PodEvent, Unreadable};
use crate::store::NodeStore;

/// What the pods see of the rest of the edge core.
#[derive(Debug)]
pub struct StoreDesk {
    store: NodeStore,
    reporter: Reporter,
    addresses: Mutex<Vec<String>>,
}

impl StoreDesk {
    pub fn new(store: NodeStore, reporter: Reporter) -> Self {
        Self { store, reporter, addresses: Mutex::default() }
    }

    /// The node's addresses are now these; says whether that is new.
    pub fn set_addresses(&self, addresses: Vec<String>) -> bool {
        let mut known = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        let new = *known != addresses;
        *known = addresses;
        new
    }
}

impl Desk for StoreDesk {
    async fn desired_pods(&self) -> Entries {
        self.store.entries(Kind::from("Pod")).await
    }

    async fn desired(&self, key: &Key) -> Result<Option<Arc<Desired>>, Unreadable> {
        self.store.entry(key.clone()).await
    }

    async fn report(&self, pod: Uid, status: Value) {
        self.reporter.say(Input::Reports(vec![(pod, status)])).await;
    }

    async fn gone(&self, pod: Uid) {
        self.reporter.say(Input::Gone(pod)).await;
    }

    async fn event(&self, event: PodEvent) {
        self.reporter.say(Input::Event(event_object(&event))).await;
    }

    async fn memory(&self, pod: Uid) -> Result<Option<Vec<u8>>, Unreadable> {
        self.store.memory(pod).await
    }

    async fn remember(&self, pod: Uid, memory: Option<Vec<u8>>) {
        self.store.remember(pod, memory).await;
    }

    async fn keep(&self, pod: Uid, memory: Vec<u8>, status: Value) {
        self.store.remember_with_next(pod, memory);
        self.report(pod, status).await;
        // Where the report was none, or could not be made durable.
        self.store.remember_waiting(pod).await;
    }

    fn addresses(&self) -> Vec<String> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// An event without what the cloud gives it: its name and identity.
fn event_object(event: &PodEvent) -> Value {
    let mut about = Value::from([
        ("kind", Value::from(event.pod.kind.kind())),
        ("apiVersion", "v1".into()),
        ("namespace", event.pod.namespace.as_str().into()),
        ("name", event.pod.name.as_str().into()),
        ("uid", event.uid.to_string().into()),
    ]);
    if !event.field_path.is_empty() {
        about.set(&["fieldPath"], event.field_path.as_str());
    }
    let at = rfc3339(event.at.ms.div_euclid(1000));
    Value::from([
        ("involvedObject", about),
        ("type", event.severity.as_str().into()),
        ("reason", event.reason.into()),
        ("message", event.message.as_str().into()),
        ("count", event.count.into()),
        ("firstTimestamp", at.clone().into()),
        ("lastTimestamp", at.into()),
    ])
}

#[cfg(test)]
mod tests {
    use proto::session::edge::Batch;

    use super::*;

    #[tokio::test]
    async fn a_memory_and_a_report_are_one_write() {
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = NodeStore::open(folder.path()).unwrap();
        let (reporter, mut said) = Reporter::new();
        let desk = StoreDesk::new(store.clone(), reporter);
        let pod = Uid([1; 16]);
        let session = async {
            let report = said.recv().await.unwrap();
            assert_eq!(store.memory(pod).await, Ok(None), "a write of its own");
            store.commit(Batch::default()).await.unwrap();
            assert_eq!(store.memory(pod).await, Ok(Some(vec![1])));
            drop(report);
            // One that changes nothing has no commit.
            drop(said.recv().await.unwrap());
        };
        let pods = async {
            desk.keep(pod, vec![1], Value::map()).await;
            desk.keep(pod, vec![2], Value::map()).await;
        };
        tokio::join!(session, pods);
        assert_eq!(store.memory(pod).await, Ok(Some(vec![2])));
    }
}
