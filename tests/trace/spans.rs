//! The spans that a collector receives.

use std::net::TcpListener;

use guildhall_core::trace::TraceContext;
use guildhall_sim::JoinSpec;
use serde_json::{Value, json};

use crate::GIVEN;
use crate::brain::{Brain, says};
use crate::collector::{Collector, Told};
use crate::stage::{Stage, handlers};
use crate::support::get;

const ENDPOINT: &str = "GUILDHALL__TELEMETRY__OTLP_ENDPOINT";

/// Spans with this prefix in their names.
fn named<'t>(told: &'t Told, name: &str) -> Vec<&'t Value> {
    told.spans.iter().filter(|span| span["name"].as_str().is_some_and(|known| known.starts_with(name))).collect()
}

#[track_caller]
fn only<'t>(told: &'t Told, name: &str) -> &'t Value {
    match named(told, name).as_slice() {
        [one] => one,
        other => panic!("expected one span {name}, got {other:?} in {:?}", told.spans),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_is_told_of_the_request_the_operation_its_try_and_its_call_each_below_the_other() {
    let collector = Collector::start(&[]);
    let endpoint = format!("http://{}", collector.address);
    let headers = ("GUILDHALL__TELEMETRY__OTLP_HEADERS", "authorization=Bearer collectors-own,x-team=town");
    let stage = Stage::start("", &[(ENDPOINT, &endpoint), headers]).await;
    let given = TraceContext::read(GIVEN).unwrap();
    let id = stage.submit(&json!({"kind": "create_role", "payload": {"name": "Pilots"}}), &[("traceparent", GIVEN)]);
    stage.until_done(&id);
    let told = collector.until("the operation's end", |told| !named(told, "operation create_role").is_empty());
    let request = only(&told, "POST /v1/guilds/{guild_id}/operations");
    let operation = only(&told, "operation create_role");
    let attempt = only(&told, "attempt create_role");
    let call = only(&told, "POST /guilds/{id}/roles");
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
    assert!(told.resources[0]["attributes"].as_array().unwrap().contains(&name), "{:?}", told.resources[0]);
    let head = &told.heads[0];
    assert!(
        head.starts_with("post /v1/traces ") && head.contains("\r\nauthorization: bearer collectors-own\r\n"),
        "{head}"
    );
    let log = stage.end();
    assert!(!log.contains("collectors-own"), "the credentials of the collector are secret");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_is_told_of_events_their_handlers_and_webhooks_before_the_daemon_ends() {
    let asked = json!({"operations": [{"kind": "create_role", "payload": {"name": "by the brain"}}]});
    let brain = Brain::always(says(200, "content-type: application/json\r\n", &asked.to_string())).await;
    // It is unavailable for a moment at first.
    let collector = Collector::start(&[503]);
    let endpoint = format!("http://{}/v1/traces", collector.address);
    let stage = Stage::start(&handlers(&brain.url()), &[(ENDPOINT, &endpoint)]).await;
    stage.sim.join(stage.guild, JoinSpec::default()).await.unwrap();
    brain.saw(1).await;
    let sent = TraceContext::read(brain.seen().requests[0].header("traceparent")).unwrap();
    stage.until_all_done(2);
    stage.end();
    let told = collector.told();
    let (event, webhook) = (only(&told, "event member.join"), only(&told, "POST webhook"));
    let (brains, rules) = (only(&told, "handler brain"), only(&told, "handler rule"));
    assert_eq!(webhook["spanId"], sent.span.to_string());
    assert_eq!((&event["kind"], event.get("parentSpanId")), (&json!(5), None));
    for (span, parent) in [(brains, event), (rules, event), (webhook, brains)] {
        assert_eq!((&span["traceId"], &span["parentSpanId"]), (&event["traceId"], &parent["spanId"]), "{span}");
    }
    let mut parents: Vec<_> =
        named(&told, "operation create_role").iter().map(|one| one["parentSpanId"].clone()).collect();
    parents.sort_by_key(ToString::to_string);
    let mut expected = vec![brains["spanId"].clone(), rules["spanId"].clone()];
    expected.sort_by_key(ToString::to_string);
    assert_eq!(parents, expected, "the parent of an operation is the handler that submitted it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_never_answers_holds_nobody_up_and_what_it_misses_is_counted() {
    // It accepts connections, and never responds.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let settings = [
        (ENDPOINT, endpoint.as_str()),
        ("GUILDHALL__TELEMETRY__OTLP_QUEUE", "2"),
        ("GUILDHALL__TELEMETRY__OTLP_TIMEOUT_MS", "200"),
    ];
    let stage = Stage::start("", &settings).await;
    for n in 0..20 {
        let id = stage.submit(&json!({"kind": "create_role", "payload": {"name": format!("role {n}")}}), &[]);
        stage.until_done(&id);
    }
    let metrics = tokio::task::block_in_place(|| get(stage.address(), "/metrics")).body;
    let dropped = metrics.lines().find_map(|line| line.strip_prefix("guildhall_spans_dropped_total{why=\"full\"} "));
    assert!(dropped.unwrap().parse::<u64>().unwrap() > 0, "{metrics}");
    assert!(metrics.contains("guildhall_spans_exported_total 0"), "{metrics}");
    let log = stage.end();
    assert!(log.contains("span export failed"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_of_handlers_are_in_no_span_also_after_a_reload() {
    const FIRST: &str = "whsec_ZXhhbXBsZS1vbmx5LW1ha2UteW91ci1vd24tc2VjcmV0";
    const SECOND: &str = "whsec_c2Vjb25kLW9ubHktbWFrZS15b3VyLW93bi1zZWNyZXQh";
    let collector = Collector::start(&[]);
    let endpoint = format!("http://{}", collector.address);
    let old = handlers("http://127.0.0.1:9/");
    assert!(old.contains(FIRST));
    let stage = Stage::start(&old, &[(ENDPOINT, &endpoint)]).await;
    let report = stage.reload(&old.replace(FIRST, SECOND));
    assert_eq!(report["changed"][0]["what"], "handler brain", "{report}");
    for request_id in [FIRST, SECOND, "harmless"] {
        stage.list_as(request_id);
    }
    let log = stage.end();
    let told = collector.told();
    let ids: Vec<String> = named(&told, "GET /v1/operations")
        .iter()
        .flat_map(|span| span["attributes"].as_array().unwrap())
        .filter(|attribute| attribute["key"] == "guildhall.request_id")
        .map(|attribute| attribute["value"]["stringValue"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(ids, ["(redacted)", "(redacted)", "harmless"]);
    assert!(!log.contains(FIRST) && !log.contains(SECOND), "{log}");
}
