//! Store time: which clock decides when stored data expires.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use guildhall::clock::{SystemTimeSource, TimeSource};
use guildhall::store::Store;
use guildhall_actors::ports::{EventStore as _, NewOperation, OperationStore as _, Retention, SubmitResult};
use guildhall_core::{
    operation::{OperationState, Queue},
    time::{Timestamp, UnixMs},
};

use crate::setup::{
    Engine, GUILD, RETENTION, StoreLocation, claim, on_both, operation_update, operation_with_key, record, submit,
};

const HOUR: Duration = Duration::from_secs(3_600);
const DAY_MS: i64 = 24 * 3_600_000;

/// The clocks of a machine, set by the test.
struct FakeClock {
    wall_offset_ms: AtomicI64,
    elapsed_ms: AtomicU64,
    boot: &'static str,
}

impl FakeClock {
    fn new(wall_offset_ms: i64, boot: &'static str) -> Arc<Self> {
        Arc::new(Self { wall_offset_ms: AtomicI64::new(wall_offset_ms), elapsed_ms: AtomicU64::new(0), boot })
    }

    fn set_wall_offset(&self, ms: i64) {
        self.wall_offset_ms.store(ms, Ordering::SeqCst);
    }

    fn advance(&self, time: Duration) {
        self.elapsed_ms.fetch_add(u64::try_from(time.as_millis()).unwrap(), Ordering::SeqCst);
    }
}

impl TimeSource for FakeClock {
    fn monotonic(&self) -> Timestamp {
        SystemTimeSource.monotonic() + Duration::from_millis(self.elapsed_ms.load(Ordering::SeqCst))
    }

    fn wall(&self) -> UnixMs {
        let elapsed = self.elapsed_ms.load(Ordering::SeqCst).cast_signed();
        let offset = self.wall_offset_ms.load(Ordering::SeqCst) + elapsed;
        UnixMs::new(SystemTimeSource.wall().millis().saturating_add_signed(offset))
    }

    fn boot(&self) -> Option<String> {
        Some(self.boot.to_owned())
    }
}

async fn open(location: &StoreLocation, clock: &Arc<FakeClock>) -> Store {
    Store::open_with_clocks(&location.settings, Arc::clone(clock) as Arc<dyn TimeSource>).await.unwrap()
}

/// An operation with a key, submitted and finished now by store time.
async fn finish_operation_with_key(store: &Store, key: &str) -> NewOperation {
    let now = store.clocks().now();
    let operation = NewOperation { created_at: now, eligible_at: now, ..operation_with_key(key) };
    submit(store, &operation).await;
    let claimed = claim(store, Queue::Guild(GUILD)).await;
    let mut end = operation_update(&operation, claimed.fence, OperationState::Succeeded);
    end.at = now;
    record(store, end).await;
    assert!(store.release(Queue::Guild(GUILD), claimed.fence).await.unwrap());
    operation
}

/// Submits again with the same key.
async fn resubmit(store: &Store, operation: &NewOperation) -> SubmitResult {
    let now = store.clocks().now();
    let repeated = NewOperation { id: crate::setup::new_id(), created_at: now, eligible_at: now, ..operation.clone() };
    submit(store, &repeated).await
}

async fn sweep(store: &Store) {
    let retention = Retention { idempotency: Duration::from_secs(60), ..RETENTION };
    store.sweep(retention, store.clocks().now()).await.unwrap();
}

fn is_deduplicated(result: &SubmitResult, operation: &NewOperation) -> bool {
    matches!(result, SubmitResult::Existing { id, .. } if *id == operation.id)
}

