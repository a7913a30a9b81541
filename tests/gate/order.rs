//! Which calls wait for which at the gate, and which do not.

use std::time::Duration;

use futures_util::future::join_all;
use guildhall_actors::gate::{CallOutcome, GateConfig, Rest as _, RestRequest};
use guildhall_core::lane::Lane;
use guildhall_core::route::SublimitKind;
use guildhall_sim::{Algorithm, Case, FaultAction, LimitConfig, RateLimitScore, RouteLimit, Stage};
use guildhall_testkit::gate::{SimWorld, answered, call_all, not_sent, run};
use http::Method;
use serde_json::json;

const MESSAGES: &str = "/channels/{channel.id}/messages";

/// One call in any 40 ms: the next is sent when the last has its response, so arrivals show the order of the permits.
fn one_at_a_time() -> RouteLimit {
    RouteLimit {
        method: "POST".into(),
        path: MESSAGES.into(),
        case: Case::Any,
        bucket: None,
        limit: 1,
        per_ms: 40,
        algorithm: Algorithm::Fixed,
    }
}

fn rename(world: &SimWorld, name: &str) -> RestRequest {
    let path = format!("/channels/{}", world.guilds[0].channel);
    let mut request = world.json_request(Method::PATCH, path, &json!({ "name": name }));
    request.sub = Some(SublimitKind::ChannelName);
    request
}

#[test]
fn messages_of_one_channel_and_lane_appear_in_the_order_submitted() {
    run(async {
        let world = SimWorld::start(2, LimitConfig::default()).await;
        world.sim.set_route_limit(one_at_a_time()).unwrap();
        let gate = world.gate(GateConfig::default());
        let lanes = [("operation", Lane::Operation), ("background", Lane::Background)];
        let requests = (0..12).flat_map(|number| {
            let world = &world;
            lanes.iter().flat_map(move |(name, lane)| {
                world.guilds.iter().map(move |guild_ids| {
                    let mut request = world.message(guild_ids, &format!("{name} {number}"));
                    request.lane = *lane;
                    request.max_wait = Duration::from_secs(20);
                    request
                })
            })
        });
        for outcome in call_all(&gate, requests.collect::<Vec<_>>()).await {
            assert!(answered(outcome).status.is_success());
        }
        let score = world.score();
        assert_eq!(score.rate_limited, RateLimitScore::default());
        for guild_ids in &world.guilds {
            let effects = &score.effects[&guild_ids.guild.to_string()];
            for (name, _) in lanes {
                let seen: Vec<&str> =
                    effects.iter().map(|effect| effect.name.as_str()).filter(|text| text.starts_with(name)).collect();
                let submitted: Vec<String> = (0..12).map(|number| format!("{name} {number}")).collect();
                assert_eq!(seen, submitted);
            }
        }
    });
}

#[test]
fn waiting_channel_rename_blocks_no_other_call() {
    run(async {
        let world = SimWorld::start(2, LimitConfig::default()).await;
        let gate = world.gate(GateConfig::default());
        for name in ["first", "second"] {
            assert!(answered(gate.call(rename(&world, name)).await).status.is_success());
        }
        // The third is due in ten minutes, and its caller waits that long.
        let mut third = rename(&world, "third");
        third.max_wait = Duration::from_secs(3_600);
        let third = gate.call(third);
        // The fourth does not wait, and gets the time to retry at once.
        let fourth = not_sent(gate.call(rename(&world, "fourth")).await);
        assert_eq!(fourth.reason, "route_limit");
        assert!(fourth.retry_after.is_some_and(|wait| wait > Duration::from_secs(500)), "{fourth:?}");

        let channel = |number: usize| format!("/channels/{}", world.guilds[number].channel);
        let others = vec![
            world.json_request(Method::PATCH, channel(0), &json!({ "nsfw": true })),
            world.json_request(Method::PATCH, channel(1), &json!({ "nsfw": true })),
            world.get_channel(&world.guilds[0]),
            world.message(&world.guilds[0], "hello"),
            world.get_guild(&world.guilds[0]),
        ];
        let others = call_all(&gate, others);
        tokio::pin!(third, others);
        tokio::select! {
            outcome = &mut third => panic!("the third name cannot be due: {outcome:?}"),
            outcomes = &mut others => {
                for outcome in outcomes {
                    let response = answered(outcome);
                    assert!(response.status.is_success(), "{response:?}");
                }
            }
        }
        let score = world.score();
        assert_eq!(score.rate_limited, RateLimitScore::default());
        assert_eq!(world.arrived_at("PATCH /channels/{channel.id}"), 4);
    });
}

#[test]
fn empty_bucket_blocks_no_other_object_or_route() {
    run(async {
        let mut limits = LimitConfig::default();
        let roles = limits.routes.iter_mut().find(|limit| limit.method == "POST" && limit.path.ends_with("/roles"));
        roles.into_iter().for_each(|limit| limit.limit = 2);
        let world = SimWorld::start(2, limits).await;
        let gate = world.gate(GateConfig::default());
        let create = |guild: usize, name: &str, max_wait: u64| {
            let mut request = world.create_role(&world.guilds[guild], name);
            request.max_wait = Duration::from_secs(max_wait);
            gate.call(request)
        };
        for name in ["one", "two"] {
            answered(create(0, name, 5).await);
        }
        let waiting = join_all((0..20).map(|number| create(0, &format!("later {number}"), 1_000_000)));
        let others = call_all(
            &gate,
            vec![
                world.create_role(&world.guilds[1], "elsewhere"),
                world.get_guild(&world.guilds[0]),
                world.get_channel(&world.guilds[0]),
            ],
        );
        tokio::pin!(waiting, others);
        tokio::select! {
            _ = &mut waiting => panic!("the bucket is empty for a day"),
            outcomes = &mut others => {
                for outcome in outcomes {
                    let response = answered(outcome);
                    assert!(response.status.is_success(), "{response:?}");
                }
            }
        }
        assert_eq!(world.arrived_at("POST /guilds/{guild.id}/roles"), 3);
        assert_eq!(world.score().rate_limited, RateLimitScore::default());
    });
}

#[test]
fn route_without_headers_allows_concurrent_calls() {
    run(async {
        let world = SimWorld::start(1, LimitConfig::default()).await;
        let gate = world.gate(GateConfig::default());
        let typing = || {
            let path = format!("/channels/{}/typing", world.guilds[0].channel);
            let mut request = world.request(Method::POST, path);
            request.lane = Lane::Interactive;
            request
        };
        answered(gate.call(typing()).await);
        // The responses are so slow that all calls have arrived before the first response.
        world.fault("*", FaultAction::Latency { fixed_ms: 1_000, jitter_ms: 0, at: Stage::Answer });
        let calls = call_all(&gate, (0..30).map(|_| typing()).collect::<Vec<_>>());
        let together = async {
            while world.score().requests < 31 {
                tokio::task::yield_now().await;
            }
            let view = gate.observe().await;
            view.map_or(0, |view| view.limits.under_way)
        };
        let (outcomes, under_way) = tokio::join!(calls, together);
        assert!(outcomes.iter().all(|outcome| matches!(outcome, CallOutcome::Answered(_))));
        println!("{under_way} in flight at once");
        assert!(under_way > 1, "{under_way}");
    });
}
