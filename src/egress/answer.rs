//! Responses: Discord's, and Guildhall's own, which look like Discord's and are marked.

use std::time::Duration;

use bytes::Bytes;
use guildhall_actors::gate::{NotSent, RestResponse};
use guildhall_actors::wall_clock::unix_now;
use guildhall_core::limit::RouteBucket;
use guildhall_core::operation::payload::Location;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use serde_json::json;

use super::coalesce::SharedResponse;
use super::headers::{remove_hop_by_hop, remove_own};
use super::send_checks::FORBIDDEN_STORM;
use crate::api::problem::ProblemResponse;
use crate::api::request_id::REQUEST_ID;
use crate::discord::executor::CallRefusal;

/// Why a body ended early.
pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How long Discord took for its response: an extension of the response.
#[derive(Clone, Copy, Debug)]
pub(super) struct DiscordTime(pub(super) Duration);

/// The body of a response.
pub(super) type ResponseBody = UnsyncBoxBody<Bytes, BoxError>;

/// Whether the call was sent to Discord.
const SENT: HeaderName = HeaderName::from_static("x-guildhall-sent");
/// Why Guildhall answered.
const WHY: HeaderName = HeaderName::from_static("x-guildhall-why");
/// Marks own responses, as other REST proxies do.
const GENERATED: HeaderName = HeaderName::from_static("generated-by-proxy");
const BUCKET: HeaderName = HeaderName::from_static("x-ratelimit-bucket");
const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const RESET_AFTER: HeaderName = HeaderName::from_static("x-ratelimit-reset-after");
const GLOBAL: HeaderName = HeaderName::from_static("x-ratelimit-global");
const SCOPE: HeaderName = HeaderName::from_static("x-ratelimit-scope");

/// Whether a call may have reached Discord.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    NotSent,
    Sent,
}

/// A response of Guildhall itself.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OwnAnswer {
    pub(super) status: StatusCode,
    /// A short name out of a fixed set, for `X-Guildhall-Why` and metrics.
    pub(super) why: &'static str,
    /// Discord's error code for this case, or 0.
    pub(super) code: u32,
    pub(super) message: String,
    pub(super) retry_after: Option<Duration>,
    pub(super) delivery: Delivery,
    /// Closes the connection, because the request was not read to its end.
    pub(super) closes: bool,
    /// The bucket of the route, for a 429.
    pub(super) bucket: Option<RouteBucket>,
    /// Whether a 429 is because of the limit of all calls.
    pub(super) is_global: bool,
}

