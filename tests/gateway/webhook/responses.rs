//! Responses of a brain, and their handling.

use std::time::Duration;

use guildhall_actors::ports::WebhookResponse;
use guildhall_testkit::brain::{Action, Brain, respond};
use serde_json::json;

use super::fixture::{
    SHORT_TIMEOUT, TEST_TIMEOUT, call_webhook, call_webhook_with_timeout, config, disabled_breaker, expect_no_retry,
    expect_retry_later, run, target, webhooks, webhooks_with,
};

async fn brain_with(action: Action) -> (Brain, guildhall::webhook::Webhooks) {
    let brain = Brain::always(action).await;
    let webhooks = webhooks(vec![target("greet", &brain.url())]);
    (brain, webhooks)
}

#[test]
fn response_without_a_body_has_no_effect() {
    run(async {
        for action in [
            respond(204, "", ""),
            respond(200, "", ""),
            respond(202, "", "{}"),
            Action::Respond("HTTP/1.1 204 No Content\r\n\r\n".to_owned()),
            Action::RespondAndClose("HTTP/1.1 200 OK\r\n\r\n".to_owned()),
        ] {
            let (_brain, webhooks) = brain_with(action.clone()).await;
            assert_eq!(call_webhook(&webhooks, "greet").await, Ok(WebhookResponse::default()), "{action:?}");
        }
    });
}

#[test]
fn response_is_parsed_completely() {
    run(async {
        let body = json!({
            "operations": [{"kind": "assign_role", "payload": {"user_id": "1", "role_id": "2"}}],
            "reply": {"content": "hello"},
            "set": {"sess:profile:1": {"value": {"step": 2}}},
            "cooldown": {"key": "greet:1", "for_ms": 5_000},
        });
        let (_brain, webhooks) = brain_with(respond(200, "", &body.to_string())).await;
        let response = call_webhook(&webhooks, "greet").await.unwrap();
        assert_eq!(json!(response.operations), body["operations"]);
        assert_eq!(response.reply.as_ref(), Some(&body["reply"]));
        let ttl = Some(Duration::from_secs(15 * 60));
        assert_eq!(response.set, [("sess:profile:1".to_owned(), json!({"step": 2}), ttl)]);
        assert_eq!(response.cooldown, Some(("greet:1".to_owned(), Duration::from_secs(5))));
    });
}

#[test]
fn transient_failures_are_retried_after_retry_after() {
    run(async {
        for status in [408, 425, 429, 500, 502, 503, 504] {
            let (_brain, webhooks) = brain_with(respond(status, "retry-after: 7\r\n", "{}")).await;
            let (reason, wait) = expect_retry_later(call_webhook(&webhooks, "greet").await);
            assert!(reason.contains(&status.to_string()), "{reason}");
            assert_eq!(wait, Some(Duration::from_secs(7)));
        }
        let (_brain, webhooks) = brain_with(respond(429, "retry-after: 86400\r\n", "")).await;
        assert_eq!(expect_retry_later(call_webhook(&webhooks, "greet").await).1, Some(config().max_retry_after));
        let (_brain, webhooks) = brain_with(respond(500, "", "")).await;
        assert_eq!(expect_retry_later(call_webhook(&webhooks, "greet").await).1, None);
    });
}

#[test]
fn permanent_failures_are_not_retried() {
    run(async {
        for (status, expected) in
            [(400, "400"), (401, "401"), (403, "403"), (404, "404"), (410, "permanently gone"), (422, "422")]
        {
            let (_brain, webhooks) = brain_with(respond(status, "retry-after: 7\r\n", "{}")).await;
            let reason = expect_no_retry(call_webhook(&webhooks, "greet").await);
            assert!(reason.contains(expected), "{reason}");
        }
    });
}

#[test]
fn redirects_are_not_followed() {
    run(async {
        let elsewhere = Brain::always(respond(200, "", "")).await;
        for status in [301, 302, 303, 307, 308] {
            let (_brain, webhooks) =
                brain_with(respond(status, &format!("location: {}\r\n", elsewhere.url()), "")).await;
            let reason = expect_no_retry(call_webhook(&webhooks, "greet").await);
            assert!(reason.contains(&status.to_string()) && reason.contains("not followed"), "{reason}");
        }
        assert_eq!(elsewhere.received().connections, 0);
    });
}

