//! Actor that grants the permit for every call to Discord. One for each process.
//!
//! ```text
//!  TokenBucketHandle::acquire ──AcquirePermit──▶ Limiter ──▶ Permit ──▶ … the call … ──▶ answered, lost or dropped
//!                                                 │   ▲                                              │
//!                                               timer └────────────── PermitEnded ───────────────────┘
//! ```
//!
//! [`Limiter`] decides. The actor passes messages to it, wakes it when a timer is due, and reports what it did.

mod handle;
mod permit;
mod share;
mod shared;
mod snapshot;

#[cfg(test)]
mod shared_tests;
#[cfg(test)]
mod tests;

pub use handle::{PermitError, TokenBucketHandle};
pub use permit::Permit;
pub use share::DividedLimit;
pub use shared::{SharedCallFuture, SharedLimits, SharedWindow};

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, Addr, AsyncContext, Context, Handler, Message, MessageResult, SpawnHandle};
use guildhall_core::lane::Lane;
use guildhall_core::limit::division::Allowance;
use guildhall_core::limit::shared::SharingMode;
use guildhall_core::limit::{
    AcquireOutcome, BucketPage, Delay, LimitConfig, Limiter, LimiterEffect, LimiterView, PermitId, PermitRequest,
    RouteBucket, Ticket,
};
use guildhall_core::operation::GateCondition;
use guildhall_core::response::{Credential, ResponseClass, ResponseInfo};
use guildhall_core::route::RouteKey;
use guildhall_core::time::Timestamp;
use tokio::sync::{oneshot, watch};

use self::share::ShareState;
use crate::clock::Clock;
use crate::crash::{self, Input};
use crate::failpoint;
use crate::gate::ReleaseListener;
use crate::snapshot::DirtyFlag;
use crate::supervision::{Part, PartGuard};
use crate::telemetry::emit;
use crate::telemetry::limits::{PermitGranted, PermitRefused, RateLimitHit, RouteLabels, TokensCounted};

/// Mailbox capacity for each sender.
const MAILBOX: usize = 4_096;

/// Minimum interval between reports of numbers that change with every call.
const REPORT_INTERVAL: Duration = Duration::from_millis(10);

/// Interval between reports while tokens return without any call: the last one reports all of them.
const REFILL_REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Grants permits within Discord's limits.
pub struct TokenBucket {
    /// The first field, so that its drop is noticed before that of anything that waits for this actor.
    _guard: PartGuard,
    clock: Clock,
    limiter: Limiter,
    /// Waiting callers, with their ids and reply channels.
    waiting: HashMap<Ticket, (AcquireId, Lane, Reply)>,
    tickets: HashMap<AcquireId, Ticket>,
    timer: Option<(Timestamp, SpawnHandle)>,
    labels: RouteLabels,
    last_counts: Option<(usize, u32)>,
    /// Whether a timer for the next report is set.
    report_scheduled: bool,
    /// Whether a timer for a report of returned tokens is set.
    refill_report_scheduled: bool,
    /// What it shares with other processes, if it does.
    window: Option<Arc<dyn SharedWindow>>,
    /// Its share of the limits if other processes use the rest, and the source of the next share.
    share: Option<ShareState>,
    allowance: Option<watch::Receiver<Allowance>>,
    /// Wakes the task that saves the snapshot, if there is one.
    dirty_flag: Option<Arc<DirtyFlag>>,
    /// Last reported state of each shared limit.
    modes: HashMap<Credential, (SharingMode, u32, u32)>,
    /// Notified when callers may retry before their retry time.
    release_listener: Option<ReleaseListener>,
}

/// A caller's id for its request, so that the caller can cancel it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AcquireId(pub(crate) u64);

/// Called once if a permit cannot be granted immediately and its caller has to wait.
pub(crate) type OnWait = Box<dyn FnOnce() + Send>;

/// Reply channel of a caller.
type Reply = oneshot::Sender<Result<Permit, Delay>>;

/// Requests a permit.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct AcquirePermit {
    pub(crate) id: AcquireId,
    pub(crate) request: PermitRequest,
    pub(crate) reply: Reply,
    pub(crate) on_wait: Option<OnWait>,
    /// The input that the caller processes.
    pub(crate) input: Option<Input>,
}

/// Cancels a request.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct CancelAcquire(pub(crate) AcquireId);

/// A permit is no longer in use.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct PermitEnded {
    pub(crate) permit: PermitId,
    pub(crate) route: RouteKey,
    pub(crate) end: PermitEnd,
    /// The input that the call was made for.
    pub(crate) input: Option<Input>,
}

