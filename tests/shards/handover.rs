//! Shards are handed over from one daemon to another.

use crate::stage::{BRISK, PATIENT, Process, SHARDS, Stage};

/// Every session was started once, and none was lost, taken over by mistake, or refused.
fn begun_once(stage: &Stage) {
    let score = stage.sim.gateway_score();
    let found = (score.identifies, score.sessions_ended, score.duplicate_shards, score.resumes_refused);
    assert_eq!(found, (u64::from(SHARDS), 0, 0, 0), "identifies, ends, duplicates, refusals");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn daemons_without_ranges_share_the_shards_and_one_that_is_killed_leaves_its_sessions_to_the_other() {
    let stage = Stage::new().await;
    let (mut first, second) = tokio::join!(stage.begin(&BRISK), stage.begin(&BRISK));
    // The first daemon may have claimed all shards, and then released a part for the other.
    stage.shared_by(&[&first, &second], 2).await;
    begun_once(&stage);
    assert_eq!(stage.sim.gateway_score().connections, u64::from(SHARDS));
    stage.writes(1).await;
    stage.all_echoed(&[&first, &second]).await;

    stage.writes(2).await;
    first.life.kill();
    stage.writes(3).await;
    stage.shared_by(&[&second], SHARDS as usize).await;
    stage.writes(4).await;
    stage.all_echoed(&[&second]).await;
    begun_once(&stage);
    assert!(second.metric("guildhall_gateway_shard_claims_total{what=\"taken\"}") >= f64::from(SHARDS));

    // The same if no daemon is left: the next one resumes the sessions.
    let mut second = second;
    second.life.kill();
    stage.writes(5).await;
    let third = stage.begin(&BRISK).await;
    stage.shared_by(&[&third], SHARDS as usize).await;
    stage.all_echoed(&[&third]).await;
    begun_once(&stage);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_ends_in_order_hands_its_shards_over_at_once() {
    let stage = Stage::new().await;
    let first = stage.begin(&PATIENT).await;
    stage.shared_by(&[&first], SHARDS as usize).await;
    // A daemon that starts later gets its part.
    let second = stage.begin(&PATIENT).await;
    stage.shared_by(&[&first, &second], 2).await;
    stage.writes(1).await;
    first.ends().await;
    stage.writes(2).await;
    stage.shared_by(&[&second], SHARDS as usize).await;
    stage.writes(3).await;
    stage.all_echoed(&[&second]).await;
    begun_once(&stage);
    second.ends().await;
    let third = stage.begin(&PATIENT).await;
    stage.shared_by(&[&third], SHARDS as usize).await;
    stage.writes(4).await;
    stage.all_echoed(&[&third]).await;
    begun_once(&stage);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranges_that_overlap_by_mistake_do_not_fight() {
    let stage = Stage::new().await;
    let ranged = |range| [BRISK.as_slice(), &[("GUILDHALL__GATEWAY__SHARD_RANGE", range)]].concat();
    let (low, high) = (ranged("0-2"), ranged("1-3"));
    let (first, second) = tokio::join!(stage.begin(&low), stage.begin(&high));
    stage.shared_by(&[&first, &second], 1).await;
    stage.writes(1).await;
    stage.all_echoed(&[&first, &second]).await;
    begun_once(&stage);
    assert_eq!(stage.sim.gateway_score().connections, u64::from(SHARDS));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_stood_still_loses_its_shards_and_does_not_take_them_back_from_the_other() {
    let stage = Stage::new().await;
    let (first, second) = tokio::join!(stage.begin(&BRISK), stage.begin(&BRISK));
    stage.shared_by(&[&first, &second], 2).await;
    // A session that was not stored before its process was suspended cannot be resumed.
    stage.writes(1).await;
    stage.all_echoed(&[&first, &second]).await;
    let kept = || {
        let told = second.ask("GET", "/v1/shards").json();
        told["shards"].as_array().is_some_and(|all| all.iter().all(|shard| shard["session"].is_string()))
    };
    stage.until("the sessions are stored", &[&first, &second], kept).await;
    first.life.signal("STOP");
    stage.writes(2).await;
    stage.until("the other daemon has all shards", &[&second], || second.shards().len() == SHARDS as usize).await;
    stage.writes(3).await;
    first.life.signal("CONT");
    let lost = || first.metric("guildhall_gateway_shard_claims_total{what=\"lost\"}") >= 2.0;
    stage.until("it knows that it lost its shards", &[&first, &second], lost).await;
    // It gets its part again by a regular handover.
    stage.shared_by(&[&first, &second], 2).await;
    stage.writes(4).await;
    stage.all_echoed(&[&first, &second]).await;
    begun_once(&stage);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_daemon_tells_of_all_shards_and_restarts_only_its_own() {
    let stage = Stage::new().await;
    let (first, second) = tokio::join!(stage.begin(&PATIENT), stage.begin(&PATIENT));
    stage.shared_by(&[&first, &second], 2).await;
    let instance = |process: &Process| {
        let told = process.ask("GET", "/v1/instances").json();
        let own = told["instances"].as_array().unwrap().iter().find(|one| one["is_self"] == true).unwrap();
        own["id"].clone()
    };
    let ids = [instance(&first), instance(&second)];
    for (process, other) in [(&first, &ids[1]), (&second, &ids[0])] {
        let own = process.shards();
        let told = process.ask("GET", "/v1/shards").json();
        assert_eq!(told["total"], SHARDS, "{told}");
        for shard in told["shards"].as_array().unwrap() {
            if own.contains(&shard["id"].as_u64().unwrap()) {
                assert_eq!(shard["state"], "connected", "{shard}");
            } else {
                assert_eq!((&shard["state"], &shard["instance"]), (&"elsewhere".into(), other), "{shard}");
                let refused = process.ask("POST", &format!("/v1/shards/{}/restart", shard["id"]));
                assert_eq!((refused.status, &refused.json()["instance"]), (409, other), "{}", refused.body);
            }
        }
    }
    stage.writes(1).await;
    // The first daemon may have handed over some shards, which were resumed then.
    let (restarted, resumes) = (first.shards()[0], stage.sim.gateway_score().resumes);
    assert_eq!(first.ask("POST", &format!("/v1/shards/{restarted}/restart")).status, 202);
    stage.writes(2).await;
    stage.until("it has resumed", &[&first], || stage.sim.gateway_score().resumes > resumes).await;
    stage.all_echoed(&[&first, &second]).await;
    begun_once(&stage);
    let told = first.ask("GET", "/v1/audit?action=shards.restart").json();
    assert_eq!(told["audit"].as_array().unwrap().len(), 1, "{told}");
}
