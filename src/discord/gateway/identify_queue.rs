//! When shards may identify: counted where all processes of a bot count together, so that no crash loop uses up what
//! Discord allows.
//!
//! ```text
//!  shard ──enqueue──▶ its bucket's line ──one at a time──▶ store: now | wait | spent ──▶ shard identifies
//! ```

use std::{
    fmt,
    sync::{Arc, PoisonError},
    time::Duration,
};

use guildhall_actors::ports::{EventStore, IdentifyDecision, IdentifyRequest};
use guildhall_actors::supervision::{Part, spawn_finite_on};
use guildhall_actors::wall_clock::WallClock;
use tokio::{
    runtime::Handle,
    sync::{Mutex, oneshot},
    time::{Instant, sleep, timeout},
};
use twilight_gateway::queue::Queue;

use super::{
    events::IdentifyDecided,
    observer::{ShardEvent, ShardObserver},
    reconnect_backoff::{BackoffConfig, ReconnectBackoff},
};
use crate::events::emit;

/// The longest that the store may take to answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// How often it is asked, and told, whether the day is still spent.
const LOOKS_EVERY: Duration = Duration::from_secs(60);
/// Waits between tries while the store does not answer.
const RETRIES: BackoffConfig = BackoffConfig { base: Duration::from_millis(200), cap: Duration::from_secs(10) };

/// How often a bot may identify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentifyLimits {
    /// In how many buckets shards may identify side by side; 0 leaves the spacing to the gateway.
    pub max_concurrency: u16,
    /// The least time between two of a bucket.
    pub spacing: Duration,
    /// How many within a day.
    pub a_day: u32,
    /// What Discord says is left of them, if it was asked: somebody else may use the token, too.
    pub left: Option<SessionStartLimit>,
}

/// What Discord says is left of a day's session starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionStartLimit {
    /// How many.
    pub remaining: u32,
    /// When all of them are there again.
    pub reset_after: Duration,
}

/// Lets shards identify one by one, as often as is allowed, and never without having counted it.
#[derive(Clone)]
pub struct IdentifyQueue {
    desk: Arc<IdentifyLimiter>,
    runtime: Handle,
}

impl fmt::Debug for IdentifyQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdentifyQueue").field("limits", &self.desk.limits).finish_non_exhaustive()
    }
}

impl IdentifyQueue {
    /// Counts in this store. `observer` is told when the day is spent. Needs a Tokio runtime, which goes on doing the asking.
    pub fn new(store: Arc<dyn EventStore>, limits: IdentifyLimits, clock: WallClock, observer: ShardObserver) -> Self {
        let left = limits.left.map(|left| (left.remaining, Instant::now() + left.reset_after));
        let lines = (0..limits.max_concurrency.max(1)).map(|_| Mutex::default()).collect();
        let desk = IdentifyLimiter { store, limits, clock, observer, lines, left: std::sync::Mutex::new(left) };
        Self { desk: Arc::new(desk), runtime: Handle::current() }
    }
}

impl Queue for IdentifyQueue {
    fn enqueue(&self, shard: u32) -> oneshot::Receiver<()> {
        let (go, waits) = oneshot::channel();
        let desk = Arc::clone(&self.desk);
        // If it broke, the shard would wait for ever.
        spawn_finite_on(&self.runtime, Part::Identify, async move { desk.serve(shard, go).await });
        waits
    }
}

struct IdentifyLimiter {
    store: Arc<dyn EventStore>,
    limits: IdentifyLimits,
    clock: WallClock,
    observer: ShardObserver,
    /// One for each bucket: who stands first in it asks, the others wait for him.
    lines: Vec<Mutex<()>>,
    /// How many are left by Discord's count, until then.
    left: std::sync::Mutex<Option<(u32, Instant)>>,
}

impl IdentifyLimiter {
    /// Waits until the shard may identify, or has lost its interest.
    async fn serve(&self, shard: u32, mut go: oneshot::Sender<()>) {
        let bucket = shard % u32::from(self.limits.max_concurrency.max(1));
        let turn = async {
            let line = self.lines.get(bucket as usize).expect("invariant: there is a line for each bucket");
            let _first = line.lock().await;
            self.turn(shard, bucket).await;
        };
        tokio::select! {
            biased;
            () = go.closed() => return,
            () = turn => {}
        }
        emit(IdentifyDecided::Granted { shard });
        // If it has gone meanwhile, one is counted that was not used.
        let _ = go.send(());
    }

    async fn turn(&self, shard: u32, bucket: u32) {
        let mut patience = ReconnectBackoff::new(RETRIES);
        loop {
            let wait = match self.ask(bucket).await {
                Ok(IdentifyDecision::Now) => return,
                Ok(IdentifyDecision::Wait(wait)) => wait,
                Ok(IdentifyDecision::Spent(again_in)) => {
                    emit(IdentifyDecided::Spent { shard, again_in });
                    (self.observer)(ShardEvent::OutOfIdentifies { shard, again_in });
                    again_in.min(LOOKS_EVERY)
                }
                Err(error) => {
                    let again_in = patience.wait_after_useless(fastrand::f64()).max(RETRIES.base / 2);
                    emit(IdentifyDecided::Uncounted { shard, error: &error, again_in });
                    again_in
                }
            };
            // Never a hot loop, whatever the store says.
            sleep(wait.max(Duration::from_millis(1))).await;
        }
    }

    async fn ask(&self, bucket: u32) -> Result<IdentifyDecision, String> {
        if let Err(again_in) = self.take_left() {
            return Ok(IdentifyDecision::Spent(again_in));
        }
        let spacing = if self.limits.max_concurrency == 0 { Duration::ZERO } else { self.limits.spacing };
        let ask = IdentifyRequest { bucket, spacing, a_day: self.limits.a_day, now: self.clock.now() };
        let answer = match timeout(ANSWERS_WITHIN, self.store.identify(ask)).await {
            Ok(answer) => answer.map_err(|error| error.to_string()),
            Err(_) => Err(format!("the store did not answer within {} s", ANSWERS_WITHIN.as_secs())),
        };
        if answer != Ok(IdentifyDecision::Now) {
            self.give_left();
        }
        answer
    }

    /// Takes one of those that Discord says are left.
    fn take_left(&self) -> Result<(), Duration> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        match left.as_mut() {
            Some((_, until)) if *until <= Instant::now() => *left = None,
            Some((0, until)) => return Err(until.duration_since(Instant::now())),
            Some((remaining, _)) => *remaining -= 1,
            None => {}
        }
        Ok(())
    }

    fn give_left(&self) {
        if let Some((remaining, _)) = self.left.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            *remaining += 1;
        }
    }
}
