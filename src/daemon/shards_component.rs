//! The shards of this process: claimed, opened, released, and closed when another process may own them.
//!
//! ```text
//!  store ──claims─▶ claimer ──▶ events: its session, what was handled ──▶ shards: the shard connects, and RESUMEs
//!    ▲ release                     ▲ drained, stored                          │ closed with 4000
//!    └─────────────────────────────┴──────────────────────────────────────────┘
//! ```

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use futures_util::future::join_all;
use guildhall_actors::lease_guard::LeaseGuard;
use guildhall_actors::ports::{OperationStore as _, ShardAdmin, ShardsFuture};
use guildhall_actors::shard::{DesiredShards, FlowLimit, ShardClaim, ShardObserver, ShardStore};
use guildhall_actors::supervision::Part;
use guildhall_actors::supervisor::{AttachedShard, EventsHandle};
use guildhall_actors::{failpoint, supervision};
use guildhall_core::backoff::Backoff;
use tokio::{
    sync::{
        broadcast::{self, error::RecvError},
        watch,
    },
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::StartError;
use super::discovery::GatewayInfo;
use super::gateway_component::GatewayComponent;
use crate::{
    discord::{IdentifyQueue, ResumeState, ShardEnd, ShardPool, ShardPoolConfig, ShardSet, TokenSetter},
    events::{FailureLog, ShardClaimFailed, ShardOwnershipChange, ShardsChanged, emit},
    settings::{SecretValue, Settings, StoreUrl},
    store::{ClusterEvent, Store},
};

/// Timeout of the store.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);
/// Wait before a failed request to the store is repeated.
const RETRY_DELAY: Duration = Duration::from_millis(250);
/// Maximum time in which a released shard closes.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum time in which its events are handled; the others are delivered again, to the next owner.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The shards of this process, and the task that claims them.
pub(crate) struct ShardsComponent {
    shards: ShardPool,
    store: Arc<dyn ShardStore>,
    stop: watch::Sender<bool>,
    claim_task: Option<JoinHandle<Vec<ShardClaim>>>,
    /// Claims that the process had when the task ended.
    held: Vec<ShardClaim>,
}

impl fmt::Debug for ShardsComponent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardsComponent").field("shards", &self.shards).finish_non_exhaustive()
    }
}

/// Configuration of a claimer.
struct ShardClaimerConfig {
    pub(crate) store: Arc<dyn ShardStore>,
    pub(crate) events: EventsHandle,
    pub(crate) gateway: Arc<GatewayComponent>,
    pub(crate) desired: DesiredShards,
    /// How often it looks for shards that others have released; `None` if no other process can exist.
    pub(crate) claim_interval: Option<Duration>,
    pub(crate) cluster_events: broadcast::Receiver<ClusterEvent>,
    /// Lease of this process. A shard that is claimed without it would be lost at once.
    pub(crate) process_lease: LeaseGuard,
}

/// What the shards need.
pub(crate) struct ShardDependencies {
    pub(crate) token: SecretValue,
    pub(crate) info: GatewayInfo,
    pub(crate) gateway: Arc<GatewayComponent>,
    pub(crate) store: Store,
    pub(crate) events: EventsHandle,
    pub(crate) observer: ShardObserver,
}

impl ShardsComponent {
    /// Starts the threads of the shards, and to claim shards.
    pub(crate) fn start(settings: &Settings, dependencies: ShardDependencies) -> Result<Self, StartError> {
        let ShardDependencies { token, info, gateway, store, events, observer } = dependencies;
        let clock = store.clocks().store_time();
        let identify = IdentifyQueue::new(Arc::new(store.clone()), info.limits, clock.clone(), Arc::clone(&observer));
        let set = &settings.gateway;
        let config = ShardPoolConfig {
            token,
            gateway_url: info.url,
            shards: info.shards,
            range: info.range,
            intents: set.intents,
            presence: Some(set.presence.clone()),
            queue: identify,
            resume: Vec::new(),
            threads: set.threads,
            buffer: FlowLimit { events: set.buffer_events, bytes: set.buffer_bytes },
            backoff: Backoff::up_to(set.reconnect_base, set.reconnect_cap),
            hello_timeout: set.hello_timeout,
            clock,
        };
        let shards = ShardPool::start_threads(config, move |event| observer(event)).map_err(StartError::Threads)?;
        let range = info.range.range();
        let desired = DesiredShards {
            shards: info.shards,
            first: range.start,
            last: range.end - 1,
            shared: set.shard_range.is_none(),
        };
        let claim_interval = match settings.store.url {
            StoreUrl::Sqlite(_) => None,
            StoreUrl::Postgres { .. } => Some(settings.store.lease.heartbeat),
        };
        let cluster_events = store.cluster_events();
        let process_lease = store.lease();
        let store: Arc<dyn ShardStore> = Arc::new(store);
        let claimer =
            ShardClaimerConfig { store, events, gateway, desired, claim_interval, cluster_events, process_lease };
        Ok(Self::claim(shards, claimer))
    }

