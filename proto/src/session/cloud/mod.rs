//! The cloud's end of one node's session: what the node holds of its view, and what it reported.
//!
//! The machine keeps a revision and a hash per entry that the node holds, never an object. What the node holds is only
//! ever taken from a set that was proven complete: the view at a revision the node names and proves by digest, or the
//! answers to a comparison. Only then is anything deleted there. Each change is encoded against what was sent before;
//! what changes while the window is full is sent afterwards, once.

mod down;
mod holdings;
mod words;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::outgoing::Large;
use super::random::Random;
use super::{ACK_WAIT, Assembly, Carrier, CommitError, Content, Effect, Machine, Violation, read};
use crate::delta::decode_value;
use crate::dictionary::Dictionary;
use crate::digest::{CompleteSet, Digest, EntryHash, Inventory, Narrowing, theirs};
use crate::frame::{Down, Frame, Hello, Refusal, ReportsStart, Side, Up, VERSION, ViewStart, Welcome};
use crate::object::{Revision, Uid};
use crate::time::{BootId, Mono};

pub use self::words::{Batch, Entry, Input, News, View};

use self::holdings::Holdings;

/// Boots of a node that are remembered, to know two machines with one key apart from one that restarts.
pub const BOOTS_MAX: usize = 8;

/// Session ids take two bytes at most.
const SESSION_MASK: u32 = 0x3fff;

/// Reports without a known base that an acknowledgement has room to name.
pub const NEED_FULL_MAX: usize = 2048;

/// Longest wait between two [`Frame::Again`].
const AGAIN_WAIT_MAX: Duration = Duration::from_secs(600);

/// The machine. It outlives connections, so that it knows a node's boots.
#[derive(Debug)]
pub struct Cloud {
    random: Random,
    /// The id of the last session.
    sessions: u32,
    boots: VecDeque<BootId>,
    active: Option<Box<Session>>,
    candidate: Option<Box<Session>>,
    after: Option<After>,
    effects: VecDeque<Effect<Batch, News>>,
}

#[derive(Debug)]
struct Session {
    id: u32,
    carrier: Carrier,
    boot: BootId,
    beat_s: u16,
    dictionary: Dictionary,
    incarnation: [u8; 8],
    phase: Phase,
    /// Objects by their numbers in frames, also those that the node does not hold any more.
    handles: Vec<Uid>,
    seq_in: u32,
    seq_out: u32,
    /// By sequence, in order, the revision that the node holds when it acknowledges.
    in_flight: VecDeque<(u32, Option<Revision>)>,
    patience: Mono,
    again_wait: Duration,
    assembly: Assembly,
    large: Option<Box<Large<Entry>>>,
    /// The view's revision when the node held it already.
    same: Option<Revision>,
    /// Something was sent since the last mark.
    unmarked: bool,
    /// Small things to say that are no changes of the view.
    asides: VecDeque<Down>,
    /// Reports whose base is not known here.
    need_full: BTreeSet<u32>,
}

#[derive(Debug)]
enum Phase {
    /// What the node holds is being found out.
    Comparing(Box<Comparing>),
    /// What the node holds once it has everything that was sent.
    Following(Holdings),
}

#[derive(Debug)]
struct Comparing {
    narrowing: Narrowing,
    ours: Inventory,
    /// What the node said of all that it holds.
    digest: Digest,
    count: usize,
}

/// What goes on when the commit under way is done.
#[derive(Debug)]
struct After {
    session: u32,
    seq: u32,
}

