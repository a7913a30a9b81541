//! The API under `/v1`.
//!
//! ```text
//!  request ─▶ middleware: key, policy, scope, body ─▶ handler: params ─▶ service (daemon's runtime) ─▶ dto ─▶ response
//!                      └──────────────────────┴──────────────────────┴─▶ errors ──▶ problem
//! ```
//!
//! Handlers call services only. A caller that closes its connection does not stop the work that it requested.

mod audit;
mod breakers;
mod budgets;
mod dead_letters;
mod dto;
mod erase;
mod errors;
mod guilds;
mod instances;
mod keys;
mod limits;
mod middleware;
mod operations;
mod params;
mod prefer;
mod prefer_wait;
mod reload;
mod routes;
mod services;
mod shards;
mod state;
mod stream;
mod timeline;
mod usage;

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
use guildhall_actors::access::{AuditAction, Caller};
use guildhall_actors::policies::SharedPolicies;
use guildhall_actors::ports::{ApiKey, ChangeFeed, KeyStore};
use guildhall_actors::submission::{CompletionConfig, CompletionWaiters, OperationError, OperationService};
use guildhall_actors::supervision::spawn_work_on;
use guildhall_actors::wall_clock::WallClock;
use guildhall_core::{access::KeyId, time::UnixMs};
use tokio::{
    runtime::Handle,
    sync::{Semaphore, watch},
};

pub use self::{
    reload::{Reload, ReloadError, ReloadFuture, ReloadReport, ReloadedItem},
    routes::{Route, WAYS},
    services::{GateService, ShardService},
    state::StateService,
    stream::StreamsConfig,
};
use self::{services::Services, stream::StreamLimit};
use super::{
    admin_key::AdminKey,
    body::BodyMemory,
    client_address::TrustedProxies,
    key_lookup::{KeyLookup, KeySource, LookupError},
    keyring::Keyring,
    operator_key::OperatorKey,
    policies::{self, PoliciesConfig, PolicyLimiter},
    problem::{ProblemResponse, ProblemType},
};

/// Limits of the API.
#[derive(Clone, Copy, Debug)]
pub struct ControlConfig {
    /// Maximum size of a body.
    pub body_most: usize,
    /// How long a body may take to arrive.
    pub body_within: Duration,
    /// Maximum size of all bodies in memory.
    pub bodies_most: usize,
    /// Maximum number of concurrent service calls.
    pub calls_most: usize,
    /// Maximum size of the body of a submission.
    pub submission_most: usize,
    /// Maximum number of submissions in memory that are larger than other bodies may be.
    pub large_most: usize,
    /// Limits of streams.
    pub streams: StreamsConfig,
    /// Limits of waiting for submissions.
    pub waits: CompletionConfig,
    /// Rate limits of callers.
    pub policies: PoliciesConfig,
}

impl Default for ControlConfig {
    fn default() -> Self {
        Self {
            body_most: 1024 * 1024,
            body_within: Duration::from_secs(10),
            bodies_most: 64 * 1024 * 1024,
            calls_most: 512,
            submission_most: 8 * 1024 * 1024,
            large_most: 4,
            streams: StreamsConfig::default(),
            waits: CompletionConfig::default(),
            policies: PoliciesConfig::default(),
        }
    }
}

/// What the API needs. It responds from the start, with `starting` until the services are set.
#[derive(Clone, Debug)]
pub struct Control {
    key: Arc<OperatorKey>,
    config: ControlConfig,
    desk: Arc<OnceLock<Arc<OperationService>>>,
    shelf: Arc<OnceLock<Arc<StateService>>>,
    keys: Arc<OnceLock<KeyStoreHandle>>,
    desks: Arc<Services>,
    keyring: Arc<Keyring>,
    lookup: KeyLookup,
    clock: WallClock,
    calls: Arc<Semaphore>,
    large: Arc<Semaphore>,
    following: Arc<OnceLock<ChangeFollower>>,
    streams: Arc<StreamLimit>,
    policies: Arc<PolicyLimiter>,
    proxies: Arc<TrustedProxies>,
    room: BodyMemory,
    /// Whether the process is shutting down.
    draining: watch::Sender<bool>,
}

