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
    waits: BackoffConfig,
    useless: u32,
}

impl ReconnectBackoff {
    /// Creates a backoff.
    #[must_use]
    pub fn new(waits: BackoffConfig) -> Self {
        Self { waits, useless: 0 }
    }

    /// Resets the backoff after a successful connection.
    pub fn proved(&mut self) {
        self.useless = 0;
    }

    /// Returns the wait after a failed connection. `random` is at least 0 and less than 1.
    pub fn wait_after_useless(&mut self, chance: f64) -> Duration {
        let longest = self.waits.base.saturating_mul(2u32.saturating_pow(self.useless)).min(self.waits.cap);
        self.useless = self.useless.saturating_add(1);
        longest.mul_f64(chance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_bound_and_start_anew_after_success() {
        let waits = BackoffConfig { base: Duration::from_secs(2), cap: Duration::from_secs(60) };
        let mut patience = ReconnectBackoff::new(waits);
        let waits: Vec<_> = (0..7).map(|_| patience.wait_after_useless(0.5).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30]);
        patience.proved();
        assert_eq!(patience.wait_after_useless(0.5).as_secs(), 1);
    }

    #[test]
    fn a_wait_is_any_time_up_to_its_bound_however_many_there_were() {
        let waits = BackoffConfig { base: Duration::from_secs(1), cap: Duration::from_secs(30) };
        let mut patience = ReconnectBackoff { waits, useless: u32::MAX };
        for (chance, from, to) in [(0.0, 0, 0), (0.25, 7, 8), (0.999, 29, 30)] {
            let wait = patience.wait_after_useless(chance);
            assert!(wait >= Duration::from_secs(from) && wait <= Duration::from_secs(to), "{wait:?}");
        }
    }
}
