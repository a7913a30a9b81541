//! The gate and invalid requests, for which Discord bans: invalid tokens, expired interactions, and forbidden calls.

use std::time::Duration;

use futures_util::future::join_all;
use guildhall_actors::circuit_breaker::TokenChanged;
use guildhall_actors::gate::{CallOutcome, Gate, GateConfig, Rest as _, RestRequest};
use guildhall_core::breaker::BreakerConfig;
use guildhall_core::invalid::InvalidConfig;
use guildhall_core::lane::Lane;
use guildhall_core::limit::LimitConfig;
use guildhall_core::response::ResponseClass;
use guildhall_sim::{FaultAction, FireSpec, GuildsSpec, Snowflake};
use guildhall_testkit::gate::{SimWorld, answered, call_all, not_sent, run};
use http::{Method, StatusCode};
use serde_json::json;

#[test]
fn after_a_401_no_more_calls_of_the_bot_arrive() {
    run(async {
        let world = SimWorld::unlimited(3).await;
        let gate = world.gate(GateConfig::default());
        world.fault("*", FaultAction::Status { status: 401, code: 0 });
        // The first is sent ahead; the others wait for it, and the breaker has already let them pass.
        let outcomes = call_all(&gate, (0..100).map(|_| world.get_guild(&world.guilds[0])).collect::<Vec<_>>()).await;
        let sent = outcomes.iter().filter(|outcome| !matches!(outcome, CallOutcome::NotSent(_))).count();
        assert_eq!((sent, world.arrived()), (1, 1));
        for guild_ids in &world.guilds {
            for request in
                [world.get_channel(guild_ids), world.create_role(guild_ids, "x"), world.message(guild_ids, "y")]
            {
                let refused = not_sent(gate.call(request).await);
                assert_eq!((refused.reason, refused.retry_after), ("unauthorized", None));
            }
        }
        assert_eq!(world.arrived(), 1);
        assert_eq!(world.score().invalid_requests, 1);

        world.sim.remove_faults(None);
        assert!(gate.breaker().send(TokenChanged(world.bot)).await.is_ok());
        assert_eq!(answered(gate.call(world.get_guild(&world.guilds[0])).await).status, StatusCode::OK);
    });
}

#[test]
fn expired_interaction_token_stops_only_its_interaction() {
    run(async {
        let world = SimWorld::unlimited(1).await;
        let gate = world.gate(GateConfig::default());
        let guild = Snowflake::new(world.guilds[0].guild);
        let guildhall_core::response::Credential::Application(application) = world.bot else {
            panic!("expected a bot")
        };
        let mut edits = Vec::new();
        for name in ["one", "other"] {
            let fired = world.sim.fire(FireSpec::command(guild, name)).await.ok();
            let (id, token) = fired.and_then(|fired| fired.id.zip(fired.token)).unwrap_or_else(|| panic!("not fired"));
            let callback = format!("/interactions/{id}/{token}/callback");
            let first = world.json_request(Method::POST, callback, &json!({ "type": 5 }));
            assert!(answered(gate.call(first).await).status.is_success());
            edits.push(format!("/webhooks/{application}/{token}/messages/@original"));
        }
        let edit = |number: usize| {
            let request = world.json_request(Method::PATCH, edits[number].clone(), &json!({ "content": "done" }));
            gate.call(request)
        };
        world.fault_once("PATCH /webhooks/**", FaultAction::Status { status: 401, code: 50_027 });
        let ended = answered(edit(0).await);
        assert_eq!((ended.status, ended.class), (StatusCode::UNAUTHORIZED, ResponseClass::InteractionEnded));
        let before = world.arrived();
        let refused = not_sent(edit(0).await);
        assert_eq!((refused.reason, refused.retry_after), ("interaction_ended", None));
        assert_eq!(world.arrived(), before);

        assert_eq!(answered(edit(1).await).status, StatusCode::OK);
        assert_eq!(answered(gate.call(world.get_guild(&world.guilds[0])).await).status, StatusCode::OK);
    });
}

/// Makes calls that all get a 403 until the lane is stopped. Returns how many were sent.
async fn send_forbidden(gate: &Gate, lane: Lane, forbidden: impl Fn() -> RestRequest) -> usize {
    let worker = async || {
        let mut sent = 0;
        loop {
            let mut request = forbidden();
            request.lane = lane;
            match gate.call(request).await {
                CallOutcome::Answered(response) => {
                    assert_eq!(response.status, StatusCode::FORBIDDEN);
                    sent += 1;
                }
                CallOutcome::NotSent(refused) => {
                    assert_eq!(refused.reason, "invalid_requests");
                    // A shorter wait: only calls in flight hold it back.
                    if refused.retry_after.is_some_and(|wait| wait > Duration::from_secs(2)) {
                        return sent;
                    }
                    tokio::task::yield_now().await;
                }
                CallOutcome::Unknown(unknown) => panic!("{unknown}"),
            }
        }
    };
    join_all((0..64).map(|_| worker())).await.into_iter().sum()
}

#[test]
fn forbidden_calls_stop_lane_by_lane_before_the_ban() {
    run(async {
        let mut world = SimWorld::unlimited(1).await;
        let spec =
            GuildsSpec { bot_permissions: Some(0), members: Some(1), channels: Some(1), ..GuildsSpec::default() };
        let culprit = world.sim.create_guilds(&spec).ok().and_then(|made| made.first().copied());
        let Some(culprit) = culprit else { panic!("no guild was created") };
        world.refresh_guilds().await;
        let Some(guild_ids) = world.guilds.iter().find(|guild_ids| guild_ids.guild == culprit.get()) else {
            panic!(
                "the guild is \
            listed"
            )
        };
        // As fast as possible: only the ledger holds them back.
        let limits = LimitConfig { global: 1_000_000, burst: 1_000_000, ..LimitConfig::default() };
        let breakers = BreakerConfig::default();
        // One guild may use everything here.
        let invalid = InvalidConfig { share_percent: 100, ..InvalidConfig::default() };
        let gate = world.gate(GateConfig { limits, breakers, invalid, ..GateConfig::default() });
        let forbidden = || {
            let mut request = world.create_role(guild_ids, "never");
            request.guild = Some(guild_ids.guild);
            request
        };

        let limit = InvalidConfig::default().limit as usize;
        let mut seen = Vec::new();
        for lane in [Lane::Background, Lane::Operation, Lane::Interactive] {
            let sent = send_forbidden(&gate, lane, forbidden).await;
            let score = world.score();
            println!("{}: {sent} sent, {} invalid", lane.name(), score.invalid_requests);
            seen.push(score.invalid_requests);
        }
        assert_eq!(seen, [50, 80, 95].map(|percent| (limit * percent / 100) as u64));

        // Now nothing is sent, whatever the route and lane.
        let before = world.arrived();
        let mut read = world.get_guild(&world.guilds[0]);
        read.lane = Lane::Interactive;
        assert_eq!(not_sent(gate.call(read).await).reason, "invalid_requests");
        assert_eq!(world.arrived(), before);
        let score = world.score();
        assert_eq!((score.bans, score.max_invalid_in_window), (0, 9_500));

        let Some(view) = gate.observe().await else { panic!("the gate runs") };
        let spender = &view.breakers.invalid_requests.top_spenders[0];
        assert_eq!((spender.guild, spender.route.as_str()), (Some(guild_ids.guild), "POST /guilds/{id}/roles"));
        assert_eq!(spender.count, 9_500);
    });
}
