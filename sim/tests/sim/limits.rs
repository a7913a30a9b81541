//! Tests of the limits from a caller's view: headers, refusals, and the ban.

use std::net::SocketAddr;

use bytes::Bytes;
use guildhall_sim::{Algorithm, InvalidLimit, LimitConfig, Rate, RouteLimit, SimConfig};
use http::{Method, Request};
use http_body_util::Full;
use serde_json::json;

use crate::common::{AGENT, Fixture, TOKEN, send};

fn limits(change: impl FnOnce(&mut LimitConfig)) -> SimConfig {
    let mut limits = LimitConfig::default();
    change(&mut limits);
    SimConfig { limits, ..SimConfig::default() }
}

fn tight(method: &str, path: &str, limit: u32) -> RouteLimit {
    serde_json::from_value(json!({
        "method": method, "path": path, "limit": limit, "per_ms": 600_000, "algorithm": "fixed"
    }))
    .unwrap()
}

fn is_seconds_with_three_digits(text: &str) -> bool {
    text.split_once('.').is_some_and(|(whole, part)| {
        part.len() == 3 && whole.bytes().chain(part.bytes()).all(|digit| digit.is_ascii_digit())
    })
}

#[tokio::test]
async fn response_reports_its_bucket_and_a_refusal_the_wait() {
    let fixture = Fixture::start(SimConfig::default()).await;
    let path = format!("/channels/{}/messages", fixture.channel);
    fixture.sim.set_route_limit(tight("POST", "/channels/{channel.id}/messages", 2)).unwrap();

    let first = fixture.api(Method::POST, &path, Some(json!({ "content": "one" }))).await;
    assert_eq!(first.status, 200, "{}", first.text);
    assert_eq!((first.header("x-ratelimit-limit"), first.header("x-ratelimit-remaining")), ("2", "1"));
    assert!(is_seconds_with_three_digits(first.header("x-ratelimit-reset")), "{:?}", first.headers);
    assert!(is_seconds_with_three_digits(first.header("x-ratelimit-reset-after")), "{:?}", first.headers);
    assert_eq!(first.header("x-ratelimit-bucket").len(), 32);
    assert_eq!((first.header("via"), first.header("content-type")), ("1.1 google", "application/json"));
    for only_on_a_429 in ["x-ratelimit-scope", "x-ratelimit-global", "retry-after"] {
        assert_eq!(first.header(only_on_a_429), "");
    }

    fixture.api(Method::POST, &path, Some(json!({ "content": "two" }))).await;
    let refused = fixture.api(Method::POST, &path, Some(json!({ "content": "three" }))).await;
    assert_eq!(refused.status, 429);
    assert_eq!((refused.header("x-ratelimit-scope"), refused.header("x-ratelimit-remaining")), ("user", "0"));
    let wait: u64 = refused.header("retry-after").parse().unwrap();
    let body = refused.json();
    assert_eq!(
        (body["message"].as_str(), body["global"].as_bool()),
        (Some("You are being rate limited."), Some(false))
    );
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a wait in seconds")]
    let rounded_up = body["retry_after"].as_f64().unwrap().ceil() as u64;
    assert_eq!(rounded_up, wait, "Retry-After is the value of the body, rounded up to whole seconds");

    let score = fixture.sim.score();
    assert_eq!((score.rate_limited.user, score.invalid_requests), (1, 1));
    assert_eq!(score.created[&fixture.guild].len(), 2, "a refused call has no effect");
}

#[tokio::test]
async fn buckets_are_split_by_top_level_id_and_shared_by_routes_of_one_hash() {
    let fixture = Fixture::start(SimConfig { channels: 2, ..SimConfig::default() }).await;
    let channels = fixture.api(Method::GET, &format!("/guilds/{}/channels", fixture.guild), None).await.json();
    fixture.sim.set_route_limit(tight("POST", "/channels/{channel.id}/messages", 1)).unwrap();
    let mut hashes = Vec::new();
    for channel in channels.as_array().unwrap().iter().filter(|channel| channel["type"] == 0) {
        let path = format!("/channels/{}/messages", channel["id"].as_str().unwrap());
        let answer = fixture.api(Method::POST, &path, Some(json!({ "content": "here" }))).await;
        assert_eq!(answer.status, 200);
        hashes.push(answer.header("x-ratelimit-bucket").to_owned());
    }
    assert!(hashes.len() > 1 && hashes.windows(2).all(|pair| pair[0] == pair[1]), "{hashes:?}");

    let role = fixture.api(Method::POST, &format!("/guilds/{}/roles", fixture.guild), Some(json!({}))).await.json();
    let members = fixture.api(Method::GET, &format!("/guilds/{}/members?limit=5", fixture.guild), None).await.json();
    let member = members[0]["user"]["id"].as_str().unwrap();
    let path = format!("/guilds/{}/members/{member}/roles/{}", fixture.guild, role["id"].as_str().unwrap());
    let put = fixture.api(Method::PUT, &path, None).await;
    let delete = fixture.api(Method::DELETE, &path, None).await;
    assert_eq!((put.status, delete.status), (204, 204));
    assert_eq!(put.header("x-ratelimit-bucket"), delete.header("x-ratelimit-bucket"));
    assert_eq!((put.header("x-ratelimit-remaining"), delete.header("x-ratelimit-remaining")), ("9", "8"));
}

