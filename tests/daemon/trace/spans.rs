//! The spans that a collector receives.

use std::net::TcpListener;

use guildhall_core::trace::TraceContext;
use guildhall_sim::JoinSpec;
use guildhall_testkit::brain::{Brain, respond};
use guildhall_testkit::program::get;
use serde_json::{Value, json};

use super::GIVEN_TRACE;
use super::collector::{Collector, ReceivedSpans};
use super::fixture::{TraceFixture, handlers};

const ENDPOINT: &str = "GUILDHALL__TELEMETRY__OTLP_ENDPOINT";

/// Spans with this prefix in their names.
fn spans_named<'t>(received: &'t ReceivedSpans, name: &str) -> Vec<&'t Value> {
    received
        .spans
        .iter()
        .filter(|span| span["name"].as_str().is_some_and(|span_name| span_name.starts_with(name)))
        .collect()
}

#[track_caller]
fn only_span<'t>(received: &'t ReceivedSpans, name: &str) -> &'t Value {
    match spans_named(received, name).as_slice() {
        [one] => one,
        other => panic!("expected one span {name}, got {other:?} in {:?}", received.spans),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn collector_receives_nested_spans_of_an_operation() {
    let collector = Collector::start(&[]);
    let endpoint = format!("http://{}", collector.address);
    let headers = ("GUILDHALL__TELEMETRY__OTLP_HEADERS", "authorization=Bearer collectors-own,x-team=town");
    let fixture = TraceFixture::start("", &[(ENDPOINT, &endpoint), headers]).await;
    let given = TraceContext::read(GIVEN_TRACE).unwrap();
    let id =
        fixture.submit(&json!({"kind": "create_role", "payload": {"name": "Pilots"}}), &[("traceparent", GIVEN_TRACE)]);
    fixture.until_done(&id);
    let received =
        collector.until("the operation's end", |received| !spans_named(received, "operation create_role").is_empty());
    let request = only_span(&received, "POST /v1/guilds/{guild_id}/operations");
    let operation = only_span(&received, "operation create_role");
    let attempt = only_span(&received, "attempt create_role");
    let call = only_span(&received, "POST /guilds/{id}/roles");
    for (span, parent) in [
        (request, &json!(given.span.to_string())),
        (operation, &request["spanId"]),
        (attempt, &operation["spanId"]),
        (call, &attempt["spanId"]),
    ] {
        assert_eq!((&span["traceId"], &span["parentSpanId"]), (&json!(given.id.to_string()), parent), "{span}");
        let nanos = |name: &str| span[name].as_str().unwrap().parse::<u64>().unwrap();
        assert!(nanos("startTimeUnixNano") <= nanos("endTimeUnixNano") && nanos("startTimeUnixNano") > 0, "{span}");
    }
    assert_eq!((&request["kind"], &call["kind"]), (&json!(2), &json!(3)));
    let name = json!({"key": "service.name", "value": {"stringValue": "guildhall"}});
    assert!(received.resources[0]["attributes"].as_array().unwrap().contains(&name), "{:?}", received.resources[0]);
    let head = &received.heads[0];
    assert!(
        head.starts_with("post /v1/traces ") && head.contains("\r\nauthorization: bearer collectors-own\r\n"),
        "{head}"
    );
    let log = fixture.stop();
    assert!(!log.contains("collectors-own"), "the credentials of the collector are secret");
}

#[tokio::test(flavor = "multi_thread")]
async fn collector_receives_spans_of_events_before_shutdown() {
    let brain_response = json!({"operations": [{"kind": "create_role", "payload": {"name": "by the brain"}}]});
    let brain = Brain::always(respond(200, "content-type: application/json\r\n", &brain_response.to_string())).await;
    // It is unavailable for a moment at first.
    let collector = Collector::start(&[503]);
    let endpoint = format!("http://{}/v1/traces", collector.address);
    let fixture = TraceFixture::start(&handlers(&brain.url()), &[(ENDPOINT, &endpoint)]).await;
    fixture.sim.join(fixture.guild, JoinSpec::default()).await.unwrap();
    brain.wait_for_requests(1).await;
    let sent = TraceContext::read(brain.received().requests[0].header("traceparent")).unwrap();
    fixture.until_all_done(2);
    fixture.stop();
    let received = collector.received();
    let (event, webhook) = (only_span(&received, "event member.join"), only_span(&received, "POST webhook"));
    let (brain_span, rule_span) = (only_span(&received, "handler brain"), only_span(&received, "handler rule"));
    assert_eq!(webhook["spanId"], sent.span.to_string());
    assert_eq!((&event["kind"], event.get("parentSpanId")), (&json!(5), None));
    for (span, parent) in [(brain_span, event), (rule_span, event), (webhook, brain_span)] {
        assert_eq!((&span["traceId"], &span["parentSpanId"]), (&event["traceId"], &parent["spanId"]), "{span}");
    }
    let mut parents: Vec<_> =
        spans_named(&received, "operation create_role").iter().map(|one| one["parentSpanId"].clone()).collect();
    parents.sort_by_key(ToString::to_string);
    let mut expected = vec![brain_span["spanId"].clone(), rule_span["spanId"].clone()];
    expected.sort_by_key(ToString::to_string);
    assert_eq!(parents, expected, "the parent of an operation is the handler that submitted it");
}

#[tokio::test(flavor = "multi_thread")]
async fn unresponsive_collector_blocks_nothing_and_drops_count() {
    // It accepts connections, and never responds.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let settings = [
        (ENDPOINT, endpoint.as_str()),
        ("GUILDHALL__TELEMETRY__OTLP_QUEUE", "2"),
        ("GUILDHALL__TELEMETRY__OTLP_TIMEOUT_MS", "200"),
    ];
    let fixture = TraceFixture::start("", &settings).await;
    for n in 0..20 {
        let id = fixture.submit(&json!({"kind": "create_role", "payload": {"name": format!("role {n}")}}), &[]);
        fixture.until_done(&id);
    }
    let metrics = tokio::task::block_in_place(|| get(fixture.address(), "/metrics")).body;
    let dropped = metrics.lines().find_map(|line| line.strip_prefix("guildhall_spans_dropped_total{why=\"full\"} "));
    assert!(dropped.unwrap().parse::<u64>().unwrap() > 0, "{metrics}");
    assert!(metrics.contains("guildhall_spans_exported_total 0"), "{metrics}");
    let log = fixture.stop();
    assert!(log.contains("span export failed"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn handler_secrets_are_never_in_spans() {
    const FIRST: &str = "whsec_ZXhhbXBsZS1vbmx5LW1ha2UteW91ci1vd24tc2VjcmV0";
    const SECOND: &str = "whsec_c2Vjb25kLW9ubHktbWFrZS15b3VyLW93bi1zZWNyZXQh";
    let collector = Collector::start(&[]);
    let endpoint = format!("http://{}", collector.address);
    let old = handlers("http://127.0.0.1:9/");
    assert!(old.contains(FIRST));
    let fixture = TraceFixture::start(&old, &[(ENDPOINT, &endpoint)]).await;
    let report = fixture.reload(&old.replace(FIRST, SECOND));
    assert_eq!(report["changed"][0]["what"], "handler brain", "{report}");
    for request_id in [FIRST, SECOND, "harmless"] {
        fixture.list_with_request_id(request_id);
    }
    let log = fixture.stop();
    let received = collector.received();
    let ids: Vec<String> = spans_named(&received, "GET /v1/operations")
        .iter()
        .flat_map(|span| span["attributes"].as_array().unwrap())
        .filter(|attribute| attribute["key"] == "guildhall.request_id")
        .map(|attribute| attribute["value"]["stringValue"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(ids, ["(redacted)", "(redacted)", "harmless"]);
    assert!(!log.contains(FIRST) && !log.contains(SECOND), "{log}");
}
