//! The shards that this process has: claimed, opened, given back, and let go of when they may be another's.
//!
//! ```text
//!  store ──claims──▶ keeper ──▶ events: its session, what was handled ──▶ roster: the shard connects, and RESUMEs
//!    ▲ release                     ▲ drained, kept                            │ closed with 4000
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

/// How long the store may take to answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// How soon it is asked again when it could not.
const ASKS_AGAIN: Duration = Duration::from_millis(250);
/// How long a shard that is given back may take to close.
const CLOSES_WITHIN: Duration = Duration::from_secs(2);
/// How long its events may take to be done; the others come again, to whoever has it then.
const DRAINS_WITHIN: Duration = Duration::from_secs(10);

/// The shards of this process, and who keeps them.
pub(super) struct ShardsComponent {
    shards: ShardPool,
    store: Arc<dyn ShardStore>,
    stop: watch::Sender<bool>,
    keeper: Option<JoinHandle<Vec<ShardClaim>>>,
    /// Those that it had when it ended.
    held: Vec<ShardClaim>,
}

impl fmt::Debug for ShardsComponent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardsComponent").field("shards", &self.shards).finish_non_exhaustive()
    }
}

/// What a keeper needs.
pub(super) struct ShardClaimerConfig {
    pub(super) store: Arc<dyn ShardStore>,
    pub(super) events: EventsHandle,
    pub(super) part: Arc<GatewayComponent>,
    pub(super) wanted: DesiredShards,
    /// How often it looks what others have left; never, if there can be no others.
    pub(super) looks_every: Option<Duration>,
    pub(super) notices: broadcast::Receiver<ClusterEvent>,
}

impl ShardsComponent {
    /// Claims shards from now on, as there are some to claim.
    pub(super) fn start(shards: ShardPool, keeping: ShardClaimerConfig) -> Self {
        let (stop, stopped) = watch::channel(false);
        let store = Arc::clone(&keeping.store);
        let keeper =
            ShardClaimer { keeping, roster: shards.roster().clone(), held: BTreeMap::new(), returns: Vec::new() };
        let keeper = Some(supervision::spawn(Part::ShardClaims, keeper.run(stopped)));
        Self { shards, store, stop, keeper, held: Vec::new() }
    }

    /// Sets the token of new connections.
    pub(super) fn token_setter(&self) -> TokenSetter {
        self.shards.token_setter()
    }

    /// Where the shards are seen, and restarted.
    pub(super) fn board(&self, events: &EventsHandle, total: u32) -> Arc<dyn ShardAdmin> {
        Arc::new(LocalShardAdmin { roster: self.shards.roster().clone(), events: events.clone(), total })
    }

    /// Waits until a shard ends that should not. Nothing is lost when the wait is cancelled.
    pub(super) async fn ended(&mut self) -> ShardEnd {
        self.shards.next_end().await
    }

    /// Claims no more shards, and closes those that it has so that their sessions can be resumed.
    pub(super) async fn close(&mut self) {
        self.stop.send_replace(true);
        if let Some(keeper) = &mut self.keeper {
            // If it broke, its claims end with the process.
            self.held = keeper.await.unwrap_or_default();
            self.keeper = None;
        }
        self.shards.shutdown().await;
    }

    /// Those that are not closed.
    pub(super) fn open(&self) -> Vec<u32> {
        self.shards.open()
    }

    /// Lets others go on, now that all is kept that there is to know.
    pub(super) async fn release(&mut self) {
        let held = std::mem::take(&mut self.held);
        if held.is_empty() {
            return;
        }
        let shards: Vec<u32> = held.iter().map(|claim| claim.shard).collect();
        // If it cannot be said, they are free when this process does not count as alive any more.
        if timeout(ANSWERS_WITHIN, self.store.release_shards(held)).await.is_ok_and(|released| released.is_ok()) {
            emit(ShardsChanged { became: ShardOwnershipChange::Released, shards: &shards, held: 0 });
        }
    }
}

/// The shards of this process, as others see them.
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
                // One that is about another session says nothing of this one.
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
    /// Claims that nobody acts on any more, and that the store does not know of yet.
    returns: Vec<ShardClaim>,
}

impl ShardClaimer {
    /// Goes on until it is told to stop; what is held then.
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

    /// Asks for shards, opens those that there are, and gives back what others lack.
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

    /// Closes shards, sees to it that what came of them is done and kept, and has them no more.
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

    /// Those whose right has ended, or that have closed because it had, are another's for all that is known.
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
        Err(_) => Err("the store did not answer in time".to_owned()),
    }
}

/// Waits until there may be shards to claim, to give back, or lost.
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
