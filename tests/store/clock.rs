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

use crate::setup::{Engine, GUILD, KEEP, Place, change, claim, keyed, on_both, record, submit};

const HOUR: Duration = Duration::from_secs(3_600);
const DAY_MS: i64 = 24 * 3_600_000;

/// The clocks of a machine, set by the test.
struct SetClock {
    wall_ahead_ms: AtomicI64,
    passed_ms: AtomicU64,
    boot: &'static str,
}

impl SetClock {
    fn new(wall_ahead_ms: i64, boot: &'static str) -> Arc<Self> {
        Arc::new(Self { wall_ahead_ms: AtomicI64::new(wall_ahead_ms), passed_ms: AtomicU64::new(0), boot })
    }

    fn set_ahead(&self, ms: i64) {
        self.wall_ahead_ms.store(ms, Ordering::SeqCst);
    }

    fn pass(&self, time: Duration) {
        self.passed_ms.fetch_add(u64::try_from(time.as_millis()).unwrap(), Ordering::SeqCst);
    }
}

impl TimeSource for SetClock {
    fn monotonic(&self) -> Timestamp {
        SystemTimeSource.monotonic() + Duration::from_millis(self.passed_ms.load(Ordering::SeqCst))
    }

    fn wall(&self) -> UnixMs {
        let passed = self.passed_ms.load(Ordering::SeqCst).cast_signed();
        let ahead = self.wall_ahead_ms.load(Ordering::SeqCst) + passed;
        UnixMs::new(SystemTimeSource.wall().millis().saturating_add_signed(ahead))
    }

    fn boot(&self) -> Option<String> {
        Some(self.boot.to_owned())
    }
}

async fn open(place: &Place, clock: &Arc<SetClock>) -> Store {
    Store::open_with_clocks(&place.settings, Arc::clone(clock) as Arc<dyn TimeSource>).await.unwrap()
}

/// An operation with a key, submitted and finished now by store time.
async fn done_with_key(store: &Store, key: &str) -> NewOperation {
    let now = store.clocks().now();
    let operation = NewOperation { created_at: now, eligible_at: now, ..keyed(key) };
    submit(store, &operation).await;
    let claimed = claim(store, Queue::Guild(GUILD)).await;
    let mut end = change(&operation, claimed.fence, OperationState::Succeeded);
    end.at = now;
    record(store, end).await;
    assert!(store.release(Queue::Guild(GUILD), claimed.fence).await.unwrap());
    operation
}

/// Submits again with the same key.
async fn again(store: &Store, operation: &NewOperation) -> SubmitResult {
    let now = store.clocks().now();
    let again = NewOperation { id: crate::setup::new_id(), created_at: now, eligible_at: now, ..operation.clone() };
    submit(store, &again).await
}

async fn sweep(store: &Store) {
    let keep = Retention { idempotency: Duration::from_secs(60), ..KEEP };
    store.sweep(keep, store.clocks().now()).await.unwrap();
}

fn is_known(answer: &SubmitResult, operation: &NewOperation) -> bool {
    matches!(answer, SubmitResult::Existing { id, .. } if *id == operation.id)
}

on_both! {
    async fn a_step_of_this_machines_clock_expires_nothing(engine) {
        let (place, clock) = (Place::new(engine).await, SetClock::new(0, "first"));
        let store = open(&place, &clock).await;
        let operation = done_with_key(&store, "k").await;
        for ahead in [DAY_MS, -DAY_MS, 30 * DAY_MS] {
            clock.set_ahead(ahead);
            clock.pass(Duration::from_millis(100));
            sweep(&store).await;
            assert!(is_known(&again(&store, &operation).await, &operation), "{ahead}");
        }
        store.close().await;
    }

    async fn a_key_expires_when_its_time_has_passed(engine) {
        let (place, clock) = (Place::new(engine).await, SetClock::new(0, "first"));
        let store = open(&place, &clock).await;
        let operation = done_with_key(&store, "k").await;
        assert!(is_known(&again(&store, &operation).await, &operation));
        match engine {
            // Keys are stored for 60 s here.
            Engine::Sqlite => clock.pass(Duration::from_secs(61)),
            // PostgreSQL uses the server's clock, so the test makes the row older instead.
            Engine::Postgres => {
                use sea_orm::{ConnectionTrait as _, Database};
                let raw = Database::connect(place.raw_url()).await.unwrap();
                let older = "UPDATE idempotency SET expires_at = expires_at - 61000";
                raw.execute_unprepared(older).await.unwrap();
                raw.close().await.unwrap();
            }
        }
        assert!(!is_known(&again(&store, &operation).await, &operation), "the key has expired");
        store.close().await;
    }

    async fn a_step_that_is_confirmed_delays_expiry(engine) {
        let (place, clock) = (Place::new(engine).await, SetClock::new(-DAY_MS, "first"));
        let store = open(&place, &clock).await;
        let operation = done_with_key(&store, "k").await;
        // The clock was a day behind. Now it is right, and Discord's clock confirms it.
        clock.set_ahead(0);
        for _ in 0..3 {
            clock.pass(Duration::from_secs(1));
            let at = clock.monotonic();
            store.clocks().observe_discord(SystemTimeSource.wall() + Duration::from_secs(3), at, at);
        }
        let expected = if engine == Engine::Sqlite { Duration::from_millis(DAY_MS.unsigned_abs()) } else { Duration::ZERO };
        let lag = store.clocks().expiry_lag();
        assert!(lag <= expected + HOUR && lag + HOUR >= expected, "{lag:?}");
        sweep(&store).await;
        assert!(is_known(&again(&store, &operation).await, &operation));
        store.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_clock_after_a_reboot_expires_nothing_until_discord_confirms_it() {
    let (place, clock) = (Place::new(Engine::Sqlite).await, SetClock::new(0, "first"));
    let store = open(&place, &clock).await;
    let operation = done_with_key(&store, "k").await;
    store.save_clocks().await.unwrap();
    store.close().await;

    let clock = SetClock::new(DAY_MS, "second");
    let store = open(&place, &clock).await;
    sweep(&store).await;
    assert!(is_known(&again(&store, &operation).await, &operation), "the length of the downtime is unknown");
    for _ in 0..2 {
        clock.pass(Duration::from_millis(100));
        let at = clock.monotonic();
        store.clocks().observe_discord(clock.wall(), at, at);
    }
    assert!(!is_known(&again(&store, &operation).await, &operation), "it was down for a day");
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_whose_clock_is_an_hour_ahead_expires_nothing_of_the_others() {
    let place = Place::new(Engine::Postgres).await;
    let (right, ahead) = (SetClock::new(0, "one"), SetClock::new(3_600_000, "two"));
    let store = open(&place, &right).await;
    let operation = done_with_key(&store, "k").await;
    let other = open(&place, &ahead).await;
    let (ours, theirs) = (store.clocks().now(), other.clocks().now());
    assert!(theirs.since(ours) < HOUR / 2 && ours.since(theirs) < HOUR / 2, "one clock for all");
    let until = Some(store.clocks().now() + Duration::from_secs(600));
    store.set_state("sess:profile:1", Some("1".to_owned()), until).await.unwrap();
    sweep(&other).await;
    assert!(is_known(&again(&other, &operation).await, &operation));
    assert_eq!(other.state("sess:profile:1").await.unwrap().as_deref(), Some("1"));
    let values = other.values(vec!["sess:profile:1".to_owned()], other.clocks().now()).await.unwrap();
    assert_eq!(values, [Some("1".to_owned())]);
    other.close().await;
    store.close().await;
}
