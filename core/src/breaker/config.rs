//! When a breaker opens, and how it closes again.

use std::time::Duration;

/// Settings of all breakers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerConfig {
    /// So many failures without a success between them open it.
    pub failures_in_row: u32,
    /// How far back shares of calls are counted.
    pub window: Duration,
    /// Shares mean nothing below so many calls.
    pub min_calls: u32,
    /// This share of failures opens it, in percent.
    pub failure_percent: u32,
    /// A call that took so long is slow, however it ended.
    pub slow_call: Duration,
    /// This share of slow calls opens it, in percent.
    pub slow_percent: u32,
    /// How long it stays open the first time; twice as long each time after.
    pub cooldown: Duration,
    /// How long it stays open at most.
    pub max_cooldown: Duration,
    /// By how much a cooldown is made longer or shorter, in percent, so that processes do not come back together.
    pub jitter_percent: u32,
    /// Closed for so long, it starts from the first cooldown again; a quiet breaker is then forgotten.
    pub calm: Duration,
    /// How many probes a half-open breaker admits, and how many must succeed.
    pub probes: u32,
    /// A probe without a result after so long has failed. Waiting for a turn counts, so it is longer than a request's
    /// own timeout.
    pub probe_timeout: Duration,
    /// When nothing that may probe came for so long, the breaker asks for a probe of its own.
    pub probe_after: Duration,
    /// How long a ban lasts that does not say so itself.
    pub blocked: Duration,
    /// How long an interaction that has ended is remembered: no token lives longer.
    pub ended: Duration,
    /// How many interactions are remembered.
    pub max_ended: usize,
    /// How many routes, ids and targets are watched.
    pub max_keys: usize,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self {
            failures_in_row: 5,
            window: Duration::from_secs(30),
            min_calls: 20,
            failure_percent: 50,
            slow_call: Duration::from_secs(5),
            slow_percent: 80,
            cooldown: Duration::from_secs(30),
            max_cooldown: Duration::from_secs(300),
            jitter_percent: 20,
            calm: Duration::from_secs(300),
            probes: 3,
            probe_timeout: Duration::from_secs(15),
            probe_after: Duration::from_secs(1),
            blocked: Duration::from_secs(3_600),
            ended: Duration::from_secs(900),
            max_ended: 10_000,
            max_keys: 10_000,
        }
    }
}

impl BreakerConfig {
    /// How long to stay open after so many cooldowns in a row. `chance` is in `[0, 1)`.
    pub(super) fn cooldown(&self, before: u32, chance: f64) -> Duration {
        let grown = self.cooldown.saturating_mul(1_u32.checked_shl(before).unwrap_or(u32::MAX)).min(self.max_cooldown);
        let jitter = f64::from(self.jitter_percent.min(100)) / 100.0;
        grown.mul_f64(1.0 + jitter * (2.0 * chance - 1.0)).min(self.max_cooldown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cooldowns_double_from_the_first_to_the_longest() {
        let config = BreakerConfig::default();
        let middle: Vec<u64> = (0..6).map(|before| config.cooldown(before, 0.5).as_secs()).collect();
        assert_eq!(middle, [30, 60, 120, 240, 300, 300]);
        assert_eq!(config.cooldown(40, 0.5).as_secs(), 300);
    }

    #[test]
    fn jitter_moves_a_cooldown_by_a_fifth_at_most_and_never_past_the_longest() {
        let config = BreakerConfig::default();
        assert_eq!(config.cooldown(0, 0.0).as_secs(), 24);
        assert_eq!(config.cooldown(0, 0.999_999_99).as_secs(), 35);
        assert_eq!(config.cooldown(9, 0.999_999_99).as_secs(), 300);
    }
}
