//! Sets of objects, what they hash to, and finding where two of them differ.
//!
//! A digest is the root of a 16-way tree over the entries by their uid (uids are random, so they spread). It depends on
//! the set alone. Two ends that differ ask each other down the tree, so that what travels grows with the difference and
//! not with the set.

use std::collections::BTreeMap;
use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::object::{Key, Uid};
use crate::value::{Value, canonical};

/// BLAKE3-128 over (kind, key, uid, projection): equal hashes mean equal entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct EntryHash(pub [u8; 16]);

impl EntryHash {
    /// The hash of one entry of a view.
    pub fn of(key: &Key, uid: Uid, projection: &Value) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in [key.kind.as_str(), &key.namespace, &key.name] {
            hasher.update(part.as_bytes());
            // No name holds a zero byte, so that no two keys run into one text.
            hasher.update(&[0]);
        }
        hasher.update(&uid.0);
        hasher.update(&canonical::encode(projection));
        Self(finish(&hasher))
    }

    /// The hash of what a node reported of one object.
    pub fn of_report(uid: Uid, report: &Value) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&uid.0);
        hasher.update(&canonical::encode(report));
        Self(finish(&hasher))
    }

    /// Two bytes of it, enough to notice a patch against another base.
    pub fn check(self) -> [u8; 2] {
        [self.0[0], self.0[1]]
    }
}

/// The hash of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Digest(pub [u8; 8]);

/// A set of objects: which, and in what state.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Inventory {
    entries: BTreeMap<Uid, EntryHash>,
}

/// The entries whose uid begins with these nibbles.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Prefix {
    depth: u8,
    /// The nibbles, two to a byte, zeros behind them; only the bytes that hold one.
    bits: Vec<u8>,
}

/// What an end holds under a prefix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Branch {
    /// The entries themselves, when they are few.
    Leaf(Vec<(Uid, EntryHash)>),
    /// The digests of the sixteen branches below.
    Fork([Digest; FORK]),
}

/// Branches of a fork.
pub const FORK: usize = 16;

/// Most entries of a leaf.
pub const LEAF_MAX: usize = 8;

/// Nibbles of a uid: no prefix is longer.
const DEPTH_MAX: u8 = 32;

impl Inventory {
    pub fn insert(&mut self, uid: Uid, hash: EntryHash) {
        self.entries.insert(uid, hash);
    }

    pub fn remove(&mut self, uid: Uid) {
        self.entries.remove(&uid);
    }

    pub fn hash(&self, uid: Uid) -> Option<EntryHash> {
        self.entries.get(&uid).copied()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (Uid, EntryHash)> + '_ {
        self.entries.iter().map(|(uid, hash)| (*uid, *hash))
    }

    /// The uids in their order, which both ends of a session number them by.
    pub fn uids(&self) -> impl Iterator<Item = Uid> + '_ {
        self.entries.keys().copied()
    }

    /// The digest of the whole set.
    pub fn digest(&self) -> Digest {
        self.digest_of(&Prefix::default())
    }

    /// What is held under a prefix.
    pub fn branch(&self, prefix: &Prefix) -> Branch {
        let few: Vec<_> = self.under(prefix).take(LEAF_MAX + 1).collect();
        if few.len() <= LEAF_MAX || prefix.depth >= DEPTH_MAX {
            Branch::Leaf(self.under(prefix).collect())
        } else {
            Branch::Fork(prefix.children().map(|child| self.digest_of(&child)))
        }
    }

    fn under(&self, prefix: &Prefix) -> impl Iterator<Item = (Uid, EntryHash)> + '_ {
        let (first, last) = prefix.range();
        self.entries.range(first..=last).map(|(uid, hash)| (*uid, *hash))
    }

    fn digest_of(&self, prefix: &Prefix) -> Digest {
        let mut hasher = blake3::Hasher::new();
        match self.branch(prefix) {
            Branch::Leaf(entries) if entries.is_empty() => return Digest::default(),
            Branch::Leaf(entries) => {
                hasher.update(b"leaf");
                for (uid, hash) in entries {
                    hasher.update(&uid.0);
                    hasher.update(&hash.0);
                }
            }
            Branch::Fork(digests) => {
                hasher.update(b"fork");
                for digest in digests {
                    hasher.update(&digest.0);
                }
            }
        }
        Digest(finish(&hasher))
    }
}

