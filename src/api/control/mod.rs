//! The API under `/v1`.
//!
//! ```text
//!  request ──▶ entry: key, policy, scope, body ──▶ handler: read ──▶ desk (on the daemon's runtime) ──▶ view ──▶ answer
//!                      └──────────────────────┴──────────────────────┴─▶ refusal ──▶ problem
//! ```
//!
//! It speaks to the desk alone. A caller that hangs up does not stop what it has asked for.

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

/// The API's bounds.
#[derive(Clone, Copy, Debug)]
pub struct ControlConfig {
    /// The largest body that is read.
    pub body_most: usize,
    /// How long a body may take to arrive.
    pub body_within: Duration,
    /// All bodies that are held at once.
    pub bodies_most: usize,
    /// Requests that are before the desk at once.
    pub calls_most: usize,
    /// The largest body of a submission.
    pub submission_most: usize,
    /// Submissions past the bound of other bodies that are held at once.
    pub large_most: usize,
    /// The bounds of streams.
    pub streams: StreamsConfig,
    /// The bounds of waiting for what was submitted.
    pub waits: CompletionConfig,
    /// How much each caller may ask.
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

/// What the API needs. It answers from the start, and says that it cannot do anything yet until the desk is there.
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
    /// Whether the process is about to end.
    draining: watch::Sender<bool>,
}

/// Operations as they change, and who waits for them.
struct ChangeFollower {
    changes: Arc<dyn ChangeFeed>,
    waits: CompletionWaiters,
}

impl std::fmt::Debug for ChangeFollower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChangeFollower").field("waits", &self.waits).finish_non_exhaustive()
    }
}

/// Where keys are kept.
#[derive(Clone)]
struct KeyStoreHandle(Arc<dyn KeyStore>);

impl std::fmt::Debug for KeyStoreHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys")
    }
}

impl Control {
    /// An API for whoever has this key.
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

    /// The same behind these proxies.
    #[must_use]
    pub fn behind(self, proxies: TrustedProxies) -> Self {
        Self { proxies: Arc::new(proxies), ..self }
    }

    /// From now on requests are counted together with other processes. A second one changes nothing.
    pub fn share_policies(&self, shared: Arc<dyn SharedPolicies>) {
        self.policies.share(shared);
    }

    /// Counts requests by these rates from now on. Where a policy has not changed, callers have what they had.
    pub fn set_policies(&self, policies: PoliciesConfig) {
        self.policies.reconfigure(policies);
    }

    /// From now on this is the desk. A second one changes nothing.
    pub fn open(&self, desk: Arc<OperationService>) {
        drop(self.desk.set(desk));
    }

    /// From now on this is where keys are, and notes of what was done with them. A second one changes nothing.
    pub fn open_keys(&self, keys: Arc<dyn KeyStore>) {
        drop(self.keys.set(KeyStoreHandle(keys)));
    }

    /// The same API, whose keys and records are by this clock. To be called before it is used.
    #[must_use]
    pub fn on_clock(self, clock: &WallClock) -> Self {
        let lookup = KeyLookup::new(Arc::clone(&self.keyring), clock.clone());
        Self { clock: clock.clone(), lookup, ..self }
    }

    /// From now on the admin key is the one whose digest is in the store of keys: another process may replace it.
    pub fn share_admin_key(&self) {
        self.key.share();
    }

    /// From now on operations can be followed here, and waited for. A second one changes nothing. To be called on the runtime
    /// that the store belongs to.
    pub fn open_changes(&self, changes: Arc<dyn ChangeFeed>) {
        let waits = self.config.waits;
        self.following.get_or_init(move || ChangeFollower {
            waits: CompletionWaiters::start(Arc::clone(&changes), waits),
            changes,
        });
    }

    /// From now on nothing new is taken, since the process is about to end. What is under way is finished; what would not end
    /// by itself ends: streams, and waiting for what was submitted.
    pub fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// From now on this is where values and dead events are. A second one changes nothing.
    pub fn open_shelf(&self, shelf: StateService) {
        drop(self.shelf.set(Arc::new(shelf)));
    }
}

/// The API as the listener's threads have it.
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

    /// Waits until nothing new is taken any more.
    fn drains(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut draining = self.control.draining.subscribe();
        async move {
            if draining.wait_for(|draining| *draining).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Operations as they change.
    fn following(&self) -> Result<&ChangeFollower, ProblemResponse> {
        self.control.following.get().ok_or_else(|| ProblemType::Starting.into())
    }

    /// Operations as they change, as far as they are a caller's.
    fn changes_for(&self, caller: &Caller) -> Result<Arc<dyn ChangeFeed>, ProblemResponse> {
        let changes = Arc::clone(&self.following()?.changes);
        Ok(match &caller.tenant {
            Some(tenant) => changes.within(Arc::clone(tenant)),
            None => changes,
        })
    }

    /// Where keys are looked up: not as a tenant, since whose key it is, is not known before.
    fn key_source(&self) -> Option<KeySource> {
        let KeyStoreHandle(keys) = self.control.keys.get()?;
        Some(KeySource { keys: Arc::clone(keys), runtime: self.runtime.clone() })
    }

    /// The key with this id, for a caller at this address; nothing if there is none. A result of a moment ago still holds.
    async fn look_up(&self, id: KeyId, from: IpAddr) -> Result<Option<Arc<ApiKey>>, ProblemResponse> {
        let source = self.key_source().ok_or(ProblemType::Starting)?;
        self.control.lookup.find(&source, id, policies::owner(from)).await.map_err(|error| match error {
            LookupError::Busy => ProblemType::Busy.says(format!("Nothing was done: {error}. Try again in a moment.")),
            LookupError::Store(error) => errors::of_store(&error),
        })
    }

    /// Writes down that somebody was not let. Nobody waits for it, and a key that is refused all the time is not written down
    /// all the time.
    fn refused(&self, caller: &Caller, what: String) {
        let Some(KeyStoreHandle(keys)) = self.control.keys.get().cloned() else { return };
        if self.control.keyring.writes_down(&caller.key, Instant::now()) {
            let note = caller.note(AuditAction::Refused, self.now()).saying(what);
            // A store that is away tells of itself.
            spawn_work_on(&self.runtime, async move { drop(keys.note(note).await) });
        }
    }

    /// Notes that a caller may not do an operation again, if that is why it was not done.
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

    /// Asks where keys and notes are, as whoever asks: a caller with a tenant is told of that tenant's alone.
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

    /// Asks the desk, on the runtime that it belongs to: what it needs lives there, and a caller that hangs up does not stop
    /// it half way.
    async fn ask<T, F>(&self, question: impl FnOnce(Arc<OperationService>) -> F) -> Result<T, ProblemResponse>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let desk = self.control.desk.get().ok_or(ProblemType::Starting)?;
        self.run(|| question(Arc::clone(desk))).await
    }

    /// The same of what bots keep.
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
                    "The process is ending. Ask another one, or this one again; what has an idempotency key is never accepted \
                     twice with the same one.",
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
