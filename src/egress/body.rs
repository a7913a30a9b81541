//! Reads the bodies of calls, within bounds of size, time and memory.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use hyper::body::{Body as _, Incoming};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::answer::OwnAnswer;
use crate::net::{BodyError, read_body};

/// Maximum size of a body.
pub(super) const MAX_BODY: usize = 1024 * 1024;
/// Maximum size of all bodies in memory.
const MAX_MEMORY: usize = 64 * 1024 * 1024;

/// Reads bodies.
#[derive(Clone, Debug)]
pub(super) struct BodyReader {
    memory: Arc<Semaphore>,
    timeout: Duration,
}

/// A body that was read, and the memory that is reserved for it.
#[derive(Debug)]
pub(super) struct HeldBody {
    pub(super) bytes: Bytes,
    _memory: OwnedSemaphorePermit,
}

impl BodyReader {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { memory: Arc::new(Semaphore::new(MAX_MEMORY)), timeout }
    }

    /// Reads a whole body. After an error the connection cannot be used again: the rest of the body is still to come.
    pub(super) async fn read(&self, body: Incoming) -> Result<HeldBody, OwnAnswer> {
        let hint = body.size_hint();
        let announced = hint.upper().and_then(|bytes| usize::try_from(bytes).ok());
        if hint.lower() > MAX_BODY as u64 {
            return Err(too_large());
        }
        let reserved = u32::try_from(announced.unwrap_or(MAX_BODY).min(MAX_BODY)).unwrap_or(u32::MAX);
        let memory = Arc::clone(&self.memory).try_acquire_many_owned(reserved).map_err(|_| {
            let message = "You are being rate limited. (Guildhall: too many request bodies are being read)";
            OwnAnswer::rate_limited("bodies_full", message, Duration::from_secs(1)).closing()
        })?;
        match timeout(self.timeout, read_body(body, MAX_BODY)).await {
            Ok(Ok(bytes)) => Ok(HeldBody { bytes, _memory: memory }),
            Ok(Err(BodyError::TooLarge(_))) => Err(too_large()),
            Ok(Err(BodyError::ConnectionFailed(reason))) => {
                Err(OwnAnswer::bad_request("body_incomplete", format!("the body is incomplete: {reason}")).closing())
            }
            Err(_) => {
                let message = format!("the body did not arrive within {:?} (egress.body_timeout_ms)", self.timeout);
                Err(OwnAnswer::new(StatusCode::REQUEST_TIMEOUT, "body_too_slow", message).closing())
            }
        }
    }
}

fn too_large() -> OwnAnswer {
    let message = format!("the body is larger than {MAX_BODY} bytes");
    OwnAnswer::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message).closing()
}

/// Whether the request was sent in chunks. Its connection is closed after the response: a server in front of this one
/// could take its length from another header, and what follows for another client's request.
pub(super) fn is_chunked(headers: &HeaderMap) -> bool {
    headers.contains_key(http::header::TRANSFER_ENCODING)
}
