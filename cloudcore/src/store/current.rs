//! Every object as it is now, and the latest changes: one copy, shared by all readers.
//!
//! Only the writer changes it, after its commit and in the order of revisions; whoever holds the lock for reading sees
//! one revision.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use proto::object::{Epoch, Key, Kind, Revision, Uid};

use super::draft::RecordKey;
use super::stored::{Change, Scope, Stored};

/// Where an object stands within its kind.
type Place = (String, String);

/// What is current.
#[derive(Debug)]
pub(super) struct Current {
    pub(super) epoch: Epoch,
    /// The last write.
    pub(super) revision: Revision,
    /// The last write that history knows nothing of any more: what was at this revision can still be told.
    pub(super) floor: Revision,
    kinds: BTreeMap<Kind, BTreeMap<Place, Arc<Stored>>>,
    uids: HashMap<Uid, Arc<Stored>>,
    nodes: HashMap<String, BTreeMap<Place, Arc<Stored>>>,
    records: BTreeMap<String, BTreeMap<String, Arc<[u8]>>>,
    bytes: usize,
    pub(super) recent: Recent,
}

impl Current {
    pub(super) fn new(epoch: Epoch, revision: Revision, floor: Revision, recent: Recent) -> Self {
        Self {
            epoch,
            revision,
            floor,
            kinds: BTreeMap::new(),
            uids: HashMap::new(),
            nodes: HashMap::new(),
            records: BTreeMap::new(),
            bytes: 0,
            recent,
        }
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Arc<Stored>> {
        // The map is keyed by owned text; a point look-up goes through a borrowed pair only at the price of a wrapper
        // type, and two short copies are cheaper to read than that.
        self.kinds
            .get(&key.kind)?
            .get(&(key.namespace.clone(), key.name.clone()))
    }

    pub(super) fn by_uid(&self, uid: Uid) -> Option<&Arc<Stored>> {
        self.uids.get(&uid)
    }

    pub(super) fn record(&self, space: &str, id: &str) -> Option<Arc<[u8]>> {
        self.records.get(space)?.get(id).cloned()
    }

    pub(super) fn records(&self, space: &str) -> Vec<(String, Arc<[u8]>)> {
        let records = self.records.get(space).into_iter().flatten();
        records.map(|(id, bytes)| (id.clone(), Arc::clone(bytes))).collect()
    }

    /// The bytes of all current objects.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Objects of a scope behind a place, in order, at most `limit`; and how many follow.
    pub(super) fn page(&self, scope: &Scope, after: Option<&Place>, limit: usize) -> (Vec<Arc<Stored>>, usize) {
        let places = match &scope.node {
            Some(node) if scope.kind.as_str() == "Pod" => self.nodes.get(node),
            Some(_) => None,
            None => self.kinds.get(&scope.kind),
        };
        let Some(places) = places else {
            return (Vec::new(), 0);
        };
        let first = (scope.namespace.clone().unwrap_or_default(), String::new());
        let from = match after {
            Some(after) if *after >= first => Bound::Excluded(after),
            _ => Bound::Included(&first),
        };
        let mut found = places
            .range::<Place, _>((from, Bound::Unbounded))
            .take_while(|((namespace, _), _)| scope.namespace.as_ref().is_none_or(|wanted| wanted == namespace))
            .map(|(_, object)| object);
        let page = found.by_ref().take(limit).cloned().collect();
        (page, found.count())
    }

    /// Takes in an object at start.
    pub(super) fn load(&mut self, object: &Arc<Stored>) {
        self.insert(object);
    }

    pub(super) fn publish_record(&mut self, (space, id): RecordKey, bytes: Option<Arc<[u8]>>) {
        let records = self.records.entry(space).or_default();
        match bytes {
            Some(bytes) => records.insert(id, bytes),
            None => records.remove(&id),
        };
    }

    /// Takes in the next change.
    pub(super) fn publish(&mut self, change: &Change) {
        if let Some(before) = &change.before {
            self.remove(before);
        }
        if let Some(after) = &change.after {
            self.insert(after);
        }
        self.revision = change.revision;
        self.recent.push(change.clone());
    }

    /// Another epoch begins: nothing before it can be watched from.
    pub(super) fn renew(&mut self, epoch: Epoch, revision: Revision) {
        self.epoch = epoch;
        self.revision = revision;
        self.floor = revision;
        self.recent.clear(revision);
    }

    fn insert(&mut self, object: &Arc<Stored>) {
        let place = || (object.key.namespace.clone(), object.key.name.clone());
        self.bytes += object.bytes();
        self.kinds
            .entry(object.key.kind.clone())
            .or_default()
            .insert(place(), Arc::clone(object));
        self.uids.insert(object.uid, Arc::clone(object));
        if let Some(node) = object.node() {
            self.nodes
                .entry(node.to_owned())
                .or_default()
                .insert(place(), Arc::clone(object));
        }
    }

    fn remove(&mut self, object: &Stored) {
        let place = (object.key.namespace.clone(), object.key.name.clone());
        self.bytes -= object.bytes();
        if let Some(places) = self.kinds.get_mut(&object.key.kind) {
            places.remove(&place);
        }
        self.uids.remove(&object.uid);
        if let Some(node) = object.node()
            && let Some(places) = self.nodes.get_mut(node)
        {
            places.remove(&place);
            if places.is_empty() {
                self.nodes.remove(node);
            }
        }
    }
}

/// The latest changes, so that who is a little behind needs no disk.
#[derive(Debug)]
pub(super) struct Recent {
    changes: VecDeque<Change>,
    bytes: usize,
    changes_max: usize,
    bytes_max: usize,
    /// Every change after this one is here.
    from: Revision,
}

impl Recent {
    pub(super) fn new(from: Revision, changes_max: usize, bytes_max: usize) -> Self {
        Self {
            changes: VecDeque::new(),
            bytes: 0,
            changes_max,
            bytes_max,
            from,
        }
    }

    fn push(&mut self, change: Change) {
        self.bytes += change.bytes();
        self.changes.push_back(change);
        while self.changes.len() > self.changes_max || self.bytes > self.bytes_max {
            let Some(oldest) = self.changes.pop_front() else { break };
            self.bytes -= oldest.bytes();
            self.from = oldest.revision;
        }
    }

    fn clear(&mut self, from: Revision) {
        self.changes.clear();
        (self.bytes, self.from) = (0, from);
    }

    /// The changes after a revision, if they are all still here.
    pub(super) fn after(&self, revision: Revision) -> Option<impl DoubleEndedIterator<Item = &Change>> {
        let first = self.changes.partition_point(|change| change.revision <= revision);
        (revision >= self.from).then(|| self.changes.range(first..))
    }
}
