//! Calls through the breakers: requests, permits and results.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::invalid::Submitter;
use crate::lane::Lane;
use crate::response::{Credential, ResponseClass};
use crate::route::{RouteKey, TopLevelId};
use crate::time::Timestamp;

use super::{BreakerKey, BreakerReason, BreakerState, ChangeOrigin};

/// A call to Discord that needs a permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallInfo {
    /// The credential of the call.
    pub credential: Credential,
    /// Its route.
    pub route: RouteKey,
    /// Its top-level object.
    pub major: TopLevelId,
    /// How urgent it is.
    pub lane: Lane,
    /// The guild on whose behalf it is made.
    pub guild: Option<u64>,
    /// The submitter of the operation behind it.
    pub submitter: Submitter,
    /// Whether it may probe a half-open breaker: whether it is safe to repeat. False for a create.
    pub may_probe: bool,
}

/// Result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallResult {
    /// A response was received.
    Answered(ResponseClass),
    /// The connection could not be established.
    Unreachable,
    /// No response in time.
    TimedOut,
    /// The connection broke, or the response was malformed.
    Broken,
}

impl CallResult {
    /// Whether it counts against the upstream. Errors of the caller (4xx) do not.
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
                | ResponseClass::WebhookGone
                | ResponseClass::Rejected
                | ResponseClass::Blocked { .. },
            ) => false,
        }
    }

    /// Name in metrics and logs.
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

/// Whether an unsuccessful call uses one of its caller's attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// It does.
    Used,
    /// It does not: it was a probe, or its upstream is down.
    Free,
}

/// Why a call is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {reason}")]
pub struct CallRejection {
    /// When to retry; `None` if waiting does not help.
    pub until: Option<Timestamp>,
    /// The reason, for metrics.
    pub reason: &'static str,
    /// The breaker or interaction that rejected it.
    pub key: String,
}

/// An action for the caller of the breakers.
#[derive(Debug)]
pub enum BreakerEffect {
    /// A breaker changed its state; to be reported.
    Transition {
        /// The breaker.
        key: BreakerKey,
        /// State before.
        from: BreakerState,
        /// State after.
        to: BreakerState,
        /// The reason.
        reason: BreakerReason,
        /// Who decided it.
        origin: ChangeOrigin,
    },
    /// A probe must be sent, because no suitable call arrived: `GET /gateway/bot`, or `GET /gateway` without a
    /// credential.
    SendProbe {
        /// The half-open breaker that needs it.
        key: BreakerKey,
        /// The credential of the probe.
        credential: Credential,
        /// Its permit, to be reported or abandoned like any other.
        permit: CallPermit,
    },
    /// A shared breaker is half-open and no process is known to probe it: [`Breakers::probe_claims`] returns a claim.
    ///
    /// [`Breakers::probe_claims`]: super::Breakers::probe_claims
    ClaimProbe,
}

/// Outcome of a report.
#[derive(Debug)]
pub struct ReportOutcome {
    /// Whether the call, if it did not succeed, used an attempt.
    pub attempt: Attempt,
    /// Actions for the caller.
    pub effects: Vec<BreakerEffect>,
}

/// Permit for one call. Must be returned to the breakers, with a result or without.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a permit must be reported or abandoned, or the slot of a probe stays taken until it times out"]
pub struct CallPermit {
    pub(super) ticket: u64,
    pub(super) path: CallPath,
    /// One bit for each key of the path: whether the call is a probe there.
    pub(super) probes: u8,
}

impl CallPermit {
    /// Whether it probes a half-open breaker. A failed probe uses no attempt.
    #[must_use]
    pub const fn is_probe(&self) -> bool {
        self.probes != 0
    }

    pub(super) const fn probes_at(&self, level: usize) -> bool {
        self.probes & (1 << level) != 0
    }
}

/// The breakers on the path of a call.
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
    /// Their keys, widest first.
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

    /// The part of `key` that the call went to, as a hash; `None` if the call gives no information about a closed
    /// `key`.
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
