//! Responses to interactions: a key may respond only to those that this deployment has received in its guild.

use std::time::{Duration, Instant};

use guildhall_sim::{FireSpec, Snowflake};
use serde_json::{Value, json};
use tokio::task::block_in_place;

use super::{
    support::{Answer, CANARY, STUCK},
    town::{ADMIN, Town, on_both},
};

/// An interaction, as the bot's own code knows it.
struct Interaction {
    id: String,
    token: String,
}

/// Fires a command over the gateway. No handler exists for it.
async fn fire(town: &Town, guild: Snowflake) -> Interaction {
    let fired = town.sim.fire(FireSpec::command(guild, "unhandled")).await.unwrap();
    Interaction { id: fired.id.unwrap().to_string(), token: fired.token.unwrap() }
}

fn response(kind: &str, id: &str, token: &str) -> Value {
    let mut payload = json!({"interaction_id": id, "interaction_token": token});
    if kind != "defer_reply" {
        payload["content"] = json!("hello");
    }
    json!({"kind": kind, "payload": payload})
}

fn path(guild: Snowflake) -> String {
    format!("/v1/guilds/{guild}/operations")
}

/// Submits until the interaction is recorded, which happens soon after it was received.
fn accepted(town: &Town, key: &str, guild: Snowflake, operation: &Value) -> String {
    let deadline = Instant::now() + STUCK;
    loop {
        let answer = town.with(key, "POST", &path(guild), operation);
        if answer.status == 202 {
            return answer.json()["id"].as_str().unwrap().to_owned();
        }
        assert_not_received(&answer);
        assert!(Instant::now() < deadline, "never recorded: {}", answer.body);
        block_in_place(|| std::thread::sleep(Duration::from_millis(20)));
    }
}

fn assert_not_received(answer: &Answer) {
    assert_eq!(answer.status, 422, "{}", answer.body);
    let error = &answer.json()["errors"][0];
    let (field, message) = (error["field"].as_str().unwrap(), error["message"].as_str().unwrap());
    assert!(field.ends_with("payload.interaction_id") || field.ends_with("payload.path"), "{field}");
    assert!(message.contains("15 minutes") && message.contains("interactions:any"), "{message}");
}

fn ends(town: &Town, id: &str) -> Value {
    let has_ended = |state: &Value| ["succeeded", "dead"].iter().any(|end| state == end);
    town.until(&format!("/v1/operations/{id}"), |answer| has_ended(&answer.json()["state"])).json()
}

/// Responses to interactions that reached Discord.
fn responses(town: &Town) -> u64 {
    let routes = town.sim.score().routes;
    let to_interactions = routes.iter().filter(|(route, _)| route.contains("{interaction.token}"));
    to_interactions.map(|(_, route)| route.requests).sum()
}

fn invalid_requests(town: &Town) -> u64 {
    let limits = town.admin("GET", "/v1/limits", &Value::Null).json();
    limits["invalid_requests"]["used"].as_u64().unwrap_or_else(|| panic!("{limits}"))
}

