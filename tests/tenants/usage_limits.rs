//! A key that submits without end reaches its limit, and does not affect other callers.

use serde_json::{Value, json};

use super::fixture::{ADMIN, Engine, MultiTenantFixture};

/// Direct messages to many users, each of whom has a queue.
fn messages(first: u64, count: u64) -> Value {
    let one = |user: u64| json!({"kind": "send_dm", "payload": {"user_id": user.to_string(), "content": "hello"}});
    json!({"operations": (first..first + count).map(one).collect::<Vec<_>>()})
}

fn usage_of(fixture: &MultiTenantFixture, by: &str, name: &str) -> Value {
    let response = fixture.request_as_admin("GET", "/v1/usage", &Value::Null);
    assert_eq!(response.status, 200, "{}", response.body);
    let scopes = response.json()["usage"].as_array().unwrap().clone();
    scopes.into_iter().find(|scope| scope["by"] == by && scope["name"] == name).unwrap_or_default()
}

/// Submits until a request is rejected. Returns how many operations were accepted, and the problem.
fn submit_until_refused(fixture: &MultiTenantFixture) -> (u64, Value) {
    let path = format!("/v1/guilds/{}/operations", fixture.acme_guild);
    let mut accepted = 0;
    loop {
        let response = fixture.request_with(&fixture.owner_key.text, "POST", &path, &messages(1_000 + accepted, 100));
        if response.status != 202 {
            assert!(response.head.contains("retry-after:"), "{}", response.head);
            let mut problem = response.json();
            problem["status"] = response.status.into();
            return (accepted, problem);
        }
        accepted += 100;
        assert!(accepted < 5_000, "no limit was reached");
    }
}

