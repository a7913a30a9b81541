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
const PARTS: u64 = 4;

/// Recent samples of Redis's clock.
#[derive(Debug)]
pub(super) struct ClockMonitor {
    window: Duration,
    /// The oldest first; at most one for each part of a window, and only one that is older than two windows.
    kept: VecDeque<ClockSample>,
    last: Option<ClockSample>,
}

impl ClockMonitor {
    pub(super) const fn new(window: Duration) -> Self {
        Self { window, kept: VecDeque::new(), last: None }
    }

    /// The last sample.
    pub(super) const fn last(&self) -> Option<&ClockSample> {
        self.last.as_ref()
    }

    /// Whether the clock ran without a jump until the given sample.
    pub(super) fn agrees_with(&self, seen: &ClockSample) -> bool {
        self.kept.iter().chain(&self.last).all(|before| before.agrees_with(seen))
    }

    /// Adds a sample.
    pub(super) fn note(&mut self, seen: ClockSample) {
        self.last = Some(seen);
        let part = self.part(&seen);
        match self.kept.back().map(|back| (self.part(back) == part, seen.took() < back.took())) {
            Some((true, false)) => {}
            Some((true, true)) => {
                self.kept.pop_back();
                self.kept.push_back(seen);
            }
            Some((false, _)) | None => self.kept.push_back(seen),
        }
        while self.kept.get(1).is_some_and(|second| second.heard + self.window * 2 <= seen.heard) {
            self.kept.pop_front();
        }
    }

    /// Removes all earlier samples: the clock has jumped, and only later samples are valid.
    pub(super) fn begin_with(&mut self, seen: ClockSample) {
        self.kept.clear();
        self.note(seen);
    }

    /// When a slot may be used that was booked at `sample` and starts after `wait`. If a jump freed its token too
    /// early, the slot is used later by the part of the jump that the margin does not cover. What was reported before a
    /// sample that is one window old has left the window, so earlier jumps do not matter.
    pub(super) fn usable_from(&self, seen: &ClockSample, wait: Duration, margin: Duration) -> Timestamp {
        let due = seen.heard + wait;
        let after = |before: &ClockSample| {
            let late = before.hidden_until(seen).saturating_sub(margin);
            (due + late).max(before.heard + self.window)
        };
        self.kept.iter().map(after).min().unwrap_or(due + self.window)
    }

    fn part(&self, seen: &ClockSample) -> u128 {
        u128::from(seen.heard.micros()) * u128::from(PARTS) / self.window.as_micros().max(1)
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

    fn seen(redis_ms: u64, sent_ms: u64, heard_ms: u64) -> ClockSample {
        ClockSample { redis: redis_ms * 1_000, sent: at(sent_ms), heard: at(heard_ms) }
    }

    fn watch(sightings: &[ClockSample]) -> ClockMonitor {
        let mut watch = ClockMonitor::new(WINDOW);
        sightings.iter().for_each(|seen| watch.note(*seen));
        watch
    }

    #[test]
    fn a_slot_is_used_when_it_is_due_where_answers_are_fast() {
        let now = seen(7_300, 2_300, 2_301);
        let watch = watch(&[seen(5_000, 0, 1), seen(6_000, 1_000, 1_001), now]);
        assert_eq!(watch.usable_from(&now, Duration::from_millis(40), MARGIN), at(2_341));
    }

    #[test]
    fn a_slot_is_used_later_by_what_a_jump_may_hide_behind_a_slow_answer() {
        // If the first reply was sent immediately and received late, the clock has jumped by 100 ms since.
        let now = seen(6_300, 1_300, 1_300);
        let watch = watch(&[seen(5_000, 0, 100), now]);
        let late = Duration::from_millis(100 + 1) + Duration::from_millis(1_200) / 500 - MARGIN;
        assert_eq!(watch.usable_from(&now, Duration::ZERO, MARGIN), at(1_300) + late);
    }

    #[test]
    fn who_has_not_watched_for_a_window_uses_nothing_before_it_has() {
        let now = seen(5_500, 500, 501);
        assert_eq!(watch(&[seen(5_000, 0, 1), now]).usable_from(&now, Duration::ZERO, MARGIN), at(1_011));
    }

    #[test]
    fn a_small_jump_that_a_slow_answer_hides_shows_against_what_was_seen_before() {
        let watch = watch(&[seen(5_000, 0, 1), seen(5_540, 400, 600)]);
        assert!(watch.agrees_with(&seen(5_700, 700, 701)));
        assert!(!watch.agrees_with(&seen(5_740, 700, 701)));
        assert!(seen(5_540, 400, 600).agrees_with(&seen(5_740, 700, 701)));
    }

    proptest! {
        #[test]
        fn little_is_kept_and_always_enough_to_know_a_window(steps in prop::collection::vec((0..3_000u64, 0..250u64), 1..200)) {
            let (mut watch, mut now) = (ClockMonitor::new(WINDOW), 0);
            let first = steps.first().map_or(0, |(after, took)| after + took);
            for (after, took) in steps {
                let before = now;
                now += after + took;
                watch.note(seen(before + after, before + after, now));
                prop_assert!(watch.kept.len() <= 11, "{}", watch.kept.len());
                let oldest = watch.kept.front().map_or(at(now), |oldest| oldest.heard);
                prop_assert!(oldest <= at(first + 253) || oldest + WINDOW <= at(now), "{oldest:?}");
            }
        }

        /// A response is reported between two samples, and the clock jumps then or not: its token is not used again
        /// within Discord's window.
        #[test]
        fn no_jump_brings_two_uses_of_a_token_together(
            times in prop::collection::vec((0..400u64, 0..120u64, 0..120u64), 3..30),
            told in 0..4_000u64,
            jumped in 0..4_000u64,
            by in 0..400u64,
        ) {
            let clock = |ms: u64| 1_000 + ms + if ms > jumped { by } else { 0 };
            let free_at = clock(told) + 1_010;
            let (mut watch, mut now) = (ClockMonitor::new(WINDOW), 0);
            for (after, there, back) in times {
                let (sent, asked) = (now + after, now + after + there);
                now = asked + back;
                let seen = seen(clock(asked), sent, now);
                watch.note(seen);
                if asked >= told {
                    let wait = Duration::from_millis(free_at.saturating_sub(clock(asked)));
                    let used = watch.usable_from(&seen, wait, MARGIN);
                    prop_assert!(used >= at(told + 1_000), "reported at {told}, used at {used:?}");
                }
            }
        }
    }
}
