//! Request bodies: unread ones, and those that are read within limits.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use actix_web::{
    Error, HttpMessage as _, HttpResponse,
    body::{BodySize, BoxBody, MessageBody},
    dev::{Payload, ServiceRequest, ServiceResponse},
    http::{
        ConnectionType,
        header::{CONTENT_LENGTH, HeaderMap},
    },
    middleware::Next,
    web::{Bytes, BytesMut},
};
use futures_util::StreamExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::problem::{ProblemResponse, ProblemType};

/// Maximum announced body size of a request that needs no body; this leaves room for clients that send one anyway.
pub(crate) const UNREAD_MAX: u64 = 64 * 1024;

/// Rejects a body by its announced size, before a byte of it is read. A smaller one is not read either: if it has not
/// arrived by then, the connection is closed after the response.
pub(crate) async fn without_body(
    mut request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    if announces_more_than(UNREAD_MAX, request.headers()) {
        let mut response = ProblemType::BodyTooLarge.response();
        response.head_mut().set_connection_type(ConnectionType::Close);
        return Ok(request.into_response(response).map_into_right_body());
    }
    let unread = request.take_payload();
    let response = next.call(request).await?.map_into_boxed_body();
    Ok(hold_unread_body(response, unread).map_into_left_body())
}

pub(crate) fn announces_more_than(max: u64, headers: &HeaderMap) -> bool {
    announced_len(headers).is_some_and(|size| size > max)
}

/// Whether the announced body size is at most this.
pub(crate) fn announces_at_most(max: u64, headers: &HeaderMap) -> bool {
    announced_len(headers).is_some_and(|size| size <= max)
}

fn announced_len(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok())
}

/// How many bytes of bodies are in memory at once, for all requests.
#[derive(Clone, Debug)]
pub(crate) struct BodyMemory(Arc<Semaphore>);

impl BodyMemory {
    pub(crate) fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes.min(Semaphore::MAX_PERMITS))))
    }

    fn take(&self, bytes: usize) -> Result<OwnedSemaphorePermit, ProblemResponse> {
        let taken = u32::try_from(bytes).ok().and_then(|bytes| Arc::clone(&self.0).try_acquire_many_owned(bytes).ok());
        taken.ok_or_else(|| {
            ProblemType::Busy.with_detail("Too many large request bodies are being read. Retry in a moment.")
        })
    }
}

/// A body that was read, and the memory reserved for it.
#[derive(Debug)]
pub(crate) struct BufferedBody {
    pub(crate) bytes: Bytes,
    _room: Option<OwnedSemaphorePermit>,
}

/// Reads a body of at most `most` bytes within the time limit, if there is memory for it.
pub(crate) async fn read(
    payload: &mut Payload,
    max_bytes: usize,
    timeout: Duration,
    memory: &BodyMemory,
) -> Result<BufferedBody, ProblemResponse> {
    let all = async {
        let mut read = BytesMut::new();
        let mut taken = memory.take(0)?;
        while let Some(chunk) = payload.next().await {
            let chunk = chunk.map_err(|error| {
                ProblemType::BadRequest.with_detail(format!("the request body cannot be read: {error}"))
            })?;
            if read.len() + chunk.len() > max_bytes {
                return Err(ProblemType::BodyTooLarge
                    .with_detail(format!("The request body is larger than {max_bytes} bytes.")));
            }
            taken.merge(memory.take(chunk.len())?);
            read.extend_from_slice(&chunk);
        }
        Ok(BufferedBody { bytes: read.freeze(), _room: Some(taken) })
    };
    match tokio::time::timeout(timeout, all).await {
        Ok(read) => read,
        Err(_) => Err(ProblemType::BodyTooSlow.into()),
    }
}

/// A response after which the connection is closed: the rest of the request was not read.
pub(crate) fn closing_problem(problem: &ProblemResponse) -> HttpResponse {
    with_connection_close(problem.response())
}

/// A response after which the connection is closed.
pub(crate) fn with_connection_close(mut response: HttpResponse) -> HttpResponse {
    response.head_mut().set_connection_type(ConnectionType::Close);
    response
}

/// Holds the unread rest of a request body until the response is sent.
pub(crate) fn hold_unread_body(
    response: ServiceResponse<BoxBody>,
    unread: Payload,
) -> ServiceResponse<impl MessageBody> {
    response.map_body(|_, body| HoldUnreadBody { body, _unread: unread })
}

/// A response that holds the request body while it is sent. A chunked body that is dropped is read to its end by
/// actix-http, without a limit in size or time, and one that never ends would occupy its connection for ever.
struct HoldUnreadBody {
    body: BoxBody,
    _unread: Payload,
}

impl MessageBody for HoldUnreadBody {
    type Error = <BoxBody as MessageBody>::Error;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Self::Error>>> {
        Pin::new(&mut self.body).poll_next(cx)
    }
}

/// Ends a streaming response when this future completes.
pub(crate) fn until(
    response: ServiceResponse<BoxBody>,
    end: impl Future<Output = ()> + 'static,
) -> ServiceResponse<BoxBody> {
    if response.response().body().size() != BodySize::Stream {
        return response;
    }
    response.map_body(|_, body| BoxBody::new(StreamUntil { body, end: Box::pin(end) }))
}

struct StreamUntil {
    body: BoxBody,
    end: Pin<Box<dyn Future<Output = ()>>>,
}

impl MessageBody for StreamUntil {
    type Error = <BoxBody as MessageBody>::Error;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Self::Error>>> {
        match Pin::new(&mut self.body).poll_next(cx) {
            Poll::Pending if self.end.as_mut().poll(cx).is_ready() => Poll::Ready(None),
            said => said,
        }
    }
}
