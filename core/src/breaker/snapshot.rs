//! What people see of breakers.

use std::time::Duration;

use serde::Serialize;

use crate::time::Timestamp;

use super::machine::Breaker;
use super::{BreakerKey, BreakerKind, BreakerReason, BreakerState, Breakers};

/// How many breakers a snapshot shows.
const MOST_SHOWN: usize = 1_000;

/// What is to be seen of all breakers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BreakersSnapshot {
    /// How many are watched.
    pub watched: usize,
    /// How many were forgotten early because others needed the room.
    pub evicted: u64,
    /// How often one should have been made and there was no room.
    pub unwatched: u64,
    /// Interactions that are known to have ended.
    pub ended_interactions: usize,
    /// How many are in each state, of all that are watched.
    pub states: StateCounts,
    /// The breakers, those that are not closed first.
    pub breakers: Vec<BreakerSnapshot>,
}

/// How many breakers are in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StateCounts {
    /// Calls go out.
    pub closed: usize,
    /// None does, for a time.
    pub open: usize,
    /// Some do, to see whether it is over.
    pub half_open: usize,
    /// None does until somebody resets it, or a token changes.
    pub forced_open: usize,
}

impl StateCounts {
    fn add(&mut self, state: BreakerState) {
        let count = match state {
            BreakerState::Closed => &mut self.closed,
            BreakerState::Open { .. } => &mut self.open,
            BreakerState::HalfOpen => &mut self.half_open,
            BreakerState::ForcedOpen { .. } => &mut self.forced_open,
        };
        *count += 1;
    }
}

/// What is to be seen of a breaker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BreakerSnapshot {
    /// What it watches.
    pub key: BreakerKey,
    /// What kind of thing that is.
    pub kind: BreakerKind,
    /// Its state.
    pub state: &'static str,
    /// How bad that is: see [`BreakerState::severity`].
    pub severity: u8,
    /// Why it is in that state.
    pub why: BreakerReason,
    /// How long it has been.
    pub for_ms: u64,
    /// How long it is still open.
    pub retry_after_ms: Option<u64>,
    /// Calls in the window.
    pub calls: u32,
    /// How many of them failed.
    pub failures: u32,
    /// How many of them were slow.
    pub slow: u32,
    /// Probes under way.
    pub probes: usize,
}

impl Breakers {
    /// What is to be seen: those that are not closed first, at most a thousand.
    #[must_use]
    pub fn snapshot(&self, now: Timestamp) -> BreakersSnapshot {
        let mut states = StateCounts::default();
        let mut breakers: Vec<BreakerSnapshot> = Vec::with_capacity(self.shelf.len());
        for (key, breaker) in self.shelf.iter() {
            states.add(breaker.state());
            breakers.push(self.shown(key, breaker, now));
        }
        breakers.sort_unstable_by(|a, b| b.severity.cmp(&a.severity).then_with(|| a.key.cmp(&b.key)));
        breakers.truncate(MOST_SHOWN);
        BreakersSnapshot {
            watched: self.shelf.len(),
            evicted: self.shelf.evicted(),
            unwatched: self.shelf.unwatched(),
            ended_interactions: self.ended.len(),
            states,
            breakers,
        }
    }

    /// What is to be seen of one breaker; nothing if it is closed and has no trouble.
    #[must_use]
    pub fn look(&self, key: &BreakerKey, now: Timestamp) -> Option<BreakerSnapshot> {
        self.shelf.get(key).map(|breaker| self.shown(key, breaker, now))
    }

    fn shown(&self, key: &BreakerKey, breaker: &Breaker, now: Timestamp) -> BreakerSnapshot {
        let (calls, failures, slow) = breaker.tally().counts(self.shelf.config.window, now);
        let retry_after_ms = match breaker.state() {
            BreakerState::Open { until } => Some(millis(until.since(now))),
            BreakerState::Closed | BreakerState::HalfOpen | BreakerState::ForcedOpen { .. } => None,
        };
        BreakerSnapshot {
            key: key.clone(),
            kind: key.kind(),
            state: breaker.state().name(),
            severity: breaker.state().severity(),
            why: breaker.why(),
            for_ms: millis(now.since(breaker.changed())),
            retry_after_ms,
            calls,
            failures,
            slow,
            probes: breaker.probes_in_flight(),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
