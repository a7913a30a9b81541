//! How the gate handles each kind of response, and none: what closes for which calls, and what the caller gets.

use std::net::TcpListener;
use std::time::Duration;

use guildhall_actors::gate::{CallOutcome, Gate, GateConfig, Rest as _, RestRequest};
use guildhall_actors::lease_guard::LeaseGuard;
use guildhall_core::response::{RateLimitScope as CoreScope, ResponseClass};
use guildhall_sim::{Fault, FaultAction, LimitConfig, RateLimitScore, Scope};
use guildhall_testkit::gate::{GuildIds, SimWorld, answered, not_sent, run, transport};
use http::{Method, StatusCode};
use serde_json::json;

/// Longer than any caller here waits.
const RETRY_AFTER_MS: u64 = 120_000;

fn rate_limited(scope: Scope) -> FaultAction {
    FaultAction::RateLimit { scope, retry_after_ms: RETRY_AFTER_MS }
}

/// The call is refused at once, because it would have to wait for the duration of the 429.
async fn assert_closed(gate: &Gate, request: RestRequest, reason: &str) {
    let refused = not_sent(gate.call(request).await);
    assert_eq!(refused.reason, reason);
    let wait = refused.retry_after.unwrap_or_default();
    assert!(wait > Duration::from_secs(60) && wait <= Duration::from_millis(RETRY_AFTER_MS), "{wait:?}");
}

async fn assert_open(gate: &Gate, request: RestRequest) {
    let description = format!("{} {}", request.method, request.path);
    let response = answered(gate.call(request).await);
    assert_ne!(response.status, StatusCode::TOO_MANY_REQUESTS, "{description}");
}

#[test]
fn user_429_closes_only_the_bucket_of_its_object() {
    run(async {
        let world = SimWorld::start(2, LimitConfig::default()).await;
        let gate = world.gate(GateConfig::default());
        let [here, there] = [&world.guilds[0], &world.guilds[1]];
        // The tenth of ten: nothing remains, so the 429 is of the bucket itself.
        let route = "PUT /guilds/*/members/*/roles/*".to_owned();
        let fault = Fault { route, action: rate_limited(Scope::User), probability: 1.0, count: Some(1), skip: 9 };
        world.sim.add_fault(fault).unwrap();
        for _ in 0..9 {
            assert_open(&gate, world.member_role(Method::PUT, here)).await;
        }
        let refused = answered(gate.call(world.member_role(Method::PUT, here)).await);
        assert!(matches!(refused.class, ResponseClass::RateLimited { scope: CoreScope::User, .. }), "{refused:?}");
        let before = world.arrived();
        assert_closed(&gate, world.member_role(Method::PUT, here), "route_limit").await;
        assert_eq!(world.arrived(), before);
        assert_open(&gate, world.member_role(Method::PUT, there)).await;
        // Another method of the same bucket.
        assert_open(&gate, world.member_role(Method::DELETE, there)).await;
        assert_closed(&gate, world.member_role(Method::DELETE, here), "route_limit").await;
        assert_open(&gate, world.get_guild(here)).await;
        assert_eq!(world.score().rate_limited, RateLimitScore { user: 1, ..RateLimitScore::default() });
        assert_eq!(world.score().invalid_requests, 1);
    });
}

#[test]
fn shared_429_closes_only_its_resource_and_is_not_invalid() {
    run(async {
        let world = SimWorld::start(2, LimitConfig::default()).await;
        let gate = world.gate(GateConfig::default());
        let [here, there] = [&world.guilds[0], &world.guilds[1]];
        world.fault_once("GET /channels/*", rate_limited(Scope::Shared));
        let refused = answered(gate.call(world.get_channel(here)).await);
        assert!(matches!(refused.class, ResponseClass::RateLimited { scope: CoreScope::Shared, .. }), "{refused:?}");
        assert_closed(&gate, world.get_channel(here), "route_limit").await;
        assert_open(&gate, world.get_channel(there)).await;
        assert_open(&gate, world.message(here, "another route of the same channel")).await;
        let used = gate.observe().await.unwrap().breakers.invalid_requests.used;
        assert_eq!((used, world.score().invalid_requests), (0, 0));
        assert_eq!(world.score().rate_limited, RateLimitScore { shared: 1, ..RateLimitScore::default() });
    });
}

#[test]
fn global_429_stops_all_calls() {
    run(async {
        let callback = |world: &SimWorld, id: u64| {
            world.json_request(Method::POST, format!("/interactions/{id}/none/callback"), &json!({ "type": 1 }))
        };
        for is_exempt in [false, true] {
            let world = SimWorld::start(2, LimitConfig::default()).await;
            let gate = world.gate(GateConfig::default());
            world.fault_once("*", rate_limited(Scope::Global));
            let first = if is_exempt { callback(&world, 1) } else { world.get_channel(&world.guilds[0]) };
            let refused = answered(gate.call(first).await);
            assert!(
                matches!(refused.class, ResponseClass::RateLimited { scope: CoreScope::Global, .. }),
                "{refused:?}"
            );
            for guild_ids in &world.guilds {
                for request in [world.get_channel(guild_ids), world.message(guild_ids, "x"), world.get_guild(guild_ids)]
                {
                    assert_closed(&gate, request, "global_limit").await;
                }
            }
            assert_closed(&gate, callback(&world, 2), "global_limit").await;
            assert_eq!(world.arrived(), 1);
            assert_eq!(world.score().rate_limited, RateLimitScore { global: 1, ..RateLimitScore::default() });
        }
    });
}

#[test]
fn cut_connection_has_an_unknown_outcome() {
    run(async {
        let world = SimWorld::start(1, LimitConfig::default()).await;
        let gate = world.gate(GateConfig::default());
        let guild_ids: &GuildIds = &world.guilds[0];
        world.fault_once("POST /guilds/*/roles", FaultAction::DropBefore);
        assert!(matches!(gate.call(world.create_role(guild_ids, "never")).await, CallOutcome::Unknown(_)));
        assert!(world.score().created.is_empty());
        world.fault_once("POST /channels/*/messages", FaultAction::DropAfter);
        assert!(matches!(gate.call(world.message(guild_ids, "unheard")).await, CallOutcome::Unknown(_)));
        let score = world.score();
        assert_eq!(score.created[&guild_ids.guild.to_string()]["message unheard"], 1);
        assert_eq!((score.requests, score.dropped), (2, 2), "neither is sent again");
    });
}

#[test]
fn refused_connection_is_not_sent_and_uses_no_tokens() {
    run(async {
        let address = {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listener.local_addr().unwrap()
        };
        let gate = Gate::start(
            transport(format!("http://{address}/api/v10"), Duration::from_secs(5)),
            GateConfig::default(),
            LeaseGuard::always(),
        );
        let bot = guildhall_core::response::Credential::Application(1);
        let refused =
            not_sent(gate.call(RestRequest::new(Method::GET, "/gateway/bot", bot, LeaseGuard::always())).await);
        assert_eq!(refused.reason, "unreachable");
        assert!(refused.retry_after.is_some());
        let limits = gate.observe().await.unwrap().limits;
        let available: u32 = limits.credentials.iter().map(|credential| credential.available).sum();
        assert_eq!((limits.under_way, available), (0, 50), "its token was returned");
    });
}
