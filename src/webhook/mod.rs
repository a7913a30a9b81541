//! Brains behind an address: each event is a signed POST, and the answer says what to do.
//!
//! ```text
//!  Brain::ask ──▶ a turn of this webhook ──▶ its breaker ──▶ sign ──▶ a checked address ──http(s)──▶ brain
//!                                               ▲                                                      │
//!  Said, or when to try again ◀── trusted? ◀── read ◀────┴───────────── status, answer ◀───────────────┘
//! ```
//!
//! Webhooks share nothing but the process: each has its own connections, its own turns and its own breaker, so that one
//! that hangs holds back only its own events. Nothing is retried here; whoever asks decides that.

mod address;
mod client;
mod connect;
mod error;
mod events;
mod resolve;
mod response;
mod retry_after;
mod secret;
mod signature;
mod target;
mod tls;
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
use self::error::WebhookRequestError;
use self::events::WebhookCalled;
pub use self::resolve::{LookupFuture, Resolver, SystemResolver};
pub use self::response::DefaultTtl;
pub use self::secret::{Secret, SecretError};
pub use self::target::{Target, TargetError, TargetProblem};
pub(crate) use self::tls::trusting;
pub(crate) use self::trust::may_be_plain;
use crate::events::emit;

/// What webhooks need to know.
#[derive(Clone, Debug)]
pub struct WebhookConfig {
    /// How long it may take to get a connection: the lookup of the name and TLS included.
    pub connect_timeout: Duration,
    /// The largest answer that is read.
    pub max_answer_bytes: usize,
    /// How many requests to one webhook are under way at once.
    pub max_in_flight: usize,
    /// How many more wait for their turn; whoever comes then is told to come later.
    pub max_waiting: usize,
    /// How long an unused connection is kept. Most servers close theirs after 5 s; a request that meets that moment is lost.
    pub pool_idle: Duration,
    /// The longest `Retry-After` that is heeded.
    pub max_retry_after: Duration,
    /// How long values are kept that do not say so.
    pub kept_for: DefaultTtl,
    /// A file of authorities that are trusted besides those everybody trusts.
    pub ca_file: Option<PathBuf>,
    /// What requests are signed by.
    pub clock: WallClock,
}

impl Default for WebhookConfig {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(2),
            max_answer_bytes: 1024 * 1024,
            max_in_flight: 64,
            max_waiting: 1_024,
            pool_idle: Duration::from_secs(4),
            max_retry_after: Duration::from_secs(600),
            kept_for: DefaultTtl::default(),
            ca_file: None,
            clock: WallClock::system(),
        }
    }
}

/// One webhook, and who may use it.
struct Webhook {
    client: TargetClient,
    /// Of those that are under way and those that wait for it.
    places: Semaphore,
    turns: Semaphore,
}

/// The brains of all handlers that have a webhook. Breakers are those of the process, by the name `target:<handler>`.
pub struct Webhooks {
    webhooks: HashMap<Arc<str>, Webhook>,
    breaker: Addr<CircuitBreaker>,
}

impl fmt::Debug for Webhooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhooks").field("handlers", &self.webhooks.keys()).finish_non_exhaustive()
    }
}

impl Webhooks {
    /// Webhooks with no connection yet. Names are looked up as the system does it.
    ///
    /// # Errors
    ///
    /// All that is wrong with the targets and the file of authorities, as far as that can be seen without calling anybody.
    pub fn new(
        targets: Vec<Target>,
        config: &WebhookConfig,
        breaker: Addr<CircuitBreaker>,
    ) -> Result<Self, TargetError> {
        Self::with_resolver(targets, config, breaker, &(Arc::new(SystemResolver) as Arc<dyn Resolver>))
    }

    /// The same, but names are looked up elsewhere.
    ///
    /// # Errors
    ///
    /// See [`Webhooks::new`].
    pub fn with_resolver(
        targets: Vec<Target>,
        config: &WebhookConfig,
        breaker: Addr<CircuitBreaker>,
        resolve: &Arc<dyn Resolver>,
    ) -> Result<Self, TargetError> {
        let mut problems = target::problems(&targets);
        let tls = trusting(config.ca_file.as_deref());
        let path = config.ca_file.clone().unwrap_or_default();
        let tls = tls.map_err(|why| problems.push(TargetProblem::Authorities { path, why }));
        let (Ok(tls), true) = (tls, problems.is_empty()) else { return Err(TargetError { problems }) };
        let in_flight = config.max_in_flight.max(1);
        let webhook = |target: Target| {
            let client = TargetClient::new(&target, config, &tls, resolve.clone());
            let client = client.expect("invariant: a target without problems has a host, a port and a URI");
            let places = Semaphore::new(in_flight.saturating_add(config.max_waiting).min(Semaphore::MAX_PERMITS));
            (target.handler, Webhook { client, places, turns: Semaphore::new(in_flight) })
        };
        Ok(Self { webhooks: targets.into_iter().map(webhook).collect(), breaker })
    }

    async fn tell(
        &self,
        asks: &WebhookCall,
        body: &WebhookBody,
        trace: TraceContext,
    ) -> (Result<WebhookResponse, WebhookRequestError>, Option<Duration>) {
        let deadline = Instant::now() + asks.within;
        let Some(webhook) = self.webhooks.get(&asks.handler) else { return (Err(WebhookRequestError::Unknown), None) };
        let Ok(_place) = webhook.places.try_acquire() else { return (Err(WebhookRequestError::Busy), None) };
        let Ok(Ok(_turn)) = timeout_at(deadline, webhook.turns.acquire()).await else {
            return (Err(WebhookRequestError::Busy), None);
        };

        let began = Instant::now();
        let left = deadline.saturating_duration_since(began);
        let call = async {
            match webhook.client.exchange(body, trace).await {
                Err(fault) if fault.is_outage() => Err(fault),
                ended => Ok(ended),
            }
        };
        let ended = match CircuitBreaker::call(&self.breaker, &asks.handler, left, call).await {
            Ok(ended) => ended,
            Err(CallError::Open { retry_after, reason, .. }) => {
                return (Err(WebhookRequestError::Open { reason, retry_after }), None);
            }
            Err(CallError::TimedOut) => Err(WebhookRequestError::TimedOut(asks.within)),
            Err(CallError::Failed(fault)) => Err(fault),
        };
        (ended, Some(began.elapsed()))
    }
}

impl WebhookClient for Webhooks {
    fn ask(&self, asks: WebhookCall, body: WebhookBody) -> WebhookCallFuture<'_> {
        Box::pin(async move {
            // A part of its own for each request.
            let trace = asks.trace.child(fastrand::u64(..));
            let (ended, took) = self.tell(&asks, &body, trace).await;
            let (handler, asked_by, fault) = (&asks.handler, asks.trace.span, ended.as_ref().err());
            emit(WebhookCalled { handler, id: &body.id, trace, asked_by, fault, took });
            Ok(ended?)
        })
    }
}