/// How a permit ended.
#[derive(Debug)]
pub(crate) enum PermitEnd {
    /// The call was answered.
    Answered(ResponseInfo),
    /// The call was sent, and no response will come.
    Lost,
    /// The call was never sent.
    Unused,
}

/// Sets the listener that is notified when callers may retry before their retry time.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct SetLimitReleaseListener(pub(crate) ReleaseListener);

/// Requests a snapshot of the limits.
#[derive(Message)]
#[rtype(result = "LimiterView")]
pub struct ObserveTokenBucket;

/// Requests the bucket of a route.
#[derive(Message)]
#[rtype(result = "Option<RouteBucket>")]
pub(crate) struct FindBucket {
    pub(crate) credential: Credential,
    pub(crate) route: RouteKey,
}

/// Requests a page of buckets.
#[derive(Message)]
#[rtype(result = "BucketPage")]
pub struct ListBuckets {
    /// Start of the page: 0, or the value from the previous page.
    pub from: u32,
    /// Maximum number of buckets.
    pub limit: usize,
}

impl TokenBucket {
    /// Creates an actor that grants nothing under a global limit during its first window.
    #[must_use]
    pub fn new(clock: Clock, config: LimitConfig) -> Self {
        Self {
            _guard: PartGuard::new(Part::TokenBucket),
            limiter: Limiter::new(config, clock.now()),
            clock,
            waiting: HashMap::new(),
            tickets: HashMap::new(),
            timer: None,
            labels: RouteLabels::default(),
            last_counts: None,
            report_scheduled: false,
            refill_report_scheduled: false,
            window: None,
            share: None,
            allowance: None,
            dirty_flag: None,
            modes: HashMap::new(),
            release_listener: None,
        }
    }

    /// Shares its global limits with other processes.
    #[must_use]
    pub fn with_shared_limits(mut self, SharedLimits { window, sharing, credential }: SharedLimits) -> Self {
        self.limiter.share(sharing, credential);
        self.window = Some(window);
        self
    }

    /// Starts the actor on the current thread. The mailbox capacity is set before the first message: an actor that sets
    /// it when it starts would reject earlier messages.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the guard is a field of the actor")]
    pub fn run(self) -> Addr<Self> {
        Self::create(|ctx| {
            ctx.set_mailbox_capacity(MAILBOX);
            self
        })
    }

    /// Runs one step, then its effects.
    fn step(&mut self, ctx: &mut Context<Self>, act: impl FnOnce(&mut Self, &mut Context<Self>, Timestamp)) {
        failpoint::message(Part::TokenBucket);
        let now = self.clock.now();
        act(self, ctx, now);
        // Usually there are none, and then nothing is allocated.
        let effects: Vec<LimiterEffect> = self.limiter.take_effects().collect();
        for effect in effects {
            match effect {
                LimiterEffect::Grant { ticket, permit, waited } => {
                    if let Some((id, lane, reply)) = self.waiting.remove(&ticket) {
                        self.tickets.remove(&id);
                        emit(PermitGranted { lane, waited: Some(waited) });
                        // If the caller is gone, the drop of the permit returns it unused.
                        let _ = reply.send(Ok(Permit::new(permit, true, ctx.address())));
                    }
                }
                LimiterEffect::Expire { ticket, delay } => {
                    if let Some((id, lane, reply)) = self.waiting.remove(&ticket) {
                        self.tickets.remove(&id);
                        emit(PermitRefused { lane, reason: delay.reason });
                        let _ = reply.send(Err(delay));
                    }
                }
            }
        }
        self.send_shared_calls(ctx);
        self.report_usage();
        if self.limiter.take_block_ended() {
            self.notify_release();
        }
        self.mark_dirty();
        self.schedule_report(ctx);
        self.arm(ctx);
    }

    /// Notifies the listener that calls which the global limit delayed may retry.
    fn notify_release(&self) {
        if let Some(listener) = &self.release_listener {
            listener(GateCondition::GlobalLimit);
        }
    }

    /// Schedules a report of all changes until then.
    fn schedule_report(&mut self, ctx: &mut Context<Self>) {
        if !self.report_scheduled {
            self.report_scheduled = true;
            ctx.run_later(REPORT_INTERVAL, |bucket, ctx| {
                bucket.report_scheduled = false;
                bucket.report_counts(ctx);
            });
        }
    }

