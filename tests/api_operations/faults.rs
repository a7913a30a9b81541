//! Responses when something behind the API fails.

use std::time::Duration;

use guildhall_core::operation::OperationState;
use serde_json::json;

use super::{Api, GUILD, Setup, call, role, run, store::Fault};

/// Every request that needs the store.
fn requests(id: &str) -> Vec<(&'static str, String, String)> {
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
fn a_store_that_is_not_available_is_told_with_when_to_come_again() {
    run(async {
        let api = Api::start();
        let id = api.create_role("a").await;
        api.store.become_state(&id, OperationState::Dead);
        api.heard();
        api.store.fail(Some(Fault::Unavailable));
        for (method, path, body) in requests(&id) {
            let answer = call(api.address(), method, &path, &[], &body).await;
            let says = answer.is_problem(503, "store-unavailable").text("detail");
            assert!(says.contains("the disk is full"), "{path}: {says}");
            assert_eq!(answer.header("retry-after").as_deref(), Some("1"), "{path}");
        }
        assert!(api.heard().is_empty(), "no notification for what was not stored");
    });
}

#[test]
fn a_store_that_does_not_answer_counts_as_not_available() {
    run(async {
        let mut setup = Setup::default();
        setup.desk.store_within = Duration::from_millis(5);
        let api = setup.start();
        api.store.fail(Some(Fault::Silent));
        for (method, path, body) in requests("01890a5d-ac96-774b-bcce-b302099a8057") {
            let answer = call(api.address(), method, &path, &[], &body).await;
            let says = answer.is_problem(503, "store-unavailable").text("detail");
            assert!(says.contains("within 5 ms"), "{path}: {says}");
        }
    });
}

#[test]
fn what_the_store_cannot_read_is_our_own_fault() {
    run(async {
        let api = Api::start();
        api.store.fail(Some(Fault::Corrupt));
        for (method, path, body) in requests("01890a5d-ac96-774b-bcce-b302099a8057") {
            call(api.address(), method, &path, &[], &body).await.is_problem(500, "internal");
        }
        api.store.fail(Some(Fault::Short));
        api.post("/v1/guilds/1/operations", role("a")).await.is_problem(500, "internal");
        api.store.fail(Some(Fault::Panics));
        api.get("/v1/operations").await.is_problem(500, "internal");
        api.store.fail(None);
        assert_eq!(api.get("/v1/operations").await.status, 200, "the next request works");
    });
}

#[test]
fn requests_past_the_bound_are_turned_away() {
    run(async {
        let mut setup = Setup::default();
        setup.control.calls_most = 1;
        let api = setup.start();
        api.store.fail(Some(Fault::Silent));
        // The second request gets its response first: the first one waits for the store.
        let ask = || Box::pin(call(api.address(), "GET", "/v1/operations", &[], ""));
        let (busy, _waits) = futures_util::future::select(ask(), ask()).await.factor_first();
        assert_eq!(busy.is_problem(503, "busy").header("retry-after").as_deref(), Some("1"));
    });
}

#[test]
fn an_operation_is_accepted_also_if_its_caller_does_not_wait_for_the_answer() {
    use tokio::io::AsyncWriteExt as _;
    run(async {
        let api = Api::start();
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
        let answer = api.post(&path, serde_json::from_str(&body).unwrap()).await;
        assert!(matches!(answer.status, 200 | 202), "{answer:?}");
        assert_eq!(api.store.count(), 1);
    });
}
