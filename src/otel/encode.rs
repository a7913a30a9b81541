//! Encodes spans as OTLP JSON.

use guildhall_actors::telemetry::span::{Attribute, Span, SpanKind};
use serde_json::{Value, json};

use crate::logging::Secrets;

/// Maximum length of a text in a span: an error may quote a whole response.
const MAX_TEXT_CHARS: usize = 1_024;

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
            string_attribute("service.name", service),
            string_attribute("service.version", env!("CARGO_PKG_VERSION")),
            { "key": "process.pid", "value": { "intValue": std::process::id().to_string() } },
        ]);
        Self { attributes, secrets }
    }

    /// Encodes a request with these spans.
    pub(super) fn request(&self, spans: &[Span]) -> Vec<u8> {
        let spans: Vec<Value> = spans.iter().map(span).collect();
        let scope = json!({ "name": "guildhall", "version": env!("CARGO_PKG_VERSION") });
        let encoded = json!({
            "resourceSpans": [{
                "resource": { "attributes": self.attributes },
                "scopeSpans": [{ "scope": scope, "spans": spans }],
            }],
        });
        self.secrets.remove_from(encoded.to_string().into_bytes())
    }
}

fn span(span: &Span) -> Value {
    let attributes: Vec<Value> = span.attributes.iter().map(|(key, value)| attribute(key, value)).collect();
    let mut encoded = json!({
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
        "startTimeUnixNano": span.started_at.to_string(),
        "endTimeUnixNano": span.ended_at.to_string(),
        "attributes": attributes,
        "status": {},
    });
    if let Some(parent) = span.parent {
        encoded["parentSpanId"] = parent.to_string().into();
    }
    if let Some(message) = &span.failed {
        encoded["status"] = json!({ "code": STATUS_ERROR, "message": truncate(message) });
    }
    encoded
}

fn attribute(key: &str, value: &Attribute) -> Value {
    match value {
        Attribute::Text(text) => string_attribute(key, text),
        Attribute::Number(number) => json!({ "key": key, "value": { "intValue": number.to_string() } }),
    }
}

fn string_attribute(key: &str, text: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": truncate(text) } })
}

fn truncate(text: &str) -> String {
    text.chars().take(MAX_TEXT_CHARS).collect()
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

    fn encoded(spans: &[Span], secrets: &[&str]) -> Value {
        let resource = Resource::new("town", Secrets::new(secrets.iter().copied().map(SecretValue::new).collect()));
        serde_json::from_slice(&resource.request(spans)).unwrap()
    }

    fn trace() -> TraceContext {
        TraceContext::read("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").unwrap()
    }

    #[test]
    fn span_is_encoded_as_otlp() {
        let span = Span::from_times(trace(), Some(SpanId::new(0xab)), "work", UnixMs::new(1_000), UnixMs::new(1_250));
        let span = span.kind(SpanKind::Client).text("a", "b").number("n", 7);
        let request = encoded(&[span], &[]);
        let resource = &request["resourceSpans"][0];
        assert_eq!(resource["resource"]["attributes"][0], string_attribute("service.name", "town"));
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
    fn root_span_has_no_parent_and_errors_are_truncated() {
        let span = Span::ended_now(trace(), None, "asked", Duration::from_millis(1)).failed(Some("x".repeat(10_000)));
        let request = encoded(&[span], &[]);
        let span = &request["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
        assert_eq!(span.get("parentSpanId"), None);
        assert_eq!(span["status"]["code"], 2);
        assert_eq!(span["status"]["message"].as_str().unwrap().len(), MAX_TEXT_CHARS);
    }

    #[test]
    fn secrets_are_redacted() {
        let span =
            Span::ended_now(trace(), None, "asked", Duration::ZERO).failed(Some("the token s3cret is no good".into()));
        let request = encoded(&[span], &["s3cret"]).to_string();
        assert!(!request.contains("s3cret") && request.contains("(redacted)"), "{request}");
    }
}
