//! Redis's clock, as far as a process knows it.

use std::time::Duration;

use crate::time::Timestamp;

/// How far clocks drift apart over a time at most.
fn drift(over: Duration) -> Duration {
    Duration::from_millis(1) + over / 500
}

/// By so much more they have to differ before it is taken for a jump, which everybody pays for.
const DOUBT: Duration = Duration::from_millis(4);

/// What one answer told of Redis's clock: it showed `redis` at some moment between `sent` and `heard`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClockSample {
    pub(super) redis: u64,
    pub(super) sent: Timestamp,
    pub(super) heard: Timestamp,
}

impl ClockSample {
    /// The latest that Redis's clock can show at `now`.
    pub(super) fn latest(&self, now: Timestamp) -> u64 {
        self.redis.saturating_add(micros(now.since(self.sent)))
    }

    /// How long the answer took.
    pub(super) fn took(&self) -> Duration {
        self.heard.since(self.sent)
    }

    /// How far the clock may have jumped forward until it was seen next, beyond what the way of the next answer took: from
    /// when that was heard, so much is to be waited.
    pub(super) fn hidden_until(&self, next: &Self) -> Duration {
        let passed = next.heard.since(self.heard);
        let showed = Duration::from_micros(next.redis.saturating_sub(self.redis));
        (showed + drift(passed)).saturating_sub(passed)
    }

    /// Whether the clock ran as it should from this sighting to the next.
    pub(super) fn agrees_with(&self, next: &Self) -> bool {
        let most = next.heard.since(self.sent);
        let least = next.sent.since(self.heard);
        let slack = micros(drift(most) + DOUBT);
        let passed = i128::from(next.redis) - i128::from(self.redis);
        passed <= i128::from(micros(most) + slack) && passed + i128::from(slack) >= i128::from(micros(least))
    }
}

pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(redis_ms: u64, sent_ms: u64, heard_ms: u64) -> ClockSample {
        ClockSample {
            redis: redis_ms * 1_000,
            sent: Timestamp::from_millis(sent_ms),
            heard: Timestamp::from_millis(heard_ms),
        }
    }

    #[test]
    fn a_clock_that_runs_as_ours_does_agrees_whatever_the_ways_took() {
        let first = seen(5_000, 100, 300);
        // Seen at 100 at the earliest and at 300 at the latest, and a second later just so.
        assert!(first.agrees_with(&seen(6_000, 1_100, 1_300)));
        assert!(first.agrees_with(&seen(6_200, 1_100, 1_300)));
        assert!(first.agrees_with(&seen(5_800, 1_100, 1_300)));
        assert_eq!(first.latest(Timestamp::from_millis(1_100)), 6_000_000);
    }

    #[test]
    fn a_clock_that_jumps_does_not_agree() {
        let first = seen(5_000, 100, 101);
        assert!(!first.agrees_with(&seen(6_100, 1_100, 1_101)));
        assert!(!first.agrees_with(&seen(5_900, 1_100, 1_101)));
        assert!(!first.agrees_with(&seen(4_000, 1_100, 1_101)));
    }
}
