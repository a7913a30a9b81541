//! The client side of one shared budget.

use std::time::Duration;

use super::{
    Budget, BudgetDecision, BudgetEpoch, BudgetError, BudgetFallback, BudgetLimits, BudgetMember, BudgetName,
    BudgetReport, BudgetSnapshot, BudgetSource, BudgetState, BudgetUnreachable, Observation, ObservedLimits,
    OfflineSpend, Points, SpendRequest,
};
use crate::time::Timestamp;

/// Parameters of the fallback for an unreachable budget.
#[derive(Clone, Copy, Debug)]
pub(super) struct FallbackContext {
    pub(super) on_loss: BudgetFallback,
    pub(super) since: Timestamp,
    pub(super) members: u32,
}

/// What this process knows about a shared budget, and what it still has to report.
#[derive(Clone, Debug)]
pub(super) struct SharedBudget {
    defaults: BudgetLimits,
    /// Whether the shared state has received the defaults.
    told: bool,
    last: Option<LastReply>,
    /// The budget that is used while the shared one is unreachable.
    meanwhile: Option<Budget>,
    unreported: Points,
    /// The spending that is being reported; unchanged until the report is confirmed.
    report: Option<OfflineSpend>,
    reports: u64,
    /// The last observation that the shared state has not received.
    unheard: Option<(Observation, Timestamp)>,
}

/// The last reply.
#[derive(Clone, Debug)]
struct LastReply {
    epoch: BudgetEpoch,
    limits: BudgetLimits,
    observed: ObservedLimits,
    /// The latest time in any reply, because granted delays stay valid.
    booked_until: Timestamp,
    blocked_until: Timestamp,
}

impl SharedBudget {
    pub(super) const fn new(defaults: BudgetLimits) -> Self {
        Self {
            defaults,
            told: false,
            last: None,
            meanwhile: None,
            unreported: Points::ZERO,
            report: None,
            reports: 0,
            unheard: None,
        }
    }

    pub(super) fn configure(&mut self, defaults: BudgetLimits) {
        self.defaults = defaults;
        self.told = false;
    }

    /// Whether there is something to report that should not wait for the next request.
    pub(super) fn has_news(&self) -> bool {
        !self.told || self.report.is_some() || self.unreported > Points::ZERO || self.unheard.is_some()
    }

    pub(super) fn tidings(&mut self, now: Timestamp) -> BudgetReport {
        if self.report.is_none() && self.unreported > Points::ZERO {
            let points = self.unreported.min(BudgetMember::MOST);
            self.unreported = self.unreported.minus(points);
            self.reports += 1;
            self.report = Some(OfflineSpend { number: self.reports, points });
        }
        let last = self.last.as_ref();
        BudgetReport {
            epoch: last.map(|last| last.epoch.clone()),
            limits: last.map_or(self.defaults, |last| last.limits),
            observed: last.map(|last| last.observed).unwrap_or_default(),
            booked_for: last.map(|last| last.booked_until.since(now)).unwrap_or_default(),
            configure: (!self.told).then_some(self.defaults),
            spent: self.report,
        }
    }

    pub(super) fn heard(&mut self, told: &BudgetReport, standing: &BudgetState, now: Timestamp) {
        self.told |= told.configure == Some(self.defaults);
        if told.spent.is_some() && told.spent == self.report {
            self.report = None;
        }
        let (booked, blocked) =
            self.last.as_ref().map(|last| (last.booked_until, last.blocked_until)).unwrap_or_default();
        self.last = Some(LastReply {
            epoch: standing.epoch.clone(),
            limits: standing.limits,
            observed: standing.observed,
            booked_until: booked.max(now + standing.booked_for),
            blocked_until: blocked.max(now + standing.blocked_for),
        });
    }

    /// The shared budget is reachable again.
    pub(super) fn back(&mut self) {
        self.meanwhile = None;
    }

    /// Takes the last observation, with its age updated to `now`.
    pub(super) fn take_unheard(&mut self, now: Timestamp) -> Option<Observation> {
        let (seen, at) = self.unheard.take()?;
        Some(aged(seen, now.since(at)))
    }

