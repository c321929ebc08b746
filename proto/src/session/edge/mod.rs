//! The edge's end: what it holds of its view, and what it still has to say.
//!
//! The machine keeps hashes of what it holds, not the objects, and the reports themselves, which are small. An object's
//! report has one patch under way at most; what changes meanwhile is said afterwards, once. An acknowledgement is saved
//! with the next commit that happens anyway: losing it costs one comparison of hashes.

mod down;
mod up;
mod words;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::outgoing::Large;
use super::random::Random;
use super::{ACK_WAIT, Assembly, Carrier, CommitError, Effect, HELLOS_MAX, Machine, Violation, WELCOME_WAIT};
use crate::delta::DeltaError;
use crate::dictionary::Dictionary;
use crate::digest::{EntryHash, Inventory, Narrowing};
use crate::frame::{Frame, Hello, ReportsStart, Side, VERSION, ViewStart, Welcome};
use crate::object::{Epoch, Revision, Uid};
use crate::time::{BootId, Mono};

pub use self::words::{Batch, Change, Desired, Input, News, Outcome, Recovered, Report, Reported};

use self::up::{Sent, Slot};

/// Events kept for the cloud; beyond, the oldest go and are counted.
pub const EVENTS_MAX: usize = 256;

/// How long an event waits for something else to be made durable with, and how many wait.
const EVENT_WAIT: Duration = Duration::from_secs(1);
pub(super) const EVENTS_WAITING_MAX: usize = 16;

/// How long the cloud's changes are left alone after one could not be made durable, at first and at most.
const STALL_WAIT_MIN: Duration = Duration::from_secs(60);
const STALL_WAIT_MAX: Duration = Duration::from_secs(600);

/// The machine.
#[derive(Debug)]
pub struct Edge {
    boot: BootId,
    beat_s: u16,
    random: Random,
    carrier: Carrier,
    state: State,
    epoch: Epoch,
    applied: Revision,
    incarnation: [u8; 8],
    number: u64,
    /// Events up to this number are durable, and up to the other one once the commit under way is: only what is durable
    /// is sent, so that no number is ever given twice.
    durable: u64,
    committing: u64,
    held: Inventory,
    reports: BTreeMap<Uid, Slot>,
    gone: BTreeSet<Uid>,
    events: VecDeque<(u64, Vec<u8>)>,
    request: Option<Vec<u8>>,
    /// What rides on the next commit.
    lazy: Batch,
    after: After,
    /// How long the next change that cannot be made durable is left alone.
    stall_wait: Duration,
    /// When to make durable what waits: events that nothing came along for, or what failed.
    unsaved_until: Option<Mono>,
    effects: VecDeque<Effect<Batch, News>>,
}

#[derive(Debug)]
enum State {
    Offline,
    Greeting { nonce: [u8; 8], hellos: u32, until: Mono },
    Up(Box<Session>),
}

#[derive(Debug)]
struct Session {
    id: u32,
    dictionary: Dictionary,
    handles: Vec<Uid>,
    numbers: BTreeMap<Uid, u32>,
    seq_in: u32,
    seq_out: u32,
    in_flight: BTreeMap<u32, Vec<Sent>>,
    /// Whether the last frame left more to be said.
    filled: bool,
    /// When to take something for lost; only while something is in flight or asked for.
    patience: Mono,
    assembly: Assembly,
    large: Option<Large<(Uid, u32, [u8; 2])>>,
    comparing: Option<Narrowing>,
    /// The cloud still finds out what is held here, and so has no handles yet: its first frame ends this.
    compared_with: bool,
    /// When to say hello again, until anything of this session came from the cloud: the confirmation may be lost.
    unconfirmed_until: Option<Mono>,
    /// A change could not be made durable: the cloud's changes are left unanswered until this instant, while what
    /// happens here still goes up.
    stalled_until: Option<Mono>,
    gone_sent: BTreeSet<Uid>,
    events_sent: u64,
}

/// What goes on when the commit under way is done.
#[derive(Debug, Default)]
enum After {
    #[default]
    Nothing,
    /// A frame of the cloud: the uids of its upserts and deletes, and its mark.
    Down {
        seq: u32,
        changes: Vec<(Uid, bool)>,
        mark: Option<(Revision, crate::digest::Digest)>,
    },
    /// Something that the node saw.
    Observed,
}

