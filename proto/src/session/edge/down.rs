//! What comes down: changes of the view, acknowledged once they are durable.

use super::{After, Change, Desired, Edge, Effect, News, STALL_WAIT_MIN, Session, State};
use crate::delta::{DeltaError, decode_value};
use crate::dictionary::Dictionary;
use crate::digest::{Digest, EntryHash};
use crate::frame::{Body, Down, Frame};
use crate::object::{Key, Revision, Uid};
use crate::session::{Content, Violation, read};
use crate::time::Mono;
use crate::value::Value;

impl Edge {
    pub(super) fn down(&mut self, now: Mono, seq: u32, items: Vec<Down>) -> Result<(), Violation> {
        let State::Up(session) = &mut self.state else {
            return Ok(());
        };
        let (mut desired, mut changes, mut mark) = (Vec::new(), Vec::new(), None);
        for item in items {
            match item {
                Down::New { uid, key, revision, body } => {
                    let key = read_key(&key, session.dictionary)?;
                    let handle = u32::try_from(session.handles.len()).map_err(|_| Violation::TooLarge)?;
                    let change = session.change(uid, body)?;
                    session.handles.push(uid);
                    session.numbers.insert(uid, handle);
                    desired.push(Desired::Upsert { uid, key: Some(key), revision, change });
                    changes.push((uid, true));
                }
                Down::Change { handle, revision, body } => {
                    let uid = session.uid(handle)?;
                    let change = session.change(uid, body)?;
                    desired.push(Desired::Upsert { uid, key: None, revision, change });
                    changes.push((uid, true));
                }
                Down::Delete { handle } => {
                    let uid = session.uid(handle)?;
                    desired.push(Desired::Delete { uid });
                    changes.push((uid, false));
                }
                Down::Mark { revision, digest } => mark = Some((revision, digest)),
                Down::Chunk(chunk) => session.assembly.push(&chunk)?,
                Down::Certificate(chain) => self.effects.push_back(Effect::Tell(News::Certificate(chain))),
            }
        }
        session.seq_in = seq;
        session.compared_with = false;
        for (uid, _) in changes.iter().filter(|(_, stays)| !stays) {
            // Nothing is left to say of what is gone.
            if self.reports.contains_key(uid) {
                self.lazy.reports.insert(*uid, None);
            }
            if self.gone.contains(uid) {
                self.lazy.gone.insert(*uid, false);
            }
        }
        let after = After::Down { seq, changes, mark };
        if desired.is_empty() {
            self.finish(now, after, &[]);
        } else {
            self.lazy.desired = desired;
            self.commit(now, after);
        }
        Ok(())
    }

    pub(super) fn note_applied(&mut self, revision: Revision) {
        if self.applied != revision || self.lazy.mark.is_some_and(|(epoch, _)| epoch != self.epoch) {
            self.applied = revision;
            self.lazy.mark = Some((self.epoch, revision));
        }
    }

    pub(super) fn applied_frame(
        &mut self,
        now: Mono,
        seq: u32,
        changes: Vec<(Uid, bool)>,
        mark: Option<(Revision, Digest)>,
        outcome: &[Result<EntryHash, DeltaError>],
    ) {
        let mut outcome = outcome.iter();
        let mut broken = false;
        for (uid, stays) in &changes {
            if *stays {
                match outcome.next() {
                    Some(Ok(hash)) => self.held.insert(*uid, *hash),
                    Some(Err(_)) | None => broken = true,
                }
            } else {
                self.held.remove(*uid);
                self.reports.remove(uid);
                self.gone.remove(uid);
            }
        }
        if !changes.is_empty() {
            let uids = changes.into_iter().map(|(uid, _)| uid).collect();
            self.effects.push_back(Effect::Tell(News::Changed(uids)));
        }
        match mark {
            Some((_, digest)) if self.held.digest() != digest => broken = true,
            Some((revision, _)) if !broken => {
                self.note_applied(revision);
                self.effects.push_back(Effect::Tell(News::Synced(revision)));
            }
            Some(_) | None => {}
        }
        if broken {
            // What we hold is not what the cloud thinks we do: start over and let it compare.
            self.note_applied(Revision(0));
            self.greet(now, 1);
            return;
        }
        self.stall_wait = STALL_WAIT_MIN;
        if let State::Up(session) = &self.state {
            let ack = Frame::Ack { session: session.id, seq, need_full: Vec::new() };
            self.send(&ack);
        }
        self.pump(now);
    }
}

impl Session {
    pub(super) fn change(&mut self, uid: Uid, body: Body) -> Result<Change, Violation> {
        Ok(match read(body, &mut self.assembly, self.dictionary)? {
            Content::Full(value) => Change::Full(value),
            Content::Patch(patch) => Change::Patch { base: uid, patch },
            Content::Like(handle, patch) => Change::Patch { base: self.uid(handle)?, patch },
        })
    }
}

fn read_key(coding: &[u8], dictionary: Dictionary) -> Result<Key, Violation> {
    let list = decode_value(coding, dictionary)?;
    match list.as_list() {
        Some([Value::Text(kind), Value::Text(namespace), Value::Text(name)]) => {
            Ok(Key::new(kind.as_str(), namespace.as_str(), name.as_str()))
        }
        _ => Err(Violation::Key),
    }
}
