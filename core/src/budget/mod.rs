//! Named budgets: how much of another upstream (an RPC node, a GraphQL API with cost points) may be used, and when.
//!
//! ```text
//!  acquire(cost) ──▶ Budget ──▶ Allowed { delay }   its cost is taken, and may be spent after the delay
//!                      ▲   └──▶ Refused             nothing has changed
//!                      └── observe(what the upstream reported as left)
//! ```
//!
//! [`BudgetMember`] is the client side of budgets that are shared between processes.
//!
//! A budget contains at most `maximum` points and restores `restore_per_second`. Waiting is booked, never polled: a
//! caller with a delay has paid already, and later callers wait behind it. So in any period no more is spent than
//! `maximum` plus what was restored in it.

mod bucket;
mod member;
mod points;
mod protocol;
mod registry;
mod shared_budget;
mod spend_totals;

use std::time::Duration;

pub use bucket::{Budget, BudgetDecision, BudgetLimits, Observation, ObservedLimits};
pub use member::{BudgetMember, BudgetMemberConfig, BudgetTask, Reachability};
pub use points::Points;
pub use protocol::{BudgetEpoch, BudgetFallback, BudgetReport, BudgetState, OfflineSpend, SpendRequest};
pub use registry::{BudgetName, BudgetSnapshot, BudgetSource, Budgets};
pub use spend_totals::{Hour, SpendRecord, SpendTotals};

/// Error of a budget request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BudgetError {
    /// The cost exceeds the maximum.
    #[error("cost {cost} exceeds the maximum of the budget ({maximum}); split the call")]
    CostAboveMaximum {
        /// The requested cost.
        cost: Points,
        /// Points in a full budget.
        maximum: Points,
    },
    /// A maximum of 0: the budget could never be used.
    #[error("the maximum of a budget must be greater than 0")]
    MaximumZero,
    /// An observation of a call that was sent too long ago.
    #[error("the observed call was sent more than {} seconds ago; report it earlier", Budget::MEMORY.as_secs())]
    StaleObservation,
    /// There is no budget with this name.
    #[error(
        "unknown budget {0:?}; add it to budgets.named, or set default limits for all other budgets in \
        budgets.others"
    )]
    Unknown(String),
    /// There are too many budgets.
    #[error("cannot add a budget: the maximum number of budgets ({0}) is reached")]
    TooMany(usize),
    /// The name is invalid.
    #[error("invalid budget name {0:?}: use 1 to 64 of the characters a-z, 0-9, `_`, `-` and `.`")]
    BadName(String),
    /// More than a shared budget can count exactly.
    #[error("{0} exceeds the maximum of a shared budget ({max}); use a larger unit", max = BudgetMember::MAX)]
    BeyondShared(Points),
    /// The budget is shared, and the shared state is unreachable.
    #[error("{reason}; try again in {retry_after:?}")]
    Unreachable {
        /// Why nothing may be spent meanwhile.
        reason: BudgetUnreachable,
        /// When to try again.
        retry_after: Duration,
    },
    /// The budget service has stopped.
    #[error("the process is shutting down and grants nothing more from its budgets")]
    Ending,
    /// Too many concurrent requests.
    #[error("{max} budget requests are in progress already; try again in {retry_after:?}")]
    Busy {
        /// Maximum number of concurrent requests.
        max: usize,
        /// When to try again.
        retry_after: Duration,
    },
}

impl BudgetError {
    /// When to try again, if that can help.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Unreachable { retry_after, .. } | Self::Busy { retry_after, .. } => Some(*retry_after),
            Self::CostAboveMaximum { .. }
            | Self::MaximumZero
            | Self::StaleObservation
            | Self::Unknown(_)
            | Self::TooMany(_)
            | Self::BadName(_)
            | Self::BeyondShared(_)
            | Self::Ending => None,
        }
    }
}

/// Why nothing may be spent from a shared budget that is unreachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BudgetUnreachable {
    /// The remaining points are unknown.
    #[error("the shared budget has not been reached since this process started")]
    Never,
    /// The fallback forbids it.
    #[error("the shared budget is unreachable, and nothing may be spent from it meanwhile")]
    Closed,
    /// The cost exceeds the share of this process.
    #[error(
        "the shared budget is unreachable, and this process's share of it is at most {share}, less than the cost \
        of {cost}"
    )]
    AboveShare {
        /// The requested cost.
        cost: Points,
        /// Points in a full share.
        share: Points,
    },
}
