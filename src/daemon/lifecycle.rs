//! Starts and stops the components of the daemon.

use std::{collections::BTreeSet, fmt, io, net::SocketAddr, sync::Arc, time::Duration};

use guildhall_actors::access::{RoleCache, RoleCacheConfig};
use guildhall_actors::crash::Crash;
use guildhall_actors::gate::Rest;
use guildhall_actors::ports::{EventStore, IdempotencyCache, OperationStore};
use guildhall_actors::shard::{GuildRecorder, ShardEvent, ShardObserver};
use guildhall_actors::supervision::{PartEnd, Supervision};
use guildhall_actors::telemetry::crash::CrashRecorded;
use guildhall_core::{event::handler::EventHandlers, response::Credential};
use metrics_exporter_prometheus::BuildError;
use tokio::time::{Instant, timeout_at};

use super::admin_key::{AcceptedAdminKey, LocalAdminKey};
use super::api_component::{self, ApiComponent, ApiHandle, BoundApi};
use super::budgets_component::BudgetsComponent;
use super::discovery::{self, DiscoveryError};
use super::egress_component::EgressComponent;
use super::events_component::{self, EventsComponent, WebhookError};
use super::gate_component::GateComponent;
use super::gateway_component::GatewayComponent;
use super::identity::{self, BotIdentity};
use super::interactions_component::InteractionsComponent;
use super::operations_component::OperationsComponent;
use super::redis_component::RedisComponent;
use super::reload::{ReloadTargets, Reloader};
use super::rest_component::{GateState, RestComponent, RestError};
use super::shards_component::{ShardDependencies, ShardsComponent};
use super::telemetry_component::TelemetryComponent;
use crate::api::{
    BindError, CertificatesError, ComponentHandle, Control, GateService, GatewayServices, Readiness, Services,
    ShardService, StateService,
};
use crate::broker::{Broker, BrokerConfigError};
use crate::clock::Clocks;
use crate::discord::executor::{DiscordExecutor, ExecutorConfig};
use crate::discord::{FatalClose, ShardEnd};
use crate::egress::{EgressConfig, SocketError};
use crate::events::{DaemonStarted, LimitSharingChosen, emit};
use crate::settings::{BotTokenError, Settings};
use crate::store::{OpenError, Store};

/// Timeout for recording the input on which a part panicked: half of the time in which a process must end.
const CRASH_RECORD_TIMEOUT: Duration = Duration::from_millis(300);

