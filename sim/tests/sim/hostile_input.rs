//! Tests of well-formed but extreme input: each is refused with an error or served, and nothing breaks.

use guildhall_sim::SimConfig;
use http::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::common::Fixture;

const MAX: u64 = u64::MAX;

#[tokio::test]
async fn extreme_numbers_are_served_or_refused_with_an_error() {
    let fixture = Fixture::start(SimConfig::default()).await;
    let guild = format!("/sim/guilds/{}", fixture.guild);
    let cases = [
        (Method::GET, format!("/sim/state?after={MAX}"), None, 200, ""),
        (Method::PATCH, guild.clone(), Some(json!({ "bot_role_position": u32::MAX })), 200, ""),
        (Method::POST, format!("{guild}/members"), Some(json!({ "user_id": MAX })), 200, ""),
        (Method::POST, format!("{guild}/members"), Some(json!({ "per_second": 1e-300 })), 400, "longer than 600 s"),
        (Method::POST, "/sim/storm".into(), Some(json!({ "seconds": -1 })), 400, "0 to 600"),
        (Method::POST, "/sim/storm".into(), Some(json!({ "seconds": 1e300 })), 400, "0 to 600"),
        (Method::POST, "/sim/storm".into(), Some(json!({ "seconds": 0, "count": MAX })), 200, ""),
        (Method::POST, "/sim/guilds".into(), Some(json!([])), 400, "must be an object"),
        (Method::POST, "/sim/gateway/faults".into(), Some(json!({ "kind": "mute", "event": "x" })), 400, "event type"),
        (
            Method::POST,
            "/sim/gateway/faults".into(),
            Some(json!({ "kind": "skip_sequence", "count": MAX })),
            200,
            "affected",
        ),
    ];
    for (method, path, body, status, expected) in cases {
        let answer = fixture.control(method.clone(), &path, body.clone()).await;
        assert!(answer.status == status && answer.text.contains(expected), "{method} {path} {body:?}: {}", answer.text);
    }
}

#[tokio::test]
async fn owner_cannot_leave_so_that_commands_have_a_user() {
    let fixture = Fixture::start(SimConfig { members: 0, ..SimConfig::default() }).await;
    let state = fixture.control(Method::GET, "/sim/state", None).await.json();
    let owner = state["guilds"][0]["owner_id"].as_str().unwrap();
    let path = format!("/sim/guilds/{}/members/{owner}", fixture.guild);
    let refused = fixture.control(Method::DELETE, &path, None).await;
    assert!(refused.status == 404 && refused.text.contains("owns the guild"), "{}", refused.text);
    assert_eq!(fixture.control(Method::POST, "/sim/commands", None).await.status, 200);
}

#[tokio::test]
async fn path_has_one_spelling_so_that_buckets_cannot_be_bypassed() {
    let fixture = Fixture::start(SimConfig::default()).await;
    let guild = &fixture.guild;
    assert_eq!(fixture.api(Method::GET, &format!("/guilds/{guild}"), None).await.status, 200);
    for (path, status) in [
        (format!("/guilds/+{guild}"), 400),
        (format!("/guilds/0{guild}"), 400),
        (format!("/guilds%2F{guild}"), 404),
        (format!("//guilds/{guild}"), 404),
        (format!("/guilds/{guild}/"), 404),
        (format!("/guilds/../guilds/{guild}"), 404),
    ] {
        assert_eq!(fixture.api(Method::GET, &path, None).await.status, status, "{path}");
    }
    let encoded: String = guild.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let answer = fixture.api(Method::GET, &format!("/guilds/{encoded}"), None).await;
    assert_eq!((answer.status, answer.header("x-ratelimit-remaining")), (200, "3"), "the same guild, the same bucket");
}

#[tokio::test]
async fn unknown_methods_do_not_fill_the_score() {
    let fixture = Fixture::start(SimConfig::default()).await;
    for method in ["FROB", "TWIST", "PROPFIND", "GET"] {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        assert_eq!(fixture.api(method, "/nowhere", None).await.status, 404);
    }
    let score = fixture.sim.score();
    let routes: Vec<_> = score.routes.iter().map(|(name, route)| (name.as_str(), route.requests)).collect();
    assert_eq!(routes, [("(no such route)", 3), ("GET (no such route)", 1)]);
}

/// A command whose option contains nested lists.
fn nested(levels: usize) -> Value {
    let value = (1..levels).fold(json!([]), |inner, _| json!([inner]));
    json!({ "name": "deep", "description": "d", "options": [{ "name": "o", "description": "d", "type": 3, "value": value }] })
}

#[tokio::test]
async fn deepest_allowed_body_fits_in_a_snapshot() {
    let fixture = Fixture::start(SimConfig::default()).await;
    let path = format!("/applications/{}/guilds/{}/commands", fixture.application, fixture.guild);
    let too_deep = fixture.api(Method::POST, &path, Some(nested(98))).await;
    assert_eq!((too_deep.status, too_deep.json()["code"].as_u64()), (400, Some(50109)));
    assert_eq!(fixture.api(Method::POST, &path, Some(nested(97))).await.status, 201);
    let snapshot = fixture.control(Method::GET, "/sim/snapshot", None).await;
    let restored = fixture.control(Method::PUT, "/sim/snapshot", Some(snapshot.json())).await;
    assert_eq!(restored.status, 200, "{}", restored.text);
}

#[tokio::test]
async fn inconsistent_snapshot_is_refused_and_the_world_unchanged() {
    let fixture = Fixture::start(SimConfig::default()).await;
    let snapshot = fixture.control(Method::GET, "/sim/snapshot", None).await.json();
    for part in ["users", "bots", "homes", "guilds"] {
        let mut damaged = snapshot.clone();
        damaged[part] = if damaged[part].is_array() { json!([]) } else { json!({}) };
        let answer = fixture.control(Method::PUT, "/sim/snapshot", Some(damaged)).await;
        assert!(answer.status == 400 && answer.text.contains("is inconsistent"), "{part}: {}", answer.text);
    }
    assert_eq!(fixture.control(Method::GET, "/sim/snapshot", None).await.json(), snapshot);
}

#[tokio::test]
async fn incomplete_body_is_a_client_error() {
    let fixture = Fixture::start(SimConfig::default()).await;
    let mut socket = tokio::net::TcpStream::connect(fixture.sim.address()).await.unwrap();
    socket.write_all(b"POST /sim/guilds HTTP/1.1\r\nhost: sim\r\ncontent-length: 50\r\n\r\n{}").await.unwrap();
    socket.shutdown().await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("is incomplete"), "{answer}");
}

#[tokio::test]
async fn reset_score_equals_a_new_one() {
    let fixture = Fixture::start(SimConfig::default()).await;
    let guild = format!("/sim/guilds/{}", fixture.guild);
    fixture.control(Method::PATCH, &guild, Some(json!({ "bot_permissions": 0 }))).await;
    fixture.api(Method::POST, &format!("/guilds/{}/roles", fixture.guild), Some(json!({}))).await;
    fixture.control(Method::POST, "/sim/commands", None).await;
    assert_eq!(fixture.sim.score().max_invalid_in_window, 1);
    fixture.control(Method::DELETE, "/sim/score", None).await;
    assert_eq!(fixture.sim.score(), guildhall_sim::Score::default());
}
