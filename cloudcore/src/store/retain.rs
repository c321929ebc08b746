//! How long what was is kept: the window of history, and the versions that nodes still hold.
//!
//! A write leaves history when it is both older than the window and further back than its count of writes, or when
//! history has grown past its bytes. The version that it replaced goes then, unless some node's acknowledged revision
//! resolves to it: such a version becomes a base, as long as a mark says so and the bases have room. All of this rides
//! on transactions that are written anyway; an idle store writes nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use proto::object::{Key, Revision};
use proto::time::Mono;

use super::projection::reaches_nodes;

/// The most marks: one for each node, and some to spare beyond what one cloud core carries.
pub const MARKS_MAX: usize = 200_000;

/// How much history is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryLimits {
    /// Writes younger than this are kept,
    pub age: Duration,
    /// and so are the last ones of this number,
    pub writes: usize,
    /// as long as they keep no more than this.
    pub bytes: usize,
    /// What the versions that only nodes still hold may come to.
    pub bases_bytes: usize,
}

impl Default for HistoryLimits {
    fn default() -> Self {
        Self {
            age: Duration::from_mins(5),
            writes: 10_000,
            bytes: 256 << 20,
            bases_bytes: 256 << 20,
        }
    }
}

/// The writes that history knows, oldest first.
#[derive(Debug, Default)]
pub(super) struct History {
    writes: VecDeque<Write>,
    bytes: usize,
}

#[derive(Debug, Clone, Copy)]
struct Write {
    revision: Revision,
    at: Mono,
    cost: usize,
}

impl History {
    pub(super) fn push(&mut self, revision: Revision, at: Mono, cost: usize) {
        self.writes.push_back(Write { revision, at, cost });
        self.bytes += cost;
    }

    /// The oldest writes that must go now, at most `count`; more only where bytes demand it.
    pub(super) fn due(&self, limits: &HistoryLimits, floor: Revision, now: Mono, count: usize) -> Vec<Revision> {
        let (mut left, mut bytes) = (self.writes.len(), self.bytes);
        let mut due = Vec::new();
        for write in &self.writes {
            let old = left > limits.writes && now.since(write.at) >= limits.age;
            let forgotten = write.revision <= floor;
            if bytes <= limits.bytes && !((old || forgotten) && due.len() < count) {
                break;
            }
            due.push(write.revision);
            left -= 1;
            bytes -= write.cost;
        }
        due
    }

    /// The oldest `count` writes are gone.
    pub(super) fn dropped(&mut self, count: usize) {
        for write in self.writes.drain(..count) {
            self.bytes -= write.cost;
        }
    }
}

/// Which nodes may hold an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Holder {
    /// No node.
    None,
    Node(Arc<str>),
    /// Any node whose view refers to it.
    Any,
}

impl Holder {
    pub(super) fn of(key: &Key, node: Option<&str>) -> Self {
        match (key.kind.as_str(), node) {
            ("Pod", Some(node)) => Self::Node(node.into()),
            ("Pod", None) => Self::None,
            ("Node", _) => Self::Node(key.name.as_str().into()),
            (kind, _) if reaches_nodes(kind) => Self::Any,
            _ => Self::None,
        }
    }
}

/// The revision that each node has acknowledged.
#[derive(Debug, Default)]
pub(super) struct Marks {
    nodes: BTreeMap<Arc<str>, Mark>,
    /// How many nodes are at each revision.
    counts: BTreeMap<Revision, usize>,
    /// Nodes whose mark in the file is another one.
    unsaved: BTreeSet<Arc<str>>,
    /// Versions of before this revision may be gone, or are going with the transaction that is being written.
    floor: Revision,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) revision: Revision,
    /// Nothing that the node held then has been let go of.
    pub(super) whole: bool,
}

impl Marks {
    pub(super) fn load(&mut self, node: Arc<str>, mark: Mark) {
        self.put(node, Some(mark));
    }

    /// History is about to be cut off here. A mark that is set from now on can count on nothing older, and one that was
    /// set before is heeded.
    pub(super) fn cut(&mut self, floor: Revision) {
        self.floor = self.floor.max(floor);
    }

    /// Sets or clears a node's mark. False when there are too many marks.
    pub(super) fn set(&mut self, node: &str, revision: Option<Revision>) -> bool {
        let was = self.nodes.get(node).copied();
        if was.map(|mark| mark.revision) == revision {
            return true;
        }
        if was.is_none() && self.nodes.len() >= MARKS_MAX {
            return false;
        }
        let node = Arc::<str>::from(node);
        let mark = revision.map(|revision| Mark { revision, whole: revision >= self.floor });
        self.put(Arc::clone(&node), mark);
        self.unsaved.insert(node);
        true
    }

