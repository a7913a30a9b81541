//! The listener has no room.

use std::time::Duration;

use guildhall_actors::shard::FlowLimit;
use guildhall_sim::{GatewayConfig, StormEvent};

use crate::{
    fixture::{config, lenient_gateway, metric, sim, start, storm, unlimited_queue, wait_until, wait_until_received},
    shard_listener::ShardListener,
};

const CREDIT: FlowLimit = FlowLimit { events: 50, bytes: 1 << 30 };

#[tokio::test(flavor = "multi_thread")]
async fn shard_without_credit_disconnects_and_resumes_without_loss() {
    let sim = sim(lenient_gateway()).await;
    let listener = ShardListener::new(CREDIT);
    let mut config = config(&sim, 1, unlimited_queue());
    config.buffer = FlowLimit { events: 100, bytes: 1 << 30 };
    let mut shards = start(config, &listener);
    wait_until_received(&sim, &listener, 1).await;

    for round in 1..=2 {
        listener.hold();
        storm(&sim, 2_000, StormEvent::MessageCreate).await;
        listener.wait_until("it has disconnected", |log| log.connected.is_empty()).await;
        // The resumed events may fill the buffer again at once.
        let closes = || sim.gateway_score().closes_received.get(&4000).copied().unwrap_or_default();
        wait_until("Discord has received the close", || closes() >= round).await;
        assert!(listener.used(0).events < CREDIT.events + 256, "{:?}", listener.used(0));
        listener.release();
        wait_until_received(&sim, &listener, 1).await;
        listener.wait_until("it is connected again", |log| log.connected.len() == 1).await;
    }
    listener.log(|log| {
        assert_eq!(log.sessions.len(), 1);
        assert!(log.sessions[0].is_complete_from(1));
        assert_eq!(log.sessions[0].events["message.create"], 4_000);
    });
    let score = sim.gateway_score();
    assert_eq!((score.identifies, score.slow_readers), (1, 0));
    assert!(metric("guildhall_gateway_paused_total") >= 2.0);
    shards.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fleeting_events_are_dropped_before_a_shard_disconnects() {
    let sim = sim(lenient_gateway()).await;
    let listener = ShardListener::new(CREDIT);
    let mut config = config(&sim, 1, unlimited_queue());
    config.buffer = FlowLimit { events: 100, bytes: 1 << 30 };
    let mut shards = start(config, &listener);
    wait_until_received(&sim, &listener, 1).await;

    listener.hold();
    let shed = || metric("guildhall_gateway_shed_total{class=\"fleeting\"}");
    let before = shed();
    storm(&sim, 3_000, StormEvent::TypingStart).await;
    // Only events in flight and buffered ones are not dropped.
    wait_until("the other events are dropped", || shed() - before >= 3_000.0 - 50.0 - 256.0 - 100.0).await;
    storm(&sim, 20, StormEvent::MessageCreate).await;
    listener.release();
    wait_until_received(&sim, &listener, 1).await;
    listener.log(|log| {
        assert!(log.sessions[0].is_complete_from(1));
        assert_eq!(log.sessions[0].events["message.create"], 20, "nothing else is dropped");
        assert!(log.sessions[0].events["typing.start"] < 3_000);
        assert_eq!(log.resumed, 0);
    });
    shards.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_shard_stops_on_shutdown() {
    let sim = sim(lenient_gateway()).await;
    let listener = ShardListener::new(CREDIT);
    let mut config = config(&sim, 1, unlimited_queue());
    config.buffer = FlowLimit { events: 100, bytes: 1 << 30 };
    let mut shards = start(config, &listener);
    wait_until_received(&sim, &listener, 1).await;
    listener.hold();
    storm(&sim, 2_000, StormEvent::MessageCreate).await;
    listener.wait_until("it has disconnected", |log| log.connected.is_empty()).await;
    shards.shutdown().await;
    assert_eq!(shards.open(), Vec::<u32>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn shard_with_little_credit_slows_reading_before_it_disconnects() {
    // The heartbeat interval is long, so that Discord can wait for a while.
    let sim = sim(GatewayConfig { heartbeat_interval: Duration::from_secs(40), ..lenient_gateway() }).await;
    let tiny = FlowLimit { events: 32, bytes: 1 << 30 };
    let listener = ShardListener::slow(tiny, Duration::from_micros(200));
    let mut config = config(&sim, 1, unlimited_queue());
    config.buffer = tiny;
    let mut shards = start(config, &listener);
    wait_until_received(&sim, &listener, 1).await;
    storm(&sim, 1_500, StormEvent::MessageCreate).await;
    wait_until_received(&sim, &listener, 1).await;
    listener.log(|log| {
        assert!(log.sessions[0].is_complete_from(1));
        assert_eq!(log.sessions[0].events["message.create"], 1_500);
        assert!(log.resumed <= 2, "it disconnected {} times", log.resumed);
    });
    shards.shutdown().await;
}
