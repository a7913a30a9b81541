//! One route bucket: its remaining slots, computed from the calls sent and corrected downwards by responses.
//!
//! Discord counts in two ways that the headers do not distinguish. In a *fixed* window all slots return at the reset. A
//! *leaky* bucket drains evenly, and its reset is the time when it is empty. Both are tracked so that the bucket is
//! never assumed to be emptier than it is: a call counts as in flight until its response, and as arrived only then.

use std::time::Duration;

use serde::Serialize;

use super::in_flight::InFlight;
use super::readiness::Readiness;
use crate::response::RateHeaders;
use crate::time::Timestamp;

/// How much a reset may differ between responses because of rounding alone.
const ROUNDING_MS: u64 = 2;

/// What all buckets of one hash have in common, so that a new object needs no probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BucketSpec {
    pub(super) limit: u32,
    pub(super) kind: BucketAlgorithm,
}

impl BucketSpec {
    /// The longest time that a call counts.
    pub(super) fn window(self) -> Duration {
        match self.kind {
            BucketAlgorithm::Fixed { per } => per,
            BucketAlgorithm::Leaky { refill, .. } => refill.saturating_mul(self.limit),
        }
    }

    /// How long after its last call a bucket that was used up has a free slot, whatever its state; `None` if that is
    /// longer than `max`. A bucket that may still turn out to be a fixed window counts as free after `max`.
    pub(super) fn time_until_free(self, max: Duration) -> Option<Duration> {
        let wait = match self.kind {
            BucketAlgorithm::Fixed { per } => per,
            BucketAlgorithm::Leaky { refill, confirmed: true } => refill,
            BucketAlgorithm::Leaky { confirmed: false, .. } => self.window().min(max),
        };
        (wait <= max).then_some(wait)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BucketAlgorithm {
    Fixed { per: Duration },
    Leaky { refill: Duration, confirmed: bool },
}

/// One bucket.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    limit: u32,
    in_flight: InFlight,
    /// Number of calls dispatched so far; identifies calls that a response cannot include.
    dispatched: u64,
    /// A 429: no call is granted before this time.
    closed_until: Timestamp,
    /// `X-RateLimit-Reset` of the newest window, from its first response.
    epoch_ms: u64,
    /// The lowest remaining count in a response of that window.
    lowest: u32,
    count: Counter,
}

#[derive(Clone, Copy, Debug)]
enum Counter {
    Fixed {
        /// Negative when responses report less than what is in flight: a refunded call must not look like a free slot.
        left: i64,
        /// When all slots are free again; `None` until the first response of a window.
        reset: Option<Timestamp>,
        /// The longest window seen so far.
        per: Duration,
    },
    Leaky {
        /// When it would be empty if no more calls arrived.
        empty: Timestamp,
        /// How long one slot takes to drain.
        refill: Duration,
        /// Whether a moving reset has shown that it is leaky. Until then leaky is only the safer assumption.
        confirmed: bool,
    },
}

/// State of a bucket, for the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BucketView {
    /// Total number of slots.
    pub limit: u32,
    /// Calls without a response.
    pub in_flight: u32,
    /// `fixed`, `leaky`, or `unconfirmed` while both are possible.
    pub algorithm: &'static str,
}

impl Bucket {
    /// Creates a bucket from its first response.
    pub(super) fn from_headers(rate: &RateHeaders, now: Timestamp) -> Self {
        let refill = refill(rate);
        let count = Counter::Leaky { empty: now + rate.reset_after, refill, confirmed: false };
        Self {
            limit: rate.limit.max(1),
            in_flight: InFlight::None,
            dispatched: 0,
            closed_until: Timestamp::ZERO,
            epoch_ms: rate.reset_ms,
            lowest: rate.remaining,
            count,
        }
    }

