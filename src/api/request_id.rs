//! What requests are called, in answers, logs and notes.

use std::sync::Arc;

use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};

/// What names a request.
const REQUEST_ID: &str = "x-request-id";
/// The longest name that a caller may give one.
const MOST: usize = 128;

/// What a request is called: as its caller says, or by chance.
pub(super) fn of(headers: &HeaderMap) -> Arc<str> {
    let plain = |text: &&str| {
        (1..=MOST).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
    };
    let given = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok()).filter(plain);
    given.map_or_else(|| Arc::from(format!("{:032x}", fastrand::u128(..))), Arc::from)
}

/// Repeats the name in an answer.
pub(super) fn tell(named: &str, answer: &mut HeaderMap) {
    if let Ok(named) = HeaderValue::from_str(named) {
        answer.insert(HeaderName::from_static(REQUEST_ID), named);
    }
}