#[tokio::test]
async fn global_limit_has_no_bucket_headers_and_exempts_interactions() {
    for algorithm in [Algorithm::Sliding, Algorithm::Aligned] {
        let config = limits(|limits| limits.global = Rate::new(3, 600_000, algorithm));
        let fixture = Fixture::start(config).await;
        for _ in 0..3 {
            assert_eq!(fixture.api(Method::GET, "/users/@me", None).await.status, 200);
        }
        let refused = fixture.api(Method::GET, "/users/@me", None).await;
        assert_eq!(refused.status, 429);
        assert_eq!((refused.header("x-ratelimit-global"), refused.header("x-ratelimit-scope")), ("true", "global"));
        assert_eq!(refused.header("x-ratelimit-bucket"), "");
        assert_eq!(refused.json()["global"], true);

        let command = json!({ "guild_id": fixture.guild, "name": "ping" });
        let fired = fixture.control(Method::POST, "/sim/commands", Some(command)).await.json();
        let (id, token) = (fired["id"].as_str().unwrap(), fired["token"].as_str().unwrap());
        let path = format!("/interactions/{id}/{token}/callback");
        assert_eq!(fixture.api(Method::POST, &path, Some(json!({ "type": 5 }))).await.status, 204);
        let score = fixture.sim.score();
        assert_eq!(score.max_per_second[&fixture.application], 4);
        assert_eq!((score.rate_limited.global, score.exempt_requests, score.interactions.answered), (1, 1, 1));
    }
}

#[tokio::test]
async fn channel_name_has_a_sublimit_with_remaining_above_zero() {
    let fixture = Fixture::start(SimConfig::default()).await;
    let path = format!("/channels/{}", fixture.channel);
    for name in ["one", "two"] {
        assert_eq!(fixture.api(Method::PATCH, &path, Some(json!({ "name": name }))).await.status, 200);
    }
    let refused = fixture.api(Method::PATCH, &path, Some(json!({ "topic": "three" }))).await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("x-ratelimit-remaining"), "3");
    assert!(refused.header("retry-after").parse::<u64>().unwrap() > 500);
    let other = fixture.api(Method::PATCH, &path, Some(json!({ "nsfw": true }))).await;
    assert_eq!(other.status, 200, "calls without the sublimit continue");
}

#[tokio::test]
async fn invalid_requests_lead_to_a_cloudflare_ban() {
    let config = limits(|limits| limits.invalid = InvalidLimit { limit: 3, ..InvalidLimit::default() });
    let fixture = Fixture::start(config).await;
    let address = fixture.sim.address();
    for _ in 0..3 {
        let request = Request::get("/api/v10/users/@me")
            .header("host", "sim")
            .header("user-agent", AGENT)
            .header("authorization", "Bot wrong")
            .body(Full::new(Bytes::new()))
            .unwrap();
        let answer = send(address, request).await.unwrap();
        assert_eq!((answer.status, answer.json()["message"].as_str()), (401, Some("401: Unauthorized")));
    }
    let banned = fixture.api(Method::GET, "/users/@me", None).await;
    assert_eq!((banned.status, banned.header("via"), banned.header("x-ratelimit-limit")), (429, "", ""));
    assert_eq!(banned.json()["code"], 0);
    assert!(banned.text.contains("You are being blocked from accessing our API temporarily"));
    let score = fixture.sim.score();
    assert_eq!((score.invalid_requests, score.bans, score.requests_while_banned), (3, 1, 1));
}

#[tokio::test]
async fn required_user_agent_is_not_needed_with_an_interaction_token() {
    let fixture = Fixture::start(SimConfig { require_user_agent: true, ..SimConfig::default() }).await;
    let address: SocketAddr = fixture.sim.address();
    let bare = |path: &str| {
        Request::get(path)
            .header("host", "sim")
            .header("user-agent", "curl/8")
            .header("authorization", TOKEN)
            .body(Full::new(Bytes::new()))
            .unwrap()
    };
    let refused = send(address, bare("/api/v10/users/@me")).await.unwrap();
    assert_eq!((refused.status, refused.json()["code"].as_u64()), (403, Some(40333)));
    let path = format!("/api/v10/webhooks/{}/no-such-token/messages/@original", fixture.application);
    assert_eq!(send(address, bare(&path)).await.unwrap().json()["code"], 50027);
    assert_eq!(fixture.sim.score().invalid_user_agents, 1);
}

#[tokio::test]
async fn user_agent_of_another_form_is_counted_and_accepted() {
    let fixture = Fixture::start(SimConfig::default()).await;
    for agent in ["curl/8", AGENT] {
        let request = Request::get("/api/v10/users/@me")
            .header("host", "sim")
            .header("user-agent", agent)
            .header("authorization", TOKEN)
            .body(Full::new(Bytes::new()))
            .unwrap();
        assert_eq!(send(fixture.sim.address(), request).await.unwrap().status, 200);
    }
    assert_eq!(fixture.sim.score().invalid_user_agents, 1);
}

#[tokio::test]
async fn disabled_limits_refuse_nothing_and_send_no_headers() {
    let fixture = Fixture::start(SimConfig { limits: LimitConfig::off(), ..SimConfig::default() }).await;
    for _ in 0..100 {
        let answer = fixture.api(Method::GET, "/users/@me", None).await;
        assert_eq!((answer.status, answer.header("x-ratelimit-limit")), (200, ""));
    }
}

#[tokio::test]
async fn older_api_versions_are_served_too() {
    let fixture = Fixture::start(SimConfig::default()).await;
    for path in ["/api/v10/gateway", "/api/v9/gateway", "/api/gateway"] {
        let answer = fixture.control(Method::GET, path, None).await;
        assert_eq!(answer.json()["url"], fixture.sim.gateway_url(), "{path}");
    }
}
