//! Messages between a process and the shared state of budgets.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{BudgetLimits, ObservedLimits, Points};

/// What may be spent from a shared budget while it is unreachable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BudgetFallback {
    /// An even share, starting at zero. Processes that lose the budget together spend no more than it provides. A
    /// process that loses it alone spends its share in addition to the others during the outage, and the budget is
    /// charged for it afterwards.
    #[default]
    Share,
    /// Nothing.
    Closed,
    /// The whole budget for each process, which is more than there is.
    Open,
}

/// A request to spend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpendRequest {
    /// The cost.
    pub cost: Points,
    /// How long the caller would wait.
    pub max_wait: Duration,
}

/// Id of one epoch of a shared budget. A different epoch means that earlier spending may be lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetEpoch(Arc<str>);

impl BudgetEpoch {
    /// Creates an epoch from its name.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// Its name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BudgetEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a process spent while the budget was unreachable. It is reported until it is confirmed, and counted once, by
/// its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfflineSpend {
    /// Starts at 1, for each process and budget.
    pub number: u64,
    /// Points spent.
    pub points: Points,
}

/// Report that a process sends with each request for a shared budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetReport {
    /// The last known epoch. If the budget is created now although a process knew an epoch, it starts empty.
    pub epoch: Option<BudgetEpoch>,
    /// Limits for a new budget: the last known limits, else the defaults.
    pub limits: BudgetLimits,
    /// Which of them the upstream has reported.
    pub observed: ObservedLimits,
    /// How long all restored points are booked, as far as this process knows.
    pub booked_for: Duration,
    /// Defaults that have not been reported yet.
    pub configure: Option<BudgetLimits>,
    /// Spending that has not been reported yet.
    pub spent: Option<OfflineSpend>,
}

/// State of a shared budget, part of every reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetState {
    /// The current epoch.
    pub epoch: BudgetEpoch,
    /// The current limits.
    pub limits: BudgetLimits,
    /// Which of them the upstream has reported.
    pub observed: ObservedLimits,
    /// Points that can be spent now.
    pub available: Points,
    /// How long all restored points are booked.
    pub booked_for: Duration,
    /// How long the upstream still accepts no calls.
    pub blocked_for: Duration,
    /// Number of processes that share it. Counted only if the request acquires nothing.
    pub members: Option<u32>,
}
