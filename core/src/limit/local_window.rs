//! The global window of a process that does not share it.
//!
//! Discord counts arrivals; the gate knows only when a call was dispatched and when its response arrived. Therefore a
//! token returns one window after the *response*: at any latency, two calls that used the same token arrived at least
//! one window apart, and there are only as many tokens as the limit allows.

use std::collections::VecDeque;
use std::time::Duration;

use super::config::LimitConfig;
use super::pacer::Pacer;
use super::readiness::Readiness;
use crate::time::Timestamp;

/// The tokens of one credential, which no other process uses.
#[derive(Debug)]
pub(super) struct LocalWindow {
    limit: u32,
    window: Duration,
    request_timeout: Duration,
    /// Calls without a response.
    in_flight: u32,
    /// When each used token returns, in order.
    cooling: VecDeque<Timestamp>,
    /// No call is granted before this time: the first window of a new gate, or a global 429.
    closed_until: Timestamp,
    pub(super) pacer: Pacer,
}

impl LocalWindow {
    /// Creates a window that grants nothing until its first window has passed and all earlier calls have arrived: a
    /// previous process may have used the whole limit until its last moment.
    pub(super) fn new(config: &LimitConfig, now: Timestamp) -> Self {
        let window = config.window + config.margin;
        Self {
            limit: config.global,
            window,
            request_timeout: config.request_timeout,
            in_flight: 0,
            cooling: VecDeque::new(),
            closed_until: now + window + config.settling,
            pacer: Pacer::new(config),
        }
    }

    pub(super) fn readiness(&mut self, now: Timestamp) -> Readiness {
        if now < self.closed_until {
            return Readiness::At(self.closed_until);
        }
        if self.free(now) > 0 {
            return Readiness::Now;
        }
        // With a lower limit than before, the first token to return may not be sufficient.
        let used = self.in_flight as usize + self.cooling.len();
        let missing = used.saturating_sub(self.limit as usize);
        let enough = if self.limit == 0 { None } else { self.cooling.get(missing) };
        enough.map_or(Readiness::OnResponse, |back| Readiness::At(*back))
    }

    pub(super) fn free(&mut self, now: Timestamp) -> u32 {
        let used = self.in_use(now);
        self.limit.saturating_sub(used)
    }

    /// Tokens of calls without a response, and of calls answered less than a window ago.
    pub(super) fn in_use(&mut self, now: Timestamp) -> u32 {
        while self.cooling.front().is_some_and(|back| *back <= now) {
            self.cooling.pop_front();
        }
        let used = self.in_flight as usize + self.cooling.len();
        u32::try_from(used).unwrap_or(u32::MAX)
    }

    /// Changes the number of tokens. Tokens in use stay in use: if there are more of them, no call is granted until
    /// enough have returned.
    pub(super) fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
        self.pacer.set_limit(limit);
    }

    /// When the next token returns, if more tokens are in use than the limit allows.
    pub(super) fn next_excess(&self) -> Option<Timestamp> {
        let is_over = self.in_flight as usize + self.cooling.len() > self.limit as usize;
        self.cooling.front().copied().filter(|_| is_over)
    }

    pub(super) fn take(&mut self) {
        self.in_flight += 1;
    }

    /// A response has arrived: the token returns one window from now.
    pub(super) fn on_response(&mut self, dispatched: Timestamp, now: Timestamp) {
        self.in_flight -= 1;
        self.pacer.observe(now.since(dispatched));
        self.start_cooling(now + self.window);
    }

    /// The call gets no response; it may arrive until its timeout has passed.
    pub(super) fn mark_lost(&mut self, dispatched: Timestamp, now: Timestamp) {
        self.in_flight -= 1;
        self.start_cooling((dispatched + self.request_timeout).max(now) + self.window);
    }

    fn start_cooling(&mut self, back: Timestamp) {
        // Nearly always the last position: only tokens of lost calls return later than those of later responses.
        let index = match self.cooling.back() {
            Some(last) if *last > back => self.cooling.partition_point(|other| *other <= back),
            _ => self.cooling.len(),
        };
        self.cooling.insert(index, back);
    }

    /// The call was never sent.
    pub(super) fn refund(&mut self) {
        self.in_flight -= 1;
    }

    pub(super) fn close(&mut self, until: Timestamp) {
        self.closed_until = self.closed_until.max(until);
    }

    pub(super) fn estimate(&self, ahead: usize, now: Timestamp) -> Timestamp {
        if self.limit == 0 {
            // The share may be restored at any time.
            return self.closed_until.max(now) + self.window;
        }
        let rounds = u32::try_from(ahead).unwrap_or(u32::MAX) / self.limit;
        let is_used_up = self.in_flight as usize + self.cooling.len() >= self.limit as usize;
        let first = match self.cooling.front() {
            Some(back) if is_used_up => *back,
            _ => now,
        };
        first.max(self.closed_until).max(now) + self.window * rounds
    }

    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    pub(super) fn closed_until(&self) -> Timestamp {
        self.closed_until
    }

    #[cfg(test)]
    pub(super) fn open(&mut self) {
        self.closed_until = Timestamp::ZERO;
    }
}
