//! Checks against Discord.

use guildhall_sim::{CloudflareForm, Fault, FaultAction, GatewayConfig, Scope, SimConfig};
use guildhall_testkit::program::{Guildhall, request, text};
use serde_json::json;

use super::{DoctorReport, doctor, sim};

#[tokio::test(flavor = "multi_thread")]
async fn healthy_bot_passes_with_few_calls() {
    let sim = sim(SimConfig { guilds: 30, ..SimConfig::default() }).await;
    let report = DoctorReport::run(doctor(&sim, &["--intents", "guilds,guild_members,message_content"]));
    report.assert_check("token", "ok", "accepted by Discord: guildhall (");
    report.assert_check("intents", "ok", "guild_members, message_content enabled");
    report.assert_check("session starts", "ok", "1000 of 1000 left");
    report.assert_check("clock", "ok", "this machine's clock matches Discord's");
    report.assert_check("redis", "skip", "not configured");
    report.assert_check("rabbitmq", "skip", "not configured");
    report.assert_check("daemon", "skip", "not running at http://127.0.0.1:1");
    report.assert_check("ban budget", "skip", "unknown: the daemon is not running");
    let roles = report.report["checks"].as_array().unwrap().iter().filter(|one| one["check"] == "roles").count();
    assert_eq!((roles, report.code, &report.report["ok"]), (3, 0, &json!(true)), "{}", report.raw);
    let score = sim.score();
    assert!(score.requests <= 10, "{} calls", score.requests);
    assert_eq!(score.routes.values().map(|route| route.requests).sum::<u64>(), score.requests);
}

#[tokio::test(flavor = "multi_thread")]
async fn disabled_intents_fail_the_check() {
    let gateway = GatewayConfig { privileged_intents: false, ..GatewayConfig::default() };
    let sim = sim(SimConfig { gateway, ..SimConfig::default() }).await;
    let report = DoctorReport::run(doctor(&sim, &["--intents", "guilds,message_content"]));
    let (status, seen, advice) = report.check("intents");
    assert!(status == "fail" && seen.contains("message_content") && seen.contains("4014"), "{seen}");
    assert!(advice.contains("Message Content Intent") && advice.contains("gateway.intents"), "{advice}");
    assert_eq!((report.code, &report.report["ok"]), (1, &json!(false)));
    DoctorReport::run(doctor(&sim, &["--intents", "guilds"])).assert_check("intents", "ok", "none of them privileged");
}

