//! The gate: the one way for a call to reach Discord.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use actix::{Actor, Addr};
use guildhall_core::breaker::{BreakerConfig, CallInfo, CallResult};
use guildhall_core::invalid::{InvalidConfig, Submitter};
use guildhall_core::lane::Lane;
use guildhall_core::limit::LimitConfig;
use guildhall_core::response::{Credential, ResponseInfo};
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

/// How long a probe of the breaker's own waits for its turn.
const PROBE_WAIT: Duration = Duration::from_secs(5);

/// How long a permit is held for a call whose caller is committing. Past it, others may use it, and the call asks for another
/// once the commit is done.
const LONGEST_COMMIT: Duration = Duration::from_secs(1);

/// The local gate. It alone holds the transport, so that no call can go around it.
pub struct Gate {
    transport: Box<dyn Transport>,
    breaker: Addr<CircuitBreaker>,
    tokens: TokenBucketHandle,
    clock: Clock,
    labels: Mutex<RouteLabels>,
    /// The right of this process to send anything at all.
    lease: LeaseGuard,
    /// Who keeps what must not be forgotten, and whether it has recalled what was; nobody if nothing is kept.
    keeper: Option<(SnapshotHandle, RestoredReceiver)>,
    /// Itself, for the tasks that calls are sent in.
    own: Weak<Self>,
}

/// What a call is told when there is nobody left to admit it.
fn ending() -> NotSent {
    // The next process can make it.
    NotSent { retry_after: Some(Duration::from_secs(1)), why: "the process is ending".into(), reason: "shutting_down" }
}

/// What a call is told whose caller has lost the right to make it.
fn denied() -> NotSent {
    NotSent {
        retry_after: Some(Duration::from_secs(1)),
        why: "this process's lease has run out, or another process looks after the guild now".into(),
        reason: "lease_lost",
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}

/// How a gate counts.
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
    /// What outlives the process, if anything does.
    pub memory: Option<SnapshotConfig>,
    /// How the global limit is divided among processes, if it is.
    pub divided: Option<DividedLimit>,
}

impl Gate {
    /// Starts a token bucket and a circuit breaker on the current thread, which must be within a `LocalSet` or an actix
    /// `System`, and a gate over both. The `lease` is checked just before every call is sent.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "its guard is a field of the actor")]
    pub fn start(transport: impl Transport, config: GateConfig, lease: LeaseGuard) -> Arc<Self> {
        let clock = Clock::start();
        // As many invalid requests may be made between two writes, if every call is one.
        let unkept = config.limits.global;
        let breaker = CircuitBreaker::new(clock, config.breakers, config.invalid, config.seed);
        let bucket = TokenBucket::new(clock, config.limits);
        let breaker = match &config.divided {
            Some(divided) => breaker.divided(divided.allowance.clone()),
            None => breaker,
        };
        let bucket = match (config.shared, config.divided) {
            (Some(shared), _) => bucket.sharing(shared),
            (None, Some(divided)) => bucket.divided(divided),
            (None, None) => bucket,
        };
        let Some(memory) = config.memory else {
            let (tokens, breaker) = (TokenBucketHandle::new(bucket.run(), clock), breaker.start());
            return Self::with_keeper(transport, breaker, tokens, clock, lease, None);
        };
        let bell = Arc::new(DirtyFlag::default());
        let breaker = breaker.remembering(Arc::clone(&bell)).start();
        let tokens = TokenBucketHandle::new(bucket.remembering(Arc::clone(&bell)).run(), clock);
        let keeper = SnapshotHandle::start(memory, bell, breaker.clone(), tokens.clone(), unkept);
        Self::with_keeper(transport, breaker, tokens, clock, lease, Some(keeper))
    }

    /// Keeps what must not be forgotten a last time. To be called when nothing more is to be sent: what happens after it is
    /// not kept.
    pub async fn remember(&self) {
        if let Some((keeper, _)) = &self.keeper {
            keeper.end().await;
        }
    }

    /// Who stores what must not be forgotten, if anything does.
    pub(super) fn keeper(&self) -> Option<&SnapshotHandle> {
        self.keeper.as_ref().map(|(keeper, _)| keeper)
    }

    /// The breaker, for people who force or reset it, and for calls to other upstreams.
    #[must_use]
    pub fn breaker(&self) -> &Addr<CircuitBreaker> {
        &self.breaker
    }

    /// The way to the token bucket, for what other processes have to tell it.
    #[must_use]
    pub fn tokens(&self) -> &TokenBucketHandle {
        &self.tokens
    }

    /// A gate over running actors, which also sends the breaker's own probes. `clock` must be the actors' own.
    #[must_use]
    pub fn new(
        transport: impl Transport,
        breaker: Addr<CircuitBreaker>,
        tokens: TokenBucketHandle,
        clock: Clock,
    ) -> Arc<Self> {
        Self::with_keeper(transport, breaker, tokens, clock, LeaseGuard::always(), None)
    }

