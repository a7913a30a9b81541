//! Actor that admits calls or rejects them.
//!
//! ```text
//!   caller ──Admit──▶ ledger of invalid requests, breakers ──▶ Pass ──▶ … the call … ──▶ Pass::report
//!                               │                                                           │
//!                               └──▶ transitions: log, metric, broadcast ◀──────────────────┘
//! ```
//!
//! [`Breakers`] and [`InvalidLedger`] decide. The actor passes messages to them, wakes them when a timer is due, and
//! reports what they did. If there are other processes, a [`BreakerReplicator`] informs them.

mod admin;
mod call;
mod pass;
mod probe;
mod release;
mod reporter;
mod send_block;
mod shared;
#[cfg(test)]
mod shared_tests;
mod snapshot;
#[cfg(test)]
mod tests;

pub use admin::{
    CheckForceOpen, ClearWebhook, ForceOpen, ForceOpenFor, GetBreaker, GetTopSpenders, ResetBreaker, TopSpenders,
};
pub use call::CallError;
pub use pass::{Pass, ReportReceipt};
pub use probe::{ProbeRequest, Prober};
pub(crate) use release::SetReleaseListener;
pub use reporter::BreakerChanged;
pub use send_block::{BlockPhase, SendBlock};
pub use shared::{
    BreakerChangeReplicated, BreakerReplicator, ForcedBreakerEnded, LeaveLedger, LedgerSynced, ProbeClaimed,
    RemoteBreakerChanged, ReplaceToken, ShareBreakers, SharedStateRead, TakeBreakerChanges, TakeLedgerRequest,
    TakeProbeClaims,
};
pub(crate) use snapshot::{RestoreBreakers, SnapshotBreakers};

use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, ActorFutureExt, AsyncContext, Context, Handler, Message, MessageResult, SpawnHandle, WrapFuture};
use guildhall_core::breaker::{
    Attempt, BreakerConfig, BreakerEffect, BreakerKey, Breakers, BreakersSnapshot, CallInfo, CallRejection, CallResult,
    ChangeOrigin,
};
use guildhall_core::invalid::{InvalidBudgetExceeded, InvalidConfig, InvalidLedger, InvalidLedgerSnapshot};
use guildhall_core::lane::Lane;
use guildhall_core::limit::division::Allowance;
use guildhall_core::response::Credential;
use guildhall_core::route::RouteKey;
use guildhall_core::spending::{Consumer, Spending};
use guildhall_core::time::Timestamp;
use serde::Serialize;
use tokio::sync::{broadcast, oneshot, watch};

use crate::clock::Clock;
use crate::crash::{self, Input};
use crate::failpoint;
use crate::snapshot::DirtyFlag;
use crate::supervision::{Part, PartGuard};
use crate::telemetry::breaker::{BreakersStarted, CallHeldByShare, CallRefused, ProbeSent, TargetRefused};
use crate::telemetry::emit;
use pass::{AdmittedCall, Generations};
use release::ReleaseTracker;
use reporter::BreakerReporter;

/// Mailbox capacity for each sender.
const MAILBOX: usize = 1_024;

/// Admits calls or rejects them. One for each process.
pub struct CircuitBreaker {
    /// The first field, so that its drop is noticed before that of anything that waits for this actor.
    _guard: PartGuard,
    clock: Clock,
    breakers: Breakers,
    ledger: InvalidLedger,
    /// Number of processes that divide the budget of invalid requests, if any do.
    processes: Option<watch::Receiver<Allowance>>,
    /// Calls and their results, by consumer.
    spending: Spending,
    prober: Option<Prober>,
    /// Sends changes to the other processes, if there are any.
    replicator: Option<Arc<dyn BreakerReplicator>>,
    /// Wakes the task that saves the snapshot, if there is one.
    dirty_flag: Option<Arc<DirtyFlag>>,
    reporter: BreakerReporter,
    /// Incremented by each transition.
    generations: Generations,
    releases: ReleaseTracker,
    /// The next wakeup.
    timer: Option<(Timestamp, SpawnHandle)>,
}

/// Requests to send a call to Discord. Returns a [`Pass`], or the reason for the rejection.
#[derive(Message)]
#[rtype(result = "Result<Pass, CallRejection>")]
pub struct Admit(
    /// The call.
    pub CallInfo,
);

/// Requests to send a call to another upstream.
#[derive(Message)]
#[rtype(result = "Result<Pass, (CallRejection, Option<Duration>)>")]
struct AdmitTarget {
    name: String,
}

