//! What people ask for and what workloads do.

use proto::object::{Key, Uid};
use proto::session::edge;
use proto::value::Value;

use super::World;
use crate::edge::status;

impl World {
    pub(super) fn user(&mut self) {
        let pods: Vec<_> = self.objects("Pod");
        let node = self.random.index(self.edges.len());
        let name = format!("web-{}", self.random.below(6));
        let number = self.random.next() >> 1;
        match self.random.below(8) {
            0..=2 if !pods.iter().any(|(_, key)| key.name == name) => {
                self.create_pod(node, &name, number);
            }
            3 if !pods.is_empty() => {
                let (uid, _) = pods[self.random.index(pods.len())].clone();
                self.cloud
                    .store()
                    .edit(uid, |object| object.body.set(&["spec", "number"], number));
            }
            4 if !pods.is_empty() => {
                let (uid, _) = pods[self.random.index(pods.len())].clone();
                self.cloud.store().edit(uid, |object| {
                    let deletion = "2026-01-01T00:00:00Z";
                    object.body.set(&["metadata", "deletionTimestamp"], deletion);
                });
            }
            5 if !pods.is_empty() => {
                let (uid, _) = pods[self.random.index(pods.len())].clone();
                let same = self.random.chance(500);
                self.replace_pod(uid, (!same).then_some(number));
            }
            _ => self.config(number),
        }
        self.changed();
    }

    /// Deletes a pod by force and creates another one under its name at once, which may be like it in all but its uid.
    fn replace_pod(&mut self, uid: Uid, number: Option<u64>) {
        let old = self.cloud.store().object(uid).cloned();
        let Some(old) = old else { return };
        self.delete(uid);
        let Some(node) = old.nodes.first().copied() else { return };
        let before = old
            .body
            .int_at(&["spec", "number"])
            .and_then(|number| number.try_into().ok());
        let number = number.or(before).unwrap_or_default();
        let new = self.create_pod(node, &old.key.name, number);
        let store = self.cloud.store();
        let new = store.object(new).expect("it was created just now");
        assert_ne!(old.hash, new.hash, "another {} has the same hash", old.key);
    }

    fn objects(&self, kind: &str) -> Vec<(Uid, Key)> {
        let store = self.cloud.store();
        let objects = store.of_kind(kind);
        objects.map(|(uid, object)| (uid, object.key.clone())).collect()
    }

    fn create_pod(&mut self, node: usize, name: &str, number: u64) -> Uid {
        let uid = self.random.uid();
        let container = Value::from([("name", "web"), ("image", "web:1")]);
        let scheduled = Value::from([("type", "PodScheduled"), ("status", "True")]);
        let body = Value::from([
            (
                "spec",
                Value::from([
                    ("number", Value::from(number)),
                    ("containers", Value::from_iter([container])),
                ]),
            ),
            // The one part of a status that is the cloud's.
            ("status", Value::from([("conditions", Value::from_iter([scheduled]))])),
        ]);
        let key = Key::new("Pod", "default", name);
        self.cloud.store().create(uid, key, [node].into(), body);
        uid
    }

    fn config(&mut self, number: u64) {
        let configs = self.objects("ConfigMap");
        // Now and then one that takes several frames.
        let size = if self.random.chance(200) { 40_000 } else { 40 };
        let letter = char::from(b'a' + u8::try_from(number % 26).unwrap_or(0));
        let mut text = format!("{number:x}");
        text.extend(std::iter::repeat_n(letter, size - text.len()));
        if configs.len() < 3 {
            let uid = self.random.uid();
            let nodes = (0..self.edges.len()).collect();
            let key = Key::new("ConfigMap", "default", format!("config-{number}"));
            self.cloud.store().create(
                uid,
                key,
                nodes,
                Value::from([("data", [("text", text)])].map(|(name, data)| (name, Value::from(data)))),
            );
        } else {
            let (uid, _) = configs[self.random.index(configs.len())].clone();
            if self.random.chance(150) {
                self.delete(uid);
            } else {
                self.cloud
                    .store()
                    .edit(uid, |object| object.body.set(&["data", "text"], text));
            }
        }
    }

    pub(super) fn workload(&mut self, node: usize) {
        let uids: Vec<_> = self.edges[node].runtime.keys().copied().collect();
        if self.edges[node].machine.is_none() {
            return;
        }
        match self.random.below(4) {
            0 | 1 if !uids.is_empty() => {
                let uid = uids[self.random.index(uids.len())];
                if let Some(container) = self.edges[node].runtime.get_mut(&uid) {
                    container.ready = !container.ready;
                    let report = status(container);
                    self.edge(node, edge::Input::Reports(vec![(uid, report)]));
                }
            }
            2 if !uids.is_empty() => {
                self.edges[node].runtime.remove(&uids[self.random.index(uids.len())]);
                self.reconcile(node);
            }
            _ => {
                let number = self.emitted.entry(node).or_default();
                *number += 1;
                let event = Value::from([("node", Value::from(node as u64)), ("number", (*number).into())]);
                self.edge(node, edge::Input::Event(event));
            }
        }
    }
}