    fn with_keeper(
        transport: impl Transport,
        breaker: Addr<CircuitBreaker>,
        tokens: TokenBucketHandle,
        clock: Clock,
        lease: LeaseGuard,
        keeper: Option<(SnapshotHandle, RestoredReceiver)>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|gate: &Weak<Self>| {
            let (gate, own) = (Weak::clone(gate), Weak::clone(gate));
            // Once, at the start: there is room in the mailbox.
            breaker.do_send(SetProber(Arc::new(move |probe| {
                if let Some(gate) = gate.upgrade() {
                    // A probe that is lost times out.
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
                keeper,
                own,
            }
        })
    }

    /// Waits until the stored state is loaded, or could not be: from then on calls may go.
    pub async fn ready(&self) {
        if let Some((_, recalled)) = &self.keeper {
            // If the task is gone, the process ends.
            let _ = recalled.clone().wait_for(|recalled| *recalled).await;
        }
    }

    /// Waits until what must not be forgotten is known again, which is a matter of the first moments.
    async fn recalled(&self, max_wait: Duration, hook: &CommitHook) -> Result<(), NotSent> {
        let Some((_, recalled)) = &self.keeper else { return Ok(()) };
        if *recalled.borrow() {
            return Ok(());
        }
        hook.on_wait();
        let mut recalled = recalled.clone();
        let waited = timeout(max_wait, recalled.wait_for(|recalled| *recalled)).await;
        match waited {
            Ok(Ok(_)) => Ok(()),
            // Nobody will ever recall: the actors are gone.
            Ok(Err(_)) => Err(ending()),
            Err(_) => Err(NotSent {
                retry_after: Some(Duration::from_secs(1)),
                why: "the gate has not recalled yet what it must not forget".into(),
                reason: "recalling",
            }),
        }
    }

    async fn pass_through(&self, request: RestRequest) -> CallOutcome {
        if let Err(refused) = self.recalled(request.max_wait, &request.before_send).await {
            return CallOutcome::NotSent(refused);
        }
        let route = request.route(unix_ms());
        let about = CallContext::of(&request);
        let (permit, pass) = match self.clear(&about, &route, &request.before_send).await {
            Ok(cleared) => cleared,
            Err(refused) => return CallOutcome::NotSent(refused),
        };
        let Some(gate) = self.own.upgrade() else {
            return CallOutcome::NotSent(ending());
        };
        // A task of its own: Discord counts a call whose caller has gone away like any other, and so must we.
        let input = crash::current();
        let sent = spawn_work(async move {
            let sent = pin!(gate.send(request, &route, permit, pass));
            crash::within(input, sent).await
        });
        sent.await.unwrap_or_else(|_| CallOutcome::Unknown(NoResponse { why: "the process is ending".into() }))
    }

    /// Waits for leave to send: a permit, a pass of the breaker, and the caller's own commit.
    async fn clear(&self, about: &CallContext, route: &Route, hook: &CommitHook) -> Result<(Permit, Pass), NotSent> {
        let (permit, pass) = self.permit_and_pass(about, route, hook).await?;
        let Some(by) = hook.get() else { return Ok((permit, pass)) };
        let mut commit = by.commit();
        match timeout(LONGEST_COMMIT, &mut commit).await {
            Ok(committed) => {
                committed?;
                if pass.is_current() || pass.is_probe() {
                    return Ok((permit, pass));
                }
                // A breaker has opened or closed during the commit.
                drop(pass);
                Ok((permit, self.admit(about, route).await?))
            }
            Err(_) => {
                // Others need not wait for this caller's store. What is committed stays so while it asks again.
                drop((permit, pass));
                commit.await?;
                self.permit_and_pass(about, route, &CommitHook::none()).await
            }
        }
    }

    async fn permit_and_pass(
        &self,
        about: &CallContext,
        route: &Route,
        hook: &CommitHook,
    ) -> Result<(Permit, Pass), NotSent> {
        let mut pass = self.admit(about, route).await?;
        let permit = self.permit(about, route, hook).await?;
        // Whoever waited may find the breaker open that was closed before, or the budget of invalid requests spent.
        if permit.has_waited() && !pass.is_probe() {
            drop(pass);
            pass = self.admit(about, route).await?;
        }
        Ok((permit, pass))
    }

    async fn admit(&self, about: &CallContext, route: &Route) -> Result<Pass, NotSent> {
        let call = CallInfo {
            credential: about.credential,
            route: route.key.clone(),
            major: route.major,
            lane: about.lane,
            guild: about.guild,
            submitter: about.submitter.clone(),
            may_probe: about.may_probe,
        };
        match self.breaker.send(AdmitFor { call, input: crash::current() }).await {
            Ok(Ok(pass)) => Ok(pass),
            Ok(Err(refused)) => Err(NotSent {
                retry_after: refused.until.map(|until| until.since(self.clock.now())),
                why: refused.to_string(),
                reason: refused.reason,
            }),
            Err(_) => Err(ending()),
        }
    }

    async fn permit(&self, about: &CallContext, route: &Route, hook: &CommitHook) -> Result<Permit, NotSent> {
        let on_wait = hook.get().map(Arc::clone).map(|by| Box::new(move || by.on_wait()) as OnWait);
        let CallContext { credential, lane, max_wait, .. } = about;
        let acquired = self.tokens.acquire_or_wait(*credential, route.clone(), *lane, *max_wait, on_wait).await;
        acquired.map_err(|refused| NotSent {
            retry_after: refused.retry_after,
            why: refused.to_string(),
            reason: refused.reason,
        })
    }

    async fn send(&self, mut request: RestRequest, route: &Route, mut permit: Permit, pass: Pass) -> CallOutcome {
        let guild = request.guild;
        let asked_by = request.trace;
        request.trace = asked_by.map(|trace| trace.child(fastrand::u64(..)));
        let trace = request.trace;
        let began = Instant::now();
        permit.sent();
        failpoint::pass(Point::BeforeSend);
        if !self.lease.holds() || !request.right.holds() {
            // It is somebody else's to send now, or will be before this could have an answer.
            drop(pass);
            permit.unused();
            emit(SendDenied { guild, trace });
            return CallOutcome::NotSent(denied());
        }
        let received = self.transport.send(ClearedRequest::new(request)).await;
        failpoint::pass(Point::AfterSend);
        let took = began.elapsed();
        let label = self.labels.lock().unwrap_or_else(PoisonError::into_inner).of(&route.key);
        let of = CallRecord { route: label, guild, took, trace, asked_by: asked_by.map(|trace| trace.span) };
        // The breaker hears of it first: whoever is let go by what the token bucket learns must find what the breaker did.
        match received {
            Ok(received) => {
                let _ = pass.report(CallResult::Answered(received.class), took);
                permit.answered(ResponseInfo { class: received.class, rate: received.rate });
                let (status, class) = (received.status.as_u16(), received.class.name());
                emit(CallAnswered { of, status, class });
                CallOutcome::Answered(RestResponse {
                    status: received.status,
                    headers: received.headers,
                    body: received.body,
                    class: received.class,
                    code: received.code,
                })
            }
            Err(error @ TransportError::Connect(_)) => {
                let _ = pass.report(CallResult::Unreachable, took);
                permit.unused();
                emit(CallLost { of, result: "unreachable", why: &error.to_string() });
                let retry_after = Some(Duration::from_secs(1));
                CallOutcome::NotSent(NotSent { retry_after, why: error.to_string(), reason: "unreachable" })
            }
            Err(error @ TransportError::Malformed(_)) => {
                // The caller's own mistake says nothing about Discord, and trying again does not help.
                drop(pass);
                permit.unused();
                CallOutcome::NotSent(NotSent { retry_after: None, why: error.to_string(), reason: "malformed" })
            }
            Err(error @ (TransportError::TimedOut | TransportError::Broken(_))) => {
                let result = if error == TransportError::TimedOut { CallResult::TimedOut } else { CallResult::Broken };
                let _ = pass.report(result, took);
                // Dropped as sent: the call counts until it can no longer arrive.
                drop(permit);
                let result = if error == TransportError::TimedOut { "timed_out" } else { "broken" };
                emit(CallLost { of, result, why: &error.to_string() });
                CallOutcome::Unknown(NoResponse { why: error.to_string() })
            }
        }
    }

    /// Sends a probe that the breaker asked for, and has admitted.
    async fn probe(&self, probe: ProbeRequest) {
        let mut request = RestRequest::new(Method::GET, probe.path(), probe.credential);
        request.lane = Lane::Interactive;
        request.max_wait = PROBE_WAIT;
        let route = request.route(unix_ms());
        if let Ok(permit) = self.permit(&CallContext::of(&request), &route, &CommitHook::none()).await {
            let _ = self.send(request, &route, permit, probe.pass).await;
        }
    }

    /// What is to be seen of limits and breakers; `None` if the process is ending.
    pub async fn observe(&self) -> Option<GateView> {
        let limits = self.tokens.observe().await?;
        let breakers = self.breaker.send(circuit_breaker::ObserveCircuitBreaker).await.ok()?;
        Some(GateView { limits, breakers })
    }
}

/// What breaker and token bucket ask of a call; its body is nobody's business but the transport's.
#[derive(Clone)]
struct CallContext {
    credential: Credential,
    lane: Lane,
    guild: Option<u64>,
    submitter: Submitter,
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
            may_probe: request.effects != Effects::Creates,
            max_wait: request.max_wait,
        }
    }
}

/// What is to be seen of the gate.
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

/// The wall clock, which tells how old a message is.
fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "pipeline_tests.rs"]
mod tests;
