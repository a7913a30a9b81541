//! The running daemon: a listener and the shards, with one way in and one way out.

use std::{collections::BTreeSet, fmt, io, net::SocketAddr, sync::Arc, time::Duration};

use guildhall_actors::access::{RoleCache, RoleCacheConfig};
use guildhall_actors::crash::{Crash, CrashStore};
use guildhall_actors::ports::{EventStore, IdempotencyCache, OperationStore};
use guildhall_actors::shard::{DesiredShards, FlowLimit, ShardStore};
use guildhall_actors::supervision::{Part, PartEnd, Supervision};
use guildhall_actors::telemetry::crash::CrashRecorded;
use guildhall_actors::{failpoint, supervision};
use guildhall_core::{event::handler::EventHandlers, response::Credential};
use metrics_exporter_prometheus::{BuildError, PrometheusHandle};
use tokio::{task::JoinHandle, time::Instant};

use super::admin_key::LocalAdminKey;
use super::api_component::ApiHandle;
use super::discovery::DiscoveryError;
use super::gateway_component::GatewayComponent;
use super::redis_component::RedisComponent;
use super::reload::{ReloadTargets, Reloader};
use super::{api_component, discovery, identity};
use crate::api::{
    BindError, Certificates, CertificatesError, Control, GateService, GatewayServices, InteractionsEndpoint, Listener,
    Readiness, Services, ShardService, StateService,
};
use crate::clock::Clocks;
use crate::daemon::budgets_component::BudgetsComponent;
use crate::daemon::events_component as events;
use crate::daemon::events_component::{EventsComponent, WebhookError};
use crate::daemon::operations_component::OperationsComponent;
use crate::daemon::rest_component::{GateState, RestComponent, RestError};
use crate::daemon::shards_component::{ShardClaimerConfig, ShardsComponent};
use crate::daemon::spans_component::SpansComponent;
use crate::discord::executor::{DiscordExecutor, ExecutorConfig};
use crate::discord::{BackoffConfig, FatalClose, IdentifyQueue, ShardEnd, ShardEvent, ShardPool, ShardPoolConfig};
use crate::events::{LimitSharingChosen, ListenerStarted, emit};
use crate::logging::Secrets;
use crate::settings::{Settings, StoreUrl};
use crate::store::{OpenError, Store};
use crate::{api, handlers, metrics, process};

/// How often the recorder folds what it has collected, which bounds its memory when nobody scrapes.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);

/// How long recording the input on which a part panicked may take: half of what a process has to end.
const CRASH_RECORDED_WITHIN: Duration = Duration::from_millis(300);

