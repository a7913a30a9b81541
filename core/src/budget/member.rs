//! The client side of all shared budgets, in one process.
//!
//! ```text
//!  reachable:    report ──▶ shared budget ──▶ reply                (the shared budget decides)
//!  unreachable:  lost ──▶ acquire and observe locally ──▶ reply: the local spending is reported
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use super::shared_budget::{AcquireError, FallbackContext, SharedBudget};
use super::{
    BudgetDecision, BudgetError, BudgetFallback, BudgetLimits, BudgetName, BudgetReport, BudgetSnapshot, BudgetSource,
    BudgetState, Observation, Points, SpendRequest,
};
use crate::time::Timestamp;

/// How a process shares budgets.
#[derive(Clone, Copy, Debug)]
pub struct BudgetMemberConfig {
    /// Maximum number of budgets.
    pub max_budgets: usize,
    /// Maximum wait of a request.
    pub max_wait: Duration,
    /// What may be spent while the budgets are unreachable.
    pub on_loss: BudgetFallback,
    /// How often to try to reach them again, and when callers should retry.
    pub retry_after: Duration,
}

/// Effect of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reachability {
    /// None: the budgets were reachable before.
    Unchanged,
    /// They are reachable again, after this long.
    Restored(Duration),
}

/// A message to send without a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetTask {
    /// Send the report, even if it is empty.
    Report,
    /// Send an observation that was made meanwhile.
    Observe(Observation),
}

/// The client side of shared budgets.
///
/// Each request carries a [`BudgetReport`], and each reply must be passed back. After a request is lost, all budgets
/// are considered unreachable until the next reply, and this process spends what [`BudgetFallback`] permits.
#[derive(Clone, Debug)]
pub struct BudgetMember {
    config: BudgetMemberConfig,
    budgets: BTreeMap<BudgetName, SharedBudget>,
    lost_at: Option<Timestamp>,
    members: MemberCount,
    /// The budget of the last heartbeat.
    last_heartbeat: Option<BudgetName>,
}

/// The highest number of processes in recent replies.
#[derive(Clone, Copy, Debug)]
struct MemberCount {
    count: u32,
    at: Timestamp,
}

impl BudgetMember {
    /// The maximum of a shared budget. The shared state may store numbers as doubles.
    pub const MAX: Points = Points::whole(1_000_000_000);

    /// How long a higher number of members takes precedence over lower ones.
    const MEMBER_COUNT_TTL: Duration = Duration::from_secs(60);

    /// Creates a member without budgets.
    #[must_use]
    pub const fn new(config: BudgetMemberConfig) -> Self {
        let members = MemberCount { count: 1, at: Timestamp::ZERO };
        Self { config, budgets: BTreeMap::new(), lost_at: None, members, last_heartbeat: None }
    }

    /// Adds a budget, or sets new defaults for an existing one; they are sent with the next report.
    ///
    /// # Errors
    ///
    /// If its maximum is 0 or above the maximum of a shared budget, or there are too many budgets.
    pub fn configure(&mut self, name: &BudgetName, limits: BudgetLimits) -> Result<(), BudgetError> {
        if limits.maximum == Points::ZERO {
            return Err(BudgetError::MaximumZero);
        }
        countable(limits.maximum)?;
        countable(limits.restore_per_second)?;
        if let Some(budget) = self.budgets.get_mut(name) {
            budget.configure(limits);
            return Ok(());
        }
        if self.budgets.len() >= self.config.max_budgets {
            return Err(BudgetError::TooMany(self.config.max_budgets));
        }
        self.budgets.insert(name.clone(), SharedBudget::new(limits));
        Ok(())
    }

    /// The names of all budgets.
    pub fn names(&self) -> impl Iterator<Item = &BudgetName> {
        self.budgets.keys()
    }

    /// Whether the budget exists.
    #[must_use]
    pub fn contains(&self, name: &BudgetName) -> bool {
        self.budgets.contains_key(name)
    }

    /// Whether the shared state is unreachable.
    #[must_use]
    pub const fn is_unreachable(&self) -> bool {
        self.lost_at.is_some()
    }

    /// Creates a request with its wait limited to the maximum.
    #[must_use]
    pub fn request(&self, cost: Points, max_wait: Duration) -> SpendRequest {
        SpendRequest { cost, max_wait: max_wait.min(self.config.max_wait) }
    }

    /// Validates an observation.
    ///
    /// # Errors
    ///
    /// If it is invalid, or the budget is unknown.
    pub fn check(&self, name: &BudgetName, observation: &Observation) -> Result<Observation, BudgetError> {
        if !self.contains(name) {
            return Err(BudgetError::Unknown(name.to_string()));
        }
        observation.check()?;
        observation.maximum.map_or(Ok(()), countable)?;
        observation.restore_per_second.map_or(Ok(()), countable)?;
        // Points above the maximum never count.
        Ok(Observation { available: observation.available.map(|points| points.min(Self::MAX)), ..*observation })
    }

