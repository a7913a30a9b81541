//! Metrics of requests by outcome.

use guildhall_core::breaker::BreakerConfig;
use guildhall_testkit::brain::{Brain, respond};
use metrics_exporter_prometheus::PrometheusBuilder;

use super::fixture::{FakeResolver, call_webhook, config, run, target, webhooks_with};

#[test]
fn requests_are_counted_by_handler_and_outcome() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    run(async {
        let brain = Brain::start(|before| match before {
            0 | 1 => respond(200, "", "{}"),
            2 => respond(404, "", ""),
            3 => respond(200, "", "no JSON"),
            _ => respond(500, "", ""),
        });
        let brain = brain.await;
        let breaker = BreakerConfig { failures_in_row: 2, ..BreakerConfig::default() };
        let webhooks = webhooks_with(vec![target("greet", &brain.url())], &config(), breaker, FakeResolver::empty());
        for _ in 0..7 {
            drop(call_webhook(&webhooks, "greet").await);
        }
        drop(call_webhook(&webhooks, "a made up name").await);
    });
    let text = recorder.handle().render();
    for (outcome, count) in
        [("answered", 2), ("rejected", 1), ("unusable", 1), ("server_error", 2), ("breaker_open", 1)]
    {
        let line = format!(r#"guildhall_webhook_requests_total{{handler="greet",outcome="{outcome}"}} {count}"#);
        assert!(text.contains(&line), "{line} in {text}");
    }
    assert!(text.contains(r#"{handler="unknown",outcome="unknown_handler"} 1"#), "{text}");
    assert!(
        text.contains(r#"guildhall_webhook_request_seconds_count{handler="greet"} 6"#),
        "only requests that were sent: {text}"
    );
    assert!(text.contains(r#"guildhall_breaker_state{key="target:greet"} 2"#), "{text}");
    assert!(!text.contains("made up"), "{text}");
}
