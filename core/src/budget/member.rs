//! One process's side of all budgets that it shares with others.
//!
//! ```text
//!  within reach:  tidings ──▶ the shared budget ──▶ heard            (it decides)
//!  out of reach:  lost ──▶ acquire, observe of what may be spent meanwhile ──▶ heard: what was spent is told
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
    /// How many budgets there may be.
    pub most: usize,
    /// Nobody may book a turn further away.
    pub longest_wait: Duration,
    /// What may be spent while they are out of reach.
    pub on_loss: BudgetFallback,
    /// How often it is tried to reach them again, and so when to come back.
    pub retry_after: Duration,
}

/// What an answer changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reachability {
    /// Nothing: the budgets were within reach before.
    Still,
    /// They are within reach again, after so long.
    Again(Duration),
}

/// Something to tell without being asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetTask {
    /// Tell the tidings, whatever they are.
    Tell,
    /// Tell what the upstream said meanwhile.
    Observe(Observation),
}

/// One process's side of shared budgets.
///
/// Whatever is told of a budget comes with [`BudgetReport`], and every answer is [heard](BudgetMember::heard). Once a question is
/// [lost](BudgetMember::lost), all budgets count as out of reach until the next answer, and this process spends what
/// [`BudgetFallback`] lets it.
#[derive(Clone, Debug)]
pub struct BudgetMember {
    config: BudgetMemberConfig,
    sides: BTreeMap<BudgetName, SharedBudget>,
    lost_at: Option<Timestamp>,
    members: MemberCount,
    /// Where the last round of errands ended.
    visited: Option<BudgetName>,
}

/// The largest number of processes that was heard of lately.
#[derive(Clone, Copy, Debug)]
struct MemberCount {
    count: u32,
    at: Timestamp,
}

impl BudgetMember {
    /// The most that a shared budget counts. Where it is shared, numbers may have no more digits than a double.
    pub const MOST: Points = Points::whole(1_000_000_000);

    /// How long a larger number of members stands against smaller ones.
    const MEMBERS_FOR: Duration = Duration::from_secs(60);

    /// No budgets yet.
    #[must_use]
    pub const fn new(config: BudgetMemberConfig) -> Self {
        let members = MemberCount { count: 1, at: Timestamp::ZERO };
        Self { config, sides: BTreeMap::new(), lost_at: None, members, visited: None }
    }

    /// Takes on a budget, or gives one other defaults; they are told with the next tidings.
    ///
    /// # Errors
    ///
    /// When it could hold nothing, or more than is counted, or there are too many.
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

    /// The budgets' names.
    pub fn names(&self) -> impl Iterator<Item = &BudgetName> {
        self.sides.keys()
    }

    /// Whether there is such a budget.
    #[must_use]
    pub fn knows(&self, name: &BudgetName) -> bool {
        self.sides.contains_key(name)
    }

    /// Whether this process is on its own.
    #[must_use]
    pub const fn is_out_of_reach(&self) -> bool {
        self.lost_at.is_some()
    }

    /// A wish as it may be put.
    #[must_use]
    pub fn ask(&self, cost: Points, max_wait: Duration) -> SpendRequest {
        SpendRequest { cost, max_wait: max_wait.min(self.config.longest_wait) }
    }

    /// An observation as it may be told.
    ///
    /// # Errors
    ///
    /// When it makes no sense, or there is no such budget.
    pub fn check(&self, name: &BudgetName, seen: &Observation) -> Result<Observation, BudgetError> {
        if !self.knows(name) {
            return Err(BudgetError::Unknown(name.to_string()));
        }
        seen.check()?;
        seen.maximum.map_or(Ok(()), countable)?;
        seen.restore_per_second.map_or(Ok(()), countable)?;
        // More than the maximum never counts.
        Ok(Observation { available: seen.available.map(|points| points.min(Self::MOST)), ..*seen })
    }

    /// What to tell with a question about a budget.
    ///
    /// # Errors
    ///
    /// When there is no such budget.
    pub fn tidings(&mut self, name: &BudgetName, now: Timestamp) -> Result<BudgetReport, BudgetError> {
        Ok(self.side(name)?.tidings(now))
    }

    /// An answer has come, to a question with these tidings.
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

    /// A question got no answer. Says whether that is new.
    pub fn lost(&mut self, now: Timestamp) -> bool {
        let is_new = self.lost_at.is_none();
        self.lost_at.get_or_insert(now);
        is_new
    }

    /// Takes a cost from what may be spent out of reach.
    ///
    /// # Errors
    ///
    /// When nothing may be spent, or there is no such budget.
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

    /// Takes over what an upstream said, out of reach; the others are told later.
    ///
    /// # Errors
    ///
    /// When there is no such budget.
    pub fn observe(&mut self, name: &BudgetName, seen: &Observation, now: Timestamp) -> Result<(), BudgetError> {
        let loss = self.loss(now);
        self.side(name)?.observe(seen, loss, now)
    }

    /// What has to be told by now. Out of reach, that is one thing, to find out whether that has ended; else all that has
    /// not been told, or a sign of life.
    pub fn errands(&mut self, now: Timestamp) -> Vec<(BudgetName, BudgetTask)> {
        let is_out_of_reach = self.is_out_of_reach();
        let mut errands: Vec<_> = self
            .sides
            .iter_mut()
            .filter(|(_, side)| !is_out_of_reach && side.has_news())
            .map(|(name, side)| (name.clone(), side.take_unheard(now).map_or(BudgetTask::Tell, BudgetTask::Observe)))
            .collect();
        if errands.is_empty() {
            // In turn, so that each is seen now and then.
            let after = self.visited.take();
            let next = self.sides.keys().find(|name| Some(*name) > after.as_ref()).or(self.sides.keys().next());
            self.visited = next.cloned();
            errands.extend(self.visited.clone().map(|name| (name, BudgetTask::Tell)));
        }
        errands
    }

    /// A budget as its keeper showed it.
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

    /// A budget as it stands out of reach.
    ///
    /// # Errors
    ///
    /// When there is no such budget.
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
