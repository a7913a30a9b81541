//! A key that causes invalid requests is held at its share, and no other caller is.

use guildhall_sim::{Fault, FaultAction, Snowflake};
use serde_json::{Value, json};

use super::fixture::{ADMIN, Engine, MultiTenantFixture};

/// The setting `invalid_requests.limit`: one key, tenant or guild may use 25.
const LIMIT: [(&str, &str); 1] = [("GUILDHALL__INVALID_REQUESTS__LIMIT", "100")];

fn get_operation(fixture: &MultiTenantFixture, id: &str) -> Value {
    fixture.request_as_admin("GET", &format!("/v1/operations/{id}"), &Value::Null).json()
}

/// Submits operations that create roles.
fn submit_roles(fixture: &MultiTenantFixture, key: &str, guild: Snowflake, count: usize) -> Vec<String> {
    let role = |n: usize| json!({"kind": "create_role", "payload": {"name": format!("role {n}")}});
    let body = json!({"operations": (0..count).map(role).collect::<Vec<_>>()});
    let response = fixture.request_with(key, "POST", &format!("/v1/guilds/{guild}/operations"), &body);
    assert_eq!(response.status, 202, "{}", response.body);
    let operations = response.json()["operations"].as_array().unwrap().clone();
    operations.iter().map(|operation| operation["id"].as_str().unwrap().to_owned()).collect()
}

fn wait_for_state(fixture: &MultiTenantFixture, id: &str, expected: &str) -> Value {
    fixture.poll_until(&format!("/v1/operations/{id}"), |response| response.json()["state"] == expected).json()
}

fn find_holder<'a>(limits: &'a Value, field: &str, id: &str) -> &'a Value {
    let holders = limits["invalid_requests"]["share"]["holders"].as_array().unwrap();
    holders.iter().find(|holder| holder[field] == id).unwrap_or_else(|| panic!("{field} {id} is not in {holders:?}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forbidden_calls_hold_only_their_own_key() {
    let fixture = MultiTenantFixture::open_with(Engine::Sqlite, &LIMIT).await;
    for guild in [fixture.acme_guild, fixture.acme_second_guild] {
        let forbidden = FaultAction::Status { status: 403, code: 50_013 };
        let route = format!("POST /guilds/{guild}/roles");
        fixture.sim.add_fault(Fault { route, action: forbidden, probability: 1.0, count: None, skip: 0 }).unwrap();
    }
    let guilds = [fixture.acme_guild, fixture.acme_second_guild].map(|guild| format!("guild:{guild}"));
    let greedy_key = fixture.create_key("acme", &["operations:write", "danger", &guilds[0], &guilds[1]]);
    for id in submit_roles(&fixture, &greedy_key.text, fixture.acme_guild, 20) {
        wait_for_state(&fixture, &id, "dead");
    }
    let rest = submit_roles(&fixture, &greedy_key.text, fixture.acme_second_guild, 20);
    for id in &rest[..5] {
        wait_for_state(&fixture, id, "dead");
    }
    for id in &rest[5..] {
        let delayed = wait_for_state(&fixture, id, "delayed");
        assert_eq!(delayed["attempts"], 0, "{delayed}");
        let message = delayed["error"]["message"].as_str().unwrap();
        let expected =
            format!("key {} has used 25 of the 25 invalid requests that one key may use in 10 minutes", greedy_key.id);
        assert!(message.contains(&expected), "{message}");
    }
    assert_eq!(fixture.sim.score().invalid_requests, 25);

    // The operator in the same guild, behind them in the same queue; and another tenant.
    let channel = json!({"kind": "create_channel", "payload": {"name": "undisturbed", "type": "text"}});
    let operator_operation = fixture.submit(ADMIN, fixture.acme_second_guild, &channel);
    wait_for_state(&fixture, &operator_operation, "succeeded");
    let rival_key = fixture.create_key("rival", &["operations:write", &format!("guild:{}", fixture.rival_guild)]);
    for id in submit_roles(&fixture, &rival_key.text, fixture.rival_guild, 10) {
        wait_for_state(&fixture, &id, "succeeded");
    }
    // Another key of the same tenant would add to the share of the tenant.
    let second_key = fixture.create_key("acme", &["operations:write", &guilds[0]]);
    let id = fixture.submit(&second_key.text, fixture.acme_guild, &channel);
    let delayed = wait_for_state(&fixture, &id, "delayed");
    assert!(delayed["error"]["message"].as_str().unwrap().contains("tenant acme has used 25 of the 25"), "{delayed}");
    assert_eq!(fixture.sim.score().invalid_requests, 25);

    let limits = fixture.request_as_admin("GET", "/v1/limits", &Value::Null).json();
    let share = &limits["invalid_requests"]["share"];
    assert_eq!((&share["percent"], &share["most"], &share["capped"]), (&json!(25), &json!(25), &json!(2)), "{share}");
    assert!(share["held"].as_u64().unwrap() >= 16, "{share}");
    let key = find_holder(&limits, "key", &greedy_key.id);
    assert_eq!((&key["by"], &key["used"], &key["capped"]), (&json!("key"), &json!(25), &json!(true)), "{key}");
    assert!(key["room_at"].is_string(), "{key}");
    assert_eq!(find_holder(&limits, "guild_id", &fixture.acme_guild.to_string())["used"], 20);
    assert_eq!(limits["invalid_requests"]["stops"], Value::Null);
    for id in &rest[5..] {
        assert_eq!(get_operation(&fixture, id)["state"], "delayed");
    }
    let metrics = fixture.request_with("", "GET", "/metrics", &Value::Null).body;
    for line in [
        "guildhall_invalid_requests_share_held_total{by=\"key\"}",
        "guildhall_invalid_requests_share_held_total{by=\"tenant\"}",
        "guildhall_invalid_requests_largest_share_ratio 1",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    for secret in [&greedy_key.id, &fixture.acme_guild.to_string()] {
        let labelled = metrics.lines().find(|line| line.contains("invalid_requests") && line.contains(&**secret));
        assert_eq!(labelled, None);
    }
    let (_, log) = fixture.stop();
    assert!(log.contains("share of invalid requests used up"), "the log has a line for it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guild_at_its_share_waits_and_other_guilds_do_not() {
    let fixture = MultiTenantFixture::open_with(Engine::Sqlite, &LIMIT).await;
    let route = format!("POST /guilds/{}/roles", fixture.acme_guild);
    let action = FaultAction::Status { status: 403, code: 50_013 };
    fixture.sim.add_fault(Fault { route, action, probability: 1.0, count: None, skip: 0 }).unwrap();
    let ids = submit_roles(&fixture, ADMIN, fixture.acme_guild, 27);
    for id in &ids[..25] {
        wait_for_state(&fixture, id, "dead");
    }
    let delayed = wait_for_state(&fixture, &ids[25], "delayed");
    let message = delayed["error"]["message"].as_str().unwrap();
    assert!(message.contains(&format!("guild {} has used 25 of the 25", fixture.acme_guild)), "{message}");
    // The operation behind it in the queue of the guild would be held, too: it is not attempted.
    assert_eq!(get_operation(&fixture, &ids[26])["state"], "queued");
    for id in submit_roles(&fixture, ADMIN, fixture.acme_second_guild, 10) {
        wait_for_state(&fixture, &id, "succeeded");
    }
    assert_eq!(fixture.sim.score().invalid_requests, 25);
    fixture.stop();
}
