//! Samples of Redis's clock.

use std::time::Duration;

use crate::time::Timestamp;

/// Maximum drift between two clocks over a duration.
fn drift(elapsed: Duration) -> Duration {
    Duration::from_millis(1) + elapsed / 500
}

/// Additional difference before a clock jump is assumed, because a jump affects all members.
const JUMP_TOLERANCE: Duration = Duration::from_millis(4);

/// One sample of Redis's clock: it showed `redis` at some moment between sending the call and receiving the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClockSample {
    pub(super) redis: u64,
    pub(super) sent: Timestamp,
    pub(super) received: Timestamp,
}

impl ClockSample {
    /// The latest time that Redis's clock can show at `now`.
    pub(super) fn latest(&self, now: Timestamp) -> u64 {
        self.redis.saturating_add(micros(now.since(self.sent)))
    }

    /// Round-trip time of the call.
    pub(super) fn round_trip(&self) -> Duration {
        self.received.since(self.sent)
    }

    /// Upper bound of a forward jump between this sample and the next one, minus the latency of the next reply: how
    /// long to wait after that reply was received.
    pub(super) fn max_hidden_jump(&self, next: &Self) -> Duration {
        let passed = next.received.since(self.received);
        let showed = Duration::from_micros(next.redis.saturating_sub(self.redis));
        (showed + drift(passed)).saturating_sub(passed)
    }

    /// Whether the clock ran without a jump from this sample to the next one.
    pub(super) fn agrees_with(&self, next: &Self) -> bool {
        let max = next.received.since(self.sent);
        let min = next.sent.since(self.received);
        let slack = micros(drift(max) + JUMP_TOLERANCE);
        let passed = i128::from(next.redis) - i128::from(self.redis);
        passed <= i128::from(micros(max) + slack) && passed + i128::from(slack) >= i128::from(micros(min))
    }
}

pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(redis_ms: u64, sent_ms: u64, heard_ms: u64) -> ClockSample {
        ClockSample {
            redis: redis_ms * 1_000,
            sent: Timestamp::from_millis(sent_ms),
            received: Timestamp::from_millis(heard_ms),
        }
    }

    #[test]
    fn clock_at_the_same_speed_agrees_at_any_latency() {
        let first = sample(5_000, 100, 300);
        // Sampled between 100 and 300 ms, and again exactly one second later.
        assert!(first.agrees_with(&sample(6_000, 1_100, 1_300)));
        assert!(first.agrees_with(&sample(6_200, 1_100, 1_300)));
        assert!(first.agrees_with(&sample(5_800, 1_100, 1_300)));
        assert_eq!(first.latest(Timestamp::from_millis(1_100)), 6_000_000);
    }

    #[test]
    fn a_clock_that_jumps_does_not_agree() {
        let first = sample(5_000, 100, 101);
        assert!(!first.agrees_with(&sample(6_100, 1_100, 1_101)));
        assert!(!first.agrees_with(&sample(5_900, 1_100, 1_101)));
        assert!(!first.agrees_with(&sample(4_000, 1_100, 1_101)));
    }
}
