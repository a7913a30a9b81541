//! Updates buckets from responses, and moves waiting calls accordingly.

use std::time::Duration;

use super::persist::LASTING_BUCKET;
use super::{Delay, DelayReason, Limiter, LimiterEffect, Permit, PermitRequest};
use crate::limit::bucket::Bucket;
use crate::limit::route_table::RouteLimit;
use crate::limit::wait_queue::{QueueLimit, Ticket, WaitQueueId, WaitQueueKey};
use crate::response::{RateHeaders, RateLimitScope};
use crate::snapshot::Urgency;
use crate::time::Timestamp;

impl Limiter {
    /// Updates the bucket from the headers of a response; returns the wait queue of the bucket.
    pub(super) fn learn(&mut self, permit: &Permit, rate: &RateHeaders, now: Timestamp) -> Option<WaitQueueId> {
        let PermitRequest { credential, route, .. } = &permit.ask;
        let fresh = Bucket::learned(rate, now);
        let hash = self.book.hash(&rate.bucket, fresh.traits())?;
        let key = WaitQueueKey::Bucket(self.book.whose(*credential)?, hash, route.major);
        let mut is_new = false;
        let lot = self.yard.find_or_make(&key, now, || {
            is_new = true;
            QueueLimit::Bucket(fresh)
        })?;
        let number = permit.slot.filter(|(taken, _)| *taken == lot).map(|(_, number)| number);
        if let (Some((taken, number)), true) = (permit.slot, number.is_none()) {
            // The call took a slot of a bucket that it does not belong to.
            if let QueueLimit::Bucket(bucket) = &mut self.yard.lot(taken).keeper {
                match permit.probe {
                    Some(_) => bucket.give_back(number),
                    None => bucket.answered_without_headers(number, now),
                }
            }
            self.review(taken, now);
        }
        if let QueueLimit::Bucket(bucket) = &mut self.yard.lot(lot).keeper {
            if !is_new {
                bucket.answered(number, rate, self.config.agreement, now);
            }
            let traits = bucket.traits();
            if self.book.traits(hash) != traits {
                self.book.set_traits(hash, traits);
                self.changed(Urgency::Later);
            }
        }
        if self.book.of(*credential, &route.key, now) != RouteLimit::Hash(hash) {
            self.book.learn(*credential, &route.key, RouteLimit::Hash(hash));
            self.changed(Urgency::Later);
        }
        if rate.remaining == 0 && rate.reset_after > LASTING_BUCKET {
            self.changed(Urgency::Soon);
        }
        self.review(lot, now);
        Some(lot)
    }

    pub(super) fn refused(
        &mut self,
        permit: &Permit,
        scope: RateLimitScope,
        until: Timestamp,
        rate: Option<&RateHeaders>,
        bucket: Option<WaitQueueId>,
        now: Timestamp,
    ) {
        if scope != RateLimitScope::Global {
            self.closed(until, now);
        }
        match (scope, bucket) {
            (RateLimitScope::Global, _) => self.block(permit.ask.credential, until, now),
            // If slots remain, a sublimit refused the call, not the bucket.
            (RateLimitScope::User, Some(lot)) if rate.is_none_or(|rate| rate.remaining == 0) => {
                if let QueueLimit::Bucket(bucket) = &mut self.yard.lot(lot).keeper {
                    bucket.close(until);
                }
                self.review(lot, now);
            }
            (RateLimitScope::User | RateLimitScope::Shared, _) => self.close_side(&permit.ask, until, now),
        }
    }

    /// Closes the sublimit of one resource. The calls that wait for this resource move to the queue of the sublimit;
    /// other calls are not affected.
    pub(super) fn close_side(&mut self, ask: &PermitRequest, until: Timestamp, now: Timestamp) {
        let Some(side) = self.side_lot(ask, now) else { return };
        if let QueueLimit::Side(door) = &mut self.yard.lot(side).keeper {
            door.close(until);
        }
        let behind: Vec<Ticket> = self
            .waiters
            .iter()
            .filter(|(_, waiter)| {
                let other = &waiter.ask;
                other.credential == ask.credential && other.route == ask.route && waiter.lot != side
            })
            .map(|(ticket, _)| *ticket)
            .collect();
        self.yard.hold(side);
        self.move_to(behind, |_, _, _| Some(side), now);
        self.review(side, now);
        self.yard.release(side);
    }

    /// A probe has completed: moves the calls of its route that waited for it to their wait queues, in order.
    pub(super) fn end_probe(&mut self, probe: Option<WaitQueueId>, now: Timestamp) {
        let Some(lot) = probe else { return };
        if let QueueLimit::Probe { in_flight } = &mut self.yard.lot(lot).keeper {
            *in_flight = false;
        }
        let waiting: Vec<Ticket> =
            self.yard.lot(lot).queues.iter().flat_map(|queues| queues.lanes.iter().flatten().copied()).collect();
        let wiser: Vec<Ticket> = waiting
            .into_iter()
            .filter(|ticket| {
                let ask = &self.waiters[ticket].ask;
                self.book.of(ask.credential, &ask.route.key, now) != RouteLimit::Unknown
            })
            .collect();
        // Calls that move must not evict the wait queue that they leave.
        self.yard.hold(lot);
        self.move_to(wiser, Self::ordinary_lot, now);
        self.review(lot, now);
        self.yard.release(lot);
    }

    pub(super) fn move_to(
        &mut self,
        mut tickets: Vec<Ticket>,
        to: impl Fn(&mut Self, &PermitRequest, Timestamp) -> Option<WaitQueueId>,
        now: Timestamp,
    ) {
        tickets.sort_unstable();
        for ticket in tickets {
            let Some(mut waiter) = self.remove(ticket, now) else { continue };
            match to(self, &waiter.ask, now) {
                Some(lot) => {
                    waiter.lot = lot;
                    self.enqueue(ticket, waiter, now);
                }
                None => {
                    self.release_side(waiter.side, now);
                    let delay = Delay { until: now + Duration::from_secs(1), reason: DelayReason::Full };
                    self.effects.push_back(LimiterEffect::Expire { ticket, delay });
                }
            }
        }
    }

    pub(super) fn release_side(&mut self, side: Option<WaitQueueId>, now: Timestamp) {
        let Some(side) = side else { return };
        if let QueueLimit::Side(door) = &mut self.yard.lot(side).keeper {
            door.give_back();
        }
        self.review(side, now);
    }

    pub(super) fn end_side(&mut self, side: Option<WaitQueueId>, then: Timestamp, now: Timestamp) {
        let Some(side) = side else { return };
        if let QueueLimit::Side(door) = &mut self.yard.lot(side).keeper {
            door.done(then);
            if door.has_limit() {
                self.changed(Urgency::Soon);
            }
        }
        self.review(side, now);
    }
}
