//! Replication of decisions between processes.
//!
//! ```text
//!   a change here ──▶ pending_changes ──▶ … sent to the others … ──▶ on_sent
//!   a remote change ──▶ apply_remote ──▶ a change here that is not sent again
//! ```
//!
//! The shared store has one state for each [`SharedBreakerKey`], gives every change of it a higher version, and does
//! not let probes or cooldowns close or open a breaker that is forced open. So the newest version is valid, with one
//! exception: a local change that the others do not know yet is valid until it was sent.

use std::collections::HashSet;
use std::time::Duration;

use crate::response::Credential;
use crate::time::Timestamp;

use super::machine::{Breaker, Transition, TransitionContext};
use super::shared::stand;
use super::{
    BreakerEffect, BreakerKey, BreakerReason, BreakerState, BreakerStatus, Breakers, ChangeOrigin, LocalChange,
    RemoteChange, SharedBreaker, SharedBreakerKey, SharedBreakerState,
};

impl Breakers {
    /// From now on there are other processes. `tokens` are the fingerprints of the tokens of this process: an invalid
    /// token concerns processes with the same fingerprint.
    pub fn share<'a>(&mut self, tokens: impl IntoIterator<Item = (Credential, &'a str)>, now: Timestamp) {
        self.shared.start();
        for (credential, fingerprint) in tokens {
            self.shared.set_token(credential, Some(fingerprint));
        }
        let open: Vec<(BreakerKey, BreakerState, BreakerReason)> =
            self.shelf.iter().map(|(key, breaker)| (key.clone(), breaker.state(), breaker.why())).collect();
        // What was restored from an earlier run is not new to the others: it is valid here until they replace it.
        let recalled: HashSet<(BreakerKey, BreakerState)> = self.shared.take_recalled().into_iter().collect();
        for (key, state, why) in open.into_iter().filter(|(_, state, _)| *state != BreakerState::Closed) {
            if !recalled.contains(&(key.clone(), state)) {
                self.shared.note(&key, state, why);
            }
            self.require_claim(&key, now);
        }
    }

    /// Applies a decision of another process, unless it is older than what is known here, or does not concern this
    /// process.
    pub fn adopt(&mut self, news: &RemoteChange, now: Timestamp) -> Vec<BreakerEffect> {
        let RemoteChange { word, version } = news;
        let matter = &word.matter;
        if !self.shared.takes(matter, *version) {
            return Vec::new();
        }
        // Without room for its breaker it is ignored: there may be room when it is sent again.
        if word.stand != SharedBreakerState::Closed && !self.shelf.watch(&matter.key, now) {
            return Vec::new();
        }
        let again = self.shared.version(matter) == *version;
        let change = self.shelf.change(&matter.key, now, |breaker, step| adopted(word, again, breaker, step));
        self.shared.heard(matter, *version);
        change.map(|change| self.turned(&matter.key, change, ChangeOrigin::Elsewhere)).into_iter().collect()
    }

    /// Local changes that the others do not know yet, oldest first; at most 64.
    pub fn turns(&mut self, now: Timestamp) -> Vec<LocalChange> {
        self.shared.turns(now)
    }

    /// Records that the others have received a change, with this version.
    pub fn told(&mut self, turn: &LocalChange, version: u64) {
        self.shared.told(turn, version);
    }

    /// Breakers that are open here and are, or should be, known to the others: enough to rebuild a lost shared store.
    #[must_use]
    pub fn standing(&self, now: Timestamp) -> Vec<SharedBreaker> {
        let mut standing = Vec::new();
        for (key, breaker) in self.shelf.iter() {
            let state = breaker.state();
            let Some(matter) = self.shared.matter_of(key, state) else { continue };
            let stand = stand(state, now);
            if self.shared.is_untold(&matter) || stand == (SharedBreakerState::Open { remaining: Duration::ZERO }) {
                continue;
            }
            let version = self.shared.version(&matter);
            standing.push(SharedBreaker { word: BreakerStatus { matter, stand, why: breaker.why() }, version });
        }
        standing
    }

    /// A breaker that is forced open here was closed elsewhere so long ago that the reason is unknown: it is closed
    /// here too.
    pub fn ended_elsewhere(&mut self, matter: &SharedBreakerKey, version: u64, now: Timestamp) -> Vec<BreakerEffect> {
        let word =
            BreakerStatus { matter: matter.clone(), stand: SharedBreakerState::Closed, why: BreakerReason::Reset };
        self.adopt(&RemoteChange { word, version }, now)
    }
}

/// Applies a remote change to a breaker. `again` if its version was received before: it is not new, but another local
/// state that has ended since may have replaced it.
fn adopted(
    word: &BreakerStatus,
    again: bool,
    breaker: &mut Breaker,
    step: TransitionContext<'_>,
) -> Option<Transition> {
    let about_token = word.matter.token.is_some();
    match (word.stand, breaker.state()) {
        (SharedBreakerState::ForcedOpen, BreakerState::Closed | BreakerState::Open { .. } | BreakerState::HalfOpen)
            if about_token =>
        {
            Some(breaker.force(BreakerReason::Unauthorized, step))
        }
        (SharedBreakerState::Closed, BreakerState::ForcedOpen { why: BreakerReason::Unauthorized }) if about_token => {
            Some(breaker.close_with(word.why, step))
        }
        (SharedBreakerState::Closed | SharedBreakerState::Open { .. } | SharedBreakerState::ForcedOpen, _)
            if about_token =>
        {
            None
        }

        (SharedBreakerState::ForcedOpen, BreakerState::ForcedOpen { why: BreakerReason::Forced }) => None,
        (SharedBreakerState::ForcedOpen, _) => Some(breaker.force(BreakerReason::Forced, step)),
        // An invalid token stays invalid, whatever else is open or closed.
        (
            SharedBreakerState::Closed | SharedBreakerState::Open { .. },
            BreakerState::ForcedOpen { why: BreakerReason::Unauthorized },
        ) => None,
        (SharedBreakerState::Closed, BreakerState::Closed) => None,
        (
            SharedBreakerState::Closed,
            BreakerState::Open { .. } | BreakerState::HalfOpen | BreakerState::ForcedOpen { .. },
        ) => Some(breaker.close_with(word.why, step)),
        (
            SharedBreakerState::Open { remaining: Duration::ZERO },
            BreakerState::Closed | BreakerState::Open { .. } | BreakerState::HalfOpen,
        ) => None,
        // It is cooling down or probing for the same reason.
        (SharedBreakerState::Open { .. }, BreakerState::Open { .. } | BreakerState::HalfOpen) if again => None,
        (SharedBreakerState::Open { remaining }, BreakerState::Open { .. }) => {
            breaker.stay_open(remaining, word.why, step);
            None
        }
        (
            SharedBreakerState::Open { remaining },
            BreakerState::Closed | BreakerState::HalfOpen | BreakerState::ForcedOpen { .. },
        ) => Some(breaker.open_with(remaining, word.why, step)),
    }
}
