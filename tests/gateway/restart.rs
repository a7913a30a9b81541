//! Another process continues where one has ended; and several processes share the shards.

use guildhall_actors::ports::StoredSession;
use guildhall_core::time::UnixMs;
use guildhall_sim::StormEvent;

use crate::{
    fixture::{config, last_seq, lenient_gateway, sim, start, storm, unlimited_queue, wait_until_received},
    shard_listener::{ReceivedSession, ShardListener},
};

/// A stored session that is confirmed up to this number.
pub(crate) fn stored_session(received: &ReceivedSession, shards: u32, confirmed: u64) -> StoredSession {
    StoredSession {
        shard: received.shard,
        shards,
        session: received.id.clone(),
        resume_url: received.resume_url.clone(),
        confirmed,
        at: UnixMs::new(0),
        fence: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn restart_resumes_after_the_confirmed_events_without_identify() {
    for graceful in [true, false] {
        let sim = sim(lenient_gateway()).await;
        let listener = ShardListener::unlimited();
        let mut first = start(config(&sim, 2, unlimited_queue()), &listener);
        listener.wait_until("all are connected", |log| log.connected.len() == 2).await;
        storm(&sim, 400, StormEvent::MessageCreate).await;
        wait_until_received(&sim, &listener, 2).await;
        if graceful {
            first.shutdown().await;
        } else {
            drop(first);
        }
        // Events while no process runs.
        storm(&sim, 300, StormEvent::MessageCreate).await;

        let received = listener.log(|log| log.sessions.clone());
        let second_listener = ShardListener::unlimited();
        let mut config = config(&sim, 2, unlimited_queue());
        config.resume = received.iter().map(|received| stored_session(received, 2, received.last() - 50)).collect();
        let mut second = start(config, &second_listener);
        wait_until_received(&sim, &second_listener, 2).await;
        second_listener.log(|log| {
            assert_eq!((log.sessions.len(), log.resumed), (2, 2));
            for session in &log.sessions {
                let before = received.iter().find(|before| before.shard == session.shard).unwrap();
                assert_eq!(session.id, before.id);
                assert!(!session.started, "it was started before");
                assert!(session.is_complete_from(before.last() - 49), "{:?}", session.seqs);
                assert_eq!(session.last(), last_seq(&sim, &session.id));
            }
        });
        let score = sim.gateway_score();
        assert_eq!((score.identifies, score.resumes, score.resumes_refused), (2, 2, 0));
        second.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn session_of_another_shard_count_is_started_again() {
    let sim = sim(lenient_gateway()).await;
    let listener = ShardListener::unlimited();
    let mut first = start(config(&sim, 1, unlimited_queue()), &listener);
    wait_until_received(&sim, &listener, 1).await;
    first.shutdown().await;
    let received = listener.log(|log| log.sessions[0].clone());
    let second_listener = ShardListener::unlimited();
    let mut config = config(&sim, 2, unlimited_queue());
    config.resume = vec![stored_session(&received, 1, received.last())];
    let mut second = start(config, &second_listener);
    second_listener.wait_until("all are connected", |log| log.connected.len() == 2).await;
    assert_eq!((sim.gateway_score().identifies, sim.gateway_score().resumes), (3, 0));
    second.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn several_processes_each_run_their_part_of_the_shards() {
    let sim = sim(lenient_gateway()).await;
    let (left, right) = (ShardListener::unlimited(), ShardListener::unlimited());
    let mut processes = Vec::new();
    for (listener, range) in [(&left, "0-1"), (&right, "2-4")] {
        let mut config = config(&sim, 5, unlimited_queue());
        config.range = range.parse().unwrap();
        config.threads = 2;
        processes.push(start(config, listener));
    }
    left.wait_until("both are connected", |log| log.connected.iter().eq(&[0, 1])).await;
    right.wait_until("all three are connected", |log| log.connected.iter().eq(&[2, 3, 4])).await;
    let score = sim.gateway_score();
    assert_eq!((score.identifies, score.duplicate_shards, score.connections), (5, 0, 5));
    assert!(score.sessions.values().all(|session| session.shards == 5));
    storm(&sim, 800, StormEvent::MessageCreate).await;
    let received = |listener: &ShardListener| {
        listener
            .log(|log| log.sessions.iter().filter_map(|received| received.events.get("message.create")).sum::<u64>())
    };
    // Each guild belongs to exactly one of them.
    left.wait_until("its part has arrived", |log| {
        log.sessions.iter().all(|received| received.last() == last_seq(&sim, &received.id))
    })
    .await;
    right
        .wait_until("its part has arrived", |log| {
            log.sessions.iter().all(|received| received.last() == last_seq(&sim, &received.id))
        })
        .await;
    assert_eq!(received(&left) + received(&right), 800);
    for mut process in processes {
        process.shutdown().await;
    }
}
