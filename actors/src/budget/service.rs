//! The one way in for whoever asks for budgets: makes those that may be made, and adds up what is spent.

use std::time::Duration;

use guildhall_core::budget::{
    BudgetDecision, BudgetError, BudgetLimits, BudgetName, BudgetSnapshot, Observation, Points, SpendRecord,
};

use super::{BudgetsHandle, SpendRecorder};
use crate::ports::StoreError;

/// Named budgets with what was spent of them. Cheap to clone.
#[derive(Clone, Debug)]
pub struct BudgetService {
    budgets: BudgetsHandle,
    /// What a budget holds that is asked for and was not named before; nothing if there is none then.
    others: Option<BudgetLimits>,
    spend: SpendRecorder,
}

impl BudgetService {
    /// Over these budgets. One that nobody has named is made with `others` when it is first asked for, if that is there.
    #[must_use]
    pub const fn new(budgets: BudgetsHandle, others: Option<BudgetLimits>, spend: SpendRecorder) -> Self {
        Self { budgets, others, spend }
    }

    /// All budgets as they stand, by name.
    ///
    /// # Errors
    ///
    /// When too many questions are under way.
    pub async fn list(&self) -> Result<Vec<BudgetSnapshot>, BudgetError> {
        self.budgets.show().await
    }

    /// A budget as it stands. Looking makes none.
    ///
    /// # Errors
    ///
    /// When there is no such budget, or too many questions are under way.
    pub async fn show(&self, name: &BudgetName) -> Result<BudgetSnapshot, BudgetError> {
        self.budgets.show_one(name).await
    }

    /// What was spent of a budget in the last so many hours, the newest first.
    ///
    /// # Errors
    ///
    /// When the store cannot be read.
    pub async fn last_hours(&self, name: &BudgetName, hours: u64) -> Result<Vec<SpendRecord>, StoreError> {
        self.spend.last_hours(name, hours).await
    }

    /// Takes a cost that can be spent within `max_wait`. The answer comes at once, and says when it may be spent.
    ///
    /// # Errors
    ///
    /// When there is no such budget and none may be made, it never holds so much, or it is shared and cannot be asked.
    pub async fn acquire(
        &self,
        name: &BudgetName,
        cost: Points,
        max_wait: Duration,
    ) -> Result<BudgetDecision, BudgetError> {
        let asked = match self.budgets.acquire(name, cost, max_wait).await {
            Err(BudgetError::Unknown(_)) => {
                self.make(name).await?;
                self.budgets.acquire(name, cost, max_wait).await
            }
            asked => asked,
        };
        if let Ok(BudgetDecision::Allowed { .. }) = asked {
            self.spend.spent(name, cost);
        }
        asked
    }

    /// Sees to it that an observation can be taken over: that it makes sense, and that there is such a budget.
    ///
    /// # Errors
    ///
    /// As [`BudgetService::observe`].
    pub async fn prepare(&self, name: &BudgetName, seen: &Observation) -> Result<(), BudgetError> {
        seen.check()?;
        match self.budgets.show_one(name).await {
            Err(BudgetError::Unknown(_)) => self.make(name).await,
            shown => shown.map(drop),
        }
    }

    /// Takes over what an upstream said of itself.
    ///
    /// # Errors
    ///
    /// When there is no such budget and none may be made, or what was said makes no sense.
    pub async fn observe(&self, name: &BudgetName, seen: Observation) -> Result<(), BudgetError> {
        match self.budgets.observe(name, seen).await {
            Err(BudgetError::Unknown(_)) => {
                self.make(name).await?;
                self.budgets.observe(name, seen).await
            }
            observed => observed,
        }
    }

    async fn make(&self, name: &BudgetName) -> Result<(), BudgetError> {
        let limits = self.others.ok_or_else(|| BudgetError::Unknown(name.to_string()))?;
        self.budgets.configure(name, limits).await
    }
}
