//! Responses to interactions: a key may respond only to those that this deployment has received in its guild.

use std::time::{Duration, Instant};

use guildhall_sim::{FireSpec, Snowflake};
use guildhall_testkit::program::{CANARY, HttpResponse, TEST_TIMEOUT};
use serde_json::{Value, json};
use tokio::task::block_in_place;

use super::fixture::{ADMIN, MultiTenantFixture, on_both};

/// An interaction, as the bot's own code knows it.
struct Interaction {
    id: String,
    token: String,
}

/// Fires a command over the gateway. No handler exists for it.
async fn fire(fixture: &MultiTenantFixture, guild: Snowflake) -> Interaction {
    let fired = fixture.sim.fire(FireSpec::command(guild, "unhandled")).await.unwrap();
    Interaction { id: fired.id.unwrap().to_string(), token: fired.token.unwrap() }
}

fn response_operation(kind: &str, id: &str, token: &str) -> Value {
    let mut payload = json!({"interaction_id": id, "interaction_token": token});
    if kind != "defer_reply" {
        payload["content"] = json!("hello");
    }
    json!({"kind": kind, "payload": payload})
}

fn operations_path(guild: Snowflake) -> String {
    format!("/v1/guilds/{guild}/operations")
}

/// Submits until the interaction is recorded, which happens soon after it was received.
fn submit_until_accepted(fixture: &MultiTenantFixture, key: &str, guild: Snowflake, operation: &Value) -> String {
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        let response = fixture.request_with(key, "POST", &operations_path(guild), operation);
        if response.status == 202 {
            return response.json()["id"].as_str().unwrap().to_owned();
        }
        assert_not_received(&response);
        assert!(Instant::now() < deadline, "never recorded: {}", response.body);
        block_in_place(|| std::thread::sleep(Duration::from_millis(20)));
    }
}

fn assert_not_received(response: &HttpResponse) {
    assert_eq!(response.status, 422, "{}", response.body);
    let error = &response.json()["errors"][0];
    let (field, message) = (error["field"].as_str().unwrap(), error["message"].as_str().unwrap());
    assert!(field.ends_with("payload.interaction_id") || field.ends_with("payload.path"), "{field}");
    assert!(message.contains("15 minutes") && message.contains("interactions:any"), "{message}");
}

fn wait_until_final(fixture: &MultiTenantFixture, id: &str) -> Value {
    let is_final = |state: &Value| ["succeeded", "dead"].iter().any(|final_state| state == final_state);
    fixture.poll_until(&format!("/v1/operations/{id}"), |response| is_final(&response.json()["state"])).json()
}

/// Responses to interactions that reached Discord.
fn response_count(fixture: &MultiTenantFixture) -> u64 {
    let routes = fixture.sim.score().routes;
    let to_interactions = routes.iter().filter(|(route, _)| route.contains("{interaction.token}"));
    to_interactions.map(|(_, route)| route.requests).sum()
}

fn invalid_request_count(fixture: &MultiTenantFixture) -> u64 {
    let limits = fixture.request_as_admin("GET", "/v1/limits", &Value::Null).json();
    limits["invalid_requests"]["used"].as_u64().unwrap_or_else(|| panic!("{limits}"))
}

