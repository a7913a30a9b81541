//! Shared state of breakers, and what each process stores of it.

use std::collections::HashMap;
use std::time::Duration;

use serde::Serialize;

use super::{BreakerKey, BreakerKind, BreakerReason, BreakerState};
use crate::response::Credential;
use crate::time::Timestamp;

/// Maximum number of shared keys. There are as many as bots, routes and targets; beyond that the oldest are removed.
const MOST_KNOWN: usize = 10_000;

/// Maximum number of changes per batch.
const MOST_TURNS: usize = 64;

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
    pub matter: SharedBreakerKey,
    /// Its state.
    pub stand: SharedBreakerState,
    /// The reason.
    pub why: BreakerReason,
}

/// A change by another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteChange {
    /// The new status.
    pub word: BreakerStatus,
    /// Higher versions are newer.
    pub version: u64,
}

/// A change by this process that the others must receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalChange {
    /// The new status.
    pub word: BreakerStatus,
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
    pub word: BreakerStatus,
    /// The version in which it was received or sent.
    pub version: u64,
}

#[derive(Clone, Copy, Debug)]
struct PendingChange {
    number: u64,
    to: BreakerState,
    why: BreakerReason,
}

#[derive(Debug, Default)]
struct ReplicationEntry {
    /// The newest version received or sent.
    version: u64,
    /// The last local change, if the others do not know it yet. Until they do, it is valid.
    untold: Option<PendingChange>,
}

/// How far local and shared states agree.
#[derive(Debug, Default)]
pub(super) struct ReplicationState {
    on: bool,
    tokens: HashMap<Credential, String>,
    known: HashMap<SharedBreakerKey, ReplicationEntry>,
    numbers: u64,
    /// What was restored before there were others: they know better.
    recalled: Vec<(BreakerKey, BreakerState)>,
}

impl ReplicationState {
    pub(super) fn start(&mut self) {
        self.on = true;
    }

    pub(super) fn set_token(&mut self, credential: Credential, fingerprint: Option<&str>) {
        match fingerprint {
            Some(fingerprint) => self.tokens.insert(credential, fingerprint.to_owned()),
            None => self.tokens.remove(&credential),
        };
    }

    /// Records that a breaker is in this state because it was restored from an earlier run of this process.
    pub(super) fn recalled(&mut self, key: &BreakerKey, state: BreakerState) {
        if !self.on {
            self.recalled.push((key.clone(), state));
        }
    }

    /// What was restored; not needed any more once there are others.
    pub(super) fn take_recalled(&mut self) -> Vec<(BreakerKey, BreakerState)> {
        std::mem::take(&mut self.recalled)
    }

    /// Whether other processes have the same breaker.
    pub(super) fn covers(&self, key: &BreakerKey) -> bool {
        self.on && is_shared(key)
    }

    /// Whether one process probes the breaker for all. A target is probed by deliveries, which the process with the
    /// claim may not have.
    pub(super) fn needs_claim(&self, key: &BreakerKey) -> bool {
        self.covers(key) && key.kind() != BreakerKind::Target
    }

    /// Queues a local change for the others.
    pub(super) fn note(&mut self, key: &BreakerKey, to: BreakerState, why: BreakerReason) {
        if !self.covers(key) {
            return;
        }
        let token = self.token_of(key);
        let (whole, token) = match (to, why) {
            (BreakerState::HalfOpen, _) => (false, None),
            (BreakerState::ForcedOpen { why: BreakerReason::Unauthorized }, _) => (false, token),
            // The same token again: it is valid again. For another token, nothing is known here that could be
            // withdrawn.
            (BreakerState::Closed, BreakerReason::TokenChanged) => {
                (false, token.filter(|token| self.has_heard_of(key, token)))
            }
            (BreakerState::Closed, BreakerReason::Reset) => (true, token),
            (BreakerState::Open { .. } | BreakerState::ForcedOpen { .. } | BreakerState::Closed, _) => (true, None),
        };
        if whole {
            self.note_matter(SharedBreakerKey { key: key.clone(), token: None }, to, why);
        }
        if token.is_some() {
            self.note_matter(SharedBreakerKey { key: key.clone(), token }, to, why);
        }
    }

