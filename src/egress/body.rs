//! Reads the bodies of calls, within bounds of size, time and memory.
//!
//! A body of up to 1 MiB is read whole. Of a longer one only the first part is: the rest passes as it arrives, once the
//! call has its permit.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::answer::{Delivery, OwnAnswer};
use crate::net::{Pace, PaceError, PaceFailure, PacedBody};
use crate::settings::EgressSettings;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Maximum size of a body that is read whole.
const MAX_WHOLE: usize = 1024 * 1024;
/// How much of a longer body must have arrived before its call asks for a permit.
const FIRST_PART: usize = 256 * 1024;
/// Maximum size of all that is in memory of bodies.
const MAX_MEMORY: usize = 64 * 1024 * 1024;

/// Reads bodies.
#[derive(Clone, Debug)]
pub(super) struct BodyReader {
    memory: Arc<Semaphore>,
    timeout: Duration,
    max_bytes: u64,
    min_rate: u64,
}

/// Whether a body may be longer than what is read whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LongBodies {
    Accepted,
    /// The call cannot be checked without its whole body.
    Refused,
}

/// A body that was read, at least in part.
#[derive(Debug)]
pub(super) enum ReadBody {
    /// The whole of it, and the memory that is reserved for it.
    Whole(Bytes, OwnedSemaphorePermit),
    /// Its first part has arrived.
    Long(LongBody),
}

/// A body whose first part has arrived.
pub(super) struct LongBody {
    first: Option<(Bytes, OwnedSemaphorePermit)>,
    rest: PacedBody<Incoming>,
}

impl std::fmt::Debug for LongBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LongBody").finish_non_exhaustive()
    }
}

impl LongBody {
    /// Tells later why it ended early.
    pub(super) fn failure(&self) -> PaceFailure {
        self.rest.failure()
    }
}

impl Body for LongBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.first.take() {
            Some((first, _memory)) => Poll::Ready(Some(Ok(Frame::data(first)))),
            None => Pin::new(&mut self.rest).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let first = self.first.as_ref().map_or(0, |(first, _)| first.len() as u64);
        let rest = self.rest.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(first));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(first));
        }
        hint
    }
}

impl BodyReader {
    pub(super) fn new(settings: &EgressSettings) -> Self {
        Self {
            memory: Arc::new(Semaphore::new(MAX_MEMORY)),
            timeout: settings.body_timeout,
            max_bytes: settings.max_body_bytes,
            min_rate: settings.min_upload_rate,
        }
    }

    /// Reads a body, or its first part. After an error the connection cannot be used again: the rest of the body is
    /// still to come.
    pub(super) async fn read(&self, mut body: Incoming, long: LongBodies) -> Result<ReadBody, OwnAnswer> {
        let hint = body.size_hint();
        let is_long = hint.lower() > MAX_WHOLE as u64;
        match long {
            LongBodies::Refused if is_long => return Err(too_large_to_check()),
            LongBodies::Accepted if hint.lower() > self.max_bytes => return Err(too_large(self.max_bytes)),
            LongBodies::Refused | LongBodies::Accepted => {}
        }
        let first_part = if is_long { FIRST_PART } else { MAX_WHOLE };
        let announced = hint.upper().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(usize::MAX);
        let reserved = u32::try_from(announced.min(first_part)).unwrap_or(u32::MAX);
        let memory = Arc::clone(&self.memory).try_acquire_many_owned(reserved).map_err(|_| {
            let message = "You are being rate limited. (Guildhall: too many request bodies are being read)";
            OwnAnswer::rate_limited("bodies_full", message, Duration::from_secs(1)).closing()
        })?;
        match timeout(self.timeout, read_first(&mut body, first_part)).await {
            Ok(Ok((bytes, true))) => Ok(ReadBody::Whole(bytes, memory)),
            Ok(Ok((_, false))) if long == LongBodies::Refused => Err(too_large_to_check()),
            Ok(Ok((first, false))) => {
                let (window, already) = (self.timeout, first.len() as u64);
                let millis = u64::try_from(window.as_millis()).unwrap_or(u64::MAX);
                let min_bytes = (self.min_rate.saturating_mul(millis) / 1_000).max(1);
                let pace = Pace { window, min_bytes, max_bytes: self.max_bytes };
                Ok(ReadBody::Long(LongBody { first: Some((first, memory)), rest: PacedBody::new(body, pace, already) }))
            }
            Ok(Err(error)) => {
                Err(OwnAnswer::bad_request("body_incomplete", format!("the body is incomplete: {error}")).closing())
            }
            Err(_) => Err(too_slow(Delivery::NotSent)),
        }
    }
}

/// Reads until there is more than `limit`, or to the end; returns whether it ended.
async fn read_first(body: &mut Incoming, limit: usize) -> Result<(Bytes, bool), hyper::Error> {
    let mut read = BytesMut::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            read.extend_from_slice(&data);
        }
        if read.len() > limit {
            return Ok((read.freeze(), false));
        }
    }
    Ok((read.freeze(), true))
}

/// The response to a call whose body ended early while it was sent.
pub(super) fn failed_upload(error: PaceError) -> OwnAnswer {
    let answer = match error {
        PaceError::TooSlow => too_slow(Delivery::Sent),
        PaceError::TooLarge(max) => OwnAnswer { delivery: Delivery::Sent, ..too_large(max) },
        PaceError::Gone => OwnAnswer::bad_request("body_incomplete", "the body is incomplete").closing(),
    };
    OwnAnswer { delivery: Delivery::Sent, ..answer }
}

fn too_slow(delivery: Delivery) -> OwnAnswer {
    let message = "the body arrives too slowly (egress.body_timeout_ms, egress.min_upload_bytes_per_second)";
    OwnAnswer { delivery, ..OwnAnswer::new(StatusCode::REQUEST_TIMEOUT, "body_too_slow", message).closing() }
}

fn too_large(max: u64) -> OwnAnswer {
    let message = format!("the body is larger than {max} bytes (egress.max_body_bytes)");
    OwnAnswer::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message).closing()
}

fn too_large_to_check() -> OwnAnswer {
    let message = format!(
        "the body is larger than {MAX_WHOLE} bytes, up to which the calls of a key can be checked; larger ones need the bot \
         token or a key with the scope admin"
    );
    OwnAnswer::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message).closing()
}

/// Whether the request was sent in chunks. Its connection is closed after the response: a server in front of this one
/// could take its length from another header, and what follows for another client's request.
pub(super) fn is_chunked(headers: &HeaderMap) -> bool {
    headers.contains_key(http::header::TRANSFER_ENCODING)
}
