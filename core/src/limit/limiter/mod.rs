//! The limiter: who may go, and when.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::time::Duration;

use crate::limit::config::LimitConfig;
use crate::limit::division::DivisionView;
use crate::limit::domain::{Domain, DomainId};
use crate::limit::route_table::{RouteLimit, RouteTable};
use crate::limit::shared::MemberPermitId;
use crate::limit::wait_queue::{QueueLimit, Ticket, WaitQueueId};
use crate::limit::wait_queues::WaitQueues;
use crate::response::{Credential, ResponseClass, ResponseInfo};
use crate::route::TopLevelId;
use crate::snapshot::Urgency;
use crate::time::Timestamp;

mod block;
#[cfg(test)]
mod block_tests;
mod enqueue;
mod grant;
mod observe;
mod persist;
#[cfg(test)]
mod persist_tests;
mod request;
mod resolve;
mod sharing;
#[cfg(test)]
mod tests;

pub use request::{AcquireOutcome, Delay, DelayReason, LimiterEffect, PermitId, PermitRequest};
pub use sharing::SharingConfig;

/// Somebody who waits.
#[derive(Debug)]
struct Waiter {
    ask: PermitRequest,
    domain: DomainId,
    since: Timestamp,
    lot: WaitQueueId,
    /// The side door it has passed, whose place it holds.
    side: Option<WaitQueueId>,
}

/// A call under way.
#[derive(Debug)]
struct Permit {
    ask: PermitRequest,
    domain: DomainId,
    dispatched: Timestamp,
    /// The slot that it took.
    slot: Option<(WaitQueueId, u64)>,
    /// The wait queue whose one call ahead it is.
    probe: Option<WaitQueueId>,
    side: Option<WaitQueueId>,
    /// What it took of a shared limit.
    lodging: Option<MemberPermitId>,
}

/// A call of an unknown route whose answer was lost: it used a slot of a bucket that is not known yet.
#[derive(Debug)]
struct LostProbe {
    credential: Credential,
    template: String,
    major: TopLevelId,
    /// When it can no longer arrive.
    gone: Timestamp,
}

impl LostProbe {
    fn haunts(&self, ask: &PermitRequest) -> bool {
        self.credential == ask.credential && self.major == ask.route.major && self.template == ask.route.key.template()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Lot(WaitQueueId),
    Deadline(Ticket),
}

/// So many alarms are not worth tidying.
const MIN_ALARMS: usize = 256;

/// Whether an alarm is still for something.
fn is_live((_, alarm): &(Timestamp, Timer), waiters: &HashMap<Ticket, Waiter>, yard: &mut WaitQueues) -> bool {
    match alarm {
        Timer::Deadline(ticket) => waiters.contains_key(ticket),
        Timer::Lot(lot) => yard.get(*lot).is_some(),
    }
}

/// The machine. Every method that may let somebody go leaves that in [`Limiter::take_effects`].
#[derive(Debug)]
pub struct Limiter {
    pub(super) config: LimitConfig,
    pub(super) book: RouteTable,
    pub(super) yard: WaitQueues,
    /// No more than two for each credential, and so few that they are found by looking at each.
    pub(super) domains: Vec<Domain>,
    /// Global 429s that have not ended.
    blocks: Vec<(Credential, Timestamp)>,
    /// Whether one of them has ended.
    block_ended: bool,
    waiters: HashMap<Ticket, Waiter>,
    permits: HashMap<PermitId, Permit>,
    alarms: BinaryHeap<Reverse<(Timestamp, Timer)>>,
    /// With more alarms than this, some are for what has long happened.
    tidy_above: usize,
    /// Wait queues behind a side door; usually none.
    sides: usize,
    ghosts: Vec<LostProbe>,
    effects: VecDeque<LimiterEffect>,
    next: u64,
    started: Timestamp,
    /// When it was last asked.
    now: Timestamp,
    /// How limits are shared with other processes, if they are.
    sharing: Option<SharingConfig>,
    /// What it may use of each global limit, if other processes use the rest.
    pub(super) division: Option<DivisionView>,
    /// How soon what has changed should be kept, if something has.
    unsaved: Option<Urgency>,
}

impl Limiter {
    /// A limiter that has just started: it grants nothing under a global limit for one window.
    #[must_use]
    pub fn new(config: LimitConfig, now: Timestamp) -> Self {
        Self {
            book: RouteTable::new(&config),
            yard: WaitQueues::new(config.max_buckets),
            domains: Vec::new(),
            blocks: Vec::new(),
            block_ended: false,
            waiters: HashMap::new(),
            permits: HashMap::new(),
            alarms: BinaryHeap::new(),
            tidy_above: MIN_ALARMS,
            sides: 0,
            ghosts: Vec::new(),
            effects: VecDeque::new(),
            next: 0,
            started: now,
            now,
            sharing: None,
            division: None,
            unsaved: None,
            config,
        }
    }

