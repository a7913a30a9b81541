//! Responses of a brain, and their handling.

use std::time::Duration;

use guildhall_actors::ports::WebhookResponse;
use serde_json::json;

use crate::brain::{Act, Brain, says};
use crate::stage::{SOON, STUCK, ask, ask_within, config, later, never, patient, run, target, webhooks, webhooks_with};

async fn answered(act: Act) -> (Brain, guildhall::webhook::Webhooks) {
    let brain = Brain::always(act).await;
    let webhooks = webhooks(vec![target("greet", &brain.url())]);
    (brain, webhooks)
}

#[test]
fn an_answer_without_a_body_says_nothing() {
    run(async {
        for act in [
            says(204, "", ""),
            says(200, "", ""),
            says(202, "", "{}"),
            Act::Says("HTTP/1.1 204 No Content\r\n\r\n".to_owned()),
            Act::SaysAndCloses("HTTP/1.1 200 OK\r\n\r\n".to_owned()),
        ] {
            let (_brain, webhooks) = answered(act.clone()).await;
            assert_eq!(ask(&webhooks, "greet").await, Ok(WebhookResponse::default()), "{act:?}");
        }
    });
}

#[test]
fn what_a_brain_answers_arrives_whole() {
    run(async {
        let answer = json!({
            "operations": [{"kind": "assign_role", "payload": {"user_id": "1", "role_id": "2"}}],
            "reply": {"content": "hello"},
            "set": {"sess:profile:1": {"value": {"step": 2}}},
            "cooldown": {"key": "greet:1", "for_ms": 5_000},
        });
        let (_brain, webhooks) = answered(says(200, "", &answer.to_string())).await;
        let said = ask(&webhooks, "greet").await.unwrap();
        assert_eq!(json!(said.operations), answer["operations"]);
        assert_eq!(said.reply.as_ref(), Some(&answer["reply"]));
        let kept = Some(Duration::from_secs(15 * 60));
        assert_eq!(said.set, [("sess:profile:1".to_owned(), json!({"step": 2}), kept)]);
        assert_eq!(said.cooldown, Some(("greet:1".to_owned(), Duration::from_secs(5))));
    });
}

#[test]
fn what_may_be_better_next_time_is_asked_again_and_not_before_the_brain_says() {
    run(async {
        for status in [408, 425, 429, 500, 502, 503, 504] {
            let (_brain, webhooks) = answered(says(status, "retry-after: 7\r\n", "{}")).await;
            let (why, wait) = later(ask(&webhooks, "greet").await);
            assert!(why.contains(&status.to_string()), "{why}");
            assert_eq!(wait, Some(Duration::from_secs(7)));
        }
        let (_brain, webhooks) = answered(says(429, "retry-after: 86400\r\n", "")).await;
        assert_eq!(later(ask(&webhooks, "greet").await).1, Some(config().max_retry_after));
        let (_brain, webhooks) = answered(says(500, "", "")).await;
        assert_eq!(later(ask(&webhooks, "greet").await).1, None);
    });
}

#[test]
fn what_would_be_the_same_next_time_is_not_asked_again() {
    run(async {
        for (status, says_why) in
            [(400, "400"), (401, "401"), (403, "403"), (404, "404"), (410, "permanently gone"), (422, "422")]
        {
            let (_brain, webhooks) = answered(says(status, "retry-after: 7\r\n", "{}")).await;
            let why = never(ask(&webhooks, "greet").await);
            assert!(why.contains(says_why), "{why}");
        }
    });
}

#[test]
fn a_brain_that_points_elsewhere_is_not_followed() {
    run(async {
        let elsewhere = Brain::always(says(200, "", "")).await;
        for status in [301, 302, 303, 307, 308] {
            let (_brain, webhooks) = answered(says(status, &format!("location: {}\r\n", elsewhere.url()), "")).await;
            let why = never(ask(&webhooks, "greet").await);
            assert!(why.contains(&status.to_string()) && why.contains("not followed"), "{why}");
        }
        assert_eq!(elsewhere.seen().connections, 0);
    });
}