async fn flood_of_messages_reaches_the_limit_of_its_key(engine: Engine) {
    let settings =
        [("GUILDHALL__STORE__MAX_QUEUED_PER_KEY", "500"), ("GUILDHALL__STORE__MAX_QUEUED_PER_TENANT", "700")];
    let fixture = MultiTenantFixture::open_with(engine, &settings).await;
    assert_eq!(fixture.request_as_admin("POST", "/v1/pause", &Value::Null).status, 200);
    let (accepted, problem) = submit_until_refused(&fixture);
    assert_eq!((accepted, &problem["status"]), (500, &json!(429)), "{problem}");
    assert_eq!(problem["type"], "urn:guildhall:problem:share-full");
    assert_eq!([&problem["bound"], &problem["setting"]], ["key_operations", "store.max_queued_per_key"], "{problem}");
    assert_eq!([&problem["used"], &problem["more"], &problem["most"]], [500, 100, 500], "{problem}");
    // A second key of the tenant has the rest of the tenant's share, and no more.
    let second = fixture.create_key("acme", &["operations:write", &format!("guild:{}", fixture.acme_second_guild)]);
    let path = format!("/v1/guilds/{}/operations", fixture.acme_second_guild);
    assert_eq!(fixture.request_with(&second.text, "POST", &path, &messages(1, 200)).status, 202);
    let refused = fixture.request_with(&second.text, "POST", &path, &messages(300, 1));
    assert_eq!((refused.status, &refused.json()["bound"]), (429, &json!("tenant_operations")), "{}", refused.body);
    // Another tenant and the operator are not affected.
    let rival = fixture
        .create_key("rival", &["operations:write", "operations:read", &format!("guild:{}", fixture.rival_guild)]);
    let role = json!({"kind": "create_role", "payload": {"name": "Fresh"}});
    let rival_operation = fixture.submit(&rival.text, fixture.rival_guild, &role);
    let operator_operation = fixture.submit(ADMIN, fixture.acme_guild, &role);
    // A key sees its own share and its tenant's, and no other.
    let own = fixture.request_with(&rival.text, "GET", "/v1/usage", &Value::Null).json();
    let names: Vec<_> = own["usage"].as_array().unwrap().iter().map(|scope| scope["name"].clone()).collect();
    assert_eq!((names, &own["file"]), (vec![json!(rival.id), json!("rival")], &Value::Null), "{own}");
    assert_eq!(usage_of(&fixture, "key", &fixture.owner_key.id)["operations"], 500);
    assert_eq!(usage_of(&fixture, "tenant", "acme")["operations"], 700);
    let metrics = fixture.request_with("", "GET", "/metrics", &Value::Null).body;
    for bound in ["key_operations", "tenant_operations"] {
        assert!(metrics.contains(&format!("guildhall_store_refused_total{{bound=\"{bound}\"}} 1")), "{metrics}");
    }
    // Outcomes are recorded, and the share is free again.
    assert_eq!(fixture.request_as_admin("POST", "/v1/resume", &Value::Null).status, 200);
    for id in [rival_operation, operator_operation] {
        fixture.poll_until(&format!("/v1/operations/{id}"), |response| response.json()["state"] == "succeeded");
    }
    fixture.poll_until("/v1/usage", |_| usage_of(&fixture, "tenant", "acme")["operations"] == 0);
    let path_again = format!("/v1/guilds/{}/operations", fixture.acme_guild);
    assert_eq!(fixture.request_with(&fixture.owner_key.text, "POST", &path_again, &messages(9_000, 100)).status, 202);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flood_of_messages_reaches_the_limit_of_its_key_on_sqlite() {
    flood_of_messages_reaches_the_limit_of_its_key(Engine::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flood_of_messages_reaches_the_limit_of_its_key_on_postgres() {
    flood_of_messages_reaches_the_limit_of_its_key(Engine::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_file_returns_507_and_replays_still_work() {
    // No single share fills the file; the shares of many tenants do.
    let fixture = MultiTenantFixture::open_with(Engine::Sqlite, &[("GUILDHALL__STORE__MAX_BYTES", "4194304")]).await;
    assert_eq!(fixture.request_as_admin("POST", "/v1/pause", &Value::Null).status, 200);
    let mut once = messages(1, 1)["operations"][0].clone();
    once["key"] = json!("once");
    let path = format!("/v1/guilds/{}/operations", fixture.acme_guild);
    assert_eq!(fixture.request_with(&fixture.owner_key.text, "POST", &path, &once).status, 202);
    let large = |user: u64| {
        let content = "x".repeat(1_900);
        json!({"kind": "send_dm", "payload": {"user_id": user.to_string(), "content": content}})
    };
    let problem = 'full: {
        for tenant in 0..40 {
            let guild = 900_000 + tenant;
            let key = fixture.create_key(&format!("t{tenant}"), &["operations:write", &format!("guild:{guild}")]);
            let batch: Vec<_> = (0..50).map(|n| large(tenant * 100 + n + 1)).collect();
            let tenant_path = format!("/v1/guilds/{guild}/operations");
            let response = fixture.request_with(&key.text, "POST", &tenant_path, &json!({"operations": batch}));
            if response.status != 202 {
                break 'full response;
            }
        }
        panic!("the limit of 4 MiB is never reached");
    };
    assert_eq!(problem.status, 507, "{}", problem.body);
    let body = problem.json();
    assert_eq!(body["type"], "urn:guildhall:problem:store-full");
    assert_eq!([&body["bound"], &body["setting"]], ["file", "store.max_bytes"], "{body}");
    assert_eq!(body["most"], 4_194_304 / 2);
    let replay = fixture.request_with(&fixture.owner_key.text, "POST", &path, &once);
    assert_eq!(replay.status, 200, "{}", replay.body);
    // Writes other than operations still succeed.
    assert_eq!(fixture.request_as_admin("PUT", "/v1/state/a:b", &json!({"value": 1})).status, 204);
    assert_eq!(fixture.request_as_admin("POST", "/v1/resume", &Value::Null).status, 200);
    let id = replay.json()["id"].as_str().unwrap().to_owned();
    fixture.poll_until(&format!("/v1/operations/{id}"), |response| response.json()["finished_at"].is_string());
}
