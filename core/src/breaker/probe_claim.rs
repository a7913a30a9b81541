//! One process probes a shared breaker for all.
//!
//! ```text
//!  half-open ─▶ ClaimProbe ─▶ probe_claims ─▶ … requested … ─▶ on_claim_response ─┬─▶ granted: probes, shares result
//!      ▲                                                                          └─▶ held elsewhere: waits
//!      └───────────────── the claim has expired without a result ◀──────────────────────────────┘
//! ```
//!
//! Without it, every process that shares a ban would probe at the moment when the ban ends, with the calls of one
//! client that Discord has just banned.

use std::time::Duration;

use super::machine::Breaker;
use super::{BreakerEffect, BreakerKey, Breakers, SharedBreakerKey};
use crate::time::Timestamp;

/// The claim to probe a half-open breaker, to be requested from the shared store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeClaim {
    /// The breaker.
    pub shared_key: SharedBreakerKey,
    /// Duration of the claim: longer than any probe that starts with it.
    pub duration: Duration,
    /// When it was requested, and since when the breaker is half-open: a response after another change is ignored.
    requested: Timestamp,
    half_open_since: Timestamp,
}

/// Response to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimResponse {
    /// This process probes.
    Granted,
    /// Another process probes.
    HeldElsewhere {
        /// Maximum remaining time.
        remaining: Duration,
    },
}

impl Breakers {
    /// Claims that must be requested. Each response goes to [`Breakers::on_claim_response`]; there may be more claims
    /// then.
    ///
    /// A claim is requested only if no wider breaker on its path waits for a claim: otherwise two processes that each
    /// hold what the other needs would both wait.
    #[must_use]
    pub fn probe_claims(&self, now: Timestamp) -> Vec<ProbeClaim> {
        let needed = self.table.iter().filter(|(key, breaker)| breaker.needs_claim() && self.may_claim(key, now));
        let claim = |(key, breaker): (&BreakerKey, &Breaker)| ProbeClaim {
            shared_key: SharedBreakerKey { key: key.clone(), token: None },
            duration: self.table.config.probe_timeout + self.table.config.probe_after,
            requested: now,
            half_open_since: breaker.changed(),
        };
        needed.map(claim).collect()
    }

    fn may_claim(&self, key: &BreakerKey, now: Timestamp) -> bool {
        let passes =
            |wider| self.table.get(&wider).is_none_or(|wider| wider.check(true, &self.table.config, now).is_ok());
        match key {
            BreakerKey::Address | BreakerKey::Target(_) => true,
            BreakerKey::Discord(_) => passes(BreakerKey::Address),
            BreakerKey::Route(credential, _) | BreakerKey::Pair(credential, ..) => {
                passes(BreakerKey::Address) && passes(BreakerKey::Discord(*credential))
            }
        }
    }

    /// Applies the response to a claim.
    pub fn on_claim_response(&mut self, claim: &ProbeClaim, response: ClaimResponse, now: Timestamp) {
        self.table.change(&claim.shared_key.key, now, |breaker, step| {
            if breaker.changed() == claim.half_open_since {
                match response {
                    // Others count from when it was granted, which is later.
                    ClaimResponse::Granted => breaker.claim_granted(claim.requested + claim.duration, step),
                    ClaimResponse::HeldElsewhere { remaining } => breaker.claimed_elsewhere(now + remaining),
                }
            }
            None
        });
    }

    /// Makes a half-open breaker require a claim if it is shared.
    pub(super) fn require_claim(&mut self, key: &BreakerKey, now: Timestamp) {
        if self.shared.needs_claim(key) {
            self.table.change(key, now, |breaker, step| {
                breaker.require_claim(step);
                None
            });
        }
    }

    /// Returns the effect that a claim must be requested, if it is time for that.
    pub(super) fn poll_claim_request(&mut self, key: &BreakerKey, now: Timestamp) -> Option<BreakerEffect> {
        let mut is_due = false;
        self.table.change(key, now, |breaker, step| {
            is_due = breaker.poll_claim_request(step);
            None
        });
        is_due.then_some(BreakerEffect::ClaimProbe)
    }
}
