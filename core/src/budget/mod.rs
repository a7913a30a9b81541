//! Named budgets: how much of another upstream (an RPC node, a GraphQL API with cost points) may be used, and when.
//!
//! ```text
//!  acquire(cost) ──▶ Budget ──▶ Allowed { delay }   its cost is taken, to be spent once the delay is over
//!                      ▲   └──▶ Refused             nothing has changed
//!                      └── observe(what the upstream said is left)
//! ```
//!
//! A budget holds up to `maximum` points and gets `restore_per_second` back. Waiting is booked, never polled: who may go
//! later has paid already, and whoever comes after waits behind. So in any window of time no more is spent than
//! `maximum` and what was restored in it.

mod bucket;
mod named;
mod points;

pub use bucket::{Acquired, Budget, Limits, Observation};
pub use named::{BudgetName, BudgetSnapshot, Budgets};
pub use points::Points;

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
    #[error("there is no budget {0:?}; name it in the settings first")]
    Unknown(String),
    /// There are too many.
    #[error("there are {0} budgets already, which is the most there may be")]
    TooMany(usize),
    /// It cannot be a name.
    #[error("a budget's name has 1 to 64 of the characters a-z, 0-9, `_`, `-` and `.`, not {0:?}")]
    BadName(String),
}
