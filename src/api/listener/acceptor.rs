//! Accepts or rejects TCP connections.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use actix_http::{Protocol, error::DispatchError};
use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;

use super::{
    connection::{ConnectionTimeouts, HttpConnection, Socket},
    connection_limit::{ConnectionClass, ConnectionLimit, ConnectionPermit},
};
use crate::{
    api::{
        events::{ConnectionAbortReason, ConnectionAborted, ConnectionRejectReason, ConnectionRejected},
        problem::ProblemType,
    },
    events::emit,
};

/// How long a rejected connection is read: closing it at once could discard the response.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);
/// How many bytes of it are read.
const MAX_DRAINED_BYTES: u64 = 64 * 1024;

/// Accepts connections, or rejects them with the reason.
#[derive(Clone)]
pub(crate) struct Acceptor {
    pub(crate) limit: Arc<ConnectionLimit>,
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) timeouts: ConnectionTimeouts,
}

impl Acceptor {
    /// An accepted connection; an error for a rejected one.
    pub(crate) async fn accept(
        self,
        stream: TcpStream,
    ) -> Result<(HttpConnection, Protocol, Option<SocketAddr>), DispatchError> {
        let permit = match self.limit.acquire() {
            Some(permit) if permit.kind() != ConnectionClass::Rejected => permit,
            rejected => {
                self.reject(stream, rejected).await;
                return Err(aborted_error());
            }
        };
        let peer = stream.peer_addr().ok();
        // Responses are small and complete: nothing is gained by waiting for more to send.
        let _ = stream.set_nodelay(true);
        let socket = match self.tls {
            None => Socket::Plain(stream),
            Some(tls) => match timeout(self.timeouts.header, tls.accept(stream)).await {
                Ok(Ok(stream)) => Socket::Tls(Box::new(stream)),
                Ok(Err(_)) => {
                    emit(ConnectionAborted { reason: ConnectionAbortReason::Handshake });
                    return Err(aborted_error());
                }
                Err(_) => {
                    emit(ConnectionAborted { reason: ConnectionAbortReason::SlowHandshake });
                    return Err(aborted_error());
                }
            },
        };
        Ok((HttpConnection::new(socket, permit, self.timeouts), Protocol::Http1, peer))
    }
}

impl Acceptor {
    /// Sends the reason for a rejection. With a permit, the connection is read for a while, so that the response
    /// arrives for sure.
    async fn reject(&self, stream: TcpStream, permit: Option<ConnectionPermit>) {
        let (problem, reason) = match (&permit, self.limit.is_closing()) {
            (_, true) => (ProblemType::Draining, ConnectionRejectReason::ShuttingDown),
            (Some(_), false) => (ProblemType::TooManyConnections, ConnectionRejectReason::Full),
            (None, false) => (ProblemType::TooManyConnections, ConnectionRejectReason::Flood),
        };
        emit(ConnectionRejected { reason });
        // Before the TLS handshake the client could not read a response.
        if self.tls.is_some() {
            return;
        }
        let response = problem.raw_response();
        if permit.is_some() {
            let _ = timeout(DRAIN_TIMEOUT, send_and_close(stream, &response)).await;
        } else {
            let _ = SockRef::from(&stream).send(response.as_bytes());
        }
    }
}

/// Sends a response, and closes the connection.
async fn send_and_close(mut stream: TcpStream, response: &str) -> io::Result<()> {
    stream.write_all(response.as_bytes()).await?;
    stream.shutdown().await?;
    tokio::io::copy(&mut stream.take(MAX_DRAINED_BYTES), &mut tokio::io::sink()).await.map(drop)
}

/// The error for a connection that is not served. It is not reported anywhere.
fn aborted_error() -> DispatchError {
    DispatchError::Io(io::ErrorKind::ConnectionAborted.into())
}
