//! What a node holds, by uid: a sorted list, which costs what is in it.
//!
//! A cloud has one for each of its nodes, most of which hold a few objects; a B-tree's node has room for eleven however
//! few there are. An object that is new to the node moves those behind it, which is little beside encoding it.

use crate::digest::EntryHash;
use crate::object::{Revision, Uid};

/// One object that the node holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Holding {
    /// Its number in the frames of this session.
    pub(super) handle: u32,
    pub(super) revision: Revision,
    pub(super) hash: EntryHash,
}

/// Objects by uid.
#[derive(Debug, Default)]
pub(super) struct Holdings(Vec<(Uid, Holding)>);

impl Holdings {
    pub(super) fn get(&self, uid: Uid) -> Option<&Holding> {
        self.find(uid).ok().map(|at| &self.0[at].1)
    }

    /// Adds an object, or replaces what is known of it.
    pub(super) fn insert(&mut self, uid: Uid, holding: Holding) {
        match self.find(uid) {
            Ok(at) => self.0[at].1 = holding,
            Err(at) => self.0.insert(at, (uid, holding)),
        }
    }

    pub(super) fn remove(&mut self, uid: Uid) {
        if let Ok(at) = self.find(uid) {
            self.0.remove(at);
        }
    }

    /// In the order of uids.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Uid, &Holding)> {
        self.0.iter().map(|(uid, holding)| (*uid, holding))
    }

    fn find(&self, uid: Uid) -> Result<usize, usize> {
        self.0.binary_search_by_key(&uid, |(uid, _)| *uid)
    }
}

impl Holdings {
    /// What is known of each object, which are numbered in the order of their uids.
    pub(super) fn numbered(held: impl IntoIterator<Item = (Uid, Revision, EntryHash)>) -> Self {
        let mut held: Vec<_> = held.into_iter().collect();
        held.sort_unstable_by_key(|(uid, ..)| *uid);
        held.dedup_by_key(|(uid, ..)| *uid);
        let numbered = held.into_iter().zip(0..);
        Self(
            numbered
                .map(|((uid, revision, hash), handle)| (uid, Holding { handle, revision, hash }))
                .collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::any;
    use proptest::proptest;

    use super::*;

    fn uid(of: u8) -> Uid {
        Uid([of; 16])
    }

    fn holding(handle: u32) -> Holding {
        Holding {
            handle,
            revision: Revision(u64::from(handle) + 1),
            hash: EntryHash([7; 16]),
        }
    }

    proptest! {
        /// It is a map: whatever is done to it.
        #[test]
        fn it_is_what_a_map_would_be(steps in vec((any::<bool>(), 0u8..20, any::<u32>()), 0..200)) {
            let (mut holdings, mut map) = (Holdings::default(), BTreeMap::new());
            for (put, of, handle) in steps {
                let uid = uid(of);
                if put {
                    holdings.insert(uid, holding(handle));
                    map.insert(uid, holding(handle));
                } else {
                    holdings.remove(uid);
                    map.remove(&uid);
                }
                assert_eq!(holdings.get(uid), map.get(&uid));
            }
            assert!(holdings.iter().eq(map.iter().map(|(uid, holding)| (*uid, holding))));
        }
    }

    #[test]
    fn numbers_follow_the_uids() {
        let hash = EntryHash([7; 16]);
        let holdings = Holdings::numbered([3, 1, 2].map(|of| (uid(of), Revision(u64::from(of)), hash)));
        let found: Vec<_> = holdings
            .iter()
            .map(|(uid, held)| (uid, held.handle, held.revision))
            .collect();
        let expected = [(1, 0), (2, 1), (3, 2)].map(|(of, handle)| (uid(of), handle, Revision(u64::from(of))));
        assert_eq!(found, expected);
    }
}
