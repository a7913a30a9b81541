//! What is told of named budgets.

use std::time::Duration;

use guildhall_core::budget::{BudgetDecision, BudgetError, BudgetName, Observation, Points};
use metrics::{counter, gauge};
use tracing::{debug, info, warn};

use crate::ports::{StoreError, Unreachable};
use crate::telemetry::{InternalEvent, Metric, emit};

/// Costs that were taken, by bucket.
pub const ACQUIRED: &str = "guildhall_token_bucket_acquired_total";
/// Of them, those that have to wait for their turn.
pub const WAITS: &str = "guildhall_token_bucket_waits_total";
/// Askers that were sent away, by bucket and why.
pub const EXHAUSTED: &str = "guildhall_token_bucket_exhausted_total";
/// Sums of what was spent in an hour that were forgotten before they were kept.
pub const SPEND_FORGOTTEN: &str = "guildhall_budget_spend_forgotten_total";
/// What is left.
pub const AVAILABLE: &str = "guildhall_token_bucket_available";

/// Those that no other part has.
pub(crate) const METRICS: &[Metric] = &[Metric::counter(
    SPEND_FORGOTTEN,
    &[],
    "Sums of what was spent of a budget in an hour that were forgotten before they were kept.",
)];

/// What came of an ask.
type AcquireResult = Result<BudgetDecision, BudgetError>;

/// Tells what came of asks, each with its cost. What can never be is the asker's mistake, and is told to nobody else.
pub(super) fn tell<'a>(name: &BudgetName, asks: impl IntoIterator<Item = (Points, &'a AcquireResult)>) {
    let mut taken = CostsTaken { name, costs: 0, waits: 0 };
    for (cost, asked) in asks {
        match asked {
            Ok(BudgetDecision::Allowed { delay, .. }) => taken.add(cost, *delay),
            Ok(BudgetDecision::Refused { retry_after, .. }) => {
                emit(CostRefused { name, cost, reason: "exhausted", retry_after: *retry_after });
            }
            Err(BudgetError::OutOfReach { retry_after, .. }) => {
                emit(CostRefused { name, cost, reason: "out_of_reach", retry_after: Some(*retry_after) });
            }
            Err(BudgetError::Busy { retry_after, .. }) => {
                emit(CostRefused { name, cost, reason: "busy", retry_after: Some(*retry_after) });
            }
            Err(
                BudgetError::CostAboveMaximum { .. }
                | BudgetError::MaximumZero
                | BudgetError::StaleObservation
                | BudgetError::Unknown(_)
                | BudgetError::TooMany(_)
                | BudgetError::BadName(_)
                | BudgetError::BeyondShared(_)
                | BudgetError::Ending,
            ) => {}
        }
    }
    if taken.costs > 0 {
        emit(taken);
    }
}

/// Costs were taken; counted together, since a budget that everybody wants gives many at once.
struct CostsTaken<'a> {
    name: &'a BudgetName,
    costs: u64,
    waits: u64,
}

impl CostsTaken<'_> {
    fn add(&mut self, cost: Points, delay: Duration) {
        self.costs += 1;
        if !delay.is_zero() {
            self.waits += 1;
            debug!(bucket = %self.name, %cost, ?delay, "a turn in a budget is booked");
        }
    }
}

impl InternalEvent for CostsTaken<'_> {
    fn emit(self) {
        counter!(ACQUIRED, "bucket" => self.name.to_string()).increment(self.costs);
        if self.waits > 0 {
            counter!(WAITS, "bucket" => self.name.to_string()).increment(self.waits);
        }
    }
}

/// Somebody was sent away.
struct CostRefused<'a> {
    name: &'a BudgetName,
    cost: Points,
    reason: &'static str,
    retry_after: Option<Duration>,
}

impl InternalEvent for CostRefused<'_> {
    fn emit(self) {
        let Self { name, cost, reason, retry_after } = self;
        info!(bucket = %name, %cost, reason, ?retry_after, "a budget has nothing to give");
        counter!(EXHAUSTED, "bucket" => name.to_string(), "reason" => reason).increment(1);
    }
}

/// What is left of a budget may have changed.
pub(super) struct BudgetAvailable<'a> {
    pub(super) name: &'a BudgetName,
    pub(super) available: Points,
}

impl InternalEvent for BudgetAvailable<'_> {
    fn emit(self) {
        gauge!(AVAILABLE, "bucket" => self.name.to_string()).set(self.available.as_f64());
    }
}

/// An upstream said how its budget stands.
pub(super) struct UpstreamObserved<'a> {
    pub(super) name: &'a BudgetName,
    pub(super) seen: &'a Observation,
}

impl InternalEvent for UpstreamObserved<'_> {
    fn emit(self) {
        debug!(bucket = %self.name, seen = ?self.seen, "an upstream told its budget");
    }
}

/// A question about shared budgets was not answered.
pub(super) struct SharedBudgetsUnreachable<'a> {
    pub(super) name: &'a BudgetName,
    pub(super) why: &'a Unreachable,
}

impl InternalEvent for SharedBudgetsUnreachable<'_> {
    fn emit(self) {
        warn!(bucket = %self.name, error = %self.why, "shared budgets are out of reach; this process is on its own");
    }
}

/// Shared budgets answer again.
pub(super) struct SharedBudgetsRecovered {
    pub(super) after: Duration,
}

impl InternalEvent for SharedBudgetsRecovered {
    fn emit(self) {
        info!(after = ?self.after, "shared budgets are within reach again");
    }
}

/// What was spent could not be kept; it is tried again.
pub(super) struct SpendNotSaved<'a> {
    pub(super) error: &'a StoreError,
}

impl InternalEvent for SpendNotSaved<'_> {
    fn emit(self) {
        warn!(error = %self.error, "what was spent of budgets is not kept yet; it is tried again");
    }
}

/// What was spent in some hours is lost: the store was away for too long.
pub(super) struct SpendDropped {
    pub(super) sums: u64,
}

impl InternalEvent for SpendDropped {
    fn emit(self) {
        warn!(sums = self.sums, "what was spent of budgets in some hours was never kept, and is forgotten");
        counter!(SPEND_FORGOTTEN).increment(self.sums);
    }
}
