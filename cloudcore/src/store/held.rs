//! What nodes hold: reads at the revisions that they have acknowledged, for sessions, whose machines ask and do not wait.
//!
//! Most answers come from memory: of an object whose projection has not changed since, or from the latest changes. The
//! rest is one short read of the file on the caller's thread.

use std::collections::BTreeMap;
use std::sync::Arc;

use proto::object::{Key, Revision};
use rusqlite::Connection;

use super::current::Current;
use super::schema::RowError;
use super::stored::{Scope, Stored};
use super::{Store, history, read};

/// An answer from memory, or that it takes the file.
#[derive(Debug, PartialEq, Eq)]
enum Memory<T> {
    Known(T),
    Ask,
}

impl Store {
    /// What a node that has acknowledged `at` holds of the object at a key: a version with the same projection. None when
    /// there was no such object, or when it is no longer known.
    ///
    /// May block for a read of the file.
    pub fn held(&self, key: &Key, at: Revision) -> Option<Arc<Stored>> {
        if let Memory::Known(found) = object(&read(&self.shared.current), key, at) {
            return found;
        }
        self.read_now(|snapshot, seal| {
            if at >= history::floor(snapshot)? {
                return history::object(snapshot, seal, key, at);
            }
            history::base(snapshot, seal, key, at)
        })?
    }

    /// The pods that a node which has acknowledged `at` holds, in the order of namespace and name. None when that is no
    /// longer known in full.
    ///
    /// May block for a read of the file.
    pub fn pods_held(&self, node: &str, at: Revision) -> Option<Vec<Arc<Stored>>> {
        let scope = Scope::pods_of(node);
        if let Memory::Known(found) = pods(&read(&self.shared.current), &scope, at) {
            return found;
        }
        self.read_now(|snapshot, seal| {
            if at >= history::floor(snapshot)? {
                let (found, _) = history::page(snapshot, seal, &scope, at, None, usize::MAX)?;
                return Ok(Some(found));
            }
            if !history::is_whole(snapshot, node, at)? {
                return Ok(None);
            }
            history::bases_of(snapshot, seal, &scope, at).map(Some)
        })?
    }

    fn read_now<T>(
        &self,
        query: impl FnOnce(&Connection, &daemon::seal::SealingKey) -> Result<T, RowError>,
    ) -> Option<T> {
        match self.shared.readers.run_now(query) {
            Ok(found) => Some(found),
            Err(error) => {
                tracing::error!(error = %format_args!("{:#}", anyhow::Error::new(error)), "reading what a node holds");
                None
            }
        }
    }
}

fn object(current: &Current, key: &Key, at: Revision) -> Memory<Option<Arc<Stored>>> {
    if at > current.revision {
        return Memory::Known(None);
    }
    let now = current.get(key);
    if let Some(now) = now.filter(|now| now.projection.is_some() && now.projected <= at) {
        return Memory::Known(Some(Arc::clone(now)));
    }
    let Some(mut later) = current.recent.after(at) else {
        return Memory::Ask;
    };
    Memory::Known(match later.find(|change| change.object().key == *key) {
        Some(change) => change.before.clone(),
        None => now.cloned(),
    })
}

fn pods(current: &Current, scope: &Scope, at: Revision) -> Memory<Option<Vec<Arc<Stored>>>> {
    if at > current.revision {
        return Memory::Known(None);
    }
    let Some(later) = current.recent.after(at) else {
        return Memory::Ask;
    };
    let (now, _) = current.page(scope, None, usize::MAX);
    let mut held: BTreeMap<Key, Arc<Stored>> = now.into_iter().map(|pod| (pod.key.clone(), pod)).collect();
    // Backwards: what a change made is taken away, and what it replaced is there again.
    for change in later.rev() {
        if let Some(after) = &change.after {
            held.remove(&after.key);
        }
        if let Some(before) = change.before.as_ref().filter(|before| scope.contains(before)) {
            held.insert(before.key.clone(), Arc::clone(before));
        }
    }
    Memory::Known(Some(held.into_values().collect()))
}
