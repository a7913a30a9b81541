//! Which responses may have an effect: by their connection, and by their signature.

use std::net::{IpAddr, UdpSocket};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use guildhall::webhook::{Secret, WebhookTarget, Webhooks};
use guildhall_actors::ports::WebhookResponse;
use guildhall_core::event::handler::ResponsePolicy;
use guildhall_testkit::brain::{Action, Brain, Request, respond};
use metrics_exporter_prometheus::PrometheusBuilder;
use ring::hmac;
use serde_json::json;

use super::fixture::{
    FakeResolver, SECRET, call_webhook, config, disabled_breaker, expect_no_retry, run, target, webhooks, webhooks_with,
};

const OTHER_SECRET: &str = "whsec_OTg3NjU0MzIxMDk4NzY1NDMyMTA5ODc2NTQzMjEw";

/// Everything that a response may contain, one at a time. Each of them has an effect.
fn bodies_with_effects() -> Vec<String> {
    [
        json!({"operations": [{"kind": "assign_role", "payload": {"user_id": "1", "role_id": "2"}}]}),
        json!({"reply": {"content": "hello"}}),
        json!({"set": {"k": {"value": 1}}}),
        json!({"set": {"k": {"value": null}}}),
        json!({"cooldown": {"key": "k", "for_ms": 1}}),
    ]
    .iter()
    .map(ToString::to_string)
    .collect()
}

/// An address of this machine that is not loopback. Nothing is sent to find it.
fn non_loopback_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("198.51.100.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|address| !address.is_loopback() && !address.is_unspecified())
}

fn with_policy(url: &str, answers: ResponsePolicy) -> Webhooks {
    webhooks(vec![WebhookTarget { response_policy: answers, ..target("greet", url) }])
}

fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
}

/// A response signed as the documentation says.
fn signed_response(secret: &str, id: &str, at: u64, body: &str) -> Action {
    let key = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), format!("{id}.{at}.{body}").as_bytes());
    let signature = STANDARD.encode(tag);
    let headers = format!("webhook-id: {id}\r\nwebhook-timestamp: {at}\r\nwebhook-signature: v1,{signature}\r\n");
    respond(200, &headers, body)
}

fn response_id(request: &Request) -> String {
    format!("{}:{}:answer", request.header("webhook-id"), request.header("webhook-timestamp"))
}

/// A brain that signs this body with this secret.
async fn signing_brain(secret: &'static str, body: &str) -> Brain {
    let body = body.to_owned();
    Brain::replying(move |request| signed_response(secret, &response_id(request), now(), &body)).await
}

#[test]
fn unsigned_response_over_plain_http_has_no_effect() {
    let Some(address) = non_loopback_address() else {
        return eprintln!("skipped: this machine has only loopback addresses");
    };
    let recorder = PrometheusBuilder::new().build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    run(async {
        for body in bodies_with_effects() {
            let brain = Brain::replying_at(address, move |_| respond(200, "", &body)).await;
            let reason =
                expect_no_retry(call_webhook(&with_policy(&brain.url(), ResponsePolicy::Secure), "greet").await);
            assert!(
                reason.contains(&format!("plain http from {address}")) && reason.contains("not signed"),
                "{reason}"
            );
            call_webhook(&with_policy(&brain.url(), ResponsePolicy::Any), "greet").await.unwrap();
        }
        for nothing in ["", "{}", r#"{"operations": [], "set": {}, "reply": null}"#] {
            let brain = Brain::replying_at(address, move |_| respond(200, "", nothing)).await;
            let response = call_webhook(&with_policy(&brain.url(), ResponsePolicy::Secure), "greet").await;
            assert_eq!(response, Ok(WebhookResponse::default()), "{nothing}");
        }
        let body = bodies_with_effects().remove(0);
        let brain =
            Brain::replying_at(address, move |request| signed_response(SECRET, &response_id(request), now(), &body))
                .await;
        call_webhook(&with_policy(&brain.url(), ResponsePolicy::Secure), "greet").await.unwrap();
    });
    let line = r#"guildhall_webhook_requests_total{handler="greet",outcome="untrusted"} 5"#;
    assert!(recorder.handle().render().contains(line), "{}", recorder.handle().render());
}