on_both! {
    async fn local_clock_step_expires_nothing(engine) {
        let (place, clock) = (StoreLocation::new(engine).await, FakeClock::new(0, "first"));
        let store = open(&place, &clock).await;
        let operation = finish_operation_with_key(&store, "k").await;
        for ahead in [DAY_MS, -DAY_MS, 30 * DAY_MS] {
            clock.set_wall_offset(ahead);
            clock.advance(Duration::from_millis(100));
            sweep(&store).await;
            assert!(is_deduplicated(&resubmit(&store, &operation).await, &operation), "{ahead}");
        }
        store.close().await;
    }

    async fn key_expires_after_its_retention(engine) {
        let (place, clock) = (StoreLocation::new(engine).await, FakeClock::new(0, "first"));
        let store = open(&place, &clock).await;
        let operation = finish_operation_with_key(&store, "k").await;
        assert!(is_deduplicated(&resubmit(&store, &operation).await, &operation));
        match engine {
            // Keys are stored for 60 s here.
            Engine::Sqlite => clock.advance(Duration::from_secs(61)),
            // PostgreSQL uses the server's clock, so the test makes the row older instead.
            Engine::Postgres => {
                use sea_orm::{ConnectionTrait as _, Database};
                let raw = Database::connect(place.raw_url()).await.unwrap();
                let older = "UPDATE idempotency SET expires_at = expires_at - 61000";
                raw.execute_unprepared(older).await.unwrap();
                raw.close().await.unwrap();
            }
        }
        assert!(!is_deduplicated(&resubmit(&store, &operation).await, &operation), "the key has expired");
        store.close().await;
    }

    async fn confirmed_clock_step_delays_expiry(engine) {
        let (place, clock) = (StoreLocation::new(engine).await, FakeClock::new(-DAY_MS, "first"));
        let store = open(&place, &clock).await;
        let operation = finish_operation_with_key(&store, "k").await;
        // The clock was a day behind. Now it is right, and Discord's clock confirms it.
        clock.set_wall_offset(0);
        for _ in 0..3 {
            clock.advance(Duration::from_secs(1));
            let at = clock.monotonic();
            store.clocks().observe_discord(SystemTimeSource.wall() + Duration::from_secs(3), at, at);
        }
        let expected = if engine == Engine::Sqlite { Duration::from_millis(DAY_MS.unsigned_abs()) } else { Duration::ZERO };
        let lag = store.clocks().expiry_lag();
        assert!(lag <= expected + HOUR && lag + HOUR >= expected, "{lag:?}");
        sweep(&store).await;
        assert!(is_deduplicated(&resubmit(&store, &operation).await, &operation));
        store.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_clock_after_reboot_expires_nothing_until_confirmed() {
    let (location, clock) = (StoreLocation::new(Engine::Sqlite).await, FakeClock::new(0, "first"));
    let store = open(&location, &clock).await;
    let operation = finish_operation_with_key(&store, "k").await;
    store.save_clocks().await.unwrap();
    store.close().await;

    let clock = FakeClock::new(DAY_MS, "second");
    let store = open(&location, &clock).await;
    sweep(&store).await;
    assert!(is_deduplicated(&resubmit(&store, &operation).await, &operation), "the length of the downtime is unknown");
    for _ in 0..2 {
        clock.advance(Duration::from_millis(100));
        let at = clock.monotonic();
        store.clocks().observe_discord(clock.wall(), at, at);
    }
    assert!(!is_deduplicated(&resubmit(&store, &operation).await, &operation), "it was down for a day");
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn process_with_fast_clock_expires_nothing_of_others() {
    let location = StoreLocation::new(Engine::Postgres).await;
    let (right, ahead) = (FakeClock::new(0, "one"), FakeClock::new(3_600_000, "two"));
    let store = open(&location, &right).await;
    let operation = finish_operation_with_key(&store, "k").await;
    let other = open(&location, &ahead).await;
    let (own_now, other_now) = (store.clocks().now(), other.clocks().now());
    assert!(other_now.since(own_now) < HOUR / 2 && own_now.since(other_now) < HOUR / 2, "one clock for all");
    let until = Some(store.clocks().now() + Duration::from_secs(600));
    store.set_state("sess:profile:1", Some("1".to_owned()), until).await.unwrap();
    sweep(&other).await;
    assert!(is_deduplicated(&resubmit(&other, &operation).await, &operation));
    assert_eq!(other.state("sess:profile:1").await.unwrap().as_deref(), Some("1"));
    let values = other.values(vec!["sess:profile:1".to_owned()], other.clocks().now()).await.unwrap();
    assert_eq!(values, [Some("1".to_owned())]);
    other.close().await;
    store.close().await;
}