impl Cloud {
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let [first, second, ..] = random.bytes();
        Self {
            sessions: u32::from(u16::from_le_bytes([first, second])) & SESSION_MASK,
            random,
            boots: VecDeque::new(),
            active: None,
            candidate: None,
            after: None,
            effects: VecDeque::new(),
        }
    }

    /// Applies one input.
    pub fn handle(&mut self, now: Mono, input: Input, view: &dyn View) {
        match input {
            Input::Frame(carrier, bytes) => {
                if let Err(violation) = self.frame(now, carrier, &bytes, view) {
                    self.effects.push_back(Effect::Tell(News::Violated(violation)));
                    self.hang_up(carrier);
                }
            }
            Input::Lost(carrier) => self.forget(carrier),
            Input::Changed => self.pump(now, view),
            Input::Certificate(chain) => {
                if let Some(session) = &mut self.active {
                    session.asides.push_back(Down::Certificate(chain));
                }
                self.pump(now, view);
            }
        }
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Mono) {
        let Some(session) = &mut self.active else { return };
        if session.waits() && session.patience <= now {
            session.again_wait = (session.again_wait * 2).min(AGAIN_WAIT_MAX);
            session.patience = now + session.again_wait;
            let again = Frame::Again { session: session.id };
            self.effects.push_back(Effect::Send(session.carrier, again.encode()));
        }
    }

    /// Whether a session is confirmed.
    pub fn is_up(&self) -> bool {
        self.active.is_some()
    }

    /// How many frames the node has not acknowledged.
    pub fn under_way(&self) -> usize {
        self.active.as_ref().map_or(0, |session| session.in_flight.len())
    }

    /// Whether everything that was sent is acknowledged.
    pub fn is_settled(&self) -> bool {
        self.active
            .as_ref()
            .is_some_and(|session| !session.waits() && matches!(session.phase, Phase::Following(_)))
    }

    fn hang_up(&mut self, carrier: Carrier) {
        self.effects.push_back(Effect::Hangup(carrier));
        self.forget(carrier);
    }

    fn forget(&mut self, carrier: Carrier) {
        self.active.take_if(|session| session.carrier == carrier);
        self.candidate.take_if(|session| session.carrier == carrier);
    }

    fn frame(&mut self, now: Mono, carrier: Carrier, bytes: &[u8], view: &dyn View) -> Result<(), Violation> {
        match Frame::decode(bytes)? {
            Frame::Hello(hello) => self.hello(now, carrier, &hello, view),
            Frame::Confirm { session } => self.confirm(now, session, view),
            Frame::Up { session, seq, items } => match &mut self.active {
                Some(current) if current.id == session && seq == current.seq_in + 1 => self.up(seq, items, view)?,
                Some(current) if current.id == session && seq <= current.seq_in => {
                    let ack = current.ack(current.seq_in);
                    self.send(&ack);
                }
                Some(current) if current.id == session => self.send(&Frame::Again { session }),
                Some(_) | None => {}
            },
            Frame::Ack { session, seq, need_full: _ } => self.acked(now, session, seq, view),
            Frame::Ask { session, of, prefix } => {
                if of != Side::Reports {
                    return Err(Violation::Direction);
                }
                if !prefix.is_valid() {
                    return Err(Violation::Prefix);
                }
                if self.session(session).is_some() {
                    let branch = view.reports().branch(&prefix);
                    self.send(&Frame::Tell { session, of, prefix, branch });
                }
            }
            Frame::Tell { session, of, prefix, branch } => {
                if of != Side::View {
                    return Err(Violation::Direction);
                }
                if let Some(session) = self.session(session)
                    && let Phase::Comparing(comparing) = &mut session.phase
                {
                    comparing.narrowing.answer(&comparing.ours, &prefix, branch);
                    session.patience = now + ACK_WAIT;
                    self.compare(now, view);
                }
            }
            Frame::Welcome(_) | Frame::Refuse(_) | Frame::Down { .. } | Frame::Again { .. } => {
                return Err(Violation::Direction);
            }
        }
        Ok(())
    }

    fn session(&mut self, id: u32) -> Option<&mut Session> {
        self.active.as_deref_mut().filter(|session| session.id == id)
    }

    fn hello(&mut self, now: Mono, carrier: Carrier, hello: &Hello, view: &dyn View) {
        let spoken = (hello.versions.0..=hello.versions.1).contains(&VERSION);
        let shared = Dictionary::shared(hello.dictionary, hello.dictionary_hash);
        let Some(dictionary) = shared.filter(|_| spoken) else {
            self.effects
                .push_back(Effect::Tell(News::Foreign { versions: hello.versions }));
            self.refuse(carrier, Refusal::Version);
            return;
        };
        // A boot that came to an end and says hello again is another machine with the same key. One machine alone is let
        // in: that cannot flap.
        let is_current = self.boots.back() == Some(&hello.boot);
        if !is_current && self.boots.contains(&hello.boot) && self.active.is_some() {
            self.effects.push_back(Effect::Tell(News::Duplicate(hello.boot)));
            self.refuse(carrier, Refusal::DuplicateIdentity);
            return;
        }
        if hello.epoch == view.epoch() && hello.applied > view.revision() {
            // This store was put back to an older copy without being told so.
            self.effects.push_back(Effect::Tell(News::Behind(hello.applied)));
            self.refuse(carrier, Refusal::Later);
            return;
        }
        let (start, phase) = begin(hello, view);
        let handles: Vec<_> = match &phase {
            Phase::Following(holding) => holding.iter().map(|(uid, _)| uid).collect(),
            Phase::Comparing(_) => Vec::new(),
        };
        let (known, last) = view.received().unwrap_or((hello.incarnation, 0));
        let renew = known == hello.incarnation && hello.number < last;
        let incarnation = if renew { self.random.bytes() } else { hello.incarnation };
        // Short ids keep frames short. Counting keeps the frames of the session before apart; the carrier keeps apart
        // those of other lives of this machine.
        self.sessions = (self.sessions + 1) & SESSION_MASK;
        let session = Session {
            id: self.sessions,
            carrier,
            boot: hello.boot,
            beat_s: hello.beat_s,
            dictionary,
            incarnation,
            phase,
            handles,
            seq_in: 0,
            seq_out: 0,
            in_flight: VecDeque::new(),
            patience: now + ACK_WAIT,
            again_wait: ACK_WAIT,
            assembly: Assembly::default(),
            large: None,
            same: match start {
                ViewStart::Same(revision) => Some(revision),
                ViewStart::Changes | ViewStart::Compare => None,
            },
            unmarked: false,
            asides: VecDeque::new(),
            need_full: BTreeSet::new(),
        };
        let reports = view.reports().digest() == hello.reports;
        let welcome = Welcome {
            nonce: hello.nonce,
            session: session.id,
            version: VERSION,
            dictionary: dictionary.len(),
            epoch: view.epoch(),
            now_ms: view.now_ms(),
            view: start,
            reports: if reports {
                ReportsStart::Same
            } else {
                ReportsStart::Compare
            },
            incarnation: renew.then_some(incarnation),
        };
        self.candidate = Some(Box::new(session));
        self.effects
            .push_back(Effect::Send(carrier, Frame::Welcome(welcome).encode()));
    }

    fn confirm(&mut self, now: Mono, id: u32, view: &dyn View) {
        if let Some(ack) = self.session(id).map(|session| session.ack(session.seq_in)) {
            // Doubled.
            self.send(&ack);
            return;
        }
        let Some(session) = self.candidate.take_if(|candidate| candidate.id == id) else {
            return;
        };
        let replaced = self.boots.back().is_some_and(|boot| *boot != session.boot);
        if self.boots.back() != Some(&session.boot) {
            self.boots.push_back(session.boot);
            if self.boots.len() > BOOTS_MAX {
                self.boots.pop_front();
            }
        }
        self.effects.push_back(Effect::Tell(News::Up {
            boot: session.boot,
            beat_s: session.beat_s,
            replaced,
        }));
        self.effects
            .extend(session.same.map(|revision| Effect::Tell(News::Acked(revision))));
        let carrier = session.carrier;
        if let Some(before) = self.active.replace(session)
            && before.carrier != carrier
        {
            self.effects.push_back(Effect::Hangup(before.carrier));
        }
        self.send(&Frame::Ack { session: id, seq: 0, need_full: Vec::new() });
        self.compare(now, view);
    }

    /// Goes on asking what the node holds; follows its view once that is known.
    fn compare(&mut self, now: Mono, view: &dyn View) {
        let Some(session) = &mut self.active else { return };
        if let Phase::Comparing(comparing) = &mut session.phase {
            let Comparing { narrowing, ours, digest, count } = &mut **comparing;
            if let Some(prefix) = narrowing.ask() {
                session.patience = now + ACK_WAIT;
                let ask = Frame::Ask { session: session.id, of: Side::View, prefix };
                self.send(&ask);
                return;
            }
            let Some(differences) = narrowing.finished() else {
                return;
            };
            let Some(held) = CompleteSet::prove(theirs(ours, differences), *digest, *count) else {
                // The answers do not add up to what the hello stated: nothing follows from them.
                let again = Frame::Again { session: session.id };
                self.send(&again);
                return;
            };
            session.handles = held.inventory().uids().collect();
            // Of what differs no revision is known that could be a base.
            let current: BTreeMap<_, _> = view.entries().into_iter().map(|entry| (entry.uid, entry)).collect();
            let holding = held.inventory().iter().map(|(uid, hash)| {
                let same = current.get(&uid).filter(|entry| entry.hash == hash);
                (uid, same.map_or(Revision(0), |entry| entry.revision), hash)
            });
            session.phase = Phase::Following(Holdings::numbered(holding));
            session.unmarked = true;
        }
        self.pump(now, view);
    }

    fn up(&mut self, seq: u32, items: Vec<Up>, view: &dyn View) -> Result<(), Violation> {
        let Some(session) = &mut self.active else { return Ok(()) };
        let mut batch = Batch::default();
        let mut requests = Vec::new();
        let mut last = match view.received() {
            Some((incarnation, number)) if incarnation == session.incarnation => number,
            Some(_) | None => 0,
        };
        for item in items {
            match item {
                Up::Report { handle, body, check } => {
                    let uid = session.uid(handle)?;
                    let content = read(body, &mut session.assembly, session.dictionary)?;
                    let base = || view.report(uid);
                    let value = match content {
                        Content::Full(value) => Some(value),
                        Content::Patch(patch) => base().and_then(|base| patch.apply(&base).ok()),
                        Content::Like(..) => return Err(Violation::Direction),
                    };
                    match value {
                        Some(value) if EntryHash::of_report(uid, &value).check() == check => {
                            session.need_full.remove(&handle);
                            batch.reports.push((uid, value));
                        }
                        // Another base, or none: the whole will do.
                        Some(_) | None => {
                            session.need_full.insert(handle);
                            if session.need_full.len() > NEED_FULL_MAX {
                                return Err(Violation::TooLarge);
                            }
                        }
                    }
                }
                Up::Gone { handle } => batch.gone.push(session.uid(handle)?),
                Up::Event { number, body } => {
                    if number > last {
                        batch.events.push((number, decode_value(&body, session.dictionary)?));
                        last = number;
                        batch.received = Some((session.incarnation, number));
                    }
                }
                Up::Chunk(chunk) => session.assembly.push(&chunk)?,
                Up::Request(request) => requests.push(request),
            }
        }
        session.seq_in = seq;
        let after = After { session: session.id, seq };
        self.effects
            .extend(requests.into_iter().map(|request| Effect::Tell(News::Request(request))));
        self.after = Some(after);
        self.effects.push_back(Effect::Commit(batch));
        Ok(())
    }

    fn refuse(&mut self, carrier: Carrier, refusal: Refusal) {
        self.effects
            .push_back(Effect::Send(carrier, Frame::Refuse(refusal).encode()));
    }

    /// Sends over the carrier of the confirmed session.
    fn send(&mut self, frame: &Frame) {
        if let Some(session) = &self.active {
            self.effects.push_back(Effect::Send(session.carrier, frame.encode()));
        }
    }
}

