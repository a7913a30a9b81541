//! Bulk requests: submissions of a thousand operations, and dead letters by reason and time.

use guildhall::api::ControlConfig;
use guildhall_core::operation::OperationState;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{
    GUILD, KEY, Response,
    process_fixture::{ApiProcess, StoreLocation},
    role, run,
};

fn operations_path() -> String {
    format!("/v1/guilds/{GUILD}/operations")
}

fn roles(count: usize) -> Vec<Value> {
    (0..count).map(|n| role(&format!("role {n}"))).collect()
}

#[test]
fn batch_of_a_thousand_is_accepted_in_order_or_not_at_all() {
    run(async {
        let api = ApiProcess::open(&StoreLocation::file()).await;
        let mut batch = roles(1_000);
        batch[0] = json!({"kind": "delete_role", "payload": {"role_id": 5}});
        batch[999] = json!({"kind": "make_role"});
        let rejected = api.request("POST", &operations_path(), json!({"operations": batch})).await;
        assert_eq!(
            rejected.assert_problem(422, "invalid-operation").invalid_fields(),
            ["operations[0].payload.role_id", "operations[999].kind"]
        );
        let too_many = api.request("POST", &operations_path(), json!({"operations": roles(1_001)})).await;
        assert!(too_many.assert_problem(422, "invalid-operation").text("detail").contains("1000"), "{too_many:?}");
        let listed = api.request("GET", "/v1/operations", Value::Null).await.json();
        assert_eq!(listed["operations"], json!([]), "all or nothing");

        let accepted = api.request("POST", &operations_path(), json!({"operations": roles(1_000)})).await;
        assert_eq!(accepted.status, 202, "{accepted:?}");
        let ids: Vec<_> =
            accepted.json()["operations"].as_array().unwrap().iter().map(|one| one["id"].clone()).collect();
        let last =
            api.request("GET", &format!("/v1/operations/{}", ids[999].as_str().unwrap()), Value::Null).await.json();
        assert_eq!((&last["seq"], &last["payload"]["name"]), (&json!(1_000), &json!("role 999")));
        let audit = api.request("GET", "/v1/audit?limit=10", Value::Null).await.json();
        assert_eq!(audit["audit"].as_array().unwrap().len(), 1, "one row for all of them: {audit}");
        assert_eq!(audit["audit"][0]["detail"], "1000 operations: create_role");
        api.store.close().await;
    });
}

#[test]
fn submissions_have_their_own_body_limit() {
    run(async {
        let config = ControlConfig { max_body: 10_000, max_submission: 50_000, ..ControlConfig::default() };
        let api = ApiProcess::with(&StoreLocation::file(), config).await;
        let long = |count: usize| {
            let one = json!({"kind": "send_message", "payload": {"channel_id": "5", "content": "x".repeat(1_800)}});
            json!({"operations": vec![one; count]})
        };
        assert_eq!(api.request("POST", &operations_path(), long(20)).await.status, 202);
        api.request("POST", &operations_path(), long(40)).await.assert_problem(413, "body-too-large");
        let filter = json!({"reason": "x".repeat(11_000)});
        api.request("POST", "/v1/dead-letters/discard", filter).await.assert_problem(413, "body-too-large");
        // Without a Content-Length.
        for (count, status) in [(20, 202), (40, 413)] {
            let body = long(count).to_string();
            let mut stream = TcpStream::connect(api.address()).await.unwrap();
            let head = format!(
                "POST {} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: Bearer {KEY}\r\n\
                 Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
                operations_path()
            );
            let chunk = format!("{head}{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
            drop(stream.write_all(chunk.as_bytes()).await);
            let mut response = Vec::new();
            drop(stream.read_to_end(&mut response).await);
            let response = String::from_utf8_lossy(&response).into_owned();
            assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{response}");
        }
        api.store.close().await;
    });
}

#[test]
fn large_submissions_are_limited_and_small_ones_are_not() {
    run(async {
        let config =
            ControlConfig { max_body: 10_000, max_submission: 50_000, max_large_bodies: 1, ..ControlConfig::default() };
        let api = ApiProcess::with(&StoreLocation::file(), config).await;
        // A request that announces a large body and sends it slowly.
        let head = format!(
            "POST {} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: Bearer {KEY}\r\n\
             Content-Type: application/json\r\nContent-Length: 20000\r\n\r\n{{",
            operations_path()
        );
        let large = json!({"operations": roles(300)});
        let (slow, refused) = 'held: loop {
            let mut slow = TcpStream::connect(api.address()).await.unwrap();
            slow.write_all(head.as_bytes()).await.unwrap();
            loop {
                let response = api.request("POST", &operations_path(), large.clone()).await;
                if response.status != 202 {
                    break 'held (slow, response);
                }
                // It arrived while another one was read, and was rejected itself.
                if slow.try_read(&mut [0; 16]).is_ok() {
                    break;
                }
            }
        };
        assert_eq!(refused.assert_problem(503, "busy").header("retry-after").as_deref(), Some("1"));
        assert_eq!(api.request("POST", &operations_path(), role("small")).await.status, 202);
        drop(slow);
        let retry = async { while api.request("POST", &operations_path(), large.clone()).await.status != 202 {} };
        tokio::time::timeout(super::sse::TEST_TIMEOUT, retry).await.unwrap();
        api.store.close().await;
    });
}

