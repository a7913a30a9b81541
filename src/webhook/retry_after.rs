//! Parses the `Retry-After` header of a webhook's response.

use std::time::{Duration, SystemTime};

use guildhall_core::time::UnixMs;
use http::{HeaderMap, header};

/// Parses `Retry-After`, in seconds or as a date. Returns at most `max`, and `None` for an invalid header.
pub(super) fn retry_after(headers: &HeaderMap, now: UnixMs, max: Duration) -> Option<Duration> {
    let value = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        // A number that is too large for an integer means the maximum.
        value.parse().map_or(Duration::MAX, Duration::from_secs)
    } else {
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(now.millis());
        httpdate::parse_http_date(value).ok()?.duration_since(now).unwrap_or_default()
    };
    Some(wait.min(max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_dates_are_parsed_and_capped() {
        // Sun, 06 Nov 1994 08:49:37 GMT
        let now = UnixMs::new(784_111_777_000);
        for (header, wait) in [
            ("0", Some(0)),
            ("17", Some(17)),
            (" 17 ", Some(17)),
            ("601", Some(600)),
            ("99999999999999999999999999", Some(600)),
            ("Sun, 06 Nov 1994 08:50:07 GMT", Some(30)),
            ("Sun, 06 Nov 1994 08:49:07 GMT", Some(0)),
            ("Sun, 06 Nov 2044 08:49:37 GMT", Some(600)),
            ("-1", None),
            ("1.5", None),
            ("", None),
            ("soon", None),
        ] {
            let headers = HeaderMap::from_iter([(header::RETRY_AFTER, header.parse().unwrap())]);
            let read = retry_after(&headers, now, Duration::from_secs(600));
            assert_eq!(read, wait.map(Duration::from_secs), "{header}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now, Duration::MAX), None);
    }
}
