//! Settings of the process: its log, its traces and its shutdown.

use std::time::Duration;

use tracing_subscriber::EnvFilter;

use super::{
    declare::settings,
    kind::{Choice, HTTP_URL, Integer, NAME, Optional, Text, ValueError},
    secret::SecretValue,
};

settings! {
    /// Logging.
    #[derive(Clone, Debug)]
    pub struct LogSettings in "log" {
        /// Format of log lines. `auto`: pretty on a terminal, else JSON. They are written to standard error.
        pub format: LogFormat = Choice(FORMATS), "auto";
        /// Which log lines are written: a level, or directives such as `info,twilight_gateway=debug`.
        #[reloadable]
        pub filter: String = FILTER, "info";
    }

    /// Settings of the export of traces.
    #[derive(Clone, Debug)]
    pub struct TelemetrySettings in "telemetry" {
        /// URL of an OpenTelemetry collector that traces (docs/observability.md#opentelemetry) are exported to, by OTLP
        /// over HTTP, such as `http://127.0.0.1:4318`; /v1/traces is added. Empty: no export. Needs a program that was
        /// built with the feature `otel`.
        pub otlp_endpoint: Option<String> = Optional(HTTP_URL), "";
        /// Headers of requests to the collector, such as authorization=Bearer abc.
        pub otlp_headers: Vec<(String, SecretValue)> = HEADERS;
        /// How long a request to the collector may take, in milliseconds.
        pub timeout as "otlp_timeout_ms": Duration = Integer(1..=600_000), 10000;
        /// Maximum number of spans that wait for the collector. More are dropped and counted.
        pub queue as "otlp_queue": usize = Integer(1..=1_000_000), 4096;
        /// Name of this service at the collector.
        pub service_name: String = NAME, "guildhall";
    }

    /// Shutdown of the process.
    #[derive(Clone, Debug)]
    pub struct ShutdownSettings in "shutdown" {
        /// How long a shutdown may take, in milliseconds. After that the process exits with code 1.
        pub timeout as "timeout_ms": Duration = Integer(1..=600_000), 10000;
        /// How long the API still accepts new requests after a shutdown has started and `/readyz` reports it, in
        /// milliseconds, for load balancers that need time to notice. Less than `shutdown.timeout_ms`, which includes
        /// it.
        pub delay as "delay_ms": Duration = Integer(0..=600_000), 0;
    }
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Pretty on a terminal, else JSON.
    Auto,
    /// Human-readable.
    Pretty,
    /// One JSON object a line.
    Json,
}

const FORMATS: &[(&str, LogFormat)] =
    &[("auto", LogFormat::Auto), ("pretty", LogFormat::Pretty), ("json", LogFormat::Json)];

/// Log filter directives, in the syntax of `tracing`.
const FILTER: Text<String> = Text::new(
    |text| {
        let fits = !text.trim().is_empty() && EnvFilter::builder().with_regex(false).parse(text).is_ok();
        if fits { Ok(text.to_owned()) } else { Err(ValueError::NotAllowed) }
    },
    "a level (error, warn, info, debug, trace) or `target=level` directives, separated by commas",
);

/// Headers of HTTP requests. They contain credentials, so they are a secret.
const HEADERS: Text<Vec<(String, SecretValue)>> = Text {
    parse: headers,
    display: |_| "(redacted)".to_owned(),
    allowed: "name=value, separated by commas",
    secrets: Some(header_secrets),
};

/// Parses headers: `name=value`, separated by commas.
fn headers(text: &str) -> Result<Vec<(String, SecretValue)>, ValueError> {
    let header = |one: &str| {
        let (name, value) = one.split_once('=')?;
        let (name, value) = (name.trim(), value.trim());
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        // Only characters that JSON does not escape: the redaction of logs depends on it.
        let is_value = |byte: u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\' | b',');
        let fits = !name.is_empty() && !value.is_empty();
        let fits = fits && name.bytes().all(is_name) && value.bytes().all(is_value);
        fits.then(|| (name.to_ascii_lowercase(), SecretValue::new(value)))
    };
    let all: Option<Vec<_>> = text.split(',').map(header).collect();
    all.ok_or_else(|| ValueError::Message("is not a list of headers".to_owned()))
}

/// Returns the secret parts of headers: each whole value, and what follows a scheme such as `Bearer`.
#[expect(clippy::ptr_arg, reason = "the type of the kind")]
fn header_secrets(headers: &Vec<(String, SecretValue)>) -> Vec<SecretValue> {
    let parts = headers.iter().flat_map(|(_, value)| {
        let credentials = value.expose().split_once(' ').map(|(_, rest)| SecretValue::new(rest.trim()));
        std::iter::once(value.clone()).chain(credentials)
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_names_and_values_and_their_values_are_secrets() {
        let headers = |text| headers(text).ok();
        let some = headers("Authorization=Bearer abc=, x-team = a/b").unwrap();
        let pairs: Vec<_> = some.iter().map(|(name, value)| (name.as_str(), value.expose())).collect();
        assert_eq!(pairs, [("authorization", "Bearer abc="), ("x-team", "a/b")]);
        let hidden: Vec<_> = header_secrets(&some).iter().map(|secret| secret.expose().to_owned()).collect();
        assert_eq!(hidden, ["Bearer abc=", "abc=", "a/b"]);
        assert!(!format!("{some:?}").contains("abc"));
        for wrong in ["", "a", "=b", "a=", "a b=c", "a=b,,c=d", "a=\"b\"", "a=ü", "a=b\nc"] {
            assert!(headers(wrong).is_none(), "{wrong}");
        }
    }
}