/// The change feed of operations, and the callers that wait for operations.
struct ChangeFollower {
    changes: Arc<dyn ChangeFeed>,
    waits: CompletionWaiters,
}

impl std::fmt::Debug for ChangeFollower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChangeFollower").field("waits", &self.waits).finish_non_exhaustive()
    }
}

/// The store of API keys.
#[derive(Clone)]
struct KeyStoreHandle(Arc<dyn KeyStore>);

impl std::fmt::Debug for KeyStoreHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys")
    }
}

impl Control {
    /// An API with this admin key.
    #[must_use]
    pub fn new(key: AdminKey, config: ControlConfig) -> Self {
        let keyring = Arc::<Keyring>::default();
        Self {
            key: Arc::new(OperatorKey::new(key)),
            config,
            desk: Arc::default(),
            shelf: Arc::default(),
            keys: Arc::default(),
            desks: Arc::default(),
            lookup: KeyLookup::new(Arc::clone(&keyring), WallClock::system()),
            clock: WallClock::system(),
            keyring,
            calls: Arc::new(Semaphore::new(config.calls_most)),
            large: Arc::new(Semaphore::new(config.large_most)),
            following: Arc::default(),
            streams: Arc::new(StreamLimit::new(config.streams.most, config.streams.most_per_key)),
            policies: Arc::new(PolicyLimiter::new(config.policies)),
            proxies: Arc::default(),
            room: BodyMemory::new(config.bodies_most),
            draining: watch::Sender::new(false),
        }
    }

    /// Sets the trusted proxies.
    #[must_use]
    pub fn behind(self, proxies: TrustedProxies) -> Self {
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

    /// Sets the operation service. Only the first call has an effect.
    pub fn open(&self, desk: Arc<OperationService>) {
        drop(self.desk.set(desk));
    }

    /// Sets the store of keys and audit records. Only the first call has an effect.
    pub fn open_keys(&self, keys: Arc<dyn KeyStore>) {
        drop(self.keys.set(KeyStoreHandle(keys)));
    }

    /// Sets the clock for keys and audit records. Must be called before the API is used.
    #[must_use]
    pub fn on_clock(self, clock: &WallClock) -> Self {
        let lookup = KeyLookup::new(Arc::clone(&self.keyring), clock.clone());
        Self { clock: clock.clone(), lookup, ..self }
    }

    /// From now on the admin key is the one whose digest is in the store of keys: another process may replace it.
    pub fn share_admin_key(&self) {
        self.key.share();
    }

    /// Sets the change feed, by which operations can be followed and waited for. Only the first call has an effect.
    /// Must be called on the runtime that the store belongs to.
    pub fn open_changes(&self, changes: Arc<dyn ChangeFeed>) {
        let waits = self.config.waits;
        self.following.get_or_init(move || ChangeFollower {
            waits: CompletionWaiters::start(Arc::clone(&changes), waits),
            changes,
        });
    }

    /// Stops accepting requests, because the process is shutting down. Requests in flight are finished; those that
    /// would not end by themselves are ended: streams, and waiting for submissions.
    pub fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// Sets the service for state values and dead events. Only the first call has an effect.
    pub fn open_shelf(&self, shelf: StateService) {
        drop(self.shelf.set(Arc::new(shelf)));
    }
}

/// The API, as the listener's threads use it.
pub(crate) struct AppState {
    control: Control,
    runtime: Handle,
    clock: WallClock,
}

impl AppState {
    pub(crate) fn new(control: Control, runtime: Handle) -> Self {
        Self { clock: control.clock.clone(), control, runtime }
    }

    fn now(&self) -> UnixMs {
        self.clock.now()
    }

    fn is_draining(&self) -> bool {
        *self.control.draining.borrow()
    }

