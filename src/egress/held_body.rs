//! A response body that holds something until it was written.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use super::answer::{BoxError, ResponseBody};

/// A body, and what is held until it was written or its client is gone: a place for a call, for example.
#[derive(Debug)]
pub(super) struct HeldBody<G> {
    body: ResponseBody,
    _held: G,
}

impl<G> HeldBody<G> {
    pub(super) fn new(body: ResponseBody, held: G) -> Self {
        Self { body, _held: held }
    }
}

impl<G: Unpin> Body for HeldBody<G> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
