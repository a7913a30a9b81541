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
#[cfg(test)]
mod fairness_tests;
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

pub use request::{AcquireOutcome, Delay, DelayReason, LimiterEffect, PermitId, PermitRequest, RouteBucket};
pub use sharing::SharingConfig;

/// A waiting caller.
#[derive(Debug)]
struct Waiter {
    request: PermitRequest,
    domain: DomainId,
    since: Timestamp,
    queue_id: WaitQueueId,
    /// The sublimit that it has passed, and in which it counts.
    sublimit: Option<WaitQueueId>,
}

/// A call in flight.
#[derive(Debug)]
struct Permit {
    request: PermitRequest,
    domain: DomainId,
    dispatched: Timestamp,
    /// The slot that it took.
    slot: Option<(WaitQueueId, u64)>,
    /// The wait queue that it probes for.
    probe: Option<WaitQueueId>,
    sublimit: Option<WaitQueueId>,
    /// Its permit of the shared limit.
    shared_permit: Option<MemberPermitId>,
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
    fn matches(&self, request: &PermitRequest) -> bool {
        self.credential == request.credential
            && self.major == request.route.major
            && self.template == request.route.key.template()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Queue(WaitQueueId),
    Deadline(Ticket),
}

/// Fewer timers than this are not pruned.
const MIN_TIMERS: usize = 256;

/// Whether a timer is still needed.
fn is_live((_, timer): &(Timestamp, Timer), waiters: &HashMap<Ticket, Waiter>, queues: &mut WaitQueues) -> bool {
    match timer {
        Timer::Deadline(ticket) => waiters.contains_key(ticket),
        Timer::Queue(queue_id) => queues.get(*queue_id).is_some(),
    }
}

/// The limiter. Each method that may grant a waiting call adds the grant to [`Limiter::take_effects`].
#[derive(Debug)]
pub struct Limiter {
    pub(super) config: LimitConfig,
    pub(super) routes: RouteTable,
    pub(super) queues: WaitQueues,
    /// At most two for each credential; few enough for a linear search. Those of tokens of callers are bounded by
    /// `max_token_domains`.
    pub(super) domains: Vec<Domain>,
    /// Global 429s that have not ended.
    blocks: Vec<(Credential, Timestamp)>,
    /// Whether a global 429 has ended.
    block_ended: bool,
    waiters: HashMap<Ticket, Waiter>,
    permits: HashMap<PermitId, Permit>,
    timers: BinaryHeap<Reverse<(Timestamp, Timer)>>,
    /// With more timers than this, obsolete ones are removed.
    prune_above: usize,
    /// Number of wait queues with a sublimit; usually 0.
    sublimits: usize,
    lost_probes: Vec<LostProbe>,
    effects: VecDeque<LimiterEffect>,
    last_id: u64,
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
            routes: RouteTable::new(&config),
            queues: WaitQueues::new(config.max_buckets),
            domains: Vec::new(),
            blocks: Vec::new(),
            block_ended: false,
            waiters: HashMap::new(),
            permits: HashMap::new(),
            timers: BinaryHeap::new(),
            prune_above: MIN_TIMERS,
            sublimits: 0,
            lost_probes: Vec::new(),
            effects: VecDeque::new(),
            last_id: 0,
            started: now,
            now,
            sharing: None,
            division: None,
            unsaved: None,
            config,
        }
    }

    /// Requests a permit for a call. The lane matters only relative to calls that wait.
    pub fn acquire(&mut self, request: PermitRequest, now: Timestamp) -> AcquireOutcome {
        let full = AcquireOutcome::Delay(Delay { until: now + Duration::from_secs(1), reason: DelayReason::Full });
        let Some(domain) = self.domain_for_request(&request, now) else { return full };
        let Some(queue_id) = self.queue_for(&request, now) else { return full };
        // Nothing refers to it yet, and a bucket that it may share could evict it.
        self.queues.hold(queue_id);
        let acquired = self.acquire_at(queue_id, request, domain, now);
        self.queues.release(queue_id);
        acquired
    }

    fn acquire_at(
        &mut self,
        queue_id: WaitQueueId,
        request: PermitRequest,
        domain: DomainId,
        now: Timestamp,
    ) -> AcquireOutcome {
        if self.can_grant_now(&request, domain, queue_id, now) {
            let waiting = self.domains[domain].ready_lanes();
            return AcquireOutcome::Granted(self.grant(request, domain, queue_id, None, waiting, now));
        }
        let delay = self.estimate(&request, domain, queue_id, now);
        if delay.until > request.deadline {
            return AcquireOutcome::Delay(delay);
        }
        if self.waiters.len() >= self.config.max_waiters {
            return AcquireOutcome::Delay(Delay {
                until: delay.until.max(now + self.config.window),
                reason: DelayReason::Full,
            });
        }
        self.last_id += 1;
        let ticket = Ticket(self.last_id);
        self.timers.push(Reverse((request.deadline, Timer::Deadline(ticket))));
        self.enqueue(ticket, Waiter { request, domain, since: now, queue_id, sublimit: None }, now);
        self.advance(now);
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
    pub fn try_acquire(&mut self, mut request: PermitRequest, now: Timestamp) -> Result<PermitId, Delay> {
        request.deadline = now.before(Duration::from_micros(1));
        match self.acquire(request, now) {
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
            self.refund_sublimit(waiter.sublimit, now);
            self.advance(now);
        }
    }

    /// A granted call was never sent: everything that it took is returned.
    pub fn refund(&mut self, permit: PermitId, now: Timestamp) {
        let Some(permit) = self.permits.remove(&permit) else { return };
        self.domains[permit.domain].in_flight -= 1;
        if let Some(global) = &mut self.domains[permit.domain].global {
            global.refund(permit.shared_permit, now);
        }
        if let Some((queue_id, number)) = permit.slot {
            if let QueueLimit::Bucket(bucket) = &mut self.queues.queue(queue_id).limit {
                bucket.refund(number);
            }
            self.review(queue_id, now);
        }
        self.finish_probe(permit.probe, now);
        self.refund_sublimit(permit.sublimit, now);
        self.review_related(&permit.request, now);
        self.advance(now);
    }

    /// A granted call gets no response: it counts as if it arrived at the last possible moment.
    pub fn mark_lost(&mut self, permit: PermitId, now: Timestamp) {
        let Some(permit) = self.permits.remove(&permit) else { return };
        self.domains[permit.domain].in_flight -= 1;
        let gone = permit.dispatched + self.config.request_timeout;
        if let Some(global) = &mut self.domains[permit.domain].global {
            global.mark_lost(permit.shared_permit, permit.dispatched, now);
        }
        if let Some((queue_id, number)) = permit.slot {
            if let QueueLimit::Bucket(bucket) = &mut self.queues.queue(queue_id).limit {
                bucket.mark_lost(number, gone.max(now));
            }
            self.review(queue_id, now);
        } else if permit.probe.is_some() && self.lost_probes.len() < self.config.max_routes {
            self.lost_probes.push(LostProbe {
                credential: permit.request.credential,
                template: permit.request.route.key.template().to_owned(),
                major: permit.request.route.major,
                gone: gone.max(now),
            });
        }
        self.finish_probe(permit.probe, now);
        self.complete_sublimit(permit.sublimit, gone.max(now), now);
        self.review_related(&permit.request, now);
        self.advance(now);
    }

    /// A call got a response.
    pub fn on_response(&mut self, permit: PermitId, response: &ResponseInfo, now: Timestamp) {
        let Some(permit) = self.permits.remove(&permit) else { return };
        self.domains[permit.domain].in_flight -= 1;
        if let Some(global) = &mut self.domains[permit.domain].global {
            global.on_response(permit.shared_permit, permit.dispatched, now);
        }
        let queue_id = match &response.rate {
            Some(rate) => self.observe_headers(&permit, rate, now),
            None => {
                if let Some((queue_id, number)) = permit.slot {
                    if let QueueLimit::Bucket(bucket) = &mut self.queues.queue(queue_id).limit {
                        bucket.on_response_without_headers(number, now);
                    }
                    self.review(queue_id, now);
                }
                let is_telling = matches!(
                    response.class,
                    ResponseClass::Success
                        | ResponseClass::NotFound
                        | ResponseClass::WebhookGone
                        | ResponseClass::Rejected
                        | ResponseClass::Forbidden
                );
                if is_telling && permit.slot.is_none() {
                    let free = RouteLimit::Free(now + self.config.free_for);
                    self.routes.observe(permit.request.credential, &permit.request.route.key, free);
                }
                permit.slot.map(|(queue_id, _)| queue_id)
            }
        };
        // A call that passes the sublimit must not evict the bucket that is about to be closed.
        queue_id.into_iter().for_each(|queue_id| self.queues.hold(queue_id));
        self.complete_sublimit(permit.sublimit, now, now);
        if let ResponseClass::RateLimited { scope, retry_after } = response.class {
            self.on_rate_limited(&permit, scope, now + retry_after, response.rate.as_ref(), queue_id, now);
        }
        queue_id.into_iter().for_each(|queue_id| self.queues.release(queue_id));
        self.finish_probe(permit.probe, now);
        self.review_related(&permit.request, now);
        self.advance(now);
    }

    /// Advances time: grants calls that are permitted now, and expires waiters whose deadline has passed.
    pub fn on_time(&mut self, now: Timestamp) {
        self.advance(now);
    }

    /// Takes what happened to waiting calls, in order.
    pub fn take_effects(&mut self) -> impl Iterator<Item = LimiterEffect> + '_ {
        self.effects.drain(..)
    }

    /// The latest time at which [`Limiter::on_time`] should be called.
    #[must_use]
    pub fn next_wake(&self) -> Option<Timestamp> {
        let timer = self.timers.peek().map(|Reverse((then, _))| *then);
        let domains = self.domains.iter().filter_map(|domain| domain.wake);
        let blocks = self.blocks.iter().map(|(_, end)| *end);
        domains.chain(timer).chain(blocks).chain(self.next_shared_wake()).chain(self.next_excess()).min()
    }

    /// Number of calls that the global limits of all credentials permit now.
    pub fn available(&mut self, now: Timestamp) -> u32 {
        self.domains.iter_mut().filter_map(|domain| domain.global.as_mut()).map(|global| global.available(now)).sum()
    }

    /// Whether every global limit has all of its tokens, so that [`Limiter::available`] changes with the next call only.
    pub fn is_full(&mut self, now: Timestamp) -> bool {
        let mut globals = self.domains.iter_mut().filter_map(|domain| domain.global.as_mut());
        globals.all(|global| global.available(now) >= global.limit())
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
            lanes[waiter.request.lane.index()] += 1;
        }
        lanes
    }

    /// Number of calls in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.permits.len()
    }
}
