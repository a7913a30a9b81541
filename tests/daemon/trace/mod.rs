//! Traces (W3C Trace Context) over real sockets: from a caller or an event, through operations, the log and webhooks,
//! to the calls to Discord.

#[cfg(feature = "otel")]
mod collector;
mod fixture;
mod recording_proxy;
#[cfg(feature = "otel")]
mod spans;

use std::collections::BTreeSet;

use guildhall_core::trace::TraceContext;
use guildhall_sim::JoinSpec;
use guildhall_testkit::brain::{Brain, respond};
use serde_json::{Value, json};

use self::fixture::{TraceFixture, handlers};

const GIVEN_TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Log lines with this message, as JSON.
fn lines(log: &str, prefix: &str) -> Vec<Value> {
    let all = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    all.filter(|line| line["message"].as_str().is_some_and(|message| message.starts_with(prefix))).collect()
}

/// The trace of an object that the API returned.
fn trace_of(operation: &Value) -> TraceContext {
    TraceContext::read(operation["trace"].as_str().unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn trace_of_a_request_reaches_the_log_and_the_call() {
    let fixture = TraceFixture::start("", &[("GUILDHALL__REST__TRACEPARENT", "true")]).await;
    let given = TraceContext::read(GIVEN_TRACE).unwrap();
    let id =
        fixture.submit(&json!({"kind": "create_role", "payload": {"name": "Pilots"}}), &[("traceparent", GIVEN_TRACE)]);
    let operation = fixture.until_done(&id);
    let stored = trace_of(&operation);
    assert_eq!((stored.id, stored.is_sampled()), (given.id, true));
    assert_ne!(stored.span, given.span, "the request has its own span");

    let call = fixture.proxy.request_to("POST", &format!("/api/v10/guilds/{}/roles", fixture.guild));
    let sent = TraceContext::read(call.header("traceparent").unwrap()).unwrap();
    assert_eq!(sent.id, given.id);
    assert!(sent.span != stored.span && sent.span != given.span, "the call has its own span");

    let log = fixture.stop();
    for message in [
        "API request answered",
        "operation accepted",
        "operation attempt finished",
        "operation succeeded",
        "call answered",
    ] {
        let has_trace = |line: &Value| line["trace_id"] == given.id.to_string();
        let found = lines(&log, message).into_iter().filter(has_trace).count();
        assert_eq!(found, 1, "{message}: {:?}", lines(&log, message));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn trace_is_not_sent_to_discord_by_default() {
    let fixture = TraceFixture::start("", &[]).await;
    let id =
        fixture.submit(&json!({"kind": "create_role", "payload": {"name": "Pilots"}}), &[("traceparent", GIVEN_TRACE)]);
    fixture.until_done(&id);
    let call = fixture.proxy.request_to("POST", &format!("/api/v10/guilds/{}/roles", fixture.guild));
    assert_eq!(call.header("traceparent"), None);
    assert!(fixture.proxy.requests().iter().all(|request| request.header("traceparent").is_none()));
    // The API still shows it.
    assert_eq!(trace_of(&fixture.get_operation(&id)).id, TraceContext::read(GIVEN_TRACE).unwrap().id);
}

#[tokio::test(flavor = "multi_thread")]
async fn trace_of_an_event_reaches_webhooks_and_operations() {
    let brain_response = json!({"operations": [{"kind": "create_role", "payload": {"name": "by the brain"}}]});
    let brain = Brain::always(respond(200, "content-type: application/json\r\n", &brain_response.to_string())).await;
    let fixture = TraceFixture::start(&handlers(&brain.url()), &[("GUILDHALL__REST__TRACEPARENT", "true")]).await;
    fixture.sim.join(fixture.guild, JoinSpec::default()).await.unwrap();
    brain.wait_for_requests(1).await;
    let request = brain.received().requests[0].clone();
    let body: Value = serde_json::from_str(&request.body).unwrap();
    let event = trace_of(&body);
    let webhook_trace = TraceContext::read(request.header("traceparent")).unwrap();
    assert_eq!(webhook_trace.id, event.id);
    assert_ne!(webhook_trace.span, event.span, "the request to the brain has its own span");

    let operations = fixture.until_all_done(2);
    assert_eq!(operations.len(), 2, "{operations:?}");
    assert!(operations.iter().all(|operation| trace_of(operation).id == event.id), "{operations:?}");
    let spans: BTreeSet<String> = operations.iter().map(|one| trace_of(one).span.to_string()).collect();
    assert_eq!(spans.len(), 2, "each handler has its own span");
    let call = fixture.proxy.request_to("POST", &format!("/api/v10/guilds/{}/roles", fixture.guild));
    assert_eq!(TraceContext::read(call.header("traceparent").unwrap()).unwrap().id, event.id);

    let log = fixture.stop();
    for (message, count) in
        [("webhook responded", 1), ("handler finished an event", 2), ("operation succeeded", 2), ("call answered", 2)]
    {
        let has_trace = |line: &Value| line["trace_id"] == event.id.to_string();
        assert_eq!(
            lines(&log, message).into_iter().filter(has_trace).count(),
            count,
            "{message}: {:?}",
            lines(&log, message)
        );
    }
}

#[cfg(not(feature = "otel"))]
#[test]
fn a_program_without_opentelemetry_says_how_to_get_one_that_has_it() {
    let output = guildhall_testkit::program::Guildhall::new(&["config", "check"])
        .env("GUILDHALL__TELEMETRY__OTLP_ENDPOINT", "http://127.0.0.1:4318")
        .output();
    let output_text =
        guildhall_testkit::program::text(&output.stderr) + &guildhall_testkit::program::text(&output.stdout);
    assert!(!output.status.success() && output_text.contains("--features otel"), "{output_text}");
}
