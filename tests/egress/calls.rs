//! Calls that reach Discord.

use guildhall_sim::{Algorithm, FireSpec, LimitConfig, RouteLimit};
use serde_json::json;
use tokio::task::block_in_place;

use crate::fixture::{ADMIN, Call, EgressFixture, bot, header, open};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_reaches_discord_and_its_answer_comes_back() {
    let fixture = EgressFixture::start().await;
    let admin = format!("Bot {ADMIN}");
    let key = fixture.create_key(&["egress", "application"]);
    for path in ["/api/v10/users/@me", "/api/v9/users/@me", "/api/users/@me"] {
        for authorization in [&bot(), &admin, &key, &key.replace("Bot ", "Bearer ")] {
            let response = fixture.send(&Call { path, authorization, ..Call::default() });
            assert_eq!(response.status, 200, "{path} {authorization}: {}", response.body);
            assert!(response.json()["id"].is_string(), "{}", response.body);
            assert_eq!(header(&response, "x-guildhall-sent"), Some("1"), "{}", response.head);
            assert_eq!(header(&response, "via"), Some("1.1 google"), "{}", response.head);
            assert_eq!(header(&response, "x-guildhall-why"), None, "{}", response.head);
        }
    }
    assert_eq!(fixture.sim.score().invalid_requests, 0);
    // Discord's own errors come back as they are.
    let missing = fixture.get("/channels/1");
    assert_eq!((missing.status, missing.json()["code"].as_u64()), (404, Some(10_003)), "{}", missing.body);
    assert_eq!(header(&missing, "generated-by-proxy"), None, "{}", missing.head);
    fixture.wait_for_metric("guildhall_egress_requests_total{caller=\"bot\",origin=\"discord\",status_class=\"2xx\"}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn body_and_audit_log_reason_reach_discord() {
    let fixture = EgressFixture::start().await;
    let guild = fixture.sim.guilds()[0];
    let call = Call {
        method: "POST",
        path: &format!("/guilds/{guild}/roles"),
        authorization: &bot(),
        headers: "X-Audit-Log-Reason: because%20of%20this\r\n",
        body: &json!({"name": "Herald", "permissions": "8"}).to_string(),
        ..Call::default()
    };
    let created = fixture.send(&call);
    assert_eq!((created.status, &created.json()["name"]), (200, &json!("Herald")), "{}", created.body);
    let log = fixture.get(&format!("/guilds/{guild}/audit-logs?limit=1"));
    assert_eq!(log.json()["audit_log_entries"][0]["reason"], "because of this", "{}", log.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn end_to_end_headers_pass_and_others_do_not() {
    let fixture = EgressFixture::start().await;
    let guild = fixture.sim.guilds()[0];
    let key = fixture.create_key(&["egress", &format!("guild:{guild}")]);
    let form =
        "--b\r\nContent-Disposition: form-data; name=\"payload_json\"\r\n\r\n{\"content\":\"a form\"}\r\n--b--\r\n";
    let channel = fixture.channel_of(guild);
    let call = Call {
        method: "POST",
        path: &format!("/api/v9/channels/{channel}/messages?wait=true"),
        authorization: &key,
        content_type: "multipart/form-data; boundary=b",
        headers: "Connection: X-Private\r\nX-Private: 1\r\nX-Guildhall-Lane: background\r\nCookie: a=1\r\nCookie: b=2\r\n\
            X-HTTP-Method-Override: DELETE\r\nUser-Agent: DiscordBot (https://a.example, 1) lib\r\nX-Track: yes\r\n",
        body: form,
    };
    let response = fixture.send(&call);
    assert_eq!((response.status, response.body.as_str()), (200, "{\"received\":89}"), "{}", response.head);
    // Repeated headers of a response are kept; those that only Guildhall may send are not.
    let cookies: Vec<&str> = response.head.lines().filter(|line| line.starts_with("set-cookie")).collect();
    assert_eq!(cookies, ["set-cookie: a=1", "set-cookie: b=2"], "{}", response.head);
    assert_eq!(header(&response, "x-guildhall-why"), None, "{}", response.head);
    assert_eq!(header(&response, "x-guildhall-sent"), Some("1"), "{}", response.head);
    let sent = fixture.upstream.calls("/messages").pop().unwrap();
    assert!(sent.head.starts_with(&format!("POST /api/v9/channels/{channel}/messages?wait=true HTTP/1.1\r\n")));
    assert_eq!(sent.body, form.as_bytes());
    assert_eq!(sent.headers("authorization"), [bot()]);
    assert_eq!(sent.headers("cookie"), ["a=1", "b=2"]);
    assert_eq!(sent.headers("user-agent"), ["DiscordBot (https://a.example, 1) lib"]);
    assert_eq!(sent.headers("x-track"), ["yes"]);
    for name in ["x-private", "x-guildhall-lane", "x-http-method-override", "connection", "transfer-encoding"] {
        assert!(sent.headers(name).is_empty(), "{name} in {}", sent.head);
    }
    // The client that sends no user agent gets one that Discord accepts.
    let agents = fixture.upstream.calls(&format!("/guilds/{guild}/channels")).pop().unwrap();
    assert!(agents.headers("user-agent")[0].starts_with("DiscordBot ("), "{}", agents.head);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_in_the_path_needs_no_key() {
    let fixture = EgressFixture::start().await;
    let fired = fixture.sim.fire(FireSpec::command(fixture.sim.guilds()[0], "ping")).await.unwrap();
    let callback = format!("/interactions/{}/{}/callback", fired.id.unwrap(), fired.token.unwrap());
    let body = json!({"type": 4, "data": {"content": "pong"}}).to_string();
    // discord.js sends a token of its own on these.
    let foreign = "Bot MTAw.another.application";
    let call = Call { method: "POST", path: &callback, authorization: foreign, body: &body, ..Call::default() };
    let response = fixture.send(&call);
    assert_eq!(response.status, 204, "{} {}", response.head, response.body);
    fixture.wait_for_metric("guildhall_egress_requests_total{caller=\"anonymous\"");
    // A token that Discord has refused is answered from memory the second time.
    let application = fixture.get("/oauth2/applications/@me").json()["id"].as_str().unwrap().to_owned();
    let path = format!("/webhooks/{application}/not-a-token");
    let wrong = Call { path: &path, authorization: "", ..call.clone() };
    for (sent, why) in [("1", None), ("0", Some("interaction_ended"))] {
        let refused = fixture.send(&wrong);
        assert_eq!((refused.status, refused.json()["code"].as_u64()), (401, Some(50_027)), "{}", refused.body);
        assert_eq!(header(&refused, "x-guildhall-sent"), Some(sent), "{}", refused.head);
        assert_eq!(header(&refused, "x-guildhall-why"), why, "{}", refused.head);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_that_would_wait_too_long_is_answered_429_at_once() {
    let path = "/channels/{channel.id}/messages";
    let tight = RouteLimit {
        method: "GET".to_owned(),
        path: path.to_owned(),
        case: Default::default(),
        bucket: None,
        limit: 1,
        per_ms: 600_000,
        algorithm: Algorithm::Fixed,
    };
    let limits = LimitConfig { routes: vec![tight], ..LimitConfig::default() };
    let fixture = EgressFixture::start_with(limits, &[]).await;
    let channel = fixture.channel_of(fixture.sim.guilds()[0]);
    let path = format!("/channels/{channel}/messages");
    assert_eq!(fixture.get(&path).status, 200);
    let call =
        Call { path: &path, authorization: &bot(), headers: "X-Guildhall-Deadline-Ms: 0\r\n", ..Call::default() };
    let limited = fixture.send(&call);
    assert_eq!(limited.status, 429, "{}", limited.body);
    let body = limited.json();
    assert!(body["retry_after"].as_f64().unwrap() > 1.0 && body["global"] == false, "{body}");
    assert!(body["message"].as_str().unwrap().starts_with("You are being rate limited."), "{body}");
    for (name, value) in [
        ("x-guildhall-sent", "0"),
        ("x-guildhall-why", "route_limit"),
        ("generated-by-proxy", "true"),
        ("x-ratelimit-limit", "1"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-scope", "user"),
        ("via", "1.1 guildhall"),
    ] {
        assert_eq!(header(&limited, name), Some(value), "{name}: {}", limited.head);
    }
    for name in ["retry-after", "x-ratelimit-bucket", "x-ratelimit-reset", "x-ratelimit-reset-after"] {
        assert!(header(&limited, name).is_some(), "{name}: {}", limited.head);
    }
    let score = fixture.sim.score();
    assert_eq!((score.rate_limited.user, score.invalid_requests), (0, 0));
    assert_eq!(fixture.arrived_at("GET /channels/{channel.id}/messages"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_that_hangs_up_frees_its_place() {
    let tight = RouteLimit {
        method: "GET".to_owned(),
        path: "/guilds/{guild.id}".to_owned(),
        case: Default::default(),
        bucket: None,
        limit: 1,
        per_ms: 600_000,
        algorithm: Algorithm::Fixed,
    };
    let limits = LimitConfig { routes: vec![tight], ..LimitConfig::default() };
    let fixture = EgressFixture::start_with(limits, &[("GUILDHALL__EGRESS__MAX_CALLS_PER_CALLER", "1")]).await;
    let path = format!("/guilds/{}", fixture.sim.guilds()[0]);
    assert_eq!(fixture.get(&path).status, 200);
    let key = fixture.create_key(&["egress", "application"]);
    let waits =
        |deadline: &'static str| Call { path: &path, authorization: &key, headers: deadline, ..Call::default() };
    let waiting = block_in_place(|| open(fixture.egress, &waits("X-Guildhall-Deadline-Ms: 600000\r\n").text()));
    fixture.wait_for_metric("guildhall_egress_calls 1");
    let full = fixture.send(&waits("X-Guildhall-Deadline-Ms: 0\r\n"));
    assert_eq!((full.status, header(&full, "x-guildhall-why")), (429, Some("calls_full")), "{}", full.head);
    drop(waiting);
    fixture.wait_for_metric("guildhall_egress_abandoned_total 1");
    fixture.wait_for_metric("guildhall_egress_calls 0");
    let limited = fixture.send(&waits("X-Guildhall-Deadline-Ms: 0\r\n"));
    assert_eq!((limited.status, header(&limited, "x-guildhall-why")), (429, Some("route_limit")), "{}", limited.head);
    assert_eq!(fixture.arrived_at("GET /guilds/{guild.id}"), 1, "the abandoned call was never sent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_connection_serves_many_calls_and_a_shutdown_ends_it() {
    let fixture = EgressFixture::start().await;
    let keep = Call { authorization: &bot(), ..Call::default() }.text().replace("Connection: close\r\n", "");
    let last = Call { authorization: &bot(), ..Call::default() }.text();
    let answers = block_in_place(|| crate::fixture::read_all(open(fixture.egress, &format!("{keep}{keep}{last}"))));
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 3, "{answers}");
    let idle = block_in_place(|| open(fixture.egress, ""));
    fixture.running.signal("TERM");
    assert_eq!(block_in_place(|| crate::fixture::read_all(idle)), "", "an idle connection is closed");
    let exit = block_in_place(|| fixture.running.wait_for_exit());
    assert_eq!(exit.code, Some(0), "{}", exit.stderr);
}
