//! Recent samples of Redis's clock.
//!
//! A clock that jumps forward frees tokens too early. A large jump is visible between two replies; a small one is
//! hidden by the latency. The jump itself need not be known: an upper bound of what *could* be hidden is known, and a
//! slot is used later by this bound. If replies are fast, the bound is smaller than the margin of the window, and costs
//! nothing.

use std::collections::VecDeque;
use std::time::Duration;

use super::clock_sample::ClockSample;
use crate::time::Timestamp;

/// Number of samples stored per window: the most precise one of each part.
const SAMPLES_PER_WINDOW: u64 = 4;

/// Recent samples of Redis's clock.
#[derive(Debug)]
pub(super) struct ClockMonitor {
    window: Duration,
    /// The oldest first; at most one for each part of a window, and only one that is older than two windows.
    samples: VecDeque<ClockSample>,
    last: Option<ClockSample>,
}

impl ClockMonitor {
    pub(super) const fn new(window: Duration) -> Self {
        Self { window, samples: VecDeque::new(), last: None }
    }

    /// The last sample.
    pub(super) const fn last(&self) -> Option<&ClockSample> {
        self.last.as_ref()
    }

    /// Whether the clock ran without a jump until the given sample.
    pub(super) fn agrees_with(&self, sample: &ClockSample) -> bool {
        self.samples.iter().chain(&self.last).all(|before| before.agrees_with(sample))
    }

    /// Adds a sample.
    pub(super) fn record(&mut self, sample: ClockSample) {
        self.last = Some(sample);
        let part = self.part(&sample);
        match self.samples.back().map(|back| (self.part(back) == part, sample.round_trip() < back.round_trip())) {
            Some((true, false)) => {}
            Some((true, true)) => {
                self.samples.pop_back();
                self.samples.push_back(sample);
            }
            Some((false, _)) | None => self.samples.push_back(sample),
        }
        while self.samples.get(1).is_some_and(|second| second.received + self.window * 2 <= sample.received) {
            self.samples.pop_front();
        }
    }

    /// Removes all earlier samples: the clock has jumped, and only later samples are valid.
    pub(super) fn reset_to(&mut self, sample: ClockSample) {
        self.samples.clear();
        self.record(sample);
    }

    /// When a slot may be used that was booked at `sample` and starts after `wait`. If a jump freed its token too
    /// early, the slot is used later by the part of the jump that the margin does not cover. What was reported before a
    /// sample that is one window old has left the window, so earlier jumps do not matter.
    pub(super) fn usable_from(&self, sample: &ClockSample, wait: Duration, margin: Duration) -> Timestamp {
        let due = sample.received + wait;
        let after = |before: &ClockSample| {
            let late = before.max_hidden_jump(sample).saturating_sub(margin);
            (due + late).max(before.received + self.window)
        };
        self.samples.iter().map(after).min().unwrap_or(due + self.window)
    }

    fn part(&self, sample: &ClockSample) -> u128 {
        u128::from(sample.received.micros()) * u128::from(SAMPLES_PER_WINDOW) / self.window.as_micros().max(1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WINDOW: Duration = Duration::from_millis(1_010);
    const MARGIN: Duration = Duration::from_millis(10);

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn sample(redis_ms: u64, sent_ms: u64, heard_ms: u64) -> ClockSample {
        ClockSample { redis: redis_ms * 1_000, sent: at(sent_ms), received: at(heard_ms) }
    }

    fn monitor(sightings: &[ClockSample]) -> ClockMonitor {
        let mut monitor = ClockMonitor::new(WINDOW);
        sightings.iter().for_each(|seen| monitor.record(*seen));
        monitor
    }

    #[test]
    fn slot_is_usable_when_due_if_replies_are_fast() {
        let now = sample(7_300, 2_300, 2_301);
        let monitor = monitor(&[sample(5_000, 0, 1), sample(6_000, 1_000, 1_001), now]);
        assert_eq!(monitor.usable_from(&now, Duration::from_millis(40), MARGIN), at(2_341));
    }

    #[test]
    fn slow_reply_delays_a_slot_by_the_jump_it_may_hide() {
        // If the first reply was sent immediately and received late, the clock has jumped by 100 ms since.
        let now = sample(6_300, 1_300, 1_300);
        let monitor = monitor(&[sample(5_000, 0, 100), now]);
        let late = Duration::from_millis(100 + 1) + Duration::from_millis(1_200) / 500 - MARGIN;
        assert_eq!(monitor.usable_from(&now, Duration::ZERO, MARGIN), at(1_300) + late);
    }

    #[test]
    fn no_slot_is_usable_before_samples_cover_a_window() {
        let now = sample(5_500, 500, 501);
        assert_eq!(monitor(&[sample(5_000, 0, 1), now]).usable_from(&now, Duration::ZERO, MARGIN), at(1_011));
    }

    #[test]
    fn small_jump_hidden_by_a_slow_reply_contradicts_older_samples() {
        let monitor = monitor(&[sample(5_000, 0, 1), sample(5_540, 400, 600)]);
        assert!(monitor.agrees_with(&sample(5_700, 700, 701)));
        assert!(!monitor.agrees_with(&sample(5_740, 700, 701)));
        assert!(sample(5_540, 400, 600).agrees_with(&sample(5_740, 700, 701)));
    }

    proptest! {
        #[test]
        fn few_samples_are_stored_and_they_cover_a_window(steps in prop::collection::vec((0..3_000u64, 0..250u64), 1..200)) {
            let (mut monitor, mut now) = (ClockMonitor::new(WINDOW), 0);
            let first = steps.first().map_or(0, |(after, took)| after + took);
            for (after, took) in steps {
                let before = now;
                now += after + took;
                monitor.record(sample(before + after, before + after, now));
                prop_assert!(monitor.samples.len() <= 11, "{}", monitor.samples.len());
                let oldest = monitor.samples.front().map_or(at(now), |oldest| oldest.received);
                prop_assert!(oldest <= at(first + 253) || oldest + WINDOW <= at(now), "{oldest:?}");
            }
        }

        /// A response is reported between two samples, and the clock jumps then or not: its token is not used again
        /// within Discord's window.
        #[test]
        fn no_jump_brings_two_uses_of_a_token_together(
            times in prop::collection::vec((0..400u64, 0..120u64, 0..120u64), 3..30),
            reported in 0..4_000u64,
            jumped in 0..4_000u64,
            by in 0..400u64,
        ) {
            let clock = |ms: u64| 1_000 + ms + if ms > jumped { by } else { 0 };
            let free_at = clock(reported) + 1_010;
            let (mut monitor, mut now) = (ClockMonitor::new(WINDOW), 0);
            for (after, there, back) in times {
                let (sent, asked) = (now + after, now + after + there);
                now = asked + back;
                let seen = sample(clock(asked), sent, now);
                monitor.record(seen);
                if asked >= reported {
                    let wait = Duration::from_millis(free_at.saturating_sub(clock(asked)));
                    let used = monitor.usable_from(&seen, wait, MARGIN);
                    prop_assert!(used >= at(reported + 1_000), "reported at {reported}, used at {used:?}");
                }
            }
        }
    }
}
