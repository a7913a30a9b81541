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
        let (lot, lane) = (waiter.lot, waiter.ask.lane);
        let queue = &mut self.yard.lot(lot).queues.get_or_insert_default().lanes[lane.index()];
        // Usually the newest ticket; one that moves here from another queue keeps its position in the order of tickets.
        let place = queue.partition_point(|other| *other < ticket);
        queue.insert(place, ticket);
        self.domains[waiter.domain].waiting += 1;
        self.waiters.insert(ticket, waiter);
        self.review(lot, now);
    }

    /// Removes a waiter from its wait queue.
    pub(super) fn remove(&mut self, ticket: Ticket, now: Timestamp) -> Option<Waiter> {
        let waiter = self.waiters.remove(&ticket)?;
        self.domains[waiter.domain].waiting -= 1;
        let lane = waiter.ask.lane.index();
        if let Some(queues) = &mut self.yard.lot(waiter.lot).queues {
            queues.lanes[lane].retain(|other| *other != ticket);
        }
        self.review(waiter.lot, now);
        Some(waiter)
    }

    /// Re-evaluates a wait queue: announces the heads that are ready, or sets a timer.
    pub(super) fn review(&mut self, lot: WaitQueueId, now: Timestamp) {
        self.unannounce(lot);
        let Some(queues) = &self.yard.lot(lot).queues else { return };
        let Some(first) = queues.first() else {
            self.yard.lot(lot).queues = None;
            return;
        };
        let first = self.waiters[&first].ask.clone();
        match self.turn(lot, &first, now) {
            Readiness::Now if matches!(self.yard.lot(lot).keeper, QueueLimit::Side(_)) => self.pass_side(lot, now),
            Readiness::Now => self.announce(lot),
            Readiness::At(then) => {
                let there = self.yard.lot(lot);
                if there.timer.is_none_or(|timer| timer > then) {
                    there.timer = Some(then);
                    self.alarms.push(Reverse((then, Timer::Lot(lot))));
                }
            }
            Readiness::OnAnswer => {}
        }
    }

    pub(super) fn announce(&mut self, lot: WaitQueueId) {
        let is_probe = matches!(self.yard.lot(lot).keeper, QueueLimit::Probe { .. });
        let Some(queues) = &mut self.yard.lot(lot).queues else { return };
        for lane in Lane::ALL {
            if let Some(head) = queues.lanes[lane.index()].front() {
                let domain = self.waiters[head].domain;
                queues.announced[lane.index()] = Some((*head, domain));
                self.domains[domain].announce(lane, *head, lot);
                if is_probe {
                    // Only the most urgent call can be the probe.
                    break;
                }
            }
        }
    }

    pub(super) fn unannounce(&mut self, lot: WaitQueueId) {
        let Some(queues) = &mut self.yard.lot(lot).queues else { return };
        let announced = std::mem::take(&mut queues.announced);
        for (lane, head) in Lane::ALL.into_iter().zip(announced) {
            if let Some((head, domain)) = head {
                self.domains[domain].withdraw(lane, head, lot);
            }
        }
    }

    /// Moves the calls that the sublimit permits to the wait queues of their routes.
    pub(super) fn pass_side(&mut self, side: WaitQueueId, now: Timestamp) {
        while let Some(first) = self.yard.lot(side).queues.as_ref().and_then(|queues| queues.first()) {
            let QueueLimit::Side(door) = &mut self.yard.lot(side).keeper else { return };
            if door.turn(now) != Readiness::Now {
                self.review(side, now);
                return;
            }
            door.take();
            let Some(mut waiter) = self.waiters.remove(&first) else { return };
            self.domains[waiter.domain].waiting -= 1;
            if let Some(queues) = &mut self.yard.lot(side).queues {
                queues.lanes[waiter.ask.lane.index()].pop_front();
                if queues.is_empty() {
                    self.yard.lot(side).queues = None;
                }
            }
            waiter.side = Some(side);
            match self.ordinary_lot(&waiter.ask, now) {
                Some(lot) => {
                    waiter.lot = lot;
                    self.enqueue(first, waiter, now);
                }
                None => {
                    self.release_side(waiter.side, now);
                    let delay = Delay { until: now + Duration::from_secs(1), reason: DelayReason::Full };
                    self.effects.push_back(LimiterEffect::Expire { ticket: first, delay });
                }
            }
        }
    }
}
