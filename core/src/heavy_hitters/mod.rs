//! Keys with the highest counts, found in bounded memory.
//!
//! ```text
//!  add(key) ──▶ SpaceSavingTable: a bounded number of keys; a new key replaces the smallest and takes its count
//!                 └── HeavyHitters: a table for this window, and the one before it
//! ```

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::time::Duration;

use serde::Serialize;

use crate::time::Timestamp;

/// A key and its count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HeavyHitter<K> {
    /// The key.
    pub key: K,
    /// Maximum count.
    pub count: u64,
    /// Maximum error of `count`.
    pub over: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct KeyCount {
    count: u64,
    over: u64,
}

/// A space-saving table: when it is full, a new key replaces the smallest one and takes its count. With room for `n`
/// keys, every key with more than an `n`th of all counts is in it, and no count is too high by more than that.
#[derive(Clone, Debug)]
pub struct SpaceSavingTable<K> {
    capacity: usize,
    counts: HashMap<K, KeyCount>,
    /// The same keys, smallest first.
    order: BTreeSet<(u64, K)>,
}

impl<K: Clone + Eq + Hash + Ord> SpaceSavingTable<K> {
    /// Creates an empty table with room for `capacity` keys, at least one.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { capacity: capacity.max(1), counts: HashMap::new(), order: BTreeSet::new() }
    }

    /// Counts a key once.
    pub fn add(&mut self, key: K) {
        self.add_many(key, 1);
    }

    /// Counts a key this many times.
    pub fn add_many(&mut self, key: K, times: u64) {
        if times == 0 {
            return;
        }
        let before = match self.counts.get(&key) {
            Some(counted) => *counted,
            None => self.make_room(),
        };
        let count = before.count.saturating_add(times);
        // The entry exists under its own count only if the key was present.
        self.order.remove(&(before.count, key.clone()));
        self.order.insert((count, key.clone()));
        self.counts.insert(key, KeyCount { count, over: before.over });
    }

    /// Initial count of a new key.
    fn make_room(&mut self) -> KeyCount {
        if self.counts.len() < self.capacity {
            return KeyCount::default();
        }
        let Some((count, smallest)) = self.order.pop_first() else { return KeyCount::default() };
        self.counts.remove(&smallest);
        KeyCount { count, over: count }
    }

    /// Number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.counts.len()
    }

    /// Whether nothing was counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }
}

/// The same over time: counts of this window and the one before it.
#[derive(Clone, Debug)]
pub struct HeavyHitters<K> {
    window: Duration,
    since: Timestamp,
    present: SpaceSavingTable<K>,
    past_since: Timestamp,
    past: SpaceSavingTable<K>,
}

impl<K: Clone + Eq + Hash + Ord> HeavyHitters<K> {
    /// Creates it empty, with room for `capacity` keys per window.
    #[must_use]
    pub fn new(capacity: usize, window: Duration, now: Timestamp) -> Self {
        let (present, past) = (SpaceSavingTable::new(capacity), SpaceSavingTable::new(capacity));
        Self { window, since: now, present, past_since: now, past }
    }

    /// Counts a key once.
    pub fn add(&mut self, key: K, now: Timestamp) {
        self.add_many(key, 1, now);
    }

    /// Counts a key this many times.
    pub fn add_many(&mut self, key: K, times: u64, now: Timestamp) {
        self.rotate(now);
        self.present.add_many(key, times);
    }

    /// The count of a key; 0 if it is not among the largest. Reads what the last call of `top` or `add` has left.
    #[must_use]
    pub fn count(&self, key: &K) -> u64 {
        let of = |table: &SpaceSavingTable<K>| table.counts.get(key).map_or(0, |counted| counted.count);
        of(&self.present).saturating_add(of(&self.past))
    }

    /// The largest keys, largest first; and since when they were counted.
    pub fn top(&mut self, limit: usize, now: Timestamp) -> (Vec<HeavyHitter<K>>, Timestamp) {
        self.rotate(now);
        let mut sums: HashMap<&K, KeyCount> = HashMap::new();
        for (key, counted) in self.present.counts.iter().chain(&self.past.counts) {
            let sum = sums.entry(key).or_default();
            sum.count = sum.count.saturating_add(counted.count);
            sum.over = sum.over.saturating_add(counted.over);
        }
        let mut sums: Vec<(&K, KeyCount)> = sums.into_iter().collect();
        sums.sort_unstable_by(|(a, one), (b, other)| other.count.cmp(&one.count).then_with(|| a.cmp(b)));
        let top = sums.into_iter().take(limit);
        let top = top.map(|(key, KeyCount { count, over })| HeavyHitter { key: key.clone(), count, over }).collect();
        (top, self.past_since)
    }

    fn rotate(&mut self, now: Timestamp) {
        let passed = now.since(self.since);
        if passed < self.window {
            return;
        }
        let present = std::mem::replace(&mut self.present, SpaceSavingTable::new(self.past.capacity));
        if passed < self.window * 2 {
            (self.past, self.past_since) = (present, self.since);
        } else {
            (self.past, self.past_since) = (SpaceSavingTable::new(present.capacity), now);
        }
        self.since = now;
    }
}
