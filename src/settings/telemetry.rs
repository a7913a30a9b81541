//! Typed settings of the export of traces.

use std::time::Duration;

use super::{
    error::SettingsProblem,
    of,
    resolve::Effective,
    secret::SecretValue,
    take,
    value::{Value, url_text},
};

/// Settings of the export of traces.
#[derive(Clone, Debug)]
pub struct TelemetrySettings {
    /// URL of an OpenTelemetry collector, without a trailing slash; `None` means no export.
    pub otlp_endpoint: Option<String>,
    /// Headers of requests to it.
    pub otlp_headers: Vec<(String, SecretValue)>,
    /// Timeout of a request to it.
    pub timeout: Duration,
    /// Maximum number of spans that wait for it.
    pub queue: usize,
    /// Name of the service at the collector.
    pub service_name: String,
}

pub(super) fn typed(effective: &[Effective]) -> TelemetrySettings {
    let headers = match &of(effective, "telemetry.otlp_headers").value {
        Some(Value::Headers(headers)) => headers.clone(),
        _ => Vec::new(),
    };
    TelemetrySettings {
        otlp_endpoint: take!(effective, "telemetry.otlp_endpoint", Url).map(|url| url_text(&url).to_owned()),
        otlp_headers: headers,
        timeout: Duration::from_millis(take!(effective, "telemetry.otlp_timeout_ms", Integer)),
        queue: usize::try_from(take!(effective, "telemetry.otlp_queue", Integer)).unwrap_or(usize::MAX),
        service_name: take!(effective, "telemetry.service_name", Text),
    }
}

/// Rejects a collector if this program cannot export to one.
pub(super) fn check(effective: &[Effective]) -> Option<SettingsProblem> {
    check_built(effective, cfg!(feature = "otel"))
}

fn check_built(effective: &[Effective], built: bool) -> Option<SettingsProblem> {
    let endpoint = effective.iter().find(|setting| setting.key.path == "telemetry.otlp_endpoint")?;
    let Some(Value::Url(Some(_))) = &endpoint.value else { return None };
    (!built).then(|| SettingsProblem {
        key: "telemetry.otlp_endpoint".to_owned(),
        origin: Some(endpoint.origin.clone()),
        message: "is set, but this program was built without OpenTelemetry; build it with `cargo build --release \
            --features otel`, or remove this setting"
            .to_owned(),
    })
}

/// Parses headers: `name=value`, separated by commas.
pub(super) fn parse_headers(text: &str) -> Result<Vec<(String, SecretValue)>, String> {
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
    all.ok_or_else(|| "is not a list of headers".to_owned())
}

/// Returns the secret parts of headers: each whole value, and what follows a scheme such as `Bearer`.
pub(super) fn secrets(headers: &[(String, SecretValue)]) -> impl Iterator<Item = SecretValue> + '_ {
    headers.iter().flat_map(|(_, value)| {
        let credentials = value.expose().split_once(' ').map(|(_, rest)| SecretValue::new(rest.trim()));
        std::iter::once(value.clone()).chain(credentials)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{resolve, source};

    #[test]
    fn endpoint_without_the_otel_feature_is_an_error() {
        let effective = |endpoint: &str| {
            let set = ("GUILDHALL__TELEMETRY__OTLP_ENDPOINT".into(), endpoint.into());
            resolve::resolve(vec![source::from_environment([set])]).0
        };
        let problem = check_built(&effective("http://127.0.0.1:4318"), false).unwrap();
        assert!(problem.message.contains("--features otel"), "{problem:?}");
        assert!(check_built(&effective("http://127.0.0.1:4318"), true).is_none());
        assert!(check_built(&effective(""), false).is_none());
    }

    #[test]
    fn headers_are_names_and_values_and_their_values_are_secrets() {
        let headers = parse_headers("Authorization=Bearer abc=, x-team = a/b").unwrap();
        let pairs: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.expose())).collect();
        assert_eq!(pairs, [("authorization", "Bearer abc="), ("x-team", "a/b")]);
        let hidden: Vec<_> = secrets(&headers).map(|secret| secret.expose().to_owned()).collect();
        assert_eq!(hidden, ["Bearer abc=", "abc=", "a/b"]);
        assert!(!format!("{headers:?}").contains("abc"));
        for wrong in ["", "a", "=b", "a=", "a b=c", "a=b,,c=d", "a=\"b\"", "a=ü", "a=b\nc"] {
            assert!(parse_headers(wrong).is_err(), "{wrong}");
        }
    }
}
