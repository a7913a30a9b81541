//! The gate during an outage of Discord: calls to failing routes are stopped, others continue, and only probes find out
//! when the outage has ended.

use std::cell::Cell;
use std::future::Future;
use std::time::Duration;

use futures_util::future::join_all;
use guildhall_actors::circuit_breaker::BreakerChanged;
use guildhall_actors::gate::{CallOutcome, Gate, GateConfig, Rest as _, RestRequest};
use guildhall_core::breaker::{BreakerConfig, BreakerKey};
use guildhall_core::lane::Lane;
use guildhall_core::route::RouteKey;
use guildhall_sim::{CloudflareForm, FaultAction, Stage};
use guildhall_testkit::gate::{
    GuildIds, SimWorld, TEST_TIMEOUT, answered, breaker_changes, call_all, not_sent, run, wait_for_breaker,
};
use http::{Method, StatusCode};

const CREATE_ROLE: &str = "POST /guilds/{guild.id}/roles";

const PROBES: u32 = 3;

const OUTAGE: FaultAction = FaultAction::Status { status: 503, code: 0 };

/// Breakers with a short cooldown, so that a test sees many rounds.
fn fast_breakers() -> GateConfig {
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

fn discord_key(world: &SimWorld) -> BreakerKey {
    BreakerKey::Discord(world.bot)
}

/// Reads and creates on four routes of several guilds.
fn mixed_requests(world: &SimWorld, round: usize) -> Vec<RestRequest> {
    let for_guild = |guild_ids| {
        [
            world.get_guild(guild_ids),
            world.get_channel(guild_ids),
            world.member_role(Method::PUT, guild_ids),
            world.create_role(guild_ids, &format!("role {round}")),
        ]
    };
    world.guilds.iter().flat_map(for_guild).collect()
}

/// Makes calls, round after round, until the awaited event has happened. No call is abandoned, because one without a
/// response would count as in flight for long.
async fn call_until<T>(gate: &Gate, round: impl Fn(usize) -> Vec<RestRequest>, wait: impl Future<Output = T>) -> T {
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
        let output = wait.await;
        happened.set(true);
        output
    };
    tokio::join!(waiting, calling).0
}

/// Opens the breaker of a key under a load of all kinds of calls.
async fn open_breaker(world: &SimWorld, gate: &Gate, key: &BreakerKey) {
    let mut changes = breaker_changes(gate).await;
    call_until(gate, |round| mixed_requests(world, round), wait_for_breaker(&mut changes, key, "open")).await;
}

