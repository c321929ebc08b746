//! Makes durable what a node said: its reports, what is gone there, its events.

use proto::object::{Key, Uid};
use proto::session::CommitError as NotDurable;
use proto::session::Disk;
use proto::session::cloud::Batch;
use proto::time::rfc3339;
use proto::value::Value;

use super::view::{RECEIVED, Snapshot};
use crate::store::{CommitError, Lane, OPS_MAX, Op, Store, When};

/// A commit that others keep overtaking is given up after so many tries; the node says it again.
const TRIES: usize = 8;

/// The store as a node's session writes it.
pub(super) struct Commit<'a> {
    pub(super) store: &'a Store,
    pub(super) snapshot: &'a Snapshot,
}

impl Disk<Batch, ()> for Commit<'_> {
    async fn commit(&mut self, batch: Batch) -> Result<(), NotDurable> {
        for _ in 0..TRIES {
            // Made anew each time: what the batch is about may have changed or gone meanwhile.
            let ops = self.ops(&batch);
            if ops.is_empty() {
                return Ok(());
            }
            match self.store.commit(Lane::Status, ops).await {
                Ok(_) => return Ok(()),
                Err(error) if error.is_conflict() || matches!(error, CommitError::NotItsNode { .. }) => {}
                Err(CommitError::Full) => return Err(NotDurable::Full),
                Err(error) => {
                    tracing::error!(node = self.snapshot.node(), "writing a report: {error:#}");
                    return Err(NotDurable::Failed);
                }
            }
        }
        Err(NotDurable::Failed)
    }
}

impl Commit<'_> {
    fn ops(&self, batch: &Batch) -> Vec<Op> {
        let node = self.snapshot.node();
        let mut ops = Vec::new();
        for (uid, report) in &batch.reports {
            // A node writes only what its own view contains, and only while it is there. Of what is gone nothing is left
            // to say, and a report before would overtake the deletion.
            let last = batch.gone.contains(uid);
            if !last && self.snapshot.object(*uid).is_some() && self.is_its(*uid) {
                ops.push(Op::Report {
                    uid: *uid,
                    node: node.to_owned(),
                    value: Some(report.clone()),
                });
            }
        }
        ops.extend(batch.gone.iter().filter_map(|uid| self.gone(*uid)));
        ops.extend(batch.events.iter().filter_map(|(number, event)| {
            let (incarnation, _) = batch.received?;
            self.event(incarnation, *number, event)
        }));
        ops.truncate(OPS_MAX - 1);
        if let Some((incarnation, number)) = batch.received {
            let bytes = [incarnation, number.to_le_bytes()].concat();
            ops.push(Op::PutRecord { space: RECEIVED, id: node.to_owned(), bytes });
        }
        ops
    }

    /// Whether the object is still there, and the node still the one that has a say.
    fn is_its(&self, uid: Uid) -> bool {
        self.store
            .by_uid(uid)
            .is_some_and(|object| match object.key.kind.as_str() {
                "Node" => object.key.name == self.snapshot.node(),
                _ => object.node() == Some(self.snapshot.node()),
            })
    }

    /// A pod that was being deleted and is gone from its node goes, or waits for its finalizers only.
    fn gone(&self, uid: Uid) -> Option<Op> {
        let object = self.store.by_uid(uid).filter(|_| self.is_its(uid))?;
        let mut body = object.body();
        body.at(&["metadata", "deletionTimestamp"])?;
        let when = When::unchanged(&object);
        if body.list_at(&["metadata", "finalizers"]).is_empty() {
            return Some(Op::Delete { key: object.key.clone(), when });
        }
        body.set(&["metadata", "deletionGracePeriodSeconds"], 0i64);
        Some(Op::Replace { key: object.key.clone(), value: body, when })
    }

    /// A node's event as an object. Its name follows from its number, so that it is made once.
    fn event(&self, incarnation: [u8; 8], number: u64, event: &Value) -> Option<Op> {
        let namespace = event
            .text_at(&["involvedObject", "namespace"])
            .filter(|namespace| !namespace.is_empty());
        let namespace = namespace.unwrap_or("default");
        let place = self.store.get(&Key::new("Namespace", "", namespace))?;
        if place.body().at(&["metadata", "deletionTimestamp"]).is_some() {
            return None;
        }
        let about = event.text_at(&["involvedObject", "name"]).unwrap_or("node");
        let mark = u64::from_le_bytes(incarnation) ^ number.rotate_left(32);
        let name = format!("{about}.{mark:016x}");
        let key = Key::new("Event", namespace, name.as_str());
        if self.store.get(&key).is_some() {
            return None;
        }
        let mut value = event.clone();
        value.set(&["apiVersion"], "v1");
        value.set(&["kind"], "Event");
        value.set(&["metadata", "name"], name);
        value.set(&["metadata", "namespace"], namespace);
        value.set(&["metadata", "uid"], daemon::random::uid().to_string());
        value.set(
            &["metadata", "creationTimestamp"],
            rfc3339(daemon::clock::wall().ms.div_euclid(1000)),
        );
        value.set(&["source"], [("component", "edgecore"), ("host", self.snapshot.node())]);
        value.set(&["reportingComponent"], "edgecore");
        value.set(&["reportingInstance"], self.snapshot.node());
        Some(Op::Create { key, value })
    }
}
