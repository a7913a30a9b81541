//! Webhooks: each event is a signed POST request to the brain, and the response says what to do.
//!
//! ```text
//!  WebhookClient::ask ──▶ in-flight limit of this webhook ──▶ its breaker ──▶ sign ──▶ a checked address ──http(s)──▶ brain
//!                                                                ▲                                                  │
//!  WebhookResponse, or when to retry ◀── trusted? ◀── parse ◀────┴───────────── status, body ◀──────────────────────┘
//! ```
//!
//! Webhooks share only the process: each has its own connections, in-flight limit and breaker, so that one that hangs
//! delays only its own events. Nothing is retried here; the caller decides about retries.

mod address;
mod client;
mod connect;
mod error;
mod events;
mod resolve;
mod response;
mod secret;
mod signature;
mod target;
mod trust;

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use guildhall_actors::wall_clock::WallClock;

use actix::Addr;
use guildhall_actors::circuit_breaker::{CallError, CircuitBreaker};
use guildhall_actors::ports::{WebhookBody, WebhookCall, WebhookCallFuture, WebhookClient, WebhookResponse};
use guildhall_core::trace::TraceContext;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use self::client::TargetClient;
pub(crate) use self::client::{ConnectionProbe, probe_target};
use self::error::WebhookRequestError;
use self::events::WebhookCalled;
pub use self::resolve::{LookupFuture, Resolver, SystemResolver};
pub use self::response::DefaultTtl;
pub use self::secret::{Secret, SecretError};
pub use self::target::{TargetProblem, WebhookTarget, WebhookTargetError};
pub(crate) use self::trust::may_be_plain;
use crate::events::{FailureLog, emit};
use crate::net;

/// Configuration of webhooks.
#[derive(Clone, Debug)]
pub struct WebhookConfig {
    /// Connect timeout, including the lookup of the name and TLS.
    pub connect_timeout: Duration,
    /// Maximum size of a response.
    pub max_response_bytes: usize,
    /// Maximum number of requests to one webhook in flight.
    pub max_in_flight: usize,
    /// Maximum number of further requests that wait; more are rejected with a retry.
    pub max_waiting: usize,
    /// Time after which an unused connection is closed. Most servers close theirs after 5 s; a request that is sent at
    /// that moment is lost.
    pub pool_idle: Duration,
    /// Maximum `Retry-After` that is respected.
    pub max_retry_after: Duration,
    /// Time to live of stored values that do not set one.
    pub default_ttl: DefaultTtl,
    /// PEM file of certificate authorities to trust in addition to the public ones.
    pub ca_file: Option<PathBuf>,
    /// Clock for the timestamps of signatures.
    pub clock: WallClock,
}

impl Default for WebhookConfig {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(2),
            max_response_bytes: 1024 * 1024,
            max_in_flight: 64,
            max_waiting: 1_024,
            pool_idle: Duration::from_secs(4),
            max_retry_after: Duration::from_secs(600),
            default_ttl: DefaultTtl::default(),
            ca_file: None,
            clock: WallClock::system(),
        }
    }
}

/// A webhook and its limits.
struct Webhook {
    client: TargetClient,
    /// Limits requests in flight and waiting requests together.
    queue_slots: Semaphore,
    in_flight: Semaphore,
    failures: FailureLog,
}

/// The webhooks of all handlers that have one. Their breakers are those of the process, with the key
/// `target:<handler>`.
pub struct Webhooks {
    webhooks: HashMap<Arc<str>, Webhook>,
    breaker: Addr<CircuitBreaker>,
    /// Failures of handlers without a webhook.
    unknown_failures: FailureLog,
}

impl fmt::Debug for Webhooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhooks").field("handlers", &self.webhooks.keys()).finish_non_exhaustive()
    }
}

impl Webhooks {
    /// Creates webhooks, without connections. Names are looked up with the system's resolver.
    ///
    /// # Errors
    ///
    /// Returns all errors of the targets and of the file of certificate authorities that can be found without a
    /// connection.
    pub fn new(
        targets: Vec<WebhookTarget>,
        config: &WebhookConfig,
        breaker: Addr<CircuitBreaker>,
    ) -> Result<Self, WebhookTargetError> {
        Self::with_resolver(targets, config, breaker, &(Arc::new(SystemResolver) as Arc<dyn Resolver>))
    }

