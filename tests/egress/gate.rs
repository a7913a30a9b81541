//! What the gate refuses for a caller before Discord sees it, and tokens that are not the daemon's own.

use guildhall_sim::{Fault, FaultAction, LimitConfig};
use guildhall_testkit::program::{CANARY, HttpResponse};
use serde_json::{Value, json};

use crate::fixture::{ADMIN, Call, EgressFixture, bot, header};

/// The token of another bot, whose application is 100000000000000001.
const OTHER: &str = "MTAwMDAwMDAwMDAwMDAwMDAx.other-bot.its-secret-token";
const OTHER_APPLICATION: &str = "100000000000000001";

fn fault(fixture: &EgressFixture, route: &str, action: FaultAction, count: Option<u64>) {
    let fault = Fault { route: route.to_owned(), action, probability: 1.0, count, skip: 0 };
    fixture.sim.add_fault(fault).unwrap();
}

fn status(status: u16, code: u32) -> FaultAction {
    FaultAction::Status { status, code }
}

/// Status, whether Discord saw the call, and why Guildhall answered.
fn outcome(response: &HttpResponse) -> (u16, Option<&str>, Option<&str>) {
    (response.status, header(response, "x-guildhall-sent"), header(response, "x-guildhall-why"))
}

fn read<'a>(path: &'a str, authorization: &'a str) -> Call<'a> {
    Call { path, authorization, ..Call::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_bot_token_is_not_sent_again_until_its_breaker_is_reset() {
    let fixture = EgressFixture::start().await;
    fault(&fixture, "GET /guilds/{guild.id}", status(401, 0), None);
    let path = format!("/guilds/{}", fixture.sim.guilds()[0]);
    assert_eq!(outcome(&fixture.get(&path)), (401, Some("1"), None));
    fixture.sim.remove_faults(None);
    let refused = fixture.get("/users/@me");
    assert_eq!(outcome(&refused), (401, Some("0"), Some("unauthorized")), "{}", refused.body);
    assert_eq!(fixture.sim.score().invalid_requests, 1);
    let breakers = fixture.api("GET", "/v1/breakers", &Value::Null).json();
    let forced = breakers["breakers"].as_array().unwrap().iter().find(|breaker| breaker["state"] == "forced_open");
    let key = forced.unwrap()["key"].clone();
    assert_eq!(fixture.api("POST", "/v1/breakers/reset", &json!({ "key": key })).status, 200);
    assert_eq!(fixture.get("/users/@me").status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_of_cloudflare_stops_all_calls() {
    let fixture = EgressFixture::start().await;
    let ban = FaultAction::Cloudflare { form: Default::default(), retry_after_ms: Some(600_000) };
    fault(&fixture, "GET /users/@me", ban, Some(1));
    let page = fixture.get("/users/@me");
    assert_eq!((outcome(&page), header(&page, "via")), ((429, Some("1"), None), None), "{}", page.head);
    let refused = fixture.get(&format!("/guilds/{}", fixture.sim.guilds()[0]));
    assert_eq!(outcome(&refused), (503, Some("0"), Some("blocked")), "{}", refused.body);
    let wait: u64 = header(&refused, "retry-after").unwrap().parse().unwrap();
    assert!((500..=600).contains(&wait), "{wait}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_object_is_left_alone_for_a_while() {
    let fixture = EgressFixture::start().await;
    let [one, other, _] = fixture.sim.guilds()[..] else { panic!("three guilds") };
    fault(&fixture, &format!("GET /guilds/{one}"), status(500, 0), None);
    for _ in 0..5 {
        assert_eq!(outcome(&fixture.get(&format!("/guilds/{one}"))), (500, Some("1"), None));
    }
    let refused = fixture.get(&format!("/guilds/{one}"));
    assert_eq!(outcome(&refused), (503, Some("0"), Some("breaker_open")), "{}", refused.body);
    assert!(header(&refused, "retry-after").is_some(), "{}", refused.head);
    assert_eq!(fixture.get(&format!("/guilds/{other}")).status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_webhook_is_remembered_until_it_is_cleared() {
    let fixture = EgressFixture::start().await;
    let path = "/webhooks/7/some-token";
    let post = Call { method: "POST", path, body: r#"{"content":"x"}"#, ..Call::default() };
    let first = fixture.send(&post);
    assert_eq!((outcome(&first), first.json()["code"].as_u64()), ((404, Some("1"), None), Some(10_015)));
    let sent = fixture.upstream.calls(path).len();
    let second = fixture.send(&post);
    assert_eq!(outcome(&second), (404, Some("0"), Some("webhook_gone")), "{}", second.head);
    assert_eq!((&second.json()["code"], &second.json()["message"]), (&json!(10_015), &json!("Unknown Webhook")));
    assert!(header(&second, "retry-after").is_some(), "it has an end: {}", second.head);
    // With another token it may exist, and so may a channel with the same id.
    assert_eq!(outcome(&fixture.send(&Call { path: "/webhooks/7/another", ..post.clone() })), (404, Some("1"), None));
    assert_eq!(outcome(&fixture.get("/channels/7")).1, Some("1"));
    assert_eq!(fixture.upstream.calls(path).len(), sent);
    assert_eq!(fixture.api("GET", "/v1/limits", &Value::Null).json()["gone_webhooks"], 2);
    let clear = |id: &str| fixture.api("POST", "/v1/egress/webhooks/clear", &json!({ "webhook_id": id }));
    assert_eq!(clear("7").json(), json!({"webhook_id": "7", "cleared": 2}));
    assert_eq!(clear("8").json()["cleared"], 0);
    assert_eq!(clear("x").status, 400);
    assert_eq!(outcome(&fixture.send(&post)), (404, Some("1"), None));
    let audit = fixture.api("GET", "/v1/audit?action=webhooks.clear", &Value::Null).body;
    assert!(audit.contains("\"7\""), "{audit}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_403_of_one_caller_is_refused_before_discord_sees_it() {
    let fixture = EgressFixture::start().await;
    let [one, other, _] = fixture.sim.guilds()[..] else { panic!("three guilds") };
    let key = fixture.create_key(&["egress", "application"]);
    fault(&fixture, &format!("GET /guilds/{one}"), status(403, 50_013), None);
    let (path, other) = (format!("/guilds/{one}"), format!("/guilds/{other}"));
    for number in 0..10 {
        assert_eq!(outcome(&fixture.send(&read(&path, &key))), (403, Some("1"), None), "{number}");
    }
    let refused = fixture.send(&read(&path, &key));
    assert_eq!(outcome(&refused), (403, Some("0"), Some("forbidden_storm")), "{}", refused.body);
    assert_eq!(refused.json(), json!({"message": "Missing Permissions", "code": 50_013}));
    let wait: u64 = header(&refused, "retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    assert_eq!(fixture.sim.score().invalid_requests, 10);
    // Other objects and other callers are not affected.
    assert_eq!(fixture.send(&read(&other, &key)).status, 200);
    assert_eq!(outcome(&fixture.get(&path)), (403, Some("1"), None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_that_has_used_its_share_of_the_ban_budget_waits_alone() {
    let settings = [("GUILDHALL__INVALID_REQUESTS__LIMIT", "40")];
    let fixture = EgressFixture::start_with(LimitConfig::off(), &settings).await;
    let key = fixture.create_key(&["egress", "application"]);
    fault(&fixture, "GET /guilds/*/roles", status(403, 50_001), None);
    // A quarter of 40, on different objects.
    for guild in 1..=10 {
        assert_eq!(outcome(&fixture.send(&read(&format!("/guilds/{guild}/roles"), &key))), (403, Some("1"), None));
    }
    let limited = fixture.send(&read("/guilds/11/roles", &key));
    assert_eq!(outcome(&limited), (429, Some("0"), Some("invalid_requests_key_share")), "{}", limited.body);
    assert_eq!((&limited.json()["global"], header(&limited, "x-ratelimit-scope")), (&json!(false), Some("user")));
    assert_eq!(outcome(&fixture.get("/guilds/11/roles")), (403, Some("1"), None), "the bot has its own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_tokens_are_refused_unless_allowed() {
    let fixture = EgressFixture::start_with_bots(LimitConfig::off(), &[], &[OTHER]).await;
    let before = fixture.sim.score().requests;
    for authorization in [format!("Bot {OTHER}"), format!("Bearer {OTHER}"), format!("Bearer {CANARY}")] {
        let refused = fixture.send(&read("/users/@me", &authorization));
        assert_eq!(outcome(&refused), (401, Some("0"), Some("unauthorized")), "{}", refused.body);
    }
    assert_eq!(fixture.sim.score().requests, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_of_others_have_limits_and_a_guard_of_their_own() {
    let settings = [("GUILDHALL__EGRESS__FOREIGN_TOKENS", "true")];
    let fixture = EgressFixture::start_with_bots(LimitConfig::off(), &settings, &[OTHER]).await;
    let own = fixture.get("/users/@me").json()["id"].clone();
    let other = fixture.send(&read("/users/@me", &format!("Bot {OTHER}")));
    assert_eq!(outcome(&other), (200, Some("1"), None), "{}", other.body);
    assert_ne!(other.json()["id"], own);
    let sent = fixture.upstream.calls("/users/@me").pop().unwrap();
    assert_eq!(sent.headers("authorization"), [format!("Bot {OTHER}")]);
    // A wrong token reaches Discord once, and stops no other.
    let before = fixture.sim.score().invalid_requests;
    for wrong in ["Bot MTAw.made-up.token", "Bearer made-up-token-of-a-user"] {
        assert_eq!(outcome(&fixture.send(&read("/users/@me", wrong))), (401, Some("1"), None), "{wrong}");
        let again = fixture.send(&read("/users/@me", wrong));
        assert_eq!(outcome(&again), (401, Some("0"), Some("unauthorized")), "{wrong}: {}", again.body);
        let wait: u64 = header(&again, "retry-after").unwrap().parse().unwrap();
        assert!((500..=600).contains(&wait), "{wait}");
    }
    assert_eq!(
        fixture.upstream.calls("/users/@me").pop().unwrap().headers("authorization"),
        ["Bearer made-up-token-of-a-user"]
    );
    assert_eq!(fixture.sim.score().invalid_requests, before + 2);
    assert_eq!(fixture.get("/users/@me").status, 200);
    assert_eq!(fixture.send(&read("/users/@me", &format!("Bot {OTHER}"))).status, 200);
    // Each is a credential of its own; none is shown.
    let limits = fixture.api("GET", "/v1/limits", &Value::Null);
    let credentials = limits.json()["credentials"].as_array().unwrap().clone();
    let names: Vec<&str> = credentials.iter().map(|one| one["credential"].as_str().unwrap()).collect();
    assert_eq!(names.iter().filter(|name| name.starts_with("token-")).count(), 3, "{names:?}");
    assert_eq!(limits.json()["refused_tokens"], 2);
    for (about, text) in [
        ("limits", limits.body),
        ("breakers", fixture.api("GET", "/v1/breakers", &Value::Null).body),
        ("metrics", fixture.api("GET", "/metrics", &Value::Null).body),
    ] {
        assert!(!text.contains("secret-token") && !text.contains("made-up"), "{about}: {text}");
    }
    fixture.running.signal("TERM");
    let exit = tokio::task::block_in_place(|| fixture.running.wait_for_exit());
    assert!(!exit.stderr.contains("secret-token") && !exit.stderr.contains("made-up"), "{}", exit.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_use_other_applications_of_the_settings() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("other-token");
    std::fs::write(&file, format!("{OTHER}\n")).unwrap();
    let settings = [("GUILDHALL__EGRESS__BOT_TOKEN_FILES", file.to_str().unwrap())];
    let fixture = EgressFixture::start_with_bots(LimitConfig::off(), &settings, &[OTHER]).await;
    let own = fixture.get("/users/@me").json()["id"].clone();
    let (admin, guild) = (format!("Bot {ADMIN}"), fixture.sim.guilds()[0]);
    let limited = fixture.create_key(&["egress", &format!("guild:{guild}")]);
    let choose = |authorization: &str, application: &str| {
        let headers = format!("X-Guildhall-Application: {application}\r\n");
        fixture.send(&Call { authorization, headers: &headers, ..Call::default() })
    };
    let direct = fixture.send(&read("/users/@me", &format!("Bot {OTHER}")));
    assert_eq!(direct.status, 200, "{}", direct.body);
    let chosen = choose(&admin, OTHER_APPLICATION);
    assert_eq!((chosen.status, &chosen.json()["id"]), (200, &direct.json()["id"]), "{}", chosen.body);
    assert_ne!(chosen.json()["id"], own);
    assert_eq!(outcome(&choose(&limited, OTHER_APPLICATION)), (403, Some("0"), Some("forbidden")));
    assert_eq!(outcome(&choose(&bot(), OTHER_APPLICATION)), (403, Some("0"), Some("forbidden")));
    assert_eq!(outcome(&choose(&admin, "5")), (400, Some("0"), Some("headers")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stale_fence_is_refused_before_the_call_is_sent() {
    let fixture = EgressFixture::start().await;
    let guild = fixture.sim.guilds()[0];
    let operation = json!({"kind": "create_role", "payload": {"name": "Herald"}});
    let path = format!("/v1/guilds/{guild}/operations");
    assert_eq!(fixture.api("POST", &path, &json!({"operations": [operation]})).status, 202);
    let before = fixture.arrived_at("GET /guilds/{guild.id}");
    let fenced = |fence: &str| {
        let headers = format!("X-Guildhall-Fence: {fence}\r\n");
        let path = format!("/guilds/{guild}");
        fixture.send(&Call { path: &path, authorization: &bot(), headers: &headers, ..Call::default() })
    };
    for stale in [format!("{guild}:0"), format!("{guild}:9223372036854775807"), "1:1".to_owned()] {
        let refused = fenced(&stale);
        assert_eq!(outcome(&refused), (412, Some("0"), Some("fence_stale")), "{stale}: {}", refused.body);
    }
    for malformed in ["", "7", &format!("{guild}:x"), &format!("{guild}:1, {guild}:1")] {
        assert_eq!(outcome(&fenced(malformed)), (400, Some("0"), Some("headers")), "{malformed}");
    }
    assert_eq!(fixture.arrived_at("GET /guilds/{guild.id}"), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_of_keys_are_in_the_audit_log() {
    let fixture = EgressFixture::start().await;
    let guild = fixture.sim.guilds()[0];
    let channel = fixture.channel_of(guild);
    let key = fixture.create_key(&["egress", &format!("guild:{guild}")]);
    let typing = format!("/channels/{channel}/typing");
    for authorization in [&key, &bot()] {
        let call = Call { method: "POST", path: &typing, authorization, ..Call::default() };
        assert_eq!(fixture.send(&call).status, 204);
    }
    assert_eq!(fixture.send(&read(&format!("/channels/{channel}"), &key)).status, 200);
    let expected = format!("POST /channels/{{id}}/typing for {channel}");
    let records = fixture.wait_for_audit("egress.write", &expected);
    assert_eq!(records.len(), 1, "neither reads nor calls without a key: {records:?}");
}
