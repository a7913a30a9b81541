//! One budget.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;

use super::{BudgetError, Points};
use crate::time::Timestamp;

/// The size of a budget, and how fast it is restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BudgetLimits {
    /// Points in a full budget.
    pub maximum: Points,
    /// Points restored per second.
    pub restore_per_second: Points,
}

impl BudgetLimits {
    /// An even share, if the limits are divided by `of`.
    #[must_use]
    pub fn share(self, of: u32) -> Self {
        Self {
            maximum: self.maximum.share(of).max(Points::SMALLEST),
            restore_per_second: self.restore_per_second.share(of),
        }
    }
}

/// What the upstream reported in a response. A value that it did not report does not change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// Points left. If only [`Observation::retry_after`] is given, none are left.
    pub available: Option<Points>,
    /// Points in a full budget.
    pub maximum: Option<Points>,
    /// Points restored per second.
    pub restore_per_second: Option<Points>,
    /// How long the upstream accepts no calls.
    pub retry_after: Option<Duration>,
    /// How long ago the observed call was sent. The upstream cannot have counted calls that were sent later.
    pub age: Duration,
}

impl Observation {
    /// Checks whether the observation can be applied.
    ///
    /// # Errors
    ///
    /// If it is too old, or reports a maximum of 0.
    pub fn check(&self) -> Result<(), BudgetError> {
        if self.age > Budget::MEMORY {
            return Err(BudgetError::StaleObservation);
        }
        if self.maximum == Some(Points::ZERO) {
            return Err(BudgetError::MaximumZero);
        }
        Ok(())
    }
}

/// Result of a request to spend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "result", rename_all = "snake_case")]
#[must_use]
pub enum BudgetDecision {
    /// The cost is taken.
    Allowed {
        /// How long to wait before spending it.
        delay: Duration,
        /// Points left now.
        remaining: Points,
    },
    /// Nothing has changed.
    Refused {
        /// When it would be allowed, if no other request came first; `None` if nothing is restored.
        retry_after: Option<Duration>,
        /// Points left now.
        remaining: Points,
    },
}

/// A cost that was taken, and when it may be spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Booking {
    due: Timestamp,
    cost: i128,
}

/// A budget of one upstream.
///
/// Effect of an observation: the reported points become the remaining points, minus everything that is spent after the
/// observed call was sent (`now − age`), in flight or still waiting. So an observation drops nothing that the upstream
/// cannot have seen, and counts nothing twice. Delays that were granted stay valid. A new rate without a report of the
/// remaining points applies from the time when all bookings are due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    limits: BudgetLimits,
    /// Which limits the upstream has reported; a default no longer changes these.
    observed: ObservedLimits,
    /// Millionths of points at `as_of`; negative only if an observation reported less than was booked.
    balance: i128,
    /// When the last booking is due: all points restored until then are booked. It may be in the future.
    as_of: Timestamp,
    blocked_until: Timestamp,
    /// Sorted by `due`, which only increases.
    bookings: VecDeque<Booking>,
}

/// Which limits the upstream has reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObservedLimits {
    /// The maximum.
    pub maximum: bool,
    /// The restore rate.
    pub restore: bool,
}

impl ObservedLimits {
    /// Whether it has reported any.
    #[must_use]
    pub const fn any(self) -> bool {
        self.maximum || self.restore
    }
}

impl Budget {
    /// How long bookings are stored after they are due, and therefore the maximum age of an observation.
    pub const MEMORY: Duration = Duration::from_secs(60);

    /// Maximum number of stored bookings. Beyond it the oldest are merged.
    const MAX_BOOKINGS: usize = 1_024;

    /// Creates a full budget.
    ///
    /// # Errors
    ///
    /// If the maximum is 0.
    pub fn new(limits: BudgetLimits, now: Timestamp) -> Result<Self, BudgetError> {
        Self::with_points(limits.maximum, limits, now)
    }

