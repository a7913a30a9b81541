//! The gate: the only way for a call to reach Discord.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use actix::{Actor, Addr};
use guildhall_core::breaker::{BreakerConfig, CallInfo, CallResult};
use guildhall_core::invalid::{InvalidConfig, Submitter};
use guildhall_core::lane::Lane;
use guildhall_core::limit::{CallerId, DelayReason, LimitConfig};
use guildhall_core::response::{Credential, ResponseClass, ResponseInfo};
use guildhall_core::route::Route;
use http::Method;
use tokio::time::{Instant, timeout};

use super::{
    CallFuture, CallOutcome, ClearedRequest, CommitHook, Effects, NoResponse, NotSent, Rest, RestRequest, RestResponse,
    Transport, TransportError,
};
use crate::circuit_breaker::{self, AdmitFor, CircuitBreaker, Pass, ProbeRequest, SetProber};
use crate::clock::Clock;
use crate::crash;
use crate::failpoint::{self, Point};
use crate::lease_guard::LeaseGuard;
use crate::snapshot::{DirtyFlag, RestoredReceiver, SnapshotConfig, SnapshotHandle};
use crate::supervision::spawn_work;
use crate::telemetry::emit;
use crate::telemetry::limits::{CallAnswered, CallLost, CallRecord, RouteLabels, SendDenied};
use crate::token_bucket::{DividedLimit, OnWait, Permit, SharedLimits, TokenBucket, TokenBucketHandle};
use crate::wall_clock::unix_now_ms;

/// How long a probe of a breaker waits for its permit.
const PROBE_WAIT: Duration = Duration::from_secs(5);

/// How long a permit is held for a call whose caller commits. After that, others may use it, and the call requests
/// another one when the commit is done.
const MAX_COMMIT_TIME: Duration = Duration::from_secs(1);

/// The local gate. It alone owns the transport, so that no call can bypass it.
pub struct Gate {
    transport: Box<dyn Transport>,
    breaker: Addr<CircuitBreaker>,
    tokens: TokenBucketHandle,
    clock: Clock,
    labels: Mutex<RouteLabels>,
    /// Lease of this process, without which nothing is sent.
    lease: LeaseGuard,
    /// Saves the snapshot, and reports whether it is restored. `None` if nothing is saved.
    snapshot_handle: Option<(SnapshotHandle, RestoredReceiver)>,
    /// Reference to itself, for the tasks that send calls.
    weak_self: Weak<Self>,
}

/// Result of a call when the actors have stopped.
fn shutting_down() -> NotSent {
    // The next process can make it.
    let message = "the process is shutting down".into();
    NotSent { retry_after: Some(Duration::from_secs(1)), message, reason: "shutting_down", bucket: None }
}

