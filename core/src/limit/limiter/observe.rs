//! Updates buckets from responses, and moves waiting calls accordingly.

use std::time::Duration;

use super::persist::SAVE_BUCKET_SOON_ABOVE;
use super::{Delay, DelayReason, Limiter, LimiterEffect, Permit, PermitRequest};
use crate::limit::bucket::Bucket;
use crate::limit::lane_queue::LaneQueue;
use crate::limit::route_table::RouteLimit;
use crate::limit::wait_queue::{QueueLimit, Ticket, WaitQueueId, WaitQueueKey};
use crate::response::{RateHeaders, RateLimitScope};
use crate::snapshot::Urgency;
use crate::time::Timestamp;

impl Limiter {
    /// Updates the bucket from the headers of a response; returns the wait queue of the bucket.
    pub(super) fn observe_headers(
        &mut self,
        permit: &Permit,
        rate: &RateHeaders,
        now: Timestamp,
    ) -> Option<WaitQueueId> {
        let PermitRequest { credential, route, .. } = &permit.request;
        let fresh = Bucket::from_headers(rate, now);
        let hash = self.routes.intern_hash(&rate.bucket, fresh.spec())?;
        let key = WaitQueueKey::Bucket(self.routes.credential_id(*credential)?, hash, route.major);
        let mut is_new = false;
        let queue_id = self.queues.find_or_insert(&key, now, || {
            is_new = true;
            QueueLimit::Bucket(fresh)
        })?;
        let number = permit.slot.filter(|(taken, _)| *taken == queue_id).map(|(_, number)| number);
        if let (Some((taken, number)), true) = (permit.slot, number.is_none()) {
            // The call took a slot of a bucket that it does not belong to.
            if let QueueLimit::Bucket(bucket) = &mut self.queues.queue(taken).limit {
                match permit.probe {
                    Some(_) => bucket.refund(number),
                    None => bucket.on_response_without_headers(number, now),
                }
            }
            self.review(taken, now);
        }
        if let QueueLimit::Bucket(bucket) = &mut self.queues.queue(queue_id).limit {
            if !is_new {
                bucket.on_response(number, rate, self.config.reset_tolerance, now);
            }
            let spec = bucket.spec();
            let known = self.routes.spec(hash);
            if known != spec {
                self.routes.set_spec(hash, spec);
                let is_same_kind = std::mem::discriminant(&known.kind) == std::mem::discriminant(&spec.kind);
                self.mark_unsaved(if is_same_kind { Urgency::Later } else { Urgency::Soon });
            }
        }
        if self.routes.limit_of(*credential, &route.key, now) != RouteLimit::Hash(hash) {
            self.routes.observe(*credential, &route.key, RouteLimit::Hash(hash));
            // Routes are few. One that is not known starts with a probe, which may hit a bucket that is used up.
            self.mark_unsaved(Urgency::Soon);
        }
        if rate.remaining == 0 && rate.reset_after > SAVE_BUCKET_SOON_ABOVE {
            self.mark_unsaved(Urgency::Soon);
        }
        self.review(queue_id, now);
        Some(queue_id)
    }

    pub(super) fn on_rate_limited(
        &mut self,
        permit: &Permit,
        scope: RateLimitScope,
        until: Timestamp,
        rate: Option<&RateHeaders>,
        bucket: Option<WaitQueueId>,
        now: Timestamp,
    ) {
        if scope != RateLimitScope::Global {
            self.mark_closed(until, now);
        }
        match (scope, bucket) {
            (RateLimitScope::Global, _) => self.block(permit.request.credential, until, now),
            // If slots remain, a sublimit refused the call, not the bucket.
            (RateLimitScope::User, Some(queue_id)) if rate.is_none_or(|rate| rate.remaining == 0) => {
                if let QueueLimit::Bucket(bucket) = &mut self.queues.queue(queue_id).limit {
                    bucket.close(until);
                }
                self.review(queue_id, now);
            }
            (RateLimitScope::User | RateLimitScope::Shared, _) => self.close_sublimit(&permit.request, until, now),
        }
    }

