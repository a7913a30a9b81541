//! Request ids, for responses, logs and the audit.

use std::sync::Arc;

use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};

/// Header that carries the request id.
pub(crate) const REQUEST_ID: &str = "x-request-id";
/// Maximum length of an id that the caller chose.
const MAX_LEN: usize = 128;

/// The id of a request: the one from its header, or a random one.
pub(crate) fn from_headers(headers: &HeaderMap) -> Arc<str> {
    from_text(headers.get(REQUEST_ID).and_then(|value| value.to_str().ok()))
}

/// The same for the value of the header, if there is one.
pub(crate) fn from_text(given: Option<&str>) -> Arc<str> {
    let plain = |text: &&str| {
        (1..=MAX_LEN).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
    };
    given.filter(plain).map_or_else(|| Arc::from(format!("{:032x}", fastrand::u128(..))), Arc::from)
}

/// Adds the id to the headers of a response.
pub(crate) fn set_header(id: &str, headers: &mut HeaderMap) {
    if let Ok(id) = HeaderValue::from_str(id) {
        headers.insert(HeaderName::from_static(REQUEST_ID), id);
    }
}
