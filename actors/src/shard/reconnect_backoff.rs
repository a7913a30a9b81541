//! Backoff between connection attempts.

use std::time::Duration;

/// Limits of the backoff.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackoffConfig {
    /// Maximum of the first wait. The maximum doubles with every further wait.
    pub base: Duration,
    /// Maximum of all waits.
    pub cap: Duration,
}

/// Waits after connections that cannot be made, or that end too early. Each wait is random up to a maximum that
/// doubles, so that shards that lost their connections together do not reconnect together.
#[derive(Debug)]
pub struct ReconnectBackoff {
    config: BackoffConfig,
    failures: u32,
}

impl ReconnectBackoff {
    /// Creates a backoff.
    #[must_use]
    pub fn new(config: BackoffConfig) -> Self {
        Self { config, failures: 0 }
    }

    /// Resets the backoff after a successful connection.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// Returns the wait after a failed connection. `random` is at least 0 and less than 1.
    pub fn next_wait(&mut self, random: f64) -> Duration {
        let max = self.config.base.saturating_mul(2u32.saturating_pow(self.failures)).min(self.config.cap);
        self.failures = self.failures.saturating_add(1);
        max.mul_f64(random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_cap_and_reset_after_success() {
        let waits = BackoffConfig { base: Duration::from_secs(2), cap: Duration::from_secs(60) };
        let mut backoff = ReconnectBackoff::new(waits);
        let waits: Vec<_> = (0..7).map(|_| backoff.next_wait(0.5).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30]);
        backoff.reset();
        assert_eq!(backoff.next_wait(0.5).as_secs(), 1);
    }

    #[test]
    fn wait_is_random_up_to_the_cap() {
        let waits = BackoffConfig { base: Duration::from_secs(1), cap: Duration::from_secs(30) };
        let mut backoff = ReconnectBackoff { config: waits, failures: u32::MAX };
        for (random, from, to) in [(0.0, 0, 0), (0.25, 7, 8), (0.999, 29, 30)] {
            let wait = backoff.next_wait(random);
            assert!(wait >= Duration::from_secs(from) && wait <= Duration::from_secs(to), "{wait:?}");
        }
    }
}
