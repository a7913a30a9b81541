//! Shards, over the listener.

use serde_json::{Value, json};

use super::{run, sqlite_fixture::SqliteApi};

#[test]
fn shards_are_listed_with_their_status_and_owner() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let api = SqliteApi::open(&folder).await;
        let listed = api.request("GET", "/v1/shards", Value::Null).await.json();
        assert_eq!((&listed["total"], &listed["next"]), (&json!(3), &Value::Null));
        let shards = listed["shards"].as_array().unwrap();
        let instance = shards[0]["instance"].clone();
        assert!(instance.is_string(), "{listed}");
        let connected = json!({
            "id": 0, "state": "connected", "session": "a-session", "sequence": 120, "confirmed": 117, "lag": 3,
            "latency_ms": 41, "instance": instance, "resumes": 2, "identifies": 1,
        });
        assert_eq!(shards[0], connected);
        assert_eq!(
            (&shards[1]["state"], &shards[1]["confirmed"], &shards[1]["lag"]),
            (&json!("resuming"), &Value::Null, &Value::Null)
        );
        assert_eq!((&shards[2]["state"], &shards[2]["instance"]), (&json!("unclaimed"), &Value::Null));
        let page = api.request("GET", "/v1/shards?limit=2", Value::Null).await.json();
        assert_eq!((page["shards"].as_array().unwrap().len(), &page["next"]), (2, &json!("2")));
        let rest = api.request("GET", "/v1/shards?limit=2&cursor=2", Value::Null).await.json();
        assert_eq!((&rest["shards"][0]["id"], &rest["next"]), (&json!(2), &Value::Null));
        api.request("GET", "/v1/shards?cursor=-2", Value::Null).await.assert_problem(400, "bad-request");
    });
}

#[test]
fn only_own_shards_are_restarted() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let api = SqliteApi::open(&folder).await;
        let restarted = api.request("POST", "/v1/shards/1/restart", Value::Null).await;
        assert_eq!((restarted.status, restarted.json()), (202, json!({"id": 1, "restarting": true})));
        assert_eq!(*api.services.shard_admin.restarted.lock().unwrap(), [1]);
        let rows = api.audit_rows("shards.restart").await;
        assert_eq!((rows.len(), &rows[0]["target"]), (1, &json!("1")));

        let unclaimed = api.request("POST", "/v1/shards/2/restart", Value::Null).await;
        assert_eq!(unclaimed.assert_problem(409, "conflict").json()["instance"], Value::Null);
        api.request("POST", "/v1/shards/3/restart", Value::Null).await.assert_problem(404, "not-found");
        for invalid in ["x", "-1", "4294967296", "1.5"] {
            let response = api.request("POST", &format!("/v1/shards/{invalid}/restart"), Value::Null).await;
            assert_eq!(response.assert_problem(400, "bad-request").invalid_fields(), ["id"], "{invalid}");
        }
        api.request("POST", "/v1/shards/0/restart", json!({"code": 1000})).await.assert_problem(400, "bad-request");
        assert_eq!(api.audit_rows("shards.restart").await.len(), 1);
        assert_eq!(*api.services.shard_admin.restarted.lock().unwrap(), [1]);
    });
}
