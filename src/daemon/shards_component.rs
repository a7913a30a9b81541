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
use guildhall_actors::ports::{ShardAdmin, ShardsFuture};
use guildhall_actors::shard::{DesiredShards, ShardClaim, ShardStore};
use guildhall_actors::supervision::Part;
use guildhall_actors::supervisor::{AttachedShard, EventsHandle};
use guildhall_actors::{failpoint, supervision};
use tokio::{
    sync::{
        broadcast::{self, error::RecvError},
        watch,
    },
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::gateway_component::GatewayComponent;
use crate::{
    discord::{ResumeState, ShardEnd, ShardPool, ShardSet, TokenSetter},
    events::{ShardClaimFailed, ShardOwnershipChange, ShardsChanged, emit},
    store::ClusterEvent,
};

/// Timeout of the store.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// Wait before a failed request to the store is repeated.
const ASKS_AGAIN: Duration = Duration::from_millis(250);
/// Maximum time in which a released shard closes.
const CLOSES_WITHIN: Duration = Duration::from_secs(2);
/// Maximum time in which its events are handled; the others are delivered again, to the next owner.
const DRAINS_WITHIN: Duration = Duration::from_secs(10);

/// The shards of this process, and the task that claims them.
pub(crate) struct ShardsComponent {
    shards: ShardPool,
    store: Arc<dyn ShardStore>,
    stop: watch::Sender<bool>,
    keeper: Option<JoinHandle<Vec<ShardClaim>>>,
    /// Claims that the process had when the task ended.
    held: Vec<ShardClaim>,
}

impl fmt::Debug for ShardsComponent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardsComponent").field("shards", &self.shards).finish_non_exhaustive()
    }
}

/// Configuration of a claimer.
pub(crate) struct ShardClaimerConfig {
    pub(crate) store: Arc<dyn ShardStore>,
    pub(crate) events: EventsHandle,
    pub(crate) part: Arc<GatewayComponent>,
    pub(crate) wanted: DesiredShards,
    /// How often it looks for shards that others have released; `None` if no other process can exist.
    pub(crate) looks_every: Option<Duration>,
    pub(crate) notices: broadcast::Receiver<ClusterEvent>,
}

impl ShardsComponent {
    /// Starts to claim shards.
    pub(crate) fn start(shards: ShardPool, keeping: ShardClaimerConfig) -> Self {
        let (stop, stopped) = watch::channel(false);
        let store = Arc::clone(&keeping.store);
        let keeper =
            ShardClaimer { keeping, roster: shards.roster().clone(), held: BTreeMap::new(), returns: Vec::new() };
        let keeper = Some(supervision::spawn(Part::ShardClaims, keeper.run(stopped)));
        Self { shards, store, stop, keeper, held: Vec::new() }
    }

    /// Sets the token of new connections.
    pub(crate) fn token_setter(&self) -> TokenSetter {
        self.shards.token_setter()
    }

    /// Shows and restarts the shards.
    pub(crate) fn board(&self, events: &EventsHandle, total: u32) -> Arc<dyn ShardAdmin> {
        Arc::new(LocalShardAdmin { roster: self.shards.roster().clone(), events: events.clone(), total })
    }

    /// Waits until a shard ends that should not. Cancel safe.
    pub(crate) async fn ended(&mut self) -> ShardEnd {
        self.shards.next_end().await
    }

    /// Claims no more shards, and closes those that it has so that their sessions can be resumed.
    pub(crate) async fn close(&mut self) {
        self.stop.send_replace(true);
        if let Some(keeper) = &mut self.keeper {
            // If the task panicked, its claims end with the process.
            self.held = keeper.await.unwrap_or_default();
            self.keeper = None;
        }
        self.shards.shutdown().await;
    }

    /// Shards that are not closed.
    pub(crate) fn open(&self) -> Vec<u32> {
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
        if timeout(ANSWERS_WITHIN, self.store.release_shards(held)).await.is_ok_and(|released| released.is_ok()) {
            emit(ShardsChanged { became: ShardOwnershipChange::Released, shards: &shards, held: 0 });
        }
    }
}

/// The shards of this process, for the admin API.
struct LocalShardAdmin {
    roster: ShardSet,
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
            let mut shards = self.roster.views();
            for shard in &mut shards {
                let its = sessions.iter().find(|session| session.shard == shard.shard);
                // An entry of another session does not apply to this one.
                let its = its.filter(|its| shard.session.as_ref().is_some_and(|session| **session == *its.session));
                shard.confirmed = its.map(|session| session.confirmed);
            }
            shards
        })
    }

    fn restart(&self, shard: u32) -> bool {
        self.roster.restart(shard)
    }
}

