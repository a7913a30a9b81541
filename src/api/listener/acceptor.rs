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
const LISTENED_TO: Duration = Duration::from_millis(500);
/// How many bytes of it are read.
const LISTENED_MOST: u64 = 64 * 1024;

/// Accepts connections, or rejects them with the reason.
#[derive(Clone)]
pub(crate) struct Acceptor {
    pub(crate) doors: Arc<ConnectionLimit>,
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) patience: ConnectionTimeouts,
}

impl Acceptor {
    /// An accepted connection; an error for a rejected one.
    pub(crate) async fn admit(
        self,
        stream: TcpStream,
    ) -> Result<(HttpConnection, Protocol, Option<SocketAddr>), DispatchError> {
        let place = match self.doors.enter() {
            Some(place) if place.kind() != ConnectionClass::Told => place,
            told => {
                self.refuse(stream, told).await;
                return Err(away());
            }
        };
        let peer = stream.peer_addr().ok();
        // Responses are small and complete: nothing is gained by waiting for more to send.
        let _ = stream.set_nodelay(true);
        let wire = match self.tls {
            None => Socket::Plain(stream),
            Some(tls) => match timeout(self.patience.header, tls.accept(stream)).await {
                Ok(Ok(stream)) => Socket::Tls(Box::new(stream)),
                Ok(Err(_)) => {
                    emit(ConnectionAborted { why: ConnectionAbortReason::Handshake });
                    return Err(away());
                }
                Err(_) => {
                    emit(ConnectionAborted { why: ConnectionAbortReason::SlowHandshake });
                    return Err(away());
                }
            },
        };
        Ok((HttpConnection::new(wire, place, self.patience), Protocol::Http1, peer))
    }
}

impl Acceptor {
    /// Sends the reason for a rejection. With a permit, the connection is read for a while, so that the response
    /// arrives for sure.
    async fn refuse(&self, stream: TcpStream, place: Option<ConnectionPermit>) {
        let (problem, why) = match (&place, self.doors.is_closing()) {
            (_, true) => (ProblemType::Draining, ConnectionRejectReason::Ending),
            (Some(_), false) => (ProblemType::TooManyConnections, ConnectionRejectReason::Full),
            (None, false) => (ProblemType::TooManyConnections, ConnectionRejectReason::Flood),
        };
        emit(ConnectionRejected { why });
        // Before the TLS handshake the client could not read a response.
        if self.tls.is_some() {
            return;
        }
        let words = problem.words();
        if place.is_some() {
            let _ = timeout(LISTENED_TO, turn_away(stream, &words)).await;
        } else {
            let _ = SockRef::from(&stream).send(words.as_bytes());
        }
    }
}

/// Sends a response, and closes the connection.
async fn turn_away(mut stream: TcpStream, words: &str) -> io::Result<()> {
    stream.write_all(words.as_bytes()).await?;
    stream.shutdown().await?;
    tokio::io::copy(&mut stream.take(LISTENED_MOST), &mut tokio::io::sink()).await.map(drop)
}

/// The error for a connection that is not served. It is not reported anywhere.
fn away() -> DispatchError {
    DispatchError::Io(io::ErrorKind::ConnectionAborted.into())
}
