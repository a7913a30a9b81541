//! All faults of a connection.

use std::time::Duration;

use guildhall::discord::ShardEnd;
use guildhall_sim::{GatewayConfig, GatewayFault, SimHandle, StormEvent, StormSpec};

use crate::{
    ear::Ear,
    stage::{all_heard, at_once, config, easy, eventually, metric, sim, start, storm},
};

const SHARDS: u32 = 2;

/// Injects faults, and waits until every shard has reconnected, if it has to, and receives events again.
async fn strike(sim: &SimHandle, ear: &Ear, faults: Vec<GatewayFault>) {
    let anew = u64::from(!matches!(faults.as_slice(), [GatewayFault::HeartbeatRequest { .. }]));
    let before = ear.notes(|notes| notes.connects.clone());
    let struck = faults.into_iter().map(|fault| sim.gateway_fault(fault)).max();
    assert_eq!(struck, Some(u64::from(SHARDS)));
    for shard in 0..SHARDS {
        ear.until("it reconnects", |notes| notes.connects[&shard] >= before[&shard] + anew).await;
        let events = ear.notes(|notes| notes.events_of(shard));
        ear.until("events after a fault", |notes| notes.events_of(shard) > events + 100).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_with_every_fault_arrives_whole_and_in_order_in_each_session() {
    let sim = sim(easy()).await;
    let ear = Ear::patient();
    let mut shards = start(config(&sim, SHARDS, at_once()), &ear);
    ear.until("all are connected", |notes| notes.connected.len() == 2).await;

    let spec =
        StormSpec { events_per_s: 4_000, seconds: 60.0, event: StormEvent::MessageCreate, ..StormSpec::default() };
    let (over, ends) = tokio::sync::oneshot::channel::<()>();
    let storm = async {
        tokio::select! {
            report = sim.storm(spec) => panic!("the faults took longer than the load: {report:?}"),
            _ = ends => {}
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
            strike(&sim, &ear, fault).await;
        }
        assert_eq!(sim.gateway_score().identifies, 2, "all of these are resumed");
        strike(&sim, &ear, vec![invalid(false)]).await;
        strike(&sim, &ear, vec![GatewayFault::DeadResume { count: 2 }, cut(4009, false)]).await;
        over.send(()).unwrap();
    };
    tokio::join!(storm, faults);
    all_heard(&sim, &ear, SHARDS).await;

    let score = sim.gateway_score();
    ear.notes(|notes| {
        assert_eq!(notes.sessions.len(), 6, "three sessions for each shard");
        for heard in &notes.sessions {
            assert!(heard.began && heard.resume_url.is_some());
            assert!(heard.is_whole_from(1), "session {} of shard {}", heard.id, heard.shard);
            let session = &score.sessions[heard.id.as_ref()];
            assert_eq!((session.shard, session.shards), (heard.shard, SHARDS));
            assert!(heard.last() <= session.sent_seq);
        }
        assert!(notes.largest_batch > 1, "events that are ready together arrive in one batch");
        assert!(notes.largest_batch <= 256);
    });
    assert_eq!((score.identifies, score.duplicate_shards, score.slow_readers), (6, 0, 0));
    for why in ["asked", "invalid_session_resumable", "invalid_session", "closed_4000", "closed_4009", "cut", "silent"]
    {
        let count = metric(&format!("guildhall_gateway_reconnects_total{{why=\"{why}\"}}"));
        assert!(count >= 2.0, "{why}: {count}");
    }
    shards.shutdown().await;
    let closes = sim.gateway_score().closes_received;
    assert_eq!(closes.get(&1000), score.closes_received.get(&1000), "that would end the sessions");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_says_nothing_is_tried_again_until_it_does() {
    let sim = sim(easy()).await;
    let ear = Ear::patient();
    let mut config = config(&sim, 1, at_once());
    config.hello_within = Duration::from_millis(100);
    let mut shards = start(config, &ear);
    all_heard(&sim, &ear, 1).await;
    let connections = sim.gateway_score().connections_lost;
    sim.gateway_fault(GatewayFault::Disconnect { shard: None, code: 4000, cut: false, hold_ms: 600_000 });
    ear.until("the disconnect is noticed", |notes| notes.connected.is_empty()).await;
    storm(&sim, 50, StormEvent::MessageCreate).await;
    eventually("it has disconnected twice", || sim.gateway_score().connections_lost >= connections + 2).await;
    sim.clear_gateway_faults();
    all_heard(&sim, &ear, 1).await;
    ear.notes(|notes| assert!(notes.sessions.len() == 1 && notes.sessions[0].is_whole_from(1)));
    assert_eq!(sim.gateway_score().identifies, 1);
    shards.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_cannot_be_reached_is_tried_again_with_the_same_session() {
    let sim = sim(easy()).await;
    let ear = Ear::patient();
    let mut config = config(&sim, 1, at_once());
    // The session is stored; its resume URL is unreachable.
    let mut first = start(config, &ear);
    all_heard(&sim, &ear, 1).await;
    first.shutdown().await;
    let heard = ear.notes(|notes| notes.sessions[0].clone());

    let again = Ear::patient();
    config = crate::stage::config(&sim, 1, at_once());
    let mut kept = crate::restart::kept(&heard, 1, heard.last());
    kept.resume_url = Some("ws://127.0.0.1:9".to_owned());
    config.resume = vec![kept];
    let mut second = start(config, &again);
    again.until("it is resumed", |notes| notes.resumed == 1).await;
    assert_eq!(sim.gateway_score().identifies, 1);
    assert!(metric("guildhall_gateway_reconnects_total{why=\"unreachable\"}") >= 1.0);
    second.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn privileged_intents_that_are_not_granted_end_a_shard_with_their_names() {
    let sim = sim(GatewayConfig { privileged_intents: false, ..easy() }).await;
    let ear = Ear::patient();
    let mut shards = start(config(&sim, 1, at_once()), &ear);
    let ShardEnd::Refused(fatal) = shards.next_end().await else { panic!("unexpected kind of end") };
    assert_eq!(fatal.code, 4014);
    let says = fatal.to_string();
    assert!(says.contains("requested privileged intents (guild_members)"), "{says}");
    assert_eq!(shards.open(), Vec::<u32>::new());
}