impl FromIterator<(Uid, EntryHash)> for Inventory {
    fn from_iter<I: IntoIterator<Item = (Uid, EntryHash)>>(entries: I) -> Self {
        Self { entries: entries.into_iter().collect() }
    }
}

impl Prefix {
    /// Whether it can be: no longer than a uid, no bits beyond its depth.
    pub fn is_valid(&self) -> bool {
        let whole = usize::from(self.depth.div_ceil(2));
        self.depth <= DEPTH_MAX
            && self.bits.len() == whole
            && (self.depth.is_multiple_of(2) || self.bits.last().is_some_and(|last| last & 0x0f == 0))
    }

    fn children(&self) -> [Self; FORK] {
        std::array::from_fn(|nibble| {
            let nibble = u8::try_from(nibble).unwrap_or_default();
            let mut bits = self.bits.clone();
            match bits.last_mut() {
                Some(last) if !self.depth.is_multiple_of(2) => *last |= nibble,
                _ => bits.push(nibble << 4),
            }
            Self { depth: self.depth + 1, bits }
        })
    }

    /// The first and the last uid that can begin with it.
    fn range(&self) -> (Uid, Uid) {
        let (mut first, mut last) = ([0; 16], [0xff; 16]);
        for (at, byte) in self.bits.iter().take(16).enumerate() {
            first[at] = *byte;
            last[at] = if at == usize::from(self.depth / 2) {
                byte | 0x0f
            } else {
                *byte
            };
        }
        (Uid(first), Uid(last))
    }
}

/// An inventory that is known to be all there is: only from one may be concluded what is *not* there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompleteSet(Inventory);

impl CompleteSet {
    /// Takes a set for complete if it has the digest and the count that its owner states of it.
    pub fn prove(inventory: Inventory, digest: Digest, count: usize) -> Option<Self> {
        (inventory.len() == count && inventory.digest() == digest).then_some(Self(inventory))
    }

    pub fn inventory(&self) -> &Inventory {
        &self.0
    }

    pub fn into_inventory(self) -> Inventory {
        self.0
    }
}

/// Finds how another end's set differs from ours, one branch at a time.
#[derive(Debug)]
pub struct Narrowing {
    /// Prefixes to ask for.
    open: VecDeque<Prefix>,
    /// The prefix that was asked for and not answered yet.
    asked: Option<Prefix>,
    /// By uid, what the other end has where it differs from ours.
    differences: BTreeMap<Uid, Option<EntryHash>>,
}

impl Default for Narrowing {
    fn default() -> Self {
        Self {
            open: [Prefix::default()].into(),
            asked: None,
            differences: BTreeMap::new(),
        }
    }
}

impl Narrowing {
    /// The next prefix to ask the other end for; `None` while an answer is awaited, and when all is known.
    pub fn ask(&mut self) -> Option<Prefix> {
        if self.asked.is_some() {
            return None;
        }
        self.asked = self.open.pop_front();
        self.asked.clone()
    }

    /// Takes the other end's answer. One that was not asked for (doubled, late) says nothing.
    pub fn answer(&mut self, ours: &Inventory, prefix: &Prefix, theirs: Branch) {
        if self.asked.as_ref() != Some(prefix) {
            return;
        }
        self.asked = None;
        match theirs {
            Branch::Fork(digests) if prefix.depth < DEPTH_MAX => {
                let children = prefix.children().into_iter().zip(digests);
                self.open.extend(
                    children
                        .filter(|(child, digest)| ours.digest_of(child) != *digest)
                        .map(|(child, _)| child),
                );
            }
            Branch::Fork(_) => {}
            Branch::Leaf(entries) => {
                let theirs: BTreeMap<_, _> = entries.into_iter().collect();
                let missing = ours.under(prefix).filter(|(uid, _)| !theirs.contains_key(uid));
                self.differences.extend(missing.map(|(uid, _)| (uid, None)));
                let differing = theirs.into_iter().filter(|(uid, hash)| ours.hash(*uid) != Some(*hash));
                self.differences.extend(differing.map(|(uid, hash)| (uid, Some(hash))));
            }
        }
    }