    /// Creates a full bucket of a hash that is known from another object.
    pub(super) fn from_spec(spec: BucketSpec) -> Self {
        let count = match spec.kind {
            BucketAlgorithm::Fixed { per } => Counter::Fixed { left: i64::from(spec.limit), reset: None, per },
            BucketAlgorithm::Leaky { refill, confirmed } => {
                Counter::Leaky { empty: Timestamp::ZERO, refill, confirmed }
            }
        };
        Self {
            limit: spec.limit,
            in_flight: InFlight::None,
            dispatched: 0,
            closed_until: Timestamp::ZERO,
            epoch_ms: 0,
            lowest: spec.limit,
            count,
        }
    }

    /// Creates a bucket of a known hash that a previous process may have used: its remaining slots are unknown until
    /// the first response.
    pub(super) fn unobserved(spec: BucketSpec) -> Self {
        Self { lowest: 0, ..Self::from_spec(spec) }
    }

    /// Whether the bucket waits for its first response, so that only one call, the probe, may be sent.
    const fn is_unobserved(&self) -> bool {
        self.epoch_ms == 0 && self.lowest == 0
    }

    /// Until when no call is granted, regardless of responses; `None` if a call may be granted.
    pub(super) fn closed_until(&self, now: Timestamp) -> Option<Timestamp> {
        let mut then = self.clone();
        let mut until = None;
        // A 429 may end long before a slot is free.
        while let Readiness::At(next) = then.readiness(until.unwrap_or(now))
            && until.is_none_or(|until| until < next)
        {
            until = Some(next);
        }
        until.filter(|until| *until > now)
    }

    /// What this bucket reports about its hash.
    pub(super) fn spec(&self) -> BucketSpec {
        let kind = match self.count {
            Counter::Fixed { per, .. } => BucketAlgorithm::Fixed { per },
            Counter::Leaky { refill, confirmed, .. } => BucketAlgorithm::Leaky { refill, confirmed },
        };
        BucketSpec { limit: self.limit, kind }
    }

    /// When the next call may be granted.
    pub(super) fn readiness(&mut self, now: Timestamp) -> Readiness {
        self.advance(now);
        if now < self.closed_until {
            return Readiness::At(self.closed_until);
        }
        let on_answer = self.in_flight.first_lost_expiry().map_or(Readiness::OnResponse, Readiness::At);
        if self.is_unobserved() && self.in_flight() > 0 {
            return on_answer;
        }
        match self.count {
            Counter::Fixed { left: 1.., .. } => Readiness::Now,
            Counter::Fixed { reset, .. } => reset.map_or(on_answer, Readiness::At),
            Counter::Leaky { empty, refill, confirmed } => match (self.limit - 1).checked_sub(self.in_flight()) {
                // It may still turn out to be a fixed window; then no slot returns before its end.
                Some(_) if !confirmed && now < empty && self.lowest <= self.in_flight() => Readiness::At(empty),
                Some(slack) => Readiness::not_before(empty.before(refill * slack), now),
                None => on_answer,
            },
        }
    }

    /// Takes a slot for a call that is sent now; returns the number of the call.
    pub(super) fn take(&mut self) -> u64 {
        self.dispatched += 1;
        self.in_flight.add(self.dispatched);
        if let Counter::Fixed { left, .. } = &mut self.count {
            *left -= 1;
        }
        self.dispatched
    }

    /// The call was never sent.
    pub(super) fn refund(&mut self, number: u64) {
        self.remove_in_flight(number);
        let max_left = i64::from(self.limit) - i64::from(self.in_flight());
        if let Counter::Fixed { left, .. } = &mut self.count {
            // If the window has ended since, its slots have returned already.
            *left = (*left + 1).min(max_left);
        }
    }

