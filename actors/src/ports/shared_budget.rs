//! The port to the place where processes share their budgets.

use std::future::Future;
use std::pin::Pin;

use guildhall_core::budget::{
    BudgetDecision, BudgetError, BudgetName, BudgetReport, BudgetState, Observation, Points, SpendRequest,
};

/// An answer, and how the budget stands after it.
#[derive(Clone, Debug)]
pub struct SharedReply<T> {
    /// What was asked for.
    pub answer: T,
    /// How the budget stands.
    pub standing: BudgetState,
}

/// There was no answer. What was asked for may have been done all the same.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("shared budgets cannot be reached: {0}")]
pub struct Unreachable(pub String);

/// An answer under way.
pub type SharedReplyFuture<'a, T> = Pin<Box<dyn Future<Output = Result<SharedReply<T>, Unreachable>> + Send + 'a>>;

/// Keeps budgets for several processes, each like a [`Budget`](guildhall_core::budget::Budget) of its own and by one
/// clock.
///
/// A budget that is not there is made from the tidings. Whatever is asked, the tidings count first: a budget that the
/// asker knew in another life starts empty, what was spent out of reach is taken from it once, and new defaults are taken
/// over. Every call ends within a time limit of the implementation's own.
pub trait SharedBudgets: Send + Sync + 'static {
    /// Takes several costs, one after the other, as if each had been asked for by itself. There are as many answers as
    /// asks, and the only error in them is a cost above the maximum. With no asks it only tells the tidings, and that the
    /// asker is there: whoever asks nothing for half a minute no longer counts as one who shares.
    fn acquire<'a>(
        &'a self,
        name: &'a BudgetName,
        tidings: &'a BudgetReport,
        asks: &'a [SpendRequest],
    ) -> SharedReplyFuture<'a, Vec<Result<BudgetDecision, BudgetError>>>;

    /// Takes over what the upstream said, which has been checked.
    fn observe<'a>(
        &'a self,
        name: &'a BudgetName,
        tidings: &'a BudgetReport,
        seen: &'a Observation,
    ) -> SharedReplyFuture<'a, ()>;

    /// Shows what was taken to be spent later.
    fn show<'a>(&'a self, name: &'a BudgetName, tidings: &'a BudgetReport) -> SharedReplyFuture<'a, Points>;
}
