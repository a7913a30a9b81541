//! Delays between attempts.

use std::time::Duration;

/// Exponential backoff with jitter, so that what failed together does not retry together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// Delay after the first attempt.
    pub base: Duration,
    /// Maximum delay, before jitter.
    pub cap: Duration,
    /// Jitter in both directions, as a fraction of the delay from 0 to 1.
    pub jitter: f64,
}

/// The delays of attempts in a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackoffSequence {
    backoff: Backoff,
    attempts: u32,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { base: Duration::from_secs(1), cap: Duration::from_secs(20), jitter: 0.3 }
    }
}

impl Backoff {
    /// Delays without jitter: for a process that retries alone.
    #[must_use]
    pub const fn exact(base: Duration, cap: Duration) -> Self {
        Self { base, cap, jitter: 0.0 }
    }

    /// Random delays from zero to a maximum that doubles from `base` to `cap`.
    #[must_use]
    pub fn up_to(base: Duration, cap: Duration) -> Self {
        Self { base: base / 2, cap: cap / 2, jitter: 1.0 }
    }

    /// Delay after this attempt; the first is 1. `chance` is a random number from 0 to 1.
    #[must_use]
    pub fn delay(&self, attempt: u32, chance: f64) -> Duration {
        self.with_jitter(self.delay_without_jitter(attempt), chance)
    }

    /// Delay after this attempt, before jitter.
    #[must_use]
    pub fn delay_without_jitter(&self, attempt: u32) -> Duration {
        let doublings = attempt.saturating_sub(1).min(31);
        self.base.saturating_mul(1 << doublings).min(self.cap)
    }

    /// Applies the jitter to a delay.
    #[must_use]
    pub fn with_jitter(&self, delay: Duration, chance: f64) -> Duration {
        let (chance, jitter) = (chance.clamp(0.0, 1.0), self.jitter.clamp(0.0, 1.0));
        delay.mul_f64(1.0 + jitter * (2.0 * chance - 1.0))
    }
}

impl BackoffSequence {
    /// Starts with the first delay.
    #[must_use]
    pub const fn new(backoff: Backoff) -> Self {
        Self { backoff, attempts: 0 }
    }

    /// Returns the delay after another failed attempt.
    pub fn next_delay(&mut self, chance: f64) -> Duration {
        self.attempts = self.attempts.saturating_add(1);
        self.backoff.delay(self.attempts, chance)
    }

    /// Starts again with the first delay, after a success.
    pub const fn reset(&mut self) {
        self.attempts = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn delays_double_up_to_the_cap() {
        let waits = [1, 2, 3, 4, 5, 6, 7, u32::MAX].map(|attempt| Backoff::default().delay(attempt, 0.5));
        assert_eq!(waits, [1, 2, 4, 8, 16, 20, 20, 20].map(Duration::from_secs));
        assert_eq!(Backoff::default().delay(0, 0.5), Duration::from_secs(1));
    }

    #[test]
    fn jitter_moves_a_delay_by_at_most_three_tenths() {
        let backoff = Backoff::default();
        assert_eq!(backoff.delay(1, 0.0), Duration::from_millis(700));
        assert_eq!(backoff.delay(1, 1.0), Duration::from_millis(1300));
        assert_eq!(backoff.delay(9, 1.0), Duration::from_secs(26));
    }

    #[test]
    fn delays_from_zero_grow_to_the_cap_and_reset_after_success() {
        let mut delays = BackoffSequence::new(Backoff::up_to(Duration::from_secs(2), Duration::from_secs(60)));
        let waits: Vec<_> = (0..7).map(|_| delays.next_delay(0.5).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30]);
        delays.reset();
        assert_eq!(delays.next_delay(0.5).as_secs(), 1);
    }

    #[test]
    fn delay_from_zero_is_random_up_to_the_cap() {
        let backoff = Backoff::up_to(Duration::from_secs(1), Duration::from_secs(30));
        let mut delays = BackoffSequence { backoff, attempts: u32::MAX };
        for (chance, from, to) in [(0.0, 0, 0), (0.25, 7, 8), (0.999, 29, 30)] {
            let wait = delays.next_delay(chance);
            assert!(wait >= Duration::from_secs(from) && wait <= Duration::from_secs(to), "{wait:?}");
        }
    }

    proptest! {
        #[test]
        fn delay_stays_within_its_bounds(attempt: u32, chance in -1.0..2.0_f64, base in 1..5_000_u64, cap in 1..60_000_u64) {
            let backoff = Backoff { base: Duration::from_millis(base), cap: Duration::from_millis(cap), jitter: 0.3 };
            let wait = backoff.delay(attempt, chance).as_secs_f64() * 1_000.0;
            prop_assert!(wait <= cap as f64 * 1.3 + 0.001);
            prop_assert!(wait >= base.min(cap) as f64 * 0.7 - 0.001);
        }
    }
}
