//! How fast a bucket refills, and what that means for one request.

use std::num::NonZeroU32;
use std::time::Duration;

/// A request rate: a burst, and a sustained rate per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    per_second: NonZeroU32,
    burst: NonZeroU32,
}

/// Result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateOutcome {
    /// The tokens are taken.
    Taken {
        /// How long to wait before the request is handled.
        delay: Duration,
    },
    /// Nothing has changed.
    Refused {
        /// When the request would be accepted, if no other request came first.
        retry_after: Duration,
    },
}

/// Result of a request, and the remaining tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct RateDecision {
    /// The result.
    pub outcome: RateOutcome,
    /// Number of requests that could follow immediately.
    pub remaining: u32,
    /// Time until the whole burst is available again.
    pub full_in: Duration,
}

impl Rate {
    /// Creates a rate; `None` if either value is 0.
    #[must_use]
    pub const fn new(per_second: u32, burst: u32) -> Option<Self> {
        match (NonZeroU32::new(per_second), NonZeroU32::new(burst)) {
            (Some(per_second), Some(burst)) => Some(Self { per_second, burst }),
            _ => None,
        }
    }

    /// Maximum number of requests at once.
    #[must_use]
    pub const fn burst(self) -> u32 {
        self.burst.get()
    }

    /// How long one token takes to return. Rounded up, so the rate is never exceeded.
    #[must_use]
    pub const fn interval(self) -> Duration {
        Duration::from_micros(1_000_000_u64.div_ceil(self.per_second.get() as u64))
    }

    /// How long an empty bucket takes to fill.
    #[must_use]
    pub fn window(self) -> Duration {
        self.interval().saturating_mul(self.burst.get())
    }

    /// Decides on a request for `cost` tokens, if the bucket is full after `debt` and the request may wait for
    /// `max_wait`. Its delay is that of its first token, and the rest is a debt that later requests wait for. So a
    /// request for more than the whole burst is possible.
    pub fn decide(self, debt: Duration, cost: u32, max_wait: Duration) -> RateDecision {
        let delay = debt.saturating_add(self.interval()).saturating_sub(self.window());
        let (outcome, debt) = match delay.checked_sub(max_wait) {
            None | Some(Duration::ZERO) => {
                (RateOutcome::Taken { delay }, debt.saturating_add(self.interval().saturating_mul(cost.max(1))))
            }
            Some(retry_after) => (RateOutcome::Refused { retry_after }, debt),
        };
        RateDecision { outcome, remaining: self.remaining(debt), full_in: debt }
    }

    fn remaining(self, debt: Duration) -> u32 {
        let remaining = self.window().saturating_sub(debt).as_micros() / self.interval().as_micros();
        u32::try_from(remaining).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAVY: Rate = Rate::new(10, 30).unwrap();
    const MINUTE: Duration = Duration::from_secs(60);

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn burst_is_immediate_and_later_requests_wait_for_tokens() {
        let mut debt = Duration::ZERO;
        for n in 0..30 {
            let decision = HEAVY.decide(debt, 1, MINUTE);
            assert_eq!(decision.outcome, RateOutcome::Taken { delay: Duration::ZERO }, "{n}");
            assert_eq!(decision.remaining, 29 - n);
            debt = decision.full_in;
        }
        for n in 1..=600 {
            let decision = HEAVY.decide(debt, 1, MINUTE);
            assert_eq!(decision.outcome, RateOutcome::Taken { delay: ms(100 * n) });
            assert_eq!(decision.remaining, 0);
            debt = decision.full_in;
        }
        assert_eq!(HEAVY.decide(debt, 1, MINUTE).outcome, RateOutcome::Refused { retry_after: ms(100) });
    }

    #[test]
    fn request_that_may_not_wait_is_refused_with_a_retry_time() {
        let empty = HEAVY.window();
        let decision = HEAVY.decide(empty, 1, Duration::ZERO);
        assert_eq!(decision.outcome, RateOutcome::Refused { retry_after: ms(100) });
        assert_eq!((decision.remaining, decision.full_in), (0, ms(3_000)));
    }

    #[test]
    fn a_rate_that_does_not_divide_a_second_is_rounded_to_the_slower_side() {
        assert_eq!(Rate::new(3, 1).unwrap().interval(), Duration::from_micros(333_334));
        assert_eq!(Rate::new(0, 1), None);
        assert_eq!(Rate::new(1, 0), None);
    }

    #[test]
    fn request_for_more_than_the_burst_is_taken_and_later_ones_wait_for_it() {
        let first = HEAVY.decide(Duration::ZERO, 1_000, Duration::ZERO);
        assert_eq!(first.outcome, RateOutcome::Taken { delay: Duration::ZERO });
        assert_eq!(first.full_in, HEAVY.interval() * 1_000);
        let refused = HEAVY.decide(first.full_in, 1, Duration::ZERO);
        let retry_after = HEAVY.interval() * 1_001 - HEAVY.window();
        assert_eq!(refused.outcome, RateOutcome::Refused { retry_after });
    }
}