    /// A response with this bucket's headers has arrived. `number` is the result of [`Bucket::take`]; `None` if the
    /// call took its slot elsewhere, because its bucket was not known.
    pub(super) fn on_response(&mut self, number: Option<u64>, rate: &RateHeaders, agreement: Duration, now: Timestamp) {
        self.advance(now);
        if let Some(number) = number {
            self.remove_in_flight(number);
        }
        self.limit = rate.limit.max(1);
        let under_way = self.in_flight();
        // The response cannot include calls that were dispatched after this one.
        let later = number.map_or(u64::from(under_way), |number| self.dispatched - number);
        let remaining = i64::from(rate.remaining) - i64::try_from(later).unwrap_or(i64::MAX);
        let until = now + rate.reset_after;
        let agreement_ms = u64::try_from(agreement.as_millis()).unwrap_or(u64::MAX);
        let is_same = self.epoch_ms != 0 && rate.reset_ms.abs_diff(self.epoch_ms) <= agreement_ms;
        let is_older = rate.reset_ms + agreement_ms < self.epoch_ms;
        let server_time = rate.reset_ms.saturating_sub(u64::try_from(rate.reset_after.as_millis()).unwrap_or(u64::MAX));
        // Discord's clock had not reached the old reset, but the reset moved: the bucket is leaky.
        let has_moved = self.epoch_ms != 0 && !is_same && !is_older && server_time + agreement_ms < self.epoch_ms;
        self.lowest = if is_same {
            self.lowest.min(rate.remaining)
        } else if is_older {
            self.lowest
        } else {
            rate.remaining
        };
        // If the remaining slots were not counted from the start of the window, they are the lowest count in a response
        // of the window, minus all calls in flight: each answered call is included at least in its own response.
        let certain = i64::from(self.lowest) - i64::from(under_way);
        match &mut self.count {
            // If one slot drains faster than resets can be distinguished, a leaky bucket looks like a fixed window.
            // Then the counter stays as it is, which is safe for both.
            Counter::Leaky { confirmed: false, refill, .. } if is_same && *refill > agreement + agreement / 4 => {
                let per = rate.reset_after.max(*refill);
                self.count = Counter::Fixed { left: certain, reset: Some(until), per };
            }
            Counter::Leaky { empty, refill: slot, confirmed } => {
                if number.is_some() {
                    *empty = (*empty).max(now) + *slot;
                }
                *empty = (*empty).max(until);
                *slot = (*slot).max(refill(rate));
                *confirmed |= has_moved;
            }
            Counter::Fixed { .. } if has_moved => {
                self.count = Counter::Leaky { empty: until, refill: refill(rate), confirmed: true };
            }
            Counter::Fixed { left, reset, per } => {
                *per = (*per).max(rate.reset_after);
                let is_past = is_older || (is_same && reset.is_none() && *per > agreement * 2);
                if is_past {
                    // The call arrived in a window that has ended, so it used no slot of this one.
                } else if is_same && let Some(current) = reset {
                    // Each response is an upper bound of the reset, and the lowest bound applies, unless Discord itself
                    // moved the reset.
                    let moved = rate.reset_ms > self.epoch_ms + ROUNDING_MS;
                    *current = if moved { (*current).max(until) } else { (*current).min(until) };
                    *left = (*left).min(remaining);
                } else {
                    *left = if reset.is_some() { certain } else { remaining.min(*left) };
                    *reset = Some(until);
                }
                if *left <= 0 && reset.is_none() && under_way == 0 {
                    *reset = Some(now + *per);
                }
            }
        }
        // Within the tolerance the reset is not updated, so that a slowly moving reset is detected in the end.
        if !is_older && !is_same {
            self.epoch_ms = rate.reset_ms;
        }
    }

    /// A response without headers of this bucket has arrived.
    pub(super) fn on_response_without_headers(&mut self, number: u64, now: Timestamp) {
        self.advance(now);
        self.record_arrival(number, now);
    }

    /// The call gets no response. It counts as in flight until `gone`.
    pub(super) fn mark_lost(&mut self, number: u64, gone: Timestamp) {
        self.in_flight.mark_lost(number, gone);
    }

    /// A 429: no call is granted before `until`.
    pub(super) fn close(&mut self, until: Timestamp) {
        self.closed_until = self.closed_until.max(until);
        if let Counter::Fixed { left, reset, .. } = &mut self.count {
            *left = (*left).min(0);
            *reset = Some(reset.map_or(until, |current| current.max(until)));
        }
    }