struct ShardClaimer {
    keeping: ShardClaimerConfig,
    roster: ShardSet,
    held: BTreeMap<u32, (ShardClaim, LeaseGuard)>,
    /// Claims that are no longer used, and whose release is not stored yet.
    returns: Vec<ShardClaim>,
}

impl ShardClaimer {
    /// Runs until it is stopped; returns the claims that it holds then.
    async fn run(mut self, mut stop: watch::Receiver<bool>) -> Vec<ShardClaim> {
        while !*stop.borrow() {
            failpoint::message(Part::ShardClaims);
            self.let_go_of_lost().await;
            let looked = self.look().await;
            let wait = match &looked {
                Ok(()) => self.keeping.looks_every,
                Err(why) => {
                    emit(ShardClaimFailed { why });
                    Some(ASKS_AGAIN)
                }
            };
            tokio::select! {
                () = async { drop(stop.wait_for(|stop| *stop).await) } => {}
                () = news(&mut self.keeping.notices) => {}
                () = self.roster.an_end() => {}
                () = after(wait) => {}
            }
        }
        self.held.into_values().map(|(claim, _)| claim).collect()
    }

    /// Claims shards, opens them, and releases shards that other processes should have.
    async fn look(&mut self) -> Result<(), String> {
        if !self.returns.is_empty() {
            answered(self.keeping.store.release_shards(self.returns.clone())).await?;
            self.returns.clear();
        }
        let claimed = answered(self.keeping.store.claim_shards(self.keeping.wanted)).await?;
        let new: Vec<u32> = claimed.claims.iter().map(|claim| claim.shard).collect();
        for AttachedShard { claim, feed, session, unread } in self.keeping.events.take(claimed.claims).await {
            let right = self.keeping.store.shard_right(claim);
            self.held.insert(claim.shard, (claim, right.clone()));
            self.roster.open(claim.shard, feed, session.map(|session| ResumeState { session, unread }), right);
        }
        self.keeping.part.has(self.held.len());
        if !new.is_empty() {
            emit(ShardsChanged { became: ShardOwnershipChange::Taken, shards: &new, held: self.held.len() });
        }
        let excess: Vec<u32> = self.held.keys().rev().take(claimed.too_many as usize).copied().collect();
        if !excess.is_empty() {
            self.end(&excess, DRAINS_WITHIN).await;
            emit(ShardsChanged { became: ShardOwnershipChange::Released, shards: &excess, held: self.held.len() });
            answered(self.keeping.store.release_shards(self.returns.clone())).await?;
            self.returns.clear();
        }
        Ok(())
    }

    /// Closes shards, waits until their events are handled and stored, and drops their claims.
    async fn end(&mut self, shards: &[u32], within: Duration) {
        let ends = shards.iter().map(|shard| async {
            self.roster.close(*shard, CLOSES_WITHIN).await;
            self.keeping.events.let_go(*shard, within).await;
        });
        join_all(ends).await;
        for shard in shards {
            self.returns.extend(self.held.remove(shard).map(|(claim, _)| claim));
        }
        self.keeping.part.has(self.held.len());
    }

    /// Drops the shards whose lease has ended, or that have closed because it had: another process may own them.
    async fn let_go_of_lost(&mut self) {
        let is_lost = |shard: &u32, right: &LeaseGuard| !right.holds() || !self.roster.is_open(*shard);
        let lost = self.held.iter().filter(|(shard, (_, right))| is_lost(shard, right));
        let lost: Vec<u32> = lost.map(|(shard, _)| *shard).collect();
        if !lost.is_empty() {
            self.end(&lost, Duration::ZERO).await;
            emit(ShardsChanged { became: ShardOwnershipChange::Lost, shards: &lost, held: self.held.len() });
        }
    }
}

async fn answered<T>(asked: impl Future<Output = Result<T, guildhall_actors::ports::StoreError>>) -> Result<T, String> {
    match timeout(ANSWERS_WITHIN, asked).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err("the store did not respond in time".to_owned()),
    }
}

/// Waits until there may be shards to claim, to release, or that are lost.
async fn news(notices: &mut broadcast::Receiver<ClusterEvent>) {
    loop {
        match notices.recv().await {
            Ok(ClusterEvent::Members | ClusterEvent::Shards | ClusterEvent::Disowned | ClusterEvent::Anything)
            | Err(RecvError::Lagged(_)) => {
                return;
            }
            Ok(ClusterEvent::Queues(_) | ClusterEvent::Pauses) => {}
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

async fn after(wait: Option<Duration>) {
    match wait {
        Some(wait) => sleep(wait).await,
        None => std::future::pending().await,
    }
}
