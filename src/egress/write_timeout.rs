//! A connection whose client must read.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};

use super::events::{ConnectionCut, CutReason};
use crate::events::emit;

/// Fails writes when the peer reads nothing, or too slowly.
///
/// In each `timeout` of waiting for the peer it must take `min_bytes`. Time in which nothing waits to be written does not
/// count.
#[derive(Debug)]
pub(super) struct WriteTimeout<T> {
    inner: T,
    timeout: Duration,
    min_bytes: u64,
    /// What was written, and how long it took, since the rate was last sufficient.
    written: u64,
    waited: Duration,
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl<T> WriteTimeout<T> {
    /// `min_rate` is in bytes a second.
    pub(super) fn new(inner: T, timeout: Duration, min_rate: u64) -> Self {
        let millis = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let min_bytes = (min_rate.saturating_mul(millis) / 1_000).max(1);
        Self { inner, timeout, min_bytes, written: 0, waited: Duration::ZERO, waiting: None }
    }

    fn check<R>(
        &mut self,
        cx: &mut Context<'_>,
        result: Poll<io::Result<R>>,
        bytes: impl FnOnce(&R) -> usize,
    ) -> Poll<io::Result<R>> {
        if let Poll::Ready(done) = &result {
            if let Some((since, _)) = self.waiting.take() {
                self.waited += since.elapsed();
            }
            self.written = self.written.saturating_add(done.as_ref().map_or(0, |done| bytes(done) as u64));
            if self.written >= self.min_bytes {
                (self.written, self.waited) = (0, Duration::ZERO);
            }
            return result;
        }
        let left = self.timeout.saturating_sub(self.waited);
        let start = || (Instant::now(), Box::pin(sleep_until(Instant::now() + left)));
        let (_, deadline) = self.waiting.get_or_insert_with(start);
        ready!(deadline.as_mut().poll(cx));
        emit(ConnectionCut { reason: CutReason::Unread });
        let message = "the client does not read its response, or too slowly";
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, message)))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for WriteTimeout<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.check(cx, written, |written| *written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, bytes);
        self.check(cx, written, |written| *written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(cx);
        self.check(cx, flushed, |()| 0)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.check(cx, shut, |()| 0)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    /// Writes while the peer reads one byte each so many milliseconds.
    async fn write_to_reader(millis: u64, min_rate: u64, text: &[u8]) -> io::Result<()> {
        let (near, mut far) = duplex(1);
        let mut guarded = WriteTimeout::new(near, TIMEOUT, min_rate);
        let read = async {
            loop {
                tokio::time::sleep(Duration::from_millis(millis)).await;
                if far.read_u8().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::select! {
            written = guarded.write_all(text) => written,
            () = read => unreachable!("the reader never ends"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_fails_when_nothing_is_read_for_the_timeout() {
        let (near, mut far) = duplex(4);
        let mut guarded = WriteTimeout::new(near, TIMEOUT, 1);
        guarded.write_all(b"0123").await.unwrap();
        let started = Instant::now();
        let error = guarded.write_all(b"more").await.unwrap_err();
        assert_eq!((error.kind(), started.elapsed()), (io::ErrorKind::TimedOut, TIMEOUT));
        let mut read = [0; 4];
        far.read_exact(&mut read).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_above_the_minimum_rate_is_served_and_a_slower_one_is_not() {
        write_to_reader(900, 1, &[0; 100]).await.unwrap();
        let error = write_to_reader(2_000, 1, &[0; 100]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn time_between_responses_does_not_count() {
        let (near, mut far) = duplex(64);
        let mut guarded = WriteTimeout::new(near, TIMEOUT, 100);
        for _ in 0..10 {
            guarded.write_all(b"short").await.unwrap();
            let mut read = [0; 5];
            far.read_exact(&mut read).await.unwrap();
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
    }
}
