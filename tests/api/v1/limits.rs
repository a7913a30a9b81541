//! Limits and breakers, over the listener.

use std::time::Duration;

use guildhall_core::response::{RateLimitScope, ResponseClass};
use serde_json::{Value, json};

use super::{run, sqlite_fixture::SqliteApi};

const LIMITED: ResponseClass =
    ResponseClass::RateLimited { scope: RateLimitScope::Shared, retry_after: Duration::from_millis(1) };

async fn open() -> (SqliteApi, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    (SqliteApi::open(&folder).await, folder)
}

impl SqliteApi {
    async fn get(&self, path: &str) -> Value {
        let response = self.request("GET", path, Value::Null).await;
        assert_eq!(response.status, 200, "{path}: {response:?}");
        response.json()
    }

    /// Audit rows of an action.
    pub(crate) async fn audit_rows(&self, action: &str) -> Vec<Value> {
        self.get(&format!("/v1/audit?action={action}")).await["audit"].as_array().unwrap().clone()
    }
}

#[test]
fn limits_show_the_window_lanes_and_ban_budget() {
    run(async {
        let (api, _folder) = open().await;
        api.services.call(7, ResponseClass::Success).await;
        api.services.call(7, ResponseClass::Forbidden).await;
        let limits = api.get("/v1/limits").await;
        let global = &limits["global"];
        assert_eq!(
            (&global["limit"], &global["window_ms"], &global["shared"]),
            (&json!(50), &json!(50), &json!(false))
        );
        assert!(global["available"].as_u64().unwrap() <= 50 && global["waiting"] == 0, "{global}");
        let lanes: Vec<_> = limits["lanes"].as_array().unwrap().iter().map(|lane| lane["lane"].clone()).collect();
        assert_eq!(lanes, ["interactive", "operation", "background"]);
        let invalid = &limits["invalid_requests"];
        assert_eq!((&invalid["used"], &invalid["most"], &invalid["stops"]), (&json!(1), &json!(10_000), &Value::Null));
        let spender = json!({"guild_id": "7", "route": "GET /guilds/{id}/roles", "count": 1, "over": 0});
        assert_eq!(invalid["spenders"], json!([spender]));
        assert_eq!(limits["breakers"]["forced_open"], 0);
        assert_eq!(limits["buckets"], 1);
    });
}

#[test]
fn buckets_are_paged_without_repeats() {
    run(async {
        let (api, _folder) = open().await;
        for guild in 1..=5 {
            api.services.call(guild, ResponseClass::Success).await;
        }
        let (mut ids, mut path) = (Vec::new(), "/v1/limits/buckets?limit=2".to_owned());
        loop {
            let page = api.get(&path).await;
            for bucket in page["buckets"].as_array().unwrap() {
                assert_eq!(
                    (&bucket["route"], &bucket["limit"]),
                    (&json!("GET /guilds/{id}/roles"), &json!(5)),
                    "{bucket}"
                );
                assert!(bucket["bucket"] == "abcd1234" && bucket["resets_at"].is_string(), "{bucket}");
                ids.push(bucket["id"].as_str().unwrap().to_owned());
            }
            assert!(page["buckets"].as_array().unwrap().len() <= 2);
            let Some(next) = page["next"].as_str() else { break };
            path = format!("/v1/limits/buckets?limit=2&cursor={next}");
        }
        ids.sort();
        assert_eq!(ids, ["1", "2", "3", "4", "5"]);
        for invalid in ["cursor=x", "cursor=-1", "cursor=99999999999", "limit=0", "colour=red"] {
            let response = api.request("GET", &format!("/v1/limits/buckets?{invalid}"), Value::Null).await;
            response.assert_problem(400, "bad-request");
        }
    });
}

#[test]
fn heaviest_guilds_are_listed_by_each_measure() {
    run(async {
        let (api, _folder) = open().await;
        for (guild, class) in
            [(7, ResponseClass::Success), (7, ResponseClass::Success), (8, LIMITED), (9, ResponseClass::Forbidden)]
        {
            api.services.call(guild, class).await;
        }
        let counts = async |query: &str| {
            let top = api.get(&format!("/v1/limits/top{query}")).await;
            assert!(top["since"].is_string(), "{top}");
            let counts =
                top["top"].as_array().unwrap().iter().map(|one| (one["guild_id"].clone(), one["count"].clone()));
            (top["by"].clone(), counts.collect::<Vec<_>>())
        };
        let entry = |guild: &str, count: u64| (json!(guild), json!(count));
        assert_eq!(counts("").await, (json!("spend"), vec![entry("7", 2), entry("8", 1), entry("9", 1)]));
        assert_eq!(counts("?by=spend&limit=1").await.1, [entry("7", 2)]);
        assert_eq!(counts("?by=429").await.1, [entry("8", 1)]);
        assert_eq!(counts("?by=invalid").await.1, [entry("9", 1)]);
        let rejected = api.request("GET", "/v1/limits/top?by=calls&limit=101", Value::Null).await;
        assert_eq!(rejected.assert_problem(400, "bad-request").invalid_fields(), ["by", "limit"]);
    });
}

