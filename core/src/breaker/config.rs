//! Settings of breakers: when they open, and how they close again.

use std::time::Duration;

use crate::backoff::Backoff;

/// Settings of all breakers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerConfig {
    /// Number of consecutive failures that opens a breaker.
    pub failures_in_row: u32,
    /// Window for the failure rate and the slow rate.
    pub window: Duration,
    /// Minimum number of calls for the rates.
    pub min_calls: u32,
    /// Failure rate that opens it, in percent.
    pub failure_percent: u32,
    /// A call that takes this long is slow, whatever its result.
    pub slow_call: Duration,
    /// Slow rate that opens it, in percent.
    pub slow_percent: u32,
    /// First cooldown; doubled each time after.
    pub cooldown: Duration,
    /// Maximum cooldown.
    pub max_cooldown: Duration,
    /// Jitter of a cooldown in percent, so that processes do not retry together.
    pub jitter_percent: u32,
    /// After this time in the closed state, cooldowns start from the first again; a quiet breaker is removed.
    pub reset_after: Duration,
    /// Number of probes that a half-open breaker admits, and that must succeed.
    pub probes: u32,
    /// A probe without a result after this time has failed. It includes waiting for a turn, so it is longer than a
    /// request's own timeout.
    pub probe_timeout: Duration,
    /// After this time without a call that may probe, the breaker sends its own probe.
    pub probe_after: Duration,
    /// Duration of a ban without a stated one.
    pub ban_duration: Duration,
    /// How long a token of a caller that Discord has refused is not sent again. Then one call probes it.
    pub token_probe_interval: Duration,
    /// How long a webhook that does not exist is remembered; zero: not at all.
    pub gone_webhook_ttl: Duration,
    /// How long an expired interaction is remembered: no token is valid for longer.
    pub expired_interaction_ttl: Duration,
    /// Maximum number of remembered interactions, and of webhooks and of tokens.
    pub max_expired_interactions: usize,
    /// Maximum number of routes, ids and targets with a breaker.
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
            reset_after: Duration::from_secs(300),
            probes: 3,
            probe_timeout: Duration::from_secs(15),
            probe_after: Duration::from_secs(1),
            ban_duration: Duration::from_secs(3_600),
            token_probe_interval: Duration::from_secs(600),
            gone_webhook_ttl: Duration::from_secs(3_600),
            expired_interaction_ttl: Duration::from_secs(900),
            max_expired_interactions: 10_000,
            max_keys: 10_000,
        }
    }
}

impl BreakerConfig {
    /// Cooldown after this many cooldowns in a row. `random` is in `[0, 1)`.
    pub(super) fn cooldown(&self, before: u32, random: f64) -> Duration {
        let jitter = f64::from(self.jitter_percent) / 100.0;
        let cooldowns = Backoff { base: self.cooldown, cap: self.max_cooldown, jitter };
        cooldowns.delay(before.saturating_add(1), random).min(self.max_cooldown)
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
    fn jitter_moves_a_cooldown_by_at_most_a_fifth() {
        let config = BreakerConfig::default();
        assert_eq!(config.cooldown(0, 0.0).as_secs(), 24);
        assert_eq!(config.cooldown(0, 0.999_999_99).as_secs(), 35);
        assert_eq!(config.cooldown(9, 0.999_999_99).as_secs(), 300);
    }
}
