//! Summaries of repeated failures, for the log: an outage must not fill it.

use std::time::Duration;

use crate::time::Timestamp;

/// Minimum time between two log lines about failures of the same kind.
pub const SUMMARY_INTERVAL: Duration = Duration::from_secs(30);

/// Failures of one kind that no success interrupts.
///
/// A line is due for the first failure, and then for the first failure after each [`SUMMARY_INTERVAL`]. It includes the
/// failures since the line before it. The success that ends a streak is due a line if the streak had one. What fails and
/// succeeds in turn has at most one pair of lines for each interval, and no failure is left out of the counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailureStreak {
    /// The first failure since the last success.
    began: Option<Timestamp>,
    last_failure: Timestamp,
    failures: u64,
    /// Failures since the last line.
    unreported: u64,
    last_line: Option<Timestamp>,
    /// Whether this streak had a line.
    has_line: bool,
}

/// The failures that a log line is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureSummary {
    /// Failures since the last line, including this one.
    pub failures: u64,
    /// Time since the first failure of the streak.
    pub failing_for: Duration,
}

impl FailureSummary {
    /// Number and duration of failures if there was more than one: a line about a single failure has neither.
    #[must_use]
    pub fn repeated(&self) -> (Option<u64>, Option<u64>) {
        let is_repeated = self.failures > 1 || !self.failing_for.is_zero();
        (is_repeated.then_some(self.failures), is_repeated.then_some(self.failing_for.as_secs()))
    }
}

/// The end of a streak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// Failures of the streak.
    pub failures: u64,
    /// Time from its first failure to the success.
    pub failed_for: Duration,
}

impl FailureStreak {
    /// Records a failure. Returns what to log, if a line is due.
    pub fn on_failure(&mut self, now: Timestamp) -> Option<FailureSummary> {
        let began = *self.began.get_or_insert(now);
        self.last_failure = now;
        self.failures += 1;
        self.unreported += 1;
        if self.last_line.is_some_and(|last| now.since(last) < SUMMARY_INTERVAL) {
            return None;
        }
        (self.last_line, self.has_line) = (Some(now), true);
        Some(FailureSummary { failures: std::mem::take(&mut self.unreported), failing_for: now.since(began) })
    }

    /// Records a failure of something whose successes are not recorded: an interval without a failure ends the streak.
    pub fn on_isolated_failure(&mut self, now: Timestamp) -> Option<FailureSummary> {
        if now.since(self.last_failure) >= SUMMARY_INTERVAL {
            self.on_success(now);
        }
        self.on_failure(now)
    }

    /// Records a success. Returns what to log, if it ends a streak that had a line.
    pub fn on_success(&mut self, now: Timestamp) -> Option<Recovery> {
        let began = self.began.take()?;
        let failures = std::mem::take(&mut self.failures);
        let recovery = Recovery { failures, failed_for: now.since(began) };
        std::mem::take(&mut self.has_line).then_some(recovery)
    }

    /// Whether the last result was a failure.
    #[must_use]
    pub const fn is_failing(&self) -> bool {
        self.began.is_some()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1_000)
    }

    fn summary(failures: u64, seconds: u64) -> Option<FailureSummary> {
        Some(FailureSummary { failures, failing_for: Duration::from_secs(seconds) })
    }

    fn recovery(failures: u64, seconds: u64) -> Option<Recovery> {
        Some(Recovery { failures, failed_for: Duration::from_secs(seconds) })
    }

    #[test]
    fn first_failure_is_logged_at_once_and_then_one_for_each_interval() {
        let mut streak = FailureStreak::default();
        assert_eq!(streak.on_failure(at(1)), summary(1, 0));
        assert_eq!((streak.on_failure(at(2)), streak.on_failure(at(30))), (None, None));
        assert_eq!(streak.on_failure(at(31)), summary(3, 30));
        assert_eq!(streak.on_failure(at(100)), summary(1, 99));
        assert_eq!(streak.on_success(at(101)), recovery(5, 100));
        assert_eq!(streak.on_success(at(102)), None);
    }

    #[test]
    fn alternating_failures_and_successes_have_one_pair_of_lines() {
        let mut streak = FailureStreak::default();
        assert_eq!(streak.on_failure(at(0)), summary(1, 0));
        assert_eq!(streak.on_success(at(1)), recovery(1, 1));
        for second in 1..15 {
            assert_eq!(streak.on_failure(at(2 * second)), None);
            assert_eq!(streak.on_success(at(2 * second + 1)), None);
        }
        assert_eq!(streak.on_failure(at(30)), summary(15, 0), "earlier failures are in the count");
        assert_eq!(streak.on_success(at(31)), recovery(1, 1));
    }

    #[test]
    fn isolated_failures_start_again_after_a_quiet_interval() {
        let mut streak = FailureStreak::default();
        assert_eq!(streak.on_isolated_failure(at(0)), summary(1, 0));
        assert_eq!(streak.on_isolated_failure(at(29)), None);
        assert_eq!(streak.on_isolated_failure(at(40)), summary(2, 40));
        assert_eq!(streak.on_isolated_failure(at(100)), summary(1, 0));
    }

    #[test]
    fn a_single_failure_has_no_count_in_its_line() {
        assert_eq!(FailureSummary { failures: 1, failing_for: Duration::ZERO }.repeated(), (None, None));
        assert_eq!(summary(4, 31).unwrap().repeated(), (Some(4), Some(31)));
    }

    proptest! {
        #[test]
        fn every_failure_is_counted_and_lines_are_rare(steps in prop::collection::vec((0..20_u64, any::<bool>()), 1..200)) {
            let (mut streak, mut now) = (FailureStreak::default(), 0);
            let (mut failed, mut reported, mut lines, mut open) = (0, 0, Vec::new(), 0_u32);
            for (pause, fails) in steps {
                now += pause;
                if fails {
                    failed += 1;
                    if let Some(summary) = streak.on_failure(at(now)) {
                        reported += summary.failures;
                        lines.push(now);
                        open = 1;
                    }
                } else if streak.on_success(at(now)).is_some() {
                    prop_assert_eq!(open, 1, "a recovery follows a line about a failure");
                    open = 0;
                }
                prop_assert_eq!(streak.is_failing(), fails);
            }
            prop_assert_eq!(reported + streak.unreported, failed);
            prop_assert!(lines.windows(2).all(|pair| pair[1] - pair[0] >= SUMMARY_INTERVAL.as_secs()));
            prop_assert_eq!(lines.is_empty(), failed == 0);
        }
    }
}
