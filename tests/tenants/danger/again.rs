//! Changes after an operation was accepted, and operations that are redriven.

use serde_json::{Value, json};

use super::{ADMINISTRATOR, MANAGE_MESSAGES, SCOPE, Stage, discord};
use crate::town::{ADMIN, Town};

/// A role gets ADMINISTRATOR after an operation that assigns it was accepted.
async fn changes_after_acceptance(settings: &[(&str, &str)], is_seen: impl Fn(&Town)) {
    let stage = Stage::new(settings).await;
    let (town, guild) = (&stage.town, stage.town.nobodys);
    let assign =
        json!({"kind": "assign_role", "payload": {"user_id": stage.member.to_string(), "role_id": stage.plain.id}});
    stage.is_done("before", &stage.submit(&stage.without, &assign));
    stage.hold(&[]);
    assert_eq!(town.admin("POST", &format!("/v1/guilds/{guild}/pause"), &Value::Null).status, 200);
    let accepted = stage.submit(&stage.without, &assign);
    assert_eq!(accepted.status, 202, "{}", accepted.body);
    let path = format!("/guilds/{guild}/roles/{}", stage.plain.id);
    assert_eq!(discord(town, "PATCH", &path, &json!({"permissions": ADMINISTRATOR})).status, 200);
    is_seen(town);
    assert_eq!(town.admin("POST", &format!("/v1/guilds/{guild}/resume"), &Value::Null).status, 200);
    stage.is_refused("after", &accepted, "grants ADMINISTRATOR");
    assert_eq!(stage.held(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn role_changed_after_acceptance_is_seen_by_its_event() {
    // The cached role does not expire during the test.
    changes_after_acceptance(&[("GUILDHALL__OPERATIONS__ROLE_MAX_AGE_MS", "600000")], |town| {
        town.until_metrics(|metrics| metrics.contains("guildhall_gateway_events_total{type=\"role.update\"} 1"));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn role_changed_after_acceptance_is_seen_by_age_without_events() {
    let settings =
        [("GUILDHALL__OPERATIONS__ROLE_MAX_AGE_MS", "0"), ("GUILDHALL__GATEWAY__INTENTS", "direct_messages")];
    changes_after_acceptance(&settings, |_| {}).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redrive_and_retry_need_the_scopes_of_a_submission() {
    let stage = Stage::new(&[]).await;
    let (town, guild) = (&stage.town, stage.town.nobodys);
    let grants = json!([{"role_id": stage.plain.id, "allow": MANAGE_MESSAGES}]);
    // Each was submitted by the operator, and is dead because its target does not exist.
    let dangerous = json!({"kind": "update_permissions", "payload": {"channel_id": "5", "overwrites": grants}});
    let in_words = json!({"kind": "request", "payload": {"method": "GET", "path": format!("/guilds/{guild}/nothing")}});
    let by_role = json!({"kind": "assign_role", "payload": {"user_id": "5", "role_id": stage.boss.id}});
    let harmless = json!({"kind": "assign_role", "payload": {"user_id": "5", "role_id": stage.plain.id}});
    let dead = |operation: &Value| {
        let id = town.submit(ADMIN, guild, operation);
        town.until(&format!("/v1/dead-letters/{id}"), |answer| answer.status == 200);
        id
    };
    for (name, operation, lacks, may) in [
        ("danger", &dangerous, &stage.without, &stage.with),
        ("application", &in_words, &stage.with, &stage.words_without),
        ("harmless", &harmless, &stage.without, &stage.without),
    ] {
        for way in ["/v1/dead-letters/{id}/redrive", "/v1/operations/{id}/retry"] {
            let id = dead(operation);
            let path = way.replace("{id}", &id);
            if name != "harmless" {
                let refused = town.with(&lacks.text, "POST", &path, &Value::Null);
                assert_eq!(refused.status, 403, "{name} {way}: {}", refused.body);
                let detail = refused.json()["detail"].as_str().unwrap().to_owned();
                assert!(detail.contains("needs a key with the scope") && detail.contains(name), "{detail}");
            }
            let allowed = town.with(&may.text, "POST", &path, &Value::Null);
            assert_eq!(allowed.status, 202, "{name} {way}: {}", allowed.body);
        }
    }
    // A role whose permissions are not cached is checked at dispatch.
    let id = dead(&by_role);
    let redriven = town.with(&stage.without.text, "POST", &format!("/v1/dead-letters/{id}/redrive"), &Value::Null);
    match redriven.status {
        403 => assert!(redriven.body.contains("grants ADMINISTRATOR"), "{}", redriven.body),
        _ => stage.is_refused("by role", &redriven, "grants ADMINISTRATOR"),
    }
    // A bulk redrive skips forbidden operations, with the reason.
    let (forbidden, fine) = (dead(&dangerous), dead(&harmless));
    let filter = json!({"guild_id": guild.to_string(), "kind": "update_permissions"});
    let bulk = town.with(&stage.without.text, "POST", "/v1/dead-letters/redrive", &filter);
    assert_eq!(bulk.status, 200, "{}", bulk.body);
    let skipped = bulk.json()["skipped"].as_array().unwrap().clone();
    let why = skipped.iter().find(|one| one["letter"] == json!(forbidden)).unwrap()["why"].as_str().unwrap().to_owned();
    assert!(why.contains("grants MANAGE_MESSAGES") && why.contains(SCOPE), "{why}");
    let filter = json!({"guild_id": guild.to_string(), "kind": "assign_role"});
    let bulk = town.with(&stage.without.text, "POST", "/v1/dead-letters/redrive", &filter);
    assert!(bulk.body.contains(&fine), "{}", bulk.body);
    // Expediting a pending operation needs the scope; cancelling it does not.
    let mut waiting = dangerous.clone();
    waiting["delay_ms"] = json!(3_600_000);
    let id = town.submit(ADMIN, guild, &waiting);
    let retry = format!("/v1/operations/{id}/retry");
    assert_eq!(town.with(&stage.without.text, "POST", &retry, &Value::Null).status, 403);
    let cancelled = town.with(&stage.without.text, "POST", &format!("/v1/operations/{id}/cancel"), &Value::Null);
    assert_eq!(cancelled.status, 200, "{}", cancelled.body);
    // Discarding it does not need the scope.
    let gone = town.with(&stage.without.text, "DELETE", &format!("/v1/dead-letters/{forbidden}"), &Value::Null);
    assert!(gone.status < 300, "{}", gone.body);
}
