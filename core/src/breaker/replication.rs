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
use super::shared::shared_state;
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
            self.table.iter().map(|(key, breaker)| (key.clone(), breaker.state(), breaker.reason())).collect();
        // What was restored from an earlier run is not new to the others: it is valid here until they replace it.
        let recalled: HashSet<(BreakerKey, BreakerState)> = self.shared.take_restored().into_iter().collect();
        for (key, state, reason) in open.into_iter().filter(|(_, state, _)| *state != BreakerState::Closed) {
            if !recalled.contains(&(key.clone(), state)) {
                self.shared.queue_change(&key, state, reason);
            }
            self.require_claim(&key, now);
        }
    }

    /// Applies a decision of another process, unless it is older than what is known here, or does not concern this
    /// process.
    pub fn apply_remote(&mut self, remote: &RemoteChange, now: Timestamp) -> Vec<BreakerEffect> {
        let RemoteChange { status, version } = remote;
        let shared_key = &status.shared_key;
        if !self.shared.accepts(shared_key, *version) {
            return Vec::new();
        }
        // Without room for its breaker it is ignored: there may be room when it is sent again.
        if status.state != SharedBreakerState::Closed && !self.table.ensure(&shared_key.key, now) {
            return Vec::new();
        }
        let again = self.shared.version(shared_key) == *version;
        let change =
            self.table.change(&shared_key.key, now, |breaker, step| apply_status(status, again, breaker, step));
        self.shared.on_received(shared_key, *version);
        change
            .map(|change| self.record_transition(&shared_key.key, change, ChangeOrigin::Elsewhere))
            .into_iter()
            .collect()
    }

    /// Local changes that the others do not know yet, oldest first; at most 64.
    pub fn pending_changes(&mut self, now: Timestamp) -> Vec<LocalChange> {
        self.shared.pending_changes(now)
    }

    /// Records that the others have received a change, with this version.
    pub fn on_sent(&mut self, change: &LocalChange, version: u64) {
        self.shared.on_sent(change, version);
    }

    /// Breakers that are open here and are, or should be, known to the others: enough to rebuild a lost shared store.
    #[must_use]
    pub fn open_breakers(&self, now: Timestamp) -> Vec<SharedBreaker> {
        let mut breakers = Vec::new();
        for (key, breaker) in self.table.iter() {
            let state = breaker.state();
            let Some(shared_key) = self.shared.shared_key_of(key, state) else { continue };
            let shared_state = shared_state(state, now);
            if self.shared.is_pending(&shared_key)
                || shared_state == (SharedBreakerState::Open { remaining: Duration::ZERO })
            {
                continue;
            }
            let version = self.shared.version(&shared_key);
            breakers.push(SharedBreaker {
                status: BreakerStatus { shared_key, state: shared_state, reason: breaker.reason() },
                version,
            });
        }
        breakers
    }

    /// A breaker that is forced open here was closed elsewhere so long ago that the reason is unknown: it is closed
    /// here too.
    pub fn on_closed_elsewhere(
        &mut self,
        shared_key: &SharedBreakerKey,
        version: u64,
        now: Timestamp,
    ) -> Vec<BreakerEffect> {
        let status = BreakerStatus {
            shared_key: shared_key.clone(),
            state: SharedBreakerState::Closed,
            reason: BreakerReason::Reset,
        };
        self.apply_remote(&RemoteChange { status, version }, now)
    }
}

/// Applies a remote change to a breaker. `again` if its version was received before: it is not new, but another local
/// state that has ended since may have replaced it.
fn apply_status(
    status: &BreakerStatus,
    again: bool,
    breaker: &mut Breaker,
    step: TransitionContext<'_>,
) -> Option<Transition> {
    let about_token = status.shared_key.token.is_some();
    match (status.state, breaker.state()) {
        (SharedBreakerState::ForcedOpen, BreakerState::Closed | BreakerState::Open { .. } | BreakerState::HalfOpen)
            if about_token =>
        {
            Some(breaker.force(BreakerReason::Unauthorized, step))
        }
        (SharedBreakerState::Closed, BreakerState::ForcedOpen { why: BreakerReason::Unauthorized }) if about_token => {
            Some(breaker.close_from_remote(status.reason, step))
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
        ) => Some(breaker.close_from_remote(status.reason, step)),
        (
            SharedBreakerState::Open { remaining: Duration::ZERO },
            BreakerState::Closed | BreakerState::Open { .. } | BreakerState::HalfOpen,
        ) => None,
        // It is cooling down or probing for the same reason.
        (SharedBreakerState::Open { .. }, BreakerState::Open { .. } | BreakerState::HalfOpen) if again => None,
        (SharedBreakerState::Open { remaining }, BreakerState::Open { .. }) => {
            breaker.set_remaining(remaining, status.reason, step);
            None
        }
        (
            SharedBreakerState::Open { remaining },
            BreakerState::Closed | BreakerState::HalfOpen | BreakerState::ForcedOpen { .. },
        ) => Some(breaker.open_from_remote(remaining, status.reason, step)),
    }
}