impl Edge {
    pub fn new(boot: BootId, beat_s: u16, seed: u64, recovered: Recovered) -> Self {
        let slot = |(uid, reported): (Uid, Reported)| {
            (uid, Slot { latest: reported.latest, acked: reported.acked, sent: None })
        };
        let mut edge = Self {
            boot,
            beat_s,
            random: Random::new(seed),
            carrier: Carrier::default(),
            state: State::Offline,
            epoch: recovered.epoch,
            applied: recovered.applied,
            incarnation: recovered.incarnation,
            number: recovered.number,
            durable: recovered.number,
            committing: recovered.number,
            held: recovered.held,
            reports: recovered.reports.into_iter().map(slot).collect(),
            gone: recovered.gone,
            events: recovered.events,
            request: None,
            lazy: Batch::default(),
            after: After::Nothing,
            stall_wait: STALL_WAIT_MIN,
            unsaved_until: None,
            effects: VecDeque::new(),
        };
        if edge.incarnation == [0; 8] {
            edge.incarnation = edge.random.bytes();
            edge.lazy.incarnation = Some(edge.incarnation);
        }
        edge
    }

    /// Applies one input.
    pub fn handle(&mut self, now: Mono, input: Input) {
        match input {
            Input::Connected(carrier) => {
                self.carrier = carrier;
                self.greet(now, 1);
            }
            Input::Lost(carrier) => {
                if carrier == self.carrier {
                    self.forget_session();
                }
            }
            Input::Frame(bytes) => {
                if let Err(violation) = self.frame(now, &bytes) {
                    self.effects.push_back(Effect::Tell(News::Violated(violation)));
                    self.hang_up();
                }
            }
            Input::Reports(reports) => self.observe(now, reports),
            Input::Gone(uid) => {
                if self.held.hash(uid).is_some() && self.gone.insert(uid) {
                    self.lazy.gone.insert(uid, true);
                    self.commit(now, After::Observed);
                }
            }
            Input::Event(event) => self.event(now, &event),
            Input::Request(request) => {
                self.request = Some(request);
                self.pump(now);
            }
            Input::Flush => self.commit(now, After::Nothing),
        }
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Mono) {
        if self.unsaved_until.is_some_and(|at| at <= now) {
            self.unsaved_until = None;
            self.commit(now, After::Observed);
        }
        match &self.state {
            State::Greeting { hellos, until, .. } if *until <= now => {
                if *hellos >= HELLOS_MAX {
                    self.hang_up();
                } else {
                    let hellos = *hellos + 1;
                    self.greet(now, hellos);
                }
            }
            State::Up(session) if session.wake_at().is_some_and(|at| at <= now) => self.greet(now, 1),
            State::Offline | State::Greeting { .. } | State::Up(_) => {}
        }
    }

    /// Whether a session is up.
    pub fn is_up(&self) -> bool {
        matches!(self.state, State::Up(_))
    }

    /// What it holds.
    pub fn held(&self) -> &Inventory {
        &self.held
    }

    /// The revision of the view that was last held whole.
    pub fn applied(&self) -> (Epoch, Revision) {
        (self.epoch, self.applied)
    }

    fn greet(&mut self, now: Mono, hellos: u32) {
        self.forget_session();
        let nonce = self.random.bytes();
        let dictionary = Dictionary::full();
        let hello = Hello {
            versions: (VERSION, VERSION),
            dictionary: dictionary.len(),
            dictionary_hash: dictionary.hash(),
            boot: self.boot,
            beat_s: self.beat_s,
            nonce,
            epoch: self.epoch,
            applied: self.applied,
            view: self.held.digest(),
            count: u32::try_from(self.held.len()).unwrap_or(u32::MAX),
            incarnation: self.incarnation,
            number: self.number,
            reports: self.acknowledged().digest(),
        };
        self.send(&Frame::Hello(hello));
        self.state = State::Greeting { nonce, hellos, until: now + WELCOME_WAIT };
    }

    fn hang_up(&mut self) {
        self.effects.push_back(Effect::Hangup(self.carrier));
        self.forget_session();
    }

    fn forget_session(&mut self) {
        self.state = State::Offline;
        for slot in self.reports.values_mut() {
            slot.sent = None;
        }
    }

