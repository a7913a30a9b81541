//! Tenants that message the same user do not share a queue.

use serde_json::{Value, json};

use super::town::{Engine, Town, scopes_of_tenants};

/// Thirty days.
const MONTH_MS: u64 = 2_592_000_000;

fn dm(delay_ms: u64) -> Value {
    json!({"kind": "send_dm", "payload": {"user_id": "5", "content": "hello"}, "delay_ms": delay_ms})
}

async fn delayed_dm_holds_up_no_other(engine: Engine) {
    let town = Town::open(engine).await;
    let scopes = scopes_of_tenants();
    let guild = format!("guild:{}", town.rivals);
    let rival = town.key("rival", &[&scopes[..], &[&guild]].concat());
    let delayed = town.submit(&town.owner.text, town.acme, &dm(MONTH_MS));
    let own = town.submit(&town.owner.text, town.acme, &dm(0));
    let theirs = town.submit(&rival.text, town.rivals, &dm(0));
    // Discord has no such user, so the operations fail when they are executed.
    for id in [&own, &theirs] {
        town.until(&format!("/v1/operations/{id}"), |answer| answer.json()["state"] == "dead");
    }
    let shown = town.with(&town.owner.text, "GET", &format!("/v1/operations/{delayed}"), &Value::Null).json();
    assert_eq!((&shown["state"], &shown["waits_for"]["reason"]), (&json!("scheduled"), &json!("delay")), "{shown}");
    // An operation of the operator in a tenant's guild is in the tenant's queue.
    let by_operator = town.submit(super::town::ADMIN, town.acme, &dm(MONTH_MS));
    let listed = town.with(&town.owner.text, "GET", "/v1/operations?state=scheduled", &Value::Null).json();
    let ids: Vec<_> = listed["operations"].as_array().unwrap().iter().map(|one| one["id"].clone()).collect();
    assert_eq!(ids, [json!(by_operator), json!(delayed)], "{listed}");
    town.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn delayed_dm_holds_up_no_other_on_sqlite() {
    delayed_dm_holds_up_no_other(Engine::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn delayed_dm_holds_up_no_other_on_postgres() {
    delayed_dm_holds_up_no_other(Engine::Postgres).await;
}
