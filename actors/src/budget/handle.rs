//! Handle for the actor.

use std::sync::Arc;
use std::time::Duration;

use crate::ports::SharedBudgets;
use actix::{Addr, MailboxError};
use guildhall_core::budget::{
    BudgetDecision, BudgetError, BudgetLimits, BudgetName, BudgetSnapshot, Observation, Points,
};

use super::{
    AcquireBudget, BudgetActor, ConfigureBudget, ObserveBudget, ObserveBudgets, ObserveUpstream, SharedBudgetsConfig,
};
use crate::clock::Clock;

/// Client of the budget actor. Cheap to clone.
#[derive(Clone, Debug)]
pub struct BudgetsHandle {
    budgets: Addr<BudgetActor>,
}

impl BudgetsHandle {
    /// Starts budgets local to this process, on the current thread. It accepts at most `max_budgets` budgets, and books
    /// no turn that is more than `max_wait` away.
    #[must_use]
    pub fn start(max_budgets: usize, max_wait: Duration) -> Self {
        Self { budgets: BudgetActor::new(Clock::start(), max_budgets, max_wait).run() }
    }

    /// Starts budgets that are shared with other processes, on the current thread.
    #[must_use]
    pub fn start_shared(port: Arc<dyn SharedBudgets>, config: SharedBudgetsConfig) -> Self {
        Self { budgets: BudgetActor::shared(Clock::start(), port, config).run() }
    }

    /// Creates a budget, or changes the defaults of an existing one.
    ///
    /// # Errors
    ///
    /// When its maximum is zero or too large to share, or there are too many budgets.
    pub async fn configure(&self, name: &BudgetName, limits: BudgetLimits) -> Result<(), BudgetError> {
        flatten_reply(self.budgets.send(ConfigureBudget { name: name.clone(), limits }).await)
    }

    /// Takes a cost that can be spent within `max_wait`. Returns at once, with the time at which it may be spent.
    ///
    /// # Errors
    ///
    /// When there is no such budget, its maximum is below the cost, or it is shared and unreachable; see
    /// [`BudgetError::retry_after`].
    pub async fn acquire(
        &self,
        name: &BudgetName,
        cost: Points,
        max_wait: Duration,
    ) -> Result<BudgetDecision, BudgetError> {
        flatten_reply(self.budgets.send(AcquireBudget { name: name.clone(), cost, max_wait }).await)
    }

    /// Applies what an upstream reported about its own limits.
    ///
    /// # Errors
    ///
    /// When there is no such budget, or the values are invalid.
    pub async fn observe(&self, name: &BudgetName, observation: Observation) -> Result<(), BudgetError> {
        flatten_reply(self.budgets.send(ObserveUpstream { name: name.clone(), observation }).await)
    }

    /// State of a budget.
    ///
    /// # Errors
    ///
    /// When there is no such budget, or too many requests are in flight.
    pub async fn show_one(&self, name: &BudgetName) -> Result<BudgetSnapshot, BudgetError> {
        flatten_reply(self.budgets.send(ObserveBudget(name.clone())).await)
    }

    /// State of all budgets, by name.
    ///
    /// # Errors
    ///
    /// When too many requests are in flight.
    pub async fn show(&self) -> Result<Vec<BudgetSnapshot>, BudgetError> {
        flatten_reply(self.budgets.send(ObserveBudgets).await)
    }
}

fn flatten_reply<T>(reply: Result<Result<T, BudgetError>, MailboxError>) -> Result<T, BudgetError> {
    reply.unwrap_or(Err(BudgetError::Ending))
}
