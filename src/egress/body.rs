//! Reads the bodies of calls, within bounds of size, time and memory.
//!
//! A body of up to 1 MiB is read whole. Of a longer one only the first part is: the rest passes as it arrives, once the
//! call has its permit. Memory is reserved as bytes arrive, so that a client that only announces a body holds none.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Incoming};
use tokio::time::timeout;

use super::answer::{Delivery, OwnAnswer};
use super::fair_pool::{FairPool, Share};
use crate::net::{Pace, PaceError, PacedBody, PrefixedBody};
use crate::settings::EgressSettings;

/// Maximum size of a body that is read whole.
pub(super) const MAX_WHOLE: usize = 1024 * 1024;
/// How much of a longer body must have arrived before its call asks for a permit.
const FIRST_PART: usize = 256 * 1024;
/// Maximum size of all that is in memory of bodies.
const MAX_MEMORY: usize = 64 * 1024 * 1024;

/// Reads bodies.
#[derive(Clone, Debug)]
pub(super) struct BodyReader {
    memory: Arc<FairPool>,
    timeout: Duration,
    max_bytes: u64,
    min_rate: u64,
}

/// A body that was read, at least in part.
pub(super) enum ReadBody {
    /// The whole of it, and the memory that is reserved for it.
    Whole(Bytes, Share),
    /// Its first part has arrived.
    Long(LongBody),
}

/// A body whose first part has arrived.
pub(super) type LongBody = PrefixedBody<PacedBody<Incoming>, Share>;

impl BodyReader {
    pub(super) fn new(settings: &EgressSettings) -> Self {
        Self {
            memory: FairPool::new(MAX_MEMORY, MAX_MEMORY, |_| ()),
            timeout: settings.body_timeout,
            max_bytes: settings.max_body_bytes,
            min_rate: settings.min_upload_rate,
        }
    }

    /// Reads the body of a caller's call, or its first part. After an error the connection cannot be used again: the
    /// rest of the body is still to come.
    pub(super) async fn read(&self, body: Incoming, caller: &Arc<str>) -> Result<ReadBody, OwnAnswer> {
        let length = body.size_hint().lower();
        if length > self.max_bytes {
            return Err(too_large(self.max_bytes));
        }
        let is_long = length > MAX_WHOLE as u64;
        let first_part = if is_long { FIRST_PART } else { MAX_WHOLE };
        let memory = self.memory.take(caller, 0).map_err(|_| bodies_full())?;
        let mut first = FirstPart { body, read: Bytes::new(), more: BytesMut::new(), memory };
        let is_whole =
            timeout(self.timeout, first.read(first_part)).await.map_err(|_| too_slow(Delivery::NotSent))??;
        let FirstPart { body, read, more, memory } = first;
        let read = if more.is_empty() { read } else { more.freeze() };
        if is_whole {
            return Ok(ReadBody::Whole(read, memory));
        }
        let millis = u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX);
        let min_bytes = (self.min_rate.saturating_mul(millis) / 1_000).max(1);
        let pace = Pace { window: self.timeout, min_bytes, max_bytes: self.max_bytes };
        let already = read.len() as u64;
        Ok(ReadBody::Long(PrefixedBody::new(read, memory, PacedBody::new(body, pace, already))))
    }
}

/// The first part of a body.
struct FirstPart {
    body: Incoming,
    /// Most bodies arrive in one piece, which is not copied.
    read: Bytes,
    /// All of it, once there was a second piece.
    more: BytesMut,
    memory: Share,
}

impl FirstPart {
    /// Reads until there is more than `limit`, or to the end; returns whether it ended.
    async fn read(&mut self, limit: usize) -> Result<bool, OwnAnswer> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|error| {
                OwnAnswer::bad_request("body_incomplete", format!("the body is incomplete: {error}")).closing()
            })?;
            let Ok(data) = frame.into_data() else { continue };
            self.memory.grow(data.len()).map_err(|_| bodies_full())?;
            if self.read.is_empty() && self.more.is_empty() {
                self.read = data;
            } else {
                if self.more.is_empty() {
                    self.more.extend_from_slice(&self.read);
                }
                self.more.extend_from_slice(&data);
            }
            if self.read.len().max(self.more.len()) > limit {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// There is no memory for another body, or for more of one.
pub(super) fn bodies_full() -> OwnAnswer {
    let message = "You are being rate limited. (Guildhall: too many request bodies are being read)";
    OwnAnswer::rate_limited("bodies_full", message, Duration::from_secs(1)).closing()
}

/// The response to a call whose body ended early while it was sent.
pub(super) fn failed_upload(error: PaceError) -> OwnAnswer {
    let answer = match error {
        PaceError::TooSlow => too_slow(Delivery::Sent),
        PaceError::TooLarge(max) => too_large(max),
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

/// The response to a call of a key whose body is too large to be judged.
pub(super) fn too_large_to_check() -> OwnAnswer {
    let message = format!(
        "the body is larger than {MAX_WHOLE} bytes, up to which the calls of a key can be checked: only the files of a form \
         (multipart/form-data) may be larger; other large bodies need the bot token or a key with the scope admin"
    );
    OwnAnswer::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message).closing()
}

/// Whether the request was sent in chunks. Its connection is closed after the response: a server in front of this one
/// could take its length from another header, and what follows for another client's request.
pub(super) fn is_chunked(headers: &HeaderMap) -> bool {
    headers.contains_key(http::header::TRANSFER_ENCODING)
}