    /// Closes the sublimit of one resource. The calls that wait for this resource move to the queue of the sublimit;
    /// other calls are not affected.
    pub(super) fn close_sublimit(&mut self, request: &PermitRequest, until: Timestamp, now: Timestamp) {
        let Some(sublimit_id) = self.sublimit_queue(request, now) else { return };
        if let QueueLimit::Sublimit(sublimit) = &mut self.queues.queue(sublimit_id).limit {
            sublimit.close(until);
        }
        let affected: Vec<Ticket> = self
            .waiters
            .iter()
            .filter(|(_, waiter)| {
                let other = &waiter.request;
                other.credential == request.credential && other.route == request.route && waiter.queue_id != sublimit_id
            })
            .map(|(ticket, _)| *ticket)
            .collect();
        self.queues.hold(sublimit_id);
        self.move_waiters(affected, |_, _, _| Some(sublimit_id), now);
        self.review(sublimit_id, now);
        self.queues.release(sublimit_id);
    }

    /// A probe has completed: moves the calls of its route that waited for it to their wait queues, in order.
    pub(super) fn finish_probe(&mut self, probe: Option<WaitQueueId>, now: Timestamp) {
        let Some(queue_id) = probe else { return };
        if let QueueLimit::Probe { in_flight } = &mut self.queues.queue(queue_id).limit {
            *in_flight = false;
        }
        let waiting: Vec<Ticket> = self
            .queues
            .queue(queue_id)
            .queues
            .iter()
            .flat_map(|queues| queues.lanes.iter().flat_map(LaneQueue::iter))
            .collect();
        let resolved: Vec<Ticket> = waiting
            .into_iter()
            .filter(|ticket| {
                let request = &self.waiters[ticket].request;
                self.routes.limit_of(request.credential, &request.route.key, now) != RouteLimit::Unknown
            })
            .collect();
        // Calls that move must not evict the wait queue that they leave.
        self.queues.hold(queue_id);
        self.move_waiters(resolved, Self::route_queue, now);
        self.review(queue_id, now);
        self.queues.release(queue_id);
    }

    pub(super) fn move_waiters(
        &mut self,
        mut tickets: Vec<Ticket>,
        to: impl Fn(&mut Self, &PermitRequest, Timestamp) -> Option<WaitQueueId>,
        now: Timestamp,
    ) {
        tickets.sort_unstable();
        for ticket in tickets {
            let Some(mut waiter) = self.remove(ticket, now) else { continue };
            match to(self, &waiter.request, now) {
                Some(queue_id) => {
                    waiter.queue_id = queue_id;
                    self.enqueue(ticket, waiter, now);
                }
                None => {
                    self.refund_sublimit(waiter.sublimit, now);
                    let delay = Delay { until: now + Duration::from_secs(1), reason: DelayReason::Full };
                    self.effects.push_back(LimiterEffect::Expire { ticket, delay });
                }
            }
        }
    }

    pub(super) fn refund_sublimit(&mut self, sublimit_id: Option<WaitQueueId>, now: Timestamp) {
        let Some(sublimit_id) = sublimit_id else { return };
        if let QueueLimit::Sublimit(sublimit) = &mut self.queues.queue(sublimit_id).limit {
            sublimit.refund();
        }
        self.review(sublimit_id, now);
    }

    pub(super) fn complete_sublimit(&mut self, sublimit_id: Option<WaitQueueId>, then: Timestamp, now: Timestamp) {
        let Some(sublimit_id) = sublimit_id else { return };
        if let QueueLimit::Sublimit(sublimit) = &mut self.queues.queue(sublimit_id).limit {
            sublimit.complete(then);
            if sublimit.has_limit() {
                self.mark_unsaved(Urgency::Soon);
            }
        }
        self.review(sublimit_id, now);
    }
}
