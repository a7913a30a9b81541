//! Classifies a response by its status, headers and body alone.

use std::time::{Duration, SystemTime};

use guildhall_core::response::{Credential, RateHeaders, RateLimitScope, ResponseClass};
use guildhall_core::time::UnixMs;
use http::{HeaderMap, StatusCode, header};
use serde::Deserialize;
use serde_json::Value;

use crate::net::retry_after;

/// Class of a response, and the data that was read with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classification {
    /// Class of the response.
    pub class: ResponseClass,
    /// Discord's error code, if the body has one.
    pub code: Option<u32>,
    /// Rate limit headers of the bucket, if all are present and valid.
    pub rate: Option<RateHeaders>,
}

/// Discord's error code for an expired token in the path.
const INVALID_WEBHOOK_TOKEN: u32 = 50_027;

/// Discord's error code for a webhook that does not exist.
const UNKNOWN_WEBHOOK: u32 = 10_015;

/// How long to wait after a 429 without a retry time.
const DEFAULT_WAIT: Duration = Duration::from_secs(1);

/// Longer waits are treated as invalid. The longest that have been observed are about a day.
const MAX_WAIT: Duration = Duration::from_secs(31 * 86_400);

/// A bucket's id is a short hash; a longer value is ignored.
const MAX_BUCKET_LEN: usize = 128;

/// The fields of an error body that classify it. A field of the wrong type is ignored.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ErrorBody {
    code: Value,
    global: Value,
    retry_after: Value,
}

impl ErrorBody {
    fn retry_after(&self) -> Option<Duration> {
        parse_wait(self.retry_after.as_f64()?)
    }
}

