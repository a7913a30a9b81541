//! How long to wait before connecting again.

use std::time::Duration;

/// How long the waits before connecting again may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackoffConfig {
    /// The first one; each further one may be twice as long.
    pub base: Duration,
    /// The longest one.
    pub cap: Duration,
}

/// Waits when connections cannot be made, or end before they are of any use. Each is any time up to a bound that doubles, so
/// that shards cut off together do not come back together.
#[derive(Debug)]
pub(super) struct ReconnectBackoff {
    waits: BackoffConfig,
    useless: u32,
}

impl ReconnectBackoff {
    pub(super) fn new(waits: BackoffConfig) -> Self {
        Self { waits, useless: 0 }
    }

    /// A connection has proved itself.
    pub(super) fn proved(&mut self) {
        self.useless = 0;
    }

    /// One was of none. `chance` is at least 0 and less than 1.
    pub(super) fn wait_after_useless(&mut self, chance: f64) -> Duration {
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
