//! The gate during an outage of Discord: calls to failing routes are stopped, others continue, and only probes find out
//! when the outage has ended.

#[path = "support/gate.rs"]
mod gate;

use std::cell::Cell;
use std::future::Future;
use std::time::Duration;

use futures_util::future::join_all;
use gate::{World, answered, call_all, changes, not_sent, run, until};
use guildhall_actors::circuit_breaker::BreakerChanged;
use guildhall_actors::gate::{CallOutcome, Gate, GateConfig, Rest as _, RestRequest};
use guildhall_core::breaker::{BreakerConfig, BreakerKey};
use guildhall_core::lane::Lane;
use guildhall_core::route::RouteKey;
use guildhall_sim::{CloudflareForm, FaultAction, Stage};
use http::{Method, StatusCode};

const CREATE_ROLE: &str = "POST /guilds/{guild.id}/roles";

const PROBES: u32 = 3;

const OUTAGE: FaultAction = FaultAction::Status { status: 503, code: 0 };

/// Breakers with a short cooldown, so that a test sees many rounds.
fn config() -> GateConfig {
    let cooldown = Duration::from_millis(150);
    let breakers = BreakerConfig {
        cooldown,
        max_cooldown: cooldown,
        jitter_percent: 0,
        probes: PROBES,
        probe_after: Duration::from_millis(50),
        ..BreakerConfig::default()
    };
    GateConfig { breakers, ..GateConfig::default() }
}

fn discord(world: &World) -> BreakerKey {
    BreakerKey::Discord(world.bot)
}

/// Reads and creates on four routes of several guilds.
fn mixed(world: &World, round: usize) -> Vec<RestRequest> {
    let of_place = |place| {
        [
            world.get_guild(place),
            world.get_channel(place),
            world.member_role(Method::PUT, place),
            world.create_role(place, &format!("role {round}")),
        ]
    };
    world.places.iter().flat_map(of_place).collect()
}