/// A call has finished. Sent by [`Pass::report`].
#[derive(Message)]
#[rtype(result = "()")]
struct ReportCall {
    admitted: AdmittedCall,
    result: CallResult,
    elapsed: Duration,
    reply: oneshot::Sender<Attempt>,
    /// The input that the call was made for.
    input: Option<Input>,
}

/// A pass was dropped. Sent by the pass.
#[derive(Message)]
#[rtype(result = "()")]
struct AbandonCall {
    admitted: AdmittedCall,
    /// The input that the call was meant for.
    input: Option<Input>,
}

/// A credential has a new token that no other process is known to have. Use [`ReplaceToken`] if others may have it.
#[derive(Message)]
#[rtype(result = "()")]
pub struct TokenChanged(
    /// The credential.
    pub Credential,
);

/// Sets the function that sends probes for breakers that no call probes. Before that, none are sent.
#[derive(Message)]
#[rtype(result = "()")]
pub struct SetProber(
    /// The function.
    pub Prober,
);

/// Subscribes to all transitions from now on.
#[derive(Message)]
#[rtype(result = "broadcast::Receiver<BreakerChanged>")]
pub struct SubscribeBreakerChanges;

/// Follows whether any call can be sent to Discord, and why not.
#[derive(Message)]
#[rtype(result = "watch::Receiver<Option<SendBlock>>")]
pub struct WatchSendBlock;

/// Requests a snapshot of the breakers and the ledger.
#[derive(Message)]
#[rtype(result = "CircuitBreakerSnapshot")]
pub struct ObserveCircuitBreaker;

/// Snapshot of the breakers and the ledger.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CircuitBreakerSnapshot {
    /// The breakers.
    #[serde(flatten)]
    pub breakers: BreakersSnapshot,
    /// The ledger of invalid requests.
    pub invalid_requests: InvalidLedgerSnapshot,
}

impl CircuitBreaker {
    /// Creates an actor with closed breakers and an empty ledger. `seed` is for the jitter of cooldowns, and should
    /// differ between processes.
    #[must_use]
    pub fn new(clock: Clock, breakers: BreakerConfig, invalid: InvalidConfig, seed: u64) -> Self {
        Self {
            _guard: PartGuard::new(Part::CircuitBreaker),
            clock,
            breakers: Breakers::new(breakers, seed),
            ledger: InvalidLedger::new(invalid),
            processes: None,
            spending: Spending::new(clock.now()),
            prober: None,
            replicator: None,
            dirty_flag: None,
            reporter: BreakerReporter::new(),
            generations: Generations::default(),
            releases: ReleaseTracker::default(),
            timer: None,
        }
    }

    /// Runs one step at the current time: first due timers, then `act`, then the effects of both.
    fn step<T>(
        &mut self,
        ctx: &mut Context<Self>,
        act: impl FnOnce(&mut Self, Timestamp) -> (T, Vec<BreakerEffect>),
    ) -> T {
        failpoint::message(Part::CircuitBreaker);
        let now = self.clock.now();
        if self.breakers.next_wake().is_some_and(|wake| wake <= now) {
            let effects = self.breakers.on_time(now);
            self.perform(effects, ctx, now);
        }
        let (result, effects) = act(self, now);
        self.perform(effects, ctx, now);
        self.reporter.report_changes(&self.breakers, &mut self.ledger, now);
        self.arm(ctx);
        result
    }

    /// Divides the budget of invalid requests among the processes that divide the global limit, because they share an
    /// address.
    #[must_use]
    pub fn with_allowance(mut self, allowance: watch::Receiver<Allowance>) -> Self {
        self.processes = Some(allowance);
        self
    }

    /// Follows the number of processes until its sender is dropped.
    fn follow_processes(&mut self, ctx: &mut Context<Self>) {
        let Some(mut processes) = self.processes.take() else { return };
        let count = processes.borrow_and_update().members;
        self.step(ctx, |this, now| {
            this.ledger.set_processes(count, now);
            ((), Vec::new())
        });
        let next = async move { processes.changed().await.is_ok().then_some(processes) };
        ctx.spawn(next.into_actor(self).map(|processes, this, ctx| {
            this.processes = processes;
            this.follow_processes(ctx);
        }));
    }

