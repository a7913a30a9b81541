//! The `Retry-After` header of a response. Each caller has its own maximum, and its own wait for a missing or invalid
//! header.

use std::time::{Duration, SystemTime};

use guildhall_core::time::UnixMs;
use http::{HeaderMap, header};

/// Longer waits are shortened to this, so that a wait can be added to any time.
const MAX_WAIT: Duration = Duration::from_secs(u32::MAX as u64);

/// Parses a header in whole seconds.
pub(crate) fn seconds(headers: &HeaderMap) -> Option<Duration> {
    parse_seconds(text(headers)?)
}

/// Parses a header in seconds that may have decimals, as Discord sends it.
pub(crate) fn decimal_seconds(headers: &HeaderMap) -> Option<Duration> {
    let wait = Duration::try_from_secs_f64(text(headers)?.parse().ok()?).ok()?;
    Some(wait.min(MAX_WAIT))
}

/// Parses a header in whole seconds or as a date. The wait until a past date is zero.
pub(crate) fn seconds_or_date(headers: &HeaderMap, now: UnixMs) -> Option<Duration> {
    let text = text(headers)?;
    parse_seconds(text).or_else(|| {
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(now.millis());
        let date = httpdate::parse_http_date(text).ok()?;
        Some(date.duration_since(now).unwrap_or_default().min(MAX_WAIT))
    })
}

fn text(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::RETRY_AFTER)?.to_str().ok().map(str::trim)
}

fn parse_seconds(text: &str) -> Option<Duration> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    // A number that is too large for an integer means the maximum.
    is_number.then(|| text.parse().map_or(MAX_WAIT, Duration::from_secs).min(MAX_WAIT))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sun, 06 Nov 1994 08:49:37 GMT
    const NOW: UnixMs = UnixMs::new(784_111_777_000);

    fn headers(value: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::RETRY_AFTER, value.parse().unwrap())])
    }

    #[test]
    fn seconds_and_dates_are_parsed_and_capped() {
        for (header, wait) in [
            ("0", Some(0)),
            ("17", Some(17)),
            (" 17 ", Some(17)),
            ("99999999999", Some(u64::from(u32::MAX))),
            ("99999999999999999999999999", Some(u64::from(u32::MAX))),
            ("Sun, 06 Nov 1994 08:50:07 GMT", Some(30)),
            ("Sun, 06 Nov 1994 08:49:07 GMT", Some(0)),
            ("-1", None),
            ("1.5", None),
            ("", None),
            ("soon", None),
        ] {
            let wait = wait.map(Duration::from_secs);
            assert_eq!(seconds_or_date(&headers(header), NOW), wait, "{header}");
            let is_date = header.ends_with("GMT");
            assert_eq!(seconds(&headers(header)), wait.filter(|_| !is_date), "{header}");
        }
        assert_eq!(seconds_or_date(&HeaderMap::new(), NOW), None);
        assert_eq!(seconds(&HeaderMap::new()), None);
    }

    #[test]
    fn decimal_seconds_are_parsed_and_capped() {
        for (header, millis) in [
            ("0", Some(0)),
            ("65", Some(65_000)),
            (" 0.25 ", Some(250)),
            ("1e15", Some(u64::from(u32::MAX) * 1_000)),
            ("1e99", None),
            ("-1", None),
            ("NaN", None),
            ("inf", None),
            ("", None),
            ("Sun, 06 Nov 1994 08:50:07 GMT", None),
        ] {
            assert_eq!(decimal_seconds(&headers(header)), millis.map(Duration::from_millis), "{header}");
        }
        assert_eq!(decimal_seconds(&HeaderMap::new()), None);
    }
}
