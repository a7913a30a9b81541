//! A body whose first part was read already.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

/// The first part of a body, then the rest as it arrives. `G` is held for the first part, until that was sent.
#[derive(Debug)]
pub(crate) struct PrefixedBody<B, G = ()> {
    first: Option<Bytes>,
    held: Option<G>,
    rest: B,
}

impl<B, G> PrefixedBody<B, G> {
    pub(crate) fn new(first: Bytes, held: G, rest: B) -> Self {
        Self { first: Some(first), held: Some(held), rest }
    }

    /// The rest of it.
    pub(crate) fn rest(&self) -> &B {
        &self.rest
    }

    /// Its parts.
    pub(crate) fn into_parts(self) -> (Bytes, Option<G>, B) {
        (self.first.unwrap_or_default(), self.held, self.rest)
    }
}

impl<B: Body<Data = Bytes> + Unpin, G: Unpin> Body for PrefixedBody<B, G> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(Ok(Frame::data(first)))),
            None => {
                // The reader asks for more when it has room for it: the first part was sent by then.
                self.held = None;
                Pin::new(&mut self.rest).poll_frame(cx)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let first = self.first.as_ref().map_or(0, |first| first.len() as u64);
        let rest = self.rest.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(first));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(first));
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http_body_util::{BodyExt as _, Full};

    use super::*;

    #[tokio::test]
    async fn first_part_is_held_until_the_next_is_read() {
        let held = Arc::new(());
        let rest = Full::new(Bytes::from_static(b" rest"));
        let mut body = PrefixedBody::new(Bytes::from_static(b"first"), Arc::clone(&held), rest);
        assert_eq!(body.size_hint().exact(), Some(10));
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "first");
        assert_eq!(Arc::strong_count(&held), 2);
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), " rest");
        assert_eq!(Arc::strong_count(&held), 1);
        assert!(body.frame().await.is_none());
    }
}
