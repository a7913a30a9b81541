//! The requests that a brain receives, and their signatures.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use guildhall_testkit::brain::{Brain, Request, respond};
use guildhall_testkit::log::Log;
use sha2::{Digest as _, Sha256};

use super::fixture::{SECRET, call_webhook, run, target, webhooks};

const OTHER_SECRET: &str = "whsec_b3RoZXItb3RoZXItb3RoZXItb3RoZXItb3RoZXI=";

/// RFC 2104, spelt out: an implementation that shares nothing with the one under test.
fn hmac_sha256(key: &[u8], text: &[u8]) -> Vec<u8> {
    let mut block = [0_u8; 64];
    block[..key.len()].copy_from_slice(key);
    let inner = Sha256::new().chain_update(block.map(|byte| byte ^ 0x36)).chain_update(text).finalize();
    Sha256::new().chain_update(block.map(|byte| byte ^ 0x5c)).chain_update(inner).finalize().to_vec()
}

/// Checks a request as a brain with this secret would.
fn is_signed_with(request: &Request, secret: &str) -> bool {
    let key = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
    let (id, at) = (request.header("webhook-id"), request.header("webhook-timestamp"));
    let tag = hmac_sha256(&key, format!("{id}.{at}.{}", request.body).as_bytes());
    let expected = format!("v1,{}", STANDARD.encode(tag));
    request.header("webhook-signature").split(' ').any(|signature| signature == expected)
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

#[test]
fn request_is_a_signed_post_of_the_event() {
    run(async {
        let brain = Brain::always(respond(204, "", "")).await;
        let webhooks = webhooks(vec![target("greet", &format!("{}?key=a%20b", brain.url()))]);
        let before = unix_seconds();
        call_webhook(&webhooks, "greet").await.unwrap();
        let after = unix_seconds();

        let requests = brain.received().requests;
        let [request] = &requests[..] else { panic!("{requests:?}") };
        assert_eq!(request.line, "POST /hook?key=a%20b HTTP/1.1");
        assert_eq!(request.body, r#"{"event_type":"member.join"}"#);
        assert_eq!(request.header("content-type"), "application/json");
        assert_eq!(request.header("user-agent"), format!("Guildhall/{}", env!("CARGO_PKG_VERSION")));
        assert_eq!(request.header("host"), brain.address.to_string());
        assert_eq!(request.header("webhook-id"), "event:session:7:greet");
        let at: u64 = request.header("webhook-timestamp").parse().unwrap();
        assert!((before..=after).contains(&at), "{at} is not within {before} to {after}");
        assert_eq!(request.header("webhook-signature").split(' ').count(), 1);
        assert!(is_signed_with(request, SECRET) && !is_signed_with(request, OTHER_SECRET));
    });
}

#[test]
fn both_secrets_verify_during_a_rotation() {
    run(async {
        let brain = Brain::always(respond(204, "", "")).await;
        let mut both = target("greet", &brain.url());
        both.secrets.push(OTHER_SECRET.parse().unwrap());
        call_webhook(&webhooks(vec![both]), "greet").await.unwrap();
        let requests = brain.received().requests;
        assert_eq!(requests[0].header("webhook-signature").split(' ').count(), 2);
        assert!(is_signed_with(&requests[0], SECRET) && is_signed_with(&requests[0], OTHER_SECRET));
    });
}

#[test]
fn retried_event_has_the_same_id_and_a_valid_signature() {
    run(async {
        let brain = Brain::start(|before| respond(if before == 0 { 500 } else { 200 }, "", "")).await;
        let webhooks = webhooks(vec![target("greet", &brain.url())]);
        call_webhook(&webhooks, "greet").await.unwrap_err();
        call_webhook(&webhooks, "greet").await.unwrap();
        let requests = brain.received().requests;
        assert_eq!(requests[0].header("webhook-id"), requests[1].header("webhook-id"));
        assert!(requests.iter().all(|request| is_signed_with(request, SECRET)));
    });
}

#[test]
fn secrets_and_paths_are_never_logged() {
    run(async {
        let (log, _guard) = Log::capture(tracing::Level::DEBUG);
        let brain = Brain::start(|before| respond([200, 404, 500][before], "", "")).await;
        let webhooks = webhooks(vec![target("greet", &format!("{}/canary?key=canary", brain.url()))]);
        for _ in 0..3 {
            drop(call_webhook(&webhooks, "greet").await);
        }
        let text = log.text();
        assert!(text.contains("webhook responded") && text.contains("404") && text.contains("500"), "{text}");
        assert!(!text.contains("canary") && !text.contains(SECRET.trim_start_matches("whsec_")), "{text}");
    });
}
