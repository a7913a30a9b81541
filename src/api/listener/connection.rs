//! A connection with timeouts.
//!
//! actix-http limits the time in which the first request of a connection must arrive, but not that of later ones; and
//! it waits without a limit for a client that does not read. Both are limited here.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Instant, Sleep, sleep_until},
};
use tokio_rustls::server::TlsStream;

use super::{
    connection_limit::{ConnectionClass, ConnectionPermit},
    connection_state::HttpConnectionState,
};
use crate::{
    api::{
        abort::ConnectionAbort,
        events::{ConnectionAbortReason, ConnectionAborted},
    },
    events::emit,
};

/// How long a connection that may only request health has to do so.
const DOORSTEP_WITHIN: Duration = Duration::from_secs(1);

/// The socket of a connection.
pub(crate) enum Socket {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Timeouts of a connection.
#[derive(Clone, Copy)]
pub(crate) struct ConnectionTimeouts {
    pub(crate) header: Duration,
    pub(crate) write: Duration,
}

pub(crate) struct HttpConnection {
    wire: Socket,
    patience: ConnectionTimeouts,
    visit: HttpConnectionState,
    /// Aborts the connection from elsewhere.
    line: ConnectionAbort,
    /// Deadline for a request whose first bytes have arrived, and the number of requests before it.
    header_by: Option<(u64, Pin<Box<Sleep>>)>,
    /// Deadline until which the client must read some of the response.
    write_by: Option<Pin<Box<Sleep>>>,
    _place: ConnectionPermit,
}

impl HttpConnection {
    pub(crate) fn new(wire: Socket, place: ConnectionPermit, patience: ConnectionTimeouts) -> Self {
        let visit = HttpConnectionState::new(place.kind());
        let header_by =
            (place.kind() == ConnectionClass::Doorstep).then(|| (0, after(DOORSTEP_WITHIN.min(patience.header))));
        Self { wire, patience, visit, line: ConnectionAbort::default(), header_by, write_by: None, _place: place }
    }

    pub(crate) fn visit(&self) -> HttpConnectionState {
        self.visit.clone()
    }

    pub(crate) fn line(&self) -> ConnectionAbort {
        self.line.clone()
    }

    /// Some bytes have arrived.
    fn has_read(&mut self) {
        let (begun, is_answered) = self.visit.progress();
        let is_waited_for = self.header_by.as_ref().is_some_and(|(since, _)| *since == begun);
        if is_answered {
            self.header_by = None;
        } else if !is_waited_for {
            self.header_by = Some((begun, after(self.patience.header)));
        }
    }

    /// No bytes have arrived. Returns whether a request is overdue.
    fn is_overdue(&mut self, cx: &mut Context<'_>) -> bool {
        let (begun, is_answered) = self.visit.progress();
        if is_answered || self.header_by.as_ref().is_some_and(|(since, _)| *since != begun) {
            self.header_by = None;
        }
        self.header_by.as_mut().is_some_and(|(_, by)| by.as_mut().poll(cx).is_ready())
    }

    /// Aborts the connection if the client reads nothing for too long.
    fn within_patience<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        // This comes first: a client that starts to read just now must not take what it reads for the complete
        // response.
        if self.line.is_cut(cx) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        if written.is_ready() {
            self.write_by = None;
            return written;
        }
        let by = self.write_by.get_or_insert_with(|| after(self.patience.write));
        ready!(by.as_mut().poll(cx));
        emit(ConnectionAborted { why: ConnectionAbortReason::Unread });
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the response is not read")))
    }
}

fn after(duration: Duration) -> Pin<Box<Sleep>> {
    Box::pin(sleep_until(Instant::now() + duration))
}

impl AsyncRead for HttpConnection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = match &mut self.wire {
            Socket::Plain(wire) => Pin::new(wire).poll_read(cx, buffer),
            Socket::Tls(wire) => Pin::new(wire).poll_read(cx, buffer),
        };
        match read {
            Poll::Ready(Ok(())) if buffer.filled().len() > before => {
                self.has_read();
                read
            }
            Poll::Ready(_) => read,
            Poll::Pending if self.line.is_cut(cx) => Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into())),
            Poll::Pending if self.is_overdue(cx) => {
                emit(ConnectionAborted { why: ConnectionAbortReason::SlowHeader });
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the request does not arrive")))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncWrite for HttpConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = match &mut self.wire {
            Socket::Plain(wire) => Pin::new(wire).poll_write(cx, bytes),
            Socket::Tls(wire) => Pin::new(wire).poll_write(cx, bytes),
        };
        self.within_patience(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = match &mut self.wire {
            Socket::Plain(wire) => Pin::new(wire).poll_flush(cx),
            Socket::Tls(wire) => Pin::new(wire).poll_flush(cx),
        };
        self.within_patience(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = match &mut self.wire {
            Socket::Plain(wire) => Pin::new(wire).poll_shutdown(cx),
            Socket::Tls(wire) => Pin::new(wire).poll_shutdown(cx),
        };
        self.within_patience(cx, shut)
    }
}
