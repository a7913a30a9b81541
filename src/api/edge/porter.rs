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
    connection::{Connection, Patience, Wire},
    doors::{Doors, Kind, Place},
};
use crate::{
    api::{
        events::{ConnectionCut, ConnectionRefused, Cut, Refusal},
        problem::Problem,
    },
    events::emit,
};

/// How long somebody is listened to who was told that there is no room: closing at once could take the word back.
const LISTENED_TO: Duration = Duration::from_millis(500);
/// How much of it is listened to.
const LISTENED_MOST: u64 = 64 * 1024;

/// Lets connections in, or says why not.
#[derive(Clone)]
pub(super) struct Porter {
    pub(super) doors: Arc<Doors>,
    pub(super) tls: Option<TlsAcceptor>,
    pub(super) patience: Patience,
}

impl Porter {
    /// A connection that is served; an error for one that is not.
    pub(super) async fn admit(
        self,
        stream: TcpStream,
    ) -> Result<(Connection, Protocol, Option<SocketAddr>), DispatchError> {
        let place = match self.doors.enter() {
            Some(place) if place.kind() != Kind::Told => place,
            told => {
                self.refuse(stream, told).await;
                return Err(away());
            }
        };
        let peer = stream.peer_addr().ok();
        // Answers are small and whole: nothing is gained by waiting for more to send.
        let _ = stream.set_nodelay(true);
        let wire = match self.tls {
            None => Wire::Plain(stream),
            Some(tls) => match timeout(self.patience.header, tls.accept(stream)).await {
                Ok(Ok(stream)) => Wire::Tls(Box::new(stream)),
                Ok(Err(_)) => {
                    emit(ConnectionCut { why: Cut::Handshake });
                    return Err(away());
                }
                Err(_) => {
                    emit(ConnectionCut { why: Cut::SlowHandshake });
                    return Err(away());
                }
            },
        };
        Ok((Connection::new(wire, place, self.patience), Protocol::Http1, peer))
    }
}

impl Porter {
    /// Says why there is no place for a connection; if there is one for listening to it, then so that it hears that for sure.
    async fn refuse(&self, stream: TcpStream, place: Option<Place>) {
        let (problem, why) = match (&place, self.doors.is_closing()) {
            (_, true) => (Problem::Draining, Refusal::Ending),
            (Some(_), false) => (Problem::TooManyConnections, Refusal::Full),
            (None, false) => (Problem::TooManyConnections, Refusal::Flood),
        };
        emit(ConnectionRefused { why });
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
