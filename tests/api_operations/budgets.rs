//! Named budgets, over the listener.

use serde_json::{Value, json};

use super::{Answer, run, sqlite::OnSqlite};

async fn post(api: &OnSqlite, path: &str, body: Value) -> Answer {
    api.ask("POST", &format!("/v1/budgets/{path}"), body).await
}

async fn show(api: &OnSqlite, name: &str) -> Value {
    let answer = api.ask("GET", &format!("/v1/budgets/{name}"), Value::Null).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

#[test]
fn a_cost_is_taken_or_booked_or_refused_and_the_budget_says_what_is_left() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let api = OnSqlite::open(&folder).await;
        let all = post(&api, "shop/acquire", json!({"cost": 1_000, "max_wait_ms": 0})).await.json();
        assert_eq!((&all["allowed"], &all["delay_ms"]), (&json!(true), &json!(0)));
        let later = post(&api, "shop/acquire", json!({"cost": 100, "max_wait_ms": 10_000})).await.json();
        let delay = later["delay_ms"].as_u64().unwrap();
        assert!(later["allowed"] == true && (1..=2_000).contains(&delay), "{later}");
        let refused = post(&api, "shop/acquire", json!({"cost": 500.5, "max_wait_ms": 0})).await.json();
        assert!(refused["allowed"] == false && refused["delay_ms"].as_u64().unwrap() > 2_000, "{refused}");
        let standing = show(&api, "shop").await;
        assert_eq!((&standing["maximum"], &standing["restore_per_second"]), (&json!(1_000.0), &json!(50.0)));
        assert_eq!((&standing["kept"], &standing["observed"]), (&json!("alone"), &json!(false)));
        let spend = &standing["spend"][0];
        assert_eq!((&spend["points"], &spend["calls"]), (&json!(1_100.0), &json!(2)), "refused requests are not spent");
        assert!(spend["hour"].as_str().unwrap().ends_with(":00:00.000Z"), "{spend}");
        // The cost is one point by default, and without a body.
        let one = api.ask("POST", "/v1/budgets/other/acquire", Value::Null).await.json();
        assert_eq!((&one["allowed"], &one["remaining"]), (&json!(true), &json!(9.0)));
        let listed = api.ask("GET", "/v1/budgets", Value::Null).await.json();
        let names: Vec<_> = listed["budgets"].as_array().unwrap().iter().map(|one| one["name"].clone()).collect();
        assert_eq!((names, &listed["next"]), (vec![json!("other"), json!("shop")], &Value::Null));
        assert_eq!(api.audit_of("budgets.observe").await.len(), 0, "an acquire is not a configuration change");
    });
}

#[test]
fn what_an_upstream_reports_takes_the_place_of_what_was_set_and_leaves_one_row() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let api = OnSqlite::open(&folder).await;
        let seen =
            json!({"available": 3, "maximum": 40, "restore_per_second": 0, "retry_after_ms": 60_000, "age_ms": 5});
        let standing = post(&api, "shop/observe", seen).await;
        assert_eq!(standing.status, 200, "{standing:?}");
        let standing = standing.json();
        assert_eq!((&standing["maximum"], &standing["observed"]), (&json!(40.0), &json!(true)));
        assert!(standing["blocked_until"].is_string(), "{standing}");
        let never = post(&api, "shop/acquire", json!({"cost": 4, "max_wait_ms": 86_400_000})).await.json();
        assert_eq!((&never["allowed"], &never["delay_ms"]), (&json!(false), &Value::Null), "no points are restored");
        let rows = api.audit_of("budgets.observe").await;
        assert_eq!((rows.len(), &rows[0]["target"]), (1, &json!("shop")));
        let detail = "available 3, maximum 40, restore_per_second 0, retry_after_ms 60000";
        assert_eq!(rows[0]["detail"], detail);
    });
}

#[test]
fn what_was_spent_is_there_after_a_restart() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let api = OnSqlite::open(&folder).await;
        post(&api, "shop/acquire", json!({"cost": 12.5})).await;
        api.hall.spend.keep().await;
        api.close().await;
        let api = OnSqlite::open(&folder).await;
        let spend = show(&api, "shop?hours=2").await["spend"].clone();
        assert_eq!((&spend[0]["points"], &spend[0]["calls"]), (&json!(12.5), &json!(1)), "{spend}");
    });
}

#[test]
fn everything_that_is_wrong_is_named_and_changes_nothing() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let api = OnSqlite::open(&folder).await;
        let wrong = async |path: &str, body: Value| post(&api, path, body).await.is_problem(400, "bad-request").wrong();
        let ask = json!({"cost": 0, "max_wait_ms": -1, "colour": "red"});
        assert_eq!(wrong("shop/acquire", ask).await, ["cost", "max_wait_ms", "colour"]);
        assert_eq!(wrong("shop/acquire", json!({"cost": 1_001})).await, ["cost"], "more than the maximum");
        for cost in [json!("NaN"), json!("inf"), json!(-1), json!(1e12), json!([1])] {
            assert_eq!(wrong("shop/acquire", json!({"cost": cost})).await, ["cost"]);
        }
        let seen =
            json!({"available": -1, "maximum": 0, "restore_per_second": "x", "retry_after_ms": 1.5, "age_ms": 60_001});
        let fields = ["available", "maximum", "restore_per_second", "retry_after_ms", "age_ms"];
        assert_eq!(wrong("shop/observe", seen).await, fields);
        post(&api, "shop/observe", json!({})).await.is_problem(400, "bad-request");
        post(&api, "shop/observe", json!({"age_ms": 5})).await.is_problem(400, "bad-request");
        assert_eq!(wrong("Shop/acquire", json!({})).await, ["name"]);
        api.ask("GET", "/v1/budgets/none", Value::Null).await.is_problem(404, "not-found");
        api.ask("GET", "/v1/budgets/shop?hours=0", Value::Null).await.is_problem(400, "bad-request");
        // At most three budgets exist.
        for name in ["a", "b"] {
            assert_eq!(post(&api, &format!("{name}/acquire"), json!({})).await.status, 200);
        }
        post(&api, "c/acquire", json!({})).await.is_problem(409, "conflict");
        post(&api, "c/observe", json!({"available": 1})).await.is_problem(409, "conflict");
        assert!(api.audit_of("budgets.observe").await.is_empty());
        assert!(show(&api, "shop").await["spend"].as_array().unwrap().is_empty());
    });
}
