//! What a group of requests comes to: pure. Each request sees what those before it in the group did, and one that
//! fails leaves nothing behind.

use std::collections::BTreeMap;
use std::sync::Arc;

use proto::object::{Key, Revision, Uid};

use super::commit::{Body, CommitError, Prepared, When};
use super::current::Current;
use super::stored::{Change, Form, Report, Stored};

/// A place of a record.
pub(super) type RecordKey = (String, String);

/// The outcome of one request: per operation the object as it is now.
pub(super) type Outcome = Result<Vec<Option<Arc<Stored>>>, CommitError>;

/// What a group is going to change.
#[derive(Debug)]
pub(super) struct Draft<'a> {
    current: &'a Current,
    bytes_max: usize,
    bytes: usize,
    revision: Revision,
    /// In order of revision, consecutive.
    pub(super) changes: Vec<Change>,
    /// The last word on each record.
    pub(super) records: BTreeMap<RecordKey, Option<Arc<[u8]>>>,
    objects: BTreeMap<Key, Option<Arc<Stored>>>,
    uids: BTreeMap<Uid, Option<Key>>,
    undo: Vec<Undo>,
}

/// How to take back one step of the request at hand.
#[derive(Debug)]
enum Undo {
    Object(Key, Option<Option<Arc<Stored>>>),
    Uid(Uid, Option<Option<Key>>),
    Record(RecordKey, Option<Option<Arc<[u8]>>>),
}

impl<'a> Draft<'a> {
    /// Starts from what is current. Objects may come to `bytes_max` together.
    pub(super) fn new(current: &'a Current, bytes_max: usize) -> Self {
        Self {
            current,
            bytes_max,
            bytes: current.bytes(),
            revision: current.revision,
            changes: Vec::new(),
            records: BTreeMap::new(),
            objects: BTreeMap::new(),
            uids: BTreeMap::new(),
            undo: Vec::new(),
        }
    }

    /// Does all of a request or nothing.
    pub(super) fn request(&mut self, ops: &[Prepared]) -> Outcome {
        let (changes, revision, bytes) = (self.changes.len(), self.revision, self.bytes);
        self.undo.clear();
        let outcome: Outcome = ops.iter().map(|op| self.op(op)).collect();
        if outcome.is_err() {
            self.changes.truncate(changes);
            (self.revision, self.bytes) = (revision, bytes);
            while let Some(undo) = self.undo.pop() {
                match undo {
                    Undo::Object(key, was) => put_back(&mut self.objects, key, was),
                    Undo::Uid(uid, was) => put_back(&mut self.uids, uid, was),
                    Undo::Record(key, was) => put_back(&mut self.records, key, was),
                }
            }
        }
        outcome
    }

    fn op(&mut self, op: &Prepared) -> Result<Option<Arc<Stored>>, CommitError> {
        match op {
            Prepared::Create { key, body } => self.create(key, body).map(Some),
            Prepared::Replace { key, body, when } => self.replace(key, body, *when).map(Some),
            Prepared::Delete { key, when } => self.delete(key, *when).map(Some),
            Prepared::Report { uid, node, form } => self.report(*uid, node, form.as_ref()),
            Prepared::PutRecord { space, id, bytes } => {
                self.put_record(((*space).to_owned(), id.clone()), Some(Arc::clone(bytes)));
                Ok(None)
            }
            Prepared::DeleteRecord { space, id } => {
                self.put_record(((*space).to_owned(), id.clone()), None);
                Ok(None)
            }
            Prepared::ExpectRecord { space, id, bytes } => {
                if self.record(space, id).as_deref() != bytes.as_deref() {
                    return Err(CommitError::Record { space, id: id.clone() });
                }
                Ok(None)
            }
        }
    }

    fn create(&mut self, key: &Key, body: &Body) -> Result<Arc<Stored>, CommitError> {
        if self.object(key).is_some() {
            return Err(CommitError::Exists(key.clone()));
        }
        if let Some(other) = self.key_of(body.uid) {
            return Err(CommitError::UidTaken { uid: body.uid, key: other });
        }
        let revision = self.next();
        self.put(
            None,
            Stored {
                key: key.clone(),
                uid: body.uid,
                revision,
                created: revision,
                projected: revision,
                projection: body.projection,
                node: body.node.clone(),
                body: body.form.clone(),
                body_at: revision,
                report: None,
            },
        )
    }