#[test]
fn an_answer_that_is_too_large_is_not_read_to_its_end() {
    run(async {
        let ten = 10 * 1024 * 1024;
        let told = format!("HTTP/1.1 200 OK\r\ncontent-length: {ten}\r\n\r\n");
        // The first announces its length and then sends nothing: reading on would wait forever.
        for act in [Act::SaysAndHangs(told), Act::Pours(ten)] {
            let (_brain, webhooks) = answered(act).await;
            let why = never(ask(&webhooks, "greet").await);
            assert!(why.contains("larger than 1048576 bytes"), "{why}");
        }
        let (_brain, webhooks) = answered(Act::Pours(1024 * 1024)).await;
        assert_eq!(ask(&webhooks, "greet").await, Ok(WebhookResponse::default()), "exactly at the limit");
    });
}

#[test]
fn an_answer_that_cannot_be_used_is_refused_with_all_that_is_wrong() {
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
            let (_brain, webhooks) = answered(says(200, "", body)).await;
            let why = never(ask(&webhooks, "greet").await);
            assert!(parts.iter().all(|part| why.contains(part)), "{why}");
        }
        let (_brain, webhooks) = answered(says(200, "content-encoding: gzip\r\n", "{}")).await;
        let why = never(ask(&webhooks, "greet").await);
        assert!(why.contains("encoded (gzip)"), "{why}");
    });
}

#[test]
fn a_brain_that_hangs_is_left_when_its_time_is_over() {
    run(async {
        for so_far in ["", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{"] {
            let (_brain, webhooks) = answered(Act::SaysAndHangs(so_far.to_owned())).await;
            let (why, wait) = later(ask_within(&webhooks, "greet", SOON).await);
            assert!(why.contains("did not respond within 150 ms"), "{why}");
            assert_eq!(wait, None);
        }
    });
}

#[test]
fn a_connection_that_breaks_is_tried_again_later() {
    run(async {
        for so_far in ["", "HTTP/1.1 2", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{", "this is not HTTP\r\n\r\n"] {
            let (brain, webhooks) = answered(Act::SaysAndCloses(so_far.to_owned())).await;
            let (why, _) = later(ask(&webhooks, "greet").await);
            assert!(why.contains("connection to the webhook failed"), "{so_far:?}: {why}");
            assert_eq!(brain.seen().requests.len(), 1, "it is not sent twice");
        }
    });
}

#[test]
fn a_port_that_nobody_listens_on_is_tried_again_later() {
    run(async {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        drop(listener);
        let (why, _) = later(ask(&webhooks(vec![target("greet", &url)]), "greet").await);
        assert!(why.contains("cannot connect to the webhook") && why.contains("refused"), "{why}");
    });
}

#[test]
fn connections_are_used_again_but_not_one_whose_answer_was_given_up() {
    run(async {
        let brain = Brain::always(says(200, "", "{}")).await;
        let calm = webhooks(vec![target("greet", &brain.url())]);
        for _ in 0..20 {
            ask(&calm, "greet").await.unwrap();
        }
        assert!(brain.seen().connections < 20, "{}", brain.seen().connections);

        let brain = Brain::start(|before| match before {
            0 => Act::SaysAndHangs("HTTP/1.1 200 OK\r\n".to_owned()),
            _ => says(200, "", "{}"),
        });
        let brain = brain.await;
        let webhooks = webhooks(vec![target("greet", &brain.url())]);
        later(ask_within(&webhooks, "greet", SOON).await);
        ask(&webhooks, "greet").await.unwrap();
        assert_eq!(brain.seen().connections, 2);
    });
}

#[test]
fn a_connection_that_nobody_used_for_long_is_closed() {
    run(async {
        let brain = Brain::always(says(200, "", "{}")).await;
        let short = guildhall::webhook::WebhookConfig { pool_idle: Duration::ZERO, ..config() };
        let names = crate::stage::Names::none();
        let webhooks = webhooks_with(vec![target("greet", &brain.url())], &short, patient(), names);
        for _ in 0..5 {
            ask(&webhooks, "greet").await.unwrap();
        }
        assert_eq!(brain.seen().connections, 5);
    });
}

#[test]
fn a_handler_that_has_no_webhook_is_told_so() {
    run(async {
        let why = never(ask_within(&webhooks(Vec::new()), "nobody", STUCK).await);
        assert!(why.contains("has no webhook"), "{why}");
    });
}
