//! The listener has no room.

use std::time::Duration;

use guildhall_actors::shard::FlowLimit;
use guildhall_sim::{GatewayConfig, StormEvent};

use crate::{
    ear::Ear,
    stage::{all_heard, at_once, config, easy, eventually, metric, sim, start, storm},
};

const CREDIT: FlowLimit = FlowLimit { events: 50, bytes: 1 << 30 };

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_without_room_leaves_and_resumes_without_loss() {
    let sim = sim(easy()).await;
    let ear = Ear::new(CREDIT);
    let mut config = config(&sim, 1, at_once());
    config.buffer = FlowLimit { events: 100, bytes: 1 << 30 };
    let mut shards = start(config, &ear);
    all_heard(&sim, &ear, 1).await;

    for round in 1..=2 {
        ear.hold();
        storm(&sim, 2_000, StormEvent::MessageCreate).await;
        ear.until("it has disconnected", |notes| notes.connected.is_empty()).await;
        // The resumed events may fill the buffer again at once.
        let closes = || sim.gateway_score().closes_received.get(&4000).copied().unwrap_or_default();
        eventually("Discord has received the close", || closes() >= round).await;
        assert!(ear.used(0).events < CREDIT.events + 256, "{:?}", ear.used(0));
        ear.release();
        all_heard(&sim, &ear, 1).await;
        ear.until("it is connected again", |notes| notes.connected.len() == 1).await;
    }
    ear.notes(|notes| {
        assert_eq!(notes.sessions.len(), 1);
        assert!(notes.sessions[0].is_whole_from(1));
        assert_eq!(notes.sessions[0].events["message.create"], 4_000);
    });
    let score = sim.gateway_score();
    assert_eq!((score.identifies, score.slow_readers), (1, 0));
    assert!(metric("guildhall_gateway_paused_total") >= 2.0);
    shards.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_true_for_a_moment_only_is_dropped_before_a_shard_leaves_and_keeps_its_number() {
    let sim = sim(easy()).await;
    let ear = Ear::new(CREDIT);
    let mut config = config(&sim, 1, at_once());
    config.buffer = FlowLimit { events: 100, bytes: 1 << 30 };
    let mut shards = start(config, &ear);
    all_heard(&sim, &ear, 1).await;

    ear.hold();
    let shed = || metric("guildhall_gateway_shed_total{class=\"fleeting\"}");
    let before = shed();
    storm(&sim, 3_000, StormEvent::TypingStart).await;
    // Only events in flight and buffered ones are not dropped.
    eventually("the other events are dropped", || shed() - before >= 3_000.0 - 50.0 - 256.0 - 100.0).await;
    storm(&sim, 20, StormEvent::MessageCreate).await;
    ear.release();
    all_heard(&sim, &ear, 1).await;
    ear.notes(|notes| {
        assert!(notes.sessions[0].is_whole_from(1));
        assert_eq!(notes.sessions[0].events["message.create"], 20, "nothing else is dropped");
        assert!(notes.sessions[0].events["typing.start"] < 3_000);
        assert_eq!(notes.resumed, 0);
    });
    shards.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_shard_ends_when_it_is_told_to() {
    let sim = sim(easy()).await;
    let ear = Ear::new(CREDIT);
    let mut config = config(&sim, 1, at_once());
    config.buffer = FlowLimit { events: 100, bytes: 1 << 30 };
    let mut shards = start(config, &ear);
    all_heard(&sim, &ear, 1).await;
    ear.hold();
    storm(&sim, 2_000, StormEvent::MessageCreate).await;
    ear.until("it has disconnected", |notes| notes.connected.is_empty()).await;
    shards.shutdown().await;
    assert_eq!(shards.open(), Vec::<u32>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_with_little_room_lets_discord_wait_before_it_leaves() {
    // The heartbeat interval is long, so that Discord can wait for a while.
    let sim = sim(GatewayConfig { heartbeat_interval: Duration::from_secs(40), ..easy() }).await;
    let tiny = FlowLimit { events: 32, bytes: 1 << 30 };
    let ear = Ear::slow(tiny, Duration::from_micros(200));
    let mut config = config(&sim, 1, at_once());
    config.buffer = tiny;
    let mut shards = start(config, &ear);
    all_heard(&sim, &ear, 1).await;
    storm(&sim, 1_500, StormEvent::MessageCreate).await;
    all_heard(&sim, &ear, 1).await;
    ear.notes(|notes| {
        assert!(notes.sessions[0].is_whole_from(1));
        assert_eq!(notes.sessions[0].events["message.create"], 1_500);
        assert!(notes.resumed <= 2, "it disconnected {} times", notes.resumed);
    });
    shards.shutdown().await;
}
