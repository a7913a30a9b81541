//! Operations with a delay: they block nothing, and join their queue when they are due.

use guildhall_sim::{BotConfig, Sim, SimConfig, SimHandle};
use guildhall_testkit::program::CANARY;
use serde_json::{Value, json};

use super::daemon::Daemon;

async fn start_sim() -> SimHandle {
    let bots = vec![BotConfig { token: CANARY.to_owned(), ..BotConfig::default() }];
    Sim::start(SimConfig { guilds: 1, bots, ..SimConfig::default() }).await.unwrap()
}

fn role(name: &str, delay_ms: u64) -> Value {
    json!({"kind": "create_role", "payload": {"name": name}, "delay_ms": delay_ms})
}

fn post_action(daemon: &Daemon, id: &str, action: &str) -> Value {
    let response = daemon.request("POST", &format!("/v1/operations/{id}/{action}"), &Value::Null);
    assert!(matches!(response.status, 200 | 202), "{}", response.body);
    response.json()
}

#[tokio::test(flavor = "multi_thread")]
async fn delayed_operation_blocks_nothing_and_runs_when_due_or_expedited() {
    let (sim, folder) = (start_sim().await, tempfile::tempdir().unwrap());
    let guild = sim.guilds()[0];
    let daemon = Daemon::start(&sim, &folder);
    let submit = |operation: Value| daemon.submit(guild, &json!([operation])).remove(0);

    let in_a_month = submit(role("in a month", 2_592_000_000));
    let soon = submit(role("soon", 300));
    let now = submit(role("now", 0));
    daemon.until(&now, "succeeded");
    daemon.until(&soon, "succeeded");
    let details = daemon.show(&in_a_month);
    assert_eq!((&details["state"], &details["seq"]), (&json!("scheduled"), &Value::Null), "{details}");
    let waits = &details["waits_for"];
    assert_eq!((&waits["reason"], &waits["until"]), (&json!("delay"), &details["eligible_at"]), "{details}");

    let delete = json!({"kind": "delete_role", "payload": {"role_id": {"operation": in_a_month}}});
    let dependent = submit(delete);
    let cancelled = submit(role("never", 3_600_000));
    let details = daemon.show(&dependent);
    assert_eq!(details["state"], "scheduled", "{details}");
    let waits = &details["waits_for"];
    assert_eq!(
        (&waits["reason"], &waits["operation"]),
        (&json!("scheduled_operation"), &json!(in_a_month)),
        "{details}"
    );
    let listed =
        daemon.request("GET", &format!("/v1/operations?guild_id={guild}&state=scheduled"), &Value::Null).json();
    assert_eq!(listed["operations"].as_array().unwrap().len(), 3, "{listed}");
    let status = daemon.request("GET", &format!("/v1/guilds/{guild}"), &Value::Null).json();
    assert_eq!(status["pending"]["scheduled"], 3, "{status}");
    assert_eq!(post_action(&daemon, &cancelled, "cancel")["state"], "cancelled");

    // The next process has loaded it all.
    daemon.stop();
    let daemon = Daemon::start(&sim, &folder);
    assert_eq!(daemon.show(&in_a_month)["state"], "scheduled");
    assert_eq!(daemon.show(&dependent)["state"], "scheduled");
    assert_eq!(post_action(&daemon, &in_a_month, "retry")["state"], "queued");
    daemon.until(&in_a_month, "succeeded");
    daemon.until(&dependent, "succeeded");
    assert_eq!(sim.score().duplicates, 0);
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn operations_delayed_by_a_policy_keep_their_order() {
    let (sim, folder) = (start_sim().await, tempfile::tempdir().unwrap());
    let guild = sim.guilds()[0];
    let settings =
        [("GUILDHALL__API__POLICIES__HEAVY_PER_SECOND", "1"), ("GUILDHALL__API__POLICIES__HEAVY_BURST", "1")];
    let daemon = Daemon::start_with(&sim, &folder, &settings);
    let accepted: Vec<Value> = (0..8)
        .map(|n| {
            let body = json!({"operations": [role(&format!("role {n}"), 0)]});
            daemon.request("POST", &format!("/v1/guilds/{guild}/operations"), &body).json()["operations"][0].take()
        })
        .collect();
    let last = daemon.show(accepted[7]["id"].as_str().unwrap());
    assert!(accepted[7]["eligible_at"].is_string(), "{accepted:?}");
    // It is due seven seconds after the first was submitted.
    assert_eq!(last["waits_for"]["reason"], "policy", "{last}");
    let seqs: Vec<u64> = accepted
        .iter()
        .map(|operation| daemon.until(operation["id"].as_str().unwrap(), "succeeded")["seq"].as_u64().unwrap())
        .collect();
    assert!(seqs.is_sorted(), "{seqs:?}");
    daemon.stop();
}
