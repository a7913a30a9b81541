//! A sublimit: a limit that applies to some calls of a bucket and not to others. A channel's name has one. A resource
//! has one for as long as Discord reports that this resource alone is limited.

use std::time::Duration;

use super::readiness::Readiness;
use crate::route::SublimitKind;
use crate::time::Timestamp;

/// Maximum number of calls that change a channel's name or topic in one window.
const MAX_NAME_CHANGES: usize = 2;

/// Length of that window.
const NAME_CHANGE_WINDOW: Duration = Duration::from_secs(600);

/// State of a sublimit.
#[derive(Debug, Default)]
pub(super) struct Sublimit {
    closed_until: Timestamp,
    sub: Option<SublimitKind>,
    /// Granted calls without a response.
    in_flight: usize,
    /// When each completed call stops counting.
    past: Vec<Timestamp>,
}

impl Sublimit {
    pub(super) fn new(sub: Option<SublimitKind>) -> Self {
        Self { sub, ..Self::default() }
    }

    /// Creates it with one call that counts as having arrived at `unsaved`.
    pub(super) fn after(sub: Option<SublimitKind>, unsaved: Option<Timestamp>) -> Self {
        let past = unsaved.filter(|_| sub.is_some()).map(|arrived| arrived + NAME_CHANGE_WINDOW);
        Self { past: past.into_iter().collect(), ..Self::new(sub) }
    }

    pub(super) fn readiness(&mut self, now: Timestamp) -> Readiness {
        self.past.retain(|until| *until > now);
        self.next_readiness(now)
    }

    /// When the next call may pass. Does not change the state.
    pub(super) fn next_readiness(&self, now: Timestamp) -> Readiness {
        if now < self.closed_until {
            return Readiness::At(self.closed_until);
        }
        let past = || self.past.iter().filter(|until| **until > now);
        match self.sub {
            None => Readiness::Now,
            Some(SublimitKind::ChannelName) if past().count() + self.in_flight < MAX_NAME_CHANGES => Readiness::Now,
            Some(SublimitKind::ChannelName) => {
                past().min().map_or(Readiness::OnResponse, |until| Readiness::At(*until))
            }
        }
    }

    pub(super) fn take(&mut self) {
        self.in_flight += 1;
    }

    /// Whether it counts calls.
    pub(super) const fn has_limit(&self) -> bool {
        self.sub.is_some()
    }

    pub(super) fn refund(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// A call has completed, at `then` at the latest.
    pub(super) fn complete(&mut self, then: Timestamp) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if self.sub.is_some() {
            self.past.push(then + NAME_CHANGE_WINDOW);
        }
    }

    pub(super) fn close(&mut self, until: Timestamp) {
        self.closed_until = self.closed_until.max(until);
    }

    /// Until when the sublimit is closed, and until when each call counts, including those in flight; `None` if it is
    /// neither closed nor in use.
    pub(super) fn state(&self, now: Timestamp) -> Option<(Timestamp, Vec<Timestamp>)> {
        let under_way = if self.sub.is_some() { self.in_flight } else { 0 };
        let mut past: Vec<Timestamp> = self.past.iter().copied().filter(|until| *until > now).collect();
        past.extend(std::iter::repeat_n(now + NAME_CHANGE_WINDOW, under_way));
        past.sort_unstable_by_key(|until| std::cmp::Reverse(*until));
        (self.closed_until > now || !past.is_empty()).then_some((self.closed_until, past))
    }

    /// Restores the state that a previous process saved.
    pub(super) fn restore(&mut self, closed_until: Timestamp, past: Vec<Timestamp>) {
        self.close(closed_until);
        if self.sub.is_some() {
            self.past.extend(past);
        }
    }

    /// The earliest time at which a call with `ahead` calls before it could pass.
    pub(super) fn estimate(&self, ahead: usize, now: Timestamp) -> Timestamp {
        let mut past = self.past.clone();
        past.sort_unstable();
        let due = match self.sub {
            Some(SublimitKind::ChannelName) => (past.len() + self.in_flight + ahead + 1)
                .checked_sub(MAX_NAME_CHANGES + 1)
                .and_then(|excess| past.get(excess).copied().or(past.last().copied()))
                .unwrap_or(now),
            None => now,
        };
        due.max(self.closed_until).max(now)
    }

    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        self.in_flight == 0 && self.closed_until <= now && self.past.iter().all(|until| *until <= now)
    }
}
