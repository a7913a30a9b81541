//! Grants: which waiting calls are permitted now, and which have expired.

use std::cmp::Reverse;

use super::{Limiter, LimiterEffect, MIN_TIMERS, Permit, PermitId, PermitRequest, Timer, Waiter, is_live};
use crate::limit::domain::DomainId;
use crate::limit::readiness::Readiness;
use crate::limit::wait_queue::{QueueLimit, Ticket, WaitQueueId};
use crate::time::Timestamp;

impl Limiter {
    pub(super) fn advance(&mut self, now: Timestamp) {
        self.now = now;
        self.end_blocks(now);
        while let Some(Reverse((then, timer))) = self.timers.peek().copied() {
            if then > now {
                break;
            }
            self.timers.pop();
            match timer {
                Timer::Queue(queue_id) => {
                    if let Some(queue) = self.queues.get(queue_id) {
                        queue.timer = None;
                        self.review(queue_id, now);
                    }
                }
                Timer::Deadline(ticket) => self.expire(ticket, now),
            }
        }
        for domain in 0..self.domains.len() {
            while let Some((_, ticket, queue_id)) = self.domains[domain].next(now) {
                self.grant_waiter(ticket, queue_id, now);
            }
        }
        self.prune_timers();
    }

    /// Removes obsolete timers: those at the front, so that no wake-up is useless; and all of them once they are the
    /// majority, because callers may set deadlines of hours and wait only briefly.
    pub(super) fn prune_timers(&mut self) {
        while self.timers.peek().is_some_and(|Reverse(timer)| !is_live(timer, &self.waiters, &mut self.queues)) {
            self.timers.pop();
        }
        if self.timers.len() > self.prune_above {
            let mut timers = std::mem::take(&mut self.timers).into_vec();
            timers.retain(|Reverse(timer)| is_live(timer, &self.waiters, &mut self.queues));
            timers.sort_unstable();
            timers.dedup();
            self.prune_above = MIN_TIMERS.max(timers.len() * 2);
            self.timers = timers.into();
        }
    }

    pub(super) fn grant_waiter(&mut self, ticket: Ticket, queue_id: WaitQueueId, now: Timestamp) {
        // Before its wait queue is withdrawn: calls of other lanes in it are passed over as well.
        let waiting = self.waiters.get(&ticket).map(|waiter| self.domains[waiter.domain].ready_lanes());
        self.unannounce(queue_id);
        // A probe waits for a bucket that is not that of its wait queue; other calls may have used it up since.
        let is_late = self.waiters.get(&ticket).map(|waiter| waiter.request.clone());
        if is_late.is_some_and(|request| self.readiness(queue_id, &request, now) != Readiness::Now) {
            self.review(queue_id, now);
            return;
        }
        let Some(Waiter { request, domain, since, sublimit, .. }) = self.waiters.remove(&ticket) else { return };
        self.domains[domain].waiting -= 1;
        if let Some(queues) = &mut self.queues.queue(queue_id).queues {
            queues.lanes[request.lane.index()].pop_front();
            if queues.is_empty() {
                self.queues.queue(queue_id).queues = None;
            }
        }
        let waiting = waiting.unwrap_or_default();
        let permit = self.grant(request, domain, queue_id, sublimit, waiting, now);
        self.effects.push_back(LimiterEffect::Grant { ticket, permit, waited: now.since(since) });
        self.review(queue_id, now);
    }

    pub(super) fn grant(
        &mut self,
        request: PermitRequest,
        domain: DomainId,
        queue_id: WaitQueueId,
        sublimit: Option<WaitQueueId>,
        waiting: [bool; 3],
        now: Timestamp,
    ) -> PermitId {
        let (mut slot, mut probe) = (None, None);
        match &mut self.queues.queue(queue_id).limit {
            QueueLimit::Bucket(bucket) => slot = Some((queue_id, bucket.take())),
            QueueLimit::Open | QueueLimit::Sublimit(_) => {}
            QueueLimit::Probe { in_flight } => {
                *in_flight = true;
                probe = Some(queue_id);
                // The probe takes a slot of the bucket that it may share. If it does share it, the count is correct.
                if let Some(related) = self.related_bucket(&request, now)
                    && let QueueLimit::Bucket(bucket) = &mut self.queues.queue(related).limit
                {
                    slot = Some((related, bucket.take()));
                }
            }
        }
        let shared_permit = self.domains[domain].take(request.lane, request.caller, waiting, now);
        self.last_id += 1;
        let id = PermitId(self.last_id);
        self.permits.insert(id, Permit { request, domain, dispatched: now, slot, probe, sublimit, shared_permit });
        id
    }

    pub(super) fn expire(&mut self, ticket: Ticket, now: Timestamp) {
        let Some(waiter) = self.remove(ticket, now) else { return };
        let delay = self.estimate(&waiter.request, waiter.domain, waiter.queue_id, now);
        self.refund_sublimit(waiter.sublimit, now);
        self.effects.push_back(LimiterEffect::Expire { ticket, delay });
    }
}
