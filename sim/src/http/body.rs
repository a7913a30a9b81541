//! Reads the body of a request, with a size limit and a timeout.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;

use crate::rest::error::ApiError;

/// Why a body was not read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the body is larger than {0} bytes")]
    TooLarge(usize),
    #[error("the body is incomplete or did not arrive in time")]
    Incomplete,
    #[error("the multipart body is malformed: {0}")]
    Multipart(String),
}

impl BodyError {
    pub(super) fn api_error(&self) -> ApiError {
        match self {
            Self::TooLarge(_) => ApiError::TOO_LARGE,
            Self::Incomplete => ApiError::INVALID_JSON,
            Self::Multipart(_) => ApiError::form("_", "MULTIPART_MALFORMED", &self.to_string()),
        }
    }
}

/// Reads a body of at most `limit` bytes within `timeout`.
pub(crate) async fn read(
    body: Incoming,
    headers: &HeaderMap,
    limit: usize,
    timeout: Duration,
) -> Result<Bytes, BodyError> {
    let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|length| length > limit) {
        return Err(BodyError::TooLarge(limit));
    }
    match tokio::time::timeout(timeout, Limited::new(body, limit).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(BodyError::TooLarge(limit)),
        Ok(Err(_)) | Err(_) => Err(BodyError::Incomplete),
    }
}