    /// The same, with another resolver.
    ///
    /// # Errors
    ///
    /// See [`Webhooks::new`].
    pub fn with_resolver(
        targets: Vec<WebhookTarget>,
        config: &WebhookConfig,
        breaker: Addr<CircuitBreaker>,
        resolver: &Arc<dyn Resolver>,
    ) -> Result<Self, WebhookTargetError> {
        let mut problems = target::problems(&targets);
        let tls = net::tls::authorities(config.ca_file.as_deref());
        let path = config.ca_file.clone().unwrap_or_default();
        let tls = tls.map_err(|reason| problems.push(TargetProblem::CaFile { path, reason }));
        let (Ok(tls), true) = (tls, problems.is_empty()) else { return Err(WebhookTargetError { problems }) };
        let in_flight = config.max_in_flight.max(1);
        let webhook = |target: WebhookTarget| {
            let client = TargetClient::new(&target, config, &tls, resolver.clone());
            let client = client.expect("invariant: a target without problems has a host, a port and a URI");
            let places = Semaphore::new(in_flight.saturating_add(config.max_waiting).min(Semaphore::MAX_PERMITS));
            let failures = FailureLog::new("webhook");
            (target.handler, Webhook { client, queue_slots: places, in_flight: Semaphore::new(in_flight), failures })
        };
        let webhooks = targets.into_iter().map(webhook).collect();
        Ok(Self { webhooks, breaker, unknown_failures: FailureLog::new("webhook") })
    }

    async fn send(
        &self,
        request: &WebhookCall,
        body: &WebhookBody,
        trace: TraceContext,
    ) -> (Result<WebhookResponse, WebhookRequestError>, Option<Duration>) {
        let deadline = Instant::now() + request.timeout;
        let Some(webhook) = self.webhooks.get(&request.handler) else {
            return (Err(WebhookRequestError::NoWebhook), None);
        };
        let Ok(_place) = webhook.queue_slots.try_acquire() else { return (Err(WebhookRequestError::Busy), None) };
        let Ok(Ok(_turn)) = timeout_at(deadline, webhook.in_flight.acquire()).await else {
            return (Err(WebhookRequestError::Busy), None);
        };

        let started = Instant::now();
        let remaining = deadline.saturating_duration_since(started);
        let call = async {
            match webhook.client.exchange(body, trace).await {
                Err(error) if error.is_outage() => Err(error),
                outcome => Ok(outcome),
            }
        };
        let outcome = match CircuitBreaker::call(&self.breaker, &request.handler, remaining, call).await {
            Ok(outcome) => outcome,
            Err(CallError::Open { retry_after, reason, .. }) => {
                return (Err(WebhookRequestError::BreakerOpen { reason, retry_after }), None);
            }
            Err(CallError::TimedOut) => Err(WebhookRequestError::TimedOut(request.timeout)),
            Err(CallError::Failed(error)) => Err(error),
        };
        (outcome, Some(started.elapsed()))
    }
}

impl WebhookClient for Webhooks {
    fn call(&self, request: WebhookCall, body: WebhookBody) -> WebhookCallFuture<'_> {
        Box::pin(async move {
            // Each request has its own span.
            let trace = request.trace.child(fastrand::u64(..));
            let (outcome, elapsed) = self.send(&request, &body, trace).await;
            let (handler, asked_by, error) = (&request.handler, request.trace.span, outcome.as_ref().err());
            let failures = self.webhooks.get(handler).map_or(&self.unknown_failures, |webhook| &webhook.failures);
            let summary = match error {
                None => {
                    failures.on_success_of(handler);
                    None
                }
                // Not called: the breaker reports that.
                Some(WebhookRequestError::BreakerOpen { .. }) => None,
                Some(_) => failures.on_failure(),
            };
            emit(WebhookCalled { handler, id: &body.id, trace, parent: asked_by, error, elapsed, summary });
            Ok(outcome?)
        })
    }
}
