//! Named budgets: how much of another upstream (an RPC node, a GraphQL API with cost points) may be used, and when.
//!
//! ```text
//!  acquire(cost) ──▶ Budget ──▶ Allowed { delay }   its cost is taken, to be spent once the delay is over
//!                      ▲   └──▶ Refused             nothing has changed
//!                      └── observe(what the upstream said is left)
//! ```
//!
//! [`BudgetMember`] is one process's side of budgets that it shares with others.
//!
//! A budget holds up to `maximum` points and gets `restore_per_second` back. Waiting is booked, never polled: who may go
//! later has paid already, and whoever comes after waits behind. So in any window of time no more is spent than
//! `maximum` and what was restored in it.

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

/// What a budget cannot do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BudgetError {
    /// More at once than there can ever be.
    #[error("the cost of {cost} is more than the budget can ever hold ({maximum}); split the call")]
    CostAboveMaximum {
        /// What was asked for.
        cost: Points,
        /// What the budget holds when it is full.
        maximum: Points,
    },
    /// A budget that could never be used.
    #[error("a budget's maximum is above 0")]
    MaximumZero,
    /// A report about a call that was sent too long ago.
    #[error("the report is about a call sent more than {} seconds ago, and says nothing about now", Budget::MEMORY.as_secs())]
    StaleObservation,
    /// There is none of this name.
    #[error("there is no budget {0:?}; name it in budgets.named, or say in budgets.others what others hold")]
    Unknown(String),
    /// There are too many.
    #[error("there are {0} budgets already, which is the most there may be")]
    TooMany(usize),
    /// It cannot be a name.
    #[error("a budget's name has 1 to 64 of the characters a-z, 0-9, `_`, `-` and `.`, not {0:?}")]
    BadName(String),
    /// More than can be shared, since it is not counted exactly there.
    #[error("{0} is more than a shared budget counts ({most}); use a larger unit", most = BudgetMember::MOST)]
    BeyondShared(Points),
    /// It is shared, and what keeps it cannot be asked.
    #[error("{why}; try again in {retry_after:?}")]
    OutOfReach {
        /// Why nothing may be spent meanwhile.
        why: BudgetUnreachable,
        /// When to ask again.
        retry_after: Duration,
    },
    /// Whatever kept it is gone.
    #[error("the process is ending, and gives nothing more of its budgets")]
    Ending,
    /// More questions than are answered at a time.
    #[error("{most} questions about budgets are under way already; try again in {retry_after:?}")]
    Busy {
        /// How many may be.
        most: usize,
        /// When to ask again.
        retry_after: Duration,
    },
}

impl BudgetError {
    /// When to ask again, if that can help.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::OutOfReach { retry_after, .. } | Self::Busy { retry_after, .. } => Some(*retry_after),
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

/// Why nothing may be spent of a shared budget that is out of reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BudgetUnreachable {
    /// Nobody knows what is left of it.
    #[error("the shared budget has not been reached since this process started")]
    Never,
    /// The settings say so.
    #[error("the shared budget is out of reach, and nothing may be spent of it meanwhile")]
    Closed,
    /// A share is not enough for it.
    #[error("the shared budget is out of reach, and this process's share of it holds {share} at most, not {cost}")]
    AboveShare {
        /// What was asked for.
        cost: Points,
        /// What the share holds when it is full.
        share: Points,
    },
}
