//! A key for one guild cannot use a channel of another, in the whole program.

use guildhall_sim::Snowflake;
use serde_json::{Value, json};

use super::town::{ADMIN, Town, on_both};

/// Messages that reached Discord.
fn sent(town: &Town) -> u64 {
    let score = town.sim.score();
    score.routes.get("POST /channels/{channel.id}/messages").map_or(0, |route| route.requests)
}

fn message(channel: &str) -> Value {
    json!({"kind": "send_message", "payload": {"channel_id": channel, "content": "hello"}})
}

/// Waits until an operation is final, and returns it.
fn ends(town: &Town, id: &str) -> Value {
    let is_over = |state: &Value| ["succeeded", "dead"].iter().any(|over| state == over);
    town.until(&format!("/v1/operations/{id}"), |answer| is_over(&answer.json()["state"])).json()
}

on_both! {
    async fn a_channel_of_another_guild_is_named_in_vain_and_never_called(town) {
        let theirs = town.channel(town.rivals);
        // The channel is not cached yet: it is accepted, looked up before it is sent, and dead.
        let id = town.submit(&town.owner.text, town.acme, &message(&theirs));
        let shown = ends(&town, &id);
        assert_eq!((&shown["state"], &shown["error"]["class"]), (&json!("dead"), &json!("not_found")), "{shown}");
        let says = shown["error"]["message"].as_str().unwrap();
        assert!(says.contains(&format!("no channel {theirs} in guild {}", town.acme)), "{says}");
        assert_eq!(sent(&town), 0);
        // From now on it is cached, and rejected at submission.
        let guild = format!("/v1/guilds/{}/operations", town.acme);
        let many = json!({"operations": [{"kind": "create_role", "payload": {"name": "x"}}, message(&theirs)]});
        let refused = town.with(&town.owner.text, "POST", &guild, &many);
        assert_eq!(refused.status, 404, "{}", refused.body);
        assert_eq!(refused.json()["errors"][0]["field"], "operations[1].payload", "{}", refused.body);
        // A redrive by another caller does not help.
        let redriven = town.admin("POST", &format!("/v1/dead-letters/{id}/redrive"), &Value::Null);
        assert_eq!(redriven.status, 202, "{}", redriven.body);
        let again = ends(&town, redriven.json()["id"].as_str().unwrap());
        assert_eq!(again["state"], "dead", "{again}");
        assert_eq!(sent(&town), 0);
        let score = town.sim.score();
        assert_eq!(score.routes["GET /channels/{channel.id}"].requests, 1, "it was looked up once");
        let metrics = town.with("", "GET", "/metrics", &Value::Null).body;
        for at in ["submission", "dispatch"] {
            assert!(metrics.contains(&format!("guildhall_operations_elsewhere_total{{at=\"{at}\"}}")), "{metrics}");
        }
    }

    async fn whose_channel_it_is_may_name_it_and_whoever_runs_the_daemon_may_name_any(town) {
        let (own, theirs) = (town.channel(town.acme), town.channel(town.rivals));
        let id = town.submit(&town.owner.text, town.acme, &message(&own));
        assert_eq!(ends(&town, &id)["state"], "succeeded");
        assert_eq!(sent(&town), 1);
        let id = town.submit(ADMIN, town.acme, &message(&theirs));
        assert_eq!(ends(&town, &id)["state"], "succeeded");
        assert_eq!(sent(&town), 2);
    }

    async fn a_key_for_a_tenant_names_its_guilds_channels_and_no_others(town) {
        let whole = town.key("acme", &["operations:write"]);
        let (other, theirs) = (town.channel(town.acmes_other), town.channel(town.rivals));
        let id = town.submit(&whole.text, town.acme, &message(&other));
        assert_eq!(ends(&town, &id)["state"], "succeeded");
        let id = town.submit(&whole.text, town.acme, &message(&theirs));
        assert_eq!(ends(&town, &id)["state"], "dead");
        assert_eq!(sent(&town), 1);
    }

    async fn a_call_in_ones_own_words_leads_nowhere_else_either(town) {
        let (own, theirs) = (town.channel(town.nobodys), town.channel(town.rivals));
        let fleet = &town.fleet.text;
        let request = |path: &str| json!({"kind": "request", "payload": {"method": "GET", "path": path}});
        let ask = |path: &str| town.with(fleet, "POST", "/v1/operations", &request(path));
        let accepted = |path: &str| ask(path).json()["id"].as_str().unwrap().to_owned();
        assert_eq!(ends(&town, &accepted(&format!("/channels/{own}")))["state"], "succeeded");
        assert_eq!(ends(&town, &accepted(&format!("/channels/{theirs}")))["error"]["class"], "not_found");
        let digits = theirs.bytes().map(|digit| format!("%{digit:x}")).collect::<String>();
        for path in [format!("/channels/{theirs}/messages"), format!("/ch%61nnels/{digits}"), format!("/guilds/{}", town.rivals)] {
            let refused = ask(&path);
            assert_eq!(refused.status, 404, "{path}: {}", refused.body);
        }
        let leave = json!({"kind": "request", "payload": {"method": "DELETE", "path": format!("/users/@me/guilds/{}", town.acme)}});
        assert_eq!(town.with(fleet, "POST", "/v1/operations", &leave).status, 404);
        assert_eq!(ask("/channels/seven").status, 403, "the target of the path is unknown");
        let reads = |guild: Snowflake, path: String| {
            let read = json!({"kind": "read", "payload": {"path": path}});
            town.with(&town.owner.text, "POST", &format!("/v1/guilds/{guild}/operations"), &read).status
        };
        assert_eq!(reads(town.acme, format!("/guilds/{}/roles", town.acme)), 202);
        assert_eq!(reads(town.acme, format!("/guilds/{}/roles", town.rivals)), 403, "it needs the scope application first");
        // The rejection is in the audit.
        town.until("/v1/audit?action=refused&limit=500", |answer| answer.body.contains("does not exist, or the key of this operation has no access"));
    }
}
