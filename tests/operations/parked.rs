//! A limit of a day in one guild delays the operations that need it, and nothing else.

use guildhall_sim::{Algorithm, BotConfig, Case, RouteLimit, Sim, SimConfig};
use guildhall_testkit::program::{CANARY, get};
use serde_json::{Value, json};

use super::daemon::Daemon;

const LIMIT_WINDOW_MS: u64 = 28 * 3_600_000;

#[tokio::test(flavor = "multi_thread")]
async fn long_role_limit_delays_only_dependent_operations() {
    let mut config = SimConfig { guilds: 2, ..SimConfig::default() };
    config.bots = vec![BotConfig { token: CANARY.to_owned(), ..BotConfig::default() }];
    let sim = Sim::start(config).await.unwrap();
    sim.set_route_limit(RouteLimit {
        method: "POST".into(),
        path: "/guilds/{guild.id}/roles".into(),
        case: Case::default(),
        bucket: None,
        limit: 2,
        per_ms: LIMIT_WINDOW_MS,
        algorithm: Algorithm::Fixed,
    })
    .unwrap();
    let state = get(sim.address(), "/sim/state").json();
    let (guild, other) = (sim.guilds()[0], sim.guilds()[1]);
    let guild_state = state["guilds"].as_array().unwrap().iter().find(|one| one["id"] == guild.to_string()).unwrap();
    let channel = guild_state["channels"][0]["id"].as_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&sim, &folder);

    let role = |key: &str| json!({"kind": "create_role", "payload": {"key": key, "name": key}});
    let message = |text: &str| json!({"kind": "send_message", "payload": {"channel_id": channel, "content": text}});
    let assign = json!({"kind": "assign_role", "payload": {"user_id": "1", "role_id": {"key": "c"}}});
    let ids = daemon
        .submit(guild, &json!([role("a"), role("b"), role("c"), assign, message("one"), role("d"), message("two")]));
    let [a, b, c, needs_c, one, d, two] = ids.try_into().unwrap();
    for id in [&a, &b, &one, &two] {
        daemon.until(id, "succeeded");
    }
    let elsewhere = daemon.submit(other, &json!([role("a")]));
    daemon.until(&elsewhere[0], "succeeded");

    let parked = || {
        let listed =
            daemon.request("GET", &format!("/v1/operations?guild_id={guild}&parked=true"), &Value::Null).json();
        let mut ids: Vec<_> =
            listed["operations"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect();
        ids.sort();
        ids
    };
    assert_eq!(parked(), [c.clone(), d.clone()]);
    for id in [&c, &d] {
        let operation = daemon.show(id);
        assert_eq!((&operation["state"], &operation["attempts"]), (&json!("delayed"), &json!(0)), "{operation}");
        assert_eq!(operation["error"]["class"], "rate_limited", "{operation}");
    }
    assert_eq!(daemon.show(&needs_c)["state"], "queued");

    // The next process has loaded it all, and does not call Discord for it.
    daemon.stop();
    let created = sim.score().routes["POST /guilds/{guild.id}/roles"].requests;
    let daemon = Daemon::start(&sim, &folder);
    let third = daemon.submit(guild, &json!([message("three")]));
    daemon.until(&third[0], "succeeded");
    assert_eq!(daemon.show(&c)["state"], "delayed");
    assert_eq!(daemon.show(&needs_c)["state"], "queued");

    // Cancelling the role ends the wait of the operation that needs it.
    let cancelled = daemon.request("POST", &format!("/v1/operations/{c}/cancel"), &Value::Null);
    assert_eq!(cancelled.status, 200, "{}", cancelled.body);
    let dead = daemon.until(&needs_c, "dead");
    assert_eq!(dead["error"]["class"], "not_found", "{dead}");

    let score = sim.score();
    assert_eq!(score.routes["POST /guilds/{guild.id}/roles"].requests, created, "no call was wasted");
    assert_eq!((score.rate_limited.user, score.rate_limited.global, score.duplicates), (0, 0, 0));
    daemon.stop();
}
