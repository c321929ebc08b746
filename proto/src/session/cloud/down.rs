//! What goes down: the changes of the view since what the node was sent, put into frames.

use std::collections::BTreeMap;

use super::holdings::{Holding, Holdings};
use super::{Cloud, Entry, News, Phase, Session, View};
use crate::delta::{diff, encode_patch, encode_value};
use crate::digest::{EntryHash, Inventory};
use crate::frame::{Body, Down, Frame, OBJECT_MAX};
use crate::object::{Key, Revision};
use crate::session::outgoing::{Large, Packing, WHOLE_MAX};
use crate::session::{ACK_WAIT, Effect, WINDOW};
use crate::time::Mono;
use crate::value::Value;

impl Cloud {
    /// Sends what the node lacks, as far as the window allows.
    pub(super) fn pump(&mut self, now: Mono, view: &dyn View) {
        let Some(session) = &mut self.active else { return };
        let Phase::Following(_) = &session.phase else { return };
        if session.in_flight.len() >= WINDOW {
            return;
        }
        let entries = view.entries();
        while session.in_flight.len() < WINDOW {
            let mut packing = Packing::default();
            let mut mark = None;
            session.fill(&entries, view, &mut packing, &mut mark);
            if packing.items.is_empty() {
                return;
            }
            session.seq_out += 1;
            if session.in_flight.is_empty() {
                session.patience = now + ACK_WAIT;
                session.again_wait = ACK_WAIT;
            }
            session.in_flight.push_back((session.seq_out, mark));
            let frame = Frame::Down {
                session: session.id,
                seq: session.seq_out,
                items: packing.items,
            };
            self.effects.push_back(Effect::Send(session.carrier, frame.encode()));
        }
    }

    pub(super) fn acked(&mut self, now: Mono, id: u32, seq: u32, view: &dyn View) {
        let Some(session) = self.session(id) else { return };
        let count = session.in_flight.partition_point(|(sent, _)| *sent <= seq);
        if count == 0 {
            return;
        }
        let settled = session
            .in_flight
            .drain(..count)
            .filter_map(|(_, mark)| mark)
            .next_back();
        session.patience = now + ACK_WAIT;
        session.again_wait = ACK_WAIT;
        if let Some(revision) = settled {
            self.effects.push_back(Effect::Tell(News::Acked(revision)));
        }
        self.pump(now, view);
    }
}

impl Session {
    /// Fills one frame: small things first, then deletions, then what changed in the order of the view, then a chunk of
    /// what is large; and a mark when nothing is left.
    fn fill(&mut self, entries: &[Entry], view: &dyn View, packing: &mut Packing<Down>, mark: &mut Option<Revision>) {
        let Phase::Following(mut holding) = std::mem::replace(&mut self.phase, Phase::Following(Holdings::default()))
        else {
            return;
        };
        let complete = self.fill_changes(&mut holding, entries, view, packing);
        if complete && self.unmarked && self.large.is_none() && packing.fits(0) {
            let held: Inventory = holding.iter().map(|(uid, holding)| (uid, holding.hash)).collect();
            packing.push(Down::Mark { revision: view.revision(), digest: held.digest() }, 0);
            *mark = Some(view.revision());
            self.unmarked = false;
        }
        self.phase = Phase::Following(holding);
    }

    /// Returns whether the node holds everything once it has this frame.
    fn fill_changes(
        &mut self,
        holding: &mut Holdings,
        entries: &[Entry],
        view: &dyn View,
        packing: &mut Packing<Down>,
    ) -> bool {
        while let Some(aside) = self.asides.pop_front() {
            let size = if let Down::Certificate(chain) = &aside {
                chain.len()
            } else {
                0
            };
            if !packing.fits(size) {
                self.asides.push_front(aside);
                return false;
            }
            packing.push(aside, size);
        }
        let current: BTreeMap<_, _> = entries.iter().map(|entry| (entry.uid, entry.hash)).collect();
        let absent: Vec<_> = holding
            .iter()
            .filter(|(uid, _)| !current.contains_key(uid))
            .map(|(uid, held)| (uid, held.handle))
            .collect();
        for (uid, handle) in absent {
            if !packing.fits(0) {
                return false;
            }
            packing.push(Down::Delete { handle }, 0);
            holding.remove(uid);
            self.unmarked = true;
        }
        let mut complete = true;
        for entry in entries {
            if holding.get(entry.uid).is_some_and(|held| held.hash == entry.hash) {
                continue;
            }
            if self.large.as_ref().is_some_and(|large| large.closing.uid == entry.uid) {
                complete = false;
                continue;
            }
            let Some((body, size)) = self.body(entry, holding, entries, view) else {
                complete = false;
                continue;
            };
            if size > WHOLE_MAX {
                complete = false;
                if self.large.is_none() {
                    self.large = Some(Box::new(Large::new(body, entry.clone())));
                }
                continue;
            }
            if !packing.fits(size) {
                complete = false;
                break;
            }
            self.push(entry, body, size, packing, holding);
        }
        if let Some(mut large) = self.large.take() {
            match large.chunk() {
                Some(chunk) if packing.fits(chunk.len()) => {
                    let size = chunk.len();
                    packing.push(Down::Chunk(chunk), size);
                    self.large = Some(large);
                }
                Some(chunk) => {
                    large.put_back(chunk.len());
                    self.large = Some(large);
                }
                None if packing.fits(key_size(&large.closing.key)) => {
                    let (body, entry) = (large.body(), &large.closing);
                    self.push(entry, body, key_size(&entry.key), packing, holding);
                }
                None => self.large = Some(large),
            }
            complete = false;
        }
        complete
    }

