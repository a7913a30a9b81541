//! The transport, which accepts only calls that the gate has cleared.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use guildhall_core::response::{RateHeaders, ResponseClass};
use http::{HeaderMap, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;

use super::RestRequest;

/// A call that has passed breaker and token bucket. Only the gate creates these.
#[derive(Debug)]
pub struct ClearedRequest {
    request: RestRequest,
}

impl ClearedRequest {
    pub(crate) fn new(request: RestRequest) -> Self {
        Self { request }
    }

    /// The call, to be sent now and once.
    #[must_use]
    pub fn into_request(self) -> RestRequest {
        self.request
    }
}

/// The body of a response that is still arriving. Dropping it closes its connection.
pub type ResponseStream = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// A response as received, with the data that the gate needs.
#[derive(Debug)]
pub struct RawResponse {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The complete body; empty if it is streamed.
    pub body: Bytes,
    /// The body, if the call asked for a stream, and has succeeded or its body is too large to be read whole.
    pub stream: Option<ResponseStream>,
    /// How long a streamed body of the call took to be sent. That says nothing about Discord.
    pub upload: Duration,
    /// Class of the response.
    pub class: ResponseClass,
    /// Discord's error code, if the body has one.
    pub code: Option<u32>,
    /// Rate limit headers of the bucket, if complete.
    pub rate: Option<RateHeaders>,
}

/// Why there is no response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// No connection was established, so nothing was sent.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// The call is malformed and cannot be sent.
    #[error("cannot send the request: {0}")]
    Malformed(String),
    /// The call may have been sent, and the connection failed.
    #[error("the connection failed: {0}")]
    Broken(String),
    /// The body of the call, which its caller streams, ended early. The connection was closed.
    #[error("the body of the call ended early: {0}")]
    Aborted(String),
    /// The call may have been sent, and no response came in time.
    #[error("no response in time")]
    TimedOut,
}

impl TransportError {
    /// Whether it is certain that the call was not sent.
    #[must_use]
    pub const fn was_not_sent(&self) -> bool {
        match self {
            Self::Connect(_) | Self::Malformed(_) => true,
            Self::Broken(_) | Self::Aborted(_) | Self::TimedOut => false,
        }
    }
}

/// Pending response.
pub type SendFuture<'a> = Pin<Box<dyn Future<Output = Result<RawResponse, TransportError>> + Send + 'a>>;

/// Sends one call and reads its response, with a timeout of its own.
pub trait Transport: Send + Sync + 'static {
    /// Sends a call. Never twice, whatever happens.
    fn send(&self, call: ClearedRequest) -> SendFuture<'_>;
}
