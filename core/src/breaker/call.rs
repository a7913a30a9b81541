//! A call as breakers see it: what it asks, what it is given, and what it brings back.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::invalid::Submitter;
use crate::lane::Lane;
use crate::response::{Credential, ResponseClass};
use crate::route::{RouteKey, TopLevelId};
use crate::time::Timestamp;

use super::{BreakerKey, BreakerReason, BreakerState, ChangeOrigin};

/// A call to Discord that wants to go out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallInfo {
    /// Who it is made as.
    pub credential: Credential,
    /// Its route.
    pub route: RouteKey,
    /// Its top-level object.
    pub major: TopLevelId,
    /// How urgent it is.
    pub lane: Lane,
    /// The guild on whose behalf it is made.
    pub guild: Option<u64>,
    /// Who submitted the operation behind it.
    pub submitter: Submitter,
    /// Whether it may probe a half-open breaker: whether it is safe to repeat. Never true for a create.
    pub may_probe: bool,
}

/// What came of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallResult {
    /// There was an answer.
    Answered(ResponseClass),
    /// No connection could be had.
    Unreachable,
    /// No answer came in time.
    TimedOut,
    /// The connection broke, or what came over it made no sense.
    Broken,
}

impl CallResult {
    /// Whether it counts against the upstream. What the caller did wrong (4xx) never does.
    #[must_use]
    pub const fn is_failure(self) -> bool {
        match self {
            Self::Unreachable | Self::TimedOut | Self::Broken | Self::Answered(ResponseClass::ServerError) => true,
            Self::Answered(
                ResponseClass::Success
                | ResponseClass::RateLimited { .. }
                | ResponseClass::Unauthorized
                | ResponseClass::InteractionEnded
                | ResponseClass::Forbidden
                | ResponseClass::NotFound
                | ResponseClass::Rejected
                | ResponseClass::Blocked { .. },
            ) => false,
        }
    }

    /// Its name, as metrics and logs have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Answered(class) => class.name(),
            Self::Unreachable => "unreachable",
            Self::TimedOut => "timed_out",
            Self::Broken => "broken",
        }
    }
}

/// Whether a call that did not succeed used up one of its caller's attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// It did.
    Used,
    /// It did not: it was a probe, or it failed because its upstream is out.
    Free,
}

/// Why a call may not go out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {reason}")]
pub struct CallRejection {
    /// When to come again; nothing if waiting does not help.
    pub until: Option<Timestamp>,
    /// The reason, for metrics: a short word.
    pub reason: &'static str,
    /// What refused it.
    pub key: String,
}

/// What is to be done after a step.
#[derive(Debug)]
pub enum BreakerEffect {
    /// A breaker changed its state; to be told.
    Transition {
        /// Which.
        key: BreakerKey,
        /// From what.
        from: BreakerState,
        /// To what.
        to: BreakerState,
        /// Why.
        why: BreakerReason,
        /// Who decided it.
        origin: ChangeOrigin,
    },
    /// A probe is to be sent, because no call came that could be one: `GET /gateway/bot`, or `GET /gateway` for nobody.
    SendProbe {
        /// The half-open breaker that asks for it.
        key: BreakerKey,
        /// Who it is to be made as.
        credential: Credential,
        /// Its pass, to be reported or abandoned like any other.
        pass: CallPermit,
    },
    /// A shared breaker is half-open and no process is known to probe it: [`Breakers::probe_claims`] has something.
    ///
    /// [`Breakers::probe_claims`]: super::Breakers::probe_claims
    ClaimProbe,
}

/// What a report led to.
#[derive(Debug)]
pub struct ReportOutcome {
    /// Whether the call, if it did not succeed, used up an attempt.
    pub attempt: Attempt,
    /// What is to be done.
    pub effects: Vec<BreakerEffect>,
}

/// Leave to make one call. Goes back to the breakers, with a result or without.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a pass is to be reported or abandoned, or a probe's place stays taken until it times out"]
pub struct CallPermit {
    pub(super) ticket: u64,
    pub(super) path: CallPath,
    /// One bit for each key of the path: whether the call is a probe there.
    pub(super) probes: u8,
}

impl CallPermit {
    /// Whether it probes a half-open breaker. A probe that fails uses no attempt.
    #[must_use]
    pub const fn is_probe(&self) -> bool {
        self.probes != 0
    }

    pub(super) const fn probes_at(&self, level: usize) -> bool {
        self.probes & (1 << level) != 0
    }
}

/// The breakers that a call passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallPath {
    Discord {
        credential: Credential,
        route: RouteKey,
        major: TopLevelId,
    },
    /// A breaker's own probe.
    Own {
        key: BreakerKey,
        credential: Credential,
    },
    Target(String),
}

impl CallPath {
    /// Their keys, the widest first.
    pub(super) fn keys(&self) -> Vec<BreakerKey> {
        match self {
            Self::Discord { credential, route, major } => vec![
                BreakerKey::Address,
                BreakerKey::Discord(*credential),
                BreakerKey::Route(*credential, route.clone()),
                BreakerKey::Pair(*credential, route.clone(), *major),
            ],
            Self::Own { key, credential } => {
                let mut keys = vec![BreakerKey::Address, BreakerKey::Discord(*credential)];
                match key {
                    BreakerKey::Address | BreakerKey::Discord(_) | BreakerKey::Target(_) => {}
                    BreakerKey::Route(..) => keys.push(key.clone()),
                    BreakerKey::Pair(credential, route, _) => {
                        keys.push(BreakerKey::Route(*credential, route.clone()));
                        keys.push(key.clone());
                    }
                }
                keys
            }
            Self::Target(name) => vec![BreakerKey::Target(name.clone())],
        }
    }

    /// The part of `key` that the call went to, as a number that tells parts apart; nothing if the call says nothing
    /// about `key` while that is closed.
    pub(super) fn source(&self, key: &BreakerKey) -> Option<u64> {
        match (self, key) {
            (_, BreakerKey::Address) => None,
            (Self::Discord { route, .. }, BreakerKey::Discord(_)) => Some(fingerprint(route.as_str())),
            (Self::Discord { major, .. }, BreakerKey::Route(..) | BreakerKey::Pair(..)) => Some(fingerprint(major)),
            (Self::Own { .. }, BreakerKey::Discord(_)) => Some(fingerprint("own probe")),
            // It went to another route.
            (Self::Own { .. }, BreakerKey::Route(..) | BreakerKey::Pair(..)) => None,
            (Self::Target(_), BreakerKey::Target(_)) => Some(0),
            (Self::Discord { .. } | Self::Own { .. }, BreakerKey::Target(_))
            | (Self::Target(_), BreakerKey::Discord(_) | BreakerKey::Route(..) | BreakerKey::Pair(..)) => None,
        }
    }
}

fn fingerprint(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}