    fn put(&mut self, node: Arc<str>, mark: Option<Mark>) {
        if let Some(mark) = mark {
            *self.counts.entry(mark.revision).or_default() += 1;
        }
        let was = match mark {
            Some(mark) => self.nodes.insert(node, mark),
            None => self.nodes.remove(&node),
        };
        if let Some(was) = was
            && let Some(count) = self.counts.get_mut(&was.revision)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&was.revision);
            }
        }
    }

    pub(super) fn get(&self, node: &str) -> Option<Revision> {
        self.nodes.get(node).map(|mark| mark.revision)
    }

    /// Whether a node may hold what an object was from one revision until before another.
    pub(super) fn want(&self, holder: &Holder, from: Revision, until: Revision) -> bool {
        match holder {
            Holder::None => false,
            Holder::Node(node) => self.get(node).is_some_and(|at| (from..until).contains(&at)),
            Holder::Any => from < until && self.counts.range(from..until).next().is_some(),
        }
    }

    /// Something that this node may have held was let go of.
    pub(super) fn broken(&mut self, holder: &Holder, from: Revision, until: Revision) {
        let Holder::Node(node) = holder else { return };
        if let Some((node, mark)) = self.nodes.get_key_value(node)
            && mark.whole
            && (from..until).contains(&mark.revision)
        {
            let (node, mark) = (Arc::clone(node), Mark { whole: false, ..*mark });
            self.unsaved.insert(Arc::clone(&node));
            self.nodes.insert(node, mark);
        }
    }

    /// Forgets all marks: they are revisions of another epoch.
    pub(super) fn clear(&mut self) {
        *self = Self { floor: self.floor, ..Self::default() };
    }

    /// What the file does not have yet.
    pub(super) fn unsaved(&self) -> Vec<(Arc<str>, Option<Mark>)> {
        let unsaved = self.unsaved.iter();
        unsaved
            .map(|node| (Arc::clone(node), self.nodes.get(node).copied()))
            .collect()
    }

    /// The file has these now; what changed meanwhile stays unsaved.
    pub(super) fn saved(&mut self, saved: &[(Arc<str>, Option<Mark>)]) {
        for (node, mark) in saved {
            if self.nodes.get(node) == mark.as_ref() {
                self.unsaved.remove(node);
            }
        }
    }
}

/// The versions that only nodes still hold, by revision.
#[derive(Debug, Default)]
pub(super) struct Bases {
    by_revision: BTreeMap<Revision, Base>,
    bytes: usize,
    /// How far the last look for bases that nobody wants any more went.
    looked: Revision,
}

/// One of them: what a node at a revision of `from..until` holds.
#[derive(Debug, Clone)]
pub(super) struct Base {
    pub(super) holder: Holder,
    pub(super) from: Revision,
    pub(super) until: Revision,
    pub(super) bytes: usize,
}

impl Bases {
    pub(super) fn insert(&mut self, revision: Revision, base: Base) {
        self.bytes += base.bytes;
        self.by_revision.insert(revision, base);
    }

    pub(super) fn remove(&mut self, revision: Revision) -> Option<Base> {
        let base = self.by_revision.remove(&revision)?;
        self.bytes -= base.bytes;
        Some(base)
    }

    /// Looks at the next `count` bases, and names those that no mark wants.
    pub(super) fn unwanted(&mut self, marks: &Marks, count: usize) -> Vec<Revision> {
        let mut unwanted = Vec::new();
        let mut seen = 0;
        for (revision, base) in self
            .by_revision
            .range(Revision(self.looked.0.saturating_add(1))..)
            .take(count)
        {
            seen += 1;
            self.looked = *revision;
            if !marks.want(&base.holder, base.from, base.until) {
                unwanted.push(*revision);
            }
        }
        if seen < count {
            self.looked = Revision(0);
        }
        unwanted
    }

    /// The oldest bases that must go for the rest, and `more`, to fit.
    pub(super) fn surplus(&self, more: usize, bytes_max: usize) -> Vec<Revision> {
        let mut bytes = self.bytes + more;
        let mut surplus = Vec::new();
        for (revision, base) in &self.by_revision {
            if bytes <= bytes_max {
                break;
            }
            bytes -= base.bytes;
            surplus.push(*revision);
        }
        surplus
    }

