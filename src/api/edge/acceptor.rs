//! Whoever stands at the door.

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

/// How long somebody is listened to who was told that there is no room: closing at once could take the word back.
const LISTENED_TO: Duration = Duration::from_millis(500);
/// How much of it is listened to.
const LISTENED_MOST: u64 = 64 * 1024;

/// Lets connections in, or says why not.
#[derive(Clone)]
pub(super) struct Acceptor {
    pub(super) doors: Arc<ConnectionLimit>,
    pub(super) tls: Option<TlsAcceptor>,
    pub(super) patience: ConnectionTimeouts,
}

impl Acceptor {
    /// A connection that is served; an error for one that is not.
    pub(super) async fn admit(
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
        // Answers are small and whole: nothing is gained by waiting for more to send.
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
    /// Says why there is no place for a connection; if there is one for listening to it, then so that it hears that for sure.
    async fn refuse(&self, stream: TcpStream, place: Option<ConnectionPermit>) {
        let (problem, why) = match (&place, self.doors.is_closing()) {
            (_, true) => (ProblemType::Draining, ConnectionRejectReason::Ending),
            (Some(_), false) => (ProblemType::TooManyConnections, ConnectionRejectReason::Full),
            (None, false) => (ProblemType::TooManyConnections, ConnectionRejectReason::Flood),
        };
        emit(ConnectionRejected { why });
        // Who has not greeted us yet would not understand.
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

/// Says something to a connection, and ends it.
async fn turn_away(mut stream: TcpStream, words: &str) -> io::Result<()> {
    stream.write_all(words.as_bytes()).await?;
    stream.shutdown().await?;
    tokio::io::copy(&mut stream.take(LISTENED_MOST), &mut tokio::io::sink()).await.map(drop)
}

/// That a connection is not served. Nobody reads it.
fn away() -> DispatchError {
    DispatchError::Io(io::ErrorKind::ConnectionAborted.into())
}
