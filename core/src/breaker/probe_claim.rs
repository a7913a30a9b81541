//! One process probes a shared breaker for all.
//!
//! ```text
//!   half-open ──▶ ClaimProbe ──▶ probe_claims ──▶ … requested … ──▶ probe_claimed ──┬──▶ granted: probes, and tells the result
//!       ▲                                                                          └──▶ held elsewhere: waits for the result
//!       └────────────────── the claim has expired, and nothing was told ◀───────────────────────────────┘
//! ```
//!
//! Without it, every process that shares a ban would probe at the moment when the ban ends, with the calls of one client
//! that Discord has just banned.

use std::time::Duration;

use super::machine::Breaker;
use super::{BreakerEffect, BreakerKey, Breakers, SharedBreakerKey};
use crate::time::Timestamp;

/// The claim to probe a half-open breaker, to be requested from what the processes share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeClaim {
    /// The breaker.
    pub matter: SharedBreakerKey,
    /// How long the claim lasts: no probe that begins with it takes longer.
    pub lasting: Duration,
    /// When it was requested, and since when the breaker is half-open: an answer that comes after another change is late.
    requested: Timestamp,
    half_open_since: Timestamp,
}

/// Whether a claim was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimResponse {
    /// This process probes.
    Granted,
    /// Another process does.
    HeldElsewhere {
        /// For so long, unless it is done before.
        remaining: Duration,
    },
}

impl Breakers {
    /// Claims that have to be requested. Each is to be answered with [`Breakers::probe_claimed`]; there may be more then.
    ///
    /// A claim is requested only if nothing wider on its way waits for a claim: two processes that each hold what the other
    /// needs would both wait.
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

    /// A claim was answered.
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

    /// A breaker that has become half-open is probed only with a claim if it is shared.
    pub(super) fn require_claim(&mut self, key: &BreakerKey, now: Timestamp) {
        if self.shared.needs_claim(key) {
            self.shelf.change(key, now, |breaker, step| {
                breaker.require_claim(step);
                None
            });
        }
    }

    /// Says that a claim has to be requested, if it is time to.
    pub(super) fn ask_for_claim(&mut self, key: &BreakerKey, now: Timestamp) -> Option<BreakerEffect> {
        let mut asks = false;
        self.shelf.change(key, now, |breaker, step| {
            asks = breaker.ask_for_claim(step);
            None
        });
        asks.then_some(BreakerEffect::ClaimProbe)
    }
}
