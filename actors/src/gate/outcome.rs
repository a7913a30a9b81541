//! Outcome of a REST call. It always separates "never sent" from "may have happened".

use std::time::Duration;

use bytes::Bytes;
use guildhall_core::limit::RouteBucket;
use guildhall_core::response::ResponseClass;
use http::{HeaderMap, StatusCode};

use super::ResponseStream;

/// Outcome of a call.
#[derive(Debug)]
pub enum CallOutcome {
    /// It was never sent. Nothing happened, and nothing was used up.
    NotSent(NotSent),
    /// Discord responded.
    Answered(RestResponse),
    /// It was sent, and its outcome is unknown.
    Unknown(NoResponse),
}

/// Why a call was not sent, and when to retry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not sent: {message}")]
pub struct NotSent {
    /// Time until it may be sent. `None` if waiting does not help.
    pub retry_after: Option<Duration>,
    /// The reason, for people.
    pub message: String,
    /// Short reason, for metrics.
    pub reason: &'static str,
    /// The bucket that it would have waited for, if Discord has reported it.
    pub bucket: Option<RouteBucket>,
}

/// Response of Discord.
#[derive(Debug)]
pub struct RestResponse {
    /// The status.
    pub status: StatusCode,
    /// The headers as received.
    pub headers: HeaderMap,
    /// The complete body; empty if it is streamed.
    pub body: Bytes,
    /// The body, if the call asked for a stream, and has succeeded or its body is too large to be read whole.
    pub stream: Option<ResponseStream>,
    /// Class of the response.
    pub class: ResponseClass,
    /// Discord's error code, if the body has one.
    pub code: Option<u32>,
    /// Time from sending the call to the response, without the time of an upload.
    pub elapsed: Duration,
}

/// A call with an unknown outcome.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("sent, but no response received: {message}")]
pub struct NoResponse {
    /// Description of the failure.
    pub message: String,
}