    fn claim(shards: ShardPool, config: ShardClaimerConfig) -> Self {
        let (stop, stopped) = watch::channel(false);
        let store = Arc::clone(&config.store);
        let claimer = ShardClaimer {
            config,
            shard_set: shards.shard_set().clone(),
            held: BTreeMap::new(),
            to_release: Vec::new(),
        };
        let claimer = Some(supervision::spawn(Part::ShardClaims, claimer.run(stopped)));
        Self { shards, store, stop, claim_task: claimer, held: Vec::new() }
    }

    /// Sets the token of new connections.
    pub(crate) fn token_setter(&self) -> TokenSetter {
        self.shards.token_setter()
    }

    /// Shows and restarts the shards.
    pub(crate) fn admin(&self, events: &EventsHandle, total: u32) -> Arc<dyn ShardAdmin> {
        Arc::new(LocalShardAdmin { shard_set: self.shards.shard_set().clone(), events: events.clone(), total })
    }

    /// Waits until a shard ends that should not. Cancel safe.
    pub(crate) async fn next_end(&mut self) -> ShardEnd {
        self.shards.next_end().await
    }

    /// Claims no more shards, and closes those that it has so that their sessions can be resumed.
    pub(crate) async fn close(&mut self) {
        self.stop.send_replace(true);
        if let Some(claim_task) = &mut self.claim_task {
            // If the task panicked, its claims end with the process.
            self.held = claim_task.await.unwrap_or_default();
            self.claim_task = None;
        }
        self.shards.shutdown().await;
    }

    /// Shards that are not closed.
    pub(crate) fn open_shards(&self) -> Vec<u32> {
        self.shards.open()
    }

    /// Releases the claims, so that other processes can take over. Call this after everything is stored.
    pub(crate) async fn release(&mut self) {
        let held = std::mem::take(&mut self.held);
        if held.is_empty() {
            return;
        }
        let shards: Vec<u32> = held.iter().map(|claim| claim.shard).collect();
        // If the store cannot be notified, the shards are free when this process no longer counts as alive.
        if timeout(STORE_TIMEOUT, self.store.release_shards(held)).await.is_ok_and(|released| released.is_ok()) {
            emit(ShardsChanged { change: ShardOwnershipChange::Released, shards: &shards, held: 0 });
        }
    }
}

/// The shards of this process, for the admin API.
struct LocalShardAdmin {
    shard_set: ShardSet,
    events: EventsHandle,
    total: u32,
}

impl ShardAdmin for LocalShardAdmin {
    fn total(&self) -> u32 {
        self.total
    }

    fn shards(&self) -> ShardsFuture<'_> {
        Box::pin(async {
            let sessions = self.events.sessions().await.unwrap_or_default();
            let mut shards = self.shard_set.views();
            for shard in &mut shards {
                let entry = sessions.iter().find(|session| session.shard == shard.shard);
                // An entry of another session does not apply to this one.
                let entry =
                    entry.filter(|entry| shard.session.as_ref().is_some_and(|session| **session == *entry.session));
                shard.confirmed = entry.map(|session| session.confirmed);
            }
            shards
        })
    }

    fn restart(&self, shard: u32) -> bool {
        self.shard_set.restart(shard)
    }
}

struct ShardClaimer {
    config: ShardClaimerConfig,
    shard_set: ShardSet,
    held: BTreeMap<u32, (ShardClaim, LeaseGuard)>,
    /// Claims that are no longer used, and whose release is not stored yet.
    to_release: Vec<ShardClaim>,
}

