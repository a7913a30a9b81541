//! Named budgets, over the listener.

use serde_json::{Value, json};

use super::{Response, run, sqlite_fixture::SqliteApi};

async fn post(api: &SqliteApi, path: &str, body: Value) -> Response {
    api.request("POST", &format!("/v1/budgets/{path}"), body).await
}

async fn get_budget(api: &SqliteApi, name: &str) -> Value {
    let response = api.request("GET", &format!("/v1/budgets/{name}"), Value::Null).await;
    assert_eq!(response.status, 200, "{response:?}");
    response.json()
}

#[test]
fn acquire_grants_delays_or_refuses_a_cost() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let api = SqliteApi::open(&folder).await;
        let granted = post(&api, "shop/acquire", json!({"cost": 1_000, "max_wait_ms": 0})).await.json();
        assert_eq!((&granted["allowed"], &granted["delay_ms"]), (&json!(true), &json!(0)));
        let delayed = post(&api, "shop/acquire", json!({"cost": 100, "max_wait_ms": 10_000})).await.json();
        let delay = delayed["delay_ms"].as_u64().unwrap();
        assert!(delayed["allowed"] == true && (1..=2_000).contains(&delay), "{delayed}");
        let refused = post(&api, "shop/acquire", json!({"cost": 500.5, "max_wait_ms": 0})).await.json();
        assert!(refused["allowed"] == false && refused["delay_ms"].as_u64().unwrap() > 2_000, "{refused}");
        let budget = get_budget(&api, "shop").await;
        assert_eq!((&budget["maximum"], &budget["restore_per_second"]), (&json!(1_000.0), &json!(50.0)));
        assert_eq!((&budget["kept"], &budget["observed"]), (&json!("alone"), &json!(false)));
        let spend = &budget["spend"][0];
        assert_eq!((&spend["points"], &spend["calls"]), (&json!(1_100.0), &json!(2)), "refused requests are not spent");
        assert!(spend["hour"].as_str().unwrap().ends_with(":00:00.000Z"), "{spend}");
        // The cost is one point by default, and without a body.
        let response = api.request("POST", "/v1/budgets/other/acquire", Value::Null).await.json();
        assert_eq!((&response["allowed"], &response["remaining"]), (&json!(true), &json!(9.0)));
        let listed = api.request("GET", "/v1/budgets", Value::Null).await.json();
        let names: Vec<_> =
            listed["budgets"].as_array().unwrap().iter().map(|response| response["name"].clone()).collect();
        assert_eq!((names, &listed["next"]), (vec![json!("other"), json!("shop")], &Value::Null));
        assert_eq!(api.audit_rows("budgets.observe").await.len(), 0, "an acquire is not a configuration change");
    });
}

#[test]
fn observation_replaces_the_configured_budget() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let api = SqliteApi::open(&folder).await;
        let observation =
            json!({"available": 3, "maximum": 40, "restore_per_second": 0, "retry_after_ms": 60_000, "age_ms": 5});
        let budget = post(&api, "shop/observe", observation).await;
        assert_eq!(budget.status, 200, "{budget:?}");
        let budget = budget.json();
        assert_eq!((&budget["maximum"], &budget["observed"]), (&json!(40.0), &json!(true)));
        assert!(budget["blocked_until"].is_string(), "{budget}");
        let refused = post(&api, "shop/acquire", json!({"cost": 4, "max_wait_ms": 86_400_000})).await.json();
        assert_eq!(
            (&refused["allowed"], &refused["delay_ms"]),
            (&json!(false), &Value::Null),
            "no points are restored"
        );
        let rows = api.audit_rows("budgets.observe").await;
        assert_eq!((rows.len(), &rows[0]["target"]), (1, &json!("shop")));
        let detail = "available 3, maximum 40, restore_per_second 0, retry_after_ms 60000";
        assert_eq!(rows[0]["detail"], detail);
    });
}

#[test]
fn spend_survives_a_restart() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let api = SqliteApi::open(&folder).await;
        post(&api, "shop/acquire", json!({"cost": 12.5})).await;
        api.services.spend.save().await;
        api.close().await;
        let api = SqliteApi::open(&folder).await;
        let spend = get_budget(&api, "shop?hours=2").await["spend"].clone();
        assert_eq!((&spend[0]["points"], &spend[0]["calls"]), (&json!(12.5), &json!(1)), "{spend}");
    });
}

#[test]
fn all_errors_are_reported_and_nothing_changes() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let api = SqliteApi::open(&folder).await;
        let invalid_fields = async |path: &str, body: Value| {
            post(&api, path, body).await.assert_problem(400, "bad-request").invalid_fields()
        };
        let acquire = json!({"cost": 0, "max_wait_ms": -1, "colour": "red"});
        assert_eq!(invalid_fields("shop/acquire", acquire).await, ["cost", "max_wait_ms", "colour"]);
        assert_eq!(invalid_fields("shop/acquire", json!({"cost": 1_001})).await, ["cost"], "more than the maximum");
        for cost in [json!("NaN"), json!("inf"), json!(-1), json!(1e12), json!([1])] {
            assert_eq!(invalid_fields("shop/acquire", json!({"cost": cost})).await, ["cost"]);
        }
        let observation =
            json!({"available": -1, "maximum": 0, "restore_per_second": "x", "retry_after_ms": 1.5, "age_ms": 60_001});
        let fields = ["available", "maximum", "restore_per_second", "retry_after_ms", "age_ms"];
        assert_eq!(invalid_fields("shop/observe", observation).await, fields);
        post(&api, "shop/observe", json!({})).await.assert_problem(400, "bad-request");
        post(&api, "shop/observe", json!({"age_ms": 5})).await.assert_problem(400, "bad-request");
        assert_eq!(invalid_fields("Shop/acquire", json!({})).await, ["name"]);
        api.request("GET", "/v1/budgets/none", Value::Null).await.assert_problem(404, "not-found");
        api.request("GET", "/v1/budgets/shop?hours=0", Value::Null).await.assert_problem(400, "bad-request");
        // At most three budgets exist.
        for name in ["a", "b"] {
            assert_eq!(post(&api, &format!("{name}/acquire"), json!({})).await.status, 200);
        }
        post(&api, "c/acquire", json!({})).await.assert_problem(409, "conflict");
        post(&api, "c/observe", json!({"available": 1})).await.assert_problem(409, "conflict");
        assert!(api.audit_rows("budgets.observe").await.is_empty());
        assert!(get_budget(&api, "shop").await["spend"].as_array().unwrap().is_empty());
    });
}