/// Result of a call whose caller has lost its lease.
fn lease_lost() -> NotSent {
    NotSent {
        retry_after: Some(Duration::from_secs(1)),
        message: "the lease of this process has expired, or another process owns the guild".into(),
        reason: "lease_lost",
        bucket: None,
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}

/// Configuration of a gate.
#[derive(Clone, Debug, Default)]
pub struct GateConfig {
    /// Rate limits.
    pub limits: LimitConfig,
    /// Circuit breakers.
    pub breakers: BreakerConfig,
    /// The budget of invalid requests.
    pub invalid: InvalidConfig,
    /// For the jitter of cooldowns; should differ between processes.
    pub seed: u64,
    /// How limits are shared with other processes, if they are.
    pub shared: Option<SharedLimits>,
    /// What survives a restart, if anything does.
    pub snapshot: Option<SnapshotConfig>,
    /// How the global limit is divided among processes, if it is.
    pub divided: Option<DividedLimit>,
}

impl Gate {
    /// Starts a token bucket and a circuit breaker on the current thread, which must be within a `LocalSet` or an actix
    /// `System`, and a gate over both. The `lease` is checked just before every call is sent.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the guard is a field of the actor")]
    pub fn start(transport: impl Transport, config: GateConfig, lease: LeaseGuard) -> Arc<Self> {
        let clock = Clock::start();
        // At most this many invalid requests happen between two writes, if every call is one.
        let unsaved = config.limits.global;
        let breaker = CircuitBreaker::new(clock, config.breakers, config.invalid, config.seed);
        let bucket = TokenBucket::new(clock, config.limits);
        let breaker = match &config.divided {
            Some(divided) => breaker.with_allowance(divided.allowance.clone()),
            None => breaker,
        };
        let bucket = match (config.shared, config.divided) {
            (Some(shared), _) => bucket.with_shared_limits(shared),
            (None, Some(divided)) => bucket.with_divided_limit(divided),
            (None, None) => bucket,
        };
        let Some(snapshot) = config.snapshot else {
            let (tokens, breaker) = (TokenBucketHandle::new(bucket.run(), clock), breaker.start());
            return Self::with_snapshot(transport, breaker, tokens, clock, lease, None);
        };
        let dirty_flag = Arc::new(DirtyFlag::default());
        let breaker = breaker.with_dirty_flag(Arc::clone(&dirty_flag)).start();
        let tokens = TokenBucketHandle::new(bucket.with_dirty_flag(Arc::clone(&dirty_flag)).run(), clock);
        let snapshot_handle = SnapshotHandle::start(snapshot, dirty_flag, breaker.clone(), tokens.clone(), unsaved);
        Self::with_snapshot(transport, breaker, tokens, clock, lease, Some(snapshot_handle))
    }

    /// Saves the last snapshot. Call it when nothing more is to be sent: what happens after it is not saved.
    pub async fn save_snapshot(&self) {
        if let Some((handle, _)) = &self.snapshot_handle {
            handle.finish().await;
        }
    }

    /// The task that saves the snapshot, if there is one.
    pub(super) fn snapshot_handle(&self) -> Option<&SnapshotHandle> {
        self.snapshot_handle.as_ref().map(|(handle, _)| handle)
    }

    /// The breaker, for manual control and for calls to other upstreams.
    #[must_use]
    pub fn breaker(&self) -> &Addr<CircuitBreaker> {
        &self.breaker
    }

    /// Handle for the token bucket, for messages of other processes.
    #[must_use]
    pub fn tokens(&self) -> &TokenBucketHandle {
        &self.tokens
    }

    /// Creates a gate for running actors. It also sends the probes of the breaker. `clock` must be the clock of the
    /// actors.
    #[must_use]
    pub fn new(
        transport: impl Transport,
        breaker: Addr<CircuitBreaker>,
        tokens: TokenBucketHandle,
        clock: Clock,
    ) -> Arc<Self> {
        Self::with_snapshot(transport, breaker, tokens, clock, LeaseGuard::always(), None)
    }

    fn with_snapshot(
        transport: impl Transport,
        breaker: Addr<CircuitBreaker>,
        tokens: TokenBucketHandle,
        clock: Clock,
        lease: LeaseGuard,
        snapshot_handle: Option<(SnapshotHandle, RestoredReceiver)>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|gate: &Weak<Self>| {
            let (gate, weak_self) = (Weak::clone(gate), Weak::clone(gate));
            // Once, at the start: the mailbox has room.
            breaker.do_send(SetProber(Arc::new(move |probe| {
                if let Some(gate) = gate.upgrade() {
                    // A lost probe times out.
                    spawn_work(async move { gate.probe(probe).await });
                }
            })));
            Self {
                transport: Box::new(transport),
                breaker,
                tokens,
                clock,
                labels: Mutex::default(),
                lease,
                snapshot_handle,
                weak_self,
            }
        })
    }

    /// Waits until the stored state is loaded, or loading has failed: from then on calls can be sent.
    pub async fn ready(&self) {
        if let Some((_, restored)) = &self.snapshot_handle {
            // If the task has stopped, the process ends.
            let _ = restored.clone().wait_for(|restored| *restored).await;
        }
    }

    /// Waits until the snapshot is restored, which happens shortly after the start.
    async fn wait_until_restored(&self, max_wait: Duration, hook: &CommitHook) -> Result<(), NotSent> {
        let Some((_, restored)) = &self.snapshot_handle else { return Ok(()) };
        if *restored.borrow() {
            return Ok(());
        }
        hook.on_wait();
        let mut restored = restored.clone();
        let waited = timeout(max_wait, restored.wait_for(|restored| *restored)).await;
        match waited {
            Ok(Ok(_)) => Ok(()),
            // It will never be restored: the actors have stopped.
            Ok(Err(_)) => Err(shutting_down()),
            Err(_) => Err(NotSent {
                retry_after: Some(Duration::from_secs(1)),
                message: "the gate has not restored its snapshot yet".into(),
                reason: "recalling",
                bucket: None,
            }),
        }
    }

    async fn pass_through(&self, request: RestRequest) -> CallOutcome {
        if let Err(refused) = self.wait_until_restored(request.max_wait, &request.before_send).await {
            return CallOutcome::NotSent(refused);
        }
        let route = request.route(unix_now_ms().millis());
        let context = CallContext::of(&request);
        let (permit, pass) = match self.clear(&context, &route, &request.before_send).await {
            Ok(cleared) => cleared,
            Err(refused) => return CallOutcome::NotSent(refused),
        };
        let Some(gate) = self.weak_self.upgrade() else {
            return CallOutcome::NotSent(shutting_down());
        };
        // A separate task: Discord counts a call whose caller has gone away like any other, and so must the gate.
        let input = crash::current();
        let sent = spawn_work(async move {
            let sent = pin!(gate.send(request, &route, permit, pass));
            crash::with_input(input, sent).await
        });
        sent.await
            .unwrap_or_else(|_| CallOutcome::Unknown(NoResponse { message: "the process is shutting down".into() }))
    }

    /// Waits for everything that a send needs: a permit, a pass of the breaker, and the commit of the caller.
    async fn clear(&self, context: &CallContext, route: &Route, hook: &CommitHook) -> Result<(Permit, Pass), NotSent> {
        let (permit, pass) = self.permit_and_pass(context, route, hook).await?;
        let Some(before_send) = hook.get() else { return Ok((permit, pass)) };
        let mut commit = before_send.commit();
        match timeout(MAX_COMMIT_TIME, &mut commit).await {
            Ok(committed) => {
                committed?;
                if pass.is_current() || pass.is_probe() {
                    return Ok((permit, pass));
                }
                // A breaker has changed its state during the commit.
                drop(pass);
                Ok((permit, self.admit(context, route).await?))
            }
            Err(_) => {
                // Others must not wait for this caller's store. The commit stays valid while the call requests a permit
                // again.
                drop((permit, pass));
                commit.await?;
                self.permit_and_pass(context, route, &CommitHook::none()).await
            }
        }
    }

    async fn permit_and_pass(
        &self,
        context: &CallContext,
        route: &Route,
        hook: &CommitHook,
    ) -> Result<(Permit, Pass), NotSent> {
        let mut pass = self.admit(context, route).await?;
        let permit = self.permit(context, route, hook).await?;
        // During the wait a breaker may have opened, or the budget of invalid requests may be used up.
        if permit.has_waited() && !pass.is_probe() {
            drop(pass);
            pass = self.admit(context, route).await?;
        }
        Ok((permit, pass))
    }

    async fn admit(&self, context: &CallContext, route: &Route) -> Result<Pass, NotSent> {
        let call = CallInfo {
            credential: context.credential,
            route: route.key.clone(),
            major: route.major,
            lane: context.lane,
            guild: context.guild,
            submitter: context.submitter.clone(),
            may_probe: context.may_probe,
        };
        match self.breaker.send(AdmitFor { call, input: crash::current() }).await {
            Ok(Ok(pass)) => Ok(pass),
            Ok(Err(refused)) => Err(NotSent {
                retry_after: refused.until.map(|until| until.since(self.clock.now())),
                message: refused.to_string(),
                reason: refused.reason,
                bucket: None,
            }),
            Err(_) => Err(shutting_down()),
        }
    }

    async fn permit(&self, context: &CallContext, route: &Route, hook: &CommitHook) -> Result<Permit, NotSent> {
        let on_wait = hook.get().map(Arc::clone).map(|before_send| Box::new(move || before_send.on_wait()) as OnWait);
        let CallContext { credential, lane, caller, max_wait, .. } = context;
        let acquired =
            self.tokens.acquire_or_wait(*credential, route.clone(), *lane, *caller, *max_wait, on_wait).await;
        let refused = match acquired {
            Ok(permit) => return Ok(permit),
            Err(refused) => refused,
        };
        let is_of_route = refused.reason == DelayReason::Route.name();
        let bucket = if is_of_route { self.tokens.find_bucket(*credential, route.key.clone()).await } else { None };
        Err(NotSent { retry_after: refused.retry_after, message: refused.to_string(), reason: refused.reason, bucket })
    }

    async fn send(&self, mut request: RestRequest, route: &Route, mut permit: Permit, pass: Pass) -> CallOutcome {
        let guild = request.guild;
        let parent_trace = request.trace;
        request.trace = parent_trace.map(|trace| trace.child(fastrand::u64(..)));
        let trace = request.trace;
        let began = Instant::now();
        permit.sent();
        failpoint::pass(Point::BeforeSend);
        if !self.lease.holds() || !request.lease.holds() {
            // Another process may send it now, or could before this call had a response.
            drop(pass);
            permit.unused();
            emit(SendDenied { guild, trace });
            return CallOutcome::NotSent(lease_lost());
        }
        let received = self.transport.send(ClearedRequest::new(request)).await;
        failpoint::pass(Point::AfterSend);
        let elapsed = began.elapsed();
        let label = self.labels.lock().unwrap_or_else(PoisonError::into_inner).of(&route.key);
        // The time of an upload depends on the caller.
        let elapsed = elapsed.saturating_sub(received.as_ref().map_or(Duration::ZERO, |received| received.upload));
        let record = CallRecord { route: label, guild, elapsed, trace, parent: parent_trace.map(|trace| trace.span) };
        // The breaker is informed first: a call that the token bucket releases must see the new state of the breaker.
        match received {
            Ok(received) => {
                let kind = match received.class {
                    // The webhook of an interaction exists once the interaction has a response.
                    ResponseClass::WebhookGone if route.interaction => ResponseClass::NotFound,
                    class => class,
                };
                let _ = pass.report(CallResult::Answered(kind), elapsed);
                permit.answered(ResponseInfo { class: kind, rate: received.rate });
                let (status, class) = (received.status.as_u16(), kind.name());
                emit(CallAnswered { of: record, status, class });
                CallOutcome::Answered(RestResponse {
                    status: received.status,
                    headers: received.headers,
                    body: received.body,
                    stream: received.stream,
                    class: kind,
                    code: received.code,
                    elapsed,
                })
            }
            Err(error @ TransportError::Connect(_)) => {
                let _ = pass.report(CallResult::Unreachable, elapsed);
                permit.unused();
                emit(CallLost { of: record, result: "unreachable", reason: &error.to_string() });
                let retry_after = Some(Duration::from_secs(1));
                CallOutcome::NotSent(NotSent {
                    retry_after,
                    message: error.to_string(),
                    reason: "unreachable",
                    bucket: None,
                })
            }
            Err(error @ TransportError::Malformed(_)) => {
                // An error of the caller says nothing about Discord, and a retry does not help.
                drop(pass);
                permit.unused();
                CallOutcome::NotSent(NotSent {
                    retry_after: None,
                    message: error.to_string(),
                    reason: "malformed",
                    bucket: None,
                })
            }
            Err(error @ TransportError::Aborted(_)) => {
                // The same, but Discord may have seen a part of it.
                drop(pass);
                drop(permit);
                emit(CallLost { of: record, result: "aborted", reason: &error.to_string() });
                CallOutcome::Unknown(NoResponse { message: error.to_string() })
            }
            Err(error @ (TransportError::TimedOut | TransportError::Broken(_))) => {
                let result = if error == TransportError::TimedOut { CallResult::TimedOut } else { CallResult::Broken };
                let _ = pass.report(result, elapsed);
                // Dropped as sent: the call counts until it can no longer arrive.
                drop(permit);
                let result = if error == TransportError::TimedOut { "timed_out" } else { "broken" };
                emit(CallLost { of: record, result, reason: &error.to_string() });
                CallOutcome::Unknown(NoResponse { message: error.to_string() })
            }
        }
    }

    /// Sends a probe of the breaker, which is already admitted.
    async fn probe(&self, probe: ProbeRequest) {
        let mut request = RestRequest::new(Method::GET, probe.path(), probe.credential, LeaseGuard::always());
        request.lane = Lane::Interactive;
        request.max_wait = PROBE_WAIT;
        let route = request.route(unix_now_ms().millis());
        if let Ok(permit) = self.permit(&CallContext::of(&request), &route, &CommitHook::none()).await {
            let _ = self.send(request, &route, permit, probe.pass).await;
        }
    }

    /// Snapshot of limits and breakers. `None` if the process is shutting down.
    pub async fn observe(&self) -> Option<GateView> {
        let limits = self.tokens.observe().await?;
        let breakers = self.breaker.send(circuit_breaker::ObserveCircuitBreaker).await.ok()?;
        Some(GateView { limits, breakers })
    }
}

/// What breaker and token bucket need to know of a call; the body is only for the transport.
#[derive(Clone)]
struct CallContext {
    credential: Credential,
    lane: Lane,
    guild: Option<u64>,
    submitter: Submitter,
    caller: CallerId,
    may_probe: bool,
    max_wait: Duration,
}

impl CallContext {
    fn of(request: &RestRequest) -> Self {
        Self {
            credential: request.credential,
            lane: request.lane,
            guild: request.guild,
            submitter: request.submitter.clone(),
            caller: request.caller.as_deref().or(request.submitter.key.as_deref()).map_or(CallerId::NONE, CallerId::of),
            may_probe: request.effects != Effects::Creates,
            max_wait: request.max_wait,
        }
    }
}

/// Snapshot of the gate.
#[derive(Clone, Debug, serde::Serialize)]
pub struct GateView {
    /// The token bucket.
    pub limits: guildhall_core::limit::LimiterView,
    /// Breakers and the budget of invalid requests.
    pub breakers: circuit_breaker::CircuitBreakerSnapshot,
}

impl Rest for Gate {
    fn call(&self, request: RestRequest) -> CallFuture<'_> {
        Box::pin(self.pass_through(request))
    }
}

#[cfg(test)]
mod tests;