impl ShardClaimer {
    /// Runs until it is stopped; returns the claims that it holds then.
    async fn run(mut self, mut stop: watch::Receiver<bool>) -> Vec<ShardClaim> {
        let failures = FailureLog::new("claims of shards");
        while !*stop.borrow() {
            failpoint::message(Part::ShardClaims);
            self.drop_lost().await;
            let updated = self.update_claims().await;
            let wait = match &updated {
                Ok(()) => {
                    failures.on_success();
                    self.config.claim_interval
                }
                Err(reason) => {
                    emit(ShardClaimFailed { reason, summary: failures.on_failure() });
                    Some(RETRY_DELAY)
                }
            };
            tokio::select! {
                () = async { drop(stop.wait_for(|stop| *stop).await) } => {}
                () = wait_for_change(&mut self.config.cluster_events) => {}
                () = self.shard_set.wait_for_end() => {}
                () = sleep_or_pending(wait) => {}
            }
        }
        self.held.into_values().map(|(claim, _)| claim).collect()
    }

    /// Claims shards, opens them, and releases shards that other processes should have.
    async fn update_claims(&mut self) -> Result<(), String> {
        if !self.config.process_lease.holds() {
            return Err("the lease of this process is not renewed".to_owned());
        }
        if !self.to_release.is_empty() {
            with_timeout(self.config.store.release_shards(self.to_release.clone())).await?;
            self.to_release.clear();
        }
        let claimed = with_timeout(self.config.store.claim_shards(self.config.desired)).await?;
        let new: Vec<u32> = claimed.claims.iter().map(|claim| claim.shard).collect();
        for AttachedShard { claim, sender, session, unread } in self.config.events.attach(claimed.claims).await {
            let lease = self.config.store.shard_lease(claim);
            self.held.insert(claim.shard, (claim, lease.clone()));
            self.shard_set.open(claim.shard, sender, session.map(|session| ResumeState { session, unread }), lease);
        }
        self.config.gateway.set_shard_count(self.held.len());
        if !new.is_empty() {
            emit(ShardsChanged { change: ShardOwnershipChange::Taken, shards: &new, held: self.held.len() });
        }
        let excess: Vec<u32> = self.held.keys().rev().take(claimed.too_many as usize).copied().collect();
        if !excess.is_empty() {
            self.close_shards(&excess, DRAIN_TIMEOUT).await;
            emit(ShardsChanged { change: ShardOwnershipChange::Released, shards: &excess, held: self.held.len() });
            with_timeout(self.config.store.release_shards(self.to_release.clone())).await?;
            self.to_release.clear();
        }
        Ok(())
    }

    /// Closes shards, waits until their events are handled and stored, and drops their claims.
    async fn close_shards(&mut self, shards: &[u32], timeout: Duration) {
        let ends = shards.iter().map(|shard| async {
            self.shard_set.close(*shard, CLOSE_TIMEOUT).await;
            self.config.events.release(*shard, timeout).await;
        });
        join_all(ends).await;
        for shard in shards {
            self.to_release.extend(self.held.remove(shard).map(|(claim, _)| claim));
        }
        self.config.gateway.set_shard_count(self.held.len());
    }

    /// Drops the shards whose lease has ended, or that have closed because it had: another process may own them.
    async fn drop_lost(&mut self) {
        let is_lost = |shard: &u32, lease: &LeaseGuard| !lease.holds() || !self.shard_set.is_open(*shard);
        let lost = self.held.iter().filter(|(shard, (_, lease))| is_lost(shard, lease));
        let lost: Vec<u32> = lost.map(|(shard, _)| *shard).collect();
        if !lost.is_empty() {
            self.close_shards(&lost, Duration::ZERO).await;
            emit(ShardsChanged { change: ShardOwnershipChange::Lost, shards: &lost, held: self.held.len() });
        }
    }
}

async fn with_timeout<T>(
    request: impl Future<Output = Result<T, guildhall_actors::ports::StoreError>>,
) -> Result<T, String> {
    match timeout(STORE_TIMEOUT, request).await {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("the store did not respond in time".to_owned()),
    }
}

/// Waits until there may be shards to claim, to release, or that are lost.
async fn wait_for_change(events: &mut broadcast::Receiver<ClusterEvent>) {
    loop {
        match events.recv().await {
            Ok(ClusterEvent::Members | ClusterEvent::Shards | ClusterEvent::LeaseLost | ClusterEvent::Anything)
            | Err(RecvError::Lagged(_)) => {
                return;
            }
            Ok(ClusterEvent::Queues(_) | ClusterEvent::Pauses) => {}
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

async fn sleep_or_pending(wait: Option<Duration>) {
    match wait {
        Some(wait) => sleep(wait).await,
        None => std::future::pending().await,
    }
}
