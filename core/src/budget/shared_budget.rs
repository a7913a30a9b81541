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
    defaults_sent: bool,
    last: Option<LastReply>,
    /// The budget that is used while the shared one is unreachable.
    meanwhile: Option<Budget>,
    unreported: Points,
    /// The spending that is being reported; unchanged until the report is confirmed.
    pending_spend: Option<OfflineSpend>,
    last_spend_number: u64,
    /// The last observation that the shared state has not received.
    unsent_observation: Option<(Observation, Timestamp)>,
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
            defaults_sent: false,
            last: None,
            meanwhile: None,
            unreported: Points::ZERO,
            pending_spend: None,
            last_spend_number: 0,
            unsent_observation: None,
        }
    }

    pub(super) fn configure(&mut self, defaults: BudgetLimits) {
        self.defaults = defaults;
        self.defaults_sent = false;
    }

    /// Whether there is something to report that should not wait for the next request.
    pub(super) fn has_unreported(&self) -> bool {
        !self.defaults_sent
            || self.pending_spend.is_some()
            || self.unreported > Points::ZERO
            || self.unsent_observation.is_some()
    }

    pub(super) fn create_report(&mut self, now: Timestamp) -> BudgetReport {
        if self.pending_spend.is_none() && self.unreported > Points::ZERO {
            let points = self.unreported.min(BudgetMember::MAX);
            self.unreported = self.unreported.minus(points);
            self.last_spend_number += 1;
            self.pending_spend = Some(OfflineSpend { number: self.last_spend_number, points });
        }
        let last = self.last.as_ref();
        BudgetReport {
            epoch: last.map(|last| last.epoch.clone()),
            limits: last.map_or(self.defaults, |last| last.limits),
            observed: last.map(|last| last.observed).unwrap_or_default(),
            booked_for: last.map(|last| last.booked_until.since(now)).unwrap_or_default(),
            configure: (!self.defaults_sent).then_some(self.defaults),
            spent: self.pending_spend,
        }
    }

    pub(super) fn on_reply(&mut self, report: &BudgetReport, state: &BudgetState, now: Timestamp) {
        self.defaults_sent |= report.configure == Some(self.defaults);
        if report.spent.is_some() && report.spent == self.pending_spend {
            self.pending_spend = None;
        }
        let (booked, blocked) =
            self.last.as_ref().map(|last| (last.booked_until, last.blocked_until)).unwrap_or_default();
        self.last = Some(LastReply {
            epoch: state.epoch.clone(),
            limits: state.limits,
            observed: state.observed,
            booked_until: booked.max(now + state.booked_for),
            blocked_until: blocked.max(now + state.blocked_for),
        });
    }

    /// The shared budget is reachable again.
    pub(super) fn on_reachable(&mut self) {
        self.meanwhile = None;
    }

    /// Takes the last observation, with its age updated to `now`.
    pub(super) fn take_unsent_observation(&mut self, now: Timestamp) -> Option<Observation> {
        let (observation, at) = self.unsent_observation.take()?;
        Some(aged(observation, now.since(at)))
    }

    pub(super) fn acquire(
        &mut self,
        request: SpendRequest,
        fallback: FallbackContext,
        now: Timestamp,
    ) -> Result<BudgetDecision, AcquireError> {
        let whole = self.last.as_ref().map_or(self.defaults, |last| last.limits).maximum;
        if request.cost > whole {
            return Err(BudgetError::CostAboveMaximum { cost: request.cost, maximum: whole }.into());
        }
        let budget = self.meanwhile(fallback, now)?;
        let share = budget.limits().maximum;
        if request.cost > share {
            return Err(BudgetUnreachable::AboveShare { cost: request.cost, share }.into());
        }
        let acquired = budget.acquire(request.cost, request.max_wait, now)?;
        if matches!(acquired, BudgetDecision::Allowed { .. }) {
            self.unreported = self.unreported.plus(request.cost);
        }
        Ok(acquired)
    }

    pub(super) fn observe(
        &mut self,
        observation: &Observation,
        fallback: FallbackContext,
        now: Timestamp,
    ) -> Result<(), BudgetError> {
        self.unsent_observation = Some((*observation, now));
        let of = match fallback.on_loss {
            BudgetFallback::Share => fallback.members,
            BudgetFallback::Closed | BudgetFallback::Open => 1,
        };
        match self.meanwhile(fallback, now) {
            Ok(budget) => budget.observe(&share_of(observation, of), now),
            // It is reported when the budget is reachable again.
            Err(AcquireError::Unreachable(_)) => Ok(()),
            Err(AcquireError::Budget(error)) => Err(error),
        }
    }

    pub(super) fn snapshot(&mut self, name: &BudgetName, fallback: FallbackContext, now: Timestamp) -> BudgetSnapshot {
        if let Ok(budget) = self.meanwhile(fallback, now) {
            return BudgetSnapshot::of(name, budget, BudgetSource::Meanwhile, now);
        }
        let last = self.last.as_ref();
        BudgetSnapshot {
            name: name.clone(),
            source: BudgetSource::Meanwhile,
            limits: last.map_or(self.defaults, |last| last.limits),
            observed: last.is_some_and(|last| last.observed.any()),
            available: Points::ZERO,
            booked: Points::ZERO,
            blocked_for: last.map(|last| last.blocked_until.since(now)).unwrap_or_default(),
        }
    }

    /// The fallback budget.
    fn meanwhile(&mut self, fallback: FallbackContext, now: Timestamp) -> Result<&mut Budget, AcquireError> {
        let budget = match self.meanwhile.take() {
            Some(budget) => budget,
            None => self.new_fallback(fallback, now)?,
        };
        Ok(self.meanwhile.insert(budget))
    }

    fn new_fallback(&self, fallback: FallbackContext, now: Timestamp) -> Result<Budget, AcquireError> {
        let last = self.last.as_ref();
        match fallback.on_loss {
            BudgetFallback::Share => {
                let last = last.ok_or(BudgetUnreachable::Never)?;
                // Points restored before that are booked by waiting callers, or belong to no process.
                let from = fallback.since.max(last.booked_until).max(last.blocked_until);
                Ok(Budget::empty(last.limits.share(fallback.members), from)?)
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
    Unreachable(BudgetUnreachable),
}

impl From<BudgetError> for AcquireError {
    fn from(error: BudgetError) -> Self {
        Self::Budget(error)
    }
}

impl From<BudgetUnreachable> for AcquireError {
    fn from(reason: BudgetUnreachable) -> Self {
        Self::Unreachable(reason)
    }
}

/// The share of an observation for one of `of` processes.
fn share_of(observation: &Observation, of: u32) -> Observation {
    Observation {
        available: observation.available.map(|points| points.share(of)),
        maximum: observation.maximum.map(|points| points.share(of).max(Points::SMALLEST)),
        restore_per_second: observation.restore_per_second.map(|points| points.share(of)),
        ..*observation
    }
}

/// An observation that is reported `by` later.
fn aged(observation: Observation, by: Duration) -> Observation {
    let retry_after = observation.retry_after.map(|wait| wait.saturating_sub(by)).filter(|wait| !wait.is_zero());
    let age = observation.age.saturating_add(by);
    if age > Budget::MEMORY {
        // It is unknown what was spent after it. Its limits are still valid.
        return Observation { available: None, retry_after, age: Duration::ZERO, ..observation };
    }
    let available = observation.available.or(observation.retry_after.map(|_| Points::ZERO));
    Observation { available, retry_after, age, ..observation }
}