    fn replace(&mut self, key: &Key, body: &Body, when: When) -> Result<Arc<Stored>, CommitError> {
        let before = self.found(key, when)?;
        if body.uid != before.uid {
            return Err(CommitError::Uid { key: key.clone(), wanted: body.uid, found: before.uid });
        }
        if body.form == before.body {
            return Ok(before);
        }
        let revision = self.next();
        let after = Stored {
            revision,
            projected: if body.projection == before.projection {
                before.projected
            } else {
                revision
            },
            projection: body.projection,
            node: body.node.clone(),
            body: body.form.clone(),
            body_at: revision,
            ..(*before).clone()
        };
        self.put(Some(before), after)
    }

    fn delete(&mut self, key: &Key, when: When) -> Result<Arc<Stored>, CommitError> {
        let before = self.found(key, when)?;
        let revision = self.next();
        self.bytes = self.bytes.saturating_sub(before.bytes());
        let was = self.objects.insert(key.clone(), None);
        self.undo.push(Undo::Object(key.clone(), was));
        let was = self.uids.insert(before.uid, None);
        self.undo.push(Undo::Uid(before.uid, was));
        self.changes
            .push(Change { revision, before: Some(Arc::clone(&before)), after: None });
        Ok(before)
    }

    fn report(&mut self, uid: Uid, node: &Arc<str>, form: Option<&Form>) -> Result<Option<Arc<Stored>>, CommitError> {
        let Some(before) = self.key_of(uid).and_then(|key| self.object(&key)) else {
            return Ok(None);
        };
        let key = &before.key;
        let has_a_say = match key.kind.as_str() {
            "Pod" => before.node() == Some(node),
            "Node" => *key.name == **node,
            // Nothing to report on, and reports are not sealed.
            "Secret" => false,
            _ => true,
        };
        if !has_a_say {
            return Err(CommitError::NotItsNode { key: key.clone(), node: node.to_string() });
        }
        let report = form.map(|form| Report { node: Arc::clone(node), form: form.clone() });
        if report == before.report {
            return Ok(Some(before));
        }
        let after = Stored { revision: self.next(), report, ..(*before).clone() };
        self.put(Some(before), after).map(Some)
    }

    /// The object at a key, if it is there and as the caller thinks it is.
    fn found(&self, key: &Key, when: When) -> Result<Arc<Stored>, CommitError> {
        let object = self.object(key).ok_or_else(|| CommitError::NotFound(key.clone()))?;
        match when {
            When { uid: Some(wanted), .. } if wanted != object.uid => {
                Err(CommitError::Uid { key: key.clone(), wanted, found: object.uid })
            }
            When { revision: Some(wanted), .. } if wanted != object.revision => {
                Err(CommitError::Conflict { key: key.clone(), wanted, found: object.revision })
            }
            When { .. } => Ok(object),
        }
    }

    fn put(&mut self, before: Option<Arc<Stored>>, after: Stored) -> Result<Arc<Stored>, CommitError> {
        let smaller = self
            .bytes
            .saturating_sub(before.as_ref().map_or(0, |object| object.bytes()));
        let bytes = smaller.saturating_add(after.bytes());
        if bytes > self.bytes_max && bytes > self.bytes {
            return Err(CommitError::Full);
        }
        self.bytes = bytes;
        let after = Arc::new(after);
        let was = self.objects.insert(after.key.clone(), Some(Arc::clone(&after)));
        self.undo.push(Undo::Object(after.key.clone(), was));
        if before.is_none() {
            let was = self.uids.insert(after.uid, Some(after.key.clone()));
            self.undo.push(Undo::Uid(after.uid, was));
        }
        self.changes.push(Change {
            revision: after.revision,
            before,
            after: Some(Arc::clone(&after)),
        });
        Ok(after)
    }

    fn put_record(&mut self, key: RecordKey, bytes: Option<Arc<[u8]>>) {
        let was = self.records.insert(key.clone(), bytes);
        self.undo.push(Undo::Record(key, was));
    }

    fn next(&mut self) -> Revision {
        self.revision = Revision(self.revision.0 + 1);
        self.revision
    }

    fn object(&self, key: &Key) -> Option<Arc<Stored>> {
        match self.objects.get(key) {
            Some(drafted) => drafted.clone(),
            None => self.current.get(key).cloned(),
        }
    }

    fn key_of(&self, uid: Uid) -> Option<Key> {
        match self.uids.get(&uid) {
            Some(drafted) => drafted.clone(),
            None => self.current.by_uid(uid).map(|object| object.key.clone()),
        }
    }

    fn record(&self, space: &str, id: &str) -> Option<Arc<[u8]>> {
        match self.records.get(&(space.to_owned(), id.to_owned())) {
            Some(drafted) => drafted.clone(),
            None => self.current.record(space, id),
        }
    }

    /// The revision after this group.
    pub(super) fn revision(&self) -> Revision {
        self.revision
    }
}

fn put_back<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, was: Option<V>) {
    match was {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    };
}
