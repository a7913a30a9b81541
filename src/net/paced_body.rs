//! A body that must arrive at a minimum rate.

use std::{
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Bounds of a body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// In this time of waiting for the sender, `min_bytes` must arrive. Time in which nothing is read does not count.
    pub(crate) window: Duration,
    pub(crate) min_bytes: u64,
    /// Maximum size.
    pub(crate) max_bytes: u64,
}

/// A body was not read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PaceError {
    /// It arrives too slowly.
    #[error("the body arrives too slowly")]
    TooSlow,
    /// It is larger than this.
    #[error("the body is larger than {0} bytes")]
    TooLarge(u64),
    /// The sender is gone.
    #[error("the connection of the sender failed")]
    Gone,
}

/// Why a body ended early, for those who do not read it themselves.
#[derive(Clone, Debug, Default)]
pub(crate) struct PaceFailure(Arc<OnceLock<PaceError>>);

impl PaceFailure {
    /// The error with which it ended, if it has.
    pub(crate) fn get(&self) -> Option<PaceError> {
        self.0.get().copied()
    }
}

/// A body with a minimum rate and a maximum size.
pub(crate) struct PacedBody<B> {
    inner: B,
    pace: Pace,
    /// How long it was waited for in the current window, and what arrived.
    waited: Duration,
    arrived: u64,
    total: u64,
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
    failure: PaceFailure,
}

impl<B> PacedBody<B> {
    /// `already` bytes of it were read before.
    pub(crate) fn new(inner: B, pace: Pace, already: u64) -> Self {
        let failure = PaceFailure::default();
        Self { inner, pace, waited: Duration::ZERO, arrived: 0, total: already, waiting: None, failure }
    }

    /// Tells later why it ended early.
    pub(crate) fn failure(&self) -> PaceFailure {
        self.failure.clone()
    }

    fn fail(&self, error: PaceError) -> BoxError {
        let _ = self.failure.0.set(error);
        error.into()
    }

    fn on_data(&mut self, bytes: u64) -> Result<(), PaceError> {
        if let Some((since, _)) = self.waiting.take() {
            self.waited += since.elapsed();
        }
        self.arrived += bytes;
        self.total += bytes;
        if self.total > self.pace.max_bytes {
            return Err(PaceError::TooLarge(self.pace.max_bytes));
        }
        if self.arrived >= self.pace.min_bytes {
            (self.arrived, self.waited) = (0, Duration::ZERO);
        }
        Ok(())
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for PacedBody<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match Pin::new(&mut self.inner).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
                let checked = self.on_data(bytes);
                Poll::Ready(Some(checked.map(|()| frame).map_err(|error| self.fail(error))))
            }
            Poll::Ready(Some(Err(_))) => Poll::Ready(Some(Err(self.fail(PaceError::Gone)))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                let left = self.pace.window.saturating_sub(self.waited);
                let (_, deadline) = self.waiting.get_or_insert_with(|| (Instant::now(), Box::pin(sleep(left))));
                if deadline.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Some(Err(self.fail(PaceError::TooSlow))));
                }
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http_body_util::{BodyExt as _, StreamBody};

    use super::*;

    const PACE: Pace = Pace { window: Duration::from_secs(10), min_bytes: 4, max_bytes: 20 };

    /// A body of these pieces, each after so many seconds.
    fn body(pieces: &'static [(u64, &'static str)]) -> PacedBody<impl Body<Data = Bytes, Error = BoxError> + Unpin> {
        let frames = stream::unfold(pieces.iter(), |mut pieces| async move {
            let (seconds, text) = pieces.next()?;
            sleep(Duration::from_secs(*seconds)).await;
            Some((Ok(Frame::data(Bytes::from_static(text.as_bytes()))), pieces))
        });
        PacedBody::new(StreamBody::new(Box::pin(frames)), PACE, 0)
    }

    async fn read(
        body: PacedBody<impl Body<Data = Bytes, Error = BoxError> + Unpin>,
    ) -> Result<Bytes, Option<PaceError>> {
        let failure = body.failure();
        body.collect().await.map(http_body_util::Collected::to_bytes).map_err(|_| failure.get())
    }

    #[tokio::test(start_paused = true)]
    async fn body_at_the_minimum_rate_is_read_however_long_it_takes() {
        assert_eq!(read(body(&[(9, "four"), (9, "more"), (5, "tw"), (4, "o.")])).await.unwrap(), "fourmoretwo.");
    }

    #[tokio::test(start_paused = true)]
    async fn slow_or_large_body_ends_with_its_reason() {
        assert_eq!(read(body(&[(4, "a"), (4, "b"), (4, "c")])).await, Err(Some(PaceError::TooSlow)));
        assert_eq!(read(body(&[(0, "four"), (11, "more")])).await, Err(Some(PaceError::TooSlow)));
        assert_eq!(read(body(&[(0, "more than twenty bytes")])).await, Err(Some(PaceError::TooLarge(20))));
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_which_nothing_is_read_does_not_count() {
        let mut body = body(&[(1, "a"), (1, "b"), (1, "c"), (1, "d")]);
        let mut all = Vec::new();
        while let Some(frame) = body.frame().await {
            all.extend_from_slice(&frame.unwrap().into_data().unwrap());
            sleep(Duration::from_secs(60)).await;
        }
        assert_eq!(all, b"abcd");
    }
}
