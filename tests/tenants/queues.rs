//! Tenants that message the same user do not share a queue.

use serde_json::{Value, json};

use super::fixture::{Engine, MultiTenantFixture, tenant_scopes};

/// Thirty days.
const MONTH_MS: u64 = 2_592_000_000;

fn dm(delay_ms: u64) -> Value {
    json!({"kind": "send_dm", "payload": {"user_id": "5", "content": "hello"}, "delay_ms": delay_ms})
}

async fn delayed_dm_blocks_no_other(engine: Engine) {
    let fixture = MultiTenantFixture::open(engine).await;
    let scopes = tenant_scopes();
    let guild = format!("guild:{}", fixture.rival_guild);
    let rival = fixture.create_key("rival", &[&scopes[..], &[&guild]].concat());
    let delayed = fixture.submit(&fixture.owner_key.text, fixture.acme_guild, &dm(MONTH_MS));
    let own_operation = fixture.submit(&fixture.owner_key.text, fixture.acme_guild, &dm(0));
    let rival_operation = fixture.submit(&rival.text, fixture.rival_guild, &dm(0));
    // Discord has no such user, so the operations fail when they are executed.
    for id in [&own_operation, &rival_operation] {
        fixture.poll_until(&format!("/v1/operations/{id}"), |response| response.json()["state"] == "dead");
    }
    let operation =
        fixture.request_with(&fixture.owner_key.text, "GET", &format!("/v1/operations/{delayed}"), &Value::Null).json();
    assert_eq!(
        (&operation["state"], &operation["waits_for"]["reason"]),
        (&json!("scheduled"), &json!("delay")),
        "{operation}"
    );
    // An operation of the operator in a tenant's guild is in the tenant's queue.
    let by_operator = fixture.submit(super::fixture::ADMIN, fixture.acme_guild, &dm(MONTH_MS));
    let listed =
        fixture.request_with(&fixture.owner_key.text, "GET", "/v1/operations?state=scheduled", &Value::Null).json();
    let ids: Vec<_> = listed["operations"].as_array().unwrap().iter().map(|one| one["id"].clone()).collect();
    assert_eq!(ids, [json!(by_operator), json!(delayed)], "{listed}");
    fixture.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn delayed_dm_blocks_no_other_on_sqlite() {
    delayed_dm_blocks_no_other(Engine::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn delayed_dm_blocks_no_other_on_postgres() {
    delayed_dm_blocks_no_other(Engine::Postgres).await;
}