    /// Waits until requests are no longer accepted.
    fn drains(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut draining = self.control.draining.subscribe();
        async move {
            if draining.wait_for(|draining| *draining).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// The change feed and its waiters.
    fn following(&self) -> Result<&ChangeFollower, ProblemResponse> {
        self.control.following.get().ok_or_else(|| ProblemType::Starting.into())
    }

    /// The change feed, restricted to the tenant of a caller.
    fn changes_for(&self, caller: &Caller) -> Result<Arc<dyn ChangeFeed>, ProblemResponse> {
        let changes = Arc::clone(&self.following()?.changes);
        Ok(match &caller.tenant {
            Some(tenant) => changes.within(Arc::clone(tenant)),
            None => changes,
        })
    }

    /// The source for key look-ups: without a tenant, which is not known before the look-up.
    fn key_source(&self) -> Option<KeySource> {
        let KeyStoreHandle(keys) = self.control.keys.get()?;
        Some(KeySource { keys: Arc::clone(keys), runtime: self.runtime.clone() })
    }

    /// The key with this id, for a caller at this address; `None` if it does not exist. Recent results are cached.
    async fn look_up(&self, id: KeyId, from: IpAddr) -> Result<Option<Arc<ApiKey>>, ProblemResponse> {
        let source = self.key_source().ok_or(ProblemType::Starting)?;
        self.control.lookup.find(&source, id, policies::owner(from)).await.map_err(|error| match error {
            LookupError::Busy => ProblemType::Busy.says(format!(
                "The request had no effect: {error}. Retry in a \
                moment."
            )),
            LookupError::Store(error) => errors::of_store(&error),
        })
    }

    /// Records in the audit that a caller was rejected. The response does not wait for it, and only a few rejections of
    /// one key are recorded.
    fn refused(&self, caller: &Caller, what: String) {
        let Some(KeyStoreHandle(keys)) = self.control.keys.get().cloned() else { return };
        if self.control.keyring.writes_down(&caller.key, Instant::now()) {
            let note = caller.note(AuditAction::Refused, self.now()).saying(what);
            // The store reports its own errors.
            spawn_work_on(&self.runtime, async move { drop(keys.note(note).await) });
        }
    }

    /// Records that a caller may not redrive an operation, if that is the cause of the error.
    fn refused_again(&self, caller: &Caller, error: &OperationError) {
        match error {
            OperationError::Forbidden { .. } | OperationError::Elsewhere { .. } => {
                self.refused(caller, error.to_string());
            }
            OperationError::NoOperation(_)
            | OperationError::NoGuild(_)
            | OperationError::NoLetter(_)
            | OperationError::Unfit { .. }
            | OperationError::Tried { .. }
            | OperationError::AlreadyRedriven { .. }
            | OperationError::NotReceived(_)
            | OperationError::Submit(_) => {}
        }
    }

    /// Runs a query on the store of keys and audit records, restricted to the tenant of the caller.
    async fn ask_keys<T, F>(
        &self,
        request: &HttpRequest,
        question: impl FnOnce(Arc<dyn KeyStore>) -> F,
    ) -> Result<T, ProblemResponse>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let KeyStoreHandle(keys) = self.control.keys.get().ok_or(ProblemType::Starting)?;
        let keys = Arc::clone(keys);
        let keys = match middleware::caller_of(request).tenant {
            Some(tenant) => keys.within(tenant),
            None => keys,
        };
        self.run(|| question(keys)).await
    }

    /// Runs a call of the operation service on its own runtime: its resources belong there, and a caller that closes
    /// its connection does not stop it half way.
    async fn ask<T, F>(&self, question: impl FnOnce(Arc<OperationService>) -> F) -> Result<T, ProblemResponse>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let desk = self.control.desk.get().ok_or(ProblemType::Starting)?;
        self.run(|| question(Arc::clone(desk))).await
    }

    /// Runs a call of the state service.
    async fn ask_shelf<T, F>(&self, question: impl FnOnce(Arc<StateService>) -> F) -> Result<T, ProblemResponse>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let shelf = self.control.shelf.get().ok_or(ProblemType::Starting)?;
        self.run(|| question(Arc::clone(shelf))).await
    }

    async fn run<T, F>(&self, work: impl FnOnce() -> F) -> Result<T, ProblemResponse>
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
                ProblemType::StoreUnavailable.says(
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
pub(crate) fn routes(config: &mut web::ServiceConfig, served: &Data<AppState>) {
    let api = web::scope(routes::ROOT).wrap(from_fn(middleware::admit)).default_service(web::to(middleware::answer));
    config.app_data(served.clone()).service(api);
}