    fn frame(&mut self, now: Mono, bytes: &[u8]) -> Result<(), Violation> {
        match Frame::decode(bytes)? {
            Frame::Welcome(welcome) => self.welcome(now, &welcome),
            Frame::Refuse(refusal) => {
                if matches!(self.state, State::Greeting { .. }) {
                    self.effects.push_back(Effect::Tell(News::Refused(refusal)));
                    self.hang_up();
                }
                Ok(())
            }
            Frame::Down { session, seq, items } => match self.session(session) {
                Some(current) if current.stalled_until.is_some() => Ok(()),
                Some(current) if seq == current.seq_in.wrapping_add(1) => self.down(now, seq, items),
                Some(current) if seq <= current.seq_in => {
                    // Doubled. The acknowledgement may be what got lost.
                    let ack = Frame::Ack { session, seq: current.seq_in, need_full: Vec::new() };
                    self.send(&ack);
                    Ok(())
                }
                Some(_) => {
                    self.greet(now, 1);
                    Ok(())
                }
                None => Ok(()),
            },
            Frame::Ack { session, seq, need_full } => self.acked(now, session, seq, &need_full),
            Frame::Ask { session, of, prefix } => {
                if of != Side::View {
                    return Err(Violation::Direction);
                }
                if !prefix.is_valid() {
                    return Err(Violation::Prefix);
                }
                if self.session(session).is_some() {
                    let branch = self.held.branch(&prefix);
                    self.send(&Frame::Tell { session, of, prefix, branch });
                }
                Ok(())
            }
            Frame::Tell { session, of, prefix, branch } => {
                if of != Side::Reports {
                    return Err(Violation::Direction);
                }
                let ours = self.acknowledged();
                if self.session(session).is_some() {
                    self.compare(now, &ours, Some((prefix, branch)));
                }
                Ok(())
            }
            Frame::Again { session } => {
                if self
                    .session(session)
                    .is_some_and(|session| session.stalled_until.is_none())
                {
                    self.greet(now, 1);
                }
                Ok(())
            }
            Frame::Hello(_) | Frame::Confirm { .. } | Frame::Up { .. } => Err(Violation::Direction),
        }
    }

    fn session(&mut self, id: u32) -> Option<&mut Session> {
        match &mut self.state {
            State::Up(session) if session.id == id => {
                session.unconfirmed_until = None;
                Some(session)
            }
            State::Offline | State::Greeting { .. } | State::Up(_) => None,
        }
    }

    fn welcome(&mut self, now: Mono, welcome: &Welcome) -> Result<(), Violation> {
        match &self.state {
            State::Greeting { nonce, .. } if *nonce == welcome.nonce => {}
            // Doubled, or the answer to a hello that was given up.
            State::Offline | State::Greeting { .. } | State::Up(_) => return Ok(()),
        }
        let dictionary = Dictionary::first(welcome.dictionary).ok_or(Violation::Direction)?;
        if welcome.epoch != self.epoch {
            self.epoch = welcome.epoch;
            self.note_applied(Revision(0));
        }
        if let Some(incarnation) = welcome.incarnation {
            self.incarnation = incarnation;
            self.lazy.incarnation = Some(incarnation);
        }
        let handles: Vec<_> = self.held.uids().collect();
        let numbers = handles.iter().copied().zip(0..).collect();
        self.state = State::Up(Box::new(Session {
            id: welcome.session,
            dictionary,
            handles,
            numbers,
            seq_in: 0,
            seq_out: 0,
            in_flight: BTreeMap::new(),
            filled: false,
            patience: now,
            assembly: Assembly::default(),
            large: None,
            comparing: (welcome.reports == ReportsStart::Compare).then(Narrowing::default),
            compared_with: welcome.view == ViewStart::Compare,
            unconfirmed_until: Some(now + WELCOME_WAIT),
            stalled_until: None,
            gone_sent: BTreeSet::new(),
            events_sent: 0,
        }));
        self.send(&Frame::Confirm { session: welcome.session });
        self.effects
            .push_back(Effect::Tell(News::Up { now_ms: welcome.now_ms }));
        if let ViewStart::Same(revision) = welcome.view {
            self.note_applied(revision);
            self.effects.push_back(Effect::Tell(News::Synced(revision)));
        }
        let ours = self.acknowledged();
        self.compare(now, &ours, None);
        Ok(())
    }