/// Classifies a response. A malformed response gets a class, too.
#[must_use]
pub fn classify(credential: Credential, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Classification {
    let rate = rate_headers(headers);
    if status.is_success() {
        return Classification { class: ResponseClass::Success, code: None, rate };
    }
    let error: Option<ErrorBody> = serde_json::from_slice(body).ok();
    let code = error.as_ref().and_then(|error| error.code.as_u64()).and_then(|code| u32::try_from(code).ok());
    let class = match status {
        StatusCode::TOO_MANY_REQUESTS => classify_429(headers, error.as_ref()),
        // A call without the bot's token says nothing about that token when it fails.
        StatusCode::UNAUTHORIZED if code == Some(INVALID_WEBHOOK_TOKEN) || credential == Credential::Anonymous => {
            ResponseClass::InteractionEnded
        }
        StatusCode::UNAUTHORIZED => ResponseClass::Unauthorized,
        // Never a ban, no matter which server sent it: Cloudflare also rejects single calls because of their body.
        StatusCode::FORBIDDEN => ResponseClass::Forbidden,
        StatusCode::NOT_FOUND if code == Some(UNKNOWN_WEBHOOK) => ResponseClass::WebhookGone,
        StatusCode::NOT_FOUND => ResponseClass::NotFound,
        status if status.is_server_error() => ResponseClass::ServerError,
        // Includes redirects: none is followed.
        _ => ResponseClass::Rejected,
    };
    Classification { class, code, rate }
}

/// Returns the time at which Discord's API sent a response, by its own clock. A page from Cloudflare, an error of a
/// proxy and a cached response carry the time of another clock, or of another moment.
#[must_use]
pub(super) fn api_date(status: StatusCode, headers: &HeaderMap, class: ResponseClass) -> Option<UnixMs> {
    let is_from_api = match class {
        ResponseClass::Success
        | ResponseClass::Unauthorized
        | ResponseClass::InteractionEnded
        | ResponseClass::Forbidden
        | ResponseClass::NotFound
        | ResponseClass::WebhookGone
        | ResponseClass::Rejected
        | ResponseClass::RateLimited { .. } => true,
        ResponseClass::ServerError | ResponseClass::Blocked { .. } => false,
    };
    let text = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let is_json = status == StatusCode::NO_CONTENT
        || text(header::CONTENT_TYPE).is_some_and(|kind| kind.starts_with("application/json"));
    let is_cached = headers.contains_key(header::AGE)
        || headers.get("cf-cache-status").is_some_and(|status| status.as_bytes() == b"HIT");
    if !is_from_api || !is_json || is_cached {
        return None;
    }
    let date = httpdate::parse_http_date(text(header::DATE)?).ok()?;
    let since = date.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Some(UnixMs::new(u64::try_from(since.as_millis()).ok()?))
}

/// A 429 is from Discord if it names a limit of Discord, or if it came through Discord's proxy (`Via`) and its body has
/// a retry time. Any other is from Cloudflare: the 1015 page, or the fixed JSON body.
fn classify_429(headers: &HeaderMap, error: Option<&ErrorBody>) -> ResponseClass {
    let names_limit = ["x-ratelimit-scope", "x-ratelimit-global", "x-ratelimit-bucket"]
        .iter()
        .any(|name| headers.contains_key(*name));
    let in_body = error.and_then(ErrorBody::retry_after);
    let in_header = retry_after::decimal_seconds(headers).filter(|wait| *wait <= MAX_WAIT);
    // `None` is less than any wait.
    let retry_after = in_header.max(in_body);
    let genuine = error.is_some() && (names_limit || (headers.contains_key(header::VIA) && in_body.is_some()));
    if !genuine {
        return ResponseClass::Blocked { retry_after };
    }
    let scope = scope(headers, error);
    ResponseClass::RateLimited { scope, retry_after: retry_after.unwrap_or(DEFAULT_WAIT) }
}

fn scope(headers: &HeaderMap, error: Option<&ErrorBody>) -> RateLimitScope {
    let global = text(headers, "x-ratelimit-global").is_some_and(|text| text.eq_ignore_ascii_case("true"))
        || error.is_some_and(|error| error.global == Value::Bool(true));
    match text(headers, "x-ratelimit-scope") {
        Some("global") => RateLimitScope::Global,
        _ if global => RateLimitScope::Global,
        Some("shared") => RateLimitScope::Shared,
        _ => RateLimitScope::User,
    }
}

/// Reads the five headers of a bucket. Returns `None` unless all are present and valid.
fn rate_headers(headers: &HeaderMap) -> Option<RateHeaders> {
    let bucket = text(headers, "x-ratelimit-bucket")?;
    if bucket.is_empty() || bucket.len() > MAX_BUCKET_LEN {
        return None;
    }
    let limit: u32 = text(headers, "x-ratelimit-limit")?.parse().ok()?;
    let remaining: u32 = text(headers, "x-ratelimit-remaining")?.parse().ok()?;
    if limit == 0 || remaining > limit {
        return None;
    }
    let reset_ms = epoch_ms(text(headers, "x-ratelimit-reset")?.parse().ok()?)?;
    let reset_after = parse_wait(text(headers, "x-ratelimit-reset-after")?.parse().ok()?)?;
    Some(RateHeaders { bucket: bucket.to_owned(), limit, remaining, reset_ms, reset_after })
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

/// Converts seconds to a wait. Returns `None` for a value that no sane server sends.
fn parse_wait(seconds: f64) -> Option<Duration> {
    let wait = Duration::try_from_secs_f64(seconds).ok()?;
    (wait <= MAX_WAIT).then_some(wait)
}

/// Converts seconds since 1970 to milliseconds.
fn epoch_ms(seconds: f64) -> Option<u64> {
    // An `f64` represents a current timestamp to well below a microsecond, so rounding gives Discord's exact
    // millisecond.
    let micros = Duration::try_from_secs_f64(seconds).ok()?.as_micros();
    u64::try_from((micros + 500) / 1_000).ok()
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};
    use proptest::prelude::*;

    use super::*;

    const BOT: Credential = Credential::Application(1);
    const BUCKET: [(&str, &str); 5] = [
        ("x-ratelimit-bucket", "abcd1234"),
        ("x-ratelimit-limit", "5"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "1470173023.123"),
        ("x-ratelimit-reset-after", "64.57"),
    ];

    fn headers<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> HeaderMap {
        let parsed = |(name, value): (&str, &str)| {
            (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap())
        };
        pairs.into_iter().map(parsed).collect()
    }

    fn class_of(status: u16, pairs: &[(&str, &str)], body: &str) -> ResponseClass {
        let status = StatusCode::from_u16(status).unwrap();
        classify(BOT, status, &headers(pairs.iter().copied()), body.as_bytes()).class
    }

    fn limited(scope: RateLimitScope, millis: u64) -> ResponseClass {
        ResponseClass::RateLimited { scope, retry_after: Duration::from_millis(millis) }
    }

    #[test]
    fn only_dates_from_the_api_count() {
        const DATE: (&str, &str) = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
        const JSON: (&str, &str) = ("content-type", "application/json");
        let date = |status: u16, pairs: &[(&str, &str)]| {
            let (status, headers) = (StatusCode::from_u16(status).unwrap(), headers(pairs.iter().copied()));
            let class = classify(BOT, status, &headers, b"{}").class;
            api_date(status, &headers, class).map(UnixMs::millis)
        };
        let expected = Some(784_111_777_000);
        assert_eq!(date(200, &[DATE, JSON]), expected);
        assert_eq!(date(204, &[DATE]), expected);
        assert_eq!(date(404, &[DATE, JSON]), expected);
        assert_eq!(date(429, &[DATE, JSON, ("x-ratelimit-scope", "user")]), expected);
        assert_eq!(date(200, &[JSON]), None, "no date");
        assert_eq!(date(200, &[("date", "yesterday"), JSON]), None);
        assert_eq!(date(403, &[DATE, ("content-type", "text/html")]), None, "a page from Cloudflare");
        assert_eq!(date(429, &[DATE, JSON]), None, "Cloudflare's limit");
        assert_eq!(date(502, &[DATE, JSON]), None, "a server in between");
        assert_eq!(date(200, &[DATE, JSON, ("age", "30")]), None, "from a cache");
        assert_eq!(date(200, &[DATE, JSON, ("cf-cache-status", "HIT")]), None);
    }

    #[test]
    fn bucket_headers_parse_to_the_millisecond() {
        let rate = classify(BOT, StatusCode::OK, &headers(BUCKET), b"[]").rate.unwrap();
        assert_eq!(rate.bucket, "abcd1234");
        assert_eq!((rate.limit, rate.remaining), (5, 0));
        assert_eq!(rate.reset_ms, 1_470_173_023_123);
        assert_eq!(rate.reset_after, Duration::from_millis(64_570));
    }

    #[test]
    fn missing_or_invalid_bucket_headers_are_ignored() {
        for (missing, _) in BUCKET {
            let rest = BUCKET.into_iter().filter(|(name, _)| *name != missing);
            assert_eq!(classify(BOT, StatusCode::OK, &headers(rest), b"").rate, None, "{missing}");
        }
        let long = "b".repeat(MAX_BUCKET_LEN + 1);
        for (name, value) in [
            ("x-ratelimit-bucket", ""),
            ("x-ratelimit-bucket", &long),
            ("x-ratelimit-limit", "0"),
            ("x-ratelimit-limit", "-5"),
            ("x-ratelimit-limit", "99999999999"),
            ("x-ratelimit-remaining", "6"),
            ("x-ratelimit-reset", "NaN"),
            ("x-ratelimit-reset", "1e300"),
            ("x-ratelimit-reset-after", "inf"),
            ("x-ratelimit-reset-after", "-1"),
            ("x-ratelimit-reset-after", "9999999"),
            ("x-ratelimit-reset-after", "soon"),
        ] {
            let mut headers = headers(BUCKET);
            headers.insert(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
            assert_eq!(classify(BOT, StatusCode::OK, &headers, b"").rate, None, "{name}: {value}");
        }
    }

    #[test]
    fn discord_429_gives_its_scope_and_the_longer_wait() {
        let via = ("via", "1.1 google");
        let body = r#"{"message":"You are being rate limited.","retry_after":64.57,"global":false}"#;
        let user = [via, ("retry-after", "65"), ("x-ratelimit-scope", "user"), ("x-ratelimit-bucket", "b")];
        assert_eq!(class_of(429, &user, body), limited(RateLimitScope::User, 65_000));
        let shared = [via, ("retry-after", "3"), ("x-ratelimit-scope", "shared")];
        assert_eq!(class_of(429, &shared, body), limited(RateLimitScope::Shared, 64_570));
        let global = [via, ("retry-after", "1"), ("x-ratelimit-scope", "global"), ("x-ratelimit-global", "true")];
        let global_body = r#"{"message":"You are being rate limited.","retry_after":0.5,"global":true}"#;
        assert_eq!(class_of(429, &global, global_body), limited(RateLimitScope::Global, 1_000));
        assert_eq!(class_of(429, &[via], global_body), limited(RateLimitScope::Global, 500));
        assert_eq!(class_of(429, &[via], body), limited(RateLimitScope::User, 64_570));
    }

    #[test]
    fn a_429_without_a_wait_uses_the_default() {
        for body in ["{}", r#"{"retry_after":"soon"}"#, r#"{"retry_after":-4}"#, r#"{"retry_after":1e99}"#] {
            let class = class_of(429, &[("x-ratelimit-scope", "user"), ("retry-after", "-1")], body);
            assert_eq!(
                class,
                ResponseClass::RateLimited { scope: RateLimitScope::User, retry_after: DEFAULT_WAIT },
                "{body}"
            );
        }
    }

    #[test]
    fn cloudflare_ban_differs_from_a_discord_429() {
        let page = "<html><h1>Error 1015</h1></html>";
        let fixed = r#"{"message": "You are being blocked from accessing our API temporarily", "code": 0}"#;
        let genuine = r#"{"message":"You are being rate limited.","retry_after":2.5,"global":false}"#;
        let blocked = |seconds: Option<u64>| ResponseClass::Blocked { retry_after: seconds.map(Duration::from_secs) };
        assert_eq!(class_of(429, &[], page), blocked(None));
        assert_eq!(class_of(429, &[("retry-after", "3600")], page), blocked(Some(3_600)));
        assert_eq!(class_of(429, &[], fixed), blocked(None));
        assert_eq!(class_of(429, &[("via", "1.1 google")], fixed), blocked(None), "no rate limit headers, and no wait");
        assert_eq!(class_of(429, &[("via", "1.1 google")], page), blocked(None), "not JSON");
        assert!(matches!(class_of(429, &[], genuine), ResponseClass::Blocked { retry_after: Some(_) }), "no `Via`");
    }

    #[test]
    fn html_403_or_502_is_not_a_ban() {
        assert_eq!(class_of(403, &[], "<html>Sorry, you have been blocked</html>"), ResponseClass::Forbidden);
        assert_eq!(class_of(502, &[], "<html>Bad gateway</html>"), ResponseClass::ServerError);
    }

    #[test]
    fn a_401_counts_against_the_bot_token_only_if_it_was_used() {
        let invalid_token = br#"{"message":"401: Unauthorized","code":0}"#;
        let expired_webhook = br#"{"message":"Invalid Webhook Token","code":50027}"#;
        let class = |credential, body| classify(credential, StatusCode::UNAUTHORIZED, &HeaderMap::new(), body).class;
        assert_eq!(class(BOT, invalid_token), ResponseClass::Unauthorized);
        assert_eq!(class(BOT, expired_webhook), ResponseClass::InteractionEnded);
        assert_eq!(class(Credential::Anonymous, invalid_token), ResponseClass::InteractionEnded);
    }

    #[test]
    fn other_responses_are_classified_by_status_and_error_code() {
        let body = br#"{"message":"Missing Permissions","code":50013}"#;
        for (status, class) in [
            (204, ResponseClass::Success),
            (302, ResponseClass::Rejected),
            (400, ResponseClass::Rejected),
            (403, ResponseClass::Forbidden),
            (404, ResponseClass::NotFound),
            (405, ResponseClass::Rejected),
            (500, ResponseClass::ServerError),
            (524, ResponseClass::ServerError),
        ] {
            let found = classify(BOT, StatusCode::from_u16(status).unwrap(), &HeaderMap::new(), body);
            assert_eq!(found.class, class, "{status}");
            assert_eq!(found.code, (status >= 300).then_some(50_013), "{status}");
        }
        assert_eq!(classify(BOT, StatusCode::BAD_REQUEST, &HeaderMap::new(), br#"{"code":-1}"#).code, None);
        assert_eq!(classify(BOT, StatusCode::BAD_REQUEST, &HeaderMap::new(), b"no json").code, None);
    }

    proptest! {
        #[test]
        fn arbitrary_responses_never_panic(
            status in 100u16..1000,
            values in proptest::collection::vec(proptest::collection::vec(prop_oneof![Just(b'\t'), 32u8..127, 128u8..=255], 0..24), 9),
            body in proptest::collection::vec(any::<u8>(), 0..64),
        ) {
            let names = ["x-ratelimit-bucket", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset",
                "x-ratelimit-reset-after", "x-ratelimit-scope", "x-ratelimit-global", "retry-after", "via"];
            let headers: HeaderMap = names.iter().zip(&values)
                .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_bytes(value).unwrap()))
                .collect();
            let found = classify(BOT, StatusCode::from_u16(status).unwrap(), &headers, &body);
            prop_assert_eq!(found.class == ResponseClass::Success, (200..300).contains(&status));
        }

        #[test]
        fn valid_numbers_round_trip(
            limit in 1u32.., used in 0u32.., reset_ms in 0u64..10_000_000_000_000, after_ms in 0u64..1_000_000_000,
        ) {
            let remaining = limit - used % limit;
            let (reset, after) = (decimal(reset_ms), decimal(after_ms));
            let (limit_text, remaining_text) = (limit.to_string(), remaining.to_string());
            let headers = headers([
                ("x-ratelimit-bucket", "b"), ("x-ratelimit-limit", &limit_text), ("x-ratelimit-remaining", &remaining_text),
                ("x-ratelimit-reset", &reset), ("x-ratelimit-reset-after", &after),
            ]);
            let rate = classify(BOT, StatusCode::OK, &headers, b"").rate.unwrap();
            prop_assert_eq!((rate.limit, rate.remaining, rate.reset_ms), (limit, remaining, reset_ms));
            prop_assert!(rate.reset_after.abs_diff(Duration::from_millis(after_ms)) < Duration::from_micros(1));
        }
    }

    fn decimal(ms: u64) -> String {
        format!("{}.{:03}", ms / 1_000, ms % 1_000)
    }
}
