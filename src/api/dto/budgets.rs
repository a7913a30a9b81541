//! Named budgets for other upstreams than Discord.

use std::time::Duration;

use guildhall_core::{
    budget::{BudgetDecision, BudgetSnapshot, BudgetSource, SpendRecord},
    time::UnixMs,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{BudgetSharing, Time};

/// All budgets.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Budgets {
    pub(crate) budgets: Vec<Budget>,
    /// Value of `cursor` for the next page; `null` on the last page.
    pub(crate) next: Option<String>,
}

/// The budget of another upstream, as far as it is known.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Budget {
    pub(crate) name: String,
    /// The maximum of the budget.
    #[schema(minimum = 0)]
    pub(crate) maximum: f64,
    #[schema(minimum = 0)]
    pub(crate) restore_per_second: f64,
    /// Whether the values come from the upstream, and not only from the settings.
    pub(crate) observed: bool,
    /// What can be taken now.
    #[schema(minimum = 0)]
    pub(crate) available: f64,
    /// What was taken by calls that are still delayed.
    #[schema(minimum = 0)]
    pub(crate) booked: f64,
    /// Nothing can be taken before this time, as the upstream requested.
    pub(crate) blocked_until: Option<Time>,
    /// Whether processes share the budget.
    pub(crate) kept: BudgetSharing,
}

/// A budget with what was spent of it.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct BudgetInFull {
    #[serde(flatten)]
    pub(crate) budget: Budget,
    /// What was spent in each of the last hours, the newest first.
    pub(crate) spend: Vec<HourlySpend>,
}

/// What was spent in an hour.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct HourlySpend {
    pub(crate) hour: Time,
    #[schema(minimum = 0)]
    pub(crate) points: f64,
    pub(crate) calls: u64,
}

/// Whether a call is allowed, and when.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct AcquiredBudget {
    pub(crate) allowed: bool,
    /// How long to wait before the call, whose cost is taken already. If it is not allowed: when to retry, or `null` if
    /// waiting does not help.
    pub(crate) delay_ms: Option<u64>,
    #[schema(minimum = 0)]
    pub(crate) remaining: f64,
}

impl Budget {
    pub(crate) fn new(budget: &BudgetSnapshot, now: UnixMs) -> Self {
        let source = match budget.source {
            BudgetSource::Alone => "alone",
            BudgetSource::Together => "together",
            BudgetSource::Meanwhile => "meanwhile",
        };
        Self {
            name: budget.name.to_string(),
            maximum: budget.limits.maximum.as_f64(),
            restore_per_second: budget.limits.restore_per_second.as_f64(),
            observed: budget.observed,
            available: budget.available.as_f64(),
            booked: budget.booked.as_f64(),
            blocked_until: (!budget.blocked_for.is_zero()).then(|| (now + budget.blocked_for).into()),
            kept: source.into(),
        }
    }
}

impl From<&SpendRecord> for HourlySpend {
    fn from(spend: &SpendRecord) -> Self {
        Self { hour: spend.hour.start().into(), points: spend.points(), calls: spend.calls }
    }
}

impl From<BudgetDecision> for AcquiredBudget {
    fn from(decision: BudgetDecision) -> Self {
        let (allowed, delay, remaining) = match decision {
            BudgetDecision::Allowed { delay, remaining } => (true, Some(delay), remaining),
            BudgetDecision::Refused { retry_after, remaining } => (false, retry_after, remaining),
        };
        Self { allowed, delay_ms: delay.map(millis_up), remaining: remaining.as_f64() }
    }
}

/// Rounded up, so that a caller does not retry too early.
fn millis_up(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}
