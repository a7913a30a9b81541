//! A request to the daemon.

use std::time::Duration;

use http::{Method, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use url::form_urlencoded;

/// Characters that need no encoding in a path segment.
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b':');

/// A request to the daemon.
#[derive(Clone, Debug)]
pub struct ApiRequest {
    method: Method,
    path: String,
    headers: Vec<(&'static str, String)>,
    body: Option<Value>,
    feature: Option<&'static str>,
    once: bool,
    extra_wait: Duration,
}

impl ApiRequest {
    /// Creates a request for a path, which starts with a slash.
    pub fn new(method: Method, path: impl Into<String>) -> Self {
        Self {
            once: method != Method::GET,
            method,
            path: path.into(),
            headers: Vec::new(),
            body: None,
            feature: None,
            extra_wait: Duration::ZERO,
        }
    }

    /// Creates a POST request.
    pub fn post(path: impl Into<String>) -> Self {
        Self::new(Method::POST, path)
    }

    /// Sets a JSON body.
    #[must_use]
    pub fn with_body(self, body: Value) -> Self {
        Self { body: Some(body), ..self }
    }

    /// Adds a header.
    #[must_use]
    pub fn with_header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Permits retries: the request is idempotent.
    #[must_use]
    pub fn repeatable(self) -> Self {
        Self { once: false, ..self }
    }

    /// Sets the name of the feature, for the error of a daemon that does not support it. Only for paths that every
    /// daemon with the feature has.
    #[must_use]
    pub fn with_feature(self, feature: &'static str) -> Self {
        Self { feature: Some(feature), ..self }
    }

    /// Adds to the timeout the time that the daemon waits before it responds.
    #[must_use]
    pub fn with_extra_wait(self, waits: Duration) -> Self {
        Self { extra_wait: waits, ..self }
    }

    pub(super) const fn method(&self) -> &Method {
        &self.method
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn headers(&self) -> &[(&'static str, String)] {
        &self.headers
    }

    pub(super) const fn body(&self) -> Option<&Value> {
        self.body.as_ref()
    }

    pub(super) const fn feature(&self) -> Option<&'static str> {
        self.feature
    }

    pub(super) const fn extra_wait(&self) -> Duration {
        self.extra_wait
    }

    pub(super) const fn may_repeat(&self) -> bool {
        !self.once
    }

    /// Whether the request may change something.
    pub(super) fn is_mutation(&self) -> bool {
        self.method != Method::GET
    }

    /// Whether this status means that the daemon does not have the path.
    pub(super) fn is_unsupported(&self, status: StatusCode) -> bool {
        self.feature.is_some() && matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED)
    }
}

/// Encodes a text as one path segment.
#[must_use]
pub fn path_segment(text: &str) -> String {
    // A segment of dots only would be resolved as a parent folder.
    if text.chars().all(|c| c == '.') {
        return text.replace('.', "%2E");
    }
    utf8_percent_encode(text, UNRESERVED).to_string()
}

/// Appends the query parameters that have a value to a path.
#[must_use]
pub(super) fn with_query(path: &str, parameters: &[(&str, Option<String>)]) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    for (name, value) in parameters {
        if let Some(value) = value {
            query.append_pair(name, value);
        }
    }
    let query = query.finish();
    if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_one_path_segment() {
        assert_eq!(path_segment("0198-ab.c~_"), "0198-ab.c~_");
        assert_eq!(path_segment("a/b?c#d e"), "a%2Fb%3Fc%23d%20e");
        assert_eq!((path_segment(".."), path_segment(".")), ("%2E%2E".to_owned(), "%2E".to_owned()));
        assert_eq!(path_segment("discord:GET /gateway"), "discord:GET%20%2Fgateway");
    }

    #[test]
    fn only_given_parameters_are_in_the_query() {
        let path = with_query("/v1/x", &[("a", Some("1 2&b".to_owned())), ("c", None), ("d", Some("é".to_owned()))]);
        assert_eq!(path, "/v1/x?a=1+2%26b&d=%C3%A9");
        assert_eq!(with_query("/v1/x", &[("c", None)]), "/v1/x");
    }

    #[test]
    fn unsupported_feature_is_detected_by_status() {
        let plain = ApiRequest::post("/v1/x");
        assert!(!plain.is_unsupported(StatusCode::NOT_FOUND) && !plain.may_repeat() && plain.is_mutation());
        let about = plain.with_feature("x").repeatable();
        assert!(about.is_unsupported(StatusCode::NOT_FOUND) && about.is_unsupported(StatusCode::METHOD_NOT_ALLOWED));
        assert!(!about.is_unsupported(StatusCode::BAD_REQUEST) && about.may_repeat());
    }
}