impl Machine for Cloud {
    type Batch = Batch;
    type Outcome = ();
    type News = News;
    type Context = dyn View + Send + Sync;

    fn poll_effect(&mut self) -> Option<Effect<Batch, News>> {
        let effect = self.effects.pop_front();
        if self.effects.is_empty() {
            // A cloud has a machine for each of its nodes, and they rest nearly always: with no room for effects.
            self.effects = VecDeque::new();
        }
        effect
    }

    fn committed(&mut self, now: Mono, outcome: Result<(), CommitError>, view: &Self::Context) {
        let Some(After { session: id, seq }) = self.after.take() else {
            return;
        };
        match outcome {
            Ok(()) => {
                if let Some(ack) = self.session(id).map(|session| session.ack(seq)) {
                    self.send(&ack);
                }
                self.pump(now, view);
            }
            Err(error) => {
                // Not durable, so not acknowledged: the node says it again.
                self.effects.push_back(Effect::Tell(News::NotDurable(error)));
                if let Some(carrier) = self.session(id).map(|session| session.carrier) {
                    self.hang_up(carrier);
                }
            }
        }
    }

    fn wake_at(&self) -> Option<Mono> {
        self.active
            .as_ref()
            .filter(|session| session.waits())
            .map(|session| session.patience)
    }
}