/// The daemon cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is no token.
    #[error(
        "there is no bot token; set GUILDHALL__DISCORD__TOKEN, or GUILDHALL__DISCORD__TOKEN_FILE to a file that holds \
         it, or token_file under [discord] in config/guildhall.toml; `guildhall demo` needs no token"
    )]
    NoToken,
    /// The listener's address cannot be had.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// TLS cannot be spoken.
    #[error(transparent)]
    Tls(#[from] CertificatesError),
    /// The listener cannot start.
    #[error("cannot serve the API: {0}")]
    Serve(#[source] io::Error),
    /// Operations cannot be kept.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// Metrics cannot be recorded.
    #[error("cannot record metrics: {0}")]
    Metrics(#[from] BuildError),
    /// Nobody can be told of traces.
    #[error("{0}")]
    Spans(String),
    /// Calls to Discord cannot be made.
    #[error(transparent)]
    Rest(#[from] RestError),
    /// A webhook cannot be used.
    #[error(transparent)]
    Webhook(#[from] WebhookError),
    /// Shards have no thread to run on.
    #[error("cannot start a thread for the shards: {0}")]
    Threads(#[source] io::Error),
    /// Shards must not be started.
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
}

/// The daemon has to end, though nobody asked it to.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// Discord refused a shard for good.
    #[error(transparent)]
    Refused(#[from] FatalClose),
}

/// How long the gate is waited for before a process takes its part of the work. A gate takes a window to open; one that takes
/// longer is blocked, and so are probably the others'.
const OPENS_WITHIN: Duration = Duration::from_secs(3);

/// What had not ended when a shutdown's time was up.
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
            write!(f, "{comma} events that were not handled, which come again")?;
            comma = ",";
        }
        if self.operations {
            write!(f, "{comma} operations under way, which the next process takes up")?;
            comma = ",";
        }
        if self.listener {
            write!(f, "{comma} the API listener")?;
        }
        Ok(())
    }
}

/// The running daemon.
#[derive(Debug)]
pub struct Daemon {
    readiness: Readiness,
    control: Control,
    /// How long the API still takes new requests once the daemon ends.
    delay: Duration,
    listener: Listener,
    /// Where interactions are posted.
    interactions: Option<Listener>,
    shards: ShardsComponent,
    rest: RestComponent,
    /// The application of the bot.
    application: u64,
    events: EventsComponent,
    operations: OperationsComponent,
    clocks: Clocks,
    budgets: BudgetsComponent,
    upkeep: JoinHandle<()>,
    certificates: Option<(Certificates, JoinHandle<()>)>,
    spans: SpansComponent,
    /// What no span may hold.
    secrets: Secrets,
    _redis: Option<RedisComponent>,
}

impl Daemon {
    /// Opens the store, starts the listener and the gate, waits for Redis if there is to be one, takes up the operations that
    /// the store holds, asks Discord where the gateway is, then starts the shards. Until Discord has answered, the listener
    /// tells what is waited for, and `entrance` has it. `observer` sees what the shards tell; it is called on their tasks and must not block.
    ///
    /// # Errors
    ///
    /// When there is no token, the address or the store cannot be had, or the process has started a daemon before.
    pub async fn start(
        settings: &Settings,
        handlers: EventHandlers,
        key: &LocalAdminKey,
        entrance: &ApiHandle,
        reloader: &Reloader,
        observer: impl Fn(ShardEvent) + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        let token = settings.discord.token.clone().ok_or(StartError::NoToken)?;
        // Before anything has something to say: a taken port or store should be the only line.
        let certificates = settings.api.tls.as_ref().map(Certificates::load).transpose()?;
        let bound = api::bind(settings.api.bind)?
            .with_limits(api_component::edge_config(&settings.api))
            .with_tls(certificates.clone());
        let posts = settings
            .interactions
            .public_key
            .map(|key| api::bind_for(settings.interactions.bind, api::INTERACTIONS_BIND).map(|bound| (bound, key)));
        let posts = posts.transpose()?;
        let store = Store::open_arriving(&settings.store).await?;
        let clocks = store.clocks().clone();
        let readiness = Readiness::default();
        supervise(&readiness, &store);
        let key = key.resolve(&settings.store).await.map_err(abandon)?;
        let control =
            Control::new(key.key, api_component::control_config(&settings.api)).with_clock(&clocks.store_time());
        let control = control.with_proxies(api_component::trusted_proxies(&settings.api));
        let control = control.with_keys(Arc::new(store.clone())).with_erasure(Arc::new(store.clone()));
        if key.stored.is_some() {
            control.share_admin_key();
        }
        let recorder = metrics::install().map_err(abandon)?;
        Supervision::installed().iter().for_each(Supervision::report_counts);
        let secrets = Secrets::new(settings.secrets().into_iter().chain(handlers::secrets(&handlers)).collect());
        let spans = SpansComponent::start(settings, secrets.clone());
        let spans = spans.map_err(|error| abandon(StartError::Spans(error.to_string())))?;
        process::record_start();

        let rest =
            RestComponent::start(settings, token.clone(), GateState::Store(&store, clocks.clone())).map_err(abandon)?;
        // Before the listener: operators look here for why nothing is sent, from the start on.
        let control = control.with_gate(GateService { gate: Arc::clone(&rest.gate), credential: rest.credential() });
        emit(LimitSharingChosen { sharing: rest.sharing().name(), limit: settings.gate.limits.global });

        let part = readiness.register("gateway");
        let kept = readiness.register("store");
        let (gate_part, operations_part, events_part) =
            (readiness.register("gate"), readiness.register("operations"), readiness.register("events"));
        let listener = bound
            .serve(readiness.clone(), recorder.clone(), Some(control.clone()))
            .map_err(StartError::Serve)
            .map_err(abandon)?;
        entrance.open(&control, &listener);
        emit(ListenerStarted { address: listener.address(), tls: certificates.is_some() });
        let certificates = certificates.map(|certificates| {
            let following = certificates.clone().follow(api_component::CERTIFICATE_CHECK_INTERVAL);
            (certificates, supervision::spawn(Part::Certificates, following))
        });
        key.log_location();

        let shares = settings.redis.url.is_some().then(|| readiness.register("redis"));
        let shared: Arc<dyn OperationStore> = Arc::new(store.clone());
        let sessions: Arc<dyn EventStore> = Arc::new(store.clone());
        let claims: Arc<dyn ShardStore> = Arc::new(store.clone());
        let crashes: Arc<dyn CrashStore> = Arc::new(store.clone());
        let notices = store.cluster_events();
        let values = Arc::clone(&shared);
        if settings.api.policies.shared
            && let Some(shared) = rest.policies(settings.api.policies.heavy_max_wait)
        {
            control.share_policies(Arc::new(shared));
        }
        let redis = match shares {
            Some(part) => Some(RedisComponent::start(&rest.gate, part).await),
            None => None,
        };
        // Before anything is sent.
        rest.gate.ready().await;
        gate_part.ready();
        let budgets = BudgetsComponent::start(settings, &rest, Arc::new(store.clone()), clocks.store_time()).await;
        let who = identity::find(&token, rest.gate.as_ref(), &rest.calls, &part).await.map_err(abandon)?;
        let gate: Arc<dyn guildhall_actors::gate::Rest> = rest.gate.clone();
        let roles = Arc::new(RoleCache::new(RoleCacheConfig {
            max_age: settings.operations.role_max_age,
            ..RoleCacheConfig::default()
        }));
        let performer = DiscordExecutor::new(gate, who.application, who.bot, shared, ExecutorConfig::default())
            .with_roles(Arc::clone(&roles))
            .with_clocks(clocks.clone());
        let cache = rest.idempotency().map(|cache| Arc::new(cache) as Arc<dyn IdempotencyCache>);
        let operations = OperationsComponent::start(
            settings,
            who.application.get(),
            store,
            Arc::new(performer),
            cache,
            Arc::clone(&roles),
            kept,
        );
        rest.gate.on_release(operations.release_listener());
        control.publish(Services {
            operations: Some(Arc::clone(operations.service())),
            changes: Some(operations.changes()),
            budgets: Some(Arc::clone(budgets.service())),
        });
        operations_part.ready();
        operations.arrive_when(rest.wait_until_open(OPENS_WITHIN));
        let upkeep = supervision::spawn(Part::MetricsUpkeep, upkeep(recorder));
        let known = events::load_sessions(&*sessions, &part).await;
        let found = discovery::find(settings, rest.gate.as_ref(), &rest.calls, &known, &part).await.map_err(abandon)?;
        let gateway = Arc::new(GatewayComponent::new(part));
        let desk = Arc::clone(operations.service());
        let prepared = EventsComponent::prepare(
            settings,
            handlers,
            Arc::clone(&sessions),
            crashes,
            &rest,
            desk,
            found.shards,
            &clocks.store_time(),
        );
        let prepared = prepared.map_err(abandon)?;
        let events = EventsComponent::start(prepared);
        events_part.ready();
        let state = StateService {
            values,
            store: Arc::clone(&sessions),
            events: events.events().clone(),
            clock: clocks.store_time(),
        };
        let interactions = posts.map(|(bound, key)| {
            let (window, events) = (settings.interactions.replay_window, events.events().clone());
            bound.serve_interactions(InteractionsEndpoint { key, window, events, clock: clocks.store_time() })
        });
        let interactions = interactions.transpose().map_err(StartError::Serve).map_err(abandon)?;
        let watched = Arc::clone(&gateway);
        let observer = Arc::new(move |event| match event {
            ShardEvent::PermissionsChanged { guild } => roles.invalidate(guild),
            ShardEvent::Connected { .. } | ShardEvent::Disconnected { .. } | ShardEvent::OutOfIdentifies { .. } => {
                watched.observe(event);
                observer(event);
            }
        });
        let kept_sessions = Arc::clone(&sessions);
        let queue = IdentifyQueue::new(sessions, found.limits, clocks.store_time(), observer.clone());
        let config = ShardPoolConfig {
            token,
            gateway_url: found.url,
            shards: found.shards,
            range: found.range,
            intents: settings.gateway.intents,
            presence: Some(settings.gateway.presence.clone()),
            queue,
            resume: Vec::new(),
            threads: settings.gateway.threads,
            buffer: FlowLimit { events: settings.gateway.buffer_events, bytes: settings.gateway.buffer_bytes },
            backoff: BackoffConfig { base: settings.gateway.reconnect_base, cap: settings.gateway.reconnect_cap },
            hello_timeout: settings.gateway.hello_timeout,
            clock: clocks.store_time(),
        };
        let range = found.range.range();
        let wanted = DesiredShards {
            shards: found.shards,
            first: range.start,
            last: range.end - 1,
            shared: settings.gateway.shard_range.is_none(),
        };
        let looks_every = match settings.store.url {
            StoreUrl::Sqlite(_) => None,
            StoreUrl::Postgres { .. } => Some(settings.store.lease.heartbeat),
        };
        let shards = ShardPool::start_threads(config, move |event| observer(event))
            .map_err(StartError::Threads)
            .map_err(abandon)?;
        let events_handle = events.events().clone();
        let keeping = ShardClaimerConfig {
            store: claims,
            events: events_handle,
            gateway,
            desired: wanted,
            claim_interval: looks_every,
            cluster_events: notices,
        };
        let shards = ShardsComponent::start(shards, keeping);
        let board = shards.admin(events.events(), found.shards);
        control.publish_gateway(GatewayServices {
            state: Some(Arc::new(state)),
            shards: Some(ShardService { admin: board, sessions: kept_sessions }),
            reload: Some(Arc::new(reloader.clone())),
        });
        let daemon = Self {
            readiness,
            control,
            delay: settings.shutdown.delay,
            listener,
            interactions,
            shards,
            rest,
            events,
            application: who.application.get(),
            operations,
            clocks,
            budgets,
            upkeep,
            certificates,
            spans,
            secrets,
            _redis: redis,
        };
        daemon.attach(reloader);
        Ok(daemon)
    }

    /// Lets the settings of this daemon be reloaded from now on.
    fn attach(&self, reloader: &Reloader) {
        reloader.attach(ReloadTargets {
            control: self.control.clone(),
            certificates: self.certificates.as_ref().map(|(certificates, _)| certificates.clone()),
            authorization: self.rest.authorization.clone(),
            gateway_token: self.shards.token_setter(),
            gate: Arc::clone(&self.rest.gate),
            clock: self.clocks.store_time(),
            credentials: BTreeSet::from([self.rest.credential(), Credential::Application(self.application)]),
            events: self.events.events().clone(),
            span_secrets: self.secrets.clone(),
        });
    }

    /// The way to Discord's REST API.
    pub fn rest(&self) -> &RestComponent {
        &self.rest
    }

    /// Where the listener is, with the real port.
    pub fn api_address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Waits until Discord refuses a shard for good. The end of any other part ends the process by itself. Nothing is lost
    /// when the wait is cancelled.
    pub async fn ended(&mut self) -> DaemonError {
        loop {
            match self.shards.next_end().await {
                ShardEnd::Refused(fatal) => return DaemonError::Refused(fatal),
                // Not told, or the process ends already.
                ShardEnd::Closed | ShardEnd::Lost | ShardEnd::Panicked => {}
            }
        }
    }

    /// Says at once that the daemon is about to end: nothing is ready any more, parts may end, and the API takes nothing new
    /// unless it is to do so for a while.
    pub fn stopping(&self) {
        Supervision::installed().iter().for_each(Supervision::begin_shutdown);
        self.readiness.set_stopping();
        if self.delay.is_zero() {
            self.control.drain();
        }
    }

    /// Ends everything: nothing is ready any more, the API takes nothing new and answers what it has taken, no operation is
    /// started, those under way end, the shards close so that their sessions can be resumed, and the listener, which tells of
    /// all this until then, drains.
    ///
    /// # Errors
    ///
    /// When that takes longer than `timeout`; what had not ended is dropped, and named.
    pub async fn shutdown(mut self, timeout: Duration) -> Result<(), ShutdownTimeout> {
        let deadline = Instant::now() + timeout;
        self.stopping();
        // What has come is handled while operations end: what handlers give is kept, and done by whoever comes next.
        let told = async {
            // Discord would be told that somebody answers who does not.
            if let Some(posts) = self.interactions.take() {
                posts.stop(deadline.saturating_duration_since(Instant::now())).await;
            }
            let closed = tokio::time::timeout_at(deadline, self.shards.close()).await;
            let handled = self.events.drain(deadline.saturating_duration_since(Instant::now())).await;
            // Others go on with the sessions at once.
            let _ = tokio::time::timeout_at(deadline, self.shards.release()).await;
            (closed, handled)
        };
        let refused = async {
            tokio::time::sleep(self.delay.min(timeout)).await;
            self.control.drain();
        };
        let (drained, (closed, handled), ()) = tokio::join!(self.operations.drain(timeout), told, refused);
        let shards = if closed.is_ok() { Vec::new() } else { self.shards.open_shards() };
        // If there is no time for it, the others find out by the silence.
        let _ = tokio::time::timeout_at(deadline, self.rest.leave()).await;
        let listener = !self.listener.stop(deadline.saturating_duration_since(Instant::now())).await;
        // It asks the store for nothing more.
        self.events.stop();
        let _ = tokio::time::timeout_at(deadline, self.budgets.close()).await;
        // What it has said it keeps it has kept; this only lets others in sooner.
        let _ = tokio::time::timeout_at(deadline, self.operations.close()).await;
        self.upkeep.abort();
        if let Some((_, following)) = self.certificates {
            following.abort();
        }
        // What has ended until now is told; a collector that takes its time holds nobody up.
        let _ = tokio::time::timeout_at(deadline, self.spans.finish()).await;
        if drained && handled && shards.is_empty() && !listener {
            Ok(())
        } else {
            Err(ShutdownTimeout { timeout, shards, events: !handled, operations: !drained, listener })
        }
    }
}

/// If a part ends, nothing is ready any more, and everything that this process owns is given back.
fn supervise(readiness: &Readiness, store: &Store) {
    let Some(supervision) = Supervision::installed() else { return };
    let (readiness, store) = (readiness.clone(), store.clone());
    supervision.on_part_end(move |end| readiness.on_part_end(end));
    supervision.before_exit(move |end| async move {
        // First: whoever has the lease next reads it before they continue what was left.
        record_crash(&store, &end).await;
        store.release_all(&end).await;
    });
}

/// Counts the input on which a part panicked.
async fn record_crash(store: &Store, end: &PartEnd) {
    let Some(crash) = Crash::of(end, store.clocks().store_time().now()) else { return };
    let crashes = store.record_crash(&crash, CRASH_RECORDED_WITHIN).await.map_err(|error| error.to_string());
    emit(CrashRecorded { crash: &crash, crashes });
}

/// The start failed: what has started ends with it, and the error says why.
fn abandon(error: impl Into<StartError>) -> StartError {
    Supervision::installed().iter().for_each(Supervision::begin_shutdown);
    error.into()
}

async fn upkeep(recorder: PrometheusHandle) {
    let mut tick = tokio::time::interval(UPKEEP_EVERY);
    loop {
        tick.tick().await;
        failpoint::message(Part::MetricsUpkeep);
        recorder.run_upkeep();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_not_finished_is_named_but_not_without_end() {
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
