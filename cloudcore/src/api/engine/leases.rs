//! Leases of nodes: made up when somebody reads them, from what the sessions know, and never stored.
//!
//! A lease is made up for a node that has had a session; any other lease is an object like every other, also in the
//! namespace of the node leases. A watch sees stored leases only: nobody is woken because a node still lives.

use proto::object::Kind;
use proto::time::{Wall, rfc3339};
use proto::value::Value;

use super::Call;
use super::filter::Filter;
use super::read::Page;
use super::resume::Resume;
use crate::api::query::ListOptions;
use crate::api::seams::Contact;
use crate::api::status::Refusal;
use crate::store::{Scope, Stored};

/// Where clients look for the leases of nodes.
pub(super) const NAMESPACE: &str = "kube-node-lease";

impl Call {
    /// The lease of a node, if this asks for one.
    pub(super) fn made_up_lease(&self, name: &str) -> Option<Value> {
        if self.kind.kind != "Lease" || self.namespace() != NAMESPACE {
            return None;
        }
        let contact = self.api.sessions.contact(name)?;
        let node = self.api.store.get(&proto::object::Key::new("Node", "", name))?;
        Some(lease(&node, contact))
    }

    pub(super) fn lists_made_up_leases(&self) -> bool {
        self.kind.kind == "Lease" && matches!(self.target.namespace.as_deref(), None | Some(NAMESPACE))
    }

    /// A page of stored and made up leases, which cannot be paged by the store.
    pub(super) async fn page_of_leases(&self, options: &ListOptions, filter: &Filter) -> Result<Page, Refusal> {
        let resume = options.resume.as_deref().map(Resume::parse).transpose()?;
        let stored = self.everything(&self.scope(filter)).await?;
        let mut all: Vec<Value> = stored.items.iter().map(|lease| lease.value()).collect();
        let nodes = self.everything(&Scope::kind(Kind::from("Node"))).await?.items;
        all.extend(nodes.iter().filter_map(|node| {
            let contact = self.api.sessions.contact(&node.key.name)?;
            Some(lease(node, contact))
        }));
        let place = |lease: &Value| {
            let text = |field| lease.text_at(&["metadata", field]).unwrap_or_default().to_owned();
            (text("namespace"), text("name"))
        };
        all.retain(|lease| filter.matches(lease));
        all.sort_by_key(place);
        if let Some(resume) = resume {
            let own = self.target.namespace.clone().unwrap_or(resume.namespace);
            let after = (own, resume.name);
            all.retain(|lease| place(lease) > after);
        }
        let limit = options.limit.unwrap_or(usize::MAX);
        let rest = all.len().saturating_sub(limit);
        all.truncate(limit);
        let resume = all.last().filter(|_| rest > 0).map(|last| {
            let (namespace, name) = place(last);
            Resume {
                revision: None,
                namespace: self.target.namespace.as_ref().map_or(namespace, |_| String::new()),
                name,
            }
        });
        Ok(Page {
            revision: stored.revision,
            objects: all,
            resume,
            remaining: filter.is_empty().then_some(rest),
        })
    }
}

fn lease(node: &Stored, contact: Contact) -> Value {
    let object = node.body();
    let created = object
        .at(&["metadata", "creationTimestamp"])
        .cloned()
        .unwrap_or_default();
    let name = node.key.name.as_str();
    let owner = Value::from([
        ("apiVersion", "v1"),
        ("kind", "Node"),
        ("name", name),
        ("uid", &node.uid.to_string()),
    ]);
    Value::from([
        ("apiVersion", Value::from("coordination.k8s.io/v1")),
        ("kind", Value::from("Lease")),
        (
            "metadata",
            Value::from([
                ("name", Value::from(name)),
                ("namespace", Value::from(NAMESPACE)),
                // One session, one node, one lease: the node's identity serves for both.
                ("uid", Value::from(node.uid.to_string())),
                ("resourceVersion", Value::from(node.revision.to_string())),
                ("creationTimestamp", created),
                ("ownerReferences", Value::List(vec![owner])),
            ]),
        ),
        (
            "spec",
            Value::from([
                ("holderIdentity", Value::from(name)),
                ("leaseDurationSeconds", Value::from(contact.grace_s)),
                ("renewTime", Value::from(micro(contact.at))),
            ]),
        ),
    ])
}

/// A time with microseconds, as leases have it.
fn micro(time: Wall) -> String {
    let whole = rfc3339(time.ms.div_euclid(1000));
    let whole = whole.trim_end_matches('Z');
    format!("{whole}.{:03}000Z", time.ms.rem_euclid(1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_with_microseconds() {
        assert_eq!(micro(Wall { ms: 1_500, trusted: true }), "1970-01-01T00:00:01.500000Z");
        assert_eq!(micro(Wall { ms: -1, trusted: true }), "1969-12-31T23:59:59.999000Z");
    }
}
