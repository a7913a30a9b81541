//! Traces (W3C Trace Context) over real sockets: from a caller or an event, through operations, the log and webhooks,
//! to the calls to Discord.

#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "../webhook/brain.rs"]
#[expect(dead_code, reason = "only a part of it is needed here")]
mod brain;
#[cfg(feature = "otel")]
mod collector;
#[cfg(feature = "otel")]
mod spans;
mod stage;
#[path = "../support/mod.rs"]
mod support;
mod tap;

use std::collections::BTreeSet;

use guildhall_core::trace::TraceContext;
use guildhall_sim::JoinSpec;
use serde_json::{Value, json};

use self::brain::{Brain, says};
use self::stage::{Stage, handlers};

const GIVEN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Log lines with this message, as JSON.
fn lines(log: &str, says: &str) -> Vec<Value> {
    let all = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    all.filter(|line| line["message"].as_str().is_some_and(|said| said.starts_with(says))).collect()
}

/// The trace of an object that the API returned.
fn trace_of(operation: &Value) -> TraceContext {
    TraceContext::read(operation["trace"].as_str().unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_trace_goes_from_the_request_over_the_operation_and_the_log_to_the_call() {
    let stage = Stage::start("", &[("GUILDHALL__REST__TRACEPARENT", "true")]).await;
    let given = TraceContext::read(GIVEN).unwrap();
    let id = stage.submit(&json!({"kind": "create_role", "payload": {"name": "Pilots"}}), &[("traceparent", GIVEN)]);
    let operation = stage.until_done(&id);
    let kept = trace_of(&operation);
    assert_eq!((kept.id, kept.is_sampled()), (given.id, true));
    assert_ne!(kept.span, given.span, "the request has its own span");

    let call = stage.tap.request_to("POST", &format!("/api/v10/guilds/{}/roles", stage.guild));
    let sent = TraceContext::read(call.header("traceparent").unwrap()).unwrap();
    assert_eq!(sent.id, given.id);
    assert!(sent.span != kept.span && sent.span != given.span, "the call has its own span");

    let log = stage.end();
    for said in [
        "API request answered",
        "operation accepted",
        "operation attempt finished",
        "operation succeeded",
        "call answered",
    ] {
        let of_it = |line: &Value| line["trace_id"] == given.id.to_string();
        let found = lines(&log, said).into_iter().filter(of_it).count();
        assert_eq!(found, 1, "{said}: {:?}", lines(&log, said));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn discord_is_told_of_no_trace_unless_that_is_set() {
    let stage = Stage::start("", &[]).await;
    let id = stage.submit(&json!({"kind": "create_role", "payload": {"name": "Pilots"}}), &[("traceparent", GIVEN)]);
    stage.until_done(&id);
    let call = stage.tap.request_to("POST", &format!("/api/v10/guilds/{}/roles", stage.guild));
    assert_eq!(call.header("traceparent"), None);
    assert!(stage.tap.requests().iter().all(|request| request.header("traceparent").is_none()));
    // The API still shows it.
    assert_eq!(trace_of(&stage.shown(&id)).id, TraceContext::read(GIVEN).unwrap().id);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_hands_its_trace_to_webhooks_to_what_they_and_rules_ask_for_and_to_the_log() {
    let asked = json!({"operations": [{"kind": "create_role", "payload": {"name": "by the brain"}}]});
    let brain = Brain::always(says(200, "content-type: application/json\r\n", &asked.to_string())).await;
    let stage = Stage::start(&handlers(&brain.url()), &[("GUILDHALL__REST__TRACEPARENT", "true")]).await;
    stage.sim.join(stage.guild, JoinSpec::default()).await.unwrap();
    brain.saw(1).await;
    let request = brain.seen().requests[0].clone();
    let body: Value = serde_json::from_str(&request.body).unwrap();
    let event = trace_of(&body);
    let told = TraceContext::read(request.header("traceparent")).unwrap();
    assert_eq!(told.id, event.id);
    assert_ne!(told.span, event.span, "the request to the brain has its own span");

    let operations = stage.until_all_done(2);
    assert_eq!(operations.len(), 2, "{operations:?}");
    assert!(operations.iter().all(|operation| trace_of(operation).id == event.id), "{operations:?}");
    let parts: BTreeSet<String> = operations.iter().map(|one| trace_of(one).span.to_string()).collect();
    assert_eq!(parts.len(), 2, "each handler has its own span");
    let call = stage.tap.request_to("POST", &format!("/api/v10/guilds/{}/roles", stage.guild));
    assert_eq!(TraceContext::read(call.header("traceparent").unwrap()).unwrap().id, event.id);

    let log = stage.end();
    for (said, count) in
        [("webhook responded", 1), ("handler finished an event", 2), ("operation succeeded", 2), ("call answered", 2)]
    {
        let of_it = |line: &Value| line["trace_id"] == event.id.to_string();
        assert_eq!(lines(&log, said).into_iter().filter(of_it).count(), count, "{said}: {:?}", lines(&log, said));
    }
}

#[cfg(not(feature = "otel"))]
#[test]
fn a_program_without_opentelemetry_says_how_to_get_one_that_has_it() {
    let output = support::Guildhall::new(&["config", "check"])
        .env("GUILDHALL__TELEMETRY__OTLP_ENDPOINT", "http://127.0.0.1:4318")
        .output();
    let said = support::text(&output.stderr) + &support::text(&output.stdout);
    assert!(!output.status.success() && said.contains("--features otel"), "{said}");
}