#[test]
fn breaker_is_forced_and_reset_with_one_audit_row_each() {
    run(async {
        let (api, _folder) = open().await;
        let forced = api.request("POST", "/v1/breakers/force", json!({"key": "discord:42"})).await;
        assert_eq!(forced.status, 200, "{forced:?}");
        let breaker = forced.json();
        assert_eq!(
            (&breaker["state"], &breaker["why"], &breaker["until"]),
            (&json!("forced_open"), &json!("forced"), &Value::Null)
        );
        assert_eq!(api.get("/v1/limits").await["breakers"]["forced_open"], 1);
        let listed = api.get("/v1/breakers").await;
        assert_eq!(
            (&listed["breakers"][0]["key"], &listed["breakers"][0]["state"]),
            (&json!("discord:42"), &json!("forced_open"))
        );

        let timed = api.request("POST", "/v1/breakers/force", json!({"key": "discord:42", "for_ms": 1_000})).await;
        assert_eq!(timed.assert_problem(409, "conflict").text("state"), "forced_open");
        let rows = api.audit_rows("breakers.force").await;
        assert_eq!(rows.len(), 1, "a rejected change leaves no row: {rows:?}");
        assert_eq!((&rows[0]["target"], &rows[0]["detail"]), (&json!("discord:42"), &json!("until it is reset")));

        let reset = api.request("POST", "/v1/breakers/reset", json!({"key": "discord:42"})).await;
        assert_eq!((reset.status, reset.text("state")), (200, "closed".to_owned()));
        assert_eq!(api.audit_rows("breakers.reset").await.len(), 1);
        let timed =
            api.request("POST", "/v1/breakers/force", json!({"key": "target:crm", "for_ms": 60_000})).await.json();
        assert_eq!(
            (&timed["state"], &timed["kind"], &timed["why"]),
            (&json!("open"), &json!("target"), &json!("forced"))
        );
        assert!(timed["until"].is_string(), "{timed}");
        assert_eq!(api.audit_rows("breakers.force").await[0]["detail"], "for 60000 ms");
        // A breaker that is not in use is closed, and stays closed.
        let closed = api.request("POST", "/v1/breakers/reset", json!({"key": "target:other"})).await;
        assert_eq!((closed.status, closed.text("state")), (200, "closed".to_owned()));
    });
}

#[test]
fn invalid_breaker_keys_are_rejected() {
    run(async {
        let (api, _folder) = open().await;
        for key in ["discord:43", "discords", "discord:42/BREW /pot", "target:", "", "discord:42/GET nowhere"] {
            let response = api.request("POST", "/v1/breakers/force", json!({ "key": key })).await;
            assert_eq!(response.assert_problem(400, "bad-request").invalid_fields(), ["key"], "{key}");
        }
        let none = api.request("POST", "/v1/breakers/reset", json!({})).await;
        assert_eq!(none.assert_problem(400, "bad-request").invalid_fields(), ["key"]);
        let rejected = api.request("POST", "/v1/breakers/force", json!({"key": 5, "for_ms": 0, "why": "x"})).await;
        assert_eq!(rejected.assert_problem(400, "bad-request").invalid_fields(), ["key", "for_ms", "why"]);
        api.request("POST", "/v1/breakers/force", json!(["discord"])).await.assert_problem(400, "bad-request");
        assert!(api.audit_rows("breakers.force").await.is_empty() && api.audit_rows("breakers.reset").await.is_empty());
        assert_eq!(api.get("/v1/limits").await["breakers"]["forced_open"], 0);
    });
}

#[test]
fn change_without_an_audit_row_is_not_made() {
    run(async {
        let (api, _folder) = open().await;
        api.close_store().await;
        for (path, body) in [
            ("/v1/breakers/force", json!({"key": "discord:42"})),
            ("/v1/breakers/reset", json!({"key": "discord:42"})),
            ("/v1/shards/0/restart", Value::Null),
            ("/v1/budgets/shop/observe", json!({"available": 1})),
        ] {
            api.request("POST", path, body).await.assert_problem(503, "store-unavailable");
        }
        assert_eq!(api.get("/v1/limits").await["breakers"]["forced_open"], 0);
        assert!(api.services.shard_admin.restarted.lock().unwrap().is_empty());
        let budgets = api.get("/v1/budgets").await;
        assert_eq!(budgets["budgets"][0]["available"], 1_000.0, "{budgets}");
        // Calls without an audit record still work.
        assert_eq!(api.request("POST", "/v1/budgets/shop/acquire", Value::Null).await.status, 200);
    });
}
