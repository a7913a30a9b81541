//! One budget.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;

use super::{BudgetError, Points};
use crate::time::Timestamp;

/// What a budget holds, and how fast it comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BudgetLimits {
    /// What it holds when it is full.
    pub maximum: Points,
    /// What comes back in a second.
    pub restore_per_second: Points,
}

impl BudgetLimits {
    /// An even share of them, of which there are so many.
    #[must_use]
    pub fn share(self, of: u32) -> Self {
        Self {
            maximum: self.maximum.share(of).max(Points::SMALLEST),
            restore_per_second: self.restore_per_second.share(of),
        }
    }
}

/// What the upstream said of itself in an answer. What it did not say stays as it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// What is left. With [`Observation::retry_after`] alone, nothing is.
    pub available: Option<Points>,
    /// What there is when all of it is there.
    pub maximum: Option<Points>,
    /// What comes back in a second.
    pub restore_per_second: Option<Points>,
    /// How long it wants to be left alone.
    pub retry_after: Option<Duration>,
    /// How long ago the call was sent whose answer said so. The upstream cannot have counted what was sent later.
    pub age: Duration,
}

impl Observation {
    /// Whether it can be taken over.
    ///
    /// # Errors
    ///
    /// When it is too old to say anything, or says that the maximum is 0.
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

/// What came of asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "result", rename_all = "snake_case")]
#[must_use]
pub enum BudgetDecision {
    /// Its cost is taken.
    Allowed {
        /// When to spend it: not before so long from now.
        delay: Duration,
        /// What is left now.
        remaining: Points,
    },
    /// Nothing has changed.
    Refused {
        /// When it would be allowed, if nobody else came first; never by itself, if nothing comes back.
        retry_after: Option<Duration>,
        /// What is left now.
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
/// What an observation does: what the upstream says is left becomes what is left, less everything that is spent after the
/// observed call was sent (`now − age`), be it on its way or still waiting. So an observation forgets nothing that the
/// upstream cannot have seen, and does not count twice what it has. Delays that were given out stand, and a new rate with
/// no word on what is left counts from when all that is booked is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    limits: BudgetLimits,
    /// Whether each of the limits is the upstream's own word, which a default no longer changes.
    observed: ObservedLimits,
    /// Millionths of points at `as_of`; below 0 only when an observation found less than was booked.
    balance: i128,
    /// When the last booking is due: what comes back until then is spoken for. So it may lie ahead.
    as_of: Timestamp,
    blocked_until: Timestamp,
    /// By `due`, which only grows.
    bookings: VecDeque<Booking>,
}

/// Which limits are the upstream's own word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObservedLimits {
    /// What it holds.
    pub maximum: bool,
    /// How fast it comes back.
    pub restore: bool,
}

impl ObservedLimits {
    /// Whether any is.
    #[must_use]
    pub const fn any(self) -> bool {
        self.maximum || self.restore
    }
}

impl Budget {
    /// How long bookings are remembered once they are due, and so how old an observation may be.
    pub const MEMORY: Duration = Duration::from_secs(60);

    /// How many bookings are remembered one by one. Past it the oldest are kept as one.
    const MOST_BOOKINGS: usize = 1_024;

    /// A full budget.
    ///
    /// # Errors
    ///
    /// When it could hold nothing.
    pub fn new(limits: BudgetLimits, now: Timestamp) -> Result<Self, BudgetError> {
        Self::holding(limits.maximum, limits, now)
    }

    /// An empty budget, to which nothing comes back before `from`.
    ///
    /// # Errors
    ///
    /// When it could hold nothing.
    pub fn empty(limits: BudgetLimits, from: Timestamp) -> Result<Self, BudgetError> {
        Self::holding(Points::ZERO, limits, from)
    }

