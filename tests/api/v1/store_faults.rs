//! Responses when something behind the API fails.

use std::time::Duration;

use guildhall_core::operation::OperationState;
use serde_json::json;

use super::{ApiSetup, GUILD, TestApi, call, memory_store::Fault, role, run};

/// Every request that needs the store.
fn store_requests(id: &str) -> Vec<(&'static str, String, String)> {
    let body = role("a").to_string();
    let none = String::new;
    vec![
        ("POST", format!("/v1/guilds/{GUILD}/operations"), body),
        ("GET", format!("/v1/guilds/{GUILD}"), none()),
        ("POST", format!("/v1/guilds/{GUILD}/pause"), none()),
        ("POST", "/v1/resume".to_owned(), none()),
        ("GET", "/v1/operations".to_owned(), none()),
        ("GET", format!("/v1/operations/{id}"), none()),
        ("POST", format!("/v1/operations/{id}/cancel"), none()),
        ("POST", format!("/v1/operations/{id}/retry"), none()),
        ("GET", "/v1/dead-letters".to_owned(), none()),
        ("GET", format!("/v1/dead-letters/{id}"), none()),
        ("POST", format!("/v1/dead-letters/{id}/redrive"), none()),
        ("POST", "/v1/dead-letters/redrive".to_owned(), "{}".to_owned()),
        ("DELETE", format!("/v1/dead-letters/{id}"), none()),
    ]
}

#[test]
fn unavailable_store_returns_503_with_retry_after() {
    run(async {
        let api = TestApi::start();
        let id = api.create_role("a").await;
        api.store.set_state(&id, OperationState::Dead);
        api.take_notifications();
        api.store.fail(Some(Fault::Unavailable));
        for (method, path, body) in store_requests(&id) {
            let response = call(api.address(), method, &path, &[], &body).await;
            let detail = response.assert_problem(503, "store-unavailable").text("detail");
            assert!(detail.contains("the disk is full"), "{path}: {detail}");
            assert_eq!(response.header("retry-after").as_deref(), Some("1"), "{path}");
        }
        assert!(api.take_notifications().is_empty(), "no notification for what was not stored");
    });
}

#[test]
fn store_timeout_returns_503() {
    run(async {
        let mut setup = ApiSetup::default();
        setup.submission.store_timeout = Duration::from_millis(5);
        let api = setup.start();
        api.store.fail(Some(Fault::Silent));
        for (method, path, body) in store_requests("01890a5d-ac96-774b-bcce-b302099a8057") {
            let response = call(api.address(), method, &path, &[], &body).await;
            let detail = response.assert_problem(503, "store-unavailable").text("detail");
            assert!(detail.contains("within 5 ms"), "{path}: {detail}");
        }
    });
}

#[test]
fn corrupt_row_returns_500() {
    run(async {
        let api = TestApi::start();
        api.store.fail(Some(Fault::Corrupt));
        for (method, path, body) in store_requests("01890a5d-ac96-774b-bcce-b302099a8057") {
            call(api.address(), method, &path, &[], &body).await.assert_problem(500, "internal");
        }
        api.store.fail(Some(Fault::Short));
        api.post("/v1/guilds/1/operations", role("a")).await.assert_problem(500, "internal");
        api.store.fail(Some(Fault::Panics));
        api.get("/v1/operations").await.assert_problem(500, "internal");
        api.store.fail(None);
        assert_eq!(api.get("/v1/operations").await.status, 200, "the next request works");
    });
}

#[test]
fn requests_beyond_the_limit_return_503() {
    run(async {
        let mut setup = ApiSetup::default();
        setup.control.max_calls = 1;
        let api = setup.start();
        api.store.fail(Some(Fault::Silent));
        // The second request gets its response first: the first one waits for the store.
        let send = || Box::pin(call(api.address(), "GET", "/v1/operations", &[], ""));
        let (busy, _pending) = futures_util::future::select(send(), send()).await.factor_first();
        assert_eq!(busy.assert_problem(503, "busy").header("retry-after").as_deref(), Some("1"));
    });
}

#[test]
fn operation_of_a_disconnected_caller_is_stored_once() {
    use tokio::io::AsyncWriteExt as _;
    run(async {
        let api = TestApi::start();
        let body = json!({"kind": "create_role", "payload": {"name": "a"}, "key": "k"}).to_string();
        let request = format!(
            "POST /v1/guilds/{GUILD}/operations HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            super::KEY,
            body.len()
        );
        let mut stream = tokio::net::TcpStream::connect(api.address()).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        drop(stream);
        // Whether it arrived or not: with its key it is stored once.
        let path = format!("/v1/guilds/{GUILD}/operations");
        let response = api.post(&path, serde_json::from_str(&body).unwrap()).await;
        assert!(matches!(response.status, 200 | 202), "{response:?}");
        assert_eq!(api.store.count(), 1);
    });
}
