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
const HEALTH_ONLY_TIMEOUT: Duration = Duration::from_secs(1);

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
    socket: Socket,
    timeouts: ConnectionTimeouts,
    state: HttpConnectionState,
    /// Aborts the connection from elsewhere.
    abort: ConnectionAbort,
    /// Deadline for a request whose first bytes have arrived, and the number of requests before it.
    header_deadline: Option<(u64, Pin<Box<Sleep>>)>,
    /// Deadline until which the client must read some of the response.
    write_deadline: Option<Pin<Box<Sleep>>>,
    _permit: ConnectionPermit,
}

impl HttpConnection {
    pub(crate) fn new(socket: Socket, permit: ConnectionPermit, timeouts: ConnectionTimeouts) -> Self {
        let state = HttpConnectionState::new(permit.kind());
        let header_deadline = (permit.kind() == ConnectionClass::HealthOnly)
            .then(|| (0, sleep_for(HEALTH_ONLY_TIMEOUT.min(timeouts.header))));
        Self {
            socket,
            timeouts,
            state,
            abort: ConnectionAbort::default(),
            header_deadline,
            write_deadline: None,
            _permit: permit,
        }
    }

    pub(crate) fn state(&self) -> HttpConnectionState {
        self.state.clone()
    }

    pub(crate) fn abort(&self) -> ConnectionAbort {
        self.abort.clone()
    }

    /// Some bytes have arrived.
    fn on_read(&mut self) {
        let (requests, is_answered) = self.state.progress();
        let is_waited_for = self.header_deadline.as_ref().is_some_and(|(since, _)| *since == requests);
        if is_answered {
            self.header_deadline = None;
        } else if !is_waited_for {
            self.header_deadline = Some((requests, sleep_for(self.timeouts.header)));
        }
    }

    /// No bytes have arrived. Returns whether a request is overdue.
    fn is_overdue(&mut self, cx: &mut Context<'_>) -> bool {
        let (requests, is_answered) = self.state.progress();
        if is_answered || self.header_deadline.as_ref().is_some_and(|(since, _)| *since != requests) {
            self.header_deadline = None;
        }
        self.header_deadline.as_mut().is_some_and(|(_, by)| by.as_mut().poll(cx).is_ready())
    }

    /// Aborts the connection if the client reads nothing for too long.
    fn check_write_timeout<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        // This comes first: a client that starts to read just now must not take what it reads for the complete
        // response.
        if self.abort.is_aborted(cx) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        if written.is_ready() {
            self.write_deadline = None;
            return written;
        }
        let by = self.write_deadline.get_or_insert_with(|| sleep_for(self.timeouts.write));
        ready!(by.as_mut().poll(cx));
        emit(ConnectionAborted { reason: ConnectionAbortReason::Unread });
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the response is not read")))
    }
}

fn sleep_for(duration: Duration) -> Pin<Box<Sleep>> {
    Box::pin(sleep_until(Instant::now() + duration))
}

impl AsyncRead for HttpConnection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = match &mut self.socket {
            Socket::Plain(wire) => Pin::new(wire).poll_read(cx, buffer),
            Socket::Tls(wire) => Pin::new(wire).poll_read(cx, buffer),
        };
        match read {
            Poll::Ready(Ok(())) if buffer.filled().len() > before => {
                self.on_read();
                read
            }
            Poll::Ready(_) => read,
            Poll::Pending if self.abort.is_aborted(cx) => Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into())),
            Poll::Pending if self.is_overdue(cx) => {
                emit(ConnectionAborted { reason: ConnectionAbortReason::SlowHeader });
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the request does not arrive")))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncWrite for HttpConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = match &mut self.socket {
            Socket::Plain(wire) => Pin::new(wire).poll_write(cx, bytes),
            Socket::Tls(wire) => Pin::new(wire).poll_write(cx, bytes),
        };
        self.check_write_timeout(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = match &mut self.socket {
            Socket::Plain(wire) => Pin::new(wire).poll_flush(cx),
            Socket::Tls(wire) => Pin::new(wire).poll_flush(cx),
        };
        self.check_write_timeout(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = match &mut self.socket {
            Socket::Plain(wire) => Pin::new(wire).poll_shutdown(cx),
            Socket::Tls(wire) => Pin::new(wire).poll_shutdown(cx),
        };
        self.check_write_timeout(cx, shut)
    }
}