    fn admit(&mut self, call: &CallInfo, now: Timestamp) -> Result<AdmittedCall, CallRejection> {
        let owner = call.submitter.clone().in_guild(call.guild);
        let reserved = self.ledger.admit(call.lane, owner, &call.route, now);
        self.request_ledger_if_short();
        let reservation = reserved.map_err(|spent| {
            self.releases.record_refusal(call.lane, &spent, now);
            self.rejection(spent, now)
        })?;
        match self.breakers.admit(call, now) {
            Ok(pass) => Ok(AdmittedCall { pass, reservation: Some(reservation) }),
            Err(refused) => {
                self.ledger.complete(reservation, false, now);
                Err(refused)
            }
        }
    }

    /// Builds the rejection of a call that the ledger has no room for.
    fn rejection(&self, spent: InvalidBudgetExceeded, now: Timestamp) -> CallRejection {
        let InvalidBudgetExceeded { until, reason, share } = spent;
        let key = match share {
            None => "invalid requests".to_owned(),
            Some(exceeded) => {
                let wait = until.since(now);
                emit(CallHeldByShare { exceeded: &exceeded, wait });
                // Another process may have to release its part first.
                self.request_ledger_sync();
                format!(
                    "{} has used {} of the {} invalid requests that one {} may use in {} minutes; retry in {} s",
                    exceeded.holder,
                    exceeded.used,
                    exceeded.cap,
                    exceeded.holder.kind().name(),
                    self.ledger.window().as_secs() / 60,
                    wait.as_secs().max(1),
                )
            }
        };
        CallRejection { until: Some(until), reason, key }
    }

    fn perform(&mut self, effects: Vec<BreakerEffect>, ctx: &Context<Self>, now: Timestamp) {
        for effect in effects {
            match effect {
                BreakerEffect::Transition { key, from, to, reason, origin } => {
                    self.mark_dirty();
                    self.generations.advance();
                    self.releases.on_transition(&key, to);
                    let severity = self.breakers.severity(key.kind());
                    self.reporter.on_transition(BreakerChanged::new(key, from, to, reason, origin, now), severity, now);
                    if origin == ChangeOrigin::Here {
                        self.notify_replicator();
                    }
                }
                BreakerEffect::SendProbe { key, credential, permit: pass } => {
                    self.send_probe(key, credential, pass, ctx, now);
                }
                BreakerEffect::ClaimProbe => self.notify_replicator(),
            }
        }
    }

    fn send_probe(
        &mut self,
        key: BreakerKey,
        credential: Credential,
        pass: guildhall_core::breaker::CallPermit,
        ctx: &Context<Self>,
        now: Timestamp,
    ) {
        let route = RouteKey::new(&format!("GET {}", probe::path(credential)));
        // As urgent as any call that may wait for the result.
        let reserved = self.ledger.admit(Lane::Interactive, None, &route, now);
        self.request_ledger_if_short();
        let (Some(prober), Ok(reservation)) = (&self.prober, reserved) else {
            // The breaker tries again later.
            self.breakers.abandon(pass, now);
            return;
        };
        emit(ProbeSent { key: &key });
        let admitted = AdmittedCall { pass, reservation: Some(reservation) };
        prober(ProbeRequest { key, credential, pass: Pass::new(admitted, ctx.address(), self.generations.clone()) });
    }

    /// Sets the timer to the next wakeup.
    fn arm(&mut self, ctx: &mut Context<Self>) {
        let next = self.breakers.next_wake().into_iter().chain(self.ledger.next_wake()).min();
        if self.timer.map(|(at, _)| at) == next {
            return;
        }
        if let Some((_, handle)) = self.timer.take() {
            ctx.cancel_future(handle);
        }
        self.timer = next.map(|at| {
            let handle = ctx.run_later(self.clock.until(at), |breaker, ctx| {
                breaker.timer = None;
                breaker.step(ctx, |_, _| ((), Vec::new()));
            });
            (at, handle)
        });
    }
}

impl Actor for CircuitBreaker {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
        emit(BreakersStarted);
        self.follow_processes(ctx);
    }
}

impl Handler<Admit> for CircuitBreaker {
    type Result = Result<Pass, CallRejection>;

    fn handle(&mut self, Admit(call): Admit, ctx: &mut Self::Context) -> Self::Result {
        let admitted = self.step(ctx, |this, now| (this.admit(&call, now), Vec::new()));
        match admitted {
            Ok(admitted) => Ok(Pass::new(admitted, ctx.address(), self.generations.clone())),
            Err(refused) => {
                emit(CallRefused { refused: &refused, lane: call.lane, guild: call.guild });
                Err(refused)
            }
        }
    }
}

