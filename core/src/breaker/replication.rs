//! Taking over what other processes decided.
//!
//! ```text
//!   a change here ──▶ turns ──▶ … told to the others … ──▶ told
//!   news ──▶ adopt ──▶ a change here that nobody is told again
//! ```
//!
//! Whoever carries the news keeps one state for each [`Matter`], gives every change of it a higher version, and never lets a
//! breaker that is forced open be opened for a time or closed by probes. So the newest version is the truth, with one
//! exception: a change of our own that the others do not know yet stands until it was told.

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
    /// From now on there are other processes. `tokens` are the fingerprints of the tokens that this one has: what is wrong
    /// with one concerns those that have the same.
    pub fn share<'a>(&mut self, tokens: impl IntoIterator<Item = (Credential, &'a str)>, now: Timestamp) {
        self.shared.start();
        for (credential, fingerprint) in tokens {
            self.shared.set_token(credential, Some(fingerprint));
        }
        let open: Vec<(BreakerKey, BreakerState, BreakerReason)> =
            self.shelf.iter().map(|(key, breaker)| (key.clone(), breaker.state(), breaker.why())).collect();
        // What an earlier life remembered is no news to them: it stands here until they say otherwise.
        let recalled: HashSet<(BreakerKey, BreakerState)> = self.shared.take_recalled().into_iter().collect();
        for (key, state, why) in open.into_iter().filter(|(_, state, _)| *state != BreakerState::Closed) {
            if !recalled.contains(&(key.clone(), state)) {
                self.shared.note(&key, state, why);
            }
            self.require_claim(&key, now);
        }
    }

    /// Takes over what another process decided, unless it is older than what is known here, or no concern of this one.
    pub fn adopt(&mut self, news: &RemoteChange, now: Timestamp) -> Vec<BreakerEffect> {
        let RemoteChange { word, version } = news;
        let matter = &word.matter;
        if !self.shared.takes(matter, *version) {
            return Vec::new();
        }
        // Without room for its breaker it is not heard: there may be room when it is told again.
        if word.stand != SharedBreakerState::Closed && !self.shelf.watch(&matter.key, now) {
            return Vec::new();
        }
        let again = self.shared.version(matter) == *version;
        let change = self.shelf.change(&matter.key, now, |breaker, step| adopted(word, again, breaker, step));
        self.shared.heard(matter, *version);
        change.map(|change| self.turned(&matter.key, change, ChangeOrigin::Elsewhere)).into_iter().collect()
    }

    /// Changes of our own that the others do not know of yet, the oldest first; at most 64.
    pub fn turns(&mut self, now: Timestamp) -> Vec<LocalChange> {
        self.shared.turns(now)
    }

    /// The others have heard of a change, which has this version there.
    pub fn told(&mut self, turn: &LocalChange, version: u64) {
        self.shared.told(turn, version);
    }

    /// What is open here and known, or should be, elsewhere: enough to make anew what was lost there.
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

    /// A matter that is forced open here ended elsewhere so long ago that nobody knows how: it is closed here, too.
    pub fn ended_elsewhere(&mut self, matter: &SharedBreakerKey, version: u64, now: Timestamp) -> Vec<BreakerEffect> {
        let word =
            BreakerStatus { matter: matter.clone(), stand: SharedBreakerState::Closed, why: BreakerReason::Reset };
        self.adopt(&RemoteChange { word, version }, now)
    }
}

/// What news do to a breaker. `again` if their version was heard before: nothing in it is new, but what it says may have
/// been overlaid here by something that is over.
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
        // A wrong token stays wrong, whatever else is open or closed.
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
        // It is cooling down or probing for that very reason.
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