    pub(super) fn get(&self, revision: Revision) -> Option<&Base> {
        self.by_revision.get(&revision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HistoryLimits = HistoryLimits {
        age: Duration::from_secs(10),
        writes: 3,
        bytes: 1000,
        bases_bytes: 100,
    };

    fn history(costs: &[usize]) -> History {
        let mut history = History::default();
        for (revision, cost) in (1..).zip(costs) {
            history.push(Revision(revision), Mono(revision * 1000), *cost);
        }
        history
    }

    #[track_caller]
    fn due(history: &History, floor: u64, now: u64, count: usize, revisions: &[u64]) {
        let due: Vec<u64> = history
            .due(&LIMITS, Revision(floor), Mono(now), count)
            .iter()
            .map(|revision| revision.0)
            .collect();
        assert_eq!(due, revisions);
    }

    #[test]
    fn history_goes_when_old_and_far_back() {
        let history = history(&[1; 5]);
        due(&history, 0, 10_999, 100, &[]);
        due(&history, 0, 11_000, 100, &[1]);
        // The last three stay, however old.
        due(&history, 0, 1_000_000, 100, &[1, 2]);
        due(&history, 0, 1_000_000, 1, &[1]);
        // What lies below the floor is nobody's any more.
        due(&history, 4, 0, 100, &[1, 2, 3, 4]);
    }

    #[test]
    fn bytes_push_history_out() {
        due(&history(&[500, 500]), 0, 0, 0, &[]);
        due(&history(&[500, 500, 1]), 0, 0, 0, &[1]);
        due(&history(&[1, 1, 2000]), 0, 0, 0, &[1, 2, 3]);
        let mut history = history(&[500, 500, 1]);
        history.dropped(1);
        due(&history, 0, 0, 0, &[]);
    }

    #[test]
    fn marks_say_what_is_wanted() {
        let mut marks = Marks::default();
        assert!(marks.set("a", Some(Revision(5))));
        let a = Holder::Node("a".into());
        let want = |marks: &Marks, holder: &Holder, from, until| marks.want(holder, Revision(from), Revision(until));
        assert!(want(&marks, &a, 5, 6));
        assert!(!want(&marks, &a, 4, 5));
        assert!(!want(&marks, &a, 6, 9));
        assert!(!want(&marks, &Holder::Node("b".into()), 0, 9));
        assert!(want(&marks, &Holder::Any, 0, 9));
        assert!(!want(&marks, &Holder::None, 0, 9));
        marks.set("b", Some(Revision(5)));
        marks.set("a", None);
        assert!(want(&marks, &Holder::Any, 0, 9));
        marks.set("b", Some(Revision(7)));
        assert!(!want(&marks, &Holder::Any, 0, 7));
    }

    #[test]
    fn a_mark_below_the_floor_is_not_whole() {
        let mut marks = Marks::default();
        marks.cut(Revision(6));
        marks.set("a", Some(Revision(5)));
        marks.set("b", Some(Revision(6)));
        let saved = marks.unsaved();
        assert_eq!(saved[0].1, Some(Mark { revision: Revision(5), whole: false }));
        assert_eq!(saved[1].1, Some(Mark { revision: Revision(6), whole: true }));
        marks.set("a", Some(Revision(9)));
        marks.saved(&saved);
        // What changed while the transaction ran is for the next one.
        assert_eq!(marks.unsaved().len(), 1);
        marks.broken(&Holder::Node("b".into()), Revision(1), Revision(7));
        assert_eq!(marks.unsaved()[1].1, Some(Mark { revision: Revision(6), whole: false }));
    }

    #[test]
    fn marks_are_bounded() {
        let mut marks = Marks::default();
        for node in 0..MARKS_MAX {
            assert!(marks.set(&node.to_string(), Some(Revision(1))));
        }
        assert!(!marks.set("one more", Some(Revision(1))));
        assert!(marks.set("0", None));
        assert!(marks.set("one more", Some(Revision(1))));
    }

    #[test]
    fn bases_go_when_unwanted_or_too_many() {
        let mut marks = Marks::default();
        marks.set("a", Some(Revision(15)));
        let mut bases = Bases::default();
        for (revision, from) in [(1, 10), (2, 20), (3, 30)] {
            let base = Base {
                holder: Holder::Any,
                from: Revision(from),
                until: Revision(from + 10),
                bytes: 40,
            };
            bases.insert(Revision(revision), base);
        }
        assert_eq!(bases.surplus(0, 100), [Revision(1)]);
        assert_eq!(bases.surplus(0, 120), []);
        assert_eq!(bases.surplus(1, 120), [Revision(1)]);
        assert_eq!(bases.unwanted(&marks, 2), [Revision(2)]);
        assert_eq!(bases.unwanted(&marks, 2), [Revision(3)]);
        // Round again from the start.
        bases.remove(Revision(3));
        assert_eq!(bases.unwanted(&marks, 2), [Revision(2)]);
        bases.remove(Revision(2));
        bases.remove(Revision(1));
        assert_eq!(bases.surplus(100, 100), []);
    }
}