    /// Asks for a call to go. The lane only matters against those who wait.
    pub fn acquire(&mut self, ask: PermitRequest, now: Timestamp) -> AcquireOutcome {
        let domain = self.domain_of(&ask);
        let Some(lot) = self.lot_of(&ask, now) else {
            return AcquireOutcome::Delay(Delay { until: now + Duration::from_secs(1), reason: DelayReason::Full });
        };
        // Nothing refers to it yet, and a bucket that it may share could take its place.
        self.yard.hold(lot);
        let acquired = self.acquire_at(lot, ask, domain, now);
        self.yard.release(lot);
        acquired
    }

    fn acquire_at(&mut self, lot: WaitQueueId, ask: PermitRequest, domain: DomainId, now: Timestamp) -> AcquireOutcome {
        if self.may_go_at_once(&ask, domain, lot, now) {
            return AcquireOutcome::Granted(self.grant(ask, domain, lot, None, now));
        }
        let delay = self.estimate(&ask, domain, lot, now);
        if delay.until > ask.deadline {
            return AcquireOutcome::Delay(delay);
        }
        if self.waiters.len() >= self.config.max_waiters {
            return AcquireOutcome::Delay(Delay {
                until: delay.until.max(now + self.config.window),
                reason: DelayReason::Full,
            });
        }
        self.next += 1;
        let ticket = Ticket(self.next);
        self.alarms.push(Reverse((ask.deadline, Timer::Deadline(ticket))));
        self.enqueue(ticket, Waiter { ask, domain, since: now, lot, side: None }, now);
        self.settle(now);
        // It may have been let in by the settling itself.
        match self.effects.back() {
            Some(LimiterEffect::Grant { ticket: granted, permit, .. }) if *granted == ticket => {
                let permit = *permit;
                self.effects.pop_back();
                AcquireOutcome::Granted(permit)
            }
            _ => AcquireOutcome::Waiting(ticket),
        }
    }

    /// Asks for a call to go at once or not at all.
    pub fn try_acquire(&mut self, mut ask: PermitRequest, now: Timestamp) -> Result<PermitId, Delay> {
        ask.deadline = now.before(Duration::from_micros(1));
        match self.acquire(ask, now) {
            AcquireOutcome::Granted(permit) => Ok(permit),
            AcquireOutcome::Delay(delay) => Err(delay),
            AcquireOutcome::Waiting(ticket) => {
                self.cancel(ticket, now);
                Err(Delay { until: now, reason: DelayReason::Global })
            }
        }
    }

    /// Somebody who waits no longer wants to.
    pub fn cancel(&mut self, ticket: Ticket, now: Timestamp) {
        if let Some(waiter) = self.remove(ticket, now) {
            self.release_side(waiter.side, now);
            self.settle(now);
        }
    }

    /// A call that was granted never left: all it took comes back.
    pub fn give_back(&mut self, permit: PermitId, now: Timestamp) {
        let Some(permit) = self.permits.remove(&permit) else { return };
        if let Some(global) = &mut self.domains[permit.domain].global {
            global.given_back(permit.lodging, now);
        }
        if let Some((lot, number)) = permit.slot {
            if let QueueLimit::Bucket(bucket) = &mut self.yard.lot(lot).keeper {
                bucket.give_back(number);
            }
            self.review(lot, now);
        }
        self.end_probe(permit.probe, now);
        self.release_side(permit.side, now);
        self.review_kin(&permit.ask, now);
        self.settle(now);
    }

