//! The gate under full load: whatever the latency, no limit of Discord is exceeded.

use std::time::Duration;

use futures_util::future::join_all;
use guildhall_actors::gate::{CallOutcome, GateConfig, RestRequest};
use guildhall_core::lane::Lane;
use guildhall_sim::{Algorithm, FaultAction, LimitConfig, Rate, RateLimitScore, Stage};
use guildhall_testkit::gate::{SimWorld, call_all, run};
use http::Method;
use serde_json::json;

const GUILDS: u32 = 200;

/// Callers that start at the same time.
const CALLERS: usize = 700;

/// How long each of them waits for its permit.
const MAX_WAIT: Duration = Duration::from_secs(4);

/// What delays calls.
#[derive(Clone, Copy, Debug)]
enum Latency {
    /// The same delay for all, at every stage.
    Fixed,
    /// Up to half a second, at every stage.
    Jittered,
    /// One call in ten stalls for seconds at some stage.
    Stalling,
    /// One call in ten gets no response, and counts as long as it might still arrive.
    Cut,
}

const STAGES: [Stage; 3] = [Stage::Arrival, Stage::Effect, Stage::Answer];

fn add_latency(world: &SimWorld, latency: Latency) {
    for at in STAGES {
        match latency {
            Latency::Fixed => world.fault("*", FaultAction::Latency { fixed_ms: 60, jitter_ms: 0, at }),
            Latency::Jittered => world.fault("*", FaultAction::Latency { fixed_ms: 0, jitter_ms: 500, at }),
            Latency::Stalling => {
                world.faults("*", FaultAction::Latency { fixed_ms: 2_500, jitter_ms: 0, at }, 0.03, None)
            }
            Latency::Cut => world.fault("*", FaultAction::Latency { fixed_ms: 0, jitter_ms: 40, at }),
        };
    }
    if let Latency::Cut = latency {
        world.faults("*", FaultAction::DropAfter, 0.05, None);
        world.faults("*", FaultAction::DropBefore, 0.05, None);
    }
}

/// The request of one caller. Every other one is for one of four busy guilds, so that their buckets become empty.
fn request_of_caller(world: &SimWorld, number: usize) -> RestRequest {
    let kind = number % 14;
    let round = number / 14;
    let guild_ids = &world.guilds[if round.is_multiple_of(2) { round / 2 % 4 } else { number % world.guilds.len() }];
    let (guild, channel) = (guild_ids.guild, guild_ids.channel);
    let mut request = match kind {
        0 => world.create_role(guild_ids, &format!("role {number}")),
        1 => world.request(Method::DELETE, format!("/guilds/{guild}/roles/{number}")),
        2 => world.json_request(Method::PATCH, format!("/guilds/{guild}/roles/{number}"), &json!({ "name": "other" })),
        3 | 4 => world.member_role(Method::PUT, guild_ids),
        5 | 6 => world.member_role(Method::DELETE, guild_ids),
        7 | 8 => world.message(guild_ids, &format!("message {number}")),
        9 => world.request(Method::DELETE, format!("/channels/{channel}/messages/{}", guild_ids.guild + 1)),
        10 => world.get_channel(guild_ids),
        11 => world.request(Method::GET, format!("/channels/{channel}/messages")),
        12 => world.get_guild(guild_ids),
        // A route without its own limit.
        _ => world.request(Method::POST, format!("/channels/{channel}/typing")),
    };
    request.lane = Lane::ALL[number % 3];
    request.max_wait = MAX_WAIT;
    request
}

/// One simulator, one gate, and all callers at the same time.
async fn run_full_load(algorithm: Algorithm, latency: Latency) {
    let limits = LimitConfig { global: Rate::new(50, 1_000, algorithm), ..LimitConfig::default() };
    let world = SimWorld::start(GUILDS, limits).await;
    add_latency(&world, latency);
    let gate = world.gate(GateConfig::default());
    let outcomes = call_all(&gate, (0..CALLERS).map(|number| request_of_caller(&world, number))).await;

    let name = format!("{algorithm:?} {latency:?}");
    let score = world.score();
    let sent = outcomes.iter().filter(|outcome| !matches!(outcome, CallOutcome::NotSent(_))).count();
    let unknown = outcomes.iter().filter(|outcome| matches!(outcome, CallOutcome::Unknown(_))).count();
    println!(
        "{name}: {} arrived, {sent} sent, {unknown} unknown, at most {:?} in a second",
        score.requests, score.max_per_second
    );
    assert_eq!(score.rate_limited, RateLimitScore::default(), "{name}: {:?}", score.routes);
    assert!(world.max_per_second() <= 50, "{name}: {:?}", score.max_per_second);
    assert_eq!(score.invalid_requests, 0, "{name}");
    assert_eq!(score.requests, sent as u64, "{name}: each call that was sent arrived exactly once");
    assert_eq!(unknown as u64, score.dropped, "{name}: only cut calls are unknown");
    assert!(sent >= 40, "{name}: the load was served in part at least, {sent}");
}

#[test]
fn full_load_exceeds_no_limit_at_any_latency() {
    run(async {
        let latencies = [Latency::Fixed, Latency::Jittered, Latency::Stalling, Latency::Cut];
        let all = [Algorithm::Sliding, Algorithm::Aligned]
            .into_iter()
            .flat_map(|algorithm| latencies.map(|latency| run_full_load(algorithm, latency)));
        join_all(all).await;
    });
}