on_both! {
    async fn made_up_interactions_spend_nothing_of_the_ban_budget(town) {
        for round in 0..12 {
            let operations: Vec<_> = (0..1_000)
                .map(|n| response("send_followup", &(1 + round * 1_000 + n).to_string(), &format!("made-up-{round}-{n}")))
                .collect();
            let refused = town.with(&town.owner.text, "POST", &path(town.acme), &json!({"operations": operations}));
            assert_not_received(&refused);
            assert_eq!(refused.json()["errors"].as_array().unwrap().len(), 1_000);
        }
        assert_eq!((invalid_requests(&town), responses(&town)), (0, 0));
        let role = json!({"kind": "create_role", "payload": {"name": "Undisturbed"}});
        let id = town.submit(ADMIN, town.rivals, &role);
        assert_eq!(ends(&town, &id)["state"], "succeeded");
        let metrics = town.with("", "GET", "/metrics", &Value::Null).body;
        let counted = "guildhall_operations_interaction_not_received_total{at=\"submission\"} 12000";
        assert!(metrics.contains(counted), "{metrics}");
    }

    async fn received_interaction_takes_responses_of_its_guilds_key_only(town) {
        let Interaction { id, token } = fire(&town, town.acme).await;
        let owner = &town.owner.text;
        let deferred = accepted(&town, owner, town.acme, &response("defer_reply", &id, &token));
        assert_eq!(ends(&town, &deferred)["state"], "succeeded");
        for kind in ["edit_original", "send_followup"] {
            let done = town.submit(owner, town.acme, &response(kind, &id, &token));
            assert_eq!(ends(&town, &done)["state"], "succeeded", "{kind}");
        }
        let sent = responses(&town);
        let (tenant, strangers) = (town.key("acme", &["operations:write"]), town.strangers());
        for kind in ["defer_reply", "edit_original", "send_followup"] {
            let other_token = town.with(owner, "POST", &path(town.acme), &response(kind, &id, "made-up"));
            assert_not_received(&other_token);
            let other_id = town.with(owner, "POST", &path(town.acme), &response(kind, "77", &token));
            assert_not_received(&other_id);
            let other_guild = town.with(&tenant.text, "POST", &path(town.acmes_other), &response(kind, &id, &token));
            assert_not_received(&other_guild);
            for (whose, stranger) in &strangers {
                let answer = town.with(&stranger.text, "POST", &path(town.acme), &response(kind, &id, &token));
                assert_eq!(answer.status, 404, "{whose}: {}", answer.body);
            }
            // The message does not reveal which part is invalid.
            let message = |answer: &Answer| answer.json()["errors"][0]["message"].clone();
            assert_eq!(message(&other_token), message(&other_id));
            assert_eq!(message(&other_token), message(&other_guild));
        }
        assert_eq!(responses(&town), sent);
    }

    async fn one_bad_response_refuses_its_batch_and_is_named(town) {
        let Interaction { id, token } = fire(&town, town.acme).await;
        let first = accepted(&town, &town.owner.text, town.acme, &response("defer_reply", &id, &token));
        assert_eq!(ends(&town, &first)["state"], "succeeded");
        let batch = json!({"operations": [
            {"kind": "create_role", "payload": {"name": "x"}},
            response("send_followup", &id, &token),
            response("send_followup", &id, "made-up"),
        ]});
        let refused = town.with(&town.owner.text, "POST", &path(town.acme), &batch);
        assert_not_received(&refused);
        let errors = refused.json()["errors"].clone();
        assert_eq!((errors.as_array().unwrap().len(), &errors[0]["field"]), (1, &json!("operations[2].payload.interaction_id")));
        let listed = town.admin("GET", &format!("/v1/operations?guild_id={}", town.acme), &Value::Null);
        assert_eq!(listed.json()["operations"].as_array().unwrap().len(), 1, "nothing of the batch: {}", listed.body);
    }

    async fn interactions_any_and_the_operator_may_respond_to_any(town) {
        let any = town.key("default", &["operations:write", "interactions:any"]);
        for key in [any.text.as_str(), ADMIN] {
            let made_up = response("send_followup", "77", "made-up");
            let id = town.submit(key, town.nobodys, &made_up);
            assert_eq!(ends(&town, &id)["state"], "dead");
        }
        assert_eq!(responses(&town), 1, "the second is known to be invalid");
    }

    async fn paths_of_interactions_are_checked_in_any_encoding(town) {
        let application = town.sim.application(CANARY).unwrap();
        let Interaction { id, token } = fire(&town, town.nobodys).await;
        // `request` needs the scope application, which no key of another tenant has, and danger for paths in capitals.
        let key = town.key("default", &["operations:write", "operations:read", "application", "danger"]);
        let deferred = accepted(&town, &key.text, town.nobodys, &response("defer_reply", &id, &token));
        assert_eq!(ends(&town, &deferred)["state"], "succeeded");
        let request = |method: &str, path: &str| {
            let body = if method == "POST" { json!({"content": "hello"}) } else { Value::Null };
            json!({"kind": "request", "payload": {"method": method, "path": path, "body": body}})
        };
        let sent = responses(&town);
        let digits = application.to_string().bytes().map(|digit| format!("%{digit:x}")).collect::<String>();
        let encoded: String = token.bytes().map(|byte| format!("%{byte:x}")).collect();
        for made_up in [
            format!("/webhooks/{application}/made-up"),
            format!("/w%65bhooks/{digits}/made-up?wait=true"),
            format!("/WEBHOOKS/{application}/made-up/messages/@original"),
            format!("/webhooks/{application}/{encoded}"),
            format!("/interactions/{id}/made-up/callback"),
            format!("/%69nteractions/77/{token}/callback"),
        ] {
            for method in ["POST", "GET"] {
                let refused = town.with(&key.text, "POST", &path(town.nobodys), &request(method, &made_up));
                assert_not_received(&refused);
            }
            let read = json!({"kind": "read", "payload": {"path": made_up}});
            assert_not_received(&town.with(&key.text, "POST", &path(town.nobodys), &read));
            assert_not_received(&town.with(&key.text, "POST", "/v1/operations", &read));
        }
        assert_eq!(responses(&town), sent);
        let real = request("POST", &format!("/webhooks/{application}/{token}"));
        assert_not_received(&town.with(&key.text, "POST", "/v1/operations", &real));
        let id = town.submit(&key.text, town.nobodys, &real);
        assert_eq!(ends(&town, &id)["state"], "succeeded");
    }

    async fn response_has_the_expiry_of_its_token_as_its_deadline(town) {
        let Interaction { id, token } = fire(&town, town.acme).await;
        let first = accepted(&town, &town.owner.text, town.acme, &response("defer_reply", &id, &token));
        assert_eq!(ends(&town, &first)["state"], "succeeded");
        let delayed = |delay_ms: u64| {
            let mut late = response("send_followup", &id, &token);
            late["delay_ms"] = json!(delay_ms);
            town.with(&town.owner.text, "POST", &path(town.acme), &late)
        };
        let never = delayed(15 * 60_000);
        assert_eq!((never.status, &never.json()["errors"][0]["field"]), (422, &json!("delay_ms")), "{}", never.body);
        let later = delayed(60_000);
        assert_eq!(later.status, 202, "{}", later.body);
        let later = later.json()["id"].as_str().unwrap().to_owned();
        let shown = town.admin("GET", &format!("/v1/operations/{later}"), &Value::Null).json();
        assert!(shown["deadline_at"].as_str() > shown["eligible_at"].as_str(), "{shown}");
        let listed = town.admin("GET", "/v1/dead-letters", &Value::Null).json();
        assert_eq!(listed["dead_letters"], json!([]), "{listed}");
    }

    async fn redrive_checks_the_interaction_again(town) {
        let any = town.key("default", &["operations:write", "operations:read", "interactions:any"]);
        let id = town.submit(&any.text, town.nobodys, &response("send_followup", "77", "made-up"));
        assert_eq!(ends(&town, &id)["state"], "dead");
        town.until(&format!("/v1/dead-letters/{id}"), |answer| answer.status == 200);
        let plain = town.key("default", &["operations:write", "operations:read"]);
        for path in [format!("/v1/dead-letters/{id}/redrive"), format!("/v1/operations/{id}/retry")] {
            let refused = town.with(&plain.text, "POST", &path, &Value::Null);
            assert_eq!(refused.status, 422, "{path}: {}", refused.body);
            assert!(refused.body.contains("interactions:any"), "{path}: {}", refused.body);
        }
        let all = town.with(&plain.text, "POST", "/v1/dead-letters/redrive", &json!({}));
        assert_eq!(all.status, 200, "{}", all.body);
        assert_eq!(all.json()["redriven"], 0, "{}", all.body);
        assert!(all.json()["skipped"][0]["why"].as_str().unwrap().contains("interactions:any"), "{}", all.body);
        let again = town.with(&any.text, "POST", &format!("/v1/dead-letters/{id}/redrive"), &Value::Null);
        assert_eq!(again.status, 202, "{}", again.body);
    }
    async fn direct_messages_for_a_guild_of_another_tenant_are_refused(town) {
        let message = json!({"kind": "send_dm", "payload": {"user_id": "5", "content": "hello"}});
        for (whose, stranger) in town.strangers() {
            let answer = town.with(&stranger.text, "POST", &path(town.acme), &message);
            assert_eq!(answer.status, 404, "{whose}: {}", answer.body);
        }
    }
}
