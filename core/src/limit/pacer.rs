//! Even spacing of grants.

use std::time::Duration;

use super::config::LimitConfig;
use super::readiness::Readiness;
use crate::time::Timestamp;

/// Spaces grants after a small burst, so that an urgent call does not have to wait behind a convoy.
///
/// The spacing matches the rate at which tokens return: each token is in use for the latency of its call plus one
/// window. If grants were spaced by the window alone, all tokens would be used too early, and every caller would wait
/// for the length of the latency.
///
/// A burst is earned by idle time, never by waiting for tokens. Tokens return as they were taken: those of a burst
/// return together. If they could be taken together again, the pause after them would repeat forever.
#[derive(Debug)]
pub(super) struct Pacer {
    window: Duration,
    limit: u32,
    /// Moving average of the response latency.
    latency: Duration,
    /// When the next grant is due by even spacing.
    due: Timestamp,
    /// Grants that may be given before they are due.
    credit: u32,
    max_credit: u32,
    /// Whether a call of these lanes waits for a token or for spacing.
    is_starved: bool,
}

/// Approximate number of responses in the latency average.
const LATENCY_SAMPLES: u32 = 16;

impl Pacer {
    pub(super) fn new(config: &LimitConfig) -> Self {
        let credit = config.burst.saturating_sub(1);
        Self {
            window: config.window,
            limit: config.global.max(1),
            latency: Duration::ZERO,
            due: Timestamp::ZERO,
            credit,
            max_credit: credit,
            is_starved: false,
        }
    }

    pub(super) fn set_limit(&mut self, limit: u32) {
        self.limit = limit.max(1);
    }

    fn interval(&self) -> Duration {
        (self.window + self.latency) / self.limit
    }

    pub(super) fn observe(&mut self, latency: Duration) {
        let before = if self.latency.is_zero() { latency } else { self.latency };
        self.latency = (before * (LATENCY_SAMPLES - 1) + latency) / LATENCY_SAMPLES;
    }

    pub(super) fn readiness(&self, now: Timestamp) -> Readiness {
        if self.credit > 0 { Readiness::Now } else { Readiness::not_before(self.due, now) }
    }

    pub(super) fn take(&mut self, now: Timestamp) {
        if now < self.due {
            self.credit = self.credit.saturating_sub(1);
            return;
        }
        let (interval, late) = (self.interval(), now.since(self.due));
        if !self.is_starved {
            let idle = late.as_micros().checked_div(interval.as_micros()).unwrap_or(u128::MAX);
            self.credit = self.credit.saturating_add(u32::try_from(idle).unwrap_or(u32::MAX)).min(self.max_credit);
        }
        // A small delay is made up for, so that late timers cost no grants.
        self.due = if late < interval { self.due } else { now } + interval;
    }

    pub(super) fn set_starved(&mut self) {
        self.is_starved = true;
    }

    /// No call waits: the pacer is idle from now on.
    pub(super) fn set_idle(&mut self, now: Timestamp) {
        if self.is_starved {
            self.is_starved = false;
            self.due = self.due.max(now);
        }
    }
}
