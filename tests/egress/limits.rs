//! Under load, with the operations of the same daemon, no limit of Discord is exceeded and no call is lost.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use guildhall_sim::{LimitConfig, RateLimitScore};
use guildhall_testkit::program::{TEST_TIMEOUT, request};
use serde_json::json;

use crate::fixture::{Call, EgressFixture, bot};

const CLIENTS: usize = 18;
const CALLS_EACH: usize = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_and_operations_together_exceed_no_limit() {
    let fixture = EgressFixture::start_with(LimitConfig::default(), &[]).await;
    let guilds = fixture.sim.guilds();
    let channels: Vec<String> = guilds.iter().map(|guild| fixture.channel_of(guild)).collect();
    let operations: Vec<_> =
        (0..40).map(|number| json!({"kind": "create_role", "payload": {"name": format!("role {number}")}})).collect();
    for guild in &guilds {
        let path = format!("/v1/guilds/{guild}/operations");
        assert_eq!(fixture.api("POST", &path, &json!({"operations": operations})).status, 202);
    }
    let egress = fixture.egress;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let channel = channels[client % channels.len()].clone();
            // A client as libraries are: it waits as long as a 429 says, and sends the call again.
            tokio::task::spawn_blocking(move || {
                for number in 0..CALLS_EACH {
                    let body = json!({"content": format!("message {client}.{number}")}).to_string();
                    let path = format!("/channels/{channel}/messages");
                    let call =
                        Call { method: "POST", path: &path, authorization: &bot(), body: &body, ..Call::default() };
                    loop {
                        let response = request(egress, &call.text());
                        match response.status {
                            200 => break,
                            429 => {
                                let wait = response.json()["retry_after"].as_f64().unwrap();
                                std::thread::sleep(Duration::from_secs_f64(wait));
                            }
                            status => panic!("{status}: {}", response.body),
                        }
                    }
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    let score = fixture.sim.score();
    assert_eq!(score.rate_limited, RateLimitScore::default(), "{:?}", score.routes);
    assert_eq!(score.invalid_requests, 0);
    assert!(score.max_per_second.values().all(|most| *most <= 50), "{:?}", score.max_per_second);
    let sent = fixture.arrived_at("POST /channels/{channel.id}/messages");
    assert_eq!(sent, (CLIENTS * CALLS_EACH) as u64, "each call arrived exactly once");
}

/// Clients of each lane.
const LANE_CLIENTS: usize = 6;

/// Responses to interactive calls after which the load ends: several seconds at the global limit.
const INTERACTIVE_CALLS: usize = 300;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_hold_beside_operations_at_full_demand() {
    let fixture = EgressFixture::start_with(LimitConfig::default(), &[]).await;
    let guilds = fixture.sim.guilds();
    let channel = fixture.channel_of(guilds[0]);
    let operations: Vec<_> =
        (0..100).map(|number| json!({"kind": "create_role", "payload": {"name": format!("role {number}")}})).collect();
    for guild in &guilds {
        let path = format!("/v1/guilds/{guild}/operations");
        assert_eq!(fixture.api("POST", &path, &json!({"operations": operations})).status, 202);
    }
    let (egress, counts) = (fixture.egress, Arc::new([const { AtomicUsize::new(0) }; 2]));
    let clients: Vec<_> = (0..2 * LANE_CLIENTS)
        .map(|client| {
            let (lane, counts, channel) = (client % 2, Arc::clone(&counts), channel.clone());
            tokio::task::spawn_blocking(move || {
                let headers = format!(
                    "X-Guildhall-Lane: {}\r\nX-Guildhall-Deadline-Ms: 60000\r\n",
                    ["interactive", "background"][lane]
                );
                // No limit but the global one.
                let path = format!("/channels/{channel}/typing");
                let authorization = bot();
                let call = Call {
                    method: "POST",
                    path: &path,
                    authorization: &authorization,
                    headers: &headers,
                    ..Call::default()
                };
                while counts[0].load(Ordering::Relaxed) < INTERACTIVE_CALLS {
                    let response = request(egress, &call.text());
                    assert_eq!(response.status, 204, "{}", response.body);
                    counts[lane].fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    // Counted before the last calls of the background are answered: then they have the limit for themselves.
    let deadline = Instant::now() + TEST_TIMEOUT;
    while counts[0].load(Ordering::Relaxed) < INTERACTIVE_CALLS {
        assert!(Instant::now() < deadline, "{counts:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let [interactive, background] = [0, 1].map(|lane| counts[lane].load(Ordering::Relaxed));
    let created = fixture.arrived_at("POST /guilds/{guild.id}/roles") as usize;
    for client in clients {
        client.await.unwrap();
    }
    let score = fixture.sim.score();
    println!("{interactive} interactive, {background} background, {created} operations; {:?}", score.max_per_second);
    assert_eq!(score.rate_limited, RateLimitScore::default(), "{:?}", score.routes);
    assert!(score.max_per_second.values().all(|most| *most <= 50), "{:?}", score.max_per_second);
    assert!(created < 300, "operations waited to the end");
    // With as many clients, the lane that waits less has more responses.
    assert!(interactive > 4 * background, "{interactive} interactive, {background} background");
    // One in twenty, whatever the load of the other lanes; those at the beginning and at the end are not complete.
    let floor = (interactive + background + created) / 20 - 2;
    assert!(background >= floor && created >= floor, "{background} background, {created} operations, floor {floor}");
}