    /// Creates an empty budget that is restored from `from` on.
    ///
    /// # Errors
    ///
    /// If the maximum is 0.
    pub fn empty(limits: BudgetLimits, from: Timestamp) -> Result<Self, BudgetError> {
        Self::with_points(Points::ZERO, limits, from)
    }

    fn with_points(points: Points, limits: BudgetLimits, as_of: Timestamp) -> Result<Self, BudgetError> {
        if limits.maximum == Points::ZERO {
            return Err(BudgetError::MaximumZero);
        }
        Ok(Self {
            limits,
            observed: ObservedLimits::default(),
            balance: points.signed(),
            as_of,
            blocked_until: Timestamp::ZERO,
            bookings: VecDeque::new(),
        })
    }

    /// The current limits.
    #[must_use]
    pub const fn limits(&self) -> BudgetLimits {
        self.limits
    }

    /// Which of them the upstream has reported.
    #[must_use]
    pub const fn observed(&self) -> ObservedLimits {
        self.observed
    }

    /// Points that can be spent now.
    #[must_use]
    pub fn available(&self, now: Timestamp) -> Points {
        if now < self.as_of.max(self.blocked_until) { Points::ZERO } else { Points::from_balance(self.balance_at(now)) }
    }

    /// Points that were taken to be spent later.
    #[must_use]
    pub fn booked(&self, now: Timestamp) -> Points {
        Points::from_balance(
            self.bookings.iter().rev().take_while(|booking| booking.due > now).map(|booking| booking.cost).sum(),
        )
    }

    /// How long all restored points are booked.
    #[must_use]
    pub fn booked_for(&self, now: Timestamp) -> Duration {
        self.as_of.since(now)
    }

    /// How long the upstream still accepts no calls.
    #[must_use]
    pub fn blocked_for(&self, now: Timestamp) -> Duration {
        self.blocked_until.since(now)
    }

    /// Takes a cost that can be spent now.
    ///
    /// # Errors
    ///
    /// If the cost exceeds the maximum.
    pub fn try_acquire(&mut self, cost: Points, now: Timestamp) -> Result<BudgetDecision, BudgetError> {
        self.acquire(cost, Duration::ZERO, now)
    }

    /// Takes a cost that can be spent within `max_wait`.
    ///
    /// # Errors
    ///
    /// If the cost exceeds the maximum.
    pub fn acquire(&mut self, cost: Points, max_wait: Duration, now: Timestamp) -> Result<BudgetDecision, BudgetError> {
        if cost > self.limits.maximum {
            return Err(BudgetError::CostAboveMaximum { cost, maximum: self.limits.maximum });
        }
        let cost = cost.signed();
        let due = self.covered_at(cost).map(|at| at.max(self.as_of).max(self.blocked_until).max(now));
        match due {
            Some(due) if due.since(now) <= max_wait => {
                self.spend(Booking { due, cost });
                self.record(Booking { due, cost }, now);
                Ok(BudgetDecision::Allowed { delay: due.since(now), remaining: self.available(now) })
            }
            due => {
                let retry_after = due.map(|due| due.since(now));
                Ok(BudgetDecision::Refused { retry_after, remaining: self.available(now) })
            }
        }
    }

    /// Takes a cost that was spent without a request, even if it is not available.
    pub fn charge(&mut self, spent: Points, now: Timestamp) {
        let booking = Booking { due: self.as_of.max(now), cost: spent.signed() };
        self.spend(booking);
        self.record(booking, now);
    }

    /// Applies the spending of a lost budget of the same upstream: `spent` points are taken, and all points restored
    /// within `booked_for` are booked.
    #[cfg(any(test, feature = "testing"))]
    pub fn inherit(&mut self, spent: Points, booked_for: Duration, now: Timestamp) {
        self.accrue(now);
        self.balance -= spent.signed();
        self.as_of = self.as_of.max(now + booked_for);
    }

