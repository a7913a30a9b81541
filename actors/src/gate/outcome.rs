//! What came of a REST call. Whoever made it can always tell "never left" from "may have happened".

use std::time::Duration;

use bytes::Bytes;
use guildhall_core::response::ResponseClass;
use http::{HeaderMap, StatusCode};

/// What came of a call.
#[derive(Debug)]
pub enum CallOutcome {
    /// It never left. Nothing happened, and nothing was used up.
    NotSent(NotSent),
    /// Discord answered.
    Answered(RestResponse),
    /// It was sent, and nobody knows what came of it.
    Unknown(NoResponse),
}

/// Why a call was not sent, and when to come again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not sent: {why}")]
pub struct NotSent {
    /// How long to wait before it may go; nothing if waiting does not help.
    pub retry_after: Option<Duration>,
    /// The reason, for people.
    pub why: String,
    /// The reason, for metrics: a short word.
    pub reason: &'static str,
}

/// An answer of Discord.
#[derive(Debug)]
pub struct RestResponse {
    /// The status.
    pub status: StatusCode,
    /// The headers, as they came.
    pub headers: HeaderMap,
    /// The body, whole.
    pub body: Bytes,
    /// What kind of answer it is.
    pub class: ResponseClass,
    /// Discord's error code, if the body had one.
    pub code: Option<u32>,
}

/// A call whose outcome nobody knows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("sent, but not answered: {why}")]
pub struct NoResponse {
    /// What went wrong.
    pub why: String,
}