/// The daemon cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is no token, or it cannot be used.
    #[error(transparent)]
    Token(#[from] BotTokenError),
    /// The address cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] CertificatesError),
    /// A bot token of the REST proxy cannot be used.
    #[error("{0}")]
    TokenFile(String),
    /// The listener cannot start.
    #[error("cannot serve the API: {0}")]
    Serve(#[source] io::Error),
    /// The listener of the REST proxy cannot start.
    #[error("cannot serve the REST proxy: {0}")]
    ServeEgress(#[source] io::Error),
    /// The socket of the REST proxy cannot be created.
    #[error(transparent)]
    EgressSocket(#[from] SocketError),
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// Metrics cannot be recorded.
    #[error("cannot record metrics: {0}")]
    Metrics(#[from] BuildError),
    /// Spans cannot be exported.
    #[error("{0}")]
    Spans(String),
    /// Calls to Discord cannot be made.
    #[error(transparent)]
    Rest(#[from] RestError),
    /// A webhook cannot be used.
    #[error(transparent)]
    Webhook(#[from] WebhookError),
    /// The broker cannot be used.
    #[error(transparent)]
    Broker(#[from] BrokerConfigError),
    /// A thread for shards cannot be started.
    #[error("cannot start a thread for the shards: {0}")]
    Threads(#[source] io::Error),
    /// The gateway cannot be used.
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
}

/// Why a daemon ends by itself.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// Discord rejected a shard permanently.
    #[error(transparent)]
    Refused(#[from] FatalClose),
}

/// How long a process waits for its gate before it takes its share of the work. A gate opens within a window; one that takes
/// longer is blocked, and so are probably those of other processes.
const GATE_OPEN_TIMEOUT: Duration = Duration::from_secs(3);

/// What had not finished when a shutdown timed out.
#[derive(Debug, thiserror::Error)]
pub struct ShutdownTimeout {
    timeout: Duration,
    shards: Vec<u32>,
    events: bool,
    operations: bool,
    listener: bool,
}

impl fmt::Display for ShutdownTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMED: usize = 10;
        write!(f, "the shutdown took longer than shutdown.timeout_ms = {}; not finished:", self.timeout.as_millis())?;
        let named: Vec<_> = self.shards.iter().take(NAMED).map(ToString::to_string).collect();
        if !named.is_empty() {
            write!(f, " shards {}", named.join(", "))?;
        }
        if self.shards.len() > NAMED {
            write!(f, " and {} more", self.shards.len() - NAMED)?;
        }
        let mut comma = if named.is_empty() { "" } else { "," };
        if self.events {
            write!(f, "{comma} events that were not handled, which are delivered again")?;
            comma = ",";
        }
        if self.operations {
            write!(f, "{comma} operations in flight, which the next process continues")?;
            comma = ",";
        }
        if self.listener {
            write!(f, "{comma} the API listener")?;
        }
        Ok(())
    }
}

/// The components that `/readyz` lists, before they are ready. All are registered before the API responds.
struct Parts {
    gateway: ComponentHandle,
    store: ComponentHandle,
    gate: ComponentHandle,
    operations: ComponentHandle,
    events: ComponentHandle,
    redis: Option<ComponentHandle>,
    broker: Option<ComponentHandle>,
}

impl Parts {
    fn register(readiness: &Readiness, settings: &Settings) -> Self {
        Self {
            gateway: readiness.register("gateway"),
            store: readiness.register("store"),
            gate: readiness.register("gate"),
            operations: readiness.register("operations"),
            events: readiness.register("events"),
            redis: settings.redis.url.is_some().then(|| readiness.register("redis")),
            broker: settings.broker.url.is_some().then(|| readiness.register("broker")),
        }
    }
}

/// The running daemon.
#[derive(Debug)]
pub struct Daemon {
    readiness: Readiness,
    clocks: Clocks,
    identity: BotIdentity,
    telemetry: TelemetryComponent,
    rest: RestComponent,
    api: ApiComponent,
    _redis: RedisComponent,
    _gate: GateComponent,
    budgets: BudgetsComponent,
    operations: OperationsComponent,
    events: EventsComponent,
    interactions: InteractionsComponent,
    egress: EgressComponent,
    shards: ShardsComponent,
}

impl Daemon {
    /// Starts the components one after the other. The API responds as soon as the store is open and the gate exists; it reports
    /// what the daemon waits for. `handle` can close it before the daemon has started. `observer` receives the status events of
    /// shards; it is called on their threads and must not block.
    ///
    /// # Errors
    ///
    /// When there is no usable token, the address or the store cannot be used, or the process has started a daemon before.
    pub async fn start(
        settings: &Settings,
        handlers: EventHandlers,
        key: &LocalAdminKey,
        handle: &ApiHandle,
        reloader: &Reloader,
        observer: impl Fn(ShardEvent) + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        let token = settings.discord.bot_token()?;
        let handler_count = handlers.len();
        // Before anything is logged: an address or a store that is in use should be the only line.
        let bound_api = BoundApi::bind(&settings.api)?;
        let bound_interactions = InteractionsComponent::bind(&settings.interactions)?;
        let bound_egress = EgressComponent::bind(&settings.egress)?;
        let store = Store::open_arriving(&settings.store).await?;
        let clocks = store.clocks().clone();
        let readiness = Readiness::default();
        supervise(&readiness, &store);
        let parts = Parts::register(&readiness, settings);

        let telemetry = TelemetryComponent::start(settings, &handlers).map_err(abandon)?;
        let rest =
            RestComponent::start(settings, token.clone(), GateState::Store(&store, clocks.clone())).map_err(abandon)?;
        emit(LimitSharingChosen { sharing: rest.sharing().name(), limit: settings.gate.limits.global });
        let key = key.resolve(&settings.store).await.map_err(abandon)?;
        let control = control(settings, &key, &store, &rest);
        let delay = settings.shutdown.delay;
        let api = ApiComponent::start(bound_api, control, &readiness, telemetry.recorder(), handle, delay)
            .map_err(abandon)?;
        key.log_location();

        let redis = RedisComponent::start(&rest.gate, parts.redis).await;
        let gate = GateComponent::start(&rest.gate, parts.gate).await;
        let spend = Arc::new(store.clone());
        let budgets = BudgetsComponent::start(settings, &rest, spend, clocks.store_time()).await;
        let identity =
            identity::find(&token, rest.gate.as_ref(), &rest.calls, &parts.gateway).await.map_err(abandon)?;
        let roles = Arc::new(RoleCache::new(RoleCacheConfig {
            max_age: settings.operations.role_max_age,
            ..RoleCacheConfig::default()
        }));
        let operations = OperationsComponent::start(
            settings,
            identity.application.get(),
            store.clone(),
            Arc::new(executor(&rest, &identity, &store, &roles)),
            rest.idempotency().map(|cache| Arc::new(cache) as Arc<dyn IdempotencyCache>),
            Arc::clone(&roles),
            parts.store,
        );
        rest.gate.on_release(operations.release_listener());
        api.control.publish(Services {
            operations: Some(Arc::clone(operations.service())),
            changes: Some(operations.changes()),
            budgets: Some(Arc::clone(budgets.service())),
        });
        parts.operations.ready();
        let egress = EgressComponent::start(bound_egress, |address| EgressConfig {
            settings: &settings.egress,
            address,
            control: api.control.clone(),
            gate: Arc::clone(&rest.gate),
            executor: executor(&rest, &identity, &store, &roles),
            authorization: rest.authorization.clone(),
            credential: rest.credential(),
            store: store.clone(),
        })
        .map_err(abandon)?;
        operations.arrive_when(rest.wait_until_open(GATE_OPEN_TIMEOUT));

        let sessions: Arc<dyn EventStore> = Arc::new(store.clone());
        let stored_sessions = events_component::load_sessions(&*sessions, &parts.gateway).await;
        let info = discovery::find(settings, rest.gate.as_ref(), &rest.calls, &stored_sessions, &parts.gateway)
            .await
            .map_err(abandon)?;
        let gateway = Arc::new(GatewayComponent::new(parts.gateway));
        let broker = broker(settings, parts.broker).map_err(abandon)?;
        let prepared = EventsComponent::prepare(
            settings,
            handlers,
            Arc::clone(&sessions),
            Arc::new(store.clone()),
            &rest,
            broker,
            Arc::clone(operations.service()),
            info.shards,
            &clocks.store_time(),
        )
        .map_err(abandon)?;
        let events = EventsComponent::start(prepared);
        parts.events.ready();
        let handle = events.events().clone();
        let interactions = InteractionsComponent::start(
            bound_interactions,
            &settings.interactions,
            handle.clone(),
            clocks.store_time(),
        )
        .map_err(abandon)?;
        let total = info.shards;
        let shards_of_process = format!("{} of {total}", info.range);
        let guilds = GuildRecorder::start(Arc::new(store.clone()), settings.gateway.max_guilds);
        let dependencies = ShardDependencies {
            token,
            info,
            gateway: Arc::clone(&gateway),
            store: store.clone(),
            events: handle.clone(),
            observer: shard_observer(roles, guilds, gateway, observer),
        };
        let shards = ShardsComponent::start(settings, dependencies).map_err(abandon)?;
        api.control.publish_gateway(GatewayServices {
            state: Some(Arc::new(StateService {
                values: Arc::new(store.clone()),
                store: Arc::clone(&sessions),
                events: handle,
                clock: clocks.store_time(),
            })),
            shards: Some(ShardService { admin: shards.admin(events.events(), total), sessions }),
            reload: Some(Arc::new(reloader.clone())),
        });
        let daemon = Self {
            readiness,
            clocks,
            identity,
            telemetry,
            rest,
            api,
            _redis: redis,
            _gate: gate,
            budgets,
            operations,
            events,
            interactions,
            egress,
            shards,
        };
        reloader.attach(daemon.reload_targets());
        let interactions = settings.interactions.public_key.map(|_| "interactions");
        let parts: Vec<_> = ["api"].into_iter().chain(daemon.readiness.parts()).chain(interactions).collect();
        emit(DaemonStarted {
            version: env!("CARGO_PKG_VERSION"),
            parts: &parts.join(","),
            store: settings.store.url.engine(),
            handlers: handler_count,
            shards: &shards_of_process,
        });
        Ok(daemon)
    }

    fn reload_targets(&self) -> ReloadTargets {
        let application = Credential::Application(self.identity.application.get());
        ReloadTargets {
            control: self.api.control.clone(),
            certificates: self.api.certificates(),
            egress_certificates: self.egress.certificates(),
            authorization: self.rest.authorization.clone(),
            gateway_token: self.shards.token_setter(),
            gate: Arc::clone(&self.rest.gate),
            clock: self.clocks.store_time(),
            credentials: BTreeSet::from([self.rest.credential(), application]),
            events: self.events.events().clone(),
            span_secrets: self.telemetry.secrets().clone(),
        }
    }

    /// Discord's REST API, behind the gate.
    pub fn rest(&self) -> &RestComponent {
        &self.rest
    }

    /// Address of the API, with the real port.
    pub fn api_address(&self) -> SocketAddr {
        self.api.listener().address()
    }

    /// Waits until Discord rejects a shard permanently. The end of any other part ends the process by itself. Cancel safe.
    pub async fn ended(&mut self) -> DaemonError {
        loop {
            match self.shards.next_end().await {
                ShardEnd::Refused(fatal) => return DaemonError::Refused(fatal),
                // Not reported here, or the process is ending already.
                ShardEnd::Closed | ShardEnd::Lost | ShardEnd::Panicked => {}
            }
        }
    }

    /// Begins a shutdown: nothing is ready any more, parts may end, and the API rejects new requests unless they are accepted
    /// for a while.
    pub fn stopping(&self) {
        Supervision::installed().iter().for_each(Supervision::begin_shutdown);
        self.readiness.set_stopping();
        self.api.begin_shutdown();
    }

    /// Stops the components in the order in which they depend on each other. Operations in flight finish, received events are
    /// handled, shards close so that their sessions can be resumed, and the API, which reports all of this, stops last.
    ///
    /// # Errors
    ///
    /// When that takes longer than `timeout`. The error lists what had not finished.
    pub async fn shutdown(mut self, timeout: Duration) -> Result<(), ShutdownTimeout> {
        let deadline = Instant::now() + timeout;
        self.stopping();
        // Received events are handled while operations finish. What handlers produce is stored, and executed by the next owner.
        let events = async {
            self.interactions.stop(deadline).await;
            let closed = timeout_at(deadline, self.shards.close()).await;
            let handled = self.events.drain(deadline.saturating_duration_since(Instant::now())).await;
            // Other processes continue the sessions at once.
            let _ = timeout_at(deadline, self.shards.release()).await;
            (closed, handled)
        };
        let delay = self.api.drain_delay();
        let (drained, (closed, handled), (), ()) = tokio::join!(
            self.operations.drain(timeout),
            events,
            self.api.drain(timeout),
            self.egress.stop(delay, deadline)
        );
        let shards = if closed.is_ok() { Vec::new() } else { self.shards.open_shards() };
        self.rest.stop(deadline).await;
        let listener = !self.api.stop(deadline).await;
        self.events.stop();
        self.budgets.stop(deadline).await;
        self.operations.stop(deadline).await;
        self.telemetry.stop(deadline).await;
        if drained && handled && shards.is_empty() && !listener {
            Ok(())
        } else {
            Err(ShutdownTimeout { timeout, shards, events: !handled, operations: !drained, listener })
        }
    }
}

/// The start failed. Called before the components that have started are dropped, so that their ends are not reported as failures.
fn abandon(error: impl Into<StartError>) -> StartError {
    Supervision::installed().iter().for_each(Supervision::begin_shutdown);
    error.into()
}

/// The API, with what exists before the listener starts. The gate is among it: operators look there for why nothing is sent,
/// from the start on.
fn control(settings: &Settings, key: &AcceptedAdminKey<'_>, store: &Store, rest: &RestComponent) -> Control {
    let control = Control::new(key.key, api_component::control_config(&settings.api))
        .with_clock(&store.clocks().store_time())
        .with_proxies(api_component::trusted_proxies(&settings.api))
        .with_keys(Arc::new(store.clone()))
        .with_erasure(Arc::new(store.clone()))
        .with_gate(GateService { gate: Arc::clone(&rest.gate), credential: rest.credential() });
    if key.stored.is_some() {
        control.share_admin_key();
    }
    if settings.api.policies.shared
        && let Some(shared) = rest.policies(settings.api.policies.heavy_max_wait)
    {
        control.share_policies(Arc::new(shared));
    }
    control
}

fn executor(rest: &RestComponent, identity: &BotIdentity, store: &Store, roles: &Arc<RoleCache>) -> DiscordExecutor {
    let gate: Arc<dyn Rest> = rest.gate.clone();
    let objects: Arc<dyn OperationStore> = Arc::new(store.clone());
    DiscordExecutor::new(gate, identity.application, identity.bot, objects, ExecutorConfig::default())
        .with_roles(Arc::clone(roles))
        .with_clocks(store.clocks().clone())
}

/// The connection to the broker, if there is one. It reports its state to `/readyz`.
fn broker(settings: &Settings, part: Option<ComponentHandle>) -> Result<Option<Arc<Broker>>, BrokerConfigError> {
    let Some((url, part)) = settings.broker.url.clone().zip(part) else { return Ok(None) };
    let listener = move |state: Result<(), &str>| match state {
        Ok(()) => part.ready(),
        Err(reason) => part.not_ready(reason),
    };
    Broker::start(&settings.broker, url, Box::new(listener)).map(|broker| Some(Arc::new(broker)))
}

/// Passes changed permissions to the role cache, changes of guilds to the recorder, and everything else to readiness and to the
/// observer.
fn shard_observer(
    roles: Arc<RoleCache>,
    guilds: Arc<GuildRecorder>,
    gateway: Arc<GatewayComponent>,
    observer: impl Fn(ShardEvent) + Send + Sync + 'static,
) -> ShardObserver {
    Arc::new(move |event| match event {
        ShardEvent::PermissionsChanged { guild } => roles.invalidate(guild),
        ShardEvent::GuildChanged(change) => guilds.record(change),
        ShardEvent::GuildsListed(listed) => guilds.record_list(listed),
        ShardEvent::Connected { .. } | ShardEvent::Disconnected { .. } | ShardEvent::OutOfIdentifies { .. } => {
            gateway.observe(&event);
            observer(event);
        }
    })
}

/// If a part ends, nothing is ready any more, and everything that this process owns is released.
fn supervise(readiness: &Readiness, store: &Store) {
    let Some(supervision) = Supervision::installed() else { return };
    let (readiness, store) = (readiness.clone(), store.clone());
    supervision.on_part_end(move |end| readiness.on_part_end(end));
    supervision.before_exit(move |end| async move {
        // First: the next owner reads it before it continues the work.
        record_crash(&store, &end).await;
        store.release_all(&end).await;
    });
}

/// Counts the input on which a part panicked.
async fn record_crash(store: &Store, end: &PartEnd) {
    let Some(crash) = Crash::of(end, store.clocks().store_time().now()) else { return };
    let crashes = store.record_crash(&crash, CRASH_RECORD_TIMEOUT).await.map_err(|error| error.to_string());
    emit(CrashRecorded { crash: &crash, crashes });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shutdown_timeout_lists_what_has_not_finished() {
        let timeout = Duration::from_millis(5);
        let few = ShutdownTimeout { timeout, shards: vec![0, 3], events: false, operations: false, listener: true };
        assert!(few.to_string().ends_with("= 5; not finished: shards 0, 3, the API listener"), "{few}");
        let many = ShutdownTimeout {
            timeout,
            shards: (0..16_000).collect(),
            events: false,
            operations: false,
            listener: false,
        };
        assert!(many.to_string().ends_with("8, 9 and 15990 more"), "{many}");
        let listener = ShutdownTimeout { timeout, shards: vec![], events: false, operations: false, listener: true };
        assert!(listener.to_string().ends_with("not finished: the API listener"), "{listener}");
    }
}
