//! Which responses may have an effect: by their connection, and by their signature.

use std::net::{IpAddr, UdpSocket};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use guildhall::webhook::{Secret, Target, Webhooks};
use guildhall_actors::ports::WebhookResponse;
use guildhall_core::event::handler::ResponsePolicy;
use metrics_exporter_prometheus::PrometheusBuilder;
use ring::hmac;
use serde_json::json;

use crate::brain::{Act, Brain, Request, says};
use crate::stage::{Names, SECRET, ask, config, never, patient, run, target, webhooks, webhooks_with};

const OTHER_SECRET: &str = "whsec_OTg3NjU0MzIxMDk4NzY1NDMyMTA5ODc2NTQzMjEw";

/// Everything that a response may contain, one at a time. Each of them has an effect.
fn effects() -> Vec<String> {
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
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("198.51.100.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|address| !address.is_loopback() && !address.is_unspecified())
}

fn with_policy(url: &str, answers: ResponsePolicy) -> Webhooks {
    webhooks(vec![Target { answers, ..target("greet", url) }])
}

fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
}

/// A response signed as the documentation says.
fn signed(secret: &str, id: &str, at: u64, body: &str) -> Act {
    let key = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), format!("{id}.{at}.{body}").as_bytes());
    let signature = STANDARD.encode(tag);
    let headers = format!("webhook-id: {id}\r\nwebhook-timestamp: {at}\r\nwebhook-signature: v1,{signature}\r\n");
    says(200, &headers, body)
}

fn answer_id(request: &Request) -> String {
    format!("{}:{}:answer", request.header("webhook-id"), request.header("webhook-timestamp"))
}

/// A brain that signs this body with this secret.
async fn signing(secret: &'static str, body: &str) -> Brain {
    let body = body.to_owned();
    Brain::replying(move |request| signed(secret, &answer_id(request), now(), &body)).await
}

#[test]
fn an_unsigned_answer_over_plain_http_has_no_effect() {
    let Some(address) = own_address() else { return eprintln!("skipped: this machine has only loopback addresses") };
    let recorder = PrometheusBuilder::new().build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    run(async {
        for body in effects() {
            let brain = Brain::replying_at(address, move |_| says(200, "", &body)).await;
            let why = never(ask(&with_policy(&brain.url(), ResponsePolicy::Secure), "greet").await);
            assert!(why.contains(&format!("plain http from {address}")) && why.contains("not signed"), "{why}");
            ask(&with_policy(&brain.url(), ResponsePolicy::Any), "greet").await.unwrap();
        }
        for nothing in ["", "{}", r#"{"operations": [], "set": {}, "reply": null}"#] {
            let brain = Brain::replying_at(address, move |_| says(200, "", nothing)).await;
            let said = ask(&with_policy(&brain.url(), ResponsePolicy::Secure), "greet").await;
            assert_eq!(said, Ok(WebhookResponse::default()), "{nothing}");
        }
        let body = effects().remove(0);
        let brain = Brain::replying_at(address, move |request| signed(SECRET, &answer_id(request), now(), &body)).await;
        ask(&with_policy(&brain.url(), ResponsePolicy::Secure), "greet").await.unwrap();
    });
    let line = r#"guildhall_webhook_requests_total{handler="greet",outcome="untrusted"} 5"#;
    assert!(recorder.handle().render().contains(line), "{}", recorder.handle().render());
}

/// Only the address of the connection counts, not the name.
#[test]
fn loopback_is_judged_by_the_address_that_is_connected_to() {
    let Some(address) = own_address() else { return eprintln!("skipped: this machine has only loopback addresses") };
    run(async {
        let body = effects().remove(0);
        let brain = Brain::replying_at([0, 0, 0, 0].into(), move |_| says(200, "", &body)).await;
        let url = format!("http://brain.test:{}/", brain.address.port());
        for (leads_to, accepted) in
            [("127.0.0.1", true), ("127.8.8.8", true), ("0.0.0.0", true), (address.to_string().as_str(), false)]
        {
            let names = Names::at(&[&[leads_to]]);
            let webhooks = webhooks_with(vec![target("greet", &url)], &config(), patient(), names);
            assert_eq!(ask(&webhooks, "greet").await.is_ok(), accepted, "{leads_to}");
        }
        // A name such as localhost makes no difference.
        let url = format!("http://localhost:{}/", brain.address.port());
        let names = Names::at(&[&[&address.to_string()]]);
        never(ask(&webhooks_with(vec![target("greet", &url)], &config(), patient(), names), "greet").await);
    });
}

#[test]
fn where_signatures_are_required_loopback_is_not_enough() {
    run(async {
        for body in effects() {
            let brain = Brain::always(says(200, "", &body)).await;
            ask(&with_policy(&brain.url(), ResponsePolicy::Secure), "greet").await.unwrap();
            let why = never(ask(&with_policy(&brain.url(), ResponsePolicy::Signed), "greet").await);
            assert!(why.contains("answers = \"signed\"") && why.contains("not signed"), "{why}");
            let brain = signing(SECRET, &body).await;
            ask(&with_policy(&brain.url(), ResponsePolicy::Signed), "greet").await.unwrap();
        }
    });
}

#[test]
fn each_secret_of_the_handler_signs_answers_while_one_replaces_the_other() {
    run(async {
        let body = effects().remove(0);
        let both: Vec<Secret> = vec![SECRET.parse().unwrap(), OTHER_SECRET.parse().unwrap()];
        for secret in [SECRET, OTHER_SECRET] {
            let brain = signing(secret, &body).await;
            let target = Target { answers: ResponsePolicy::Signed, ..target("greet", &brain.url()) };
            ask(&webhooks(vec![Target { secrets: both.clone(), ..target.clone() }]), "greet").await.unwrap();
            let alone = ask(&webhooks(vec![target]), "greet").await;
            assert_eq!(alone.is_ok(), secret == SECRET, "{alone:?}");
        }
    });
}

#[test]
fn an_answer_that_was_recorded_is_not_accepted_for_another_request() {
    run(async {
        let body = effects().remove(0);
        type Forge = fn(&Request, &str) -> Act;
        let forged: [(Forge, &str); 6] = [
            (|_, body| signed(SECRET, "event:session:6:greet:1700000000:answer", now(), body), "webhook-id"),
            (|request, body| signed(SECRET, request.header("webhook-id"), now(), body), "webhook-id"),
            (|request, body| signed(SECRET, &answer_id(request), now() - 330, body), "webhook-timestamp"),
            (|request, body| signed(SECRET, &answer_id(request), now() + 330, body), "webhook-timestamp"),
            (|request, body| signed(OTHER_SECRET, &answer_id(request), now(), body), "does not match"),
            (
                |request, body| match signed(SECRET, &answer_id(request), now(), body) {
                    Act::Says(text) => Act::Says(text.replace("assign_role", "remove_role")),
                    other => other,
                },
                "does not match",
            ),
        ];
        for (forge, part) in forged {
            let body = body.clone();
            let brain = Brain::replying(move |request| forge(request, &body)).await;
            let why = never(ask(&with_policy(&brain.url(), ResponsePolicy::Signed), "greet").await);
            assert!(why.contains(part), "{part}: {why}");
        }
        // The request itself, sent back as it came.
        let echo = |request: &Request| {
            let header = |name| format!("{name}: {}\r\n", request.header(name));
            let headers = ["webhook-id", "webhook-timestamp", "webhook-signature"].map(header).concat();
            says(200, &headers, &request.body)
        };
        let brain = Brain::replying(echo).await;
        never(ask(&with_policy(&brain.url(), ResponsePolicy::Signed), "greet").await);
    });
}
