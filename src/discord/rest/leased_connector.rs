//! Connections that write nothing after a lease has expired.
//!
//! A call can be delayed between the gate and the network for as long as the process is frozen. The lease is therefore
//! checked again when the bytes are written. After that, the kernel owns them.

use std::{
    future::Future,
    io::{Error, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use guildhall_actors::lease_guard::LeaseGuard;
use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use tower_service::Service;

/// Creates connections that write only while the lease is valid.
#[derive(Clone, Debug)]
pub(super) struct LeasedConnector<C> {
    pub(super) inner: C,
    pub(super) lease: LeaseGuard,
}

impl<C> Service<Uri> for LeasedConnector<C>
where
    C: Service<Uri>,
    C::Future: Send + 'static,
{
    type Response = LeasedConnection<C::Response>;
    type Error = C::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (connecting, lease) = (self.inner.call(uri), self.lease.clone());
        Box::pin(async move { Ok(LeasedConnection { inner: connecting.await?, lease }) })
    }
}

/// A connection that writes only while the lease is valid.
#[derive(Debug)]
pub(super) struct LeasedConnection<T> {
    inner: T,
    lease: LeaseGuard,
}

impl<T> LeasedConnection<T> {
    fn check(&self) -> Result<(), Error> {
        if self.lease.holds() { Ok(()) } else { Err(Error::other("the lease expired before the call was written")) }
    }
}

impl<T: Connection> Connection for LeasedConnection<T> {
    fn connected(&self) -> Connected {
        self.inner.connected()
    }
}

impl<T: Read + Unpin> Read for LeasedConnection<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<Result<(), Error>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<T: Write + Unpin> Write for LeasedConnection<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<Result<usize, Error>> {
        self.check()?;
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<Result<usize, Error>> {
        self.check()?;
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }
}
