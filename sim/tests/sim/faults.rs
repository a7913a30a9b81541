//! Tests of REST faults and of their counts in the score.

use guildhall_sim::SimConfig;
use http::Method;
use serde_json::{Value, json};

use crate::common::Fixture;

async fn role_names(fixture: &Fixture) -> Vec<String> {
    let roles = fixture.api(Method::GET, &format!("/guilds/{}/roles", fixture.guild), None).await.json();
    roles.as_array().unwrap().iter().map(|role| role["name"].as_str().unwrap().to_owned()).collect()
}

fn create(name: &str) -> Option<Value> {
    Some(json!({ "name": name }))
}

#[tokio::test]
async fn drop_before_has_no_effect_and_drop_after_has_one() {
    let fixture = Fixture::start(SimConfig::default()).await;
    let path = format!("/guilds/{}/roles", fixture.guild);
    fixture.fault(json!({ "route": "POST /guilds/*/roles", "do": { "kind": "drop_before" }, "count": 1 })).await;
    fixture.try_api(Method::POST, &path, create("never")).await.unwrap_err();
    fixture.fault(json!({ "route": "POST /guilds/*/roles", "do": { "kind": "drop_after" }, "count": 1 })).await;
    fixture.try_api(Method::POST, &path, create("unheard")).await.unwrap_err();
    assert_eq!(fixture.api(Method::POST, &path, create("heard")).await.status, 200);

    let names = role_names(&fixture).await;
    assert!(!names.contains(&"never".into()) && names.contains(&"unheard".into()), "{names:?}");
    let score = fixture.sim.score();
    assert_eq!(score.dropped, 2);
    let effects = &score.effects[&fixture.guild];
    assert_eq!(effects.iter().map(|effect| effect.name.as_str()).collect::<Vec<_>>(), ["unheard", "heard"]);
    assert_eq!((effects[0].answered, effects[1].answered.is_some()), (None, true));
}

#[tokio::test]
async fn status_fault_has_no_effect_and_cloudflare_has_no_via() {
    let fixture = Fixture::start(SimConfig::default()).await;
    let path = format!("/guilds/{}/roles", fixture.guild);
    fixture.fault(json!({ "do": { "kind": "status", "status": 503 }, "count": 1 })).await;
    let failed = fixture.api(Method::POST, &path, create("lost")).await;
    assert_eq!((failed.status, failed.header("via")), (503, "1.1 google"));
    fixture.fault(json!({ "do": { "kind": "cloudflare", "retry_after_ms": 3_600_000 }, "count": 1 })).await;
    let page = fixture.api(Method::GET, "/users/@me", None).await;
    assert_eq!((page.status, page.header("via"), page.header("retry-after")), (429, "", "3600"));
    assert!(page.header("content-type").starts_with("text/html") && page.text.contains("1015"));
    assert!(!role_names(&fixture).await.contains(&"lost".into()));
}

#[tokio::test]
async fn status_after_has_an_effect_and_hidden_entries_are_not_listed() {
    let fixture = Fixture::start(SimConfig::default()).await;
    let path = format!("/guilds/{}/roles", fixture.guild);
    fixture.fault(json!({ "do": { "kind": "status_after", "status": 502 }, "count": 1 })).await;
    assert_eq!(fixture.api(Method::POST, &path, create("made")).await.status, 502);
    assert!(role_names(&fixture).await.contains(&"made".into()));

    let created = fixture.sim.score().effects[&fixture.guild][0].object;
    let log = format!("/guilds/{}/audit-logs?action_type=30", fixture.guild);
    let listed = fixture.api(Method::GET, &log, None).await.json();
    assert_eq!(listed["audit_log_entries"][0]["target_id"], json!(created));
    fixture.fault(json!({ "do": { "kind": "hide_entries", "targets": [created] } })).await;
    let hidden = fixture.api(Method::GET, &log, None).await.json();
    assert_eq!(hidden["audit_log_entries"], json!([]));
}

