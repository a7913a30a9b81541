//! Requests to the limiter, and its replies.

use std::sync::Arc;
use std::time::Duration;

use crate::lane::Lane;
use crate::limit::caller::CallerId;
use crate::limit::wait_queue::Ticket;
use crate::response::Credential;
use crate::route::Route;
use crate::time::Timestamp;

/// A request for a permit.
#[derive(Clone, Debug)]
pub struct PermitRequest {
    /// Credential of the call.
    pub credential: Credential,
    /// Route of the call.
    pub route: Route,
    /// How urgent it is.
    pub lane: Lane,
    /// Who makes it: callers of one lane take turns.
    pub caller: CallerId,
    /// When the caller stops waiting.
    pub deadline: Timestamp,
}

/// Id of a granted call that has not completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PermitId(pub(super) u64);

/// Result of a [`PermitRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcquireOutcome {
    /// The call may be sent now.
    Granted(PermitId),
    /// The call waits; a [`LimiterEffect`] follows.
    Waiting(Ticket),
    /// The call cannot be sent before its deadline. The request had no effect.
    Delay(Delay),
}

/// Why a call cannot be sent in time, and the earliest time at which it could.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    /// The earliest time.
    pub until: Timestamp,
    /// The limit that it would have waited for.
    pub reason: DelayReason,
}

/// The bucket of a route, as Discord reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteBucket {
    /// Its hash.
    pub hash: Arc<str>,
    /// How many calls it permits in its window.
    pub limit: u32,
}

/// What a call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DelayReason {
    /// The bucket of its route.
    Route,
    /// The global limit, or the order of lanes.
    Global,
    /// Space in a wait queue: too many calls wait already.
    Full,
}

impl DelayReason {
    /// Name in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Route => "route_limit",
            Self::Global => "global_limit",
            Self::Full => "queue_full",
        }
    }
}

/// What happened to a waiting call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimiterEffect {
    /// The call may be sent now.
    Grant {
        /// The waiting call.
        ticket: Ticket,
        /// Its permit.
        permit: PermitId,
        /// How long it waited.
        waited: Duration,
    },
    /// Its deadline passed first. The request had no effect.
    Expire {
        /// The waiting call.
        ticket: Ticket,
        /// The earliest time at which it could be sent, and the reason.
        delay: Delay,
    },
}
