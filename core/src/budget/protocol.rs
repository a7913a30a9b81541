//! What a process and the place where budgets are shared tell each other.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{BudgetLimits, ObservedLimits, Points};

/// What may be spent of a shared budget while it is out of reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BudgetFallback {
    /// An even share, from nothing on. Processes that lose the budget together spend no more than it gives. One that loses
    /// it alone spends its share beside the others for as long as that lasts, and the budget owes that afterwards.
    #[default]
    Share,
    /// Nothing.
    Closed,
    /// As if each process had the whole budget, which is more than there is.
    Open,
}

/// A wish to spend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpendRequest {
    /// How much.
    pub cost: Points,
    /// How long the asker would wait.
    pub max_wait: Duration,
}

/// Names one life of a shared budget. Another one means that what was spent before may be forgotten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetEpoch(Arc<str>);

impl BudgetEpoch {
    /// As whoever keeps the budget calls it.
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

/// What a process spent while the budget was out of reach. Told until it was heard, and counted once by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfflineSpend {
    /// From 1 on, for each process and budget.
    pub number: u64,
    /// How much.
    pub points: Points,
}

/// What a process tells with everything that it asks about a shared budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetReport {
    /// The last life it has heard of. A budget that is made now, although somebody knew it, starts empty.
    pub epoch: Option<BudgetEpoch>,
    /// What to make it with, if it is not there: the limits last heard of, else the defaults.
    pub limits: BudgetLimits,
    /// Which of them the upstream has said.
    pub observed: ObservedLimits,
    /// How long what comes back is spoken for, by what this process knows.
    pub booked_for: Duration,
    /// Defaults that have not been told yet.
    pub configure: Option<BudgetLimits>,
    /// What was spent and has not been told yet.
    pub spent: Option<OfflineSpend>,
}

/// How a shared budget stands, which every answer tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetState {
    /// Which life it is in.
    pub epoch: BudgetEpoch,
    /// The limits in force.
    pub limits: BudgetLimits,
    /// Which of them the upstream has said.
    pub observed: ObservedLimits,
    /// What is left, and can be spent at once.
    pub available: Points,
    /// How long what comes back is spoken for.
    pub booked_for: Duration,
    /// How long the upstream still wants to be left alone.
    pub blocked_for: Duration,
    /// How many processes share it, if that was counted: it is, when nothing is acquired.
    pub members: Option<u32>,
}
