//! Changes after an operation was accepted, and operations that are redriven.

use serde_json::{Value, json};

use super::{ADMINISTRATOR, DangerFixture, MANAGE_MESSAGES, MISSING_SCOPE, discord};
use crate::fixture::{ADMIN, MultiTenantFixture};

/// A role gets ADMINISTRATOR after an operation that assigns it was accepted.
async fn assert_change_after_acceptance_is_seen(
    settings: &[(&str, &str)],
    wait_until_seen: impl Fn(&MultiTenantFixture),
) {
    let fixture = DangerFixture::new(settings).await;
    let (tenants, guild) = (&fixture.tenants, fixture.tenants.unowned_guild);
    let assign = json!({"kind": "assign_role", "payload": {"user_id": fixture.member.to_string(), "role_id": fixture.plain_role.id}});
    fixture.assert_done("before", &fixture.submit(&fixture.key_without, &assign));
    fixture.set_member_roles(&[]);
    assert_eq!(tenants.request_as_admin("POST", &format!("/v1/guilds/{guild}/pause"), &Value::Null).status, 200);
    let accepted = fixture.submit(&fixture.key_without, &assign);
    assert_eq!(accepted.status, 202, "{}", accepted.body);
    let path = format!("/guilds/{guild}/roles/{}", fixture.plain_role.id);
    assert_eq!(discord(tenants, "PATCH", &path, &json!({"permissions": ADMINISTRATOR})).status, 200);
    wait_until_seen(tenants);
    assert_eq!(tenants.request_as_admin("POST", &format!("/v1/guilds/{guild}/resume"), &Value::Null).status, 200);
    fixture.assert_refused("after", &accepted, "grants ADMINISTRATOR");
    assert_eq!(fixture.member_roles(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn role_changed_after_acceptance_is_seen_by_its_event() {
    // The cached role does not expire during the test.
    assert_change_after_acceptance_is_seen(&[("GUILDHALL__OPERATIONS__ROLE_MAX_AGE_MS", "600000")], |tenants| {
        tenants
            .poll_metrics_until(|metrics| metrics.contains("guildhall_gateway_events_total{type=\"role.update\"} 1"));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn role_changed_after_acceptance_is_seen_by_age_without_events() {
    let settings =
        [("GUILDHALL__OPERATIONS__ROLE_MAX_AGE_MS", "0"), ("GUILDHALL__GATEWAY__INTENTS", "direct_messages")];
    assert_change_after_acceptance_is_seen(&settings, |_| {}).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redrive_and_retry_need_the_scopes_of_a_submission() {
    let fixture = DangerFixture::new(&[]).await;
    let (tenants, guild) = (&fixture.tenants, fixture.tenants.unowned_guild);
    let grants = json!([{"role_id": fixture.plain_role.id, "allow": MANAGE_MESSAGES}]);
    // Each was submitted by the operator, and is dead because its target does not exist.
    let dangerous = json!({"kind": "update_permissions", "payload": {"channel_id": "5", "overwrites": grants}});
    let raw_request =
        json!({"kind": "request", "payload": {"method": "GET", "path": format!("/guilds/{guild}/nothing")}});
    let by_role = json!({"kind": "assign_role", "payload": {"user_id": "5", "role_id": fixture.admin_role.id}});
    let harmless = json!({"kind": "assign_role", "payload": {"user_id": "5", "role_id": fixture.plain_role.id}});
    let submit_dead = |operation: &Value| {
        let id = tenants.submit(ADMIN, guild, operation);
        tenants.poll_until(&format!("/v1/dead-letters/{id}"), |response| response.status == 200);
        id
    };
    for (name, operation, key_without, key_with) in [
        ("danger", &dangerous, &fixture.key_without, &fixture.key_with),
        ("application", &raw_request, &fixture.key_with, &fixture.raw_key_without),
        ("harmless", &harmless, &fixture.key_without, &fixture.key_without),
    ] {
        for route in ["/v1/dead-letters/{id}/redrive", "/v1/operations/{id}/retry"] {
            let id = submit_dead(operation);
            let path = route.replace("{id}", &id);
            if name != "harmless" {
                let refused = tenants.request_with(&key_without.text, "POST", &path, &Value::Null);
                assert_eq!(refused.status, 403, "{name} {route}: {}", refused.body);
                let detail = refused.json()["detail"].as_str().unwrap().to_owned();
                assert!(detail.contains("needs a key with the scope") && detail.contains(name), "{detail}");
            }
            let allowed = tenants.request_with(&key_with.text, "POST", &path, &Value::Null);
            assert_eq!(allowed.status, 202, "{name} {route}: {}", allowed.body);
        }
    }
    // A role whose permissions are not cached is checked at dispatch.
    let id = submit_dead(&by_role);
    let redriven = tenants.request_with(
        &fixture.key_without.text,
        "POST",
        &format!("/v1/dead-letters/{id}/redrive"),
        &Value::Null,
    );
    match redriven.status {
        403 => assert!(redriven.body.contains("grants ADMINISTRATOR"), "{}", redriven.body),
        _ => fixture.assert_refused("by role", &redriven, "grants ADMINISTRATOR"),
    }
    // A bulk redrive skips forbidden operations, with the reason.
    let (forbidden_id, allowed_id) = (submit_dead(&dangerous), submit_dead(&harmless));
    let filter = json!({"guild_id": guild.to_string(), "kind": "update_permissions"});
    let bulk = tenants.request_with(&fixture.key_without.text, "POST", "/v1/dead-letters/redrive", &filter);
    assert_eq!(bulk.status, 200, "{}", bulk.body);
    let skipped = bulk.json()["skipped"].as_array().unwrap().clone();
    let reason =
        skipped.iter().find(|one| one["letter"] == json!(forbidden_id)).unwrap()["why"].as_str().unwrap().to_owned();
    assert!(reason.contains("grants MANAGE_MESSAGES") && reason.contains(MISSING_SCOPE), "{reason}");
    let filter = json!({"guild_id": guild.to_string(), "kind": "assign_role"});
    let bulk = tenants.request_with(&fixture.key_without.text, "POST", "/v1/dead-letters/redrive", &filter);
    assert!(bulk.body.contains(&allowed_id), "{}", bulk.body);
    // Expediting a pending operation needs the scope; cancelling it does not.
    let mut waiting = dangerous.clone();
    waiting["delay_ms"] = json!(3_600_000);
    let id = tenants.submit(ADMIN, guild, &waiting);
    let retry = format!("/v1/operations/{id}/retry");
    assert_eq!(tenants.request_with(&fixture.key_without.text, "POST", &retry, &Value::Null).status, 403);
    let cancelled =
        tenants.request_with(&fixture.key_without.text, "POST", &format!("/v1/operations/{id}/cancel"), &Value::Null);
    assert_eq!(cancelled.status, 200, "{}", cancelled.body);
    // Discarding it does not need the scope.
    let discarded = tenants.request_with(
        &fixture.key_without.text,
        "DELETE",
        &format!("/v1/dead-letters/{forbidden_id}"),
        &Value::Null,
    );
    assert!(discarded.status < 300, "{}", discarded.body);
}
