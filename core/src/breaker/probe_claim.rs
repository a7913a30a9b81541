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
    pub matter: SharedBreakerKey,
    /// Duration of the claim: longer than any probe that starts with it.
    pub lasting: Duration,
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
        let wanted = self.shelf.iter().filter(|(key, breaker)| breaker.wants_claim() && self.may_claim(key, now));
        let claim = |(key, breaker): (&BreakerKey, &Breaker)| ProbeClaim {
            matter: SharedBreakerKey { key: key.clone(), token: None },
            lasting: self.shelf.config.probe_timeout + self.shelf.config.probe_after,
            requested: now,
            half_open_since: breaker.changed(),
        };
        wanted.map(claim).collect()
    }

    fn may_claim(&self, key: &BreakerKey, now: Timestamp) -> bool {
        let passes =
            |wider| self.shelf.get(&wider).is_none_or(|wider| wider.check(true, &self.shelf.config, now).is_ok());
        match key {
            BreakerKey::Address | BreakerKey::Target(_) => true,
            BreakerKey::Discord(_) => passes(BreakerKey::Address),
            BreakerKey::Route(credential, _) | BreakerKey::Pair(credential, ..) => {
                passes(BreakerKey::Address) && passes(BreakerKey::Discord(*credential))
            }
        }
    }

    /// Applies the response to a claim.
    pub fn probe_claimed(&mut self, claim: &ProbeClaim, answer: ClaimResponse, now: Timestamp) {
        self.shelf.change(&claim.matter.key, now, |breaker, step| {
            if breaker.changed() == claim.half_open_since {
                match answer {
                    // Others count from when it was granted, which is later.
                    ClaimResponse::Granted => breaker.claim_granted(claim.requested + claim.lasting, step),
                    ClaimResponse::HeldElsewhere { remaining } => breaker.claimed_elsewhere(now + remaining),
                }
            }
            None
        });
    }

    /// Makes a half-open breaker require a claim if it is shared.
    pub(super) fn require_claim(&mut self, key: &BreakerKey, now: Timestamp) {
        if self.shared.needs_claim(key) {
            self.shelf.change(key, now, |breaker, step| {
                breaker.require_claim(step);
                None
            });
        }
    }

    /// Returns the effect that a claim must be requested, if it is time for that.
    pub(super) fn ask_for_claim(&mut self, key: &BreakerKey, now: Timestamp) -> Option<BreakerEffect> {
        let mut asks = false;
        self.shelf.change(key, now, |breaker, step| {
            asks = breaker.ask_for_claim(step);
            None
        });
        asks.then_some(BreakerEffect::ClaimProbe)
    }
}
