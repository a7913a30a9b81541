//! All faults of a connection.

use std::time::Duration;

use guildhall::discord::ShardEnd;
use guildhall_sim::{GatewayConfig, GatewayFault, SimHandle, StormEvent, StormSpec};

use crate::{
    fixture::{config, lenient_gateway, metric, sim, start, storm, unlimited_queue, wait_until, wait_until_received},
    shard_listener::ShardListener,
};

const SHARDS: u32 = 2;

/// Injects faults, and waits until every shard has reconnected, if it has to, and receives events again.
async fn inject_and_wait(sim: &SimHandle, listener: &ShardListener, faults: Vec<GatewayFault>) {
    let reconnects = u64::from(!matches!(faults.as_slice(), [GatewayFault::HeartbeatRequest { .. }]));
    let before = listener.log(|log| log.connects.clone());
    let affected = faults.into_iter().map(|fault| sim.gateway_fault(fault)).max();
    assert_eq!(affected, Some(u64::from(SHARDS)));
    for shard in 0..SHARDS {
        listener.wait_until("it reconnects", |log| log.connects[&shard] >= before[&shard] + reconnects).await;
        let events = listener.log(|log| log.events_of(shard));
        listener.wait_until("events after a fault", |log| log.events_of(shard) > events + 100).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_arrive_complete_and_in_order_through_every_fault() {
    let sim = sim(lenient_gateway()).await;
    let listener = ShardListener::unlimited();
    let mut shards = start(config(&sim, SHARDS, unlimited_queue()), &listener);
    listener.wait_until("all are connected", |log| log.connected.len() == 2).await;

    let spec =
        StormSpec { events_per_s: 4_000, seconds: 60.0, event: StormEvent::MessageCreate, ..StormSpec::default() };
    let (done, done_receiver) = tokio::sync::oneshot::channel::<()>();
    let storm = async {
        tokio::select! {
            report = sim.storm(spec) => panic!("the faults took longer than the load: {report:?}"),
            _ = done_receiver => {}
        }
    };
    let faults = async {
        let cut = |code, cut| GatewayFault::Disconnect { shard: None, code, cut, hold_ms: 0 };
        let invalid = |resumable| GatewayFault::InvalidSession { shard: None, resumable };
        for fault in [
            vec![GatewayFault::Reconnect { shard: None }],
            vec![invalid(true)],
            vec![cut(4000, false)],
            vec![cut(4000, true)],
            // Not right after a heartbeat that would stay unanswered: that would look like a cut.
            vec![GatewayFault::Zombie { shard: None }],
            vec![GatewayFault::HeartbeatRequest { shard: None }],
        ] {
            inject_and_wait(&sim, &listener, fault).await;
        }
        assert_eq!(sim.gateway_score().identifies, 2, "all of these are resumed");
        inject_and_wait(&sim, &listener, vec![invalid(false)]).await;
        inject_and_wait(&sim, &listener, vec![GatewayFault::DeadResume { count: 2 }, cut(4009, false)]).await;
        done.send(()).unwrap();
    };
    tokio::join!(storm, faults);
    wait_until_received(&sim, &listener, SHARDS).await;

    let score = sim.gateway_score();
    listener.log(|log| {
        assert_eq!(log.sessions.len(), 6, "three sessions for each shard");
        for received in &log.sessions {
            assert!(received.started && received.resume_url.is_some());
            assert!(received.is_complete_from(1), "session {} of shard {}", received.id, received.shard);
            let session = &score.sessions[received.id.as_ref()];
            assert_eq!((session.shard, session.shards), (received.shard, SHARDS));
            assert!(received.last() <= session.sent_seq);
        }
        assert!(log.largest_batch > 1, "events that are ready together arrive in one batch");
        assert!(log.largest_batch <= 256);
    });
    assert_eq!((score.identifies, score.duplicate_shards, score.slow_readers), (6, 0, 0));
    for reason in
        ["asked", "invalid_session_resumable", "invalid_session", "closed_4000", "closed_4009", "cut", "silent"]
    {
        let count = metric(&format!("guildhall_gateway_reconnects_total{{why=\"{reason}\"}}"));
        assert!(count >= 2.0, "{reason}: {count}");
    }
    shards.shutdown().await;
    let closes = sim.gateway_score().closes_received;
    assert_eq!(closes.get(&1000), score.closes_received.get(&1000), "that would end the sessions");
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_gateway_is_retried_until_it_responds() {
    let sim = sim(lenient_gateway()).await;
    let listener = ShardListener::unlimited();
    let mut config = config(&sim, 1, unlimited_queue());
    config.hello_timeout = Duration::from_millis(100);
    let mut shards = start(config, &listener);
    wait_until_received(&sim, &listener, 1).await;
    let connections = sim.gateway_score().connections_lost;
    sim.gateway_fault(GatewayFault::Disconnect { shard: None, code: 4000, cut: false, hold_ms: 600_000 });
    listener.wait_until("the disconnect is noticed", |log| log.connected.is_empty()).await;
    storm(&sim, 50, StormEvent::MessageCreate).await;
    wait_until("it has disconnected twice", || sim.gateway_score().connections_lost >= connections + 2).await;
    sim.clear_gateway_faults();
    wait_until_received(&sim, &listener, 1).await;
    listener.log(|log| assert!(log.sessions.len() == 1 && log.sessions[0].is_complete_from(1)));
    assert_eq!(sim.gateway_score().identifies, 1);
    shards.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_resume_url_is_retried_with_the_same_session() {
    let sim = sim(lenient_gateway()).await;
    let listener = ShardListener::unlimited();
    let mut config = config(&sim, 1, unlimited_queue());
    // The session is stored; its resume URL is unreachable.
    let mut first = start(config, &listener);
    wait_until_received(&sim, &listener, 1).await;
    first.shutdown().await;
    let received = listener.log(|log| log.sessions[0].clone());

    let second_listener = ShardListener::unlimited();
    config = crate::fixture::config(&sim, 1, unlimited_queue());
    let mut stored = crate::restart::stored_session(&received, 1, received.last());
    stored.resume_url = Some("ws://127.0.0.1:9".to_owned());
    config.resume = vec![stored];
    let mut second = start(config, &second_listener);
    second_listener.wait_until("it is resumed", |log| log.resumed == 1).await;
    assert_eq!(sim.gateway_score().identifies, 1);
    assert!(metric("guildhall_gateway_reconnects_total{why=\"unreachable\"}") >= 1.0);
    second.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_privileged_intents_end_a_shard_with_their_names() {
    let sim = sim(GatewayConfig { privileged_intents: false, ..lenient_gateway() }).await;
    let listener = ShardListener::unlimited();
    let mut shards = start(config(&sim, 1, unlimited_queue()), &listener);
    let ShardEnd::Refused(fatal) = shards.next_end().await else { panic!("unexpected kind of end") };
    assert_eq!(fatal.code, 4014);
    let message = fatal.to_string();
    assert!(message.contains("requested privileged intents (guild_members)"), "{message}");
    assert_eq!(shards.open(), Vec::<u32>::new());
}
