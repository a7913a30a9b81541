//! Decides when shards may identify. Requests are counted in the store that all processes of a bot share, so that a
//! crash loop cannot use up Discord's daily limit.
//!
//! ```text
//!  shard ──enqueue──▶ queue of its bucket ──one at a time──▶ store: now | wait | spent ──▶ shard identifies
//! ```

use std::{
    fmt,
    sync::{Arc, PoisonError},
    time::Duration,
};

use guildhall_actors::ports::{EventStore, IdentifyDecision, IdentifyRequest};
use guildhall_actors::shard::{BackoffConfig, ReconnectBackoff, ShardEvent, ShardObserver};
use guildhall_actors::supervision::{Part, spawn_finite_on};
use guildhall_actors::wall_clock::WallClock;
use tokio::{
    runtime::Handle,
    sync::{Mutex, oneshot},
    time::{Instant, sleep, timeout},
};
use twilight_gateway::queue::Queue;

use super::events::IdentifyDecided;
use crate::events::emit;

/// Timeout of a store request.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// How often the limit is checked and reported while it is used up.
const LOOKS_EVERY: Duration = Duration::from_secs(60);
/// Waits between attempts while the store does not respond.
const RETRIES: BackoffConfig = BackoffConfig { base: Duration::from_millis(200), cap: Duration::from_secs(10) };

/// Limits on identifying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentifyLimits {
    /// Number of buckets whose shards may identify at the same time; 0 leaves the spacing to the gateway.
    pub max_concurrency: u16,
    /// Minimum time between two identifies of a bucket.
    pub spacing: Duration,
    /// Maximum number per day.
    pub a_day: u32,
    /// Remaining session starts as Discord reports them, if requested: another process may use the token, too.
    pub left: Option<SessionStartLimit>,
}

/// Remaining session starts of the day, as Discord reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionStartLimit {
    /// Number of remaining starts.
    pub remaining: u32,
    /// Time until the limit resets.
    pub reset_after: Duration,
}

/// Permits shards to identify one at a time, within the limits, and never without counting.
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
    /// Creates a queue that counts in this store. Calls `observer` when the daily limit is used up. Needs a Tokio
    /// runtime, which runs the requests.
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
        // If this task failed, the shard would wait forever.
        spawn_finite_on(&self.runtime, Part::Identify, async move { desk.serve(shard, go).await });
        waits
    }
}

struct IdentifyLimiter {
    store: Arc<dyn EventStore>,
    limits: IdentifyLimits,
    clock: WallClock,
    observer: ShardObserver,
    /// One lock for each bucket: its holder queries the store, the others wait.
    lines: Vec<Mutex<()>>,
    /// Remaining starts as Discord reports them, and when they reset.
    left: std::sync::Mutex<Option<(u32, Instant)>>,
}

impl IdentifyLimiter {
    /// Waits until the shard may identify, or no longer waits for it.
    async fn serve(&self, shard: u32, mut go: oneshot::Sender<()>) {
        let bucket = shard % u32::from(self.limits.max_concurrency.max(1));
        let turn = async {
            let line = self.lines.get(bucket as usize).expect("invariant: each bucket has a lock");
            let _first = line.lock().await;
            self.turn(shard, bucket).await;
        };
        tokio::select! {
            biased;
            () = go.closed() => return,
            () = turn => {}
        }
        emit(IdentifyDecided::Granted { shard });
        // If the shard no longer waits, one start is counted that was not used.
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
            // Prevents a hot loop, whatever the store returns.
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
            Err(_) => Err(format!("the store did not respond within {} s", ANSWERS_WITHIN.as_secs())),
        };
        if answer != Ok(IdentifyDecision::Now) {
            self.give_left();
        }
        answer
    }

    /// Takes one of the starts that Discord reports as remaining.
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