/// Continues to call while the breaker becomes half-open so many times; only probes may arrive.
async fn assert_only_probes_arrive(world: &SimWorld, gate: &Gate, key: &BreakerKey, rounds: u64) {
    let mut events = breaker_changes(gate).await;
    let (before, creates) = (world.arrived(), world.arrived_at(CREATE_ROLE));
    let turning = async {
        for _ in 0..rounds {
            wait_for_breaker(&mut events, key, "half_open").await;
        }
        wait_for_breaker(&mut events, key, "open").await;
    };
    call_until(gate, |round| mixed_requests(world, round), turning).await;
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
fn failing_route_opens_alone_and_others_are_served() {
    run(async {
        let world = SimWorld::unlimited(3).await;
        let gate = world.gate(GateConfig::default());
        world.fault("POST /guilds/*/roles", OUTAGE);
        for guild_ids in &world.guilds[..2] {
            for number in 0..5 {
                drop(gate.call(world.create_role(guild_ids, &format!("{number}"))).await);
            }
        }
        let before = world.arrived_at(CREATE_ROLE);
        // Other guilds are not tried either: the route has failed.
        let refused = not_sent(gate.call(world.create_role(&world.guilds[2], "other")).await);
        assert_eq!(refused.reason, "breaker_open");
        assert!(refused.retry_after.is_some());
        assert_eq!(world.arrived_at(CREATE_ROLE), before);

        let others =
            world.guilds.iter().flat_map(|guild_ids| [world.get_guild(guild_ids), world.get_channel(guild_ids)]);
        for outcome in call_all(&gate, others.collect::<Vec<_>>()).await {
            assert_eq!(answered(outcome).status, StatusCode::OK);
        }
        assert!(world.score().created.is_empty());
    });
}

#[test]
fn failing_guild_opens_alone() {
    run(async {
        let world = SimWorld::unlimited(2).await;
        let gate = world.gate(GateConfig::default());
        world.fault(&format!("POST /guilds/{}/roles", world.guilds[0].guild), OUTAGE);
        for number in 0..5 {
            let outcome = gate.call(world.create_role(&world.guilds[0], &format!("{number}"))).await;
            assert_eq!(answered(outcome).status, StatusCode::SERVICE_UNAVAILABLE);
        }
        assert_eq!(not_sent(gate.call(world.create_role(&world.guilds[0], "x")).await).reason, "breaker_open");
        assert_eq!(answered(gate.call(world.create_role(&world.guilds[1], "y")).await).status, StatusCode::OK);
    });
}

#[test]
fn during_an_outage_only_probes_arrive_until_recovery() {
    run(async {
        let world = SimWorld::unlimited(3).await;
        let gate = world.gate(fast_breakers());
        world.fault("*", OUTAGE);
        open_breaker(&world, &gate, &discord_key(&world)).await;
        assert_only_probes_arrive(&world, &gate, &discord_key(&world), 4).await;

        world.sim.remove_faults(None);
        let mut events = breaker_changes(&gate).await;
        call_until(
            &gate,
            |round| mixed_requests(&world, round),
            wait_for_breaker(&mut events, &discord_key(&world), "closed"),
        )
        .await;
        wait_for_recovery(&world, &gate).await;
    });
}

/// Waits until every route of every guild succeeds again, which requires probes of the other breakers too.
async fn wait_for_recovery(world: &SimWorld, gate: &Gate) {
    let count = mixed_requests(world, 0).len();
    let served = |index: usize| async move {
        loop {
            let mut request = mixed_requests(world, 0).swap_remove(index);
            request.lane = Lane::Interactive;
            match gate.call(request).await {
                CallOutcome::Answered(response) if !response.status.is_server_error() => return,
                CallOutcome::NotSent(refused) => tokio::time::sleep(refused.retry_after.unwrap_or_default()).await,
                other => panic!("{other:?}"),
            }
        }
    };
    let all = join_all((0..count).map(served));
    tokio::time::timeout(TEST_TIMEOUT, all).await.unwrap_or_else(|_| panic!("a route was not served again"));
}

#[test]
fn gate_sends_its_own_probes_when_only_creates_wait() {
    run(async {
        let world = SimWorld::unlimited(3).await;
        let gate = world.gate(fast_breakers());
        let fault = world.fault("*", OUTAGE);
        open_breaker(&world, &gate, &discord_key(&world)).await;
        // From here on only creates are waiting.
        let creates = world.arrived_at(CREATE_ROLE);
        let mut events = breaker_changes(&gate).await;
        let create = |round: usize| {
            world.guilds.iter().map(|guild_ids| world.create_role(guild_ids, &format!("late {round}"))).collect()
        };
        call_until(&gate, create, wait_for_breaker(&mut events, &discord_key(&world), "half_open")).await;
        call_until(&gate, create, wait_for_breaker(&mut events, &discord_key(&world), "open")).await;
        assert_eq!(world.arrived_at(CREATE_ROLE), creates, "a create is not a probe");
        let probes = world.arrived_at("GET /gateway/bot");
        assert!(probes > 0);

        world.sim.remove_faults(Some(fault));
        call_until(&gate, create, wait_for_breaker(&mut events, &discord_key(&world), "closed")).await;
        assert!(world.arrived_at("GET /gateway/bot") >= probes + u64::from(PROBES));
        wait_for_recovery(&world, &gate).await;
        assert_eq!(world.score().created.len(), world.guilds.len());
    });
}

#[test]
fn late_responses_of_an_older_generation_change_nothing() {
    run(async {
        let world = SimWorld::unlimited(3).await;
        let gate = world.gate(fast_breakers());
        let read = |guild_ids: &GuildIds, resource: &str| {
            let mut request = world.request(Method::GET, format!("/guilds/{}/{resource}", guild_ids.guild));
            request.lane = Lane::Interactive;
            request
        };
        // Once the gate knows that they have no limit, they are all sent at once.
        for resource in ["channels", "roles"] {
            answered(gate.call(read(&world.guilds[0], resource)).await);
        }
        // Twelve slow failures on two routes.
        let faults = [
            world.fault("GET /guilds/*/channels", OUTAGE),
            world.fault("GET /guilds/*/roles", OUTAGE),
            world.fault("GET /guilds/*/channels", slow_response()),
            world.fault("GET /guilds/*/roles", slow_response()),
        ];
        let late: Vec<RestRequest> = (0..2)
            .flat_map(|_| &world.guilds)
            .flat_map(|guild_ids| [read(guild_ids, "channels"), read(guild_ids, "roles")])
            .collect();
        let late = call_all(&gate, late);
        let meanwhile = async {
            wait_for_arrivals(&world, 14).await;
            for fault in faults {
                world.sim.remove_faults(Some(fault));
            }
            // Discord fails and recovers while they are in flight.
            world.fault("*", OUTAGE);
            open_breaker(&world, &gate, &discord_key(&world)).await;
            world.sim.remove_faults(None);
            let mut events = breaker_changes(&gate).await;
            call_until(
                &gate,
                |round| mixed_requests(&world, round),
                wait_for_breaker(&mut events, &discord_key(&world), "closed"),
            )
            .await;
            wait_for_recovery(&world, &gate).await;
            breaker_changes(&gate).await
        };
        let (late, mut events) = tokio::join!(late, meanwhile);
        assert_eq!(late.len(), 12);
        for outcome in late {
            assert_eq!(answered(outcome).status, StatusCode::SERVICE_UNAVAILABLE);
        }
        // The breakers of their own routes never opened before, so they count there. For Discord as a whole they belong
        // to an old generation.
        let view = gate.observe().await.map(|view| view.breakers.breakers.breakers);
        let discord_breaker = view.iter().flatten().find(|breaker| breaker.key == discord_key(&world));
        assert!(
            discord_breaker.is_some_and(|discord_breaker| discord_breaker.state == "closed"),
            "{discord_breaker:?}"
        );
        let changed = std::iter::from_fn(|| events.try_recv().ok()).find(|change| change.key == discord_key(&world));
        assert!(changed.is_none(), "{changed:?}");
    });
}

/// Waits until so many requests have arrived.
async fn wait_for_arrivals(world: &SimWorld, count: u64) {
    let arriving = async {
        while world.arrived() < count {
            tokio::task::yield_now().await;
        }
    };
    assert!(tokio::time::timeout(TEST_TIMEOUT, arriving).await.is_ok(), "{} of {count} arrived", world.arrived());
}

fn slow_response() -> FaultAction {
    FaultAction::Latency { fixed_ms: 3_000, jitter_ms: 0, at: Stage::Answer }
}

#[test]
fn after_a_cloudflare_block_only_probes_arrive_until_it_ends() {
    run(async {
        for form in [CloudflareForm::Html, CloudflareForm::Json] {
            let world = SimWorld::unlimited(3).await;
            let gate = world.gate(fast_breakers());
            world.fault("*", FaultAction::Cloudflare { form, retry_after_ms: Some(200) });
            // The first page is enough.
            let page = gate.call(world.get_guild(&world.guilds[0])).await;
            assert_eq!(answered(page).status, StatusCode::TOO_MANY_REQUESTS);
            assert_eq!(not_sent(gate.call(world.get_channel(&world.guilds[1])).await).reason, "blocked");
            assert_eq!(world.arrived(), 1);
            assert_only_probes_arrive(&world, &gate, &BreakerKey::Address, 3).await;

            world.sim.remove_faults(None);
            let mut events = breaker_changes(&gate).await;
            call_until(
                &gate,
                |round| mixed_requests(&world, round),
                wait_for_breaker(&mut events, &BreakerKey::Address, "closed"),
            )
            .await;
            wait_for_recovery(&world, &gate).await;
            assert_eq!(world.score().invalid_requests, 0);
        }
    });
}

#[test]
fn route_of_creates_recovers_by_the_gates_own_probes() {
    run(async {
        let world = SimWorld::unlimited(1).await;
        let gate = world.gate(fast_breakers());
        let fault = world.fault("POST /guilds/*/roles", OUTAGE);
        let key = BreakerKey::Pair(
            world.bot,
            RouteKey::new("POST /guilds/{id}/roles"),
            guildhall_core::route::TopLevelId::of(world.guilds[0].guild),
        );
        let mut events = breaker_changes(&gate).await;
        let create = |round: usize| vec![world.create_role(&world.guilds[0], &format!("{round}"))];
        call_until(&gate, create, wait_for_breaker(&mut events, &key, "open")).await;
        world.sim.remove_faults(Some(fault));
        let before = world.arrived_at(CREATE_ROLE);
        wait_for_breaker(&mut events, &key, "closed").await;
        assert_eq!(world.arrived_at(CREATE_ROLE), before, "its probes are reads");
        assert_eq!(answered(gate.call(world.create_role(&world.guilds[0], "at last")).await).status, StatusCode::OK);
    });
}
