//! Shared state of breakers, and what each process stores of it.

use std::collections::HashMap;
use std::time::Duration;

use serde::Serialize;

use super::{BreakerKey, BreakerKind, BreakerReason, BreakerState};
use crate::response::Credential;
use crate::time::Timestamp;

/// Maximum number of shared keys. There are as many as bots, routes and targets; beyond that the oldest are removed.
const MAX_KEYS: usize = 10_000;

/// Maximum number of changes per batch.
const BATCH_SIZE: usize = 64;

/// Origin of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeOrigin {
    /// This process.
    Here,
    /// Another process.
    Elsewhere,
    /// An earlier run of this process: it was restored after a restart.
    Before,
}

impl ChangeOrigin {
    /// Name in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Here => "here",
            Self::Elsewhere => "elsewhere",
            Self::Before => "before",
        }
    }
}

/// Key of a shared state: the state of a breaker, except for an invalid token; or whether one token is invalid, which
/// concerns only the processes that have it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SharedBreakerKey {
    /// The breaker.
    pub key: BreakerKey,
    /// The fingerprint of the token.
    pub token: Option<String>,
}

/// A state as processes share it. A half-open state is not shared: one process probes, and shares the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedBreakerState {
    /// Calls are sent.
    Closed,
    /// No calls are sent.
    Open {
        /// Remaining time.
        remaining: Duration,
    },
    /// No calls are sent until something other than time changes it.
    ForcedOpen,
}

/// Status of a breaker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BreakerStatus {
    /// Its key.
    pub shared_key: SharedBreakerKey,
    /// Its state.
    pub state: SharedBreakerState,
    /// The reason.
    pub reason: BreakerReason,
}

/// A change by another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteChange {
    /// The new status.
    pub status: BreakerStatus,
    /// Higher versions are newer.
    pub version: u64,
}

/// A change by this process that the others must receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalChange {
    /// The new status.
    pub status: BreakerStatus,
    /// The number of the change.
    pub(super) number: u64,
}

impl LocalChange {
    /// Number of the change. Later changes have higher ones.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }
}

/// A breaker that is open here, and that others know or should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedBreaker {
    /// Its status.
    pub status: BreakerStatus,
    /// The version in which it was received or sent.
    pub version: u64,
}

#[derive(Clone, Copy, Debug)]
struct PendingChange {
    number: u64,
    to: BreakerState,
    reason: BreakerReason,
}

#[derive(Debug, Default)]
struct ReplicationEntry {
    /// The newest version received or sent.
    version: u64,
    /// The last local change, if the others do not know it yet. Until they do, it is valid.
    pending: Option<PendingChange>,
}

/// How far local and shared states agree.
#[derive(Debug, Default)]
pub(super) struct ReplicationState {
    enabled: bool,
    tokens: HashMap<Credential, String>,
    entries: HashMap<SharedBreakerKey, ReplicationEntry>,
    last_number: u64,
    /// What was restored before there were others: they know better.
    restored: Vec<(BreakerKey, BreakerState)>,
}

impl ReplicationState {
    pub(super) fn start(&mut self) {
        self.enabled = true;
    }

    pub(super) fn set_token(&mut self, credential: Credential, fingerprint: Option<&str>) {
        match fingerprint {
            Some(fingerprint) => self.tokens.insert(credential, fingerprint.to_owned()),
            None => self.tokens.remove(&credential),
        };
    }

    /// Records that a breaker is in this state because it was restored from an earlier run of this process.
    pub(super) fn restored(&mut self, key: &BreakerKey, state: BreakerState) {
        if !self.enabled {
            self.restored.push((key.clone(), state));
        }
    }

    /// What was restored; not needed any more once there are others.
    pub(super) fn take_restored(&mut self) -> Vec<(BreakerKey, BreakerState)> {
        std::mem::take(&mut self.restored)
    }

    /// Whether other processes have the same breaker.
    pub(super) fn covers(&self, key: &BreakerKey) -> bool {
        self.enabled && is_shared(key)
    }

    /// Whether one process probes the breaker for all. A target is probed by deliveries, which the process with the
    /// claim may not have.
    pub(super) fn needs_claim(&self, key: &BreakerKey) -> bool {
        self.covers(key) && key.kind() != BreakerKind::Target
    }

    /// Queues a local change for the others.
    pub(super) fn queue_change(&mut self, key: &BreakerKey, to: BreakerState, reason: BreakerReason) {
        if !self.covers(key) {
            return;
        }
        let token = self.token_of(key);
        let (whole, token) = match (to, reason) {
            (BreakerState::HalfOpen, _) => (false, None),
            (BreakerState::ForcedOpen { why: BreakerReason::Unauthorized }, _) => (false, token),
            // The same token again: it is valid again. For another token, nothing is known here that could be
            // withdrawn.
            (BreakerState::Closed, BreakerReason::TokenChanged) => {
                (false, token.filter(|token| self.knows_token(key, token)))
            }
            (BreakerState::Closed, BreakerReason::Reset) => (true, token),
            (BreakerState::Open { .. } | BreakerState::ForcedOpen { .. } | BreakerState::Closed, _) => (true, None),
        };
        if whole {
            self.queue_key(SharedBreakerKey { key: key.clone(), token: None }, to, reason);
        }
        if token.is_some() {
            self.queue_key(SharedBreakerKey { key: key.clone(), token }, to, reason);
        }
    }

