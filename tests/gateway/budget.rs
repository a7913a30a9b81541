//! IDENTIFYs are counted in the store, so that the count outlives a process.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use guildhall::discord::{IdentifyLimits, IdentifyQueue, SessionStartLimit, ShardEvent};
use guildhall_actors::wall_clock::WallClock;
use guildhall_core::time::UnixMs;
use guildhall_sim::GatewayConfig;
use tokio::time::Instant;
use twilight_gateway::queue::Queue as _;

use crate::{
    fixture::{config, lenient_gateway, sim, start, wait_until_received},
    shard_listener::ShardListener,
    store::IdentifyCountStore,
};

const LIMITS: IdentifyLimits =
    IdentifyLimits { max_concurrency: 1, spacing: Duration::from_secs(5), max_per_day: 1_000, remaining_starts: None };

type ReportedWaits = Arc<Mutex<Vec<Duration>>>;

/// A queue in paused time, and the waits that it reports for an exhausted day.
fn queue(store: &Arc<IdentifyCountStore>, limits: IdentifyLimits) -> (IdentifyQueue, ReportedWaits) {
    let waits = ReportedWaits::default();
    let reported = Arc::clone(&waits);
    let observer = Arc::new(move |event| match event {
        ShardEvent::OutOfIdentifies { retry_in: again_in, .. } => reported.lock().unwrap().push(again_in),
        ShardEvent::Connected { .. }
        | ShardEvent::Disconnected { .. }
        | ShardEvent::PermissionsChanged { .. }
        | ShardEvent::GuildChanged(_)
        | ShardEvent::GuildsListed(_) => {}
    });
    let clock = WallClock::anchored(UnixMs::new(1_700_000_000_000));
    (IdentifyQueue::new(store.clone(), limits, clock, observer), waits)
}

#[tokio::test(flavor = "multi_thread")]
async fn crash_loop_does_not_exceed_the_daily_identify_limit() {
    let sim = sim(GatewayConfig { session_starts: 3, ..lenient_gateway() }).await;
    let store = IdentifyCountStore::new();
    let limits = IdentifyLimits { max_concurrency: 1, spacing: Duration::ZERO, max_per_day: 3, remaining_starts: None };
    for run in 1..=6 {
        let listener = ShardListener::unlimited();
        let queue = IdentifyQueue::new(store.clone(), limits, WallClock::system(), Arc::new(listener.observer()));
        let shards = start(config(&sim, 1, queue), &listener);
        if run <= 3 {
            wait_until_received(&sim, &listener, 1).await;
        } else {
            listener.wait_until("it reports that the day is exhausted", |log| !log.out_of_identifies.is_empty()).await;
            listener.log(|log| assert!(log.out_of_identifies[0] > Duration::from_secs(23 * 60 * 60)));
        }
        // It crashes: no close, and nothing of its session is stored.
        drop(shards);
    }
    assert_eq!((sim.gateway_score().identifies, sim.gateway_score().token_resets), (3, 0));
}

#[tokio::test(start_paused = true)]
async fn shards_of_a_bucket_identify_in_sequence_and_buckets_in_parallel() {
    let store = IdentifyCountStore::new();
    let (queue, _) = queue(&store, IdentifyLimits { max_concurrency: 2, ..LIMITS });
    let start = Instant::now();
    let waits: Vec<_> = (0..6).map(|shard| queue.enqueue(shard)).collect();
    let mut identified_at = Vec::new();
    for wait in waits {
        wait.await.unwrap();
        identified_at.push(start.elapsed().as_secs());
    }
    assert_eq!(identified_at, [0, 0, 5, 5, 10, 10]);
    assert!(store.requests() <= 10, "only the first shard of a bucket calls the store: {}", store.requests());
}

#[tokio::test(start_paused = true)]
async fn identifies_wait_until_the_store_is_available() {
    let store = IdentifyCountStore::new();
    store.fail(u64::MAX);
    let (queue, _) = queue(&store, LIMITS);
    let mut wait = queue.enqueue(0);
    assert!(tokio::time::timeout(Duration::from_secs(3_600), &mut wait).await.is_err());
    let requests = store.requests();
    assert!((100..2_000).contains(&requests), "it retries at a bounded rate: {requests}");
    store.fail(0);
    wait.await.unwrap();
    assert_eq!(store.granted(), 1);
}

#[tokio::test(start_paused = true)]
async fn abandoned_identify_is_not_counted_and_blocks_no_other() {
    let store = IdentifyCountStore::new();
    let (queue, _) = queue(&store, LIMITS);
    queue.enqueue(0).await.unwrap();
    drop(queue.enqueue(1));
    let start = Instant::now();
    queue.enqueue(2).await.unwrap();
    assert_eq!((store.granted(), start.elapsed().as_secs()), (2, 5));
}

#[tokio::test(start_paused = true)]
async fn exhausted_daily_limit_is_waited_out_and_reported_repeatedly() {
    let store = IdentifyCountStore::new();
    let (queue, waits) = queue(&store, IdentifyLimits { max_per_day: 1, ..LIMITS });
    queue.enqueue(0).await.unwrap();
    let start = Instant::now();
    queue.enqueue(1).await.unwrap();
    assert!(start.elapsed() >= Duration::from_secs(24 * 60 * 60 - 1), "{:?}", start.elapsed());
    let waits = waits.lock().unwrap();
    assert!(waits.len() > 1_000 && waits.is_sorted_by(|one, next| one > next), "{}", waits.len());
}

#[tokio::test(start_paused = true)]
async fn remaining_starts_reported_by_discord_are_respected() {
    let store = IdentifyCountStore::new();
    let remaining_starts = Some(SessionStartLimit { remaining: 1, reset_after: Duration::from_secs(600) });
    let (queue, waits) = queue(&store, IdentifyLimits { remaining_starts, ..LIMITS });
    queue.enqueue(0).await.unwrap();
    let start = Instant::now();
    queue.enqueue(1).await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 600);
    assert_eq!(waits.lock().unwrap().first().map(Duration::as_secs), Some(600));
}

#[tokio::test(start_paused = true)]
async fn gateway_with_its_own_spacing_gets_identifies_at_once_but_counted() {
    let store = IdentifyCountStore::new();
    let (queue, _) = queue(&store, IdentifyLimits { max_concurrency: 0, ..LIMITS });
    let start = Instant::now();
    for shard in 0..5 {
        queue.enqueue(shard).await.unwrap();
    }
    assert_eq!((store.granted(), start.elapsed()), (5, Duration::ZERO));
}