    /// A call that was granted will have no answer: it counts as if it arrived at the last moment it can.
    pub fn lose(&mut self, permit: PermitId, now: Timestamp) {
        let Some(permit) = self.permits.remove(&permit) else { return };
        let gone = permit.dispatched + self.config.request_timeout;
        if let Some(global) = &mut self.domains[permit.domain].global {
            global.lost(permit.lodging, permit.dispatched, now);
        }
        if let Some((lot, number)) = permit.slot {
            if let QueueLimit::Bucket(bucket) = &mut self.yard.lot(lot).keeper {
                bucket.lose(number, gone.max(now));
            }
            self.review(lot, now);
        } else if permit.probe.is_some() && self.ghosts.len() < self.config.max_routes {
            self.ghosts.push(LostProbe {
                credential: permit.ask.credential,
                template: permit.ask.route.key.template().to_owned(),
                major: permit.ask.route.major,
                gone: gone.max(now),
            });
        }
        self.end_probe(permit.probe, now);
        self.end_side(permit.side, gone.max(now), now);
        self.review_kin(&permit.ask, now);
        self.settle(now);
    }

    /// A call was answered.
    pub fn answered(&mut self, permit: PermitId, answer: &ResponseInfo, now: Timestamp) {
        let Some(permit) = self.permits.remove(&permit) else { return };
        if let Some(global) = &mut self.domains[permit.domain].global {
            global.answered(permit.lodging, permit.dispatched, now);
        }
        let learned = match &answer.rate {
            Some(rate) => self.learn(&permit, rate, now),
            None => {
                if let Some((lot, number)) = permit.slot {
                    if let QueueLimit::Bucket(bucket) = &mut self.yard.lot(lot).keeper {
                        bucket.answered_without_headers(number, now);
                    }
                    self.review(lot, now);
                }
                let is_telling = matches!(
                    answer.class,
                    ResponseClass::Success
                        | ResponseClass::NotFound
                        | ResponseClass::Rejected
                        | ResponseClass::Forbidden
                );
                if is_telling && permit.slot.is_none() {
                    let free = RouteLimit::Free(now + self.config.free_for);
                    self.book.learn(permit.ask.credential, &permit.ask.route.key, free);
                }
                permit.slot.map(|(lot, _)| lot)
            }
        };
        // Whoever is let through the side door must not take the place of the bucket that is to be closed.
        learned.into_iter().for_each(|lot| self.yard.hold(lot));
        self.end_side(permit.side, now, now);
        if let ResponseClass::RateLimited { scope, retry_after } = answer.class {
            self.refused(&permit, scope, now + retry_after, answer.rate.as_ref(), learned, now);
        }
        learned.into_iter().for_each(|lot| self.yard.release(lot));
        self.end_probe(permit.probe, now);
        self.review_kin(&permit.ask, now);
        self.settle(now);
    }

    /// Time has passed: lets go whoever may, and sends away whoever can wait no longer.
    pub fn on_time(&mut self, now: Timestamp) {
        self.settle(now);
    }

    /// What happened to those who wait, in order.
    pub fn take_effects(&mut self) -> impl Iterator<Item = LimiterEffect> + '_ {
        self.effects.drain(..)
    }

    /// When [`Limiter::on_time`] should be called at the latest.
    #[must_use]
    pub fn next_wake(&self) -> Option<Timestamp> {
        let alarm = self.alarms.peek().map(|Reverse((then, _))| *then);
        let domains = self.domains.iter().filter_map(|domain| domain.wake);
        let blocks = self.blocks.iter().map(|(_, end)| *end);
        domains.chain(alarm).chain(blocks).chain(self.next_shared_wake()).chain(self.next_excess()).min()
    }

    /// Free tokens of the global limits, of all credentials together.
    pub fn available(&mut self, now: Timestamp) -> u32 {
        self.domains.iter_mut().filter_map(|domain| domain.global.as_mut()).map(|global| global.free(now)).sum()
    }

    /// How many wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// How many wait in each lane, the most urgent first.
    #[must_use]
    pub fn waiting_by_lane(&self) -> [usize; 3] {
        let mut lanes = [0; 3];
        for waiter in self.waiters.values() {
            lanes[waiter.ask.lane.index()] += 1;
        }
        lanes
    }

    /// How many are under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.permits.len()
    }
}