    fn holding(points: Points, limits: BudgetLimits, as_of: Timestamp) -> Result<Self, BudgetError> {
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

    /// The limits in force.
    #[must_use]
    pub const fn limits(&self) -> BudgetLimits {
        self.limits
    }

    /// Which of them the upstream has said itself.
    #[must_use]
    pub const fn observed(&self) -> ObservedLimits {
        self.observed
    }

    /// What is left, and can be spent at once.
    #[must_use]
    pub fn available(&self, now: Timestamp) -> Points {
        if now < self.as_of.max(self.blocked_until) { Points::ZERO } else { Points::left(self.balance_at(now)) }
    }

    /// What was taken to be spent later.
    #[must_use]
    pub fn booked(&self, now: Timestamp) -> Points {
        Points::left(
            self.bookings.iter().rev().take_while(|booking| booking.due > now).map(|booking| booking.cost).sum(),
        )
    }

    /// How long what comes back is spoken for, by all that is booked.
    #[must_use]
    pub fn booked_for(&self, now: Timestamp) -> Duration {
        self.as_of.since(now)
    }

    /// How long the upstream still wants to be left alone.
    #[must_use]
    pub fn blocked_for(&self, now: Timestamp) -> Duration {
        self.blocked_until.since(now)
    }

    /// Takes a cost that can be spent at once.
    ///
    /// # Errors
    ///
    /// When the cost is more than the budget ever holds.
    pub fn try_acquire(&mut self, cost: Points, now: Timestamp) -> Result<BudgetDecision, BudgetError> {
        self.acquire(cost, Duration::ZERO, now)
    }

    /// Takes a cost that can be spent within `max_wait`.
    ///
    /// # Errors
    ///
    /// When the cost is more than the budget ever holds.
    pub fn acquire(&mut self, cost: Points, max_wait: Duration, now: Timestamp) -> Result<BudgetDecision, BudgetError> {
        if cost > self.limits.maximum {
            return Err(BudgetError::CostAboveMaximum { cost, maximum: self.limits.maximum });
        }
        let cost = cost.signed();
        let due = self.restored(cost).map(|at| at.max(self.as_of).max(self.blocked_until).max(now));
        match due {
            Some(due) if due.since(now) <= max_wait => {
                self.spend(Booking { due, cost });
                self.remember(Booking { due, cost }, now);
                Ok(BudgetDecision::Allowed { delay: due.since(now), remaining: self.available(now) })
            }
            due => {
                let retry_after = due.map(|due| due.since(now));
                Ok(BudgetDecision::Refused { retry_after, remaining: self.available(now) })
            }
        }
    }

    /// Takes what was spent without asking, be it there or not.
    pub fn charge(&mut self, spent: Points, now: Timestamp) {
        let booking = Booking { due: self.as_of.max(now), cost: spent.signed() };
        self.spend(booking);
        self.remember(booking, now);
    }

    /// Counts in what a forgotten budget of the same upstream had given away: so much of what is here was spent already,
    /// and what comes back for so long is spoken for.
    pub fn inherit(&mut self, spent: Points, booked_for: Duration, now: Timestamp) {
        self.settle(now);
        self.balance -= spent.signed();
        self.as_of = self.as_of.max(now + booked_for);
    }

    /// Takes over what the upstream said; see [`Budget`] for the rule.
    ///
    /// # Errors
    ///
    /// When it is too old to say anything, or says that the maximum is 0. Nothing has changed then.
    pub fn observe(&mut self, seen: &Observation, now: Timestamp) -> Result<(), BudgetError> {
        seen.check()?;
        self.settle(now);
        if let Some(maximum) = seen.maximum {
            self.limits.maximum = maximum;
            self.observed.maximum = true;
        }
        if let Some(rate) = seen.restore_per_second {
            self.limits.restore_per_second = rate;
            self.observed.restore = true;
        }
        // An upstream that wants to be left alone, and does not say what is left, has nothing left.
        let reported = seen.available.or(seen.retry_after.map(|_| Points::ZERO));
        if let Some(reported) = reported {
            self.restart(reported, now.before(seen.age), now);
        }
        self.balance = self.balance.min(self.limits.maximum.signed());
        if let Some(wait) = seen.retry_after {
            self.blocked_until = self.blocked_until.max(now + wait);
        }
        Ok(())
    }

    /// Gives it other defaults. What the upstream has said of itself stands.
    ///
    /// # Errors
    ///
    /// When it could hold nothing.
    pub fn configure(&mut self, limits: BudgetLimits, now: Timestamp) -> Result<(), BudgetError> {
        if limits.maximum == Points::ZERO {
            return Err(BudgetError::MaximumZero);
        }
        self.settle(now);
        if !self.observed.maximum {
            self.limits.maximum = limits.maximum;
        }
        if !self.observed.restore {
            self.limits.restore_per_second = limits.restore_per_second;
        }
        self.balance = self.balance.min(self.limits.maximum.signed());
        Ok(())
    }

    /// What is there at a time not before `as_of`, if nothing more is booked.
    fn balance_at(&self, then: Timestamp) -> i128 {
        let elapsed = i128::from(then.micros().saturating_sub(self.as_of.micros()));
        let restored = self.limits.restore_per_second.signed() * elapsed / 1_000_000;
        (self.balance + restored).min(self.limits.maximum.signed())
    }

    /// When so much is there; never, if nothing comes back.
    fn restored(&self, cost: i128) -> Option<Timestamp> {
        let missing = cost - self.balance;
        if missing <= 0 {
            return Some(self.as_of);
        }
        let rate = self.limits.restore_per_second.signed();
        let micros = (rate > 0).then(|| (missing * 1_000_000 + rate - 1) / rate)?;
        Some(self.as_of + Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)))
    }

    /// Counts what has come back at the rate until now, before the rate changes.
    fn settle(&mut self, now: Timestamp) {
        self.balance = self.balance_at(now);
        self.as_of = self.as_of.max(now);
    }

    fn spend(&mut self, booking: Booking) {
        self.balance = self.balance_at(booking.due) - booking.cost;
        self.as_of = booking.due;
    }

    /// Starts anew from what an upstream reported that had seen all that was spent up to `sent`.
    fn restart(&mut self, reported: Points, sent: Timestamp, now: Timestamp) {
        self.balance = reported.min(self.limits.maximum).signed();
        self.as_of = now;
        let unseen = self.bookings.partition_point(|booking| booking.due <= sent);
        for at in unseen..self.bookings.len() {
            let Booking { due, cost } = self.bookings[at];
            self.spend(Booking { due: due.max(now), cost });
        }
    }

    fn remember(&mut self, booking: Booking, now: Timestamp) {
        while self.bookings.front().is_some_and(|oldest| now.since(oldest.due) > Self::MEMORY) {
            self.bookings.pop_front();
        }
        self.bookings.push_back(booking);
        if self.bookings.len() > Self::MOST_BOOKINGS
            && let Some(oldest) = self.bookings.pop_front()
            && let Some(next) = self.bookings.front_mut()
        {
            // Under the later of their times: an observation rather counts too much as unseen than too little.
            next.cost += oldest.cost;
        }
    }
}

#[cfg(test)]
mod tests;
