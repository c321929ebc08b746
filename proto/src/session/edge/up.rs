//! What goes up: reports, deletions and events, until the cloud has acknowledged them.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{
    After, Batch, EVENT_WAIT, EVENTS_MAX, EVENTS_WAITING_MAX, Edge, Effect, News, Report, Reported, Session, State,
};
use crate::delta::{diff, encode_patch, encode_value};
use crate::digest::Inventory;
use crate::frame::{Body, Frame, OBJECT_MAX, Up};
use crate::object::Uid;
use crate::session::outgoing::{Large, Packing, WHOLE_MAX};
use crate::session::{ACK_WAIT, Violation, WINDOW};
use crate::time::Mono;
use crate::value::{Value, canonical};

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) latest: Arc<Report>,
    pub(super) acked: Option<Arc<Report>>,
    /// Under way in this session.
    pub(super) sent: Option<Arc<Report>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    Report(Uid),
    Gone,
    Event(u64),
}

impl Slot {
    fn is_settled(&self) -> bool {
        self.acked.as_ref().is_some_and(|acked| acked.hash == self.latest.hash)
    }

    pub(super) fn row(&self) -> Reported {
        Reported { latest: Arc::clone(&self.latest), acked: self.acked.clone() }
    }
}

impl Edge {
    /// How many reports, deletions and events the cloud has not acknowledged.
    pub fn pending(&self) -> usize {
        let reports = self.reports.values().filter(|slot| !slot.is_settled()).count();
        reports + self.gone.len() + self.events.len()
    }

    /// The reports that the cloud has acknowledged.
    pub fn acknowledged(&self) -> Inventory {
        self.reports
            .iter()
            .filter_map(|(uid, slot)| Some((*uid, slot.acked.as_ref()?.hash)))
            .collect()
    }

    pub(super) fn observe(&mut self, now: Mono, reports: Vec<(Uid, Value)>) {
        let mut changed = false;
        for (uid, value) in reports {
            if self.held.hash(uid).is_none() {
                continue;
            }
            let report = Arc::new(Report::new(uid, &value));
            if self.gone.remove(&uid) {
                // Said of an object that is not being deleted any more, in a cloud that was put back. It may be again.
                if let State::Up(session) = &mut self.state {
                    session.gone_sent.remove(&uid);
                }
                // It runs again: the cloud was put back to before the deletion.
                self.lazy.gone.insert(uid, false);
                changed = true;
            }
            match self.reports.get_mut(&uid) {
                Some(slot) if slot.latest.hash == report.hash => continue,
                Some(slot) => slot.latest = report,
                None => {
                    self.reports
                        .insert(uid, Slot { latest: report, acked: None, sent: None });
                }
            }
            let slot = &self.reports[&uid];
            self.lazy.reports.insert(uid, Some(slot.row()));
            changed = true;
        }
        if changed {
            self.commit(now, After::Observed);
        }
    }

    pub(super) fn event(&mut self, now: Mono, event: &Value) {
        self.number += 1;
        let form = canonical::encode(event);
        self.lazy.events.push((self.number, form.clone()));
        self.events.push_back((self.number, form));
        if self.events.len() > EVENTS_MAX {
            let sent = match &self.state {
                State::Up(session) => session.events_sent,
                State::Offline | State::Greeting { .. } => 0,
            };
            if let Some((number, _)) = self.events.pop_front() {
                self.lazy.events_done = self.lazy.events_done.max(Some(number));
                if number > sent {
                    self.effects.push_back(Effect::Tell(News::EventsDropped(1)));
                }
            }
        }
        if self.lazy.events.len() >= EVENTS_WAITING_MAX {
            self.commit(now, After::Observed);
            return;
        }
        // What made the event mostly changes a report next, and then one write and one frame hold both.
        let at = now + EVENT_WAIT;
        self.unsaved_until = Some(self.unsaved_until.map_or(at, |until| until.min(at)));
    }

    pub(super) fn acked(&mut self, now: Mono, id: u32, seq: u32, need_full: &[u32]) -> Result<(), Violation> {
        let Some(session) = self.session(id) else { return Ok(()) };
        let need_full: BTreeSet<_> = need_full
            .iter()
            .map(|handle| session.uid(*handle))
            .collect::<Result<_, _>>()?;
        let later = session.in_flight.split_off(&seq.saturating_add(1));
        let settled = std::mem::replace(&mut session.in_flight, later);
        if settled.is_empty() {
            return Ok(());
        }
        session.patience = now + ACK_WAIT;
        for sent in settled.into_values().flatten() {
            match sent {
                Sent::Report(uid) => {
                    let Some(slot) = self.reports.get_mut(&uid) else {
                        continue;
                    };
                    slot.acked = slot.sent.take().filter(|_| !need_full.contains(&uid));
                    self.lazy.reports.insert(uid, Some(slot.row()));
                }
                // Kept until the deletion arrives: a cloud that was put back asks again.
                Sent::Gone => {}
                Sent::Event(number) => {
                    while self.events.front().is_some_and(|(first, _)| *first <= number) {
                        self.events.pop_front();
                    }
                    self.lazy.events_done = self.lazy.events_done.max(Some(number));
                }
            }
        }
        self.pump(now);
        Ok(())
    }

