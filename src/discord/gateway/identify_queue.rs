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
use guildhall_actors::shard::{ShardEvent, ShardObserver};
use guildhall_actors::supervision::{Part, spawn_finite_on};
use guildhall_actors::wall_clock::WallClock;
use guildhall_core::backoff::{Backoff, BackoffSequence};
use tokio::{
    runtime::Handle,
    sync::{Mutex, oneshot},
    time::{Instant, sleep, timeout},
};
use twilight_gateway::queue::Queue;

use super::events::IdentifyDecided;
use crate::events::{FailureLog, emit};

/// Timeout of a store request.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the limit is checked and reported while it is used up.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Waits between attempts while the store does not respond: 100 to 200 ms at first, later 100 ms to 10 s.
const STORE_BACKOFF: Backoff = Backoff { base: Duration::from_millis(100), cap: Duration::from_secs(5), jitter: 1.0 };

/// Limits on identifying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentifyLimits {
    /// Number of buckets whose shards may identify at the same time; 0 leaves the spacing to the gateway.
    pub max_concurrency: u16,
    /// Minimum time between two identifies of a bucket.
    pub spacing: Duration,
    /// Maximum number per day.
    pub max_per_day: u32,
    /// Remaining session starts as Discord reports them, if requested: another process may use the token, too.
    pub remaining_starts: Option<SessionStartLimit>,
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
    limiter: Arc<IdentifyLimiter>,
    runtime: Handle,
}

impl fmt::Debug for IdentifyQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdentifyQueue").field("limits", &self.limiter.limits).finish_non_exhaustive()
    }
}

impl IdentifyQueue {
    /// Creates a queue that counts in this store. Calls `observer` when the daily limit is used up. Needs a Tokio
    /// runtime, which runs the requests.
    pub fn new(store: Arc<dyn EventStore>, limits: IdentifyLimits, clock: WallClock, observer: ShardObserver) -> Self {
        let remaining =
            limits.remaining_starts.map(|remaining| (remaining.remaining, Instant::now() + remaining.reset_after));
        let locks = (0..limits.max_concurrency.max(1)).map(|_| Mutex::default()).collect();
        let limiter = IdentifyLimiter {
            store,
            limits,
            clock,
            observer,
            bucket_locks: locks,
            remaining: std::sync::Mutex::new(remaining),
        };
        Self { limiter: Arc::new(limiter), runtime: Handle::current() }
    }
}

impl Queue for IdentifyQueue {
    fn enqueue(&self, shard: u32) -> oneshot::Receiver<()> {
        let (grant, granted) = oneshot::channel();
        let limiter = Arc::clone(&self.limiter);
        // If this task failed, the shard would wait forever.
        spawn_finite_on(&self.runtime, Part::Identify, async move { limiter.serve(shard, grant).await });
        granted
    }
}

struct IdentifyLimiter {
    store: Arc<dyn EventStore>,
    limits: IdentifyLimits,
    clock: WallClock,
    observer: ShardObserver,
    /// One lock for each bucket: its holder queries the store, the others wait.
    bucket_locks: Vec<Mutex<()>>,
    /// Remaining starts as Discord reports them, and when they reset.
    remaining: std::sync::Mutex<Option<(u32, Instant)>>,
}

impl IdentifyLimiter {
    /// Waits until the shard may identify, or no longer waits for it.
    async fn serve(&self, shard: u32, mut grant: oneshot::Sender<()>) {
        let bucket = shard % u32::from(self.limits.max_concurrency.max(1));
        let wait = async {
            let lock = self.bucket_locks.get(bucket as usize).expect("invariant: each bucket has a lock");
            let _guard = lock.lock().await;
            self.wait_for_permit(shard, bucket).await;
        };
        tokio::select! {
            biased;
            () = grant.closed() => return,
            () = wait => {}
        }
        emit(IdentifyDecided::Granted { shard });
        // If the shard no longer waits, one start is counted that was not used.
        let _ = grant.send(());
    }

    async fn wait_for_permit(&self, shard: u32, bucket: u32) {
        let mut backoff = BackoffSequence::new(STORE_BACKOFF);
        let (failures, refusals) = (FailureLog::new("count of session starts"), FailureLog::new("session starts"));
        loop {
            let wait = match self.request(bucket).await {
                Ok(IdentifyDecision::Allowed) => {
                    failures.on_success();
                    refusals.on_success();
                    return;
                }
                Ok(IdentifyDecision::Wait(wait)) => wait,
                Ok(IdentifyDecision::Exhausted(again_in)) => {
                    let summary = refusals.on_failure();
                    emit(IdentifyDecided::Spent { shard, retry_in: again_in, summary });
                    (self.observer)(ShardEvent::OutOfIdentifies { shard, retry_in: again_in });
                    again_in.min(CHECK_INTERVAL)
                }
                Err(error) => {
                    let again_in = backoff.next_delay(fastrand::f64()).max(STORE_BACKOFF.base);
                    let summary = failures.on_failure();
                    emit(IdentifyDecided::Uncounted { shard, error: &error, retry_in: again_in, summary });
                    again_in
                }
            };
            // Prevents a hot loop, whatever the store returns.
            sleep(wait.max(Duration::from_millis(1))).await;
        }
    }

    async fn request(&self, bucket: u32) -> Result<IdentifyDecision, String> {
        if let Err(again_in) = self.take_remaining() {
            return Ok(IdentifyDecision::Exhausted(again_in));
        }
        let spacing = if self.limits.max_concurrency == 0 { Duration::ZERO } else { self.limits.spacing };
        let request = IdentifyRequest { bucket, spacing, daily_limit: self.limits.max_per_day, now: self.clock.now() };
        let response = match timeout(STORE_TIMEOUT, self.store.identify(request)).await {
            Ok(response) => response.map_err(|error| error.to_string()),
            Err(_) => Err(format!("the store did not respond within {} s", STORE_TIMEOUT.as_secs())),
        };
        if response != Ok(IdentifyDecision::Allowed) {
            self.refund_remaining();
        }
        response
    }

    /// Takes one of the starts that Discord reports as remaining.
    fn take_remaining(&self) -> Result<(), Duration> {
        let mut guard = self.remaining.lock().unwrap_or_else(PoisonError::into_inner);
        match guard.as_mut() {
            Some((_, until)) if *until <= Instant::now() => *guard = None,
            Some((0, until)) => return Err(until.duration_since(Instant::now())),
            Some((remaining, _)) => *remaining -= 1,
            None => {}
        }
        Ok(())
    }

    fn refund_remaining(&self) {
        if let Some((remaining, _)) = self.remaining.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            *remaining += 1;
        }
    }
}
