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
    pub verdict: RateDecision,
    /// Whether the caller has its own bucket. If there are too many callers, the last ones share one.
    pub own: bool,
}

/// The buckets of a limited number of callers.
#[derive(Clone, Debug)]
pub struct Meter<K> {
    rate: Rate,
    most: usize,
    /// When the bucket of each caller is full again.
    full_at: HashMap<K, Timestamp>,
    /// When the bucket is full again that callers without their own bucket share.
    others: Timestamp,
    swept_at: Timestamp,
}

impl<K: Eq + Hash> Meter<K> {
    /// How often callers with a full bucket are removed.
    const SWEEP_EVERY: Duration = Duration::from_secs(60);
    /// The same while the meter is full. A scan for every request would be work that callers can cause.
    const SWEEP_FULL_EVERY: Duration = Duration::from_secs(1);

    /// Creates a meter with this rate, for at most `max` callers.
    #[must_use]
    pub fn new(rate: Rate, most: usize) -> Self {
        Self { rate, most, full_at: HashMap::new(), others: Timestamp::ZERO, swept_at: Timestamp::ZERO }
    }

    /// The rate of the buckets.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// Number of callers with their own bucket.
    #[must_use]
    pub fn remembered(&self) -> usize {
        self.full_at.len()
    }

    /// Takes `cost` tokens for a request that may wait for `max_wait`; see [`Rate`].
    pub fn on_request(&mut self, who: K, cost: u32, max_wait: Duration, now: Timestamp) -> MeterDecision {
        let own = self.has_room_for(&who, now);
        let verdict = self.rate.verdict(self.debt(&who, now), cost, max_wait);
        match verdict.outcome {
            RateOutcome::Taken { .. } if own => drop(self.full_at.insert(who, now + verdict.full_in)),
            RateOutcome::Taken { .. } => self.others = now + verdict.full_in,
            RateOutcome::Refused { .. } => {}
        }
        MeterDecision { verdict, own }
    }

    /// Applies the state that several processes share: the bucket of this caller is full after `full_in`.
    pub fn on_heard(&mut self, who: K, full_in: Duration, now: Timestamp) {
        if self.has_room_for(&who, now) {
            self.full_at.insert(who, now + full_in);
        }
    }

    /// The decision on a request, without taking tokens.
    pub fn look<Q>(&self, who: &Q, cost: u32, max_wait: Duration, now: Timestamp) -> RateDecision
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.rate.verdict(self.debt(who, now), cost, max_wait)
    }

    /// Time until the bucket of this caller is full.
    fn debt<Q>(&self, who: &Q, now: Timestamp) -> Duration
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        match self.full_at.get(who) {
            Some(full_at) => full_at.since(now),
            None if self.full_at.len() < self.most => Duration::ZERO,
            None => self.others.since(now),
        }
    }

    /// Whether a caller may have its own bucket. Removes callers with a full bucket from time to time.
    fn has_room_for(&mut self, who: &K, now: Timestamp) -> bool {
        let is_full = self.full_at.len() >= self.most;
        let every = if is_full { Self::SWEEP_FULL_EVERY } else { Self::SWEEP_EVERY };
        if now.since(self.swept_at) >= every {
            self.full_at.retain(|_, full_at| *full_at > now);
            self.swept_at = now;
        }
        self.full_at.contains_key(who) || self.full_at.len() < self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate::new(1, 2).unwrap();

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1_000)
    }

    fn is_taken(judged: MeterDecision) -> bool {
        judged.verdict.outcome == RateOutcome::Taken { delay: Duration::ZERO }
    }

    #[test]
    fn each_caller_has_a_bucket_of_its_own() {
        let mut meter = Meter::new(RATE, 10);
        for who in ["a", "b"] {
            assert!(is_taken(meter.on_request(who, 1, Duration::ZERO, at(1))));
            assert!(is_taken(meter.on_request(who, 1, Duration::ZERO, at(1))));
            assert!(!is_taken(meter.on_request(who, 1, Duration::ZERO, at(1))));
        }
        assert!(is_taken(meter.on_request("a", 1, Duration::ZERO, at(2))));
    }

    #[test]
    fn past_the_bound_callers_share_one_bucket_and_those_who_were_there_keep_theirs() {
        let mut meter = Meter::new(RATE, 2);
        for who in ["a", "b"] {
            assert!(meter.on_request(who, 1, Duration::ZERO, at(1)).own);
        }
        let third = meter.on_request("c", 1, Duration::ZERO, at(1));
        assert!(is_taken(third) && !third.own);
        assert!(is_taken(meter.on_request("d", 1, Duration::ZERO, at(1))));
        // The shared bucket is empty for every caller.
        let late = meter.on_request("e", 1, Duration::ZERO, at(1));
        assert!(!is_taken(late) && !late.own);
        assert!(is_taken(meter.on_request("a", 1, Duration::ZERO, at(1))));
        assert_eq!(meter.remembered(), 2);
    }

    #[test]
    fn who_has_all_tokens_again_makes_room() {
        let mut meter = Meter::new(RATE, 2);
        for who in ["a", "b"] {
            assert!(meter.on_request(who, 1, Duration::ZERO, at(1)).own);
        }
        assert!(meter.on_request("c", 1, Duration::ZERO, at(3)).own);
        assert_eq!(meter.remembered(), 1);
    }

    #[test]
    fn what_others_count_is_taken_over() {
        let mut meter = Meter::new(RATE, 10);
        meter.on_heard("a", Duration::from_secs(2), at(1));
        assert_eq!(
            meter.look("a", 1, Duration::ZERO, at(1)).outcome,
            RateOutcome::Refused { retry_after: Duration::from_secs(1) }
        );
        assert!(is_taken(meter.on_request("a", 1, Duration::ZERO, at(2))));
    }
}
