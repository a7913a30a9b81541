//! Parked operations that stay behind no other: which of them is due first.

use std::collections::{BTreeMap, VecDeque};

use crate::time::UnixMs;

/// Parked operations by due time. Only those before a given sequence number are considered, because the operation there
/// blocks the rest.
#[derive(Clone, Debug, Default)]
pub(super) struct Parked {
    /// Considered operations that are not due, sorted. At the size of an order, a sorted queue is as fast as a tree,
    /// and much faster in the usual case: the new time is later than all others, and is appended.
    waiting: VecDeque<(UnixMs, u64)>,
    /// Considered operations that were due at the last check.
    due: BTreeMap<u64, UnixMs>,
    /// Operations at or after the blocking one.
    blocked: BTreeMap<u64, UnixMs>,
    bound: u64,
    /// Upper bound of the considered sequence numbers.
    last: u64,
}

impl Parked {
    pub(super) fn insert(&mut self, seq: u64, due: UnixMs) {
        if seq < self.bound {
            self.consider(seq, due);
        } else {
            self.blocked.insert(seq, due);
        }
    }

    /// Removes an operation that was inserted with this time.
    pub(super) fn remove(&mut self, seq: u64, due: UnixMs) {
        if seq >= self.bound {
            self.blocked.remove(&seq);
        } else if self.due.remove(&seq).is_none()
            && let Ok(index) = self.waiting.binary_search(&(due, seq))
        {
            self.waiting.remove(index);
        }
    }

    fn consider(&mut self, seq: u64, due: UnixMs) {
        self.last = self.last.max(seq);
        self.wait(seq, due);
    }

    fn wait(&mut self, seq: u64, due: UnixMs) {
        if self.waiting.back().is_none_or(|last| *last < (due, seq)) {
            self.waiting.push_back((due, seq));
        } else if let Err(index) = self.waiting.binary_search(&(due, seq)) {
            self.waiting.insert(index, (due, seq));
        }
    }

    /// Considers only operations before this sequence number.
    pub(super) fn set_bound(&mut self, seq: u64) {
        self.bound = seq;
        while let Some((other, due)) = self.blocked.first_key_value().map(|(&other, &due)| (other, due))
            && other < seq
        {
            self.blocked.remove(&other);
            self.consider(other, due);
        }
        if self.last >= seq {
            // Rare: an operation that others had passed blocks them again.
            self.blocked.append(&mut self.due.split_off(&seq));
            self.blocked
                .extend(self.waiting.iter().filter(|(_, other)| *other >= seq).map(|&(due, other)| (other, due)));
            self.waiting.retain(|(_, other)| *other < seq);
            self.last = seq.saturating_sub(1);
        }
    }

    /// The first considered operation that is due.
    pub(super) fn first_due(&mut self, now: UnixMs) -> Option<u64> {
        while let Some(&(due, seq)) = self.waiting.front().filter(|(due, _)| *due <= now) {
            self.waiting.pop_front();
            self.due.insert(seq, due);
        }
        while let Some((&seq, &due)) = self.due.first_key_value() {
            if due <= now {
                return Some(seq);
            }
            // The clock was set back.
            self.due.pop_first();
            self.wait(seq, due);
        }
        None
    }

    /// When the next one is due, if none is.
    pub(super) fn next_due(&self) -> Option<UnixMs> {
        self.waiting.front().map(|(due, _)| *due)
    }
}
