//! Views of breakers for people.

use std::time::Duration;

use serde::Serialize;

use crate::time::Timestamp;

use super::machine::Breaker;
use super::{BreakerKey, BreakerKind, BreakerReason, BreakerState, Breakers};

/// Maximum number of breakers in a snapshot.
const MAX_SNAPSHOTS: usize = 1_000;

/// View of all breakers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BreakersSnapshot {
    /// Number of breakers.
    pub watched: usize,
    /// Number of breakers removed early because others needed the room.
    pub evicted: u64,
    /// How often a breaker was not created because there was no room.
    pub unwatched: u64,
    /// Number of known expired interactions.
    pub ended_interactions: usize,
    /// Number of webhooks that are known not to exist.
    pub gone_webhooks: usize,
    /// Number of tokens of callers that Discord has refused.
    pub refused_tokens: usize,
    /// Number of breakers in each state.
    pub states: StateCounts,
    /// The breakers, those that are not closed first.
    pub breakers: Vec<BreakerSnapshot>,
}

/// Number of breakers in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StateCounts {
    /// Calls are sent.
    pub closed: usize,
    /// No calls are sent for a time.
    pub open: usize,
    /// Some calls are sent as probes.
    pub half_open: usize,
    /// No calls are sent until a reset, or until a token changes.
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

/// View of a breaker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BreakerSnapshot {
    /// Its key.
    pub key: BreakerKey,
    /// Its kind.
    pub kind: BreakerKind,
    /// Its state.
    pub state: &'static str,
    /// Its severity: see [`BreakerState::severity`].
    pub severity: u8,
    /// The reason of its state.
    pub why: BreakerReason,
    /// Time in its state.
    pub for_ms: u64,
    /// Remaining time in the open state.
    pub retry_after_ms: Option<u64>,
    /// Calls in the window.
    pub calls: u32,
    /// How many of them failed.
    pub failures: u32,
    /// How many of them were slow.
    pub slow: u32,
    /// Probes in flight.
    pub probes: usize,
}

impl Breakers {
    /// Returns a view of all breakers: those that are not closed first, at most a thousand.
    #[must_use]
    pub fn snapshot(&self, now: Timestamp) -> BreakersSnapshot {
        let mut states = StateCounts::default();
        let mut breakers: Vec<BreakerSnapshot> = Vec::with_capacity(self.table.len());
        for (key, breaker) in self.table.iter() {
            states.add(breaker.state());
            breakers.push(self.snapshot_of(key, breaker, now));
        }
        breakers.sort_unstable_by(|a, b| b.severity.cmp(&a.severity).then_with(|| a.key.cmp(&b.key)));
        breakers.truncate(MAX_SNAPSHOTS);
        BreakersSnapshot {
            watched: self.table.len(),
            evicted: self.table.evicted(),
            unwatched: self.table.unwatched(),
            ended_interactions: self.expired_interactions.len(),
            gone_webhooks: self.gone_webhooks.len(),
            refused_tokens: self.refused_tokens.len(),
            states,
            breakers,
        }
    }

    /// Returns a view of one breaker; `None` if it does not exist, because it is closed without failures.
    #[must_use]
    pub fn find_snapshot(&self, key: &BreakerKey, now: Timestamp) -> Option<BreakerSnapshot> {
        self.table.get(key).map(|breaker| self.snapshot_of(key, breaker, now))
    }

    fn snapshot_of(&self, key: &BreakerKey, breaker: &Breaker, now: Timestamp) -> BreakerSnapshot {
        let (calls, failures, slow) = breaker.failure_window().counts(self.table.config.window, now);
        let retry_after_ms = match breaker.state() {
            BreakerState::Open { until } => Some(millis(until.since(now))),
            BreakerState::Closed | BreakerState::HalfOpen | BreakerState::ForcedOpen { .. } => None,
        };
        BreakerSnapshot {
            key: key.clone(),
            kind: key.kind(),
            state: breaker.state().name(),
            severity: breaker.state().severity(),
            why: breaker.reason(),
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