on_both! {
    async fn unknown_interactions_use_no_ban_budget(fixture) {
        for round in 0..12 {
            let operations: Vec<_> = (0..1_000)
                .map(|n| response_operation("send_followup", &(1 + round * 1_000 + n).to_string(), &format!("made-up-{round}-{n}")))
                .collect();
            let refused = fixture.request_with(&fixture.owner_key.text, "POST", &operations_path(fixture.acme_guild), &json!({"operations": operations}));
            assert_not_received(&refused);
            assert_eq!(refused.json()["errors"].as_array().unwrap().len(), 1_000);
        }
        assert_eq!((invalid_request_count(&fixture), response_count(&fixture)), (0, 0));
        let role = json!({"kind": "create_role", "payload": {"name": "Undisturbed"}});
        let id = fixture.submit(ADMIN, fixture.rival_guild, &role);
        assert_eq!(wait_until_final(&fixture, &id)["state"], "succeeded");
        let metrics = fixture.request_with("", "GET", "/metrics", &Value::Null).body;
        let counted = "guildhall_operations_interaction_not_received_total{at=\"submission\"} 12000";
        assert!(metrics.contains(counted), "{metrics}");
    }

    async fn only_keys_of_the_guild_may_respond(fixture) {
        let Interaction { id, token } = fire(&fixture, fixture.acme_guild).await;
        let owner = &fixture.owner_key.text;
        let deferred = submit_until_accepted(&fixture, owner, fixture.acme_guild, &response_operation("defer_reply", &id, &token));
        assert_eq!(wait_until_final(&fixture, &deferred)["state"], "succeeded");
        for kind in ["edit_original", "send_followup"] {
            let done = fixture.submit(owner, fixture.acme_guild, &response_operation(kind, &id, &token));
            assert_eq!(wait_until_final(&fixture, &done)["state"], "succeeded", "{kind}");
        }
        let sent = response_count(&fixture);
        let (tenant, strangers) = (fixture.create_key("acme", &["operations:write"]), fixture.keys_without_access());
        for kind in ["defer_reply", "edit_original", "send_followup"] {
            let other_token = fixture.request_with(owner, "POST", &operations_path(fixture.acme_guild), &response_operation(kind, &id, "made-up"));
            assert_not_received(&other_token);
            let other_id = fixture.request_with(owner, "POST", &operations_path(fixture.acme_guild), &response_operation(kind, "77", &token));
            assert_not_received(&other_id);
            let other_guild = fixture.request_with(&tenant.text, "POST", &operations_path(fixture.acme_second_guild), &response_operation(kind, &id, &token));
            assert_not_received(&other_guild);
            for (whose, stranger) in &strangers {
                let answer = fixture.request_with(&stranger.text, "POST", &operations_path(fixture.acme_guild), &response_operation(kind, &id, &token));
                assert_eq!(answer.status, 404, "{whose}: {}", answer.body);
            }
            // The message does not reveal which part is invalid.
            let message = |answer: &HttpResponse| answer.json()["errors"][0]["message"].clone();
            assert_eq!(message(&other_token), message(&other_id));
            assert_eq!(message(&other_token), message(&other_guild));
        }
        assert_eq!(response_count(&fixture), sent);
    }

    async fn one_invalid_response_rejects_its_batch(fixture) {
        let Interaction { id, token } = fire(&fixture, fixture.acme_guild).await;
        let first = submit_until_accepted(&fixture, &fixture.owner_key.text, fixture.acme_guild, &response_operation("defer_reply", &id, &token));
        assert_eq!(wait_until_final(&fixture, &first)["state"], "succeeded");
        let batch = json!({"operations": [
            {"kind": "create_role", "payload": {"name": "x"}},
            response_operation("send_followup", &id, &token),
            response_operation("send_followup", &id, "made-up"),
        ]});
        let refused = fixture.request_with(&fixture.owner_key.text, "POST", &operations_path(fixture.acme_guild), &batch);
        assert_not_received(&refused);
        let errors = refused.json()["errors"].clone();
        assert_eq!((errors.as_array().unwrap().len(), &errors[0]["field"]), (1, &json!("operations[2].payload.interaction_id")));
        let listed = fixture.request_as_admin("GET", &format!("/v1/operations?guild_id={}", fixture.acme_guild), &Value::Null);
        assert_eq!(listed.json()["operations"].as_array().unwrap().len(), 1, "nothing of the batch: {}", listed.body);
    }

    async fn interactions_any_and_the_operator_may_respond_to_any(fixture) {
        let any = fixture.create_key("default", &["operations:write", "interactions:any"]);
        for key in [any.text.as_str(), ADMIN] {
            let made_up = response_operation("send_followup", "77", "made-up");
            let id = fixture.submit(key, fixture.unowned_guild, &made_up);
            assert_eq!(wait_until_final(&fixture, &id)["state"], "dead");
        }
        assert_eq!(response_count(&fixture), 1, "the second is known to be invalid");
    }

    async fn paths_of_interactions_are_checked_in_any_encoding(fixture) {
        let application = fixture.sim.application(CANARY).unwrap();
        let Interaction { id, token } = fire(&fixture, fixture.unowned_guild).await;
        // `request` needs the scope application, which no key of another tenant has, and danger for paths in capitals.
        let key = fixture.create_key("default", &["operations:write", "operations:read", "application", "danger"]);
        let deferred = submit_until_accepted(&fixture, &key.text, fixture.unowned_guild, &response_operation("defer_reply", &id, &token));
        assert_eq!(wait_until_final(&fixture, &deferred)["state"], "succeeded");
        let request = |method: &str, path: &str| {
            let body = if method == "POST" { json!({"content": "hello"}) } else { Value::Null };
            json!({"kind": "request", "payload": {"method": method, "path": path, "body": body}})
        };
        let sent = response_count(&fixture);
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
                let refused = fixture.request_with(&key.text, "POST", &operations_path(fixture.unowned_guild), &request(method, &made_up));
                assert_not_received(&refused);
            }
            let read = json!({"kind": "read", "payload": {"path": made_up}});
            assert_not_received(&fixture.request_with(&key.text, "POST", &operations_path(fixture.unowned_guild), &read));
            assert_not_received(&fixture.request_with(&key.text, "POST", "/v1/operations", &read));
        }
        assert_eq!(response_count(&fixture), sent);
        let real = request("POST", &format!("/webhooks/{application}/{token}"));
        assert_not_received(&fixture.request_with(&key.text, "POST", "/v1/operations", &real));
        let id = fixture.submit(&key.text, fixture.unowned_guild, &real);
        assert_eq!(wait_until_final(&fixture, &id)["state"], "succeeded");
    }

    async fn response_has_the_expiry_of_its_token_as_its_deadline(fixture) {
        let Interaction { id, token } = fire(&fixture, fixture.acme_guild).await;
        let first = submit_until_accepted(&fixture, &fixture.owner_key.text, fixture.acme_guild, &response_operation("defer_reply", &id, &token));
        assert_eq!(wait_until_final(&fixture, &first)["state"], "succeeded");
        let delayed = |delay_ms: u64| {
            let mut late = response_operation("send_followup", &id, &token);
            late["delay_ms"] = json!(delay_ms);
            fixture.request_with(&fixture.owner_key.text, "POST", &operations_path(fixture.acme_guild), &late)
        };
        let never = delayed(15 * 60_000);
        assert_eq!((never.status, &never.json()["errors"][0]["field"]), (422, &json!("delay_ms")), "{}", never.body);
        let later = delayed(60_000);
        assert_eq!(later.status, 202, "{}", later.body);
        let later = later.json()["id"].as_str().unwrap().to_owned();
        let shown = fixture.request_as_admin("GET", &format!("/v1/operations/{later}"), &Value::Null).json();
        assert!(shown["deadline_at"].as_str() > shown["eligible_at"].as_str(), "{shown}");
        let listed = fixture.request_as_admin("GET", "/v1/dead-letters", &Value::Null).json();
        assert_eq!(listed["dead_letters"], json!([]), "{listed}");
    }

    async fn redrive_checks_the_interaction_again(fixture) {
        let any = fixture.create_key("default", &["operations:write", "operations:read", "interactions:any"]);
        let id = fixture.submit(&any.text, fixture.unowned_guild, &response_operation("send_followup", "77", "made-up"));
        assert_eq!(wait_until_final(&fixture, &id)["state"], "dead");
        fixture.poll_until(&format!("/v1/dead-letters/{id}"), |answer| answer.status == 200);
        let plain = fixture.create_key("default", &["operations:write", "operations:read"]);
        for path in [format!("/v1/dead-letters/{id}/redrive"), format!("/v1/operations/{id}/retry")] {
            let refused = fixture.request_with(&plain.text, "POST", &path, &Value::Null);
            assert_eq!(refused.status, 422, "{path}: {}", refused.body);
            assert!(refused.body.contains("interactions:any"), "{path}: {}", refused.body);
        }
        let all = fixture.request_with(&plain.text, "POST", "/v1/dead-letters/redrive", &json!({}));
        assert_eq!(all.status, 200, "{}", all.body);
        assert_eq!(all.json()["redriven"], 0, "{}", all.body);
        assert!(all.json()["skipped"][0]["why"].as_str().unwrap().contains("interactions:any"), "{}", all.body);
        let again = fixture.request_with(&any.text, "POST", &format!("/v1/dead-letters/{id}/redrive"), &Value::Null);
        assert_eq!(again.status, 202, "{}", again.body);
    }
    async fn direct_messages_for_a_guild_of_another_tenant_are_refused(fixture) {
        let message = json!({"kind": "send_dm", "payload": {"user_id": "5", "content": "hello"}});
        for (whose, stranger) in fixture.keys_without_access() {
            let answer = fixture.request_with(&stranger.text, "POST", &operations_path(fixture.acme_guild), &message);
            assert_eq!(answer.status, 404, "{whose}: {}", answer.body);
        }
    }
}
