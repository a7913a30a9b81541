//! Delays between attempts.

use std::time::Duration;

/// Exponential backoff with jitter, so that operations that failed together do not retry together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// Delay after the first attempt.
    pub base: Duration,
    /// Maximum delay, before jitter.
    pub cap: Duration,
    /// Jitter in both directions, as a fraction of the delay from 0 to 1.
    pub jitter: f64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { base: Duration::from_secs(1), cap: Duration::from_secs(20), jitter: 0.3 }
    }
}

impl Backoff {
    /// Delay after this attempt; the first is 1. `chance` is a random number from 0 to 1.
    #[must_use]
    pub fn delay(&self, attempt: u32, chance: f64) -> Duration {
        let doublings = attempt.saturating_sub(1).min(31);
        let wait = self.base.saturating_mul(1 << doublings).min(self.cap);
        let (chance, jitter) = (chance.clamp(0.0, 1.0), self.jitter.clamp(0.0, 1.0));
        wait.mul_f64(1.0 + jitter * (2.0 * chance - 1.0))
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
