//! What callers say to the limiter, and what they hear.

use std::time::Duration;

use crate::lane::Lane;
use crate::limit::wait_queue::Ticket;
use crate::response::Credential;
use crate::route::Route;
use crate::time::Timestamp;

/// A call that wants to go.
#[derive(Clone, Debug)]
pub struct PermitRequest {
    /// Who it is made as.
    pub credential: Credential,
    /// Where it goes.
    pub route: Route,
    /// How urgent it is.
    pub lane: Lane,
    /// When its caller no longer waits.
    pub deadline: Timestamp,
}

/// A call that was granted and has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PermitId(pub(super) u64);

/// What became of an [`PermitRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcquireOutcome {
    /// It may go now.
    Granted(PermitId),
    /// It waits; an [`LimiterEffect`] will tell.
    Waiting(Ticket),
    /// It cannot go before its deadline. Nothing was changed.
    Delay(Delay),
}

/// Why a call cannot go in time, and when it could at the earliest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    /// Not before then.
    pub until: Timestamp,
    /// What it would have waited for.
    pub reason: DelayReason,
}

/// What a call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DelayReason {
    /// Its route's bucket.
    Route,
    /// The global limit, or the order of lanes.
    Global,
    /// A place to wait at all: too many do already.
    Full,
}

impl DelayReason {
    /// Its name, as metrics and logs have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Route => "route_limit",
            Self::Global => "global_limit",
            Self::Full => "queue_full",
        }
    }
}

/// What happened to somebody who waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimiterEffect {
    /// It may go now.
    Grant {
        /// Who.
        ticket: Ticket,
        /// Its permit.
        permit: PermitId,
        /// How long it waited.
        waited: Duration,
    },
    /// Its deadline came first. Nothing was changed.
    Expire {
        /// Who.
        ticket: Ticket,
        /// When it could go, and why not before.
        delay: Delay,
    },
}