    /// Fills frames with what there is to say, most urgent first, as far as the window allows.
    pub(super) fn pump(&mut self, now: Mono) {
        let State::Up(session) = &mut self.state else { return };
        let ready = session.comparing.is_none() && !session.compared_with;
        // While the cloud has something to acknowledge, what happens is gathered: a pod that starts says several things
        // within a moment. More than fits in a frame is not held up.
        while ready && session.in_flight.len() < WINDOW && (session.in_flight.is_empty() || session.filled) {
            let mut packing = Packing::default();
            let mut sent = Vec::new();
            if let Some(request) = self.request.take_if(|request| packing.fits(request.len())) {
                let size = request.len();
                packing.push(Up::Request(request), size);
            }
            for uid in &self.gone {
                let Some(handle) = session.numbers.get(uid) else {
                    continue;
                };
                if packing.fits(0) && session.gone_sent.insert(*uid) {
                    packing.push(Up::Gone { handle: *handle }, 0);
                    sent.push(Sent::Gone);
                }
            }
            for (uid, slot) in &mut self.reports {
                session.report(*uid, slot, &mut packing, &mut sent);
            }
            for (number, form) in &self.events {
                if *number <= session.events_sent || *number > self.durable {
                    continue;
                }
                let event = canonical::decode(form).unwrap_or_default();
                let body = encode_value(&event, session.dictionary);
                if !packing.fits(body.len()) {
                    break;
                }
                let size = body.len();
                packing.push(Up::Event { number: *number, body }, size);
                sent.push(Sent::Event(*number));
                session.events_sent = *number;
            }
            if let Some(large) = &mut session.large {
                if let Some(chunk) = large.chunk() {
                    if packing.fits(chunk.len()) {
                        let size = chunk.len();
                        packing.push(Up::Chunk(chunk), size);
                    } else {
                        large.put_back(chunk.len());
                    }
                } else if packing.fits(0) {
                    let (uid, handle, check) = large.closing;
                    packing.push(Up::Report { handle, body: large.body(), check }, 0);
                    sent.push(Sent::Report(uid));
                    session.large = None;
                }
            }
            if packing.items.is_empty() {
                break;
            }
            session.filled = packing.is_filled();
            session.seq_out += 1;
            if session.in_flight.is_empty() {
                session.patience = now + ACK_WAIT;
            }
            session.in_flight.insert(session.seq_out, sent);
            let frame = Frame::Up {
                session: session.id,
                seq: session.seq_out,
                items: packing.items,
            };
            self.effects.push_back(Effect::Send(self.carrier, frame.encode()));
        }
    }

    /// Lets everything but the desired state ride on the next commit: the last one failed, and what it held with it.
    pub(super) fn save_all(&mut self) {
        self.lazy = Batch {
            desired: Vec::new(),
            whole: true,
            reports: self
                .reports
                .iter()
                .map(|(uid, slot)| (*uid, Some(slot.row())))
                .collect(),
            gone: self.gone.iter().map(|uid| (*uid, true)).collect(),
            events: self.events.iter().cloned().collect(),
            events_done: None,
            mark: Some((self.epoch, self.applied)),
            incarnation: Some(self.incarnation),
        };
    }
}

impl Session {
    /// Says what is new of one object, if it has not been said and fits.
    pub(super) fn report(&mut self, uid: Uid, slot: &mut Slot, packing: &mut Packing<Up>, sent: &mut Vec<Sent>) {
        let Some(handle) = self.numbers.get(&uid).copied() else {
            return;
        };
        if slot.sent.is_some() || slot.is_settled() || !packing.fits(0) {
            return;
        }
        let value = slot.latest.value();
        let full = Body::Full(encode_value(&value, self.dictionary));
        let body = match &slot.acked {
            Some(acked) => {
                let patch = encode_patch(&diff(&acked.value(), &value), self.dictionary);
                if patch.len() < full.size() {
                    Body::Patch(patch)
                } else {
                    full
                }
            }
            None => full,
        };
        let (size, check) = (body.size(), slot.latest.hash.check());
        if size > OBJECT_MAX {
            return;
        }
        if size > WHOLE_MAX {
            if self.large.is_none() {
                self.large = Some(Large::new(body, (uid, handle, check)));
                slot.sent = Some(Arc::clone(&slot.latest));
            }
        } else if packing.fits(size) {
            packing.push(Up::Report { handle, body, check }, size);
            sent.push(Sent::Report(uid));
            slot.sent = Some(Arc::clone(&slot.latest));
        }
    }
}
