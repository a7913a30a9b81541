//! Checks against Discord.

use guildhall_sim::{CloudflareForm, Fault, FaultAction, GatewayConfig, Scope, SimConfig};
use serde_json::json;

use super::{
    Found, doctor, sim,
    support::{Guildhall, request, text},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_bot_that_is_well_is_told_so_with_few_calls() {
    let sim = sim(SimConfig { guilds: 30, ..SimConfig::default() }).await;
    let found = Found::run(doctor(&sim, &["--intents", "guilds,guild_members,message_content"]));
    found.is("token", "ok", "accepted by Discord: guildhall (");
    found.is("intents", "ok", "guild_members, message_content enabled");
    found.is("session starts", "ok", "1000 of 1000 left");
    found.is("clock", "ok", "this machine's clock matches Discord's");
    found.is("redis", "skip", "not configured");
    found.is("rabbitmq", "skip", "not configured");
    found.is("daemon", "skip", "not running at http://127.0.0.1:1");
    found.is("ban budget", "skip", "unknown: the daemon is not running");
    let roles = found.report["checks"].as_array().unwrap().iter().filter(|one| one["check"] == "roles").count();
    assert_eq!((roles, found.code, &found.report["ok"]), (3, 0, &json!(true)), "{}", found.raw);
    let score = sim.score();
    assert!(score.requests <= 10, "{} calls", score.requests);
    assert_eq!(score.routes.values().map(|route| route.requests).sum::<u64>(), score.requests);
}

#[tokio::test(flavor = "multi_thread")]
async fn intents_that_are_not_enabled_are_told_before_discord_closes() {
    let gateway = GatewayConfig { privileged_intents: false, ..GatewayConfig::default() };
    let sim = sim(SimConfig { gateway, ..SimConfig::default() }).await;
    let found = Found::run(doctor(&sim, &["--intents", "guilds,message_content"]));
    let (verdict, seen, advice) = found.check("intents");
    assert!(verdict == "fail" && seen.contains("message_content") && seen.contains("4014"), "{seen}");
    assert!(advice.contains("Message Content Intent") && advice.contains("gateway.intents"), "{advice}");
    assert_eq!((found.code, &found.report["ok"]), (1, &json!(false)));
    Found::run(doctor(&sim, &["--intents", "guilds"])).is("intents", "ok", "none of them privileged");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_wrong_and_session_starts_that_are_gone_are_found() {
    let gateway = GatewayConfig { session_starts: 1, shards: 2, ..GatewayConfig::default() };
    let late = sim(SimConfig { clock_ahead_s: 7, gateway, ..SimConfig::default() }).await;
    let found = Found::run(doctor(&late, &["--guilds", "0"]));
    found.is("clock", "warn", "behind Discord's");
    found.is("session starts", "fail", "1 of 1 left");
    found.is("roles", "skip", "no guild to check");
    let far = sim(SimConfig { clock_ahead_s: -3_600, ..SimConfig::default() }).await;
    let found = Found::run(doctor(&far, &[]));
    found.is("clock", "fail", "ahead of Discord's");
    assert!(found.check("clock").2.contains("chrony"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_refused_is_tried_once() {
    let sim = sim(SimConfig::default()).await;
    let found = Found::run(doctor(&sim, &[]).env("GUILDHALL__DISCORD__TOKEN", "another-token"));
    let (verdict, seen, advice) = found.check("token");
    assert!(
        verdict == "fail" && seen.contains("401") && advice.contains("GUILDHALL__DISCORD__TOKEN"),
        "{seen} {advice}"
    );
    for check in ["intents", "session starts", "roles"] {
        found.is(check, "skip", "Discord refused the token");
    }
    found.is("clock", "ok", "this machine's clock matches");
    assert_eq!((sim.score().requests, found.code), (1, 1), "one 401 and no more");
    assert!(!found.raw.contains("another-token"), "{}", found.raw);

    let none = Found::run(doctor(&sim, &[]).without("GUILDHALL__DISCORD__TOKEN"));
    none.is("token", "fail", "discord.token is not set");
    none.is("clock", "skip", "discord.token is not set");
    assert_eq!(sim.score().requests, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn discord_is_left_alone_as_soon_as_it_says_so() {
    let fault =
        |action| Fault { route: "GET /applications/@me".to_owned(), action, probability: 1.0, count: None, skip: 0 };
    for action in [
        FaultAction::RateLimit { scope: Scope::Global, retry_after_ms: 30_000 },
        FaultAction::Cloudflare { form: CloudflareForm::Html, retry_after_ms: None },
        FaultAction::DropBefore,
        FaultAction::Status { status: 503, code: 0 },
    ] {
        let sim = sim(SimConfig::default()).await;
        sim.add_fault(fault(action.clone())).unwrap();
        let found = Found::run(doctor(&sim, &[]));
        found.is("token", "ok", "accepted by Discord");
        let (verdict, seen, advice) = found.check("intents");
        assert!(matches!(verdict, "warn" | "fail") && !advice.is_empty(), "{action:?}: {seen}");
        found.is("session starts", "skip", "Discord was not called");
        found.is("roles", "skip", "Discord was not called");
        assert!(sim.score().requests <= 2, "{action:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_limit_is_waited_for_once() {
    let sim = sim(SimConfig::default()).await;
    let short = FaultAction::RateLimit { scope: Scope::User, retry_after_ms: 300 };
    let fault =
        |count| Fault { route: "GET /gateway/bot".to_owned(), action: short.clone(), probability: 1.0, count, skip: 0 };
    sim.add_fault(fault(Some(1))).unwrap();
    Found::run(doctor(&sim, &["--guilds", "0"])).is("session starts", "ok", "1000 of 1000 left");
    sim.remove_faults(None);
    sim.add_fault(fault(None)).unwrap();
    let before = sim.score().requests;
    let found = Found::run(doctor(&sim, &[]));
    found.is("session starts", "warn", "rate limited");
    found.is("roles", "skip", "rate limited");
    assert!(sim.score().requests - before <= 5, "{}", sim.score().requests - before);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_at_discords_address_is_one_failure_and_not_many() {
    let sim = sim(SimConfig::default()).await;
    let program = doctor(&sim, &[]).env("GUILDHALL__DISCORD__API_URL", "http://127.0.0.1:1/api/v10");
    let found = Found::run(program);
    let (verdict, seen, advice) = found.check("token");
    assert!(verdict == "fail" && seen.contains("unavailable") && advice.contains("discord.api_url"), "{seen} {advice}");
    found.is("intents", "skip", "unavailable in an earlier call");
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_above_the_bot_are_named() {
    let sim = sim(SimConfig::default()).await;
    let guild = sim.guilds()[0].to_string();
    let call = |method: &str, path: &str, body: &str| {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: Bot sim-bot-token\r\n\
             User-Agent: DiscordBot (https://guildhall.example, 1)\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = tokio::task::block_in_place(|| request(sim.address(), &head));
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()
    };
    let well = Found::run(doctor(&sim, &["--guild", &guild]));
    let (verdict, seen, _) = well.check("roles");
    assert!(verdict == "ok" && seen.contains(&guild), "{verdict}: {seen}");

    // A role was moved above the bot's.
    call("POST", &format!("/api/v10/guilds/{guild}/roles"), r#"{"name": "Admins"}"#);
    call("PATCH", &format!("/sim/guilds/{guild}"), r#"{"bot_role_position": 1}"#);
    let found = Found::run(doctor(&sim, &["--guild", &guild]));
    let (verdict, seen, advice) = found.check("roles");
    assert!(verdict == "warn" && seen.contains("can neither assign nor change Admins"), "{verdict}: {seen}");
    assert!(advice.contains("drag its role"), "{advice}");
    assert_eq!(found.code, 0, "a warning is not a failure");

    let nowhere = Found::run(doctor(&sim, &["--guild", "7"]));
    nowhere.is("roles", "fail", "not in guild 7");
    assert_eq!(nowhere.code, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn people_read_a_line_for_each_and_what_to_do_below_it() {
    let output = Guildhall::new(&["doctor"]).env("GUILDHALL__API__BIND", "127.0.0.1:1").output();
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{shown}");
    assert!(
        shown.starts_with("fail  token             discord.token is not set\n                        → "),
        "{shown}"
    );
    assert!(shown.contains("\nskip  rabbitmq          not configured"), "{shown}");
    assert!(shown.ends_with(" passed, 0 warnings, 1 failed, 9 skipped\n"), "{shown}");
    let wrong = Guildhall::new(&["doctor", "-o", "json"]).env("GUILDHALL__GATEWAY__SHARDS", "many").output();
    let found = Found::of(&wrong);
    found.is("settings", "fail", "gateway.shards cannot be \"many\"");
    assert_eq!(found.code, 1);
}