    /// The differences, once nothing is left to ask.
    pub fn finished(&self) -> Option<&BTreeMap<Uid, Option<EntryHash>>> {
        (self.asked.is_none() && self.open.is_empty()).then_some(&self.differences)
    }
}

/// What the other end holds, from our set and how theirs differs.
pub fn theirs(ours: &Inventory, differences: &BTreeMap<Uid, Option<EntryHash>>) -> Inventory {
    let mut theirs = ours.clone();
    for (uid, hash) in differences {
        match hash {
            Some(hash) => theirs.insert(*uid, *hash),
            None => theirs.remove(*uid),
        }
    }
    theirs
}

fn finish<const N: usize>(hasher: &blake3::Hasher) -> [u8; N] {
    let mut hash = [0; N];
    hasher.finalize_xof().fill(&mut hash);
    hash
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn uid() -> impl Strategy<Value = Uid> {
        // Few distinct leading bytes, so that branches get deep.
        (0u8..4, any::<[u8; 2]>()).prop_map(|(first, rest)| {
            let mut uid = [0; 16];
            uid[0] = first;
            uid[1..3].copy_from_slice(&rest);
            Uid(uid)
        })
    }

    fn set() -> impl Strategy<Value = Inventory> {
        proptest::collection::btree_map(uid(), 0u8..3, 0..120).prop_map(|entries| {
            entries
                .into_iter()
                .map(|(uid, state)| (uid, EntryHash([state; 16])))
                .collect()
        })
    }

    fn narrow(ours: &Inventory, theirs: &Inventory) -> (Inventory, usize) {
        let (mut narrowing, mut asked) = (Narrowing::default(), 0);
        while let Some(prefix) = narrowing.ask() {
            assert!(prefix.is_valid());
            narrowing.answer(ours, &prefix, theirs.branch(&prefix));
            asked += 1;
        }
        (super::theirs(ours, narrowing.finished().unwrap()), asked)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn narrowing_finds_the_other_set(ours in set(), theirs in set()) {
            let (found, _) = narrow(&ours, &theirs);
            prop_assert_eq!(&found, &theirs);
            prop_assert!(CompleteSet::prove(found, theirs.digest(), theirs.len()).is_some());
        }

        #[test]
        fn a_digest_depends_on_the_set_alone(set in set(), extra in uid()) {
            let mut other: Inventory = set.iter().collect::<Vec<_>>().into_iter().rev().collect();
            prop_assert_eq!(set.digest(), other.digest());
            let before = other.hash(extra);
            other.insert(extra, EntryHash([9; 16]));
            prop_assert_ne!(set.digest(), other.digest());
            match before {
                Some(hash) => other.insert(extra, hash),
                None => other.remove(extra),
            }
            prop_assert_eq!(set.digest(), other.digest());
        }

        #[test]
        fn an_incomplete_set_proves_nothing(set in set(), missing in any::<prop::sample::Index>()) {
            prop_assume!(!set.is_empty());
            let mut part = set.clone();
            part.remove(set.uids().nth(missing.index(set.len())).unwrap());
            prop_assert_eq!(CompleteSet::prove(part, set.digest(), set.len()), None);
        }
    }

    #[test]
    fn a_small_difference_costs_little() {
        let uid = |number: u16| Uid(*blake3::hash(&number.to_le_bytes()).as_bytes().first_chunk().unwrap());
        let ours: Inventory = (0..200).map(|number| (uid(number), EntryHash::default())).collect();
        let mut theirs = ours.clone();
        theirs.insert(uid(7), EntryHash([1; 16]));
        let (found, asked) = narrow(&ours, &theirs);
        assert_eq!(found, theirs);
        assert!(asked <= 3, "{asked}");
    }

    #[test]
    fn prefixes_that_cannot_be_are_seen() {
        let prefix = |depth, bits: &[u8]| Prefix { depth, bits: bits.to_vec() };
        assert!(prefix(1, &[0x10]).is_valid() && prefix(32, &[0xff; 16]).is_valid());
        for bad in [
            prefix(1, &[0x11]),
            prefix(1, &[]),
            prefix(33, &[0; 17]),
            prefix(2, &[0, 0]),
        ] {
            assert!(!bad.is_valid(), "{bad:?}");
        }
    }
}