    fn note_matter(&mut self, matter: SharedBreakerKey, to: BreakerState, why: BreakerReason) {
        if !self.make_room(&matter) {
            return;
        }
        self.numbers += 1;
        let number = self.numbers;
        self.known.entry(matter).or_default().untold = Some(PendingChange { number, to, why });
    }

    pub(super) fn token_of(&self, key: &BreakerKey) -> Option<String> {
        match key {
            BreakerKey::Discord(credential) => self.tokens.get(credential).cloned(),
            BreakerKey::Address | BreakerKey::Route(..) | BreakerKey::Pair(..) | BreakerKey::Target(_) => None,
        }
    }

    fn has_heard_of(&self, key: &BreakerKey, token: &str) -> bool {
        self.known.contains_key(&SharedBreakerKey { key: key.clone(), token: Some(token.to_owned()) })
    }

    /// The shared key of a state that is not closed; `None` if it is not shared.
    pub(super) fn matter_of(&self, key: &BreakerKey, state: BreakerState) -> Option<SharedBreakerKey> {
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
    pub(super) fn takes(&self, matter: &SharedBreakerKey, version: u64) -> bool {
        if !self.covers(&matter.key) {
            return false;
        }
        if matter.token.is_some() && matter.token != self.token_of(&matter.key) {
            return false;
        }
        self.known.get(matter).is_none_or(|known| known.untold.is_none() && known.version <= version)
    }

    pub(super) fn version(&self, matter: &SharedBreakerKey) -> u64 {
        self.known.get(matter).map_or(0, |known| known.version)
    }

    pub(super) fn is_untold(&self, matter: &SharedBreakerKey) -> bool {
        self.known.get(matter).is_some_and(|known| known.untold.is_some())
    }

    pub(super) fn heard(&mut self, matter: &SharedBreakerKey, version: u64) {
        if self.make_room(matter) {
            let known = self.known.entry(matter.clone()).or_default();
            known.version = known.version.max(version);
        }
    }

    /// Records that the others know a change; if there was no other one since, nothing is pending.
    pub(super) fn told(&mut self, turn: &LocalChange, version: u64) {
        if let Some(known) = self.known.get_mut(&turn.word.matter) {
            known.version = known.version.max(version);
            known.untold = known.untold.filter(|untold| untold.number != turn.number);
        }
    }

    /// Changes that the others do not know, oldest first. Changes that have expired meanwhile are dropped.
    pub(super) fn turns(&mut self, now: Timestamp) -> Vec<LocalChange> {
        let mut turns = Vec::new();
        for (matter, known) in &mut self.known {
            known.untold =
                known.untold.filter(|untold| !matches!(untold.to, BreakerState::Open { until } if until <= now));
            if let Some(PendingChange { number, to, why }) = known.untold {
                turns.push(LocalChange {
                    word: BreakerStatus { matter: matter.clone(), stand: stand(to, now), why },
                    number,
                });
            }
        }
        turns.sort_unstable_by_key(|turn| turn.number);
        turns.truncate(MOST_TURNS);
        turns
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether a key is present or can be added. At the maximum, the oldest received ones are removed, never pending
    /// ones.
    fn make_room(&mut self, matter: &SharedBreakerKey) -> bool {
        if self.known.len() < MOST_KNOWN || self.known.contains_key(matter) {
            return true;
        }
        let told = self.known.iter().filter(|(_, known)| known.untold.is_none());
        let oldest = told.min_by_key(|(_, known)| known.version).map(|(matter, _)| matter.clone());
        oldest.is_some_and(|oldest| self.known.remove(&oldest).is_some())
    }
}

/// Converts a state to its shared form.
pub(super) fn stand(state: BreakerState, now: Timestamp) -> SharedBreakerState {
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
