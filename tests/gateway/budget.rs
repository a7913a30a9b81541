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
    ear::Ear,
    stage::{all_heard, config, easy, sim, start},
    store::Counts,
};

const LIMITS: IdentifyLimits =
    IdentifyLimits { max_concurrency: 1, spacing: Duration::from_secs(5), a_day: 1_000, left: None };

type Waits = Arc<Mutex<Vec<Duration>>>;

/// A queue in paused time, and the waits that it reports for an exhausted day.
fn queue(store: &Arc<Counts>, limits: IdentifyLimits) -> (IdentifyQueue, Waits) {
    let waits = Waits::default();
    let told = Arc::clone(&waits);
    let observer = Arc::new(move |event| match event {
        ShardEvent::OutOfIdentifies { again_in, .. } => told.lock().unwrap().push(again_in),
        ShardEvent::Connected { .. } | ShardEvent::Disconnected { .. } | ShardEvent::PermissionsChanged { .. } => {}
    });
    let clock = WallClock::anchored(UnixMs::new(1_700_000_000_000));
    (IdentifyQueue::new(store.clone(), limits, clock, observer), waits)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_loop_identifies_no_more_often_than_the_day_allows() {
    let sim = sim(GatewayConfig { session_starts: 3, ..easy() }).await;
    let store = Counts::new();
    let limits = IdentifyLimits { max_concurrency: 1, spacing: Duration::ZERO, a_day: 3, left: None };
    for life in 1..=6 {
        let ear = Ear::patient();
        let queue = IdentifyQueue::new(store.clone(), limits, WallClock::system(), Arc::new(ear.observer()));
        let shards = start(config(&sim, 1, queue), &ear);
        if life <= 3 {
            all_heard(&sim, &ear, 1).await;
        } else {
            ear.until("it reports that the day is exhausted", |notes| !notes.out_of_identifies.is_empty()).await;
            ear.notes(|notes| assert!(notes.out_of_identifies[0] > Duration::from_secs(23 * 60 * 60)));
        }
        // It crashes: no close, and nothing of its session is stored.
        drop(shards);
    }
    assert_eq!((sim.gateway_score().identifies, sim.gateway_score().token_resets), (3, 0));
}

#[tokio::test(start_paused = true)]
async fn shards_of_a_bucket_go_one_by_one_and_buckets_side_by_side() {
    let store = Counts::new();
    let (queue, _) = queue(&store, IdentifyLimits { max_concurrency: 2, ..LIMITS });
    let start = Instant::now();
    let waits: Vec<_> = (0..6).map(|shard| queue.enqueue(shard)).collect();
    let mut went = Vec::new();
    for wait in waits {
        wait.await.unwrap();
        went.push(start.elapsed().as_secs());
    }
    assert_eq!(went, [0, 0, 5, 5, 10, 10]);
    assert!(store.asked() <= 10, "only the first shard of a bucket calls the store: {}", store.asked());
}

#[tokio::test(start_paused = true)]
async fn without_a_store_nobody_identifies_and_with_it_again_somebody_does() {
    let store = Counts::new();
    store.fail(u64::MAX);
    let (queue, _) = queue(&store, LIMITS);
    let mut wait = queue.enqueue(0);
    assert!(tokio::time::timeout(Duration::from_secs(3_600), &mut wait).await.is_err());
    let asked = store.asked();
    assert!((100..2_000).contains(&asked), "it retries at a bounded rate: {asked}");
    store.fail(0);
    wait.await.unwrap();
    assert_eq!(store.granted(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_has_lost_its_interest_is_not_counted_and_keeps_nobody_waiting() {
    let store = Counts::new();
    let (queue, _) = queue(&store, LIMITS);
    queue.enqueue(0).await.unwrap();
    drop(queue.enqueue(1));
    let start = Instant::now();
    queue.enqueue(2).await.unwrap();
    assert_eq!((store.granted(), start.elapsed().as_secs()), (2, 5));
}

#[tokio::test(start_paused = true)]
async fn a_spent_day_is_waited_out_and_said_again_and_again() {
    let store = Counts::new();
    let (queue, waits) = queue(&store, IdentifyLimits { a_day: 1, ..LIMITS });
    queue.enqueue(0).await.unwrap();
    let start = Instant::now();
    queue.enqueue(1).await.unwrap();
    assert!(start.elapsed() >= Duration::from_secs(24 * 60 * 60 - 1), "{:?}", start.elapsed());
    let waits = waits.lock().unwrap();
    assert!(waits.len() > 1_000 && waits.is_sorted_by(|one, next| one > next), "{}", waits.len());
}

#[tokio::test(start_paused = true)]
async fn what_discord_says_is_left_counts_even_if_the_store_has_more() {
    let store = Counts::new();
    let left = Some(SessionStartLimit { remaining: 1, reset_after: Duration::from_secs(600) });
    let (queue, waits) = queue(&store, IdentifyLimits { left, ..LIMITS });
    queue.enqueue(0).await.unwrap();
    let start = Instant::now();
    queue.enqueue(1).await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 600);
    assert_eq!(waits.lock().unwrap().first().map(Duration::as_secs), Some(600));
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_spaces_them_itself_gets_them_as_they_come_but_counted() {
    let store = Counts::new();
    let (queue, _) = queue(&store, IdentifyLimits { max_concurrency: 0, ..LIMITS });
    let start = Instant::now();
    for shard in 0..5 {
        queue.enqueue(shard).await.unwrap();
    }
    assert_eq!((store.granted(), start.elapsed()), (5, Duration::ZERO));
}
