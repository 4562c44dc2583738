//! The ids that were stored lately. Pure.

use std::collections::{HashSet, VecDeque};
use std::fmt;

/// FNV-1a of 128 bits of an id (<https://datatracker.ietf.org/doc/html/draft-eastlake-fnv>). It is on disk and in the
/// names of Events, so it never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct IdHash(u128);

const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

impl IdHash {
    pub(crate) fn of(id: &str) -> Self {
        Self(
            id.bytes()
                .fold(BASIS, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME)),
        )
    }
}

impl fmt::LowerHex for IdHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:032x}", self.0)
    }
}

/// The ids stored last, up to a number of them.
#[derive(Debug)]
pub(crate) struct SeenIds {
    most: usize,
    order: VecDeque<IdHash>,
    known: HashSet<IdHash>,
}

impl SeenIds {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most: most.max(1),
            order: VecDeque::new(),
            known: HashSet::new(),
        }
    }

    /// Remembers an id. Returns whether it was new.
    pub(crate) fn insert(&mut self, id: IdHash) -> bool {
        if !self.known.insert(id) {
            return false;
        }
        if self.order.len() == self.most
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        self.order.push_back(id);
        true
    }

    /// The hashes as on disk, oldest first.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        self.order.iter().flat_map(|id| id.0.to_le_bytes()).collect()
    }

    pub(super) fn insert_bytes(&mut self, bytes: &[u8]) {
        let (hashes, _) = bytes.as_chunks::<16>();
        for hash in hashes {
            self.insert(IdHash(u128::from_le_bytes(*hash)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_known_until_as_many_others_came() {
        let mut seen = SeenIds::new(2);
        let [a, b, c] = ["a", "b", "c"].map(IdHash::of);
        assert!(seen.insert(a) && seen.insert(b));
        assert!(!seen.insert(a));
        assert!(seen.insert(c));
        assert!(!seen.insert(b) && seen.insert(a), "the oldest is forgotten");
    }

    #[test]
    fn what_was_seen_comes_back_from_disk() {
        let mut seen = SeenIds::new(9);
        assert!(seen.insert(IdHash::of("a")) && seen.insert(IdHash::of("b")));
        let mut back = SeenIds::new(9);
        back.insert_bytes(&seen.to_bytes());
        assert!(!back.insert(IdHash::of("a")) && !back.insert(IdHash::of("b")));
        assert!(back.insert(IdHash::of("c")));
    }

    #[test]
    fn the_hash_is_the_published_one() {
        // The test vector of the empty string and of "a" in the draft's reference code.
        assert_eq!(IdHash::of("").0, 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        assert_eq!(IdHash::of("a").0, 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
    }
}
