//! Grants: which waiting calls are permitted now, and which have expired.

use std::cmp::Reverse;

use super::{Limiter, LimiterEffect, MIN_ALARMS, Permit, PermitId, PermitRequest, Timer, Waiter, is_live};
use crate::limit::domain::DomainId;
use crate::limit::readiness::Readiness;
use crate::limit::wait_queue::{QueueLimit, Ticket, WaitQueueId};
use crate::time::Timestamp;

impl Limiter {
    pub(super) fn settle(&mut self, now: Timestamp) {
        self.now = now;
        self.end_blocks(now);
        while let Some(Reverse((then, alarm))) = self.alarms.peek().copied() {
            if then > now {
                break;
            }
            self.alarms.pop();
            match alarm {
                Timer::Lot(lot) => {
                    if let Some(there) = self.yard.get(lot) {
                        there.timer = None;
                        self.review(lot, now);
                    }
                }
                Timer::Deadline(ticket) => self.expire(ticket, now),
            }
        }
        for domain in 0..self.domains.len() {
            while let Some((_, ticket, lot)) = self.domains[domain].next(now) {
                self.let_go(ticket, lot, now);
            }
        }
        self.tidy_alarms();
    }

    /// Removes obsolete timers: those at the front, so that no wake-up is useless; and all of them once they are the
    /// majority, because callers may set deadlines of hours and wait only briefly.
    pub(super) fn tidy_alarms(&mut self) {
        while self.alarms.peek().is_some_and(|Reverse(alarm)| !is_live(alarm, &self.waiters, &mut self.yard)) {
            self.alarms.pop();
        }
        if self.alarms.len() > self.tidy_above {
            let mut alarms = std::mem::take(&mut self.alarms).into_vec();
            alarms.retain(|Reverse(alarm)| is_live(alarm, &self.waiters, &mut self.yard));
            alarms.sort_unstable();
            alarms.dedup();
            self.tidy_above = MIN_ALARMS.max(alarms.len() * 2);
            self.alarms = alarms.into();
        }
    }

    pub(super) fn let_go(&mut self, ticket: Ticket, lot: WaitQueueId, now: Timestamp) {
        self.unannounce(lot);
        // A probe waits for a bucket that is not that of its wait queue; other calls may have used it up since.
        let is_late = self.waiters.get(&ticket).map(|waiter| waiter.ask.clone());
        if is_late.is_some_and(|ask| self.turn(lot, &ask, now) != Readiness::Now) {
            self.review(lot, now);
            return;
        }
        let Some(Waiter { ask, domain, since, side, .. }) = self.waiters.remove(&ticket) else { return };
        self.domains[domain].waiting -= 1;
        if let Some(queues) = &mut self.yard.lot(lot).queues {
            queues.lanes[ask.lane.index()].pop_front();
            if queues.is_empty() {
                self.yard.lot(lot).queues = None;
            }
        }
        let permit = self.grant(ask, domain, lot, side, now);
        self.effects.push_back(LimiterEffect::Grant { ticket, permit, waited: now.since(since) });
        self.review(lot, now);
    }

    pub(super) fn grant(
        &mut self,
        ask: PermitRequest,
        domain: DomainId,
        lot: WaitQueueId,
        side: Option<WaitQueueId>,
        now: Timestamp,
    ) -> PermitId {
        let (mut slot, mut probe) = (None, None);
        match &mut self.yard.lot(lot).keeper {
            QueueLimit::Bucket(bucket) => slot = Some((lot, bucket.take())),
            QueueLimit::Open | QueueLimit::Side(_) => {}
            QueueLimit::Probe { in_flight } => {
                *in_flight = true;
                probe = Some(lot);
                // The probe takes a slot of the bucket that it may share. If it does share it, the count is correct.
                if let Some(kin) = self.kin(&ask, now)
                    && let QueueLimit::Bucket(bucket) = &mut self.yard.lot(kin).keeper
                {
                    slot = Some((kin, bucket.take()));
                }
            }
        }
        let lodging = self.domains[domain].take(ask.lane, now);
        self.next += 1;
        let id = PermitId(self.next);
        self.permits.insert(id, Permit { ask, domain, dispatched: now, slot, probe, side, lodging });
        id
    }

    pub(super) fn expire(&mut self, ticket: Ticket, now: Timestamp) {
        let Some(waiter) = self.remove(ticket, now) else { return };
        let delay = self.estimate(&waiter.ask, waiter.domain, waiter.lot, now);
        self.release_side(waiter.side, now);
        self.effects.push_back(LimiterEffect::Expire { ticket, delay });
    }
}