    /// Goes on asking what the cloud has of our reports; says what it lacks once that is known.
    fn compare(&mut self, now: Mono, ours: &Inventory, answer: Option<(crate::digest::Prefix, crate::digest::Branch)>) {
        let State::Up(session) = &mut self.state else { return };
        if let Some(narrowing) = &mut session.comparing {
            if let Some((prefix, branch)) = answer {
                narrowing.answer(ours, &prefix, branch);
            }
            if let Some(prefix) = narrowing.ask() {
                session.patience = now + ACK_WAIT;
                let ask = Frame::Ask { session: session.id, of: Side::Reports, prefix };
                self.send(&ask);
                return;
            }
            let Some(differences) = narrowing.finished().cloned() else {
                return;
            };
            session.comparing = None;
            for (uid, theirs) in differences {
                let Some(slot) = self.reports.get_mut(&uid) else {
                    continue;
                };
                slot.acked = (theirs == Some(slot.latest.hash)).then(|| Arc::clone(&slot.latest));
                self.lazy.reports.insert(uid, Some(slot.row()));
            }
        }
        self.pump(now);
    }

    /// Asks for everything that waits to be made durable.
    fn commit(&mut self, now: Mono, after: After) {
        let batch = std::mem::take(&mut self.lazy);
        if batch == Batch::default() {
            self.finish(now, after, &[]);
            return;
        }
        self.after = after;
        self.committing = self.number;
        self.effects.push_back(Effect::Commit(batch));
    }

    fn finish(&mut self, now: Mono, after: After, outcome: &[Result<EntryHash, DeltaError>]) {
        match after {
            After::Nothing => {}
            After::Observed => self.pump(now),
            After::Down { seq, changes, mark } => self.applied_frame(now, seq, changes, mark, outcome),
        }
    }

    fn send(&mut self, frame: &Frame) {
        self.effects.push_back(Effect::Send(self.carrier, frame.encode()));
    }
}

impl Machine for Edge {
    type Batch = Batch;
    type Outcome = Outcome;
    type News = News;
    type Context = ();

    fn poll_effect(&mut self) -> Option<Effect<Batch, News>> {
        self.effects.pop_front()
    }

    fn committed(&mut self, now: Mono, outcome: Result<Outcome, CommitError>, (): &()) {
        let after = std::mem::take(&mut self.after);
        match (outcome, after) {
            (Ok(outcome), after) => {
                self.durable = self.committing;
                self.unsaved_until = None;
                self.finish(now, after, &outcome);
            }
            (Err(error), After::Down { .. }) => {
                // Not durable, so not acknowledged: it is asked for again when there may be room.
                self.effects.push_back(Effect::Tell(News::NotDurable(error)));
                self.save_all();
                self.unsaved_until = Some(now + STALL_WAIT_MIN);
                if let State::Up(session) = &mut self.state {
                    session.stalled_until = Some(now + self.stall_wait);
                    self.stall_wait = (self.stall_wait * 2).min(STALL_WAIT_MAX);
                }
                self.pump(now);
            }
            (Err(error), after @ (After::Observed | After::Nothing)) => {
                // Saying it needs no disk: after a crash the node sees it again.
                self.effects.push_back(Effect::Tell(News::NotDurable(error)));
                self.save_all();
                self.unsaved_until = Some(now + STALL_WAIT_MIN);
                self.finish(now, after, &[]);
            }
        }
    }

    fn wake_at(&self) -> Option<Mono> {
        let session = match &self.state {
            State::Offline => None,
            State::Greeting { until, .. } => Some(*until),
            State::Up(session) => session.wake_at(),
        };
        session.into_iter().chain(self.unsaved_until).min()
    }
}

impl Session {
    /// When something is lost, or a change that could not be made durable is asked for again.
    fn wake_at(&self) -> Option<Mono> {
        let waits = !self.in_flight.is_empty() || self.comparing.is_some();
        let patience = waits.then_some(self.patience);
        [patience, self.unconfirmed_until, self.stalled_until]
            .into_iter()
            .flatten()
            .min()
    }

    fn uid(&self, handle: u32) -> Result<Uid, Violation> {
        let at = usize::try_from(handle).map_err(|_| Violation::Handle(handle))?;
        self.handles.get(at).copied().ok_or(Violation::Handle(handle))
    }
}
