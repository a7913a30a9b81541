//! Even spacing of grants.

use std::time::Duration;

use super::config::LimitConfig;
use super::readiness::Readiness;
use crate::time::Timestamp;

/// Spaces grants after a small burst, so that no convoy forms that an urgent call would have to wait behind.
///
/// The spacing is what the tokens can keep up with: each is away for its call's answer and one window. Spaced by the window
/// alone, they would all be gone too early, and everybody would wait for as long as an answer takes.
///
/// A burst is earned by being idle, never by waiting for tokens. Tokens come back as they were taken: those of a burst come
/// back together, and if they could be taken together again, the silence behind them would last for ever.
#[derive(Debug)]
pub(super) struct Pacer {
    window: Duration,
    limit: u32,
    /// How long answers take, on the average of late.
    latency: Duration,
    /// When the next grant is due by even spacing.
    due: Timestamp,
    /// Grants that may come before they are due.
    credit: u32,
    most_credit: u32,
    /// Whether anybody of these lanes waits for a token or a turn.
    is_starved: bool,
}

/// How many answers the average latency is taken over, roughly.
const ANSWERS: u32 = 16;

impl Pacer {
    pub(super) fn new(config: &LimitConfig) -> Self {
        let credit = config.burst.saturating_sub(1);
        Self {
            window: config.window,
            limit: config.global.max(1),
            latency: Duration::ZERO,
            due: Timestamp::ZERO,
            credit,
            most_credit: credit,
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
        self.latency = (before * (ANSWERS - 1) + latency) / ANSWERS;
    }

    pub(super) fn turn(&self, now: Timestamp) -> Readiness {
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
            self.credit = self.credit.saturating_add(u32::try_from(idle).unwrap_or(u32::MAX)).min(self.most_credit);
        }
        // A little late is made up for, so that timers that wake late cost no grants.
        self.due = if late < interval { self.due } else { now } + interval;
    }

    pub(super) fn starve(&mut self) {
        self.is_starved = true;
    }

    /// Nobody waits: from now on it is idle.
    pub(super) fn rest(&mut self, now: Timestamp) {
        if self.is_starved {
            self.is_starved = false;
            self.due = self.due.max(now);
        }
    }
}
