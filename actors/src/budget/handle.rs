//! The way to the actor.

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

/// Asks for named budgets. Cheap to clone.
#[derive(Clone, Debug)]
pub struct BudgetsHandle {
    budgets: Addr<BudgetActor>,
}

impl BudgetsHandle {
    /// Starts budgets of this process alone, where the caller runs. There may be `most`, and nobody may book a turn further
    /// away than `longest_wait`.
    #[must_use]
    pub fn start(most: usize, longest_wait: Duration) -> Self {
        Self { budgets: BudgetActor::new(Clock::start(), most, longest_wait).run() }
    }

    /// Starts budgets that are shared with other processes, where the caller runs.
    #[must_use]
    pub fn start_shared(port: Arc<dyn SharedBudgets>, config: SharedBudgetsConfig) -> Self {
        Self { budgets: BudgetActor::shared(Clock::start(), port, config).run() }
    }

    /// Makes a budget, or gives one other defaults.
    ///
    /// # Errors
    ///
    /// When it could hold nothing, or more than can be shared, or there are too many.
    pub async fn configure(&self, name: &BudgetName, limits: BudgetLimits) -> Result<(), BudgetError> {
        flat(self.budgets.send(ConfigureBudget { name: name.clone(), limits }).await)
    }

    /// Takes a cost that can be spent within `max_wait`. The answer comes at once, and says when it may be spent.
    ///
    /// # Errors
    ///
    /// When there is no such budget, it never holds so much, or it is shared and cannot be asked; see
    /// [`BudgetError::retry_after`].
    pub async fn acquire(
        &self,
        name: &BudgetName,
        cost: Points,
        max_wait: Duration,
    ) -> Result<BudgetDecision, BudgetError> {
        flat(self.budgets.send(AcquireBudget { name: name.clone(), cost, max_wait }).await)
    }

    /// Takes over what an upstream said of itself.
    ///
    /// # Errors
    ///
    /// When there is no such budget, or what was said makes no sense.
    pub async fn observe(&self, name: &BudgetName, seen: Observation) -> Result<(), BudgetError> {
        flat(self.budgets.send(ObserveUpstream { name: name.clone(), seen }).await)
    }

    /// A budget as it stands.
    ///
    /// # Errors
    ///
    /// When there is no such budget, or too many questions are under way.
    pub async fn show_one(&self, name: &BudgetName) -> Result<BudgetSnapshot, BudgetError> {
        flat(self.budgets.send(ObserveBudget(name.clone())).await)
    }

    /// All budgets as they stand, by name.
    ///
    /// # Errors
    ///
    /// When too many questions are under way.
    pub async fn show(&self) -> Result<Vec<BudgetSnapshot>, BudgetError> {
        flat(self.budgets.send(ObserveBudgets).await)
    }
}

fn flat<T>(answer: Result<Result<T, BudgetError>, MailboxError>) -> Result<T, BudgetError> {
    answer.unwrap_or(Err(BudgetError::Ending))
}