    fn push(&mut self, entry: &Entry, body: Body, size: usize, packing: &mut Packing<Down>, holding: &mut Holdings) {
        let (uid, revision) = (entry.uid, entry.revision);
        let (handle, item) = match holding.get(uid) {
            Some(Holding { handle, .. }) => (*handle, Down::Change { handle: *handle, revision, body }),
            None => {
                let handle = u32::try_from(self.handles.len()).unwrap_or(u32::MAX);
                self.handles.push(uid);
                let Key { kind, namespace, name } = &entry.key;
                let key = Value::from_iter([kind.as_str(), namespace, name]);
                let key = encode_value(&key, self.dictionary);
                (handle, Down::New { uid, key, revision, body })
            }
        };
        packing.push(item, size);
        holding.insert(uid, Holding { handle, revision, hash: entry.hash });
        self.unmarked = true;
    }

    /// The shortest body for an entry, and the room it takes. `None` when the object is gone since: the view will tell.
    fn body(&self, entry: &Entry, holding: &Holdings, entries: &[Entry], view: &dyn View) -> Option<(Body, usize)> {
        let new = view.projection(&entry.key, entry.uid, entry.revision)?;
        let full = encode_value(&new, self.dictionary);
        let held = |entry: &Entry, revision: Revision, hash: EntryHash| {
            let base = view.projection(&entry.key, entry.uid, revision)?;
            (EntryHash::of(&entry.key, entry.uid, &base) == hash).then_some(base)
        };
        let own = holding.get(entry.uid);
        let key = if own.is_some() { 0 } else { key_size(&entry.key) };
        let body = match own {
            Some(own) => held(entry, own.revision, own.hash)
                .map(|base| encode_patch(&diff(&base, &new), self.dictionary))
                .filter(|patch| patch.len() < full.len())
                .map(Body::Patch),
            None => sibling(entry, entries, holding)
                .and_then(|(other, handle)| {
                    let base = held(other, other.revision, other.hash)?;
                    let patch = encode_patch(&diff(&base, &new), self.dictionary);
                    (patch.len() < full.len() && patch.len() <= WHOLE_MAX).then_some((handle, patch))
                })
                .map(|(handle, patch)| Body::Like { handle, patch }),
        };
        let body = body.unwrap_or(Body::Full(full));
        let size = body.size() + key;
        debug_assert!(size <= OBJECT_MAX + key, "objects are limited where they are written");
        Some((body, size))
    }
}

/// An entry that the node holds as it is now and that was likely made from the same template.
fn sibling<'a>(entry: &Entry, entries: &'a [Entry], holding: &Holdings) -> Option<(&'a Entry, u32)> {
    let stem = |name: &'a str| name.rsplit_once('-').map(|(stem, _)| stem);
    let own = entry.key.name.rsplit_once('-').map(|(stem, _)| stem)?;
    let other = entries.iter().rev().find(|other| {
        other.key.kind == entry.key.kind
            && other.key.namespace == entry.key.namespace
            && stem(&other.key.name) == Some(own)
            && holding.get(other.uid).is_some_and(|held| held.hash == other.hash)
    })?;
    Some((other, holding.get(other.uid)?.handle))
}

/// Room for a key in a frame.
fn key_size(key: &Key) -> usize {
    key.kind.as_str().len() + key.namespace.len() + key.name.len() + 16
}