/// Makes calls, round after round, until the awaited event has happened. No call is abandoned, because one without a
/// response would count as in flight for long.
async fn while_calling<T>(gate: &Gate, round: impl Fn(usize) -> Vec<RestRequest>, wait: impl Future<Output = T>) -> T {
    let happened = Cell::new(false);
    let calling = async {
        for number in 0.. {
            call_all(gate, round(number)).await;
            if happened.get() {
                return;
            }
            // A refused caller tries again, but not so fast that it starves other tasks.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waiting = async {
        let what = wait.await;
        happened.set(true);
        what
    };
    tokio::join!(waiting, calling).0
}

/// Opens the breaker of a key under a load of all kinds of calls.
async fn break_down(world: &World, gate: &Gate, key: &BreakerKey) {
    let mut changes = changes(gate).await;
    while_calling(gate, |round| mixed(world, round), until(&mut changes, key, "open")).await;
}

/// Continues to call while the breaker becomes half-open so many times; only probes may arrive.
async fn only_probes_arrive(world: &World, gate: &Gate, key: &BreakerKey, rounds: u64) {
    let mut events = changes(gate).await;
    let (before, creates) = (world.arrived(), world.arrived_at(CREATE_ROLE));
    let turning = async {
        for _ in 0..rounds {
            until(&mut events, key, "half_open").await;
        }
        until(&mut events, key, "open").await;
    };
    while_calling(gate, |round| mixed(world, round), turning).await;
    let arrived = world.arrived() - before;
    // It may have been half-open at the start, and again before the last call ended.
    let is_half_open = |change: &BreakerChanged| change.key == *key && change.to.name() == "half_open";
    let more = std::iter::from_fn(|| events.try_recv().ok()).filter(is_half_open).count() as u64;
    println!("{key}: {arrived} probes in {rounds} rounds and {more} more");
    assert!(arrived <= (1 + rounds + more) * u64::from(PROBES), "{arrived} arrived in {rounds} rounds and {more} more");
    assert!(arrived >= rounds, "each round was ended by a probe");
    assert_eq!(world.arrived_at(CREATE_ROLE), creates, "a create is not a probe");
}

#[test]
fn a_route_that_is_out_opens_alone_and_all_others_are_served() {
    run(async {
        let world = World::unlimited(3).await;
        let gate = world.gate(GateConfig::default());
        world.fault("POST /guilds/*/roles", OUTAGE);
        for place in &world.places[..2] {
            for number in 0..5 {
                drop(gate.call(world.create_role(place, &format!("{number}"))).await);
            }
        }
        let at_fault = world.arrived_at(CREATE_ROLE);
        // Other guilds are not tried either: the route has failed.
        let refused = not_sent(gate.call(world.create_role(&world.places[2], "other")).await);
        assert_eq!(refused.reason, "breaker_open");
        assert!(refused.retry_after.is_some());
        assert_eq!(world.arrived_at(CREATE_ROLE), at_fault);

        let others = world.places.iter().flat_map(|place| [world.get_guild(place), world.get_channel(place)]);
        for outcome in call_all(&gate, others.collect::<Vec<_>>()).await {
            assert_eq!(answered(outcome).status, StatusCode::OK);
        }
        assert!(world.score().created.is_empty());
    });
}

#[test]
fn a_guild_that_is_out_opens_alone() {
    run(async {
        let world = World::unlimited(2).await;
        let gate = world.gate(GateConfig::default());
        world.fault(&format!("POST /guilds/{}/roles", world.places[0].guild), OUTAGE);
        for number in 0..5 {
            let outcome = gate.call(world.create_role(&world.places[0], &format!("{number}"))).await;
            assert_eq!(answered(outcome).status, StatusCode::SERVICE_UNAVAILABLE);
        }
        assert_eq!(not_sent(gate.call(world.create_role(&world.places[0], "x")).await).reason, "breaker_open");
        assert_eq!(answered(gate.call(world.create_role(&world.places[1], "y")).await).status, StatusCode::OK);
    });
}

#[test]
fn while_discord_is_out_only_probes_arrive_and_it_recovers_by_them() {
    run(async {
        let world = World::unlimited(3).await;
        let gate = world.gate(config());
        world.fault("*", OUTAGE);
        break_down(&world, &gate, &discord(&world)).await;
        only_probes_arrive(&world, &gate, &discord(&world), 4).await;

        world.sim.remove_faults(None);
        let mut events = changes(&gate).await;
        while_calling(&gate, |round| mixed(&world, round), until(&mut events, &discord(&world), "closed")).await;
        recovered(&world, &gate).await;
    });
}

/// Waits until every route of every guild succeeds again, which requires probes of the other breakers too.
async fn recovered(world: &World, gate: &Gate) {
    let count = mixed(world, 0).len();
    let served = |index: usize| async move {
        loop {
            let mut request = mixed(world, 0).swap_remove(index);
            request.lane = Lane::Interactive;
            match gate.call(request).await {
                CallOutcome::Answered(answer) if !answer.status.is_server_error() => return,
                CallOutcome::NotSent(refused) => tokio::time::sleep(refused.retry_after.unwrap_or_default()).await,
                other => panic!("{other:?}"),
            }
        }
    };
    let all = join_all((0..count).map(served));
    tokio::time::timeout(gate::STUCK, all).await.unwrap_or_else(|_| panic!("a route was not served again"));
}

#[test]
fn where_nothing_but_creates_waits_the_gate_sends_its_own_probes() {
    run(async {
        let world = World::unlimited(3).await;
        let gate = world.gate(config());
        let fault = world.fault("*", OUTAGE);
        break_down(&world, &gate, &discord(&world)).await;
        // From here on only creates are waiting.
        let creates = world.arrived_at(CREATE_ROLE);
        let mut events = changes(&gate).await;
        let create = |round: usize| {
            world.places.iter().map(|place| world.create_role(place, &format!("late {round}"))).collect()
        };
        while_calling(&gate, create, until(&mut events, &discord(&world), "half_open")).await;
        while_calling(&gate, create, until(&mut events, &discord(&world), "open")).await;
        assert_eq!(world.arrived_at(CREATE_ROLE), creates, "a create is not a probe");
        let probes = world.arrived_at("GET /gateway/bot");
        assert!(probes > 0);

        world.sim.remove_faults(Some(fault));
        while_calling(&gate, create, until(&mut events, &discord(&world), "closed")).await;
        assert!(world.arrived_at("GET /gateway/bot") >= probes + u64::from(PROBES));
        recovered(&world, &gate).await;
        assert_eq!(world.score().created.len(), world.places.len());
    });
}

#[test]
fn late_answers_of_an_older_generation_change_nothing() {
    run(async {
        let world = World::unlimited(3).await;
        let gate = world.gate(config());
        let read = |place: &gate::Place, what: &str| {
            let mut request = world.request(Method::GET, format!("/guilds/{}/{what}", place.guild));
            request.lane = Lane::Interactive;
            request
        };
        // Once the gate knows that they have no limit, they are all sent at once.
        for what in ["channels", "roles"] {
            answered(gate.call(read(&world.places[0], what)).await);
        }
        // Twelve slow failures on two routes.
        let held = [
            world.fault("GET /guilds/*/channels", OUTAGE),
            world.fault("GET /guilds/*/roles", OUTAGE),
            world.fault("GET /guilds/*/channels", slow()),
            world.fault("GET /guilds/*/roles", slow()),
        ];
        let late: Vec<RestRequest> = (0..2)
            .flat_map(|_| &world.places)
            .flat_map(|place| [read(place, "channels"), read(place, "roles")])
            .collect();
        let late = call_all(&gate, late);
        let meanwhile = async {
            arrivals(&world, 14).await;
            for fault in held {
                world.sim.remove_faults(Some(fault));
            }
            // Discord fails and recovers while they are in flight.
            world.fault("*", OUTAGE);
            break_down(&world, &gate, &discord(&world)).await;
            world.sim.remove_faults(None);
            let mut events = changes(&gate).await;
            while_calling(&gate, |round| mixed(&world, round), until(&mut events, &discord(&world), "closed")).await;
            recovered(&world, &gate).await;
            changes(&gate).await
        };
        let (late, mut events) = tokio::join!(late, meanwhile);
        assert_eq!(late.len(), 12);
        for outcome in late {
            assert_eq!(answered(outcome).status, StatusCode::SERVICE_UNAVAILABLE);
        }
        // The breakers of their own routes never opened before, so they count there. For Discord as a whole they belong
        // to an old generation.
        let view = gate.observe().await.map(|view| view.breakers.breakers.breakers);
        let whole = view.iter().flatten().find(|breaker| breaker.key == discord(&world));
        assert!(whole.is_some_and(|whole| whole.state == "closed"), "{whole:?}");
        let turned = std::iter::from_fn(|| events.try_recv().ok()).find(|change| change.key == discord(&world));
        assert!(turned.is_none(), "{turned:?}");
    });
}

/// Waits until so many requests have arrived.
async fn arrivals(world: &World, count: u64) {
    let arriving = async {
        while world.arrived() < count {
            tokio::task::yield_now().await;
        }
    };
    assert!(tokio::time::timeout(gate::STUCK, arriving).await.is_ok(), "{} of {count} arrived", world.arrived());
}

fn slow() -> FaultAction {
    FaultAction::Latency { fixed_ms: 3_000, jitter_ms: 0, at: Stage::Answer }
}

#[test]
fn behind_a_page_of_cloudflares_only_probes_arrive_and_it_is_over_when_they_are_answered() {
    run(async {
        for form in [CloudflareForm::Html, CloudflareForm::Json] {
            let world = World::unlimited(3).await;
            let gate = world.gate(config());
            world.fault("*", FaultAction::Cloudflare { form, retry_after_ms: Some(200) });
            // The first page is enough.
            let page = gate.call(world.get_guild(&world.places[0])).await;
            assert_eq!(answered(page).status, StatusCode::TOO_MANY_REQUESTS);
            assert_eq!(not_sent(gate.call(world.get_channel(&world.places[1])).await).reason, "blocked");
            assert_eq!(world.arrived(), 1);
            only_probes_arrive(&world, &gate, &BreakerKey::Address, 3).await;

            world.sim.remove_faults(None);
            let mut events = changes(&gate).await;
            while_calling(&gate, |round| mixed(&world, round), until(&mut events, &BreakerKey::Address, "closed"))
                .await;
            recovered(&world, &gate).await;
            assert_eq!(world.score().invalid_requests, 0);
        }
    });
}

#[test]
fn a_route_of_creates_comes_back_by_the_gates_own_probes() {
    run(async {
        let world = World::unlimited(1).await;
        let gate = world.gate(config());
        let fault = world.fault("POST /guilds/*/roles", OUTAGE);
        let key = BreakerKey::Pair(
            world.bot,
            RouteKey::new("POST /guilds/{id}/roles"),
            guildhall_core::route::TopLevelId::of(world.places[0].guild),
        );
        let mut events = changes(&gate).await;
        let create = |round: usize| vec![world.create_role(&world.places[0], &format!("{round}"))];
        while_calling(&gate, create, until(&mut events, &key, "open")).await;
        world.sim.remove_faults(Some(fault));
        let before = world.arrived_at(CREATE_ROLE);
        until(&mut events, &key, "closed").await;
        assert_eq!(world.arrived_at(CREATE_ROLE), before, "its probes are reads");
        assert_eq!(answered(gate.call(world.create_role(&world.places[0], "at last")).await).status, StatusCode::OK);
    });
}
