//! The buckets of all callers of one kind.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use super::rate::{Rate, RateDecision, RateOutcome};
use crate::time::Timestamp;

/// Decision of a meter on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct MeterDecision {
    /// The decision.
    pub decision: RateDecision,
    /// Whether the caller has its own bucket. If there are too many callers, the last ones share one.
    pub has_own_bucket: bool,
}

/// The buckets of a limited number of callers.
#[derive(Clone, Debug)]
pub struct Meter<K> {
    rate: Rate,
    max: usize,
    /// When the bucket of each caller is full again.
    full_at: HashMap<K, Timestamp>,
    /// When the bucket is full again that callers without their own bucket share.
    shared_full_at: Timestamp,
    swept_at: Timestamp,
}

impl<K: Eq + Hash> Meter<K> {
    /// How often callers with a full bucket are removed.
    const SWEEP_EVERY: Duration = Duration::from_secs(60);
    /// The same while the meter is full. A scan for every request would be work that callers can cause.
    const SWEEP_FULL_EVERY: Duration = Duration::from_secs(1);

    /// Creates a meter with this rate, for at most `max` callers.
    #[must_use]
    pub fn new(rate: Rate, max: usize) -> Self {
        Self { rate, max, full_at: HashMap::new(), shared_full_at: Timestamp::ZERO, swept_at: Timestamp::ZERO }
    }

    /// The rate of the buckets.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// Number of callers with their own bucket.
    #[must_use]
    pub fn caller_count(&self) -> usize {
        self.full_at.len()
    }

    /// Takes `cost` tokens for a request that may wait for `max_wait`; see [`Rate`].
    pub fn on_request(&mut self, caller: K, cost: u32, max_wait: Duration, now: Timestamp) -> MeterDecision {
        let has_own_bucket = self.has_room_for(&caller, now);
        let decision = self.rate.decide(self.debt(&caller, now), cost, max_wait);
        match decision.outcome {
            RateOutcome::Taken { .. } if has_own_bucket => drop(self.full_at.insert(caller, now + decision.full_in)),
            RateOutcome::Taken { .. } => self.shared_full_at = now + decision.full_in,
            RateOutcome::Refused { .. } => {}
        }
        MeterDecision { decision, has_own_bucket }
    }

    /// Applies the state that several processes share: the bucket of this caller is full after `full_in`.
    pub fn on_shared_state(&mut self, caller: K, full_in: Duration, now: Timestamp) {
        if self.has_room_for(&caller, now) {
            self.full_at.insert(caller, now + full_in);
        }
    }

    /// The decision on a request, without taking tokens.
    pub fn peek<Q>(&self, caller: &Q, cost: u32, max_wait: Duration, now: Timestamp) -> RateDecision
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.rate.decide(self.debt(caller, now), cost, max_wait)
    }

    /// Time until the bucket of this caller is full.
    fn debt<Q>(&self, caller: &Q, now: Timestamp) -> Duration
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        match self.full_at.get(caller) {
            Some(full_at) => full_at.since(now),
            None if self.full_at.len() < self.max => Duration::ZERO,
            None => self.shared_full_at.since(now),
        }
    }

    /// Whether a caller may have its own bucket. Removes callers with a full bucket from time to time.
    fn has_room_for(&mut self, caller: &K, now: Timestamp) -> bool {
        let is_full = self.full_at.len() >= self.max;
        let every = if is_full { Self::SWEEP_FULL_EVERY } else { Self::SWEEP_EVERY };
        if now.since(self.swept_at) >= every {
            self.full_at.retain(|_, full_at| *full_at > now);
            self.swept_at = now;
        }
        self.full_at.contains_key(caller) || self.full_at.len() < self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate::new(1, 2).unwrap();

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1_000)
    }

    fn is_taken(decision: MeterDecision) -> bool {
        decision.decision.outcome == RateOutcome::Taken { delay: Duration::ZERO }
    }

    #[test]
    fn each_caller_has_a_bucket_of_its_own() {
        let mut meter = Meter::new(RATE, 10);
        for caller in ["a", "b"] {
            assert!(is_taken(meter.on_request(caller, 1, Duration::ZERO, at(1))));
            assert!(is_taken(meter.on_request(caller, 1, Duration::ZERO, at(1))));
            assert!(!is_taken(meter.on_request(caller, 1, Duration::ZERO, at(1))));
        }
        assert!(is_taken(meter.on_request("a", 1, Duration::ZERO, at(2))));
    }

    #[test]
    fn excess_callers_share_one_bucket_and_earlier_ones_keep_theirs() {
        let mut meter = Meter::new(RATE, 2);
        for caller in ["a", "b"] {
            assert!(meter.on_request(caller, 1, Duration::ZERO, at(1)).has_own_bucket);
        }
        let third = meter.on_request("c", 1, Duration::ZERO, at(1));
        assert!(is_taken(third) && !third.has_own_bucket);
        assert!(is_taken(meter.on_request("d", 1, Duration::ZERO, at(1))));
        // The shared bucket is empty for every caller.
        let late = meter.on_request("e", 1, Duration::ZERO, at(1));
        assert!(!is_taken(late) && !late.has_own_bucket);
        assert!(is_taken(meter.on_request("a", 1, Duration::ZERO, at(1))));
        assert_eq!(meter.caller_count(), 2);
    }

    #[test]
    fn caller_with_a_full_bucket_is_removed() {
        let mut meter = Meter::new(RATE, 2);
        for caller in ["a", "b"] {
            assert!(meter.on_request(caller, 1, Duration::ZERO, at(1)).has_own_bucket);
        }
        assert!(meter.on_request("c", 1, Duration::ZERO, at(3)).has_own_bucket);
        assert_eq!(meter.caller_count(), 1);
    }

    #[test]
    fn shared_state_is_applied() {
        let mut meter = Meter::new(RATE, 10);
        meter.on_shared_state("a", Duration::from_secs(2), at(1));
        assert_eq!(
            meter.peek("a", 1, Duration::ZERO, at(1)).outcome,
            RateOutcome::Refused { retry_after: Duration::from_secs(1) }
        );
        assert!(is_taken(meter.on_request("a", 1, Duration::ZERO, at(2))));
    }
}