#[tokio::test(flavor = "multi_thread")]
async fn handlers_without_their_intents_are_a_warning() {
    const HANDLERS: &str =
        "[[handlers]]\nname = 'welcome'\non = 'member.join'\nset = [{ key = 'seen', value = true }]\n";
    let sim = sim(SimConfig::default()).await;
    let with =
        |program: Guildhall| program.file("handlers.toml", HANDLERS).env("GUILDHALL__HANDLERS__FILE", "handlers.toml");
    let report = DoctorReport::run(with(doctor(&sim, &["--intents", "guilds"])));
    let (status, seen, _) = report.check("handlers");
    assert!(status == "warn" && seen.contains("add `guild_members` to gateway.intents"), "{seen}");
    let report = DoctorReport::run(with(doctor(&sim, &["--intents", "guilds,guild_members"])));
    report.assert_check("handlers", "ok", "1 handlers");
    let daemon = with(Guildhall::serve(&sim.gateway_url()))
        .env("GUILDHALL__DISCORD__TOKEN", "sim-bot-token")
        .env("GUILDHALL__DISCORD__API_URL", &sim.api_url())
        .env("GUILDHALL__GATEWAY__INTENTS", "guilds")
        .spawn();
    let warning = daemon.wait_for_log_line("Discord sends no event for `member.join`");
    assert!(warning.contains("WARN") && warning.contains("handler welcome"), "{warning}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_clock_and_exhausted_session_starts_are_found() {
    let gateway = GatewayConfig { session_starts: 1, shards: 2, ..GatewayConfig::default() };
    let behind = sim(SimConfig { clock_ahead_s: 7, gateway, ..SimConfig::default() }).await;
    let report = DoctorReport::run(doctor(&behind, &["--guilds", "0"]));
    report.assert_check("clock", "warn", "behind Discord's");
    report.assert_check("session starts", "fail", "1 of 1 left");
    report.assert_check("roles", "skip", "no guild to check");
    let ahead = sim(SimConfig { clock_ahead_s: -3_600, ..SimConfig::default() }).await;
    let report = DoctorReport::run(doctor(&ahead, &[]));
    report.assert_check("clock", "fail", "ahead of Discord's");
    assert!(report.check("clock").2.contains("chrony"));
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_token_is_tried_once() {
    let sim = sim(SimConfig::default()).await;
    let report = DoctorReport::run(doctor(&sim, &[]).env("GUILDHALL__DISCORD__TOKEN", "another-token"));
    let (status, seen, advice) = report.check("token");
    assert!(
        status == "fail" && seen.contains("401") && advice.contains("GUILDHALL__DISCORD__TOKEN"),
        "{seen} {advice}"
    );
    for check in ["intents", "session starts", "roles"] {
        report.assert_check(check, "skip", "Discord refused the token");
    }
    report.assert_check("clock", "ok", "this machine's clock matches");
    assert_eq!((sim.score().requests, report.code), (1, 1), "one 401 and no more");
    assert!(!report.raw.contains("another-token"), "{}", report.raw);

    let none = DoctorReport::run(doctor(&sim, &[]).env_remove("GUILDHALL__DISCORD__TOKEN"));
    none.assert_check("token", "fail", "discord.token is not set");
    none.assert_check("clock", "skip", "discord.token is not set");
    assert_eq!(sim.score().requests, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn token_of_a_simulator_is_not_sent_to_discord() {
    let sim = sim(SimConfig::default()).await;
    let report = DoctorReport::run(doctor(&sim, &[]).env_remove("GUILDHALL__DISCORD__API_URL"));
    report.assert_check("token", "fail", "discord.token cannot be used");
    assert!(report.check("token").2.contains("add --sim http://127.0.0.1:PORT"), "{}", report.raw);
    report.assert_check("clock", "skip", "is not sent to Discord");

    let with_flag = doctor(&sim, &["--sim", &sim.url()]).env_remove("GUILDHALL__DISCORD__API_URL");
    DoctorReport::run(with_flag).assert_check("token", "ok", "accepted by Discord");
}

#[tokio::test(flavor = "multi_thread")]
async fn checks_stop_when_discord_limits_or_fails() {
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
        let report = DoctorReport::run(doctor(&sim, &[]));
        report.assert_check("token", "ok", "accepted by Discord");
        let (result, seen, advice) = report.check("intents");
        assert!(matches!(result, "warn" | "fail") && !advice.is_empty(), "{action:?}: {seen}");
        report.assert_check("session starts", "skip", "Discord was not called");
        report.assert_check("roles", "skip", "Discord was not called");
        assert!(sim.score().requests <= 2, "{action:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn short_rate_limit_is_waited_for_once() {
    let sim = sim(SimConfig::default()).await;
    let short = FaultAction::RateLimit { scope: Scope::User, retry_after_ms: 300 };
    let fault =
        |count| Fault { route: "GET /gateway/bot".to_owned(), action: short.clone(), probability: 1.0, count, skip: 0 };
    sim.add_fault(fault(Some(1))).unwrap();
    DoctorReport::run(doctor(&sim, &["--guilds", "0"])).assert_check("session starts", "ok", "1000 of 1000 left");
    sim.remove_faults(None);
    sim.add_fault(fault(None)).unwrap();
    let before = sim.score().requests;
    let report = DoctorReport::run(doctor(&sim, &[]));
    report.assert_check("session starts", "warn", "rate limited");
    report.assert_check("roles", "skip", "rate limited");
    assert!(sim.score().requests - before <= 5, "{}", sim.score().requests - before);
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_discord_is_one_failure() {
    let sim = sim(SimConfig::default()).await;
    let program = doctor(&sim, &[]).env("GUILDHALL__DISCORD__API_URL", "http://127.0.0.1:1/api/v10");
    let report = DoctorReport::run(program);
    let (status, seen, advice) = report.check("token");
    assert!(status == "fail" && seen.contains("unavailable") && advice.contains("discord.api_url"), "{seen} {advice}");
    report.assert_check("intents", "skip", "unavailable in an earlier call");
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_above_the_bot_are_reported() {
    let sim = sim(SimConfig::default()).await;
    let guild = sim.guilds()[0].to_string();
    let call = |method: &str, path: &str, body: &str| {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: Bot sim-bot-token\r\n\
             User-Agent: DiscordBot (https://guildhall.example, 1)\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let response = tokio::task::block_in_place(|| request(sim.address(), &head));
        assert_eq!(response.status, 200, "{}", response.body);
        response.json()
    };
    let healthy = DoctorReport::run(doctor(&sim, &["--guild", &guild]));
    let (status, seen, _) = healthy.check("roles");
    assert!(status == "ok" && seen.contains(&guild), "{status}: {seen}");

    // A role was moved above the bot's.
    call("POST", &format!("/api/v10/guilds/{guild}/roles"), r#"{"name": "Admins"}"#);
    call("PATCH", &format!("/sim/guilds/{guild}"), r#"{"bot_role_position": 1}"#);
    let report = DoctorReport::run(doctor(&sim, &["--guild", &guild]));
    let (status, seen, advice) = report.check("roles");
    assert!(status == "warn" && seen.contains("can neither assign nor change Admins"), "{status}: {seen}");
    assert!(advice.contains("drag its role"), "{advice}");
    assert_eq!(report.code, 0, "a warning is not a failure");

    let unknown_guild = DoctorReport::run(doctor(&sim, &["--guild", "7"]));
    unknown_guild.assert_check("roles", "fail", "not in guild 7");
    assert_eq!(unknown_guild.code, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn text_output_has_one_line_for_each_check() {
    let output = Guildhall::new(&["doctor"]).env("GUILDHALL__API__BIND", "127.0.0.1:1").output();
    let output_text = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{output_text}");
    assert!(
        output_text.starts_with("fail  token             discord.token is not set\n                        → "),
        "{output_text}"
    );
    assert!(output_text.contains("\nskip  rabbitmq          not configured"), "{output_text}");
    assert!(output_text.ends_with(" passed, 0 warnings, 1 failed, 12 skipped\n"), "{output_text}");
    let invalid = Guildhall::new(&["doctor", "-o", "json"]).env("GUILDHALL__GATEWAY__SHARDS", "many").output();
    let report = DoctorReport::from_output(&invalid);
    report.assert_check("settings", "fail", "gateway.shards cannot be \"many\"");
    assert_eq!(report.code, 1);
}
