//! The edge's end: what it holds of its view, and what it still has to say.
//!
//! The machine keeps hashes of what it holds, not the objects, and the reports themselves, which are small. An object's
//! report has one patch under way at most; what changes meanwhile is said afterwards, once. An acknowledgement is saved
//! with the next commit that happens anyway: losing it costs one comparison of hashes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::outgoing::{Large, Packing, WHOLE_MAX};
use super::random::Random;
use super::{
    ACK_WAIT, Assembly, Carrier, CommitError, Content, Effect, HELLOS_MAX, Machine, Violation, WELCOME_WAIT, WINDOW,
    read,
};
use crate::delta::dictionary::Dictionary;
use crate::delta::{DeltaError, decode_value, diff, encode_patch, encode_value};
use crate::digest::{EntryHash, Inventory, Narrowing};
use crate::frame::{
    Body, Down, Frame, Hello, OBJECT_MAX, Refusal, ReportsStart, Side, Up, VERSION, ViewStart, Welcome,
};
use crate::object::{Epoch, Key, Revision, Uid};
use crate::time::{BootId, Mono};
use crate::value::{Value, canonical};

/// Events kept for the cloud; beyond, the oldest go and are counted.
pub const EVENTS_MAX: usize = 256;

/// How long an event waits for something else to be made durable with, and how many wait.
const EVENT_WAIT: Duration = Duration::from_secs(1);
pub(super) const EVENTS_WAITING_MAX: usize = 16;

/// How long the cloud's changes are left alone after one could not be made durable, at first and at most.
const STALL_WAIT_MIN: Duration = Duration::from_secs(60);
const STALL_WAIT_MAX: Duration = Duration::from_secs(600);

/// What a node reported of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub hash: EntryHash,
    /// The canonical form.
    pub form: Vec<u8>,
}

impl Report {
    pub fn new(uid: Uid, value: &Value) -> Self {
        Self {
            hash: EntryHash::of_report(uid, value),
            form: canonical::encode(value),
        }
    }

    fn value(&self) -> Value {
        canonical::decode(&self.form).unwrap_or_default()
    }
}

/// The latest report of an object and the last one that the cloud acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reported {
    pub latest: Arc<Report>,
    pub acked: Option<Arc<Report>>,
}

/// What was durable when the machine last stopped.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Recovered {
    pub epoch: Epoch,
    pub applied: Revision,
    pub incarnation: [u8; 8],
    /// The number of the last event, also when it was acknowledged and dropped.
    pub number: u64,
    pub held: Inventory,
    pub reports: BTreeMap<Uid, Reported>,
    pub gone: BTreeSet<Uid>,
    /// Events not acknowledged, as canonical forms, by number.
    pub events: VecDeque<(u64, Vec<u8>)>,
}

/// What is to be made durable, all or nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// To be done in this order.
    pub desired: Vec<Desired>,
    /// `reports`, `gone` and `events` are all there is: whatever else is stored of them goes.
    pub whole: bool,
    /// Replaces what is stored of these; `None` removes.
    pub reports: BTreeMap<Uid, Option<Reported>>,
    /// Whether these are to be told as gone.
    pub gone: BTreeMap<Uid, bool>,
    pub events: Vec<(u64, Vec<u8>)>,
    /// Events up to this number are no longer needed.
    pub events_done: Option<u64>,
    pub mark: Option<(Epoch, Revision)>,
    pub incarnation: Option<[u8; 8]>,
}

/// One change of the desired state.
#[derive(Debug, Clone, PartialEq)]
pub enum Desired {
    Upsert {
        uid: Uid,
        /// Given for an entry that is new here.
        key: Option<Key>,
        revision: Revision,
        change: Change,
    },
    Delete {
        uid: Uid,
    },
}

/// The new content of an entry.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    Full(Value),
    /// What `patch` makes of the stored content of `base`.
    Patch {
        base: Uid,
        patch: crate::delta::Patch,
    },
}

impl Change {
    /// The content, given what is stored of the base.
    pub fn apply(self, base: impl FnOnce(Uid) -> Option<Value>) -> Result<Value, DeltaError> {
        match self {
            Self::Full(value) => Ok(value),
            Self::Patch { base: uid, patch } => patch.apply(&base(uid).ok_or(DeltaError::NoField)?),
        }
    }
}

/// What a commit did: for each upsert in order the hash of what is now stored, or why it was left as it was.
pub type Outcome = Vec<Result<EntryHash, DeltaError>>;