    /// Applies an observation; see [`Budget`] for the rule.
    ///
    /// # Errors
    ///
    /// If it is too old, or reports a maximum of 0. Nothing has changed then.
    pub fn observe(&mut self, observation: &Observation, now: Timestamp) -> Result<(), BudgetError> {
        observation.check()?;
        self.accrue(now);
        if let Some(maximum) = observation.maximum {
            self.limits.maximum = maximum;
            self.observed.maximum = true;
        }
        if let Some(rate) = observation.restore_per_second {
            self.limits.restore_per_second = rate;
            self.observed.restore = true;
        }
        // An upstream that accepts no calls, and does not report the remaining points, has none left.
        let reported = observation.available.or(observation.retry_after.map(|_| Points::ZERO));
        if let Some(reported) = reported {
            self.restart(reported, now.before(observation.age), now);
        }
        self.balance = self.balance.min(self.limits.maximum.signed());
        if let Some(wait) = observation.retry_after {
            self.blocked_until = self.blocked_until.max(now + wait);
        }
        Ok(())
    }

    /// Sets new defaults. Limits that the upstream has reported do not change.
    ///
    /// # Errors
    ///
    /// If the maximum is 0.
    pub fn configure(&mut self, limits: BudgetLimits, now: Timestamp) -> Result<(), BudgetError> {
        if limits.maximum == Points::ZERO {
            return Err(BudgetError::MaximumZero);
        }
        self.accrue(now);
        if !self.observed.maximum {
            self.limits.maximum = limits.maximum;
        }
        if !self.observed.restore {
            self.limits.restore_per_second = limits.restore_per_second;
        }
        self.balance = self.balance.min(self.limits.maximum.signed());
        Ok(())
    }

    /// The balance at a time not before `as_of`, if nothing more is booked.
    fn balance_at(&self, then: Timestamp) -> i128 {
        let elapsed = i128::from(then.micros().saturating_sub(self.as_of.micros()));
        let restored = self.limits.restore_per_second.signed() * elapsed / 1_000_000;
        (self.balance + restored).min(self.limits.maximum.signed())
    }

    /// When the balance covers the cost; `None` if nothing is restored.
    fn covered_at(&self, cost: i128) -> Option<Timestamp> {
        let missing = cost - self.balance;
        if missing <= 0 {
            return Some(self.as_of);
        }
        let rate = self.limits.restore_per_second.signed();
        let micros = (rate > 0).then(|| (missing * 1_000_000 + rate - 1) / rate)?;
        Some(self.as_of + Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)))
    }

    /// Adds the points restored until now at the current rate, before the rate changes.
    fn accrue(&mut self, now: Timestamp) {
        self.balance = self.balance_at(now);
        self.as_of = self.as_of.max(now);
    }

    fn spend(&mut self, booking: Booking) {
        self.balance = self.balance_at(booking.due) - booking.cost;
        self.as_of = booking.due;
    }

    /// Restarts from the reported points of an upstream that has seen everything spent until `sent`.
    fn restart(&mut self, reported: Points, sent: Timestamp, now: Timestamp) {
        self.balance = reported.min(self.limits.maximum).signed();
        self.as_of = now;
        let unseen = self.bookings.partition_point(|booking| booking.due <= sent);
        for at in unseen..self.bookings.len() {
            let Booking { due, cost } = self.bookings[at];
            self.spend(Booking { due: due.max(now), cost });
        }
    }

    fn record(&mut self, booking: Booking, now: Timestamp) {
        while self.bookings.front().is_some_and(|oldest| now.since(oldest.due) > Self::MEMORY) {
            self.bookings.pop_front();
        }
        self.bookings.push_back(booking);
        if self.bookings.len() > Self::MAX_BOOKINGS
            && let Some(oldest) = self.bookings.pop_front()
            && let Some(next) = self.bookings.front_mut()
        {
            // With the later of the two times: an observation should count too much as unseen rather than too little.
            next.cost += oldest.cost;
        }
    }
}

#[cfg(test)]
mod tests;
