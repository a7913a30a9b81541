//! Request ids, for responses, logs and the audit.

use std::sync::Arc;

use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};

/// Header that carries the request id.
const REQUEST_ID: &str = "x-request-id";
/// Maximum length of an id that the caller chose.
const MOST: usize = 128;

/// The id of a request: the one from its header, or a random one.
pub(crate) fn of(headers: &HeaderMap) -> Arc<str> {
    let plain = |text: &&str| {
        (1..=MOST).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
    };
    let given = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok()).filter(plain);
    given.map_or_else(|| Arc::from(format!("{:032x}", fastrand::u128(..))), Arc::from)
}

/// Adds the id to the headers of a response.
pub(crate) fn tell(named: &str, answer: &mut HeaderMap) {
    if let Ok(named) = HeaderValue::from_str(named) {
        answer.insert(HeaderName::from_static(REQUEST_ID), named);
    }
}
