//! Encodes spans as OTLP JSON.

use guildhall_actors::telemetry::span::{Attribute, Span, SpanKind};
use serde_json::{Value, json};

use crate::logging::Secrets;

/// Maximum length of a text in a span: an error may quote a whole response.
const TEXT_MOST: usize = 1_024;

/// OTLP's status code for errors.
const STATUS_ERROR: u8 = 2;

/// The OTLP resource that the spans belong to.
#[derive(Debug)]
pub(super) struct Resource {
    attributes: Value,
    secrets: Secrets,
}

impl Resource {
    /// Creates a resource for a service name. The secrets are replaced in all requests.
    pub(super) fn new(service: &str, secrets: Secrets) -> Self {
        let attributes = json!([
            word("service.name", service),
            word("service.version", env!("CARGO_PKG_VERSION")),
            { "key": "process.pid", "value": { "intValue": std::process::id().to_string() } },
        ]);
        Self { attributes, secrets }
    }

    /// Encodes a request with these spans.
    pub(super) fn request(&self, spans: &[Span]) -> Vec<u8> {
        let spans: Vec<Value> = spans.iter().map(span).collect();
        let scope = json!({ "name": "guildhall", "version": env!("CARGO_PKG_VERSION") });
        let written = json!({
            "resourceSpans": [{
                "resource": { "attributes": self.attributes },
                "scopeSpans": [{ "scope": scope, "spans": spans }],
            }],
        });
        self.secrets.remove_from(written.to_string().into_bytes())
    }
}

fn span(span: &Span) -> Value {
    let attributes: Vec<Value> = span.attributes.iter().map(|(key, value)| attribute(key, value)).collect();
    let mut written = json!({
        "traceId": span.trace.id.to_string(),
        "spanId": span.trace.span.to_string(),
        "name": span.name,
        "kind": match span.kind {
            SpanKind::Internal => 1,
            SpanKind::Server => 2,
            SpanKind::Client => 3,
            SpanKind::Consumer => 5,
        },
        // JSON numbers are not safe for 64 bits.
        "startTimeUnixNano": span.began.to_string(),
        "endTimeUnixNano": span.ended.to_string(),
        "attributes": attributes,
        "status": {},
    });
    if let Some(parent) = span.parent {
        written["parentSpanId"] = parent.to_string().into();
    }
    if let Some(why) = &span.failed {
        written["status"] = json!({ "code": STATUS_ERROR, "message": shortened(why) });
    }
    written
}

fn attribute(key: &str, value: &Attribute) -> Value {
    match value {
        Attribute::Text(text) => word(key, text),
        Attribute::Number(number) => json!({ "key": key, "value": { "intValue": number.to_string() } }),
    }
}

fn word(key: &str, text: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": shortened(text) } })
}

fn shortened(text: &str) -> String {
    text.chars().take(TEXT_MOST).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use guildhall_core::{
        time::UnixMs,
        trace::{SpanId, TraceContext},
    };

    use super::*;
    use crate::settings::SecretValue;

    fn written(spans: &[Span], secrets: &[&str]) -> Value {
        let resource = Resource::new("town", Secrets::new(secrets.iter().copied().map(SecretValue::new).collect()));
        serde_json::from_slice(&resource.request(spans)).unwrap()
    }

    fn trace() -> TraceContext {
        TraceContext::read("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").unwrap()
    }

    #[test]
    fn a_span_is_written_as_otlp_has_it() {
        let span = Span::over(trace(), Some(SpanId::new(0xab)), "work", UnixMs::new(1_000), UnixMs::new(1_250));
        let span = span.kind(SpanKind::Client).text("a", "b").number("n", 7);
        let request = written(&[span], &[]);
        let resource = &request["resourceSpans"][0];
        assert_eq!(resource["resource"]["attributes"][0], word("service.name", "town"));
        assert_eq!(
            resource["scopeSpans"][0]["spans"],
            json!([{
                "traceId": "4bf92f3577b34da6a3ce929d0e0e4736", "spanId": "00f067aa0ba902b7",
                "parentSpanId": "00000000000000ab", "name": "work", "kind": 3,
                "startTimeUnixNano": "1000000000", "endTimeUnixNano": "1250000000",
                "attributes": [
                    { "key": "a", "value": { "stringValue": "b" } },
                    { "key": "n", "value": { "intValue": "7" } },
                ],
                "status": {},
            }])
        );
    }

    #[test]
    fn the_first_part_of_a_trace_has_no_parent_and_one_that_failed_says_why_in_few_words() {
        let span = Span::just_now(trace(), None, "asked", Duration::from_millis(1)).failed(Some("x".repeat(10_000)));
        let request = written(&[span], &[]);
        let span = &request["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
        assert_eq!(span.get("parentSpanId"), None);
        assert_eq!(span["status"]["code"], 2);
        assert_eq!(span["status"]["message"].as_str().unwrap().len(), TEXT_MOST);
    }

    #[test]
    fn no_secret_is_told() {
        let span =
            Span::just_now(trace(), None, "asked", Duration::ZERO).failed(Some("the token s3cret is no good".into()));
        let request = written(&[span], &["s3cret"]).to_string();
        assert!(!request.contains("s3cret") && request.contains("(redacted)"), "{request}");
    }
}