/// What others want to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// These entries changed, came or went, durably.
    Changed(Vec<Uid>),
    /// A session is up; the cloud's time is this.
    Up {
        now_ms: i64,
    },
    /// The view of this revision is held whole.
    Synced(Revision),
    Refused(Refusal),
    /// The other end broke the protocol.
    Violated(Violation),
    /// A commit failed; what it held is tried again later.
    NotDurable(CommitError),
    /// New [`crate::enrol::Credentials`], as JSON.
    Certificate(Vec<u8>),
    /// So many events were dropped unsent.
    EventsDropped(u64),
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// A carrier to the cloud is there. It replaces the one before.
    Connected(Carrier),
    /// It is gone. Says nothing of a newer one.
    Lost(Carrier),
    Frame(Vec<u8>),
    /// What the node now sees of these objects.
    Reports(Vec<(Uid, Value)>),
    /// Nothing of this object, which is being deleted, is left here.
    Gone(Uid),
    Event(Value),
    /// A certificate signing request to send, PEM; kept until the session is up.
    Request(Vec<u8>),
    /// Save what waits for the next commit: the process is about to end.
    Flush,
}

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
struct Slot {
    latest: Arc<Report>,
    acked: Option<Arc<Report>>,
    /// Under way in this session.
    sent: Option<Arc<Report>>,
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    Report(Uid),
    Gone,
    Event(u64),
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

    /// How many reports, deletions and events the cloud has not acknowledged.
    pub fn pending(&self) -> usize {
        let reports = self.reports.values().filter(|slot| !slot.is_settled()).count();
        reports + self.gone.len() + self.events.len()
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

    /// The reports that the cloud has acknowledged.
    pub fn acknowledged(&self) -> Inventory {
        self.reports
            .iter()
            .filter_map(|(uid, slot)| Some((*uid, slot.acked.as_ref()?.hash)))
            .collect()
    }

    fn down(&mut self, now: Mono, seq: u32, items: Vec<Down>) -> Result<(), Violation> {
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

    fn acked(&mut self, now: Mono, id: u32, seq: u32, need_full: &[u32]) -> Result<(), Violation> {
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

    fn observe(&mut self, now: Mono, reports: Vec<(Uid, Value)>) {
        let mut changed = false;
        for (uid, value) in reports {
            if self.held.hash(uid).is_none() {
                continue;
            }
            let report = Arc::new(Report::new(uid, &value));
            if self.gone.remove(&uid) {
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

    fn event(&mut self, now: Mono, event: &Value) {
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

    fn note_applied(&mut self, revision: Revision) {
        if self.applied != revision || self.lazy.mark.is_some_and(|(epoch, _)| epoch != self.epoch) {
            self.applied = revision;
            self.lazy.mark = Some((self.epoch, revision));
        }
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

    fn applied_frame(
        &mut self,
        now: Mono,
        seq: u32,
        changes: Vec<(Uid, bool)>,
        mark: Option<(Revision, crate::digest::Digest)>,
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

    /// Fills frames with what there is to say, most urgent first, as far as the window allows.
    fn pump(&mut self, now: Mono) {
        let State::Up(session) = &mut self.state else { return };
        let ready = session.comparing.is_none() && !session.compared_with;
        while ready && session.in_flight.len() < WINDOW {
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

impl Edge {
    /// Lets everything but the desired state ride on the next commit: the last one failed, and what it held with it.
    fn save_all(&mut self) {
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

impl Slot {
    fn is_settled(&self) -> bool {
        self.acked.as_ref().is_some_and(|acked| acked.hash == self.latest.hash)
    }

    fn row(&self) -> Reported {
        Reported { latest: Arc::clone(&self.latest), acked: self.acked.clone() }
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

    fn change(&mut self, uid: Uid, body: Body) -> Result<Change, Violation> {
        Ok(match read(body, &mut self.assembly, self.dictionary)? {
            Content::Full(value) => Change::Full(value),
            Content::Patch(patch) => Change::Patch { base: uid, patch },
            Content::Like(handle, patch) => Change::Patch { base: self.uid(handle)?, patch },
        })
    }

    /// Says what is new of one object, if it has not been said and fits.
    fn report(&mut self, uid: Uid, slot: &mut Slot, packing: &mut Packing<Up>, sent: &mut Vec<Sent>) {
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

fn read_key(coding: &[u8], dictionary: Dictionary) -> Result<Key, Violation> {
    let list = decode_value(coding, dictionary)?;
    match list.as_list() {
        Some([Value::Text(kind), Value::Text(namespace), Value::Text(name)]) => {
            Ok(Key::new(kind.as_str(), namespace, name))
        }
        _ => Err(Violation::Key),
    }
}
