//! Port to the store in which processes share their budgets.

use std::future::Future;
use std::pin::Pin;

use guildhall_core::budget::{
    BudgetDecision, BudgetError, BudgetName, BudgetReport, BudgetState, Observation, Points, SpendRequest,
};

/// A result, and the state of the budget after it.
#[derive(Clone, Debug)]
pub struct SharedReply<T> {
    /// Result of the request.
    pub result: T,
    /// State of the budget.
    pub state: BudgetState,
}

/// There was no response. The request may have taken effect nevertheless.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("shared budgets are unreachable: {0}")]
pub struct Unreachable(pub String);

/// Pending [`SharedReply`].
pub type SharedReplyFuture<'a, T> = Pin<Box<dyn Future<Output = Result<SharedReply<T>, Unreachable>> + Send + 'a>>;

/// Stores budgets for several processes. Each behaves like a [`Budget`](guildhall_core::budget::Budget), with one clock
/// for all processes.
///
/// A missing budget is created from the report. Every call applies the report first: a budget that the caller knew in
/// another epoch starts empty, what was spent while unreachable is charged once, and new defaults are applied. Every
/// call ends within a timeout of the implementation.
pub trait SharedBudgets: Send + Sync + 'static {
    /// Takes several costs, one after the other, as if each had been requested separately. Returns one result for each
    /// request; the only error among them is a cost above the maximum. Without requests it only delivers the report and
    /// acts as a heartbeat: a member that sends nothing for half a minute no longer counts.
    fn acquire<'a>(
        &'a self,
        name: &'a BudgetName,
        report: &'a BudgetReport,
        requests: &'a [SpendRequest],
    ) -> SharedReplyFuture<'a, Vec<Result<BudgetDecision, BudgetError>>>;

    /// Applies what the upstream reported. The values are already checked.
    fn observe<'a>(
        &'a self,
        name: &'a BudgetName,
        report: &'a BudgetReport,
        observation: &'a Observation,
    ) -> SharedReplyFuture<'a, ()>;

    /// Returns the points that are taken but not yet due.
    fn show<'a>(&'a self, name: &'a BudgetName, report: &'a BudgetReport) -> SharedReplyFuture<'a, Points>;
}
