//! Another process continues where one has ended; and several processes share the shards.

use guildhall_actors::ports::StoredSession;
use guildhall_core::time::UnixMs;
use guildhall_sim::StormEvent;

use crate::{
    ear::{Ear, Heard},
    stage::{all_heard, at_once, config, easy, last_seq, sim, start, storm},
};

/// A stored session that is confirmed up to this number.
pub(crate) fn kept(heard: &Heard, shards: u32, confirmed: u64) -> StoredSession {
    StoredSession {
        shard: heard.shard,
        shards,
        session: heard.id.clone(),
        resume_url: heard.resume_url.clone(),
        confirmed,
        at: UnixMs::new(0),
        under: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_resumes_after_what_is_confirmed_and_identifies_no_more() {
    for goodbye in [true, false] {
        let sim = sim(easy()).await;
        let ear = Ear::patient();
        let mut first = start(config(&sim, 2, at_once()), &ear);
        ear.until("all are connected", |notes| notes.connected.len() == 2).await;
        storm(&sim, 400, StormEvent::MessageCreate).await;
        all_heard(&sim, &ear, 2).await;
        if goodbye {
            first.shutdown().await;
        } else {
            drop(first);
        }
        // Events while no process runs.
        storm(&sim, 300, StormEvent::MessageCreate).await;

        let heard = ear.notes(|notes| notes.sessions.clone());
        let again = Ear::patient();
        let mut config = config(&sim, 2, at_once());
        config.resume = heard.iter().map(|heard| kept(heard, 2, heard.last() - 50)).collect();
        let mut second = start(config, &again);
        all_heard(&sim, &again, 2).await;
        again.notes(|notes| {
            assert_eq!((notes.sessions.len(), notes.resumed), (2, 2));
            for session in &notes.sessions {
                let before = heard.iter().find(|before| before.shard == session.shard).unwrap();
                assert_eq!(session.id, before.id);
                assert!(!session.began, "it was started before");
                assert!(session.is_whole_from(before.last() - 49), "{:?}", session.numbers);
                assert_eq!(session.last(), last_seq(&sim, &session.id));
            }
        });
        let score = sim.gateway_score();
        assert_eq!((score.identifies, score.resumes, score.resumes_refused), (2, 2, 0));
        second.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_of_another_number_of_shards_is_begun_anew() {
    let sim = sim(easy()).await;
    let ear = Ear::patient();
    let mut first = start(config(&sim, 1, at_once()), &ear);
    all_heard(&sim, &ear, 1).await;
    first.shutdown().await;
    let heard = ear.notes(|notes| notes.sessions[0].clone());
    let again = Ear::patient();
    let mut config = config(&sim, 2, at_once());
    config.resume = vec![kept(&heard, 1, heard.last())];
    let mut second = start(config, &again);
    again.until("all are connected", |notes| notes.connected.len() == 2).await;
    assert_eq!((sim.gateway_score().identifies, sim.gateway_score().resumes), (3, 0));
    second.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn several_processes_each_run_their_part_of_the_shards() {
    let sim = sim(easy()).await;
    let (left, right) = (Ear::patient(), Ear::patient());
    let mut processes = Vec::new();
    for (ear, range) in [(&left, "0-1"), (&right, "2-4")] {
        let mut config = config(&sim, 5, at_once());
        config.range = range.parse().unwrap();
        config.threads = 2;
        processes.push(start(config, ear));
    }
    left.until("both are connected", |notes| notes.connected.iter().eq(&[0, 1])).await;
    right.until("all three are connected", |notes| notes.connected.iter().eq(&[2, 3, 4])).await;
    let score = sim.gateway_score();
    assert_eq!((score.identifies, score.duplicate_shards, score.connections), (5, 0, 5));
    assert!(score.sessions.values().all(|session| session.shards == 5));
    storm(&sim, 800, StormEvent::MessageCreate).await;
    let heard = |ear: &Ear| {
        ear.notes(|notes| notes.sessions.iter().filter_map(|heard| heard.events.get("message.create")).sum::<u64>())
    };
    // Each guild belongs to exactly one of them.
    left.until("its part has arrived", |notes| {
        notes.sessions.iter().all(|heard| heard.last() == last_seq(&sim, &heard.id))
    })
    .await;
    right
        .until("its part has arrived", |notes| {
            notes.sessions.iter().all(|heard| heard.last() == last_seq(&sim, &heard.id))
        })
        .await;
    assert_eq!(heard(&left) + heard(&right), 800);
    for mut process in processes {
        process.shutdown().await;
    }
}
