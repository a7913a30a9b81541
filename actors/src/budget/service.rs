//! Entry point for callers of budgets: creates budgets on demand where that is configured, and records what is spent.

use std::time::Duration;

use guildhall_core::budget::{
    BudgetDecision, BudgetError, BudgetLimits, BudgetName, BudgetSnapshot, Observation, Points, SpendRecord,
};

use super::{BudgetsHandle, SpendRecorder};
use crate::ports::StoreError;

/// Named budgets and their spend. Cheap to clone.
#[derive(Clone, Debug)]
pub struct BudgetService {
    budgets: BudgetsHandle,
    /// Limits of a budget that is created on demand. `None`: only configured budgets exist.
    default_limits: Option<BudgetLimits>,
    spend: SpendRecorder,
}

impl BudgetService {
    /// Creates the service. A budget that is not configured is created with `default_limits` at its first use, if
    /// given.
    #[must_use]
    pub const fn new(budgets: BudgetsHandle, default_limits: Option<BudgetLimits>, spend: SpendRecorder) -> Self {
        Self { budgets, default_limits, spend }
    }

    /// State of all budgets, by name.
    ///
    /// # Errors
    ///
    /// When too many requests are in flight.
    pub async fn list(&self) -> Result<Vec<BudgetSnapshot>, BudgetError> {
        self.budgets.show().await
    }

    /// State of a budget. Does not create it.
    ///
    /// # Errors
    ///
    /// When there is no such budget, or too many requests are in flight.
    pub async fn show(&self, name: &BudgetName) -> Result<BudgetSnapshot, BudgetError> {
        self.budgets.show_one(name).await
    }

    /// Spend of a budget in the last `hours` hours, the newest first.
    ///
    /// # Errors
    ///
    /// When the store cannot be read.
    pub async fn last_hours(&self, name: &BudgetName, hours: u64) -> Result<Vec<SpendRecord>, StoreError> {
        self.spend.last_hours(name, hours).await
    }

    /// Takes a cost that can be spent within `max_wait`. Returns at once, with the time at which it may be spent.
    ///
    /// # Errors
    ///
    /// When there is no such budget and it must not be created, its maximum is below the cost, or it is shared and
    /// unreachable.
    pub async fn acquire(
        &self,
        name: &BudgetName,
        cost: Points,
        max_wait: Duration,
    ) -> Result<BudgetDecision, BudgetError> {
        let result = match self.budgets.acquire(name, cost, max_wait).await {
            Err(BudgetError::Unknown(_)) => {
                self.create_default(name).await?;
                self.budgets.acquire(name, cost, max_wait).await
            }
            result => result,
        };
        if let Ok(BudgetDecision::Allowed { .. }) = result {
            self.spend.record_spent(name, cost);
        }
        result
    }

    /// Makes sure that an observation can be applied: checks its values, and creates the budget if needed.
    ///
    /// # Errors
    ///
    /// As [`BudgetService::observe`].
    pub async fn prepare(&self, name: &BudgetName, observation: &Observation) -> Result<(), BudgetError> {
        observation.check()?;
        match self.budgets.show_one(name).await {
            Err(BudgetError::Unknown(_)) => self.create_default(name).await,
            snapshot => snapshot.map(drop),
        }
    }

    /// Applies what an upstream reported about its own limits.
    ///
    /// # Errors
    ///
    /// When there is no such budget and it must not be created, or the values are invalid.
    pub async fn observe(&self, name: &BudgetName, observation: Observation) -> Result<(), BudgetError> {
        match self.budgets.observe(name, observation).await {
            Err(BudgetError::Unknown(_)) => {
                self.create_default(name).await?;
                self.budgets.observe(name, observation).await
            }
            result => result,
        }
    }

    async fn create_default(&self, name: &BudgetName) -> Result<(), BudgetError> {
        let limits = self.default_limits.ok_or_else(|| BudgetError::Unknown(name.to_string()))?;
        self.budgets.configure(name, limits).await
    }
}