    fn report_counts(&mut self, ctx: &mut Context<Self>) {
        let now = self.clock.now();
        let counted = (self.limiter.waiting(), self.limiter.available(now));
        if !self.refill_report_scheduled && !self.limiter.is_full(now) {
            self.refill_report_scheduled = true;
            ctx.run_later(REFILL_REPORT_INTERVAL, |bucket, ctx| {
                bucket.refill_report_scheduled = false;
                bucket.report_counts(ctx);
            });
        }
        if self.last_counts != Some(counted) {
            emit(TokensCounted { waiting: counted.0, available: counted.1 });
            self.last_counts = Some(counted);
        }
    }

    /// Sets the timer to the next wakeup.
    fn arm(&mut self, ctx: &mut Context<Self>) {
        let Some(next) = self.limiter.next_wake() else { return };
        // A timer that fires too early costs less than setting a new one for each call; it sets the next one.
        if self.timer.is_some_and(|(at, _)| at <= next) {
            return;
        }
        if let Some((_, handle)) = self.timer.take() {
            ctx.cancel_future(handle);
        }
        let handle = ctx.run_later(self.clock.until(next), |bucket, ctx| {
            bucket.timer = None;
            bucket.step(ctx, |bucket, _, now| bucket.limiter.on_time(now));
        });
        self.timer = Some((next, handle));
    }
}

impl Actor for TokenBucket {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.step(ctx, |bucket, _, now| bucket.limiter.on_time(now));
        self.follow_allowance(ctx);
    }
}

impl Handler<AcquirePermit> for TokenBucket {
    type Result = ();

    fn handle(&mut self, AcquirePermit { id, request, reply, on_wait, input }: AcquirePermit, ctx: &mut Self::Context) {
        let _entered = crash::enter(input);
        failpoint::input(Part::TokenBucket, || crash::current().map_or_else(String::new, |input| input.to_string()));
        self.step(ctx, |bucket, ctx, now| {
            let lane = request.lane;
            match bucket.limiter.acquire(request, now) {
                AcquireOutcome::Granted(permit) => {
                    emit(PermitGranted { lane, waited: None });
                    let _ = reply.send(Ok(Permit::new(permit, false, ctx.address())));
                }
                AcquireOutcome::Delay(delay) => {
                    emit(PermitRefused { lane, reason: delay.reason });
                    let _ = reply.send(Err(delay));
                }
                AcquireOutcome::Waiting(ticket) => {
                    bucket.tickets.insert(id, ticket);
                    bucket.waiting.insert(ticket, (id, lane, reply));
                    if let Some(on_wait) = on_wait {
                        on_wait();
                    }
                }
            }
        });
    }
}

impl Handler<CancelAcquire> for TokenBucket {
    type Result = ();

    fn handle(&mut self, CancelAcquire(id): CancelAcquire, ctx: &mut Self::Context) {
        self.step(ctx, |bucket, _, now| {
            if let Some(ticket) = bucket.tickets.remove(&id) {
                bucket.waiting.remove(&ticket);
                bucket.limiter.cancel(ticket, now);
            }
        });
    }
}

impl Handler<PermitEnded> for TokenBucket {
    type Result = ();

    fn handle(&mut self, PermitEnded { permit, route, end, input }: PermitEnded, ctx: &mut Self::Context) {
        let _entered = crash::enter(input);
        self.step(ctx, |bucket, _, now| match end {
            PermitEnd::Answered(response) => {
                if let ResponseClass::RateLimited { scope, retry_after } = response.class {
                    emit(RateLimitHit { route: bucket.labels.of(&route), scope, retry_after });
                }
                bucket.limiter.on_response(permit, &response, now);
            }
            PermitEnd::Lost => bucket.limiter.mark_lost(permit, now),
            PermitEnd::Unused => bucket.limiter.refund(permit, now),
        });
    }
}

impl Handler<SetLimitReleaseListener> for TokenBucket {
    type Result = ();

    fn handle(&mut self, SetLimitReleaseListener(listener): SetLimitReleaseListener, _: &mut Self::Context) {
        self.release_listener = Some(listener);
    }
}

impl Handler<ObserveTokenBucket> for TokenBucket {
    type Result = MessageResult<ObserveTokenBucket>;

    fn handle(&mut self, _: ObserveTokenBucket, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.limiter.snapshot(self.clock.now()))
    }
}

impl Handler<FindBucket> for TokenBucket {
    type Result = MessageResult<FindBucket>;

    fn handle(&mut self, FindBucket { credential, route }: FindBucket, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.limiter.bucket_of(credential, &route))
    }
}

impl Handler<ListBuckets> for TokenBucket {
    type Result = MessageResult<ListBuckets>;

    fn handle(&mut self, ListBuckets { from, limit }: ListBuckets, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.limiter.list(from, limit, self.clock.now()))
    }
}