    pub(super) fn acquire(
        &mut self,
        ask: SpendRequest,
        loss: FallbackContext,
        now: Timestamp,
    ) -> Result<BudgetDecision, AcquireError> {
        let whole = self.last.as_ref().map_or(self.defaults, |last| last.limits).maximum;
        if ask.cost > whole {
            return Err(BudgetError::CostAboveMaximum { cost: ask.cost, maximum: whole }.into());
        }
        let budget = self.meanwhile(loss, now)?;
        let share = budget.limits().maximum;
        if ask.cost > share {
            return Err(BudgetUnreachable::AboveShare { cost: ask.cost, share }.into());
        }
        let acquired = budget.acquire(ask.cost, ask.max_wait, now)?;
        if matches!(acquired, BudgetDecision::Allowed { .. }) {
            self.unreported = self.unreported.plus(ask.cost);
        }
        Ok(acquired)
    }

    pub(super) fn observe(
        &mut self,
        seen: &Observation,
        loss: FallbackContext,
        now: Timestamp,
    ) -> Result<(), BudgetError> {
        self.unheard = Some((*seen, now));
        let of = match loss.on_loss {
            BudgetFallback::Share => loss.members,
            BudgetFallback::Closed | BudgetFallback::Open => 1,
        };
        match self.meanwhile(loss, now) {
            Ok(budget) => budget.observe(&share_of(seen, of), now),
            // It is reported when the budget is reachable again.
            Err(AcquireError::OutOfReach(_)) => Ok(()),
            Err(AcquireError::Budget(error)) => Err(error),
        }
    }

    pub(super) fn snapshot(&mut self, name: &BudgetName, loss: FallbackContext, now: Timestamp) -> BudgetSnapshot {
        if let Ok(budget) = self.meanwhile(loss, now) {
            return BudgetSnapshot::of(name, budget, BudgetSource::Meanwhile, now);
        }
        let last = self.last.as_ref();
        BudgetSnapshot {
            name: name.clone(),
            kept: BudgetSource::Meanwhile,
            limits: last.map_or(self.defaults, |last| last.limits),
            observed: last.is_some_and(|last| last.observed.any()),
            available: Points::ZERO,
            booked: Points::ZERO,
            blocked_for: last.map(|last| last.blocked_until.since(now)).unwrap_or_default(),
        }
    }

    /// The fallback budget.
    fn meanwhile(&mut self, loss: FallbackContext, now: Timestamp) -> Result<&mut Budget, AcquireError> {
        let budget = match self.meanwhile.take() {
            Some(budget) => budget,
            None => self.stand_in(loss, now)?,
        };
        Ok(self.meanwhile.insert(budget))
    }

    fn stand_in(&self, loss: FallbackContext, now: Timestamp) -> Result<Budget, AcquireError> {
        let last = self.last.as_ref();
        match loss.on_loss {
            BudgetFallback::Share => {
                let last = last.ok_or(BudgetUnreachable::Never)?;
                // Points restored before that are booked by waiting callers, or belong to no process.
                let from = loss.since.max(last.booked_until).max(last.blocked_until);
                Ok(Budget::empty(last.limits.share(loss.members), from)?)
            }
            BudgetFallback::Closed if last.is_none() => Err(BudgetUnreachable::Never.into()),
            BudgetFallback::Closed => Err(BudgetUnreachable::Closed.into()),
            BudgetFallback::Open => Ok(Budget::new(last.map_or(self.defaults, |last| last.limits), now)?),
        }
    }
}

/// Why a request failed.
#[derive(Debug)]
pub(super) enum AcquireError {
    Budget(BudgetError),
    OutOfReach(BudgetUnreachable),
}

impl From<BudgetError> for AcquireError {
    fn from(error: BudgetError) -> Self {
        Self::Budget(error)
    }
}

impl From<BudgetUnreachable> for AcquireError {
    fn from(why: BudgetUnreachable) -> Self {
        Self::OutOfReach(why)
    }
}

/// The share of an observation for one of `of` processes.
fn share_of(seen: &Observation, of: u32) -> Observation {
    Observation {
        available: seen.available.map(|points| points.share(of)),
        maximum: seen.maximum.map(|points| points.share(of).max(Points::SMALLEST)),
        restore_per_second: seen.restore_per_second.map(|points| points.share(of)),
        ..*seen
    }
}

/// An observation that is reported `by` later.
fn aged(seen: Observation, by: Duration) -> Observation {
    let retry_after = seen.retry_after.map(|wait| wait.saturating_sub(by)).filter(|wait| !wait.is_zero());
    let age = seen.age.saturating_add(by);
    if age > Budget::MEMORY {
        // It is unknown what was spent after it. Its limits are still valid.
        return Observation { available: None, retry_after, age: Duration::ZERO, ..seen };
    }
    let available = seen.available.or(seen.retry_after.map(|_| Points::ZERO));
    Observation { available, retry_after, age, ..seen }
}
