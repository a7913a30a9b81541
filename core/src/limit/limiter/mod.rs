//! The limiter: decides which calls are granted, and when.

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

/// A waiting caller.
#[derive(Debug)]
struct Waiter {
    ask: PermitRequest,
    domain: DomainId,
    since: Timestamp,
    lot: WaitQueueId,
    /// The sublimit that it has passed, and in which it counts.
    side: Option<WaitQueueId>,
}

/// A call in flight.
#[derive(Debug)]
struct Permit {
    ask: PermitRequest,
    domain: DomainId,
    dispatched: Timestamp,
    /// The slot that it took.
    slot: Option<(WaitQueueId, u64)>,
    /// The wait queue that it probes for.
    probe: Option<WaitQueueId>,
    side: Option<WaitQueueId>,
    /// Its permit of the shared limit.
    lodging: Option<MemberPermitId>,
}

/// A probe of an unknown route whose response was lost: it used a slot of a bucket that is not known yet.
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

/// Fewer timers than this are not pruned.
const MIN_ALARMS: usize = 256;

/// Whether a timer is still needed.
fn is_live((_, alarm): &(Timestamp, Timer), waiters: &HashMap<Ticket, Waiter>, yard: &mut WaitQueues) -> bool {
    match alarm {
        Timer::Deadline(ticket) => waiters.contains_key(ticket),
        Timer::Lot(lot) => yard.get(*lot).is_some(),
    }
}

/// The limiter. Each method that may grant a waiting call adds the grant to [`Limiter::take_effects`].
#[derive(Debug)]
pub struct Limiter {
    pub(super) config: LimitConfig,
    pub(super) book: RouteTable,
    pub(super) yard: WaitQueues,
    /// At most two for each credential; few enough for a linear search.
    pub(super) domains: Vec<Domain>,
    /// Global 429s that have not ended.
    blocks: Vec<(Credential, Timestamp)>,
    /// Whether a global 429 has ended.
    block_ended: bool,
    waiters: HashMap<Ticket, Waiter>,
    permits: HashMap<PermitId, Permit>,
    alarms: BinaryHeap<Reverse<(Timestamp, Timer)>>,
    /// With more timers than this, obsolete ones are removed.
    tidy_above: usize,
    /// Number of wait queues with a sublimit; usually 0.
    sides: usize,
    ghosts: Vec<LostProbe>,
    effects: VecDeque<LimiterEffect>,
    next: u64,
    started: Timestamp,
    /// Time of the last call.
    now: Timestamp,
    /// How limits are shared with other processes, if they are.
    sharing: Option<SharingConfig>,
    /// This process's share of each global limit, if other processes use the rest.
    pub(super) division: Option<DivisionView>,
    /// How soon changed state should be saved; `None` if nothing has changed.
    unsaved: Option<Urgency>,
}

impl Limiter {
    /// Creates a limiter that grants nothing under a global limit for one window.
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

    /// Requests a permit for a call. The lane matters only relative to calls that wait.
    pub fn acquire(&mut self, ask: PermitRequest, now: Timestamp) -> AcquireOutcome {
        let domain = self.domain_of(&ask);
        let Some(lot) = self.lot_of(&ask, now) else {
            return AcquireOutcome::Delay(Delay { until: now + Duration::from_secs(1), reason: DelayReason::Full });
        };
        // Nothing refers to it yet, and a bucket that it may share could evict it.
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
        // The call may have been granted already.
        match self.effects.back() {
            Some(LimiterEffect::Grant { ticket: granted, permit, .. }) if *granted == ticket => {
                let permit = *permit;
                self.effects.pop_back();
                AcquireOutcome::Granted(permit)
            }
            _ => AcquireOutcome::Waiting(ticket),
        }
    }

    /// Requests a permit for a call without waiting.
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

    /// Cancels a waiting call.
    pub fn cancel(&mut self, ticket: Ticket, now: Timestamp) {
        if let Some(waiter) = self.remove(ticket, now) {
            self.release_side(waiter.side, now);
            self.settle(now);
        }
    }

    /// A granted call was never sent: everything that it took is returned.
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

    /// A granted call gets no response: it counts as if it arrived at the last possible moment.
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

    /// A call got a response.
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
        // A call that passes the sublimit must not evict the bucket that is about to be closed.
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

    /// Advances time: grants calls that are permitted now, and expires waiters whose deadline has passed.
    pub fn on_time(&mut self, now: Timestamp) {
        self.settle(now);
    }

    /// Takes what happened to waiting calls, in order.
    pub fn take_effects(&mut self) -> impl Iterator<Item = LimiterEffect> + '_ {
        self.effects.drain(..)
    }

    /// The latest time at which [`Limiter::on_time`] should be called.
    #[must_use]
    pub fn next_wake(&self) -> Option<Timestamp> {
        let alarm = self.alarms.peek().map(|Reverse((then, _))| *then);
        let domains = self.domains.iter().filter_map(|domain| domain.wake);
        let blocks = self.blocks.iter().map(|(_, end)| *end);
        domains.chain(alarm).chain(blocks).chain(self.next_shared_wake()).chain(self.next_excess()).min()
    }

    /// Number of free tokens of the global limits of all credentials.
    pub fn available(&mut self, now: Timestamp) -> u32 {
        self.domains.iter_mut().filter_map(|domain| domain.global.as_mut()).map(|global| global.free(now)).sum()
    }

    /// Number of waiting calls.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// Number of waiting calls by lane, the most urgent first.
    #[must_use]
    pub fn waiting_by_lane(&self) -> [usize; 3] {
        let mut lanes = [0; 3];
        for waiter in self.waiters.values() {
            lanes[waiter.ask.lane.index()] += 1;
        }
        lanes
    }

    /// Number of calls in flight.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.permits.len()
    }
}
