//! Recent results of calls.

use std::time::Duration;

use crate::time::Timestamp;

use super::{BreakerConfig, BreakerReason};

/// Number of slots per window.
const SLOTS: usize = 10;

/// One finished call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) failed: bool,
    pub(super) slow: bool,
    /// The part of the upstream that it went to.
    pub(super) source: u64,
}

/// From which parts results came, as far as needed: none, one, or several.
#[derive(Clone, Copy, Debug, Default)]
enum Sources {
    #[default]
    None,
    One(u64),
    Several,
}

impl Sources {
    const fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::None, sources) | (sources, Self::None) => sources,
            (Self::One(one), Self::One(two)) if one == two => Self::One(one),
            (Self::One(_) | Self::Several, Self::One(_) | Self::Several) => Self::Several,
        }
    }

    const fn at_least(self, needed: u32) -> bool {
        match self {
            Self::None => needed == 0,
            Self::One(_) => needed <= 1,
            Self::Several => needed <= 2,
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Number of the time slot.
    number: u64,
    calls: u32,
    failures: u32,
    slow: u32,
    failed_sources: Sources,
    slow_sources: Sources,
}

impl Slot {
    fn add(&mut self, sample: Sample) {
        self.calls += 1;
        if sample.failed {
            self.failures += 1;
            self.failed_sources = self.failed_sources.and(Sources::One(sample.source));
        }
        if sample.slow {
            self.slow += 1;
            self.slow_sources = self.slow_sources.and(Sources::One(sample.source));
        }
    }

    fn merge(&mut self, other: &Self) {
        self.calls += other.calls;
        self.failures += other.failures;
        self.slow += other.slow;
        self.failed_sources = self.failed_sources.and(other.failed_sources);
        self.slow_sources = self.slow_sources.and(other.slow_sources);
    }
}

/// Calls of the last window, and the number of consecutive failures at its end.
#[derive(Debug, Default)]
pub(super) struct FailureWindow {
    slots: [Slot; SLOTS],
    consecutive_failures: u32,
    failure_sources: Sources,
}

impl FailureWindow {
    pub(super) fn record(&mut self, sample: Sample, window: Duration, now: Timestamp) {
        if sample.failed {
            self.consecutive_failures += 1;
            self.failure_sources = self.failure_sources.and(Sources::One(sample.source));
        } else {
            self.consecutive_failures = 0;
            self.failure_sources = Sources::None;
        }
        let number = slot_number(window, now);
        let slot = &mut self.slots[slot_index(number)];
        if slot.number != number {
            *slot = Slot { number, ..Slot::default() };
        }
        slot.add(sample);
    }

    /// Replaces everything that `part` has counted by one failure: it has its own breaker, which is open now and
    /// explains these failures. Otherwise a single failure elsewhere would make a broken part look like a broken whole.
    pub(super) fn absorb(&mut self, part: &Self, source: u64, window: Duration, now: Timestamp) {
        for (slot, explained) in self.slots.iter_mut().zip(&part.slots) {
            if slot.number == explained.number {
                slot.calls = slot.calls.saturating_sub(explained.calls);
                slot.failures = slot.failures.saturating_sub(explained.failures);
                slot.slow = slot.slow.saturating_sub(explained.slow);
            }
        }
        self.consecutive_failures = self.consecutive_failures.saturating_sub(part.consecutive_failures);
        self.record(Sample { failed: true, slow: false, source }, window, now);
    }

    /// The reason to open the breaker, if there is one. `sources` is the number of parts from which failures must come.
    pub(super) fn reason_to_open(&self, config: &BreakerConfig, sources: u32, now: Timestamp) -> Option<BreakerReason> {
        if self.consecutive_failures >= config.failures_in_row && self.failure_sources.at_least(sources) {
            return Some(BreakerReason::FailuresInRow);
        }
        let sum = self.sum(config.window, now);
        let reaches = |count: u32, percent: u32| {
            sum.calls >= config.min_calls && u64::from(count) * 100 >= u64::from(sum.calls) * u64::from(percent)
        };
        if sum.failures > 0 && reaches(sum.failures, config.failure_percent) && sum.failed_sources.at_least(sources) {
            return Some(BreakerReason::FailureRate);
        }
        if sum.slow > 0 && reaches(sum.slow, config.slow_percent) && sum.slow_sources.at_least(sources) {
            return Some(BreakerReason::SlowRate);
        }
        None
    }

    /// Calls, failures and slow calls in the window.
    pub(super) fn counts(&self, window: Duration, now: Timestamp) -> (u32, u32, u32) {
        let sum = self.sum(window, now);
        (sum.calls, sum.failures, sum.slow)
    }

    fn sum(&self, window: Duration, now: Timestamp) -> Slot {
        let number = slot_number(window, now);
        let mut sum = Slot::default();
        for slot in self.slots.iter().filter(|slot| slot.number + SLOTS as u64 > number) {
            sum.merge(slot);
        }
        sum
    }
}

fn slot_number(window: Duration, now: Timestamp) -> u64 {
    let width = u64::try_from(window.as_micros()).unwrap_or(u64::MAX) / SLOTS as u64;
    now.micros() / width.max(1)
}

const fn slot_index(number: u64) -> usize {
    (number % SLOTS as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const OK: Sample = Sample { failed: false, slow: false, source: 1 };

    fn failed(source: u64) -> Sample {
        Sample { failed: true, slow: false, source }
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1_000)
    }

    struct Watched {
        config: BreakerConfig,
        window: FailureWindow,
    }

    impl Watched {
        fn new() -> Self {
            Self { config: BreakerConfig::default(), window: FailureWindow::default() }
        }

        fn add(&mut self, sample: Sample, now: Timestamp) -> Option<BreakerReason> {
            self.window.record(sample, self.config.window, now);
            self.window.reason_to_open(&self.config, 1, now)
        }
    }

    #[test]
    fn a_success_breaks_a_run_of_failures() {
        let mut watched = Watched::new();
        for _ in 0..4 {
            assert_eq!(watched.add(failed(1), at(0)), None);
        }
        assert_eq!(watched.add(OK, at(0)), None);
        for _ in 0..4 {
            assert_eq!(watched.add(failed(1), at(0)), None);
        }
        assert_eq!(watched.add(failed(1), at(0)), Some(BreakerReason::FailuresInRow));
    }

    #[test]
    fn half_of_twenty_calls_is_enough_and_of_nineteen_is_not() {
        let mut watched = Watched::new();
        for _ in 0..9 {
            assert_eq!(watched.add(OK, at(0)), None);
            assert_eq!(watched.add(failed(1), at(1)), None);
        }
        assert_eq!(watched.add(OK, at(2)), None);
        assert_eq!(watched.add(failed(1), at(2)), Some(BreakerReason::FailureRate));
    }

    #[test]
    fn calls_older_than_the_window_do_not_count() {
        let mut watched = Watched::new();
        for second in 0..200 {
            // One call every three seconds is never twenty in thirty seconds.
            assert_eq!(watched.add(if second % 2 == 0 { OK } else { failed(1) }, at(second * 3)), None);
        }
        assert!(watched.window.counts(watched.config.window, at(600)).0 <= 10);
        assert_eq!(watched.window.counts(watched.config.window, at(700)), (0, 0, 0));
    }

    #[test]
    fn slow_successes_open_it_at_four_fifths() {
        let slow = Sample { failed: false, slow: true, source: 1 };
        let mut watched = Watched::new();
        for _ in 0..4 {
            assert_eq!(watched.add(OK, at(0)), None);
        }
        for _ in 0..15 {
            assert_eq!(watched.add(slow, at(0)), None);
        }
        assert_eq!(watched.add(slow, at(0)), Some(BreakerReason::SlowRate));
    }

    #[test]
    fn failures_of_one_part_do_not_open_the_whole() {
        let mut watched = Watched::new();
        for _ in 0..50 {
            watched.add(failed(1), at(0));
            assert_eq!(watched.window.reason_to_open(&watched.config, 2, at(0)), None);
        }
        watched.add(failed(2), at(0));
        assert_eq!(watched.window.reason_to_open(&watched.config, 2, at(0)), Some(BreakerReason::FailuresInRow));
    }

    #[test]
    fn explained_failures_count_as_one() {
        let mut watched = Watched::new();
        let mut part = FailureWindow::default();
        for _ in 0..50 {
            watched.add(failed(1), at(0));
            part.record(failed(1), watched.config.window, at(0));
        }
        watched.window.absorb(&part, 1, watched.config.window, at(0));
        assert_eq!(watched.window.counts(watched.config.window, at(0)), (1, 1, 0));
        for _ in 0..3 {
            watched.add(failed(2), at(0));
            assert_eq!(watched.window.reason_to_open(&watched.config, 2, at(0)), None);
        }
        watched.add(failed(2), at(0));
        assert_eq!(watched.window.reason_to_open(&watched.config, 2, at(0)), Some(BreakerReason::FailuresInRow));
    }
}
