//! The `Prefer` header (RFC 7240), as far as it is about waiting.

use std::time::Duration;

use actix_web::http::header::HeaderMap;

/// Maximum time to wait, in seconds.
const MAX_WAIT_SECONDS: u64 = 60;

/// How long a caller requests to wait for the end of its submission. An invalid preference is ignored, as the RFC says.
pub(crate) fn requested_wait(headers: &HeaderMap) -> Option<Duration> {
    let given = headers.get_all("Prefer").filter_map(|value| value.to_str().ok());
    // The first of several is used.
    let seconds: u64 = given.flat_map(|value| value.split(',')).find_map(|wish| {
        let wish = wish.split(';').next()?;
        let (name, value) = wish.split_once('=')?;
        name.trim().eq_ignore_ascii_case("wait").then(|| value.trim().trim_matches('"').parse().ok())
    })??;
    (seconds > 0).then(|| Duration::from_secs(seconds.min(MAX_WAIT_SECONDS)))
}

/// The response header for an applied preference.
pub(crate) fn applied(wait: Duration) -> (&'static str, String) {
    ("preference-applied", format!("wait={}", wait.as_secs()))
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::{HeaderName, HeaderValue};

    use super::*;

    fn of(values: &[&str]) -> Option<u64> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(HeaderName::from_static("prefer"), HeaderValue::from_str(value).unwrap());
        }
        requested_wait(&headers).map(|wait| wait.as_secs())
    }

    #[test]
    fn wait_preference_is_parsed_and_invalid_ones_ignored() {
        assert_eq!(of(&["wait=5"]), Some(5));
        assert_eq!(of(&["respond-async, Wait=\"7\"; x=1"]), Some(7));
        assert_eq!(of(&["handling=strict", "wait = 60"]), Some(60));
        assert_eq!(of(&["wait=3600"]), Some(MAX_WAIT_SECONDS));
        for nonsense in ["wait=0", "wait", "wait=-1", "wait=soon", "await=5", ""] {
            assert_eq!(of(&[nonsense]), None, "{nonsense}");
        }
        assert_eq!(of(&[]), None);
    }
}
