//! Logs and metrics of named budgets.

use std::time::Duration;

use guildhall_core::budget::{BudgetDecision, BudgetError, BudgetName, Observation, Points};
use guildhall_core::failure_streak::FailureSummary;
use guildhall_core::time::millis;
use tracing::{debug, info, warn};

use crate::ports::{StoreError, Unreachable};
use crate::telemetry::limits::{ACQUIRED, AVAILABLE, EXHAUSTED, SPEND_FORGOTTEN, WAITS};
use crate::telemetry::{counter, emit, event, gauge};

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

event! {
    /// Costs were taken. They are counted together, because a budget in demand grants many at once.
    struct CostsTaken<'a> { name: &'a BudgetName, costs: u64, waits: u64 }
    counter!(ACQUIRED, "bucket" => name.to_string()).increment(costs);
    if waits > 0 {
        counter!(WAITS, "bucket" => name.to_string()).increment(waits);
    }
}

impl CostsTaken<'_> {
    fn add(&mut self, cost: Points, delay: Duration) {
        self.costs += 1;
        if !delay.is_zero() {
            self.waits += 1;
            debug!(bucket = %self.name, %cost, delay_ms = millis(delay), "turn in a budget booked");
        }
    }
}

event! {
    /// A request was refused.
    struct CostRefused<'a> { name: &'a BudgetName, cost: Points, reason: &'static str, retry_after: Option<Duration> }
    info!(bucket = %name, %cost, reason, retry_after_ms = retry_after.map(millis), "budget request refused");
    counter!(EXHAUSTED, "bucket" => name.to_string(), "reason" => reason).increment(1);
}

event! {
    /// The points available in a budget may have changed.
    pub(super) struct BudgetAvailable<'a> { name: &'a BudgetName, available: Points }
    gauge!(AVAILABLE, "bucket" => name.to_string()).set(available.as_f64());
}

event! {
    /// An upstream reported the state of its budget.
    pub(super) struct UpstreamObserved<'a> { name: &'a BudgetName, observation: &'a Observation }
    let Observation { available, maximum, restore_per_second, retry_after, age } = observation;
    debug!(
        bucket = %name, available = available.map(Points::as_f64), maximum = maximum.map(Points::as_f64),
        restore_per_second = restore_per_second.map(Points::as_f64), retry_after_ms = retry_after.map(millis),
        age_ms = millis(*age), "upstream reported its budget"
    );
}

event! {
    /// A request to the shared budgets got no response.
    pub(super) struct SharedBudgetsUnreachable<'a> { name: &'a BudgetName, error: &'a Unreachable }
    warn!(bucket = %name, %error, "shared budgets unreachable; using the fallback of this process");
}

event! {
    /// The shared budgets respond again.
    pub(super) struct SharedBudgetsRecovered { after: Duration }
    info!(after_ms = millis(after), "shared budgets reachable again");
}

event! {
    /// Spend totals could not be saved; the next save includes them.
    pub(super) struct SpendNotSaved<'a> {
        error: &'a StoreError,
        /// What to log, if a line is due.
        summary: Option<FailureSummary>,
    }
    if let Some(summary) = summary {
        let (failures, failing_for_s) = summary.repeated();
        warn!(%error, failures, failing_for_s, "saving budget spend failed; will retry");
    }
}

event! {
    /// Spend totals of some hours are lost, because the store was unavailable for too long.
    pub(super) struct SpendDropped { sums: u64 }
    warn!(sums, "budget spend of some hours dropped before it was saved");
    counter!(SPEND_FORGOTTEN).increment(sums);
}
