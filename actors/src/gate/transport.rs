//! The way out, which takes only calls that the gate has cleared.

use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use guildhall_core::response::{RateHeaders, ResponseClass};
use http::{HeaderMap, StatusCode};

use super::RestRequest;

/// A call that has passed breaker and token bucket. Only the gate makes these.
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

/// An answer as it came, with what it says to the gate.
#[derive(Debug)]
pub struct RawResponse {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body, whole.
    pub body: Bytes,
    /// What kind of answer it is.
    pub class: ResponseClass,
    /// Discord's error code, if the body had one.
    pub code: Option<u32>,
    /// The bucket's headers, if all were there.
    pub rate: Option<RateHeaders>,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// No connection could be had, so nothing left.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// The call is malformed and cannot be sent.
    #[error("cannot be sent: {0}")]
    Malformed(String),
    /// It may have left, and the connection broke.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// It may have left, and no answer came in time.
    #[error("no answer in time")]
    TimedOut,
}

impl TransportError {
    /// Whether it is certain that the call never left.
    #[must_use]
    pub const fn never_left(&self) -> bool {
        match self {
            Self::Connect(_) | Self::Malformed(_) => true,
            Self::Broken(_) | Self::TimedOut => false,
        }
    }
}

/// An answer under way.
pub type SendFuture<'a> = Pin<Box<dyn Future<Output = Result<RawResponse, TransportError>> + Send + 'a>>;

/// Sends one call and reads its answer, within a time limit of its own.
pub trait Transport: Send + Sync + 'static {
    /// Sends a call. Never twice, whatever happens.
    fn send(&self, call: ClearedRequest) -> SendFuture<'_>;
}
