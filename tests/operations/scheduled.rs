//! Operations with a delay: they block nothing, and join their queue when they are due.

use guildhall_sim::{BotConfig, Sim, SimConfig, SimHandle};
use serde_json::{Value, json};

use super::{daemon::Daemon, support::CANARY};

async fn discord() -> SimHandle {
    let bots = vec![BotConfig { token: CANARY.to_owned(), ..BotConfig::default() }];
    Sim::start(SimConfig { guilds: 1, bots, ..SimConfig::default() }).await.unwrap()
}

fn role(name: &str, delay_ms: u64) -> Value {
    json!({"kind": "create_role", "payload": {"name": name}, "delay_ms": delay_ms})
}

fn post(daemon: &Daemon, id: &str, what: &str) -> Value {
    let answer = daemon.ask("POST", &format!("/v1/operations/{id}/{what}"), &Value::Null);
    assert!(matches!(answer.status, 200 | 202), "{}", answer.body);
    answer.json()
}

#[tokio::test(flavor = "multi_thread")]
async fn delayed_operation_blocks_nothing_and_runs_when_due_or_expedited() {
    let (sim, folder) = (discord().await, tempfile::tempdir().unwrap());
    let guild = sim.guilds()[0];
    let daemon = Daemon::start(&sim, &folder);
    let submit = |operation: Value| daemon.submit(guild, &json!([operation])).remove(0);

    let month = submit(role("in a month", 2_592_000_000));
    let soon = submit(role("soon", 300));
    let now = submit(role("now", 0));
    daemon.until(&now, "succeeded");
    daemon.until(&soon, "succeeded");
    let shown = daemon.show(&month);
    assert_eq!((&shown["state"], &shown["seq"]), (&json!("scheduled"), &Value::Null), "{shown}");
    let waits = &shown["waits_for"];
    assert_eq!((&waits["reason"], &waits["until"]), (&json!("delay"), &shown["eligible_at"]), "{shown}");

    let delete = json!({"kind": "delete_role", "payload": {"role_id": {"operation": month}}});
    let follows = submit(delete);
    let given_up = submit(role("never", 3_600_000));
    let shown = daemon.show(&follows);
    assert_eq!(shown["state"], "scheduled", "{shown}");
    let waits = &shown["waits_for"];
    assert_eq!((&waits["reason"], &waits["operation"]), (&json!("scheduled_operation"), &json!(month)), "{shown}");
    let listed = daemon.ask("GET", &format!("/v1/operations?guild_id={guild}&state=scheduled"), &Value::Null).json();
    assert_eq!(listed["operations"].as_array().unwrap().len(), 3, "{listed}");
    let standing = daemon.ask("GET", &format!("/v1/guilds/{guild}"), &Value::Null).json();
    assert_eq!(standing["pending"]["scheduled"], 3, "{standing}");
    assert_eq!(post(&daemon, &given_up, "cancel")["state"], "cancelled");

    // The next process has loaded it all.
    daemon.stop();
    let daemon = Daemon::start(&sim, &folder);
    assert_eq!(daemon.show(&month)["state"], "scheduled");
    assert_eq!(daemon.show(&follows)["state"], "scheduled");
    assert_eq!(post(&daemon, &month, "retry")["state"], "queued");
    daemon.until(&month, "succeeded");
    daemon.until(&follows, "succeeded");
    assert_eq!(sim.score().duplicates, 0);
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn operations_put_off_by_a_policy_keep_their_order() {
    let (sim, folder) = (discord().await, tempfile::tempdir().unwrap());
    let guild = sim.guilds()[0];
    let set = [("GUILDHALL__API__POLICIES__HEAVY_PER_SECOND", "10"), ("GUILDHALL__API__POLICIES__HEAVY_BURST", "1")];
    let daemon = Daemon::start_with(&sim, &folder, &set);
    let ids: Vec<String> =
        (0..12).map(|n| daemon.submit(guild, &json!([role(&format!("role {n}"), 0)])).remove(0)).collect();
    let by_policy =
        ids.iter().map(|id| daemon.show(id)).filter(|shown| shown["waits_for"]["reason"] == "policy").count();
    let shown: Vec<Value> = ids.iter().map(|id| daemon.until(id, "succeeded")).collect();
    let seqs: Vec<u64> = shown.iter().map(|shown| shown["seq"].as_u64().unwrap()).collect();
    assert!(seqs.is_sorted(), "{seqs:?}");
    assert!(by_policy > 0, "the last was due a second after the first");
    daemon.stop();
}
