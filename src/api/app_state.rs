//! The API under `/v1`.
//!
//! ```text
//!  request ─▶ middleware: key, policy, scope, body ─▶ handler: params ─▶ service (daemon's runtime) ─▶ dto ─▶ response
//!                      └──────────────────────┴──────────────────────┴─▶ errors ──▶ problem
//! ```
//!
//! Handlers call services only. A caller that closes its connection does not stop the work that it requested.

use std::{
    future::Future,
    net::IpAddr,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use actix_web::{
    HttpRequest,
    middleware::from_fn,
    web::{self, Data},
};
use guildhall_actors::access::{AuditAction, Caller, ErasureStore};
use guildhall_actors::policies::SharedPolicies;
use guildhall_actors::ports::{ApiKey, ChangeFeed, KeyStore};
use guildhall_actors::submission::{CompletionConfig, CompletionWaiters, OperationError};
use guildhall_actors::supervision::spawn_work_on;
use guildhall_actors::wall_clock::WallClock;
use guildhall_core::{
    access::{KeyId, ParsedKey},
    time::UnixMs,
};
use tokio::{
    runtime::Handle,
    sync::{Semaphore, watch},
};

use super::egress_usage::EgressUsageService;
use super::handlers::stream::StreamLimit;
use super::handlers::stream::StreamsConfig;
use super::services::{GateService, GatewayServices, Services};
use super::{
    admin_key::AdminKey,
    body::BodyMemory,
    client_address::TrustedProxies,
    key_lookup::{KeyLookup, KeySource, LookupError},
    keyring::{self, KeyRejection, Keyring},
    operator_key::OperatorKey,
    policies::{self, PoliciesConfig, PolicyLimiter},
    problem::{ProblemResponse, ProblemType},
};
use super::{errors, middleware, routes};

/// Limits of the API.
#[derive(Clone, Copy, Debug)]
pub struct ControlConfig {
    /// Maximum size of a body.
    pub max_body: usize,
    /// How long a body may take to arrive.
    pub body_timeout: Duration,
    /// Maximum size of all bodies in memory.
    pub max_bodies: usize,
    /// Maximum number of concurrent service calls.
    pub max_calls: usize,
    /// Maximum size of the body of a submission.
    pub max_submission: usize,
    /// Maximum number of submissions in memory that are larger than other bodies may be.
    pub max_large_bodies: usize,
    /// Limits of streams.
    pub streams: StreamsConfig,
    /// Limits of waiting for submissions.
    pub completion: CompletionConfig,
    /// Rate limits of callers.
    pub policies: PoliciesConfig,
}

impl Default for ControlConfig {
    fn default() -> Self {
        Self {
            max_body: 1024 * 1024,
            body_timeout: Duration::from_secs(10),
            max_bodies: 64 * 1024 * 1024,
            max_calls: 512,
            max_submission: 8 * 1024 * 1024,
            max_large_bodies: 4,
            streams: StreamsConfig::default(),
            completion: CompletionConfig::default(),
            policies: PoliciesConfig::default(),
        }
    }
}

/// The API. It responds from the start, and reports that the daemon is starting until its services are published.
#[derive(Clone)]
pub struct Control {
    pub(crate) key: Arc<OperatorKey>,
    pub(crate) config: ControlConfig,
    pub(crate) keys: Option<Arc<dyn KeyStore>>,
    pub(crate) erasure: Option<Arc<dyn ErasureStore>>,
    pub(crate) gate: Option<GateService>,
    pub(crate) services: Arc<OnceLock<Services>>,
    pub(crate) gateway_services: Arc<OnceLock<GatewayServices>>,
    /// Usage of the REST proxy, if that is enabled.
    pub(crate) egress: Arc<OnceLock<EgressUsageService>>,
    pub(crate) follower: Arc<OnceLock<ChangeFollower>>,
    pub(crate) keyring: Arc<Keyring>,
    pub(crate) lookup: KeyLookup,
    pub(crate) clock: WallClock,
    pub(crate) calls: Arc<Semaphore>,
    pub(crate) large: Arc<Semaphore>,
    pub(crate) streams: Arc<StreamLimit>,
    pub(crate) policies: Arc<PolicyLimiter>,
    pub(crate) proxies: Arc<TrustedProxies>,
    pub(crate) body_memory: BodyMemory,
    /// Whether the process is shutting down.
    pub(crate) draining: watch::Sender<bool>,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Operations as they change, and the requests that wait for them.
pub(crate) struct ChangeFollower {
    pub(crate) changes: Arc<dyn ChangeFeed>,
    pub(crate) waiters: CompletionWaiters,
}

impl Control {
    /// An API with this admin key.
    #[must_use]
    pub fn new(key: AdminKey, config: ControlConfig) -> Self {
        let keyring = Arc::<Keyring>::default();
        Self {
            key: Arc::new(OperatorKey::new(key)),
            config,
            keys: None,
            erasure: None,
            gate: None,
            services: Arc::default(),
            gateway_services: Arc::default(),
            egress: Arc::default(),
            lookup: KeyLookup::new(Arc::clone(&keyring), WallClock::system()),
            clock: WallClock::system(),
            keyring,
            calls: Arc::new(Semaphore::new(config.max_calls)),
            large: Arc::new(Semaphore::new(config.max_large_bodies)),
            follower: Arc::default(),
            streams: Arc::new(StreamLimit::new(config.streams.max, config.streams.max_per_key)),
            policies: Arc::new(PolicyLimiter::new(config.policies)),
            proxies: Arc::default(),
            body_memory: BodyMemory::new(config.max_bodies),
            draining: watch::Sender::new(false),
        }
    }

    /// Sets the trusted proxies.
    #[must_use]
    pub fn with_proxies(self, proxies: TrustedProxies) -> Self {
        Self { proxies: Arc::new(proxies), ..self }
    }

    /// From now on requests are counted together with other processes. Only the first call has an effect.
    pub fn share_policies(&self, shared: Arc<dyn SharedPolicies>) {
        self.policies.share(shared);
    }

    /// Applies these rates from now on. Where a policy has not changed, callers keep their level.
    pub fn set_policies(&self, policies: PoliciesConfig) {
        self.policies.reconfigure(policies);
    }

    /// Sets the store of keys and audit records.
    #[must_use]
    pub fn with_keys(self, keys: Arc<dyn KeyStore>) -> Self {
        Self { keys: Some(keys), ..self }
    }

    /// Sets the store that erases data of users and guilds.
    #[must_use]
    pub fn with_erasure(self, erasure: Arc<dyn ErasureStore>) -> Self {
        Self { erasure: Some(erasure), ..self }
    }

    /// Sets the gate.
    #[must_use]
    pub fn with_gate(self, gate: GateService) -> Self {
        Self { gate: Some(gate), ..self }
    }

    /// Publishes the services that exist once operations run. Only the first call has an effect. Must be called on the runtime
    /// that the store belongs to.
    pub fn publish(&self, services: Services) {
        if let Some(changes) = services.changes.clone() {
            self.follower.get_or_init(|| ChangeFollower {
                waiters: CompletionWaiters::start(Arc::clone(&changes), self.config.completion),
                changes,
            });
        }
        drop(self.services.set(services));
    }

    /// Publishes the services that exist once the gateway is known. Only the first call has an effect.
    pub fn publish_gateway(&self, services: GatewayServices) {
        drop(self.gateway_services.set(services));
    }

    /// Publishes the usage of the REST proxy. Only the first call has an effect.
    pub fn publish_egress(&self, usage: EgressUsageService) {
        drop(self.egress.set(usage));
    }

    /// Sets the clock for keys and audit records. Must be called before the API is used.
    #[must_use]
    pub fn with_clock(self, clock: &WallClock) -> Self {
        let lookup = KeyLookup::new(Arc::clone(&self.keyring), clock.clone());
        Self { clock: clock.clone(), lookup, ..self }
    }

    /// From now on the admin key is the one whose digest is in the store of keys: another process may replace it.
    pub fn share_admin_key(&self) {
        self.key.enable_sharing();
    }

    /// Stops accepting requests, because the process is shutting down. Requests in flight are finished; those that
    /// would not end by themselves are ended: streams, and waiting for submissions.
    pub fn drain(&self) {
        self.draining.send_replace(true);
    }
}

/// The API, as the listener's threads use it.
pub(crate) struct AppState {
    pub(crate) control: Control,
    pub(crate) runtime: Handle,
    clock: WallClock,
}

impl AppState {
    pub(crate) fn new(control: Control, runtime: Handle) -> Self {
        Self { clock: control.clock.clone(), control, runtime }
    }

    pub(crate) fn now(&self) -> UnixMs {
        self.clock.now()
    }

    pub(crate) fn is_draining(&self) -> bool {
        *self.control.draining.borrow()
    }

    pub(crate) fn services(&self) -> Option<&Services> {
        self.control.services.get()
    }

    pub(crate) fn gateway_services(&self) -> Option<&GatewayServices> {
        self.control.gateway_services.get()
    }

    pub(crate) fn gate(&self) -> Result<GateService, ProblemResponse> {
        self.control.gate.clone().ok_or_else(|| ProblemType::Starting.into())
    }

    pub(crate) fn erasure(&self) -> Result<Arc<dyn ErasureStore>, ProblemResponse> {
        self.control.erasure.clone().ok_or_else(|| ProblemType::Starting.into())
    }

    pub(crate) fn key_store(&self) -> Result<Arc<dyn KeyStore>, ProblemResponse> {
        self.control.keys.clone().ok_or_else(|| ProblemType::Starting.into())
    }

    /// Waits until requests are no longer accepted.
    pub(crate) fn wait_for_drain(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut draining = self.control.draining.subscribe();
        async move {
            if draining.wait_for(|draining| *draining).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// The change feed and its waiters.
    pub(crate) fn follower(&self) -> Result<&ChangeFollower, ProblemResponse> {
        self.control.follower.get().ok_or_else(|| ProblemType::Starting.into())
    }

    /// The change feed, restricted to the tenant of a caller.
    pub(crate) fn changes_for(&self, caller: &Caller) -> Result<Arc<dyn ChangeFeed>, ProblemResponse> {
        let changes = Arc::clone(&self.follower()?.changes);
        Ok(match &caller.tenant {
            Some(tenant) => changes.for_tenant(Arc::clone(tenant)),
            None => changes,
        })
    }

    /// The source for key look-ups: without a tenant, which is not known before the look-up.
    pub(crate) fn key_source(&self) -> Option<KeySource> {
        let keys = self.control.keys.clone()?;
        Some(KeySource { keys, runtime: self.runtime.clone() })
    }

    /// The key with this id, for a caller at this address; `None` if it does not exist. Recent results are cached.
    pub(crate) async fn look_up(&self, id: KeyId, from: IpAddr) -> Result<Option<Arc<ApiKey>>, ProblemResponse> {
        let source = self.key_source().ok_or(ProblemType::Starting)?;
        self.control.lookup.find(&source, id, policies::owner(from)).await.map_err(|error| match error {
            LookupError::Busy => ProblemType::Busy.with_detail(format!(
                "The request had no effect: {error}. Retry in a \
                moment."
            )),
            LookupError::Store(error) => errors::store_problem(&error),
        })
    }

    /// The caller with this key, or why the key is not accepted.
    pub(crate) async fn authenticate(
        &self,
        presented: &str,
        request: Arc<str>,
        from: IpAddr,
    ) -> Result<Result<Caller, KeyRejection>, ProblemResponse> {
        if self.control.key.matches(presented, || self.key_source()).await {
            return Ok(Ok(Caller { request, ..Caller::operator() }));
        }
        let Some(presented) = ParsedKey::read(presented) else { return Ok(Err(KeyRejection::Invalid)) };
        let Some(api_key) = self.look_up(presented.id, from).await? else { return Ok(Err(KeyRejection::Invalid)) };
        Ok(keyring::authenticate(&api_key, &presented, self.now(), request))
    }

    /// Records in the audit that a caller was rejected. The response does not wait for it, and only a few rejections of
    /// one key are recorded.
    pub(crate) fn audit_rejection(&self, caller: &Caller, detail: String) {
        let Some(keys) = self.control.keys.clone() else { return };
        if self.control.keyring.should_audit_rejection(&caller.key, Instant::now()) {
            let note = caller.audit_record(AuditAction::Refused, self.now()).with_detail(detail);
            // The store reports its own errors.
            spawn_work_on(&self.runtime, async move { drop(keys.add_audit_record(note).await) });
        }
    }

    /// Records in the audit that a key has changed something through the REST proxy. The response does not wait for it.
    pub(crate) fn audit_write(&self, caller: &Caller, detail: String) {
        let Some(keys) = self.control.keys.clone() else { return };
        let note = caller.audit_record(AuditAction::EgressWrite, self.now()).with_detail(detail);
        // The store reports its own errors.
        spawn_work_on(&self.runtime, async move { drop(keys.add_audit_record(note).await) });
    }

    /// Records that a caller may not redrive an operation, if that is the cause of the error.
    pub(crate) fn audit_redrive_rejection(&self, caller: &Caller, error: &OperationError) {
        match error {
            OperationError::Forbidden { .. } | OperationError::ForeignTarget { .. } => {
                self.audit_rejection(caller, error.to_string());
            }
            OperationError::OperationNotFound(_)
            | OperationError::GuildNotFound(_)
            | OperationError::DeadLetterNotFound(_)
            | OperationError::WrongState { .. }
            | OperationError::AlreadyAttempted { .. }
            | OperationError::AlreadyRedriven { .. }
            | OperationError::NotReceived(_)
            | OperationError::Submit(_) => {}
        }
    }

    /// Runs a query on the store of keys and audit records, restricted to the tenant of the caller.
    pub(crate) async fn with_keys<T, F>(
        &self,
        request: &HttpRequest,
        question: impl FnOnce(Arc<dyn KeyStore>) -> F,
    ) -> Result<T, ProblemResponse>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let keys = self.key_store()?;
        let keys = match middleware::caller_of(request).tenant {
            Some(tenant) => keys.for_tenant(tenant),
            None => keys,
        };
        self.run(|| question(keys)).await
    }

    pub(crate) async fn run<T, F>(&self, work: impl FnOnce() -> F) -> Result<T, ProblemResponse>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let permit = Arc::clone(&self.control.calls).try_acquire_owned().map_err(|_| ProblemType::Busy)?;
        let answer = work();
        let task = spawn_work_on(&self.runtime, async move {
            let answer = answer.await;
            drop(permit);
            answer
        });
        task.await.map_err(|error| {
            if error.is_cancelled() {
                ProblemType::StoreUnavailable.with_detail(
                    "The process is shutting down. Retry with another process, or with this one later; operations with \
                     an idempotency key are accepted only once.",
                )
            } else {
                ProblemType::Internal.into()
            }
        })
    }
}

/// Adds the API to an app.
pub(crate) fn routes(config: &mut web::ServiceConfig, app: &Data<AppState>) {
    let api = web::scope(routes::ROOT).wrap(from_fn(middleware::admit)).default_service(web::to(middleware::dispatch));
    config.app_data(app.clone()).service(api);
}
