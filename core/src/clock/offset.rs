//! Offset between a reference clock and the monotonic clock of this process.

use std::time::Duration;

use crate::time::{Timestamp, UnixMs};

/// Maximum drift between two good clocks, in parts per million. NTP corrects at most this fast.
const DRIFT_PPM: u64 = 500;
/// Difference between servers behind one address.
const GRACE_MS: i64 = 250;
/// Number of consecutive readings that agree with each other, and not with the estimate, that replace it.
const MIN_DISSENTING: u32 = 3;

/// An interval that contains the reading of a reference clock minus the monotonic time, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offset {
    /// Lower bound.
    pub low: i64,
    /// Upper bound.
    pub high: i64,
}

impl Offset {
    /// The reference showed `reading` at some moment between `sent` and `received`. A clock that shows whole seconds
    /// has a resolution of one second: the true value may be almost one second later.
    #[must_use]
    pub fn measured(reading: UnixMs, resolution: Duration, sent: Timestamp, received: Timestamp) -> Self {
        let resolution = i64::try_from(resolution.as_millis()).unwrap_or(i64::MAX);
        let reading = signed(reading.millis());
        let low = reading.saturating_sub(ms(received)).saturating_sub(1);
        let high = reading.saturating_add(resolution).saturating_sub(ms(sent)).saturating_add(1);
        Self { low, high: high.max(low) }
    }

    /// The midpoint.
    #[must_use]
    pub const fn mid(self) -> i64 {
        self.low.midpoint(self.high)
    }

    /// How far a value is outside: negative if it is below, 0 if it is inside.
    #[must_use]
    pub const fn distance(self, value: i64) -> i64 {
        if value < self.low {
            value - self.low
        } else if value > self.high {
            value - self.high
        } else {
            0
        }
    }

    fn widened(self, by: i64) -> Self {
        Self { low: self.low.saturating_sub(by), high: self.high.saturating_add(by) }
    }

    fn intersection(self, other: Self) -> Option<Self> {
        let (low, high) = (self.low.max(other.low), self.high.min(other.high));
        (low <= high).then_some(Self { low, high })
    }
}

/// Narrows an offset down with many readings. A single outlier changes nothing.
#[derive(Clone, Debug, Default)]
pub struct OffsetEstimator {
    agreed: Option<Estimate>,
    /// Consecutive readings that contradict the estimate and agree with each other.
    dissent: Option<Estimate>,
}

#[derive(Clone, Copy, Debug)]
struct Estimate {
    offset: Offset,
    at: Timestamp,
    readings: u32,
}

impl Estimate {
    const fn first(offset: Offset, at: Timestamp) -> Self {
        Self { offset, at, readings: 1 }
    }

    /// The estimate at `now`: the clocks may have drifted apart since.
    fn offset_at(self, now: Timestamp) -> Offset {
        let drift = now.since(self.at).as_micros() * u128::from(DRIFT_PPM) / 1_000_000 / 1_000;
        self.offset.widened(i64::try_from(drift).unwrap_or(i64::MAX))
    }

    fn intersect(self, offset: Offset, at: Timestamp) -> Option<Self> {
        let both = self.offset_at(at).intersection(offset)?;
        Some(Self { offset: both, at: at.max(self.at), readings: self.readings.saturating_add(1) })
    }
}

impl OffsetEstimator {
    /// Adds a reading.
    pub fn observe(&mut self, offset: Offset, at: Timestamp) {
        let offset = offset.widened(GRACE_MS);
        let Some(agreed) = self.agreed else {
            self.agreed = Some(Estimate::first(offset, at));
            return;
        };
        if let Some(both) = agreed.intersect(offset, at) {
            (self.agreed, self.dissent) = (Some(both), None);
            return;
        }
        let dissent = self.dissent.and_then(|dissent| dissent.intersect(offset, at));
        let dissent = dissent.unwrap_or_else(|| Estimate::first(offset, at));
        if dissent.readings >= MIN_DISSENTING {
            (self.agreed, self.dissent) = (Some(dissent), None);
        } else {
            self.dissent = Some(dissent);
        }
    }

    /// Another clock agrees with the estimate: this counts as a second reading.
    pub fn confirm(&mut self) {
        if let Some(agreed) = &mut self.agreed {
            agreed.readings = agreed.readings.max(2);
        }
    }

