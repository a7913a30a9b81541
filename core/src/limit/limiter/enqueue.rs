//! Waiting: adds calls to wait queues, and selects which of them are next.

use std::cmp::Reverse;
use std::time::Duration;

use super::{Delay, DelayReason, Limiter, LimiterEffect, Timer, Waiter};
use crate::lane::Lane;
use crate::limit::readiness::Readiness;
use crate::limit::wait_queue::{QueueLimit, Ticket, WaitQueueId};
use crate::time::Timestamp;

impl Limiter {
    pub(super) fn enqueue(&mut self, ticket: Ticket, waiter: Waiter, now: Timestamp) {
        let (queue_id, lane, caller) = (waiter.queue_id, waiter.request.lane, waiter.request.caller);
        self.queues.queue(queue_id).queues.get_or_insert_default().lanes[lane.index()].insert(caller, ticket);
        self.domains[waiter.domain].waiting += 1;
        self.waiters.insert(ticket, waiter);
        self.review(queue_id, now);
    }

    /// Removes a waiter from its wait queue.
    pub(super) fn remove(&mut self, ticket: Ticket, now: Timestamp) -> Option<Waiter> {
        let waiter = self.waiters.remove(&ticket)?;
        self.domains[waiter.domain].waiting -= 1;
        let lane = waiter.request.lane.index();
        if let Some(queues) = &mut self.queues.queue(waiter.queue_id).queues {
            queues.lanes[lane].remove(waiter.request.caller, ticket);
        }
        self.review(waiter.queue_id, now);
        Some(waiter)
    }

    /// Re-evaluates a wait queue: announces the heads that are ready, or sets a timer.
    pub(super) fn review(&mut self, queue_id: WaitQueueId, now: Timestamp) {
        self.unannounce(queue_id);
        let Some(queues) = &self.queues.queue(queue_id).queues else { return };
        let Some(first) = queues.first() else {
            self.queues.queue(queue_id).queues = None;
            return;
        };
        let first = self.waiters[&first].request.clone();
        match self.readiness(queue_id, &first, now) {
            Readiness::Now if matches!(self.queues.queue(queue_id).limit, QueueLimit::Sublimit(_)) => {
                self.advance_sublimit(queue_id, now);
            }
            Readiness::Now => self.announce(queue_id),
            Readiness::At(then) => {
                let queue = self.queues.queue(queue_id);
                if queue.timer.is_none_or(|timer| timer > then) {
                    queue.timer = Some(then);
                    self.timers.push(Reverse((then, Timer::Queue(queue_id))));
                }
            }
            Readiness::OnResponse => {}
        }
    }

    pub(super) fn announce(&mut self, queue_id: WaitQueueId) {
        let is_probe = matches!(self.queues.queue(queue_id).limit, QueueLimit::Probe { .. });
        let Some(queues) = &mut self.queues.queue(queue_id).queues else { return };
        for lane in Lane::ALL {
            if let Some(head) = queues.lanes[lane.index()].front() {
                let Waiter { domain, request, .. } = &self.waiters[&head];
                queues.announced[lane.index()] = Some((head, request.caller, *domain));
                self.domains[*domain].announce(lane, request.caller, head, queue_id);
                if is_probe {
                    // Only the most urgent call can be the probe.
                    break;
                }
            }
        }
    }

    pub(super) fn unannounce(&mut self, queue_id: WaitQueueId) {
        let Some(queues) = &mut self.queues.queue(queue_id).queues else { return };
        let announced = std::mem::take(&mut queues.announced);
        for (lane, head) in Lane::ALL.into_iter().zip(announced) {
            if let Some((head, caller, domain)) = head {
                self.domains[domain].withdraw(lane, caller, head, queue_id);
            }
        }
    }

    /// Moves the calls that the sublimit permits to the wait queues of their routes.
    pub(super) fn advance_sublimit(&mut self, sublimit_id: WaitQueueId, now: Timestamp) {
        while let Some(first) = self.queues.queue(sublimit_id).queues.as_ref().and_then(|queues| queues.first()) {
            let QueueLimit::Sublimit(sublimit) = &mut self.queues.queue(sublimit_id).limit else { return };
            if sublimit.readiness(now) != Readiness::Now {
                self.review(sublimit_id, now);
                return;
            }
            sublimit.take();
            let Some(mut waiter) = self.waiters.remove(&first) else { return };
            self.domains[waiter.domain].waiting -= 1;
            if let Some(queues) = &mut self.queues.queue(sublimit_id).queues {
                queues.lanes[waiter.request.lane.index()].pop_front();
                if queues.is_empty() {
                    self.queues.queue(sublimit_id).queues = None;
                }
            }
            waiter.sublimit = Some(sublimit_id);
            match self.route_queue(&waiter.request, now) {
                Some(queue_id) => {
                    waiter.queue_id = queue_id;
                    self.enqueue(first, waiter, now);
                }
                None => {
                    self.refund_sublimit(waiter.sublimit, now);
                    let delay = Delay { until: now + Duration::from_secs(1), reason: DelayReason::Full };
                    self.effects.push_back(LimiterEffect::Expire { ticket: first, delay });
                }
            }
        }
    }
}
