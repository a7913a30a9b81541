//! A key for one guild cannot use a channel of another, in the whole program.

use guildhall_sim::Snowflake;
use serde_json::{Value, json};

use super::fixture::{ADMIN, MultiTenantFixture, on_both};

/// Messages that reached Discord.
fn messages_sent(fixture: &MultiTenantFixture) -> u64 {
    let score = fixture.sim.score();
    score.routes.get("POST /channels/{channel.id}/messages").map_or(0, |route| route.requests)
}

fn message(channel: &str) -> Value {
    json!({"kind": "send_message", "payload": {"channel_id": channel, "content": "hello"}})
}

/// Waits until an operation is final, and returns it.
fn wait_until_final(fixture: &MultiTenantFixture, id: &str) -> Value {
    let is_final = |state: &Value| ["succeeded", "dead"].iter().any(|final_state| state == final_state);
    fixture.poll_until(&format!("/v1/operations/{id}"), |response| is_final(&response.json()["state"])).json()
}

on_both! {
    async fn channel_of_another_guild_is_never_called(fixture) {
        let theirs = fixture.find_channel(fixture.rival_guild);
        // The channel is not cached yet: it is accepted, looked up before it is sent, and dead.
        let id = fixture.submit(&fixture.owner_key.text, fixture.acme_guild, &message(&theirs));
        let shown = wait_until_final(&fixture, &id);
        assert_eq!((&shown["state"], &shown["error"]["class"]), (&json!("dead"), &json!("not_found")), "{shown}");
        let error = shown["error"]["message"].as_str().unwrap();
        assert!(error.contains(&format!("channel {theirs} does not exist in guild {}", fixture.acme_guild)), "{error}");
        assert_eq!(messages_sent(&fixture), 0);
        // From now on it is cached, and rejected at submission.
        let guild = format!("/v1/guilds/{}/operations", fixture.acme_guild);
        let many = json!({"operations": [{"kind": "create_role", "payload": {"name": "x"}}, message(&theirs)]});
        let refused = fixture.request_with(&fixture.owner_key.text, "POST", &guild, &many);
        assert_eq!(refused.status, 404, "{}", refused.body);
        assert_eq!(refused.json()["errors"][0]["field"], "operations[1].payload", "{}", refused.body);
        // A redrive by another caller does not help.
        let redriven = fixture.request_as_admin("POST", &format!("/v1/dead-letters/{id}/redrive"), &Value::Null);
        assert_eq!(redriven.status, 202, "{}", redriven.body);
        let again = wait_until_final(&fixture, redriven.json()["id"].as_str().unwrap());
        assert_eq!(again["state"], "dead", "{again}");
        assert_eq!(messages_sent(&fixture), 0);
        let score = fixture.sim.score();
        assert_eq!(score.routes["GET /channels/{channel.id}"].requests, 1, "it was looked up once");
        let metrics = fixture.request_with("", "GET", "/metrics", &Value::Null).body;
        for at in ["submission", "dispatch"] {
            assert!(metrics.contains(&format!("guildhall_operations_elsewhere_total{{at=\"{at}\"}}")), "{metrics}");
        }
    }

    async fn own_channel_is_allowed_and_the_operator_may_use_any(fixture) {
        let (own, theirs) = (fixture.find_channel(fixture.acme_guild), fixture.find_channel(fixture.rival_guild));
        let id = fixture.submit(&fixture.owner_key.text, fixture.acme_guild, &message(&own));
        assert_eq!(wait_until_final(&fixture, &id)["state"], "succeeded");
        assert_eq!(messages_sent(&fixture), 1);
        let id = fixture.submit(ADMIN, fixture.acme_guild, &message(&theirs));
        assert_eq!(wait_until_final(&fixture, &id)["state"], "succeeded");
        assert_eq!(messages_sent(&fixture), 2);
    }

    async fn tenant_key_uses_only_channels_of_its_guilds(fixture) {
        let whole = fixture.create_key("acme", &["operations:write"]);
        let (other, theirs) = (fixture.find_channel(fixture.acme_second_guild), fixture.find_channel(fixture.rival_guild));
        let id = fixture.submit(&whole.text, fixture.acme_guild, &message(&other));
        assert_eq!(wait_until_final(&fixture, &id)["state"], "succeeded");
        let id = fixture.submit(&whole.text, fixture.acme_guild, &message(&theirs));
        assert_eq!(wait_until_final(&fixture, &id)["state"], "dead");
        assert_eq!(messages_sent(&fixture), 1);
    }

    async fn raw_requests_cannot_reach_other_guilds(fixture) {
        let (own, theirs) = (fixture.find_channel(fixture.unowned_guild), fixture.find_channel(fixture.rival_guild));
        let fleet = &fixture.fleet_key.text;
        let request = |path: &str| json!({"kind": "request", "payload": {"method": "GET", "path": path}});
        let ask = |path: &str| fixture.request_with(fleet, "POST", "/v1/operations", &request(path));
        let accepted = |path: &str| ask(path).json()["id"].as_str().unwrap().to_owned();
        assert_eq!(wait_until_final(&fixture, &accepted(&format!("/channels/{own}")))["state"], "succeeded");
        assert_eq!(wait_until_final(&fixture, &accepted(&format!("/channels/{theirs}")))["error"]["class"], "not_found");
        let digits = theirs.bytes().map(|digit| format!("%{digit:x}")).collect::<String>();
        for path in [format!("/channels/{theirs}/messages"), format!("/ch%61nnels/{digits}"), format!("/guilds/{}", fixture.rival_guild)] {
            let refused = ask(&path);
            assert_eq!(refused.status, 404, "{path}: {}", refused.body);
        }
        let leave = json!({"kind": "request", "payload": {"method": "DELETE", "path": format!("/users/@me/guilds/{}", fixture.acme_guild)}});
        assert_eq!(fixture.request_with(fleet, "POST", "/v1/operations", &leave).status, 404);
        assert_eq!(ask("/channels/seven").status, 403, "the target of the path is unknown");
        let reads = |guild: Snowflake, path: String| {
            let read = json!({"kind": "read", "payload": {"path": path}});
            fixture.request_with(&fixture.owner_key.text, "POST", &format!("/v1/guilds/{guild}/operations"), &read).status
        };
        assert_eq!(reads(fixture.acme_guild, format!("/guilds/{}/roles", fixture.acme_guild)), 202);
        assert_eq!(reads(fixture.acme_guild, format!("/guilds/{}/roles", fixture.rival_guild)), 403, "it needs the scope application first");
        // The rejection is in the audit.
        fixture.poll_until("/v1/audit?action=refused&limit=500", |answer| answer.body.contains("does not exist, or the key of this operation has no access"));
    }
}
