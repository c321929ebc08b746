//! The cloud's end of one node's session: what the node holds of its view, and what it reported.
//!
//! The machine keeps a revision and a hash per entry that the node holds, never an object. What the node holds is only
//! ever taken from a set that was proven complete: the view at a revision the node names and proves by digest, or the
//! answers to a comparison. Only then is anything deleted there. Each change is encoded against what was sent before;
//! what changes while the window is full is sent afterwards, once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::outgoing::{Large, Packing, WHOLE_MAX};
use super::random::Random;
use super::{ACK_WAIT, Assembly, Carrier, CommitError, Content, Effect, Machine, Violation, WINDOW, read};
use crate::delta::dictionary::Dictionary;
use crate::delta::{decode_value, diff, encode_patch, encode_value};
use crate::digest::{CompleteSet, Digest, EntryHash, Inventory, Narrowing, theirs};
use crate::frame::{
    Body, Down, Frame, Hello, OBJECT_MAX, Refusal, ReportsStart, Side, Up, VERSION, ViewStart, Welcome,
};
use crate::object::{Epoch, Key, Revision, Uid};
use crate::time::{BootId, Mono};
use crate::value::Value;

/// Boots of a node that are remembered, to know two machines with one key apart from one that restarts.
pub const BOOTS_MAX: usize = 8;

/// Session ids take two bytes at most.
const SESSION_MASK: u32 = 0x3fff;

/// Reports without a known base that an acknowledgement has room to name.
pub const NEED_FULL_MAX: usize = 2048;

/// Longest wait between two [`Frame::Again`].
const AGAIN_WAIT_MAX: Duration = Duration::from_secs(600);

/// What a node should hold, as the store has it now. Every answer is of one moment.
pub trait View {
    fn epoch(&self) -> Epoch;

    /// The revision that [`View::entries`] is of.
    fn revision(&self) -> Revision;

    /// Milliseconds since 1970.
    fn now_ms(&self) -> i64;

    /// The whole view, in the order in which a node should get it.
    fn entries(&self) -> Vec<Entry>;

    /// The whole view as it was at a revision; `None` when that is no longer known.
    fn entries_at(&self, revision: Revision) -> Option<Vec<Entry>>;

    /// The projection of an object as of a revision; `None` when it is no longer known.
    fn projection(&self, key: &Key, uid: Uid, revision: Revision) -> Option<Value>;

    /// What the node reported of an object of its view.
    fn report(&self, uid: Uid) -> Option<Value>;

    /// The hashes of all that the node reported of objects of its view.
    fn reports(&self) -> Inventory;

    /// The incarnation of the node's store that events came from, and the number of the last one.
    fn received(&self) -> Option<([u8; 8], u64)>;
}

/// One entry of a view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub uid: Uid,
    pub key: Key,
    /// At which the projection last changed.
    pub revision: Revision,
    pub hash: EntryHash,
}

/// What is to be made durable, all or nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    pub reports: Vec<(Uid, Value)>,
    /// Objects of which nothing is left on the node: those being deleted can go.
    pub gone: Vec<Uid>,
    pub events: Vec<(u64, Value)>,
    /// What [`View::received`] is to say afterwards.
    pub received: Option<([u8; 8], u64)>,
}

