//! How far a gateway session is confirmed. A restart resumes from there.
//!
//! ```text
//!  received:   1 2 3 4 5 6 7          confirmed = 3: a RESUME requests what comes after
//!  done:       x x x . x . x          4 and 6 are in progress; 5 and 7 wait for them
//! ```

use std::collections::BTreeMap;

/// How far a session is confirmed.
#[derive(Clone, Debug)]
pub struct SessionLedger {
    received: u64,
    /// Received events that are not done, as a bitmap: the key is the upper bits of the number, with one bit for each
    /// value of the lower six.
    open: BTreeMap<u64, u64>,
    pending: usize,
}

/// Result of receiving an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receipt {
    /// It is the next event.
    Next,
    /// It was received before and is ignored.
    Duplicate,
    /// The events from `first` to `last` are missing, and this is the one after them. Reporting the gap confirms its
    /// last number; those before it count as done.
    AfterGap {
        /// The first missing number.
        first: u64,
        /// The last missing number.
        last: u64,
    },
}

impl SessionLedger {
    /// Creates the ledger of a session that is confirmed up to this number; 0 for a new session.
    #[must_use]
    pub const fn new(confirmed: u64) -> Self {
        Self { received: confirmed, open: BTreeMap::new(), pending: 0 }
    }

    /// The highest number up to which all events are done.
    #[must_use]
    pub fn confirmed(&self) -> u64 {
        let first = self.open.first_key_value();
        first.map_or(self.received, |(upper, word)| (upper << 6 | u64::from(word.trailing_zeros())) - 1)
    }

    /// The highest number that was received.
    #[must_use]
    pub const fn received(&self) -> u64 {
        self.received
    }

    /// Number of events that were received and are not done.
    #[must_use]
    pub const fn pending(&self) -> usize {
        self.pending
    }

    /// Records the arrival of an event.
    pub fn on_received(&mut self, seq: u64) -> Receipt {
        let first = self.received + 1;
        if seq < first {
            return Receipt::Duplicate;
        }
        self.received = seq;
        self.insert(seq);
        if seq == first {
            return Receipt::Next;
        }
        self.insert(seq - 1);
        Receipt::AfterGap { first, last: seq - 1 }
    }

    /// Records that an event is done. Idempotent.
    pub fn on_done(&mut self, seq: u64) {
        if let Some(word) = self.open.get_mut(&(seq >> 6))
            && *word & bit(seq) != 0
        {
            *word ^= bit(seq);
            self.pending -= 1;
            if *word == 0 {
                self.open.remove(&(seq >> 6));
            }
        }
    }

    fn insert(&mut self, seq: u64) {
        *self.open.entry(seq >> 6).or_default() |= bit(seq);
        self.pending += 1;
    }
}

/// The bit of a number within its word.
const fn bit(seq: u64) -> u64 {
    1 << (seq & 63)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn confirmed_stops_at_the_first_pending_event() {
        let mut ledger = SessionLedger::new(10);
        for seq in 11..=14 {
            assert_eq!(ledger.on_received(seq), Receipt::Next);
        }
        ledger.on_done(12);
        ledger.on_done(13);
        assert_eq!((ledger.confirmed(), ledger.received(), ledger.pending()), (10, 14, 2));
        ledger.on_done(11);
        assert_eq!((ledger.confirmed(), ledger.pending()), (13, 1));
        assert_eq!(ledger.on_received(14), Receipt::Duplicate);
        assert_eq!(ledger.on_received(9), Receipt::Duplicate);
    }

    #[test]
    fn gap_is_exact_and_blocks_confirmation() {
        let mut ledger = SessionLedger::new(3);
        assert_eq!(ledger.on_received(900_000_000), Receipt::AfterGap { first: 4, last: 899_999_999 });
        ledger.on_done(900_000_000);
        assert!(ledger.confirmed() < 899_999_999);
        ledger.on_done(899_999_999);
        assert_eq!(ledger.confirmed(), 900_000_000);
        assert_eq!(ledger.on_received(900_000_002), Receipt::AfterGap { first: 900_000_001, last: 900_000_001 });
    }

    proptest! {
        /// The reference model uses sets.
        #[test]
        fn ledger_agrees_with_sets(
            from in 5_u64..200,
            steps in prop::collection::vec((any::<bool>(), 0_u64..12), 0..200),
        ) {
            let mut ledger = SessionLedger::new(from);
            let (mut received, mut open) = (from, BTreeSet::new());
            for (receives, number) in steps {
                if receives {
                    // Mostly the next number, sometimes one after a gap or an earlier one.
                    let seq = (received + number.saturating_sub(8)).saturating_sub(u64::from(number == 0)) + u64::from(number < 9 && number > 0);
                    let receipt = ledger.on_received(seq);
                    if seq <= received {
                        prop_assert_eq!(receipt, Receipt::Duplicate);
                    } else if seq == received + 1 {
                        prop_assert_eq!(receipt, Receipt::Next);
                        open.insert(seq);
                    } else {
                        prop_assert_eq!(receipt, Receipt::AfterGap { first: received + 1, last: seq - 1 });
                        open.extend([seq - 1, seq]);
                    }
                    received = received.max(seq);
                } else {
                    let seq = received.saturating_sub(number);
                    ledger.on_done(seq);
                    open.remove(&seq);
                }
                prop_assert_eq!(ledger.received(), received);
                prop_assert_eq!(ledger.pending(), open.len());
                let confirmed = (from..=received).rev().find(|seq| open.iter().all(|open| open > seq)).unwrap_or(from);
                prop_assert_eq!(ledger.confirmed(), confirmed);
            }
        }
    }
}
