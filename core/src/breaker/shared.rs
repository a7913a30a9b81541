//! What processes tell each other of their breakers, and what each keeps of it.

use std::collections::HashMap;
use std::time::Duration;

use serde::Serialize;

use super::{BreakerKey, BreakerKind, BreakerReason, BreakerState};
use crate::response::Credential;
use crate::time::Timestamp;

/// How many matters are kept in mind. There are as many as bots, routes and targets; past that the oldest go.
const MOST_KNOWN: usize = 10_000;

/// How many changes are handed over at once.
const MOST_TURNS: usize = 64;

/// Who decided a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeOrigin {
    /// This process.
    Here,
    /// Another one.
    Elsewhere,
    /// An earlier life of this one: it was remembered over a restart.
    Before,
}

impl ChangeOrigin {
    /// Its name, as metrics and logs have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Here => "here",
            Self::Elsewhere => "elsewhere",
            Self::Before => "before",
        }
    }
}

/// What is shared: the state of a breaker, but for a wrong token; or whether one token is wrong, which concerns only the
/// processes that have it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SharedBreakerKey {
    /// The breaker.
    pub key: BreakerKey,
    /// The fingerprint of the token.
    pub token: Option<String>,
}

/// A state as processes tell it. None is ever half-open to others: one of them probes, and tells what it found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedBreakerState {
    /// Calls go out.
    Closed,
    /// None does.
    Open {
        /// For so long.
        remaining: Duration,
    },
    /// None does until something other than time changes it.
    ForcedOpen,
}

/// What is said of a breaker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BreakerStatus {
    /// What it is about.
    pub matter: SharedBreakerKey,
    /// Its state.
    pub stand: SharedBreakerState,
    /// Why.
    pub why: BreakerReason,
}

/// What another process has said of a breaker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteChange {
    /// What.
    pub word: BreakerStatus,
    /// The higher, the newer.
    pub version: u64,
}

/// A change of our own that the others are to hear of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalChange {
    /// What they are to hear.
    pub word: BreakerStatus,
    /// The number of the change.
    pub(super) number: u64,
}

impl LocalChange {
    /// The number of the change. Later changes have higher ones.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }
}

/// A breaker that is open here, which others know of or should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedBreaker {
    /// What there is to know.
    pub word: BreakerStatus,
    /// The version that it was heard or told in.
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
    /// The newest version heard or told.
    version: u64,
    /// The last change of our own, if the others do not know it yet. Until they do, it stands.
    untold: Option<PendingChange>,
}

/// How far what is known here and elsewhere agree.
#[derive(Debug, Default)]
pub(super) struct ReplicationState {
    on: bool,
    tokens: HashMap<Credential, String>,
    known: HashMap<SharedBreakerKey, ReplicationEntry>,
    numbers: u64,
    /// What was recalled before there were others: theirs to know better.
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

    /// A breaker is in this state because an earlier life of this process had it so.
    pub(super) fn recalled(&mut self, key: &BreakerKey, state: BreakerState) {
        if !self.on {
            self.recalled.push((key.clone(), state));
        }
    }

    /// What was recalled and no longer matters once there are others.
    pub(super) fn take_recalled(&mut self) -> Vec<(BreakerKey, BreakerState)> {
        std::mem::take(&mut self.recalled)
    }

    /// Whether other processes have the same breaker.
    pub(super) fn covers(&self, key: &BreakerKey) -> bool {
        self.on && is_shared(key)
    }

    /// Whether one process probes the breaker for all. A target is probed by deliveries, which the process with the claim may
    /// not have.
    pub(super) fn needs_claim(&self, key: &BreakerKey) -> bool {
        self.covers(key) && key.kind() != BreakerKind::Target
    }

    /// A change of our own is to be told.
    pub(super) fn note(&mut self, key: &BreakerKey, to: BreakerState, why: BreakerReason) {
        if !self.covers(key) {
            return;
        }
        let token = self.token_of(key);
        let (whole, token) = match (to, why) {
            (BreakerState::HalfOpen, _) => (false, None),
            (BreakerState::ForcedOpen { why: BreakerReason::Unauthorized }, _) => (false, token),
            // The same token once more: it is right again. Of another one nothing is known here that could be withdrawn.
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

    /// Under what a state that is not closed is shared; nothing if it is not.
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

    /// Whether news concern this process, and are not older than what it knows.
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

    /// The others know of a change now; unless there was another one since, that is all there is to tell.
    pub(super) fn told(&mut self, turn: &LocalChange, version: u64) {
        if let Some(known) = self.known.get_mut(&turn.word.matter) {
            known.version = known.version.max(version);
            known.untold = known.untold.filter(|untold| untold.number != turn.number);
        }
    }

    /// Changes that the others do not know of, the oldest first. What time has undone meanwhile is forgotten.
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

    /// Whether a matter is known or can be. At the bound the oldest news go, never what is untold.
    fn make_room(&mut self, matter: &SharedBreakerKey) -> bool {
        if self.known.len() < MOST_KNOWN || self.known.contains_key(matter) {
            return true;
        }
        let told = self.known.iter().filter(|(_, known)| known.untold.is_none());
        let oldest = told.min_by_key(|(_, known)| known.version).map(|(matter, _)| matter.clone());
        oldest.is_some_and(|oldest| self.known.remove(&oldest).is_some())
    }
}

/// A state as it is told.
pub(super) fn stand(state: BreakerState, now: Timestamp) -> SharedBreakerState {
    match state {
        BreakerState::Closed | BreakerState::HalfOpen => SharedBreakerState::Closed,
        BreakerState::Open { until } => SharedBreakerState::Open { remaining: until.since(now) },
        BreakerState::ForcedOpen { .. } => SharedBreakerState::ForcedOpen,
    }
}

/// Objects are too many, and too much one process's business.
const fn is_shared(key: &BreakerKey) -> bool {
    match key.kind() {
        BreakerKind::Address | BreakerKind::Discord | BreakerKind::Route | BreakerKind::Target => true,
        BreakerKind::Pair => false,
    }
}
