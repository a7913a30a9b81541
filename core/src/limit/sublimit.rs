//! A side door: a limit that some calls of a bucket fall under and others do not. A channel's name has one; and so has any
//! resource for as long as Discord says that it alone is limited.

use std::time::Duration;

use super::readiness::Readiness;
use crate::route::SublimitKind;
use crate::time::Timestamp;

/// Calls that may change a channel's name or topic.
const NAMES: usize = 2;

/// In this time.
const NAMES_PER: Duration = Duration::from_secs(600);

/// The state of a side door.
#[derive(Debug, Default)]
pub(super) struct Sublimit {
    closed_until: Timestamp,
    sub: Option<SublimitKind>,
    /// Calls that passed and have no answer yet.
    in_flight: usize,
    /// When each call that was answered counts no longer.
    past: Vec<Timestamp>,
}

impl Sublimit {
    pub(super) fn new(sub: Option<SublimitKind>) -> Self {
        Self { sub, ..Self::default() }
    }

    pub(super) fn turn(&mut self, now: Timestamp) -> Readiness {
        self.past.retain(|until| *until > now);
        self.next(now)
    }

    /// When the next call may pass. Changes nothing.
    pub(super) fn next(&self, now: Timestamp) -> Readiness {
        if now < self.closed_until {
            return Readiness::At(self.closed_until);
        }
        let past = || self.past.iter().filter(|until| **until > now);
        match self.sub {
            None => Readiness::Now,
            Some(SublimitKind::ChannelName) if past().count() + self.in_flight < NAMES => Readiness::Now,
            Some(SublimitKind::ChannelName) => past().min().map_or(Readiness::OnAnswer, |until| Readiness::At(*until)),
        }
    }

    pub(super) fn take(&mut self) {
        self.in_flight += 1;
    }

    /// Whether it counts what passes.
    pub(super) const fn has_limit(&self) -> bool {
        self.sub.is_some()
    }

    pub(super) fn give_back(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// A call that passed is done, at the latest then.
    pub(super) fn done(&mut self, then: Timestamp) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if self.sub.is_some() {
            self.past.push(then + NAMES_PER);
        }
    }

    pub(super) fn close(&mut self, until: Timestamp) {
        self.closed_until = self.closed_until.max(until);
    }

    /// Until when it is closed, and until when each call that passed counts, those under way among them; nothing if nothing
    /// of that is left.
    pub(super) fn standing(&self, now: Timestamp) -> Option<(Timestamp, Vec<Timestamp>)> {
        let under_way = if self.sub.is_some() { self.in_flight } else { 0 };
        let mut past: Vec<Timestamp> = self.past.iter().copied().filter(|until| *until > now).collect();
        past.extend(std::iter::repeat_n(now + NAMES_PER, under_way));
        past.sort_unstable_by_key(|until| std::cmp::Reverse(*until));
        (self.closed_until > now || !past.is_empty()).then_some((self.closed_until, past))
    }

    /// Takes over what an earlier life of this process knew of it.
    pub(super) fn recall(&mut self, closed_until: Timestamp, past: Vec<Timestamp>) {
        self.close(closed_until);
        if self.sub.is_some() {
            self.past.extend(past);
        }
    }

    /// The earliest that a call could pass which has `ahead` others before it.
    pub(super) fn estimate(&self, ahead: usize, now: Timestamp) -> Timestamp {
        let mut past = self.past.clone();
        past.sort_unstable();
        let due = match self.sub {
            Some(SublimitKind::ChannelName) => (past.len() + self.in_flight + ahead + 1)
                .checked_sub(NAMES + 1)
                .and_then(|over| past.get(over).copied().or(past.last().copied()))
                .unwrap_or(now),
            None => now,
        };
        due.max(self.closed_until).max(now)
    }

    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        self.in_flight == 0 && self.closed_until <= now && self.past.iter().all(|until| *until <= now)
    }
}
