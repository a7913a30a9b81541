//! Logs and metrics of named budgets.

use std::time::Duration;

use guildhall_core::budget::{BudgetDecision, BudgetError, BudgetName, Observation, Points};
use metrics::{counter, gauge};
use tracing::{debug, info, warn};

use crate::ports::{StoreError, Unreachable};
use crate::telemetry::{InternalEvent, Metric, emit};

/// Costs taken, by bucket.
pub const ACQUIRED: &str = "guildhall_token_bucket_acquired_total";
/// Costs taken that have to wait for their turn.
pub const WAITS: &str = "guildhall_token_bucket_waits_total";
/// Requests refused, by bucket and reason.
pub const EXHAUSTED: &str = "guildhall_token_bucket_exhausted_total";
/// Hourly spend totals that were dropped before they were saved.
pub const SPEND_FORGOTTEN: &str = "guildhall_budget_spend_forgotten_total";
/// Points available.
pub const AVAILABLE: &str = "guildhall_token_bucket_available";

/// The metrics that only this module defines.
pub(crate) const METRICS: &[Metric] = &[Metric::counter(
    SPEND_FORGOTTEN,
    &[],
    "Hourly spend totals of budgets that were dropped before they were saved.",
)];

/// Result of a request for a cost.
type AcquireResult = Result<BudgetDecision, BudgetError>;

/// Reports the results of requests, each with its cost. Requests that can never succeed are mistakes of the caller, and
/// are not reported.
pub(super) fn report_results<'a>(name: &BudgetName, results: impl IntoIterator<Item = (Points, &'a AcquireResult)>) {
    let mut taken = CostsTaken { name, costs: 0, waits: 0 };
    for (cost, result) in results {
        match result {
            Ok(BudgetDecision::Allowed { delay, .. }) => taken.add(cost, *delay),
            Ok(BudgetDecision::Refused { retry_after, .. }) => {
                emit(CostRefused { name, cost, reason: "exhausted", retry_after: *retry_after });
            }
            Err(BudgetError::Unreachable { retry_after, .. }) => {
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

/// Costs were taken. They are counted together, because a budget in demand grants many at once.
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
            debug!(bucket = %self.name, %cost, ?delay, "turn in a budget booked");
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

/// A request was refused.
struct CostRefused<'a> {
    name: &'a BudgetName,
    cost: Points,
    reason: &'static str,
    retry_after: Option<Duration>,
}

impl InternalEvent for CostRefused<'_> {
    fn emit(self) {
        let Self { name, cost, reason, retry_after } = self;
        info!(bucket = %name, %cost, reason, ?retry_after, "budget request refused");
        counter!(EXHAUSTED, "bucket" => name.to_string(), "reason" => reason).increment(1);
    }
}

/// The points available in a budget may have changed.
pub(super) struct BudgetAvailable<'a> {
    pub(super) name: &'a BudgetName,
    pub(super) available: Points,
}

impl InternalEvent for BudgetAvailable<'_> {
    fn emit(self) {
        gauge!(AVAILABLE, "bucket" => self.name.to_string()).set(self.available.as_f64());
    }
}

/// An upstream reported the state of its budget.
pub(super) struct UpstreamObserved<'a> {
    pub(super) name: &'a BudgetName,
    pub(super) observation: &'a Observation,
}

impl InternalEvent for UpstreamObserved<'_> {
    fn emit(self) {
        debug!(bucket = %self.name, seen = ?self.observation, "upstream reported its budget");
    }
}

/// A request to the shared budgets got no response.
pub(super) struct SharedBudgetsUnreachable<'a> {
    pub(super) name: &'a BudgetName,
    pub(super) error: &'a Unreachable,
}

impl InternalEvent for SharedBudgetsUnreachable<'_> {
    fn emit(self) {
        warn!(bucket = %self.name, error = %self.error, "shared budgets unreachable; using the fallback of this process");
    }
}

/// The shared budgets respond again.
pub(super) struct SharedBudgetsRecovered {
    pub(super) after: Duration,
}

impl InternalEvent for SharedBudgetsRecovered {
    fn emit(self) {
        info!(after = ?self.after, "shared budgets reachable again");
    }
}

/// Spend totals could not be saved; the next save includes them.
pub(super) struct SpendNotSaved<'a> {
    pub(super) error: &'a StoreError,
}

impl InternalEvent for SpendNotSaved<'_> {
    fn emit(self) {
        warn!(error = %self.error, "saving budget spend failed; will retry");
    }
}

/// Spend totals of some hours are lost, because the store was unavailable for too long.
pub(super) struct SpendDropped {
    pub(super) sums: u64,
}

impl InternalEvent for SpendDropped {
    fn emit(self) {
        warn!(sums = self.sums, "budget spend of some hours dropped before it was saved");
        counter!(SPEND_FORGOTTEN).increment(self.sums);
    }
}