#[test]
fn too_large_response_is_not_read_completely() {
    run(async {
        let size = 10 * 1024 * 1024;
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {size}\r\n\r\n");
        // The first announces its length and then sends nothing: reading on would wait forever.
        for action in [Action::RespondAndHang(head), Action::Stream(size)] {
            let (_brain, webhooks) = brain_with(action).await;
            let reason = expect_no_retry(call_webhook(&webhooks, "greet").await);
            assert!(reason.contains("larger than 1048576 bytes"), "{reason}");
        }
        let (_brain, webhooks) = brain_with(Action::Stream(1024 * 1024)).await;
        assert_eq!(call_webhook(&webhooks, "greet").await, Ok(WebhookResponse::default()), "exactly at the limit");
    });
}

#[test]
fn invalid_response_is_refused_with_all_errors() {
    run(async {
        for (body, parts) in [
            ("ok", &["not valid JSON"][..]),
            (r#"{"operations": ["#, &["not valid JSON"]),
            ("[]", &["a list, not an object"]),
            (
                r#"{"operations": {}, "reply": 5, "extra": 1}"#,
                &["operations: ", "reply: ", "extra: is not a known field"],
            ),
        ] {
            let (_brain, webhooks) = brain_with(respond(200, "", body)).await;
            let reason = expect_no_retry(call_webhook(&webhooks, "greet").await);
            assert!(parts.iter().all(|part| reason.contains(part)), "{reason}");
        }
        let (_brain, webhooks) = brain_with(respond(200, "content-encoding: gzip\r\n", "{}")).await;
        let reason = expect_no_retry(call_webhook(&webhooks, "greet").await);
        assert!(reason.contains("encoded (gzip)"), "{reason}");
    });
}

#[test]
fn hanging_brain_times_out() {
    run(async {
        for so_far in ["", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{"] {
            let (_brain, webhooks) = brain_with(Action::RespondAndHang(so_far.to_owned())).await;
            let (reason, wait) = expect_retry_later(call_webhook_with_timeout(&webhooks, "greet", SHORT_TIMEOUT).await);
            assert!(reason.contains("did not respond within 150 ms"), "{reason}");
            assert_eq!(wait, None);
        }
    });
}

#[test]
fn broken_connection_is_retried_later() {
    run(async {
        for so_far in ["", "HTTP/1.1 2", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{", "this is not HTTP\r\n\r\n"] {
            let (brain, webhooks) = brain_with(Action::RespondAndClose(so_far.to_owned())).await;
            let (reason, _) = expect_retry_later(call_webhook(&webhooks, "greet").await);
            assert!(reason.contains("connection to the webhook failed"), "{so_far:?}: {reason}");
            assert_eq!(brain.received().requests.len(), 1, "it is not sent twice");
        }
    });
}

#[test]
fn refused_connection_is_retried_later() {
    run(async {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        drop(listener);
        let (reason, _) = expect_retry_later(call_webhook(&webhooks(vec![target("greet", &url)]), "greet").await);
        assert!(reason.contains("cannot connect to the webhook") && reason.contains("refused"), "{reason}");
    });
}

#[test]
fn connections_are_reused_except_after_a_timeout() {
    run(async {
        let brain = Brain::always(respond(200, "", "{}")).await;
        let reusing = webhooks(vec![target("greet", &brain.url())]);
        for _ in 0..20 {
            call_webhook(&reusing, "greet").await.unwrap();
        }
        assert!(brain.received().connections < 20, "{}", brain.received().connections);

        let brain = Brain::start(|before| match before {
            0 => Action::RespondAndHang("HTTP/1.1 200 OK\r\n".to_owned()),
            _ => respond(200, "", "{}"),
        });
        let brain = brain.await;
        let webhooks = webhooks(vec![target("greet", &brain.url())]);
        expect_retry_later(call_webhook_with_timeout(&webhooks, "greet", SHORT_TIMEOUT).await);
        call_webhook(&webhooks, "greet").await.unwrap();
        assert_eq!(brain.received().connections, 2);
    });
}

#[test]
fn idle_connections_are_closed() {
    run(async {
        let brain = Brain::always(respond(200, "", "{}")).await;
        let short = guildhall::webhook::WebhookConfig { pool_idle: Duration::ZERO, ..config() };
        let names = super::fixture::FakeResolver::empty();
        let webhooks = webhooks_with(vec![target("greet", &brain.url())], &short, disabled_breaker(), names);
        for _ in 0..5 {
            call_webhook(&webhooks, "greet").await.unwrap();
        }
        assert_eq!(brain.received().connections, 5);
    });
}

#[test]
fn handler_without_a_webhook_fails() {
    run(async {
        let reason = expect_no_retry(call_webhook_with_timeout(&webhooks(Vec::new()), "nobody", TEST_TIMEOUT).await);
        assert!(reason.contains("has no webhook"), "{reason}");
    });
}