/// An API with `count` dead letters, each with its own name. Returns their ids, oldest first.
async fn api_with_dead_letters(count: usize) -> (ApiProcess, Vec<String>) {
    let api = ApiProcess::open(&StoreLocation::file()).await;
    let mut ids = Vec::new();
    for n in 0..count {
        let id = api.create_role(GUILD, &format!("role {n}")).await;
        api.set_state(&id, OperationState::Dead).await;
        ids.push(id);
    }
    (api, ids)
}

fn dead_letter_ids(response: &Response) -> Vec<String> {
    let list = response.json()["dead_letters"].as_array().unwrap().clone();
    list.iter().map(|dead_letter| dead_letter["id"].as_str().unwrap().to_owned()).rev().collect()
}

#[test]
fn dead_letters_are_filtered_by_reason_and_time() {
    run(async {
        let (api, ids) = api_with_dead_letters(2).await;
        // The test clock gives all of them the same time of death.
        for (query, count) in [
            ("reason=missing", 2),
            ("reason=PERMISSIONS", 2),
            ("reason=nobody", 0),
            ("reason=%25", 0),
            ("died_after=2023-11-14T22:13:20Z", 2),
            ("died_after=2023-11-14T22:13:20.006Z", 0),
            ("died_before=2023-11-14T22:13:20.005Z", 0),
            ("died_before=2023-11-14T23:13:20.006%2B01:00", 2),
            ("reason=missing&class=forbidden&died_after=2020-01-01T00:00:00Z&died_before=2100-01-01T00:00:00Z", 2),
        ] {
            let found = dead_letter_ids(&api.request("GET", &format!("/v1/dead-letters?{query}"), Value::Null).await);
            assert_eq!(found.len(), count, "{query}");
            assert!(found.is_empty() || found == ids, "{query}");
        }
        for (query, field) in [("died_after=yesterday", "died_after"), ("reason=", "reason"), ("died=1", "died")] {
            let response = api.request("GET", &format!("/v1/dead-letters?{query}"), Value::Null).await;
            assert_eq!(response.assert_problem(400, "bad-request").invalid_fields(), [field]);
        }
        api.store.close().await;
    });
}