impl OwnAnswer {
    pub(super) fn new(status: StatusCode, why: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            why,
            code: 0,
            message: message.into(),
            retry_after: None,
            delivery: Delivery::NotSent,
            closes: false,
            bucket: None,
            is_global: false,
        }
    }

    pub(super) fn bad_request(why: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, why, message)
    }

    /// 429 for this long.
    pub(super) fn rate_limited(why: &'static str, message: impl Into<String>, retry_after: Duration) -> Self {
        Self { retry_after: Some(retry_after), ..Self::new(StatusCode::TOO_MANY_REQUESTS, why, message) }
    }

    pub(super) fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
    }

    /// The request was not read to its end.
    #[must_use]
    pub(super) fn closing(self) -> Self {
        Self { closes: true, ..self }
    }

    /// The gate did not send the call.
    pub(super) fn not_sent(NotSent { retry_after, message, reason, bucket }: NotSent) -> Self {
        let (status, text) = match reason {
            "route_limit" => (StatusCode::TOO_MANY_REQUESTS, "the rate limit of the route"),
            "global_limit" => (StatusCode::TOO_MANY_REQUESTS, "the global rate limit"),
            "queue_full" => (StatusCode::TOO_MANY_REQUESTS, "too many calls wait for a permit"),
            "rate_limited" | "rate_limited_shared" | "rate_limited_global" => {
                (StatusCode::TOO_MANY_REQUESTS, "Discord limits the calls that a check of this call needs")
            }
            reason if reason.starts_with("invalid_requests") => {
                (StatusCode::TOO_MANY_REQUESTS, "the budget of invalid requests (401, 403, 429) is used up")
            }
            "unauthorized" => (StatusCode::UNAUTHORIZED, "Discord has refused the token of this call"),
            "webhook_gone" => {
                let message = "Unknown Webhook";
                let answer = Self::new(StatusCode::NOT_FOUND, reason, message);
                return Self { code: 10_015, retry_after, ..answer };
            }
            // The caller has to change something; a wait helps only if another caller does.
            FORBIDDEN_STORM => {
                return Self { retry_after, ..Self::new(StatusCode::FORBIDDEN, reason, "Forbidden") };
            }
            "fence_stale" => (StatusCode::PRECONDITION_FAILED, message.as_str()),
            "interaction_ended" => {
                let message = "Invalid Webhook Token";
                return Self { code: 50_027, ..Self::new(StatusCode::UNAUTHORIZED, reason, message) };
            }
            "malformed" => (StatusCode::BAD_REQUEST, message.as_str()),
            "unreachable" => (StatusCode::BAD_GATEWAY, "cannot connect to Discord"),
            "shutting_down" | "recalling" => (StatusCode::SERVICE_UNAVAILABLE, "the process is starting or stopping"),
            "blocked" => (StatusCode::SERVICE_UNAVAILABLE, "Discord has banned this address for a while"),
            _ => (StatusCode::SERVICE_UNAVAILABLE, message.as_str()),
        };
        let text = match status {
            StatusCode::TOO_MANY_REQUESTS => format!("You are being rate limited. (Guildhall: {text})"),
            StatusCode::UNAUTHORIZED => format!("401: Unauthorized (Guildhall: {text})"),
            _ => format!("not sent: {text}"),
        };
        let waits = status == StatusCode::TOO_MANY_REQUESTS;
        let retry_after = retry_after.or(waits.then_some(Duration::from_secs(1)));
        let is_global = matches!(reason, "global_limit" | "rate_limited_global");
        Self { retry_after, bucket, is_global, ..Self::new(status, reason, text) }
    }

    /// Names what Discord answered when the caller was forbidden the same call before.
    #[must_use]
    pub(super) fn with_forbidden_code(self, code: Option<u32>) -> Self {
        let message = match code {
            Some(50_001) => "Missing Access",
            Some(50_013) => "Missing Permissions",
            Some(_) | None => return Self { code: code.unwrap_or(self.code), ..self },
        };
        Self { code: code.unwrap_or_default(), message: message.to_owned(), ..self }
    }

    /// The call was sent, and its outcome is unknown.
    pub(super) fn no_response(message: &str) -> Self {
        let text = format!("the call was sent, and no response was received: {message}");
        Self { delivery: Delivery::Sent, ..Self::new(StatusCode::GATEWAY_TIMEOUT, "no_response", text) }
    }

    /// The caller may not make the call.
    pub(super) fn refused(refusal: CallRefusal) -> Self {
        match refusal {
            CallRefusal::Forbidden(message) => Self::new(StatusCode::FORBIDDEN, "forbidden", message),
            CallRefusal::Foreign { location, .. } => {
                let (code, message) = match location {
                    Location::Guild(_) => (10_004, "Unknown Guild"),
                    Location::Channel(_) => (10_003, "Unknown Channel"),
                    Location::Webhook(..) => (10_015, "Unknown Webhook"),
                };
                Self { code, ..Self::new(StatusCode::NOT_FOUND, "foreign_target", message) }
            }
            CallRefusal::Missing(message) => Self::new(StatusCode::NOT_FOUND, "missing_target", message),
            CallRefusal::Invalid(message) => Self::bad_request("invalid", message),
            CallRefusal::Held { retry_after, reason, message } => {
                Self::not_sent(NotSent { retry_after, message, reason, bucket: None })
            }
            CallRefusal::Refused { status, code, message } => {
                let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
                Self { code, ..Self::new(status, "check_refused", message) }
            }
            CallRefusal::Failed(message) => {
                let text = format!("not sent: the call could not be checked: {message}");
                let retry_after = Some(Duration::from_secs(1));
                Self { retry_after, ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "check_failed", text) }
            }
        }
    }

    /// An error of the API, such as a key that cannot be looked up.
    pub(super) fn of_problem(problem: &ProblemResponse) -> Self {
        let status = StatusCode::from_u16(problem.status().as_u16()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let retry_after = problem.retry_after_seconds().map(Duration::from_secs);
        let why = match status {
            StatusCode::TOO_MANY_REQUESTS => "too_many_failures",
            StatusCode::UNAUTHORIZED => "unauthorized",
            _ => "keys_unavailable",
        };
        Self { retry_after, ..Self::new(status, why, problem.detail()) }
    }

    /// The response.
    pub(super) fn into_response(self, request_id: &str) -> Response<ResponseBody> {
        let is_limited = self.status == StatusCode::TOO_MANY_REQUESTS;
        let wait = self.retry_after.map(|wait| wait.max(Duration::from_millis(1)));
        let body = match wait {
            Some(wait) if is_limited => {
                json!({"message": self.message, "retry_after": decimal(wait), "global": self.is_global, "code": self.code})
            }
            Some(_) | None => json!({"message": self.message, "code": self.code}),
        };
        let mut response = Response::new(whole(Bytes::from(body.to_string())));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        // Libraries take a 429 without it for a ban by Cloudflare.
        headers.insert(header::VIA, HeaderValue::from_static("1.1 guildhall"));
        headers.insert(GENERATED, HeaderValue::from_static("true"));
        headers.insert(WHY, HeaderValue::from_static(self.why));
        headers.insert(SENT, sent(self.delivery));
        if let Ok(id) = HeaderValue::from_str(request_id) {
            headers.insert(HeaderName::from_static(REQUEST_ID), id);
        }
        if let Some(wait) = wait {
            headers.insert(header::RETRY_AFTER, whole_seconds(wait).into());
            if is_limited {
                write_rate_headers(headers, wait, self.bucket, self.is_global);
            }
        }
        if self.status == StatusCode::METHOD_NOT_ALLOWED {
            headers.insert(header::ALLOW, HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE"));
        }
        if self.closes {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// The headers by which libraries know how long to wait. The limit is that of the bucket, if Discord has named it.
fn write_rate_headers(headers: &mut HeaderMap, wait: Duration, bucket: Option<RouteBucket>, is_global: bool) {
    if let Some(RouteBucket { hash, limit }) = bucket
        && let Ok(hash) = HeaderValue::from_str(&hash)
    {
        headers.insert(BUCKET, hash);
        headers.insert(LIMIT, limit.into());
    }
    if is_global {
        headers.insert(GLOBAL, HeaderValue::from_static("true"));
    }
    headers.insert(REMAINING, HeaderValue::from_static("0"));
    let now = unix_now();
    for (name, value) in [(RESET, now + wait), (RESET_AFTER, wait)] {
        let text = format!("{}.{:03}", value.as_secs(), value.subsec_millis());
        if let Ok(value) = HeaderValue::from_str(&text) {
            headers.insert(name, value);
        }
    }
    headers.insert(SCOPE, HeaderValue::from_static(if is_global { "global" } else { "user" }));
}

/// The proxy runs.
pub(super) fn healthy() -> Response<ResponseBody> {
    Response::new(whole(Bytes::new()))
}

/// Discord's response, as it came.
pub(super) fn of_discord(response: RestResponse, method: &Method) -> Response<ResponseBody> {
    let RestResponse { status, headers, body, stream, elapsed, .. } = response;
    respond(status, headers, stream.unwrap_or_else(|| whole(body)), elapsed, method)
}

/// A response of Discord for several callers.
pub(super) fn of_shared(response: SharedResponse, method: &Method) -> Response<ResponseBody> {
    let SharedResponse { status, headers, body, elapsed, .. } = response;
    respond(status, headers, whole(body), elapsed, method)
}

fn respond(
    status: StatusCode,
    mut headers: HeaderMap,
    body: ResponseBody,
    elapsed: Duration,
    method: &Method,
) -> Response<ResponseBody> {
    remove_hop_by_hop(&mut headers);
    remove_own(&mut headers);
    if *method != Method::HEAD {
        // Computed from the body.
        headers.remove(header::CONTENT_LENGTH);
    }
    headers.insert(SENT, sent(Delivery::Sent));
    let mut out = Response::new(body);
    (*out.status_mut(), *out.headers_mut()) = (status, headers);
    out.extensions_mut().insert(DiscordTime(elapsed));
    out
}

fn sent(delivery: Delivery) -> HeaderValue {
    HeaderValue::from_static(match delivery {
        Delivery::NotSent => "0",
        Delivery::Sent => "1",
    })
}

fn whole(body: Bytes) -> ResponseBody {
    Full::new(body).map_err(|never| match never {}).boxed_unsync()
}

/// Rounded up.
fn whole_seconds(wait: Duration) -> u64 {
    u64::try_from(wait.as_micros().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Seconds, to the millisecond, rounded up.
fn decimal(wait: Duration) -> f64 {
    Duration::from_millis(u64::try_from(wait.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn parts(answer: OwnAnswer) -> (StatusCode, HeaderMap, Value) {
        let (head, body) = answer.into_response("r-1").into_parts();
        let body = futures_util::FutureExt::now_or_never(body.collect()).unwrap().unwrap().to_bytes();
        (head.status, head.headers, serde_json::from_slice(&body).unwrap())
    }

    fn not_sent(reason: &'static str, millis: Option<u64>) -> OwnAnswer {
        let retry_after = millis.map(Duration::from_millis);
        OwnAnswer::not_sent(NotSent { retry_after, message: format!("no permit: {reason}"), reason, bucket: None })
    }

    #[test]
    fn own_429_has_all_that_libraries_read() {
        let bucket = RouteBucket { hash: "abc".into(), limit: 5 };
        let answer = OwnAnswer { bucket: Some(bucket), ..not_sent("route_limit", Some(1_234)) };
        let (status, headers, body) = parts(answer);
        assert_eq!(status, 429);
        for (name, value) in [
            ("retry-after", "2"),
            ("x-ratelimit-bucket", "abc"),
            ("x-ratelimit-limit", "5"),
            ("x-ratelimit-remaining", "0"),
            ("x-ratelimit-reset-after", "1.234"),
            ("x-ratelimit-scope", "user"),
            ("via", "1.1 guildhall"),
            ("generated-by-proxy", "true"),
            ("x-guildhall-sent", "0"),
            ("x-guildhall-why", "route_limit"),
            ("x-request-id", "r-1"),
        ] {
            assert_eq!(headers.get(name).map(HeaderValue::as_bytes), Some(value.as_bytes()), "{name}");
        }
        let reset: f64 = headers["x-ratelimit-reset"].to_str().unwrap().parse().unwrap();
        assert!(reset > 1_000_000_000.0);
        assert_eq!((&body["retry_after"], &body["global"], &body["code"]), (&1.234.into(), &false.into(), &0.into()));
        assert!(body["message"].as_str().unwrap().starts_with("You are being rate limited."));
    }

    #[test]
    fn every_reason_of_the_gate_has_a_status() {
        for (reason, status) in [
            ("global_limit", 429),
            ("queue_full", 429),
            ("invalid_requests_key_share", 429),
            ("unauthorized", 401),
            ("interaction_ended", 401),
            ("webhook_gone", 404),
            ("forbidden_storm", 403),
            ("fence_stale", 412),
            ("fence_unknown", 503),
            ("malformed", 400),
            ("unreachable", 502),
            ("blocked", 503),
            ("breaker_open", 503),
            ("shutting_down", 503),
            ("lease_lost", 503),
        ] {
            let (found, headers, _) = parts(not_sent(reason, None));
            assert_eq!((found.as_u16(), headers["x-guildhall-why"].to_str().unwrap()), (status, reason));
            assert_eq!(headers.contains_key("retry-after"), status == 429, "{reason}");
        }
        assert_eq!(parts(not_sent("interaction_ended", None)).2["code"], 50_027);
        assert_eq!(parts(not_sent("webhook_gone", None)).2["code"], 10_015);
        for (code, message) in [(50_001, "Missing Access"), (50_013, "Missing Permissions"), (50_007, "Forbidden")] {
            let (_, _, body) = parts(not_sent("forbidden_storm", Some(1_000)).with_forbidden_code(Some(code)));
            assert_eq!((&body["code"], &body["message"]), (&code.into(), &message.into()));
        }
    }

    #[test]
    fn own_429_says_which_limit_it_is() {
        for (reason, is_global) in [("global_limit", true), ("rate_limited_global", true), ("route_limit", false)] {
            let (_, headers, body) = parts(not_sent(reason, Some(1_000)));
            assert_eq!(headers["x-ratelimit-scope"], if is_global { "global" } else { "user" }, "{reason}");
            assert_eq!(headers.contains_key("x-ratelimit-global"), is_global, "{reason}");
            assert_eq!(body["global"], is_global, "{reason}");
            assert!(!headers.contains_key("x-ratelimit-limit"), "an unknown limit is not made up");
        }
    }

    #[test]
    fn object_of_another_owner_looks_unknown() {
        for (location, code) in
            [(Location::Guild(1), 10_004), (Location::Channel(1), 10_003), (Location::Webhook(1, None), 10_015)]
        {
            let (status, _, body) =
                parts(OwnAnswer::refused(CallRefusal::Foreign { location, message: String::new() }));
            assert_eq!((status.as_u16(), body["code"].as_u64()), (404, Some(code)));
        }
    }
}