    /// The current estimate.
    #[must_use]
    pub fn estimate(&self, now: Timestamp) -> Option<Offset> {
        Some(self.agreed?.offset_at(now))
    }

    /// The current estimate, if at least two readings agree on it, or one reading and another clock.
    #[must_use]
    pub fn confirmed(&self, now: Timestamp) -> Option<Offset> {
        self.agreed.filter(|agreed| agreed.readings > 1).map(|agreed| agreed.offset_at(now))
    }
}

/// A monotonic time in milliseconds, rounded down.
pub(super) fn ms(at: Timestamp) -> i64 {
    signed(at.micros() / 1_000)
}

pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A response of a clock that is `offset` ahead of the monotonic one, in whole seconds like a `Date` header.
    fn reading(offset: u64, sent: u64, there: u64, received: u64) -> (Offset, Timestamp) {
        let displayed = (there + offset) / 1_000 * 1_000;
        let (sent, received) = (Timestamp::from_millis(sent), Timestamp::from_millis(received));
        (Offset::measured(UnixMs::new(displayed), SECOND, sent, received), received)
    }

    proptest! {
        #[test]
        fn true_offset_is_always_inside_the_estimate(
            offset in 1_600_000_000_000_u64..1_800_000_000_000,
            answers in proptest::collection::vec((0_u64..600_000, 0_u64..3_000, 0_u64..3_000), 1..60),
        ) {
            let mut estimator = OffsetEstimator::default();
            let mut at = 5_000;
            let mut width = i64::MAX;
            for (pause, there, back) in answers {
                at += pause;
                let (measured, received) = reading(offset, at, at + there, at + there + back);
                at += there + back;
                estimator.observe(measured, received);
                let estimate = estimator.estimate(received).unwrap();
                prop_assert_eq!(estimate.distance(signed(offset)), 0, "{:?} does not contain {}", estimate, offset);
                prop_assert!(estimate.high - estimate.low <= measured.high - measured.low + 2 * GRACE_MS);
                width = width.min(estimate.high - estimate.low);
            }
            prop_assert!(width >= 0);
        }

        #[test]
        fn single_outlier_changes_nothing(
            odd in prop_oneof![-1_000_000_000_i64..-20_000, 20_000_i64..1_000_000_000],
            good in 2_usize..20,
        ) {
            let offset = 1_700_000_000_000_u64;
            let mut estimator = OffsetEstimator::default();
            let mut at = 1_000;
            for _ in 0..good {
                let (measured, received) = reading(offset, at, at + 40, at + 90);
                estimator.observe(measured, received);
                let (stray, _) = reading(offset.saturating_add_signed(odd), at, at + 40, at + 90);
                if estimator.confirmed(received).is_some() {
                    estimator.observe(stray, received);
                }
                at += 5_000;
            }
            let estimate = estimator.confirmed(Timestamp::from_millis(at)).unwrap();
            prop_assert_eq!(estimate.distance(signed(offset)), 0);
        }
    }

    #[test]
    fn changed_clock_is_followed_after_three_responses() {
        let mut estimator = OffsetEstimator::default();
        let observe = |estimator: &mut OffsetEstimator, offset: u64, at: u64| {
            let (measured, received) = reading(offset, at, at + 10, at + 20);
            estimator.observe(measured, received);
            estimator.estimate(received).unwrap()
        };
        for at in [1_000, 2_000, 3_000] {
            observe(&mut estimator, 1_700_000_000_000, at);
        }
        let later = 1_700_003_600_000;
        assert_ne!(observe(&mut estimator, later, 4_000).distance(signed(later)), 0);
        assert_ne!(observe(&mut estimator, later, 5_000).distance(signed(later)), 0);
        assert_eq!(observe(&mut estimator, later, 6_000).distance(signed(later)), 0);
    }

    #[test]
    fn an_old_estimate_becomes_less_certain() {
        let mut estimator = OffsetEstimator::default();
        let (measured, received) = reading(1_700_000_000_000, 1_000, 1_010, 1_020);
        estimator.observe(measured, received);
        assert_eq!(estimator.confirmed(received), None, "a single response may be an outlier");
        let fresh = estimator.estimate(received).unwrap();
        let old = estimator.estimate(received + Duration::from_secs(3_600)).unwrap();
        assert_eq!((old.high - old.low) - (fresh.high - fresh.low), 3_600);
    }
}