#[test]
fn bulk_redrive_and_discard_leave_one_audit_row_each() {
    run(async {
        let (api, ids) = api_with_dead_letters(5).await;
        let none = api.request("POST", "/v1/dead-letters/redrive", json!({"reason": "nobody"})).await;
        assert_eq!((none.status, &none.json()["redriven"]), (200, &json!(0)));
        let discarded = json!({"reason": "MISSING", "died_before": "2100-01-01T00:00:00Z", "limit": 2});
        let redriven = api.request("POST", "/v1/dead-letters/redrive", discarded).await.json();
        assert_eq!((&redriven["redriven"], &redriven["more"]), (&json!(2), &json!(true)));

        let discard = async |filter: Value| api.request("POST", "/v1/dead-letters/discard", filter).await;
        let discarded = discard(json!({"kind": "create_role", "redriven": false, "limit": 2})).await;
        assert_eq!((discarded.status, discarded.json()), (200, json!({"discarded": 2, "more": true})));
        let remaining = dead_letter_ids(&api.request("GET", "/v1/dead-letters", Value::Null).await);
        assert_eq!(remaining, [&ids[0], &ids[1], &ids[4]].map(Clone::clone), "the oldest that were not redriven");
        assert_eq!(discard(json!({"reason": "nobody"})).await.json(), json!({"discarded": 0, "more": false}));
        assert_eq!(discard(json!({"guild_id": "7"})).await.json()["discarded"], 0);
        let rest = discard(json!({"guild_id": GUILD, "died_after": "2020-01-01T00:00:00Z"})).await.json();
        assert_eq!(rest, json!({"discarded": 3, "more": false}));
        for invalid_filter in
            [json!({"limit": 0}), json!({"limit": 1_001}), json!({"reason": 7, "why": "x"}), json!([])]
        {
            discard(invalid_filter).await.assert_problem(400, "bad-request");
        }

        let audit = api.request("GET", "/v1/audit?action=dead_letters.discard", Value::Null).await.json();
        let rows = audit["audit"].as_array().unwrap();
        assert_eq!(rows.len(), 2, "calls without an effect leave no row: {audit}");
        assert_eq!((&rows[0]["guild_id"], &rows[1]["detail"]), (&json!(GUILD), &json!("kind create_role")));
        let audit = api.request("GET", "/v1/audit?action=dead_letters.redrive", Value::Null).await.json();
        assert_eq!(audit["audit"].as_array().unwrap().len(), 1, "{audit}");
        api.store.close().await;
    });
}

#[test]
fn key_discards_only_visible_dead_letters() {
    run(async {
        let (api, ids) = api_with_dead_letters(2).await;
        let (read_key, _) = api.create_key("default", &["operations:read"]).await;
        let (other_tenant_key, _) = api.create_key("acme", &["operations:write"]).await;
        let (guild_key, _) = api.create_key("default", &["operations:write", "guild:7"]).await;
        let path = "/v1/dead-letters/discard";
        assert_eq!(
            api.request_as(&read_key, "POST", path, json!({})).await.assert_problem(403, "forbidden").text("needs"),
            "operations:write"
        );
        for key in [&other_tenant_key, &guild_key] {
            for filter in [json!({}), json!({"guild_id": GUILD})] {
                assert_eq!(api.request_as(key, "POST", path, filter).await.json()["discarded"], 0);
            }
        }
        assert_eq!(dead_letter_ids(&api.request("GET", "/v1/dead-letters", Value::Null).await), ids);
        api.store.close().await;
    });
}

#[test]
fn operations_are_filtered_by_time() {
    run(async {
        let api = ApiProcess::open(&StoreLocation::file()).await;
        api.create_role(GUILD, "one").await;
        let operation = api.request("GET", "/v1/operations", Value::Null).await.json()["operations"][0].clone();
        let at = operation["created_at"].as_str().unwrap();
        for (query, count) in [
            (format!("created_after={at}"), 1),
            (format!("created_before={at}"), 0),
            (format!("created_after={at}&created_before=2100-01-01T00:00:00Z&guild_id={GUILD}"), 1),
            ("created_after=2100-01-01T00:00:00Z".to_owned(), 0),
        ] {
            let listed = api.request("GET", &format!("/v1/operations?{query}"), Value::Null).await.json();
            assert_eq!(listed["operations"].as_array().unwrap().len(), count, "{query}");
        }
        let response = api.request("GET", "/v1/operations?created_after=1", Value::Null).await;
        assert_eq!(response.assert_problem(400, "bad-request").invalid_fields(), ["created_after"]);
        api.store.close().await;
    });
}
