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
    pub most: usize,
    /// Maximum wait of a request.
    pub longest_wait: Duration,
    /// What may be spent while the budgets are unreachable.
    pub on_loss: BudgetFallback,
    /// How often to try to reach them again, and when callers should retry.
    pub retry_after: Duration,
}

/// Effect of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reachability {
    /// None: the budgets were reachable before.
    Still,
    /// They are reachable again, after this long.
    Again(Duration),
}

/// A message to send without a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetTask {
    /// Send the report, even if it is empty.
    Tell,
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
    sides: BTreeMap<BudgetName, SharedBudget>,
    lost_at: Option<Timestamp>,
    members: MemberCount,
    /// The budget of the last heartbeat.
    visited: Option<BudgetName>,
}

/// The highest number of processes in recent replies.
#[derive(Clone, Copy, Debug)]
struct MemberCount {
    count: u32,
    at: Timestamp,
}

impl BudgetMember {
    /// The maximum of a shared budget. The shared state may store numbers as doubles.
    pub const MOST: Points = Points::whole(1_000_000_000);

    /// How long a higher number of members takes precedence over lower ones.
    const MEMBERS_FOR: Duration = Duration::from_secs(60);

    /// Creates a member without budgets.
    #[must_use]
    pub const fn new(config: BudgetMemberConfig) -> Self {
        let members = MemberCount { count: 1, at: Timestamp::ZERO };
        Self { config, sides: BTreeMap::new(), lost_at: None, members, visited: None }
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
        if let Some(side) = self.sides.get_mut(name) {
            side.configure(limits);
            return Ok(());
        }
        if self.sides.len() >= self.config.most {
            return Err(BudgetError::TooMany(self.config.most));
        }
        self.sides.insert(name.clone(), SharedBudget::new(limits));
        Ok(())
    }

    /// The names of all budgets.
    pub fn names(&self) -> impl Iterator<Item = &BudgetName> {
        self.sides.keys()
    }

    /// Whether the budget exists.
    #[must_use]
    pub fn knows(&self, name: &BudgetName) -> bool {
        self.sides.contains_key(name)
    }

    /// Whether the shared state is unreachable.
    #[must_use]
    pub const fn is_out_of_reach(&self) -> bool {
        self.lost_at.is_some()
    }

    /// Creates a request with its wait limited to the maximum.
    #[must_use]
    pub fn ask(&self, cost: Points, max_wait: Duration) -> SpendRequest {
        SpendRequest { cost, max_wait: max_wait.min(self.config.longest_wait) }
    }

    /// Validates an observation.
    ///
    /// # Errors
    ///
    /// If it is invalid, or the budget is unknown.
    pub fn check(&self, name: &BudgetName, seen: &Observation) -> Result<Observation, BudgetError> {
        if !self.knows(name) {
            return Err(BudgetError::Unknown(name.to_string()));
        }
        seen.check()?;
        seen.maximum.map_or(Ok(()), countable)?;
        seen.restore_per_second.map_or(Ok(()), countable)?;
        // Points above the maximum never count.
        Ok(Observation { available: seen.available.map(|points| points.min(Self::MOST)), ..*seen })
    }

    /// The report to send with a request for a budget.
    ///
    /// # Errors
    ///
    /// If the budget is unknown.
    pub fn tidings(&mut self, name: &BudgetName, now: Timestamp) -> Result<BudgetReport, BudgetError> {
        Ok(self.side(name)?.tidings(now))
    }

    /// A reply has arrived, to a request with this report.
    pub fn heard(
        &mut self,
        name: &BudgetName,
        told: &BudgetReport,
        standing: &BudgetState,
        now: Timestamp,
    ) -> Reachability {
        if let Some(count) = standing.members
            && (count >= self.members.count || now.since(self.members.at) > Self::MEMBERS_FOR)
        {
            self.members = MemberCount { count: count.max(1), at: now };
        }
        if let Some(side) = self.sides.get_mut(name) {
            side.heard(told, standing, now);
        }
        let Some(lost_at) = self.lost_at.take() else { return Reachability::Still };
        for side in self.sides.values_mut() {
            side.back();
        }
        Reachability::Again(now.since(lost_at))
    }

    /// A request got no reply. Returns whether the shared state was reachable before.
    pub fn lost(&mut self, now: Timestamp) -> bool {
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
        ask: SpendRequest,
        now: Timestamp,
    ) -> Result<BudgetDecision, BudgetError> {
        let (loss, retry_after) = (self.loss(now), self.config.retry_after);
        self.side(name)?.acquire(ask, loss, now).map_err(|refusal| match refusal {
            AcquireError::Budget(error) => error,
            AcquireError::OutOfReach(why) => BudgetError::OutOfReach { why, retry_after },
        })
    }

    /// Applies an observation to the fallback budget; the shared state receives it later.
    ///
    /// # Errors
    ///
    /// If the budget is unknown.
    pub fn observe(&mut self, name: &BudgetName, seen: &Observation, now: Timestamp) -> Result<(), BudgetError> {
        let loss = self.loss(now);
        self.side(name)?.observe(seen, loss, now)
    }

    /// The messages that are due. If the shared state is unreachable: one message that probes it. Otherwise all unsent
    /// reports, or a heartbeat.
    pub fn errands(&mut self, now: Timestamp) -> Vec<(BudgetName, BudgetTask)> {
        let is_out_of_reach = self.is_out_of_reach();
        let mut errands: Vec<_> = self
            .sides
            .iter_mut()
            .filter(|(_, side)| !is_out_of_reach && side.has_news())
            .map(|(name, side)| (name.clone(), side.take_unheard(now).map_or(BudgetTask::Tell, BudgetTask::Observe)))
            .collect();
        if errands.is_empty() {
            // Round-robin, so that each budget is reached from time to time.
            let after = self.visited.take();
            let next = self.sides.keys().find(|name| Some(*name) > after.as_ref()).or(self.sides.keys().next());
            self.visited = next.cloned();
            errands.extend(self.visited.clone().map(|name| (name, BudgetTask::Tell)));
        }
        errands
    }

    /// State of a budget, from a reply of the shared state.
    #[must_use]
    pub fn shown(name: &BudgetName, standing: &BudgetState, booked: Points) -> BudgetSnapshot {
        BudgetSnapshot {
            name: name.clone(),
            kept: BudgetSource::Together,
            limits: standing.limits,
            observed: standing.observed.any(),
            available: standing.available,
            booked,
            blocked_for: standing.blocked_for,
        }
    }

    /// State of a budget while the shared state is unreachable.
    ///
    /// # Errors
    ///
    /// If the budget is unknown.
    pub fn snapshot(&mut self, name: &BudgetName, now: Timestamp) -> Result<BudgetSnapshot, BudgetError> {
        let loss = self.loss(now);
        Ok(self.side(name)?.snapshot(name, loss, now))
    }

    fn loss(&self, now: Timestamp) -> FallbackContext {
        let since = self.lost_at.unwrap_or(now);
        FallbackContext { on_loss: self.config.on_loss, since, members: self.members.count }
    }

    fn side(&mut self, name: &BudgetName) -> Result<&mut SharedBudget, BudgetError> {
        self.sides.get_mut(name).ok_or_else(|| BudgetError::Unknown(name.to_string()))
    }
}

fn countable(points: Points) -> Result<(), BudgetError> {
    if points > BudgetMember::MOST { Err(BudgetError::BeyondShared(points)) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