    fn queue_key(&mut self, shared_key: SharedBreakerKey, to: BreakerState, reason: BreakerReason) {
        if !self.make_room(&shared_key) {
            return;
        }
        self.last_number += 1;
        let number = self.last_number;
        self.entries.entry(shared_key).or_default().pending = Some(PendingChange { number, to, reason });
    }

    pub(super) fn token_of(&self, key: &BreakerKey) -> Option<String> {
        match key {
            BreakerKey::Discord(credential) => self.tokens.get(credential).cloned(),
            BreakerKey::Address | BreakerKey::Route(..) | BreakerKey::Pair(..) | BreakerKey::Target(_) => None,
        }
    }

    fn knows_token(&self, key: &BreakerKey, token: &str) -> bool {
        self.entries.contains_key(&SharedBreakerKey { key: key.clone(), token: Some(token.to_owned()) })
    }

    /// The shared key of a state that is not closed; `None` if it is not shared.
    pub(super) fn shared_key_of(&self, key: &BreakerKey, state: BreakerState) -> Option<SharedBreakerKey> {
        if !self.covers(key) {
            return None;
        }
        match state {
            BreakerState::Closed | BreakerState::HalfOpen => None,
            BreakerState::ForcedOpen { why: BreakerReason::Unauthorized } => {
                self.token_of(key).map(|token| SharedBreakerKey { key: key.clone(), token: Some(token) })
            }
            BreakerState::Open { .. } | BreakerState::ForcedOpen { .. } => {
                Some(SharedBreakerKey { key: key.clone(), token: None })
            }
        }
    }

    /// Whether a remote change concerns this process, and is not older than what it knows.
    pub(super) fn accepts(&self, shared_key: &SharedBreakerKey, version: u64) -> bool {
        if !self.covers(&shared_key.key) {
            return false;
        }
        if shared_key.token.is_some() && shared_key.token != self.token_of(&shared_key.key) {
            return false;
        }
        self.entries.get(shared_key).is_none_or(|entry| entry.pending.is_none() && entry.version <= version)
    }

    pub(super) fn version(&self, shared_key: &SharedBreakerKey) -> u64 {
        self.entries.get(shared_key).map_or(0, |entry| entry.version)
    }

    pub(super) fn is_pending(&self, shared_key: &SharedBreakerKey) -> bool {
        self.entries.get(shared_key).is_some_and(|entry| entry.pending.is_some())
    }

    pub(super) fn on_received(&mut self, shared_key: &SharedBreakerKey, version: u64) {
        if self.make_room(shared_key) {
            let entry = self.entries.entry(shared_key.clone()).or_default();
            entry.version = entry.version.max(version);
        }
    }

    /// Records that the others know a change; if there was no other one since, nothing is pending.
    pub(super) fn on_sent(&mut self, change: &LocalChange, version: u64) {
        if let Some(entry) = self.entries.get_mut(&change.status.shared_key) {
            entry.version = entry.version.max(version);
            entry.pending = entry.pending.filter(|untold| untold.number != change.number);
        }
    }

    /// Changes that the others do not know, oldest first. Changes that have expired meanwhile are dropped.
    pub(super) fn pending_changes(&mut self, now: Timestamp) -> Vec<LocalChange> {
        let mut changes = Vec::new();
        for (shared_key, entry) in &mut self.entries {
            entry.pending =
                entry.pending.filter(|untold| !matches!(untold.to, BreakerState::Open { until } if until <= now));
            if let Some(PendingChange { number, to, reason }) = entry.pending {
                changes.push(LocalChange {
                    status: BreakerStatus { shared_key: shared_key.clone(), state: shared_state(to, now), reason },
                    number,
                });
            }
        }
        changes.sort_unstable_by_key(|turn| turn.number);
        changes.truncate(BATCH_SIZE);
        changes
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether a key is present or can be added. At the maximum, the oldest received ones are removed, never pending
    /// ones.
    fn make_room(&mut self, shared_key: &SharedBreakerKey) -> bool {
        if self.entries.len() < MAX_KEYS || self.entries.contains_key(shared_key) {
            return true;
        }
        let sent = self.entries.iter().filter(|(_, entry)| entry.pending.is_none());
        let oldest = sent.min_by_key(|(_, entry)| entry.version).map(|(shared_key, _)| shared_key.clone());
        oldest.is_some_and(|oldest| self.entries.remove(&oldest).is_some())
    }
}

/// Converts a state to its shared form.
pub(super) fn shared_state(state: BreakerState, now: Timestamp) -> SharedBreakerState {
    match state {
        BreakerState::Closed | BreakerState::HalfOpen => SharedBreakerState::Closed,
        BreakerState::Open { until } => SharedBreakerState::Open { remaining: until.since(now) },
        BreakerState::ForcedOpen { .. } => SharedBreakerState::ForcedOpen,
    }
}

/// Breakers of single objects are too many, and mostly concern one process.
const fn is_shared(key: &BreakerKey) -> bool {
    match key.kind() {
        BreakerKind::Address | BreakerKind::Discord | BreakerKind::Route | BreakerKind::Target => true,
        BreakerKind::Pair => false,
    }
}
