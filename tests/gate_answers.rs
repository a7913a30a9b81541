//! How the gate handles each kind of response, and none: what closes for which calls, and what the caller gets.

#[path = "support/gate.rs"]
mod gate;

use std::net::TcpListener;
use std::time::Duration;

use gate::{Place, World, answered, not_sent, run, transport};
use guildhall_actors::gate::{CallOutcome, Gate, GateConfig, Rest as _, RestRequest};
use guildhall_actors::lease_guard::LeaseGuard;
use guildhall_core::response::{RateLimitScope as CoreScope, ResponseClass};
use guildhall_sim::{Fault, FaultAction, LimitConfig, RateLimited, Scope};
use http::{Method, StatusCode};
use serde_json::json;

/// Longer than any caller here waits.
const LONG: u64 = 120_000;

fn limited(scope: Scope) -> FaultAction {
    FaultAction::RateLimit { scope, retry_after_ms: LONG }
}

/// The call is refused at once, because it would have to wait for the duration of the 429.
async fn closed(gate: &Gate, request: RestRequest, reason: &str) {
    let refused = not_sent(gate.call(request).await);
    assert_eq!(refused.reason, reason);
    let wait = refused.retry_after.unwrap_or_default();
    assert!(wait > Duration::from_secs(60) && wait <= Duration::from_millis(LONG), "{wait:?}");
}

async fn open(gate: &Gate, request: RestRequest) {
    let what = format!("{} {}", request.method, request.path);
    let answer = answered(gate.call(request).await);
    assert_ne!(answer.status, StatusCode::TOO_MANY_REQUESTS, "{what}");
}

#[test]
fn a_429_of_scope_user_closes_the_whole_bucket_of_that_object_and_nothing_else() {
    run(async {
        let world = World::start(2, LimitConfig::default()).await;
        let gate = world.gate(GateConfig::default());
        let [here, there] = [&world.places[0], &world.places[1]];
        // The tenth of ten: nothing remains, so the 429 is of the bucket itself.
        let route = "PUT /guilds/*/members/*/roles/*".to_owned();
        let fault = Fault { route, action: limited(Scope::User), probability: 1.0, count: Some(1), skip: 9 };
        world.sim.add_fault(fault).unwrap();
        for _ in 0..9 {
            open(&gate, world.member_role(Method::PUT, here)).await;
        }
        let refused = answered(gate.call(world.member_role(Method::PUT, here)).await);
        assert!(matches!(refused.class, ResponseClass::RateLimited { scope: CoreScope::User, .. }), "{refused:?}");
        let before = world.arrived();
        closed(&gate, world.member_role(Method::PUT, here), "route_limit").await;
        assert_eq!(world.arrived(), before);
        open(&gate, world.member_role(Method::PUT, there)).await;
        // Another method of the same bucket.
        open(&gate, world.member_role(Method::DELETE, there)).await;
        closed(&gate, world.member_role(Method::DELETE, here), "route_limit").await;
        open(&gate, world.get_guild(here)).await;
        assert_eq!(world.score().rate_limited, RateLimited { user: 1, ..RateLimited::default() });
        assert_eq!(world.score().invalid_requests, 1);
    });
}

#[test]
fn a_429_of_scope_shared_closes_that_resource_alone_and_is_no_invalid_request() {
    run(async {
        let world = World::start(2, LimitConfig::default()).await;
        let gate = world.gate(GateConfig::default());
        let [here, there] = [&world.places[0], &world.places[1]];
        world.fault_once("GET /channels/*", limited(Scope::Shared));
        let refused = answered(gate.call(world.get_channel(here)).await);
        assert!(matches!(refused.class, ResponseClass::RateLimited { scope: CoreScope::Shared, .. }), "{refused:?}");
        closed(&gate, world.get_channel(here), "route_limit").await;
        open(&gate, world.get_channel(there)).await;
        open(&gate, world.message(here, "another route of the same channel")).await;
        let used = gate.observe().await.unwrap().breakers.invalid_requests.used;
        assert_eq!((used, world.score().invalid_requests), (0, 0));
        assert_eq!(world.score().rate_limited, RateLimited { shared: 1, ..RateLimited::default() });
    });
}

#[test]
fn global_429_stops_everything_whichever_call_it_answered() {
    run(async {
        let callback = |world: &World, id: u64| {
            world.with(Method::POST, format!("/interactions/{id}/none/callback"), &json!({ "type": 1 }))
        };
        for is_exempt in [false, true] {
            let world = World::start(2, LimitConfig::default()).await;
            let gate = world.gate(GateConfig::default());
            world.fault_once("*", limited(Scope::Global));
            let first = if is_exempt { callback(&world, 1) } else { world.get_channel(&world.places[0]) };
            let refused = answered(gate.call(first).await);
            assert!(
                matches!(refused.class, ResponseClass::RateLimited { scope: CoreScope::Global, .. }),
                "{refused:?}"
            );
            for place in &world.places {
                for request in [world.get_channel(place), world.message(place, "x"), world.get_guild(place)] {
                    closed(&gate, request, "global_limit").await;
                }
            }
            closed(&gate, callback(&world, 2), "global_limit").await;
            assert_eq!(world.arrived(), 1);
            assert_eq!(world.score().rate_limited, RateLimited { global: 1, ..RateLimited::default() });
        }
    });
}

#[test]
fn a_cut_connection_is_unknown_whether_or_not_the_call_had_its_effect() {
    run(async {
        let world = World::start(1, LimitConfig::default()).await;
        let gate = world.gate(GateConfig::default());
        let place: &Place = &world.places[0];
        world.fault_once("POST /guilds/*/roles", FaultAction::DropBefore);
        assert!(matches!(gate.call(world.create_role(place, "never")).await, CallOutcome::Unknown(_)));
        assert!(world.score().created.is_empty());
        world.fault_once("POST /channels/*/messages", FaultAction::DropAfter);
        assert!(matches!(gate.call(world.message(place, "unheard")).await, CallOutcome::Unknown(_)));
        let score = world.score();
        assert_eq!(score.created[&place.guild.to_string()]["message unheard"], 1);
        assert_eq!((score.requests, score.dropped), (2, 2), "neither is sent again");
    });
}

#[test]
fn a_refused_connection_means_not_sent_and_uses_nothing_up() {
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
        let refused = not_sent(gate.call(RestRequest::new(Method::GET, "/gateway/bot", bot)).await);
        assert_eq!(refused.reason, "unreachable");
        assert!(refused.retry_after.is_some());
        let limits = gate.observe().await.unwrap().limits;
        let available: u32 = limits.credentials.iter().map(|credential| credential.available).sum();
        assert_eq!((limits.under_way, available), (0, 50), "its token was returned");
    });
}