/// The same as [`Admit`], for a caller that processes an input.
#[derive(Message)]
#[rtype(result = "Result<Pass, CallRejection>")]
pub(crate) struct AdmitFor {
    pub(crate) call: CallInfo,
    pub(crate) input: Option<Input>,
}

impl Handler<AdmitFor> for CircuitBreaker {
    type Result = Result<Pass, CallRejection>;

    fn handle(&mut self, AdmitFor { call, input }: AdmitFor, ctx: &mut Self::Context) -> Self::Result {
        let _entered = crash::enter(input);
        self.handle(Admit(call), ctx)
    }
}

impl Handler<AdmitTarget> for CircuitBreaker {
    type Result = Result<Pass, (CallRejection, Option<Duration>)>;

    fn handle(&mut self, AdmitTarget { name }: AdmitTarget, ctx: &mut Self::Context) -> Self::Result {
        match self.step(ctx, |this, now| (this.breakers.admit_target(&name, now), Vec::new())) {
            Ok(pass) => {
                Ok(Pass::new(AdmittedCall { pass, reservation: None }, ctx.address(), self.generations.clone()))
            }
            Err(refused) => {
                emit(TargetRefused { refused: &refused });
                let retry_after = refused.until.map(|until| self.clock.until(until));
                Err((refused, retry_after))
            }
        }
    }
}

impl Handler<ReportCall> for CircuitBreaker {
    type Result = ();

    fn handle(&mut self, report: ReportCall, ctx: &mut Self::Context) {
        let ReportCall { admitted: AdmittedCall { pass, reservation }, result, elapsed, reply, input } = report;
        let _entered = crash::enter(input);
        let attempt = self.step(ctx, |this, now| {
            if let Some(reservation) = reservation {
                this.spending.on_call(Consumer::of(reservation.guild()), result, now);
                let was_invalid = matches!(result, CallResult::Answered(class) if class.is_invalid());
                this.ledger.complete(reservation, was_invalid, now);
                if was_invalid {
                    this.mark_dirty();
                    this.request_ledger_sync();
                }
                this.releases.check(&mut this.ledger, now);
            }
            let reported = this.breakers.report(pass, result, elapsed, now);
            (reported.attempt, reported.effects)
        });
        // The caller may have dropped the receipt.
        let _ = reply.send(attempt);
    }
}

impl Handler<AbandonCall> for CircuitBreaker {
    type Result = ();

    fn handle(&mut self, AbandonCall { admitted, input }: AbandonCall, ctx: &mut Self::Context) {
        let _entered = crash::enter(input);
        let AdmittedCall { pass, reservation } = admitted;
        self.step(ctx, |this, now| {
            if let Some(reservation) = reservation {
                this.ledger.complete(reservation, false, now);
            }
            this.breakers.abandon(pass, now);
            ((), Vec::new())
        });
    }
}

impl Handler<TokenChanged> for CircuitBreaker {
    type Result = ();

    fn handle(&mut self, TokenChanged(credential): TokenChanged, ctx: &mut Self::Context) {
        self.step(ctx, |this, now| ((), this.breakers.token_changed(credential, None, now)));
    }
}

impl Handler<SetProber> for CircuitBreaker {
    type Result = ();

    fn handle(&mut self, SetProber(prober): SetProber, _: &mut Self::Context) {
        self.prober = Some(prober);
    }
}

impl Handler<SubscribeBreakerChanges> for CircuitBreaker {
    type Result = MessageResult<SubscribeBreakerChanges>;

    fn handle(&mut self, SubscribeBreakerChanges: SubscribeBreakerChanges, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.reporter.subscribe())
    }
}

impl Handler<WatchSendBlock> for CircuitBreaker {
    type Result = MessageResult<WatchSendBlock>;

    fn handle(&mut self, WatchSendBlock: WatchSendBlock, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.reporter.watch_send_block())
    }
}

impl Handler<ObserveCircuitBreaker> for CircuitBreaker {
    type Result = MessageResult<ObserveCircuitBreaker>;

    fn handle(&mut self, ObserveCircuitBreaker: ObserveCircuitBreaker, ctx: &mut Self::Context) -> Self::Result {
        let snapshot = self.step(ctx, |this, now| {
            let breakers = this.breakers.snapshot(now);
            (CircuitBreakerSnapshot { breakers, invalid_requests: this.ledger.snapshot(now) }, Vec::new())
        });
        MessageResult(snapshot)
    }
}
