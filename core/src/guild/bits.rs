//! Objects as bits, for tests: two operations conflict if they share one.

use std::collections::BTreeSet;

use super::conflict::{ConflictIndex, Conflicts};
use super::reference::ConflictsWith;

#[derive(Clone, Copy, Debug)]
pub(super) struct Bits(pub(super) u8);

impl ConflictsWith for Bits {
    fn conflicts_with(&self, other: &Self) -> bool {
        self.0 & other.0 != 0
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct BitIndex([BTreeSet<u64>; 8]);

impl Conflicts for Bits {
    type Index = BitIndex;
}

impl ConflictIndex<Bits> for BitIndex {
    fn insert(&mut self, seq: u64, objects: &Bits) {
        self.each(*objects, |places| {
            places.insert(seq);
        });
    }

    fn remove(&mut self, seq: u64, objects: &Bits) {
        self.each(*objects, |places| {
            places.remove(&seq);
        });
    }

    fn latest_before(&self, seq: u64, objects: &Bits) -> Option<u64> {
        let of = (0..8).filter(|bit| objects.0 & (1 << bit) != 0);
        of.filter_map(|bit| self.0[bit].range(..seq).next_back().copied()).max()
    }
}

impl BitIndex {
    fn each(&mut self, objects: Bits, change: impl Fn(&mut BTreeSet<u64>)) {
        (0..8).filter(|bit| objects.0 & (1 << bit) != 0).for_each(|bit| change(&mut self.0[bit]));
    }
}
