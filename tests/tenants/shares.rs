//! A key that causes invalid requests is held at its share, and no other caller is.

use guildhall_sim::{Fault, FaultAction, Snowflake};
use serde_json::{Value, json};

use super::town::{ADMIN, Engine, Town};

/// The setting `invalid_requests.limit`: one key, tenant or guild may use 25.
const LIMIT: [(&str, &str); 1] = [("GUILDHALL__INVALID_REQUESTS__LIMIT", "100")];

fn state(town: &Town, id: &str) -> Value {
    town.admin("GET", &format!("/v1/operations/{id}"), &Value::Null).json()
}

/// Submits operations that create roles.
fn flood(town: &Town, key: &str, guild: Snowflake, count: usize) -> Vec<String> {
    let role = |n: usize| json!({"kind": "create_role", "payload": {"name": format!("role {n}")}});
    let body = json!({"operations": (0..count).map(role).collect::<Vec<_>>()});
    let answer = town.with(key, "POST", &format!("/v1/guilds/{guild}/operations"), &body);
    assert_eq!(answer.status, 202, "{}", answer.body);
    let operations = answer.json()["operations"].as_array().unwrap().clone();
    operations.iter().map(|operation| operation["id"].as_str().unwrap().to_owned()).collect()
}

fn until_ended(town: &Town, id: &str, expected: &str) -> Value {
    town.until(&format!("/v1/operations/{id}"), |answer| answer.json()["state"] == expected).json()
}

fn holder<'a>(limits: &'a Value, field: &str, id: &str) -> &'a Value {
    let holders = limits["invalid_requests"]["share"]["holders"].as_array().unwrap();
    holders.iter().find(|holder| holder[field] == id).unwrap_or_else(|| panic!("{field} {id} is not in {holders:?}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flood_of_forbidden_calls_holds_only_its_own_key() {
    let town = Town::open_with(Engine::Sqlite, &LIMIT).await;
    for guild in [town.acme, town.acmes_other] {
        let forbidden = FaultAction::Status { status: 403, code: 50_013 };
        let route = format!("POST /guilds/{guild}/roles");
        town.sim.add_fault(Fault { route, action: forbidden, probability: 1.0, count: None, skip: 0 }).unwrap();
    }
    let guilds = [town.acme, town.acmes_other].map(|guild| format!("guild:{guild}"));
    let greedy = town.key("acme", &["operations:write", "danger", &guilds[0], &guilds[1]]);
    for id in flood(&town, &greedy.text, town.acme, 20) {
        until_ended(&town, &id, "dead");
    }
    let rest = flood(&town, &greedy.text, town.acmes_other, 20);
    for id in &rest[..5] {
        until_ended(&town, id, "dead");
    }
    for id in &rest[5..] {
        let delayed = until_ended(&town, id, "delayed");
        assert_eq!(delayed["attempts"], 0, "{delayed}");
        let says = delayed["error"]["message"].as_str().unwrap();
        let expected =
            format!("key {} has used 25 of the 25 invalid requests that one key may use in 10 minutes", greedy.id);
        assert!(says.contains(&expected), "{says}");
    }
    assert_eq!(town.sim.score().invalid_requests, 25);

    // The operator in the same guild, behind them in the same queue; and another tenant.
    let channel = json!({"kind": "create_channel", "payload": {"name": "undisturbed", "type": "text"}});
    let operators = town.submit(ADMIN, town.acmes_other, &channel);
    until_ended(&town, &operators, "succeeded");
    let rivals = town.key("rival", &["operations:write", &format!("guild:{}", town.rivals)]);
    for id in flood(&town, &rivals.text, town.rivals, 10) {
        until_ended(&town, &id, "succeeded");
    }
    // Another key of the same tenant would add to the share of the tenant.
    let second = town.key("acme", &["operations:write", &guilds[0]]);
    let id = town.submit(&second.text, town.acme, &channel);
    let delayed = until_ended(&town, &id, "delayed");
    assert!(delayed["error"]["message"].as_str().unwrap().contains("tenant acme has used 25 of the 25"), "{delayed}");
    assert_eq!(town.sim.score().invalid_requests, 25);

    let limits = town.admin("GET", "/v1/limits", &Value::Null).json();
    let share = &limits["invalid_requests"]["share"];
    assert_eq!((&share["percent"], &share["most"], &share["capped"]), (&json!(25), &json!(25), &json!(2)), "{share}");
    assert!(share["held"].as_u64().unwrap() >= 16, "{share}");
    let key = holder(&limits, "key", &greedy.id);
    assert_eq!((&key["by"], &key["used"], &key["capped"]), (&json!("key"), &json!(25), &json!(true)), "{key}");
    assert!(key["room_at"].is_string(), "{key}");
    assert_eq!(holder(&limits, "guild_id", &town.acme.to_string())["used"], 20);
    assert_eq!(limits["invalid_requests"]["stops"], Value::Null);
    for id in &rest[5..] {
        assert_eq!(state(&town, id)["state"], "delayed");
    }
    let metrics = town.with("", "GET", "/metrics", &Value::Null).body;
    for line in [
        "guildhall_invalid_requests_share_held_total{by=\"key\"}",
        "guildhall_invalid_requests_share_held_total{by=\"tenant\"}",
        "guildhall_invalid_requests_largest_share_ratio 1",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    for secret in [&greedy.id, &town.acme.to_string()] {
        let labelled = metrics.lines().find(|line| line.contains("invalid_requests") && line.contains(&**secret));
        assert_eq!(labelled, None);
    }
    let (_, log) = town.close();
    assert!(log.contains("share of invalid requests used up"), "the log has a line for it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guild_at_its_share_waits_and_other_guilds_do_not() {
    let town = Town::open_with(Engine::Sqlite, &LIMIT).await;
    let route = format!("POST /guilds/{}/roles", town.acme);
    let action = FaultAction::Status { status: 403, code: 50_013 };
    town.sim.add_fault(Fault { route, action, probability: 1.0, count: None, skip: 0 }).unwrap();
    let ids = flood(&town, ADMIN, town.acme, 27);
    for id in &ids[..25] {
        until_ended(&town, id, "dead");
    }
    let delayed = until_ended(&town, &ids[25], "delayed");
    let says = delayed["error"]["message"].as_str().unwrap();
    assert!(says.contains(&format!("guild {} has used 25 of the 25", town.acme)), "{says}");
    // The operation behind it in the queue of the guild would be held, too: it is not attempted.
    assert_eq!(state(&town, &ids[26])["state"], "queued");
    for id in flood(&town, ADMIN, town.acmes_other, 10) {
        until_ended(&town, &id, "succeeded");
    }
    assert_eq!(town.sim.score().invalid_requests, 25);
    town.close();
}