#[tokio::test]
async fn each_429_scope_has_discords_format_and_shared_is_not_invalid() {
    let fixture = Fixture::start(SimConfig::default()).await;
    for (scope, global, message) in [
        ("user", "", "You are being rate limited."),
        ("shared", "", "The resource is being rate limited."),
        ("global", "true", "You are being rate limited."),
    ] {
        let action = json!({ "kind": "rate_limit", "scope": scope, "retry_after_ms": 1_500 });
        fixture.fault(json!({ "do": action, "count": 1 })).await;
        let answer = fixture.api(Method::GET, "/users/@me", None).await;
        assert_eq!((answer.status, answer.header("x-ratelimit-scope")), (429, scope));
        assert_eq!((answer.header("retry-after"), answer.header("x-ratelimit-global")), ("2", global));
        assert_eq!(
            (answer.json()["retry_after"].as_f64(), answer.json()["message"].as_str()),
            (Some(1.5), Some(message))
        );
    }
    let score = fixture.sim.score();
    assert_eq!((score.rate_limited.user, score.rate_limited.shared, score.rate_limited.global), (1, 1, 1));
    assert_eq!(score.invalid_requests, 2);
}

#[tokio::test]
async fn delayed_writes_overlap_and_finish_after_a_disconnect() {
    let fixture = Fixture::start(SimConfig::default()).await;
    let path = format!("/guilds/{}/roles", fixture.guild);
    fixture.fault(json!({ "route": "POST /guilds/*/roles", "do": { "kind": "latency", "fixed_ms": 200 } })).await;
    tokio::join!(fixture.api(Method::POST, &path, create("one")), fixture.api(Method::POST, &path, create("two")),);
    assert_eq!(fixture.sim.score().overlaps, 1);

    let disconnected = tokio::time::timeout(
        std::time::Duration::from_millis(50),
        fixture.try_api(Method::POST, &path, create("three")),
    );
    assert!(disconnected.await.is_err());
    // The next write of the guild arrives while "three" is in flight, or after it: in both cases both roles must exist.
    assert_eq!(fixture.api(Method::POST, &path, create("four")).await.status, 200);
    let names = role_names(&fixture).await;
    assert!(names.contains(&"three".into()) && names.contains(&"four".into()), "{names:?}");
}

#[tokio::test]
async fn hidden_channels_exist_but_are_not_listed() {
    let fixture = Fixture::start(SimConfig::default()).await;
    let hide = json!({ "kind": "hide_channels", "channels": [fixture.channel] });
    fixture.fault(json!({ "route": "GET /guilds/{guild.id}/channels", "do": hide })).await;
    let listed = fixture.api(Method::GET, &format!("/guilds/{}/channels", fixture.guild), None).await.json();
    assert!(listed.as_array().unwrap().iter().all(|channel| channel["id"] != fixture.channel.as_str()));
    assert_eq!(fixture.api(Method::GET, &format!("/channels/{}", fixture.channel), None).await.status, 200);
}

#[tokio::test]
async fn faults_are_listed_with_their_hits_and_can_be_removed() {
    let fixture = Fixture::start(SimConfig::default()).await;
    fixture.fault(json!({ "route": "GET /users/@me", "do": { "kind": "status", "status": 500 } })).await;
    assert_eq!(fixture.api(Method::GET, "/users/@me", None).await.status, 500);
    let listed = fixture.control(Method::GET, "/sim/faults", None).await.json();
    assert_eq!((listed[0]["hits"].as_u64(), listed[0]["do"]["status"].as_u64()), (Some(1), Some(500)));
    let id = listed[0]["id"].as_u64().unwrap();
    assert_eq!(fixture.control(Method::DELETE, &format!("/sim/faults/{id}"), None).await.status, 200);
    assert_eq!(fixture.control(Method::DELETE, &format!("/sim/faults/{id}"), None).await.status, 404);
    assert_eq!(fixture.api(Method::GET, "/users/@me", None).await.status, 200);
}
