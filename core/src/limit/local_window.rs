//! The tokens of a process that is alone.
//!
//! Discord counts arrivals; the gate knows only when a call was dispatched and when its answer came. So a token comes back
//! one window after its *answer*: whatever the latency, two calls that used the same token arrived at least a window
//! apart, and there are only as many tokens as the limit allows.

use std::collections::VecDeque;
use std::time::Duration;

use super::config::LimitConfig;
use super::pacer::Pacer;
use super::readiness::Readiness;
use crate::time::Timestamp;

/// The tokens of one credential, none of which another process uses.
#[derive(Debug)]
pub(super) struct LocalWindow {
    limit: u32,
    window: Duration,
    request_timeout: Duration,
    /// Calls that are not answered yet.
    in_flight: u32,
    /// When each token that was used comes back, the first first.
    cooling: VecDeque<Timestamp>,
    /// Nothing goes before: the first window of a fresh gate, or a global 429.
    closed_until: Timestamp,
    pub(super) pace: Pacer,
}

impl LocalWindow {
    /// A gate that grants nothing for its first window, and until what was sent before it has arrived: whoever ran before
    /// it may just have used all there is, to the last moment.
    pub(super) fn new(config: &LimitConfig, now: Timestamp) -> Self {
        let window = config.window + config.margin;
        Self {
            limit: config.global,
            window,
            request_timeout: config.request_timeout,
            in_flight: 0,
            cooling: VecDeque::new(),
            closed_until: now + window + config.settling,
            pace: Pacer::new(config),
        }
    }

    pub(super) fn turn(&mut self, now: Timestamp) -> Readiness {
        if now < self.closed_until {
            return Readiness::At(self.closed_until);
        }
        if self.free(now) > 0 {
            return Readiness::Now;
        }
        // With a lower limit than before, the first to come back may not be enough.
        let used = self.in_flight as usize + self.cooling.len();
        let missing = used.saturating_sub(self.limit as usize);
        let enough = if self.limit == 0 { None } else { self.cooling.get(missing) };
        enough.map_or(Readiness::OnAnswer, |back| Readiness::At(*back))
    }

    pub(super) fn free(&mut self, now: Timestamp) -> u32 {
        let used = self.in_use(now);
        self.limit.saturating_sub(used)
    }

    /// Tokens of calls without a response, and of those answered less than a window ago.
    pub(super) fn in_use(&mut self, now: Timestamp) -> u32 {
        while self.cooling.front().is_some_and(|back| *back <= now) {
            self.cooling.pop_front();
        }
        let used = self.in_flight as usize + self.cooling.len();
        u32::try_from(used).unwrap_or(u32::MAX)
    }

    /// Changes how many tokens there are. Those in use stay so: if they are more, nothing goes until enough are back.
    pub(super) fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
        self.pace.set_limit(limit);
    }

    /// When the next token comes back, while more are in use than there are.
    pub(super) fn next_excess(&self) -> Option<Timestamp> {
        let is_over = self.in_flight as usize + self.cooling.len() > self.limit as usize;
        self.cooling.front().copied().filter(|_| is_over)
    }

    pub(super) fn take(&mut self) {
        self.in_flight += 1;
    }

    /// An answer came: the token cools for one window from now.
    pub(super) fn answered(&mut self, dispatched: Timestamp, now: Timestamp) {
        self.in_flight -= 1;
        self.pace.observe(now.since(dispatched));
        self.cool(now + self.window);
    }

    /// No answer will come; the call may arrive until its time-out has passed.
    pub(super) fn lost(&mut self, dispatched: Timestamp, now: Timestamp) {
        self.in_flight -= 1;
        self.cool((dispatched + self.request_timeout).max(now) + self.window);
    }

    fn cool(&mut self, back: Timestamp) {
        // Nearly always the last: only tokens of lost calls come back later than those of answers after them.
        let place = match self.cooling.back() {
            Some(last) if *last > back => self.cooling.partition_point(|other| *other <= back),
            _ => self.cooling.len(),
        };
        self.cooling.insert(place, back);
    }

    /// The call never left.
    pub(super) fn given_back(&mut self) {
        self.in_flight -= 1;
    }

    pub(super) fn close(&mut self, until: Timestamp) {
        self.closed_until = self.closed_until.max(until);
    }

    pub(super) fn estimate(&self, ahead: usize, now: Timestamp) -> Timestamp {
        if self.limit == 0 {
            // Its share may come back at any time.
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
