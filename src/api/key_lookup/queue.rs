//! The order in which keys are looked up.
//!
//! ```text
//!  ids that exist ──▶ first ─────────────────────────────────┐
//!  other ids ───────▶ one queue per address, in turns ───────┴─▶ take(count)
//! ```
//!
//! A caller that makes up ids competes with its own address only, and never with keys that exist.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
};

/// Limits for the number of waiting ids.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LookupQueueLimits {
    /// Ids of one address.
    pub(crate) per_address: usize,
    /// Ids of all addresses.
    pub(crate) total: usize,
}

/// The queue has no room for an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LookupQueueFull;

/// An id that waits, with its address unless the id is known to exist.
pub(crate) type QueuedId<A, K> = (Option<A>, K);

#[derive(Debug)]
pub(crate) struct LookupQueue<A, K> {
    limits: LookupQueueLimits,
    /// Bounded by the number of ids that exist.
    existing: VecDeque<K>,
    others: HashMap<A, VecDeque<K>>,
    /// The addresses in `others`, the next one first.
    turns: VecDeque<A>,
    /// Number of ids in `others`.
    count: usize,
}

impl<A: Copy + Eq + Hash, K: Copy> LookupQueue<A, K> {
    pub(crate) fn new(limits: LookupQueueLimits) -> Self {
        let (existing, others, turns) = (VecDeque::new(), HashMap::new(), VecDeque::new());
        Self { limits, existing, others, turns, count: 0 }
    }

    /// Adds an id that exists.
    pub(crate) fn push_existing(&mut self, id: K) {
        self.existing.push_back(id);
    }

    /// Adds another id. Returns the id that was evicted for it: the last one of the address with the most ids.
    pub(crate) fn push(&mut self, address: A, id: K) -> Result<Option<(A, K)>, LookupQueueFull> {
        let address_count = self.others.get(&address).map_or(0, VecDeque::len);
        if address_count >= self.limits.per_address {
            return Err(LookupQueueFull);
        }
        let mut evicted = None;
        if self.count >= self.limits.total {
            let largest = self.others.iter().max_by_key(|(_, ids)| ids.len());
            // Otherwise two addresses would evict each other in turns.
            let (&largest, _) = largest.filter(|(_, ids)| ids.len() > address_count + 1).ok_or(LookupQueueFull)?;
            evicted = self.others.get_mut(&largest).and_then(VecDeque::pop_back).map(|id| (largest, id));
            self.count -= usize::from(evicted.is_some());
        }
        let ids = self.others.entry(address).or_default();
        if ids.is_empty() {
            self.turns.push_back(address);
        }
        ids.push_back(id);
        self.count += 1;
        Ok(evicted)
    }

    /// Removes the next ids. A quarter of them is reserved for ids that are not known to exist, if there are so many.
    pub(crate) fn take(&mut self, count: usize) -> Vec<QueuedId<A, K>> {
        let reserved = self.count.min(count.div_ceil(4));
        let first = self.existing.len().min(count - reserved);
        let mut taken: Vec<_> = self.existing.drain(..first).map(|id| (None, id)).collect();
        while taken.len() < count {
            let Some(address) = self.turns.pop_front() else { break };
            let Some(ids) = self.others.get_mut(&address) else { continue };
            if let Some(id) = ids.pop_front() {
                self.count -= 1;
                taken.push((Some(address), id));
            }
            if ids.is_empty() {
                self.others.remove(&address);
            } else {
                self.turns.push_back(address);
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const LIMITS: LookupQueueLimits = LookupQueueLimits { per_address: 4, total: 10 };

    #[test]
    fn existing_ids_are_taken_first_but_do_not_starve_others() {
        let mut queue = LookupQueue::new(LIMITS);
        for id in 0..20 {
            queue.push_existing(id);
        }
        for id in 100..103 {
            queue.push('a', id).unwrap();
        }
        let taken = queue.take(8);
        assert_eq!(taken.iter().filter(|(address, _)| address.is_none()).count(), 6);
        assert_eq!(taken[6..], [(Some('a'), 100), (Some('a'), 101)]);
        assert_eq!(queue.take(100).len(), 15);
        assert_eq!(queue.take(100), []);
    }

    #[test]
    fn addresses_take_turns() {
        let mut queue = LookupQueue::new(LIMITS);
        for id in 0..4 {
            queue.push('a', id).unwrap();
        }
        assert_eq!(queue.push('a', 4), Err(LookupQueueFull));
        queue.push('b', 10).unwrap();
        let order: Vec<_> = queue.take(5).into_iter().map(|(_, id)| id).collect();
        assert_eq!(order, [0, 10, 1, 2, 3]);
    }

    #[test]
    fn an_address_makes_room_for_a_smaller_one() {
        let mut queue = LookupQueue::new(LIMITS);
        for id in 0..4 {
            queue.push('a', id).unwrap();
            queue.push('b', 10 + id).unwrap();
        }
        queue.push('c', 20).unwrap();
        queue.push('c', 21).unwrap();
        let (address, id) = queue.push('d', 30).unwrap().unwrap();
        assert!((address, id) == ('a', 3) || (address, id) == ('b', 13));
        assert_eq!(queue.push('c', 22), Ok(Some(if address == 'a' { ('b', 13) } else { ('a', 3) })));
        assert_eq!(queue.push('c', 23), Err(LookupQueueFull), "three each is fair");
        assert_eq!(queue.take(100).len(), LIMITS.total);
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_the_bounds_hold(steps in prop::collection::vec((0_u8..6, 0_u8..8), 1..200)) {
            let mut queue = LookupQueue::new(LIMITS);
            let mut model: BTreeMap<u8, Vec<usize>> = BTreeMap::new();
            for (id, (address, step)) in steps.into_iter().enumerate() {
                if step < 6 {
                    if let Ok(evicted) = queue.push(address, id) {
                        model.entry(address).or_default().push(id);
                        if let Some((address, id)) = evicted {
                            prop_assert_eq!(model.get_mut(&address).unwrap().pop(), Some(id));
                        }
                    } else {
                        let total: usize = model.values().map(Vec::len).sum();
                        let address_count = model.get(&address).map_or(0, Vec::len);
                        prop_assert!(address_count == LIMITS.per_address || total == LIMITS.total);
                    }
                } else {
                    for (address, id) in queue.take(usize::from(step)) {
                        prop_assert_eq!(model.get_mut(&address.unwrap()).unwrap().remove(0), id);
                    }
                }
                let total: usize = model.values().map(Vec::len).sum();
                prop_assert_eq!(queue.count, total);
                prop_assert!(total <= LIMITS.total && model.values().all(|ids| ids.len() <= LIMITS.per_address));
            }
            let left = queue.take(usize::from(u8::MAX));
            prop_assert_eq!(left.len(), model.values().map(Vec::len).sum::<usize>());
            prop_assert!(queue.others.is_empty() && queue.turns.is_empty());
        }
    }
}