    /// The report to send with a request for a budget.
    ///
    /// # Errors
    ///
    /// If the budget is unknown.
    pub fn create_report(&mut self, name: &BudgetName, now: Timestamp) -> Result<BudgetReport, BudgetError> {
        Ok(self.budget(name)?.create_report(now))
    }

    /// A reply has arrived, to a request with this report.
    pub fn on_reply(
        &mut self,
        name: &BudgetName,
        report: &BudgetReport,
        state: &BudgetState,
        now: Timestamp,
    ) -> Reachability {
        if let Some(count) = state.members
            && (count >= self.members.count || now.since(self.members.at) > Self::MEMBER_COUNT_TTL)
        {
            self.members = MemberCount { count: count.max(1), at: now };
        }
        if let Some(budget) = self.budgets.get_mut(name) {
            budget.on_reply(report, state, now);
        }
        let Some(lost_at) = self.lost_at.take() else { return Reachability::Unchanged };
        for budget in self.budgets.values_mut() {
            budget.on_reachable();
        }
        Reachability::Restored(now.since(lost_at))
    }

    /// A request got no reply. Returns whether the shared state was reachable before.
    pub fn on_lost(&mut self, now: Timestamp) -> bool {
        let is_new = self.lost_at.is_none();
        self.lost_at.get_or_insert(now);
        is_new
    }

    /// Takes a cost from the fallback budget.
    ///
    /// # Errors
    ///
    /// If nothing may be spent, or the budget is unknown.
    pub fn acquire(
        &mut self,
        name: &BudgetName,
        request: SpendRequest,
        now: Timestamp,
    ) -> Result<BudgetDecision, BudgetError> {
        let (fallback, retry_after) = (self.fallback_context(now), self.config.retry_after);
        self.budget(name)?.acquire(request, fallback, now).map_err(|error| match error {
            AcquireError::Budget(error) => error,
            AcquireError::Unreachable(reason) => BudgetError::Unreachable { reason, retry_after },
        })
    }

    /// Applies an observation to the fallback budget; the shared state receives it later.
    ///
    /// # Errors
    ///
    /// If the budget is unknown.
    pub fn observe(&mut self, name: &BudgetName, observation: &Observation, now: Timestamp) -> Result<(), BudgetError> {
        let fallback = self.fallback_context(now);
        self.budget(name)?.observe(observation, fallback, now)
    }

    /// The messages that are due. If the shared state is unreachable: one message that probes it. Otherwise all unsent
    /// reports, or a heartbeat.
    pub fn tasks(&mut self, now: Timestamp) -> Vec<(BudgetName, BudgetTask)> {
        let is_out_of_reach = self.is_unreachable();
        let mut tasks: Vec<_> = self
            .budgets
            .iter_mut()
            .filter(|(_, budget)| !is_out_of_reach && budget.has_unreported())
            .map(|(name, budget)| {
                (name.clone(), budget.take_unsent_observation(now).map_or(BudgetTask::Report, BudgetTask::Observe))
            })
            .collect();
        if tasks.is_empty() {
            // Round-robin, so that each budget is reached from time to time.
            let after = self.last_heartbeat.take();
            let next = self.budgets.keys().find(|name| Some(*name) > after.as_ref()).or(self.budgets.keys().next());
            self.last_heartbeat = next.cloned();
            tasks.extend(self.last_heartbeat.clone().map(|name| (name, BudgetTask::Report)));
        }
        tasks
    }

    /// State of a budget, from a reply of the shared state.
    #[must_use]
    pub fn snapshot_of_state(name: &BudgetName, state: &BudgetState, booked: Points) -> BudgetSnapshot {
        BudgetSnapshot {
            name: name.clone(),
            source: BudgetSource::Together,
            limits: state.limits,
            observed: state.observed.any(),
            available: state.available,
            booked,
            blocked_for: state.blocked_for,
        }
    }

    /// State of a budget while the shared state is unreachable.
    ///
    /// # Errors
    ///
    /// If the budget is unknown.
    pub fn snapshot(&mut self, name: &BudgetName, now: Timestamp) -> Result<BudgetSnapshot, BudgetError> {
        let fallback = self.fallback_context(now);
        Ok(self.budget(name)?.snapshot(name, fallback, now))
    }

    fn fallback_context(&self, now: Timestamp) -> FallbackContext {
        let since = self.lost_at.unwrap_or(now);
        FallbackContext { on_loss: self.config.on_loss, since, members: self.members.count }
    }

    fn budget(&mut self, name: &BudgetName) -> Result<&mut SharedBudget, BudgetError> {
        self.budgets.get_mut(name).ok_or_else(|| BudgetError::Unknown(name.to_string()))
    }
}

fn countable(points: Points) -> Result<(), BudgetError> {
    if points > BudgetMember::MAX { Err(BudgetError::BeyondShared(points)) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