    /// The earliest time at which a call with `ahead` calls before it could be granted; a lower bound.
    pub(super) fn estimate(&self, ahead: usize, now: Timestamp) -> Timestamp {
        let ahead = u32::try_from(ahead).unwrap_or(u32::MAX);
        let due = match self.count {
            Counter::Fixed { left, .. } if i64::from(ahead) < left => now,
            Counter::Fixed { left, reset: Some(reset), per } => {
                let left = u32::try_from(left).unwrap_or(0);
                reset + per * ((ahead - left) / self.limit)
            }
            Counter::Fixed { .. } => now,
            Counter::Leaky { empty, refill, .. } => {
                let needed = i64::from(ahead) + i64::from(self.in_flight()) + 1 - i64::from(self.limit);
                let shift = refill.saturating_mul(u32::try_from(needed.unsigned_abs()).unwrap_or(u32::MAX));
                if needed > 0 { empty.max(now) + shift } else { empty.before(shift) }
            }
        };
        due.max(self.closed_until).max(now)
    }

    /// Whether its state equals that of a new bucket, so that it can be evicted without loss.
    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        let is_full = match self.count {
            Counter::Fixed { left, reset, .. } => reset.map_or(left >= i64::from(self.limit), |reset| reset <= now),
            Counter::Leaky { empty, .. } => empty <= now,
        };
        is_full && self.in_flight() == 0 && self.closed_until <= now
    }

    /// How many calls could be sent now if no other process sent any, and when all slots are free again; `None` if they
    /// are free now.
    pub(super) fn availability(&self, now: Timestamp) -> (u32, Option<Timestamp>) {
        let mut then = self.clone();
        then.advance(now);
        let (left, full) = match then.count {
            Counter::Fixed { left, reset, .. } => (u32::try_from(left).unwrap_or(0), reset),
            Counter::Leaky { empty, refill, .. } => {
                let drains = empty.since(now).as_micros().div_ceil(refill.as_micros().max(1));
                let away = u32::try_from(drains).unwrap_or(u32::MAX).saturating_add(then.in_flight());
                (then.limit.saturating_sub(away), Some(empty).filter(|empty| *empty > now))
            }
        };
        if now < then.closed_until {
            (0, Some(full.map_or(then.closed_until, |full| full.max(then.closed_until))))
        } else {
            (left.min(then.limit), full)
        }
    }

    pub(super) fn view(&self) -> BucketView {
        let algorithm = match self.count {
            Counter::Fixed { .. } => "fixed",
            Counter::Leaky { confirmed: true, .. } => "leaky",
            Counter::Leaky { confirmed: false, .. } => "unconfirmed",
        };
        BucketView { limit: self.limit, in_flight: self.in_flight(), algorithm }
    }

    /// Returns the slots that are free again at `now`.
    fn advance(&mut self, now: Timestamp) {
        for (gone, number) in self.in_flight.take_expired(now) {
            self.record_arrival(number, gone);
        }
        let max_left = i64::from(self.limit) - i64::from(self.in_flight());
        if let Counter::Fixed { left, reset, .. } = &mut self.count
            && reset.is_some_and(|reset| reset <= now)
        {
            // Calls in flight may arrive in the new window, so their slots stay taken.
            *left = max_left;
            *reset = None;
        }
    }

    /// Counts a call as arrived at the latest possible time.
    fn record_arrival(&mut self, number: u64, then: Timestamp) {
        self.remove_in_flight(number);
        let under_way = self.in_flight();
        match &mut self.count {
            Counter::Leaky { empty, refill, .. } => *empty = (*empty).max(then) + *refill,
            Counter::Fixed { left: ..=0, reset: reset @ None, per } if under_way == 0 => *reset = Some(then + *per),
            Counter::Fixed { .. } => {}
        }
    }
}

impl Bucket {
    fn in_flight(&self) -> u32 {
        self.in_flight.len()
    }

    fn remove_in_flight(&mut self, number: u64) {
        self.in_flight.remove(number);
    }
}

/// How long one slot takes to drain according to a response; never more than the real value.
fn refill(rate: &RateHeaders) -> Duration {
    rate.reset_after / rate.limit.saturating_sub(rate.remaining).max(1)
}

#[cfg(test)]
mod tests;