/// What others want to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// A session is confirmed; it replaced one of another boot if `replaced`.
    Up {
        boot: BootId,
        beat_s: u16,
        replaced: bool,
    },
    /// The node holds the view of this revision: nothing older is needed for it.
    Acked(Revision),
    /// The node knows of a later revision than the store: the store must begin a new epoch beyond it.
    Behind(Revision),
    /// Another machine holds this node's key.
    Duplicate(BootId),
    /// The node was refused: it speaks none of our frame versions, or has another dictionary.
    Foreign {
        versions: (u8, u8),
    },
    Violated(Violation),
    NotDurable(CommitError),
    /// A certificate signing request, PEM.
    Request(Vec<u8>),
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    Frame(Carrier, Vec<u8>),
    /// The carrier is gone.
    Lost(Carrier),
    /// The node's view may have changed.
    Changed,
    /// The answer to [`News::Request`]: [`crate::enrol::Credentials`] as JSON.
    Certificate(Vec<u8>),
}

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
    handles: Vec<Uid>,
    numbers: BTreeMap<Uid, u32>,
    seq_in: u32,
    seq_out: u32,
    /// By sequence, the revision that the node holds when it acknowledges.
    in_flight: BTreeMap<u32, Option<Revision>>,
    patience: Mono,
    again_wait: Duration,
    assembly: Assembly,
    large: Option<Large<Entry>>,
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
    Comparing {
        narrowing: Narrowing,
        ours: Inventory,
        digest: Digest,
        count: usize,
    },
    /// What the node holds once it has everything that was sent.
    Following(BTreeMap<Uid, Holding>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Holding {
    revision: Revision,
    hash: EntryHash,
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
                    && let Phase::Comparing { narrowing, ours, .. } = &mut session.phase
                {
                    narrowing.answer(ours, &prefix, branch);
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
            Phase::Following(holding) => holding.keys().copied().collect(),
            Phase::Comparing { .. } => Vec::new(),
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
            numbers: handles.iter().copied().zip(0..).collect(),
            handles,
            seq_in: 0,
            seq_out: 0,
            in_flight: BTreeMap::new(),
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
        if let Phase::Comparing { narrowing, ours, digest, count } = &mut session.phase {
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
            session.numbers = session.handles.iter().copied().zip(0..).collect();
            // Of what differs no revision is known that could be a base.
            let current: BTreeMap<_, _> = view.entries().into_iter().map(|entry| (entry.uid, entry)).collect();
            let holding = held.inventory().iter().map(|(uid, hash)| {
                let same = current.get(&uid).filter(|entry| entry.hash == hash);
                (
                    uid,
                    Holding {
                        revision: same.map_or(Revision(0), |entry| entry.revision),
                        hash,
                    },
                )
            });
            session.phase = Phase::Following(holding.collect());
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

    fn acked(&mut self, now: Mono, id: u32, seq: u32, view: &dyn View) {
        let Some(session) = self.session(id) else { return };
        let later = session.in_flight.split_off(&seq.saturating_add(1));
        let settled = std::mem::replace(&mut session.in_flight, later);
        if settled.is_empty() {
            return;
        }
        session.patience = now + ACK_WAIT;
        session.again_wait = ACK_WAIT;
        if let Some(revision) = settled.into_values().flatten().next_back() {
            self.effects.push_back(Effect::Tell(News::Acked(revision)));
        }
        self.pump(now, view);
    }

    /// Sends what the node lacks, as far as the window allows.
    fn pump(&mut self, now: Mono, view: &dyn View) {
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
            session.in_flight.insert(session.seq_out, mark);
            let frame = Frame::Down {
                session: session.id,
                seq: session.seq_out,
                items: packing.items,
            };
            self.effects.push_back(Effect::Send(session.carrier, frame.encode()));
        }
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
        self.effects.pop_front()
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
        let holding = |entry: Entry| (entry.uid, Holding { revision: entry.revision, hash: entry.hash });
        proven.then(|| Phase::Following(entries.into_iter().map(holding).collect()))
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
    let narrowing = Narrowing::default();
    (
        ViewStart::Compare,
        Phase::Comparing { narrowing, ours, digest: hello.view, count },
    )
}

impl Session {
    /// Whether the node owes an answer.
    fn waits(&self) -> bool {
        !self.in_flight.is_empty() || matches!(self.phase, Phase::Comparing { .. })
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

    /// Fills one frame: small things first, then deletions, then what changed in the order of the view, then a chunk of
    /// what is large; and a mark when nothing is left.
    fn fill(&mut self, entries: &[Entry], view: &dyn View, packing: &mut Packing<Down>, mark: &mut Option<Revision>) {
        let Phase::Following(mut holding) = std::mem::replace(&mut self.phase, Phase::Following(BTreeMap::new()))
        else {
            return;
        };
        let complete = self.fill_changes(&mut holding, entries, view, packing);
        if complete && self.unmarked && self.large.is_none() && packing.fits(0) {
            let held: Inventory = holding.iter().map(|(uid, holding)| (*uid, holding.hash)).collect();
            packing.push(Down::Mark { revision: view.revision(), digest: held.digest() }, 0);
            *mark = Some(view.revision());
            self.unmarked = false;
        }
        self.phase = Phase::Following(holding);
    }

    /// Returns whether the node holds everything once it has this frame.
    fn fill_changes(
        &mut self,
        holding: &mut BTreeMap<Uid, Holding>,
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
            .keys()
            .copied()
            .filter(|uid| !current.contains_key(uid))
            .collect();
        for uid in absent {
            let Some(handle) = self.numbers.get(&uid).copied() else {
                continue;
            };
            if !packing.fits(0) {
                return false;
            }
            packing.push(Down::Delete { handle }, 0);
            self.numbers.remove(&uid);
            holding.remove(&uid);
            self.unmarked = true;
        }
        let mut complete = true;
        for entry in entries {
            if holding.get(&entry.uid).is_some_and(|held| held.hash == entry.hash) {
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
                    self.large = Some(Large::new(body, entry.clone()));
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

    fn push(
        &mut self,
        entry: &Entry,
        body: Body,
        size: usize,
        packing: &mut Packing<Down>,
        holding: &mut BTreeMap<Uid, Holding>,
    ) {
        let (uid, revision) = (entry.uid, entry.revision);
        let item = match self.numbers.get(&uid) {
            Some(handle) => Down::Change { handle: *handle, revision, body },
            None => {
                let handle = u32::try_from(self.handles.len()).unwrap_or(u32::MAX);
                self.handles.push(uid);
                self.numbers.insert(uid, handle);
                let Key { kind, namespace, name } = &entry.key;
                let key = Value::from_iter([kind.as_str(), namespace, name]);
                Down::New {
                    uid,
                    key: encode_value(&key, self.dictionary),
                    revision,
                    body,
                }
            }
        };
        packing.push(item, size);
        holding.insert(uid, Holding { revision, hash: entry.hash });
        self.unmarked = true;
    }

    /// The shortest body for an entry, and the room it takes. `None` when the object is gone since: the view will tell.
    fn body(
        &self,
        entry: &Entry,
        holding: &BTreeMap<Uid, Holding>,
        entries: &[Entry],
        view: &dyn View,
    ) -> Option<(Body, usize)> {
        let new = view.projection(&entry.key, entry.uid, entry.revision)?;
        let full = encode_value(&new, self.dictionary);
        let held = |entry: &Entry, revision: Revision, hash: EntryHash| {
            let base = view.projection(&entry.key, entry.uid, revision)?;
            (EntryHash::of(&entry.key, entry.uid, &base) == hash).then_some(base)
        };
        let key = if self.numbers.contains_key(&entry.uid) {
            0
        } else {
            key_size(&entry.key)
        };
        let body = match holding.get(&entry.uid) {
            Some(own) => held(entry, own.revision, own.hash)
                .map(|base| encode_patch(&diff(&base, &new), self.dictionary))
                .filter(|patch| patch.len() < full.len())
                .map(Body::Patch),
            None => sibling(entry, entries, holding)
                .and_then(|(other, handle)| {
                    let handle = *self.numbers.get(&handle)?;
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
fn sibling<'a>(entry: &Entry, entries: &'a [Entry], holding: &BTreeMap<Uid, Holding>) -> Option<(&'a Entry, Uid)> {
    let stem = |name: &'a str| name.rsplit_once('-').map(|(stem, _)| stem);
    let own = entry.key.name.rsplit_once('-').map(|(stem, _)| stem)?;
    let other = entries.iter().rev().find(|other| {
        other.key.kind == entry.key.kind
            && other.key.namespace == entry.key.namespace
            && stem(&other.key.name) == Some(own)
            && holding.get(&other.uid).is_some_and(|held| held.hash == other.hash)
    })?;
    Some((other, other.uid))
}

/// Room for a key in a frame.
fn key_size(key: &Key) -> usize {
    key.kind.as_str().len() + key.namespace.len() + key.name.len() + 16
}
