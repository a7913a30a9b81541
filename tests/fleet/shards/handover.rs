//! Shards are handed over from one daemon to another.

use super::fixture::{LONG_LEASE, SHARDS, SHORT_LEASE, ShardDaemon, ShardFixture};

/// Every session was started once, and none was lost, taken over by mistake, or refused.
fn assert_started_once(fixture: &ShardFixture) {
    let score = fixture.sim.gateway_score();
    let counts = (score.identifies, score.sessions_ended, score.duplicate_shards, score.resumes_refused);
    assert_eq!(counts, (u64::from(SHARDS), 0, 0, 0), "identifies, ends, duplicates, refusals");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_daemon_leaves_its_sessions_to_the_other() {
    let fixture = ShardFixture::new().await;
    let (mut first, second) = tokio::join!(fixture.start_daemon(&SHORT_LEASE), fixture.start_daemon(&SHORT_LEASE));
    // The first daemon may have claimed all shards, and then released a part for the other.
    fixture.wait_until_shared(&[&first, &second], 2).await;
    assert_started_once(&fixture);
    assert_eq!(fixture.sim.gateway_score().connections, u64::from(SHARDS));
    fixture.write_messages(1).await;
    fixture.wait_until_echoed(&[&first, &second]).await;

    fixture.write_messages(2).await;
    first.process.kill();
    fixture.write_messages(3).await;
    fixture.wait_until_shared(&[&second], SHARDS as usize).await;
    fixture.write_messages(4).await;
    fixture.wait_until_echoed(&[&second]).await;
    assert_started_once(&fixture);
    assert!(second.metric("guildhall_gateway_shard_claims_total{what=\"taken\"}") >= f64::from(SHARDS));

    // The same if no daemon is left: the next one resumes the sessions.
    let mut second = second;
    second.process.kill();
    fixture.write_messages(5).await;
    let third = fixture.start_daemon(&SHORT_LEASE).await;
    fixture.wait_until_shared(&[&third], SHARDS as usize).await;
    fixture.wait_until_echoed(&[&third]).await;
    assert_started_once(&fixture);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_daemon_hands_its_shards_over_at_once() {
    let fixture = ShardFixture::new().await;
    let first = fixture.start_daemon(&LONG_LEASE).await;
    fixture.wait_until_shared(&[&first], SHARDS as usize).await;
    // A daemon that starts later gets its part.
    let second = fixture.start_daemon(&LONG_LEASE).await;
    fixture.wait_until_shared(&[&first, &second], 2).await;
    fixture.write_messages(1).await;
    first.stop().await;
    fixture.write_messages(2).await;
    fixture.wait_until_shared(&[&second], SHARDS as usize).await;
    fixture.write_messages(3).await;
    fixture.wait_until_echoed(&[&second]).await;
    assert_started_once(&fixture);
    second.stop().await;
    let third = fixture.start_daemon(&LONG_LEASE).await;
    fixture.wait_until_shared(&[&third], SHARDS as usize).await;
    fixture.write_messages(4).await;
    fixture.wait_until_echoed(&[&third]).await;
    assert_started_once(&fixture);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overlapping_ranges_do_not_conflict() {
    let fixture = ShardFixture::new().await;
    let environment = |range| [SHORT_LEASE.as_slice(), &[("GUILDHALL__GATEWAY__SHARD_RANGE", range)]].concat();
    let (low, high) = (environment("0-2"), environment("1-3"));
    let (first, second) = tokio::join!(fixture.start_daemon(&low), fixture.start_daemon(&high));
    fixture.wait_until_shared(&[&first, &second], 1).await;
    fixture.write_messages(1).await;
    fixture.wait_until_echoed(&[&first, &second]).await;
    assert_started_once(&fixture);
    assert_eq!(fixture.sim.gateway_score().connections, u64::from(SHARDS));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_daemon_loses_its_shards_and_does_not_reclaim_them() {
    let fixture = ShardFixture::new().await;
    let (first, second) = tokio::join!(fixture.start_daemon(&SHORT_LEASE), fixture.start_daemon(&SHORT_LEASE));
    fixture.wait_until_shared(&[&first, &second], 2).await;
    // A session that was not stored before its process was suspended cannot be resumed.
    fixture.write_messages(1).await;
    fixture.wait_until_echoed(&[&first, &second]).await;
    let sessions_stored = || {
        let response = second.request("GET", "/v1/shards").json();
        response["shards"].as_array().is_some_and(|all| all.iter().all(|shard| shard["session"].is_string()))
    };
    fixture.wait_until("the sessions are stored", &[&first, &second], sessions_stored).await;
    first.process.signal("STOP");
    fixture.write_messages(2).await;
    fixture
        .wait_until("the other daemon has all shards", &[&second], || second.shards().len() == SHARDS as usize)
        .await;
    fixture.write_messages(3).await;
    first.process.signal("CONT");
    let lost = || first.metric("guildhall_gateway_shard_claims_total{what=\"lost\"}") >= 2.0;
    fixture.wait_until("it knows that it lost its shards", &[&first, &second], lost).await;
    // It gets its part again by a regular handover.
    fixture.wait_until_shared(&[&first, &second], 2).await;
    fixture.write_messages(4).await;
    fixture.wait_until_echoed(&[&first, &second]).await;
    assert_started_once(&fixture);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_daemon_lists_all_shards_and_restarts_only_its_own() {
    let fixture = ShardFixture::new().await;
    let (first, second) = tokio::join!(fixture.start_daemon(&LONG_LEASE), fixture.start_daemon(&LONG_LEASE));
    fixture.wait_until_shared(&[&first, &second], 2).await;
    let instance = |process: &ShardDaemon| {
        let response = process.request("GET", "/v1/instances").json();
        let own = response["instances"].as_array().unwrap().iter().find(|one| one["is_self"] == true).unwrap();
        own["id"].clone()
    };
    let ids = [instance(&first), instance(&second)];
    for (process, other) in [(&first, &ids[1]), (&second, &ids[0])] {
        let own = process.shards();
        let response = process.request("GET", "/v1/shards").json();
        assert_eq!(response["total"], SHARDS, "{response}");
        for shard in response["shards"].as_array().unwrap() {
            if own.contains(&shard["id"].as_u64().unwrap()) {
                assert_eq!(shard["state"], "connected", "{shard}");
            } else {
                assert_eq!((&shard["state"], &shard["instance"]), (&"elsewhere".into(), other), "{shard}");
                let refused = process.request("POST", &format!("/v1/shards/{}/restart", shard["id"]));
                assert_eq!((refused.status, &refused.json()["instance"]), (409, other), "{}", refused.body);
            }
        }
    }
    fixture.write_messages(1).await;
    // The first daemon may have handed over some shards, which were resumed then.
    let (restarted, resumes) = (first.shards()[0], fixture.sim.gateway_score().resumes);
    assert_eq!(first.request("POST", &format!("/v1/shards/{restarted}/restart")).status, 202);
    fixture.write_messages(2).await;
    fixture.wait_until("it has resumed", &[&first], || fixture.sim.gateway_score().resumes > resumes).await;
    fixture.wait_until_echoed(&[&first, &second]).await;
    assert_started_once(&fixture);
    let response = first.request("GET", "/v1/audit?action=shards.restart").json();
    assert_eq!(response["audit"].as_array().unwrap().len(), 1, "{response}");
}