/// How a session begins, from what the node says that it holds.
fn begin(hello: &Hello, view: &dyn View) -> (ViewStart, Phase) {
    let count = usize::try_from(hello.count).unwrap_or(usize::MAX);
    let proven = |entries: Vec<Entry>| {
        let inventory = entries.iter().map(|entry| (entry.uid, entry.hash)).collect();
        let proven = CompleteSet::prove(inventory, hello.view, count).is_some();
        let held = entries.into_iter().map(|entry| (entry.uid, entry.revision, entry.hash));
        proven.then(|| Phase::Following(Holdings::numbered(held)))
    };
    let entries = view.entries();
    let ours = entries.iter().map(|entry| (entry.uid, entry.hash)).collect();
    if let Some(phase) = proven(entries) {
        return (ViewStart::Same(view.revision()), phase);
    }
    let known = hello.epoch == view.epoch() && hello.applied > Revision(0);
    if let Some(phase) = known.then(|| view.entries_at(hello.applied)).flatten().and_then(proven) {
        return (ViewStart::Changes, phase);
    }
    let comparing = Comparing {
        narrowing: Narrowing::default(),
        ours,
        digest: hello.view,
        count,
    };
    (ViewStart::Compare, Phase::Comparing(Box::new(comparing)))
}

impl Session {
    /// Whether the node owes an answer.
    fn waits(&self) -> bool {
        !self.in_flight.is_empty() || matches!(self.phase, Phase::Comparing(_))
    }

    fn ack(&self, seq: u32) -> Frame {
        Frame::Ack {
            session: self.id,
            seq,
            need_full: self.need_full.iter().copied().collect(),
        }
    }

    fn uid(&self, handle: u32) -> Result<Uid, Violation> {
        let at = usize::try_from(handle).map_err(|_| Violation::Handle(handle))?;
        self.handles.get(at).copied().ok_or(Violation::Handle(handle))
    }
}
