//! Responses, byte for byte as Discord sends them.

use std::time::Duration;

use bytes::Bytes;
use chrono::DateTime;
use http::header::{CONTENT_TYPE, DATE, RETRY_AFTER, VIA};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use serde_json::json;

use super::admit::Refusal;
use super::server::HttpResponse;
use crate::fault::CloudflareForm;
use crate::limit::{BucketState, Scope, ceil_millis};
use crate::rest::call::Reply;
use crate::rest::error::ApiError;
use crate::time::At;

const CLOUDFLARE_PAGE: &str = "<!DOCTYPE html>\n<html><head><title>Access denied | discord.com used Cloudflare to restrict \
access</title></head>\n<body><h1>Error 1015</h1><h2>You are being rate limited</h2></body></html>\n";

const CLOUDFLARE_JSON: &str = "{\"message\": \"You are being blocked from accessing our API temporarily due to exceeding \
our rate limits frequently. Please read our docs at https://discord.com/developers/docs/topics/rate-limits to prevent \
this moving forward.\", \"code\": 0}";

/// A genuine response of the API: it carries `Via`, and the headers of its bucket if it has one.
fn genuine(status: StatusCode, body: Bytes, bucket: Option<&BucketState>, now: At) -> HttpResponse {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(VIA, HeaderValue::from_static("1.1 google"));
    if status != StatusCode::NO_CONTENT {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    if let Some(bucket) = bucket {
        bucket.write_headers(headers, now);
    }
    answer
}

/// Sets `Date` to the time of the simulator's clock, which may differ from this machine's.
pub(super) fn with_date(mut answer: HttpResponse, now: At) -> HttpResponse {
    let date = i64::try_from(now.millis() / 1_000).ok().and_then(DateTime::from_timestamp_secs);
    let date = date.map(|date| date.format("%a, %d %b %Y %H:%M:%S GMT").to_string());
    if let Some(date) = date.and_then(|date| HeaderValue::from_str(&date).ok()) {
        answer.headers_mut().insert(DATE, date);
    }
    answer
}

pub(super) fn success(reply: Reply, bucket: Option<&BucketState>, now: At) -> HttpResponse {
    genuine(reply.status, reply.body, bucket, now)
}

pub(super) fn error(error: &ApiError, bucket: Option<&BucketState>, now: At) -> HttpResponse {
    genuine(error.status, error.body().to_string().into(), bucket, now)
}

/// The response to a refused call; `None` if its connection must be cut.
pub(super) fn refusal(refusal: &Refusal, now: At) -> Option<HttpResponse> {
    Some(match refusal {
        Refusal::Error { error: api_error, bucket } => error(api_error, bucket.as_ref(), now),
        Refusal::RateLimited { scope, wait, bucket, origin: _ } => rate_limited(*scope, *wait, bucket.as_ref(), now),
        Refusal::Cloudflare { form, retry_after } => cloudflare(*form, *retry_after),
        Refusal::Status { status, code, bucket } => with_status(*status, *code, bucket.as_ref(), now),
        Refusal::Dropped => return None,
    })
}

/// The response that a fault requires.
pub(super) fn with_status(status: u16, code: u32, bucket: Option<&BucketState>, now: At) -> HttpResponse {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let reason = status.canonical_reason().unwrap_or("Error");
    let body = json!({ "message": format!("{}: {reason}", status.as_u16()), "code": code });
    genuine(status, body.to_string().into(), bucket, now)
}

fn rate_limited(scope: Scope, wait: Duration, bucket: Option<&BucketState>, now: At) -> HttpResponse {
    let millis = ceil_millis(wait);
    let (name, message) = match scope {
        Scope::User => ("user", "You are being rate limited."),
        Scope::Shared => ("shared", "The resource is being rate limited."),
        Scope::Global => ("global", "You are being rate limited."),
    };
    #[expect(clippy::cast_precision_loss, reason = "milliseconds of a few days are exact in a double")]
    let seconds = millis as f64 / 1_000.0;
    let body = json!({ "message": message, "retry_after": seconds, "global": scope == Scope::Global });
    let bucket = if scope == Scope::Global { None } else { bucket };
    let mut answer = genuine(StatusCode::TOO_MANY_REQUESTS, body.to_string().into(), bucket, now);
    let headers = answer.headers_mut();
    headers.insert(RETRY_AFTER, HeaderValue::from(millis.div_ceil(1_000)));
    headers.insert(HeaderName::from_static("x-ratelimit-scope"), HeaderValue::from_static(name));
    if scope == Scope::Global {
        headers.insert(HeaderName::from_static("x-ratelimit-global"), HeaderValue::from_static("true"));
    }
    answer
}

fn cloudflare(form: CloudflareForm, retry_after: Option<Duration>) -> HttpResponse {
    let (body, kind) = match form {
        CloudflareForm::Html => (CLOUDFLARE_PAGE, "text/html; charset=UTF-8"),
        CloudflareForm::Json => (CLOUDFLARE_JSON, "application/json"),
    };
    let mut answer = Response::new(Full::new(Bytes::from_static(body.as_bytes())));
    *answer.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    if let Some(wait) = retry_after {
        headers.insert(RETRY_AFTER, HeaderValue::from(ceil_millis(wait).div_ceil(1_000)));
    }
    answer
}