/// Only the address of the connection counts, not the name.
#[test]
fn loopback_is_decided_by_the_connected_address() {
    let Some(address) = non_loopback_address() else {
        return eprintln!("skipped: this machine has only loopback addresses");
    };
    run(async {
        let body = bodies_with_effects().remove(0);
        let brain = Brain::replying_at([0, 0, 0, 0].into(), move |_| respond(200, "", &body)).await;
        let url = format!("http://brain.test:{}/", brain.address.port());
        for (resolved, accepted) in
            [("127.0.0.1", true), ("127.8.8.8", true), ("0.0.0.0", true), (address.to_string().as_str(), false)]
        {
            let resolver = FakeResolver::returning(&[&[resolved]]);
            let webhooks = webhooks_with(vec![target("greet", &url)], &config(), disabled_breaker(), resolver);
            assert_eq!(call_webhook(&webhooks, "greet").await.is_ok(), accepted, "{resolved}");
        }
        // A name such as localhost makes no difference.
        let url = format!("http://localhost:{}/", brain.address.port());
        let resolver = FakeResolver::returning(&[&[&address.to_string()]]);
        expect_no_retry(
            call_webhook(&webhooks_with(vec![target("greet", &url)], &config(), disabled_breaker(), resolver), "greet")
                .await,
        );
    });
}

#[test]
fn loopback_does_not_replace_a_required_signature() {
    run(async {
        for body in bodies_with_effects() {
            let brain = Brain::always(respond(200, "", &body)).await;
            call_webhook(&with_policy(&brain.url(), ResponsePolicy::Secure), "greet").await.unwrap();
            let reason =
                expect_no_retry(call_webhook(&with_policy(&brain.url(), ResponsePolicy::Signed), "greet").await);
            assert!(reason.contains("answers = \"signed\"") && reason.contains("not signed"), "{reason}");
            let brain = signing_brain(SECRET, &body).await;
            call_webhook(&with_policy(&brain.url(), ResponsePolicy::Signed), "greet").await.unwrap();
        }
    });
}

#[test]
fn each_secret_of_the_handler_may_sign_responses() {
    run(async {
        let body = bodies_with_effects().remove(0);
        let both: Vec<Secret> = vec![SECRET.parse().unwrap(), OTHER_SECRET.parse().unwrap()];
        for secret in [SECRET, OTHER_SECRET] {
            let brain = signing_brain(secret, &body).await;
            let target = WebhookTarget { response_policy: ResponsePolicy::Signed, ..target("greet", &brain.url()) };
            call_webhook(&webhooks(vec![WebhookTarget { secrets: both.clone(), ..target.clone() }]), "greet")
                .await
                .unwrap();
            let result = call_webhook(&webhooks(vec![target]), "greet").await;
            assert_eq!(result.is_ok(), secret == SECRET, "{result:?}");
        }
    });
}

#[test]
fn recorded_response_is_not_accepted_again() {
    run(async {
        let body = bodies_with_effects().remove(0);
        type Forge = fn(&Request, &str) -> Action;
        let forged: [(Forge, &str); 6] = [
            (|_, body| signed_response(SECRET, "event:session:6:greet:1700000000:answer", now(), body), "webhook-id"),
            (|request, body| signed_response(SECRET, request.header("webhook-id"), now(), body), "webhook-id"),
            (|request, body| signed_response(SECRET, &response_id(request), now() - 330, body), "webhook-timestamp"),
            (|request, body| signed_response(SECRET, &response_id(request), now() + 330, body), "webhook-timestamp"),
            (|request, body| signed_response(OTHER_SECRET, &response_id(request), now(), body), "does not match"),
            (
                |request, body| match signed_response(SECRET, &response_id(request), now(), body) {
                    Action::Respond(text) => Action::Respond(text.replace("assign_role", "remove_role")),
                    other => other,
                },
                "does not match",
            ),
        ];
        for (forge, part) in forged {
            let body = body.clone();
            let brain = Brain::replying(move |request| forge(request, &body)).await;
            let reason =
                expect_no_retry(call_webhook(&with_policy(&brain.url(), ResponsePolicy::Signed), "greet").await);
            assert!(reason.contains(part), "{part}: {reason}");
        }
        // The request itself, sent back as it came.
        let echo = |request: &Request| {
            let header = |name| format!("{name}: {}\r\n", request.header(name));
            let headers = ["webhook-id", "webhook-timestamp", "webhook-signature"].map(header).concat();
            respond(200, &headers, &request.body)
        };
        let brain = Brain::replying(echo).await;
        expect_no_retry(call_webhook(&with_policy(&brain.url(), ResponsePolicy::Signed), "greet").await);
    });
}
