//! Under load, with the operations of the same daemon, no limit of Discord is exceeded and no call is lost.

use guildhall_sim::{LimitConfig, RateLimitScore};
use guildhall_testkit::program::request;
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
                                std::thread::sleep(std::time::Duration::from_secs_f64(wait));
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
