//! Sends requests to a collector and evaluates its responses.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::Full;
use serde_json::Value;

use crate::{
    error_chain::chain,
    net::{self, HttpClient, Pool},
    settings::TelemetrySettings,
};

/// Path that collectors accept traces at.
const PATH: &str = "/v1/traces";

/// Maximum size of a response that is read.
const MAX_RESPONSE_BYTES: usize = 64 * 1024;

/// Maximum length of a response in a log line.
const MAX_QUOTED_CHARS: usize = 200;

/// Time after which an unused connection is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum `Retry-After` of a collector that is respected.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(30);

/// Error in the settings of the collector.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The endpoint is not a valid URL.
    #[error(
        "telemetry.otlp_endpoint is not a valid collector URL; set an http or https URL such as http://127.0.0.1:4318"
    )]
    Url,
    /// A header is invalid.
    #[error("telemetry.otlp_headers: `{0}` is not a valid header name, or its value is not a valid header value")]
    Header(String),
}

/// Error of an export.
#[derive(Debug)]
pub(super) enum ExportError {
    /// The export can be retried, after `wait` if the collector sent one.
    Retryable { message: String, wait: Option<Duration> },
    /// The export cannot be retried.
    Permanent { message: String },
}

/// HTTP client for a collector.
#[derive(Debug)]
pub(super) struct CollectorClient {
    http: HttpClient,
    uri: Uri,
    headers: HeaderMap,
    timeout: Duration,
}

impl CollectorClient {
    /// Returns `None` if the settings name no collector.
    pub(super) fn new(settings: &TelemetrySettings) -> Result<Option<Self>, EndpointError> {
        let Some(endpoint) = &settings.otlp_endpoint else { return Ok(None) };
        let endpoint = endpoint.strip_suffix(PATH).unwrap_or(endpoint);
        let uri: Uri = format!("{endpoint}{PATH}").parse().map_err(|_| EndpointError::Url)?;
        let mut headers = HeaderMap::new();
        for (name, value) in &settings.otlp_headers {
            let invalid = || EndpointError::Header(name.clone());
            let header_name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid())?;
            let mut value = HeaderValue::from_str(value.expose()).map_err(|_| invalid())?;
            value.set_sensitive(true);
            headers.insert(header_name, value);
        }
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::USER_AGENT, HeaderValue::from_static(concat!("Guildhall/", env!("CARGO_PKG_VERSION"))));
        let connector = net::https_connector(net::tls::public_authorities(), net::tcp_connector(settings.timeout));
        let http = net::pooled_client(connector, Pool { idle_timeout: IDLE_TIMEOUT, max_idle: 1 });
        Ok(Some(Self { http, uri, headers, timeout: settings.timeout }))
    }

    /// Sends a request once. Returns the number of spans that the collector rejected.
    pub(super) async fn send(&self, body: Bytes) -> Result<u64, ExportError> {
        let later = |message: String| ExportError::Retryable { message, wait: None };
        match tokio::time::timeout(self.timeout, self.exchange(body)).await {
            Ok(result) => result,
            Err(_) => Err(later(format!("no response within {:?}", self.timeout))),
        }
    }

    async fn exchange(&self, body: Bytes) -> Result<u64, ExportError> {
        let later = |message: String| ExportError::Retryable { message, wait: None };
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        let response = self.http.request(request).await.map_err(|error| later(chain(&error)))?;
        let (head, body) = response.into_parts();
        let body = net::read_body(body, MAX_RESPONSE_BYTES).await.map_err(|error| later(error.to_string()))?;
        evaluate_response(head.status, &head.headers, &body)
    }
}

/// Maps a response to a result.
fn evaluate_response(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Result<u64, ExportError> {
    if status.is_success() {
        return Ok(rejected_spans(body));
    }
    let quoted: String =
        String::from_utf8_lossy(body).chars().filter(|next| !next.is_control()).take(MAX_QUOTED_CHARS).collect();
    let message = format!("response {}: {quoted}", status.as_u16());
    match status {
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => {
            let wait = net::retry_after::seconds(headers).map(|wait| wait.min(MAX_RETRY_AFTER));
            Err(ExportError::Retryable { message, wait })
        }
        _ => Err(ExportError::Permanent { message }),
    }
}

/// Returns the number of rejected spans in a response. OTLP encodes the number as a string.
fn rejected_spans(body: &[u8]) -> u64 {
    let response: Value = serde_json::from_slice(body).unwrap_or_default();
    let count = &response["partialSuccess"]["rejectedSpans"];
    count.as_u64().or_else(|| count.as_str()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::SecretValue;

    fn settings(endpoint: &str, headers: &[(&str, &str)]) -> TelemetrySettings {
        TelemetrySettings {
            otlp_endpoint: Some(endpoint.to_owned()),
            otlp_headers: headers.iter().map(|(name, value)| ((*name).to_owned(), SecretValue::new(*value))).collect(),
            timeout: Duration::from_secs(1),
            queue: 10,
            service_name: "town".to_owned(),
        }
    }

    #[test]
    fn traces_path_is_appended_once() {
        for endpoint in ["http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"] {
            let client = CollectorClient::new(&settings(endpoint, &[])).unwrap().unwrap();
            assert_eq!(client.uri, "http://127.0.0.1:4318/v1/traces");
        }
        let below = CollectorClient::new(&settings("https://collector.example/otlp", &[])).unwrap().unwrap();
        assert_eq!(below.uri, "https://collector.example/otlp/v1/traces");
    }

    #[test]
    fn invalid_header_is_named_without_its_value() {
        for header in [("a b", "hush"), ("fine", "hu\nsh")] {
            let error = CollectorClient::new(&settings("http://127.0.0.1", &[header])).unwrap_err().to_string();
            assert!(error.contains(header.0) && !error.contains("hu"), "{error}");
        }
    }

    #[test]
    fn retryable_statuses_are_distinguished() {
        let evaluated = |status: u16, headers: &HeaderMap, body: &str| {
            evaluate_response(StatusCode::from_u16(status).unwrap(), headers, body.as_bytes())
        };
        let none = HeaderMap::new();
        assert_eq!(evaluated(200, &none, "").unwrap(), 0);
        assert_eq!(evaluated(200, &none, r#"{"partialSuccess":{"rejectedSpans":"3"}}"#).unwrap(), 3);
        let busy = HeaderMap::from_iter([(header::RETRY_AFTER, HeaderValue::from_static("5"))]);
        for status in [429, 502, 503, 504] {
            let refused = evaluated(status, &busy, "busy").unwrap_err();
            let ExportError::Retryable { wait, .. } = refused else { panic!("{refused:?}") };
            assert_eq!(wait, Some(Duration::from_secs(5)));
        }
        assert!(
            matches!(evaluated(400, &none, "what?"), Err(ExportError::Permanent { message }) if message == "response 400: what?")
        );
    }
}
