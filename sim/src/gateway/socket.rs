//! Transfers frames between a connection and the hub. All decisions are made in the hub.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::{Sink, Stream};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio_websockets::{CloseCode, Error, Message, WebSocketStream};

use super::close::Close;
use super::connection::Incoming;
use super::frame;
use super::hub::{ConnectionId, Departure, Ending, Outbound};
use super::zlib::Deflater;
use crate::state::{Core, Shared};

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// Events taken from the hub at a time.
const BATCH: usize = 256;

/// How long a client may take to respond to a close frame.
const CLOSE_GRACE: Duration = Duration::from_secs(2);

/// Serves one gateway connection until it ends.
pub(crate) async fn serve(shared: Arc<Shared>, mut socket: Socket, query: &str) {
    let mut wire = match Wire::agree(query, shared.config.gateway.compression) {
        Ok(wire) => wire,
        Err(close) => {
            shared.lock().hub.refused(close);
            return say_goodbye(&mut socket, close).await;
        }
    };
    let url = format!("ws://{}", shared.address);
    let (id, bell) = shared.lock().hub.open(shared.now());
    let mut seat = Seat { shared, id, departure: Departure::Lost };
    let mut outbound = Outbound::default();
    let mut is_clogged = false;
    loop {
        // A socket with unsent data gets no more events, but everything else.
        seat.take(if is_clogged { 0 } else { BATCH }, &mut outbound);
        is_clogged |= match wire.queue(&mut socket, &outbound) {
            Ok(queued) => queued,
            Err(_) => return,
        };
        match outbound.ending {
            Some(Ending::Close(close)) => {
                seat.departure = Departure::Ended;
                return say_goodbye(&mut socket, close).await;
            }
            Some(Ending::Cut) => {
                seat.departure = Departure::Ended;
                return;
            }
            None => {}
        }
        let patience = outbound.due.since(seat.shared.now());
        let turn = tokio::select! {
            biased;
            turn = poll_fn(|cx| poll_socket(&mut socket, is_clogged, cx)) => turn,
            () = bell.notified() => continue,
            () = tokio::time::sleep(patience) => continue,
        };
        match turn {
            Turn::Flushed => is_clogged = false,
            Turn::Received(Some(Ok(message))) if message.is_close() => {
                let code = message.as_close().map_or(1005, |(code, _)| u16::from(code));
                seat.departure = Departure::ClosedByClient(code);
                let _ = tokio::time::timeout(CLOSE_GRACE, drain(&mut socket)).await;
                return;
            }
            Turn::Received(Some(Ok(message))) => {
                if let Some(text) = message.as_text() {
                    seat.frame(Incoming::Text(text), &url);
                } else if message.is_binary() {
                    seat.frame(Incoming::Binary, &url);
                } else if message.is_ping() {
                    seat.ping();
                }
            }
            Turn::Received(Some(Err(error))) => {
                tracing::debug!(%error, "gateway connection failed");
                // The protocol's own close frame, for frames that are too long or malformed, is queued at this point.
                let _ = tokio::time::timeout(CLOSE_GRACE, drain(&mut socket)).await;
                return;
            }
            Turn::Received(None) => return,
        }
    }
}

/// What happened on a socket.
enum Turn {
    /// Everything queued is written.
    Flushed,
    Received(Option<Result<Message, Error>>),
}

fn poll_socket(socket: &mut Socket, is_clogged: bool, cx: &mut Context<'_>) -> Poll<Turn> {
    if let Poll::Ready(received) = Pin::new(&mut *socket).poll_next(cx) {
        return Poll::Ready(Turn::Received(received));
    }
    if !is_clogged {
        return Poll::Pending;
    }
    match Pin::new(socket).poll_flush(cx) {
        Poll::Ready(Ok(())) => Poll::Ready(Turn::Flushed),
        Poll::Ready(Err(error)) => Poll::Ready(Turn::Received(Some(Err(error)))),
        Poll::Pending => Poll::Pending,
    }
}

/// Sends a close frame and waits briefly for the response.
async fn say_goodbye(socket: &mut Socket, close: Close) {
    let code = CloseCode::try_from(close.code).ok().filter(|code| !code.is_reserved());
    let frame = Message::close(code, close.reason);
    if Pin::new(&mut *socket).start_send(frame).is_ok() {
        let _ = tokio::time::timeout(CLOSE_GRACE, drain(socket)).await;
    }
}

/// Reads, which also writes what is queued, until the client closes.
async fn drain(socket: &mut Socket) {
    while let Some(Ok(_)) = poll_fn(|cx| Pin::new(&mut *socket).poll_next(cx)).await {}
}

/// A connection's entry in the hub, removed on drop.
struct Seat {
    shared: Arc<Shared>,
    id: ConnectionId,
    departure: Departure,
}

impl Seat {
    fn take(&self, room: usize, outbound: &mut Outbound) {
        let mut core = self.shared.lock();
        let Core { world, hub, .. } = &mut *core;
        hub.take(world, self.id, room, outbound, self.shared.now());
    }

    fn frame(&self, frame: Incoming<'_>, url: &str) {
        let mut core = self.shared.lock();
        let Core { world, hub, .. } = &mut *core;
        hub.frame(world, self.id, frame, url, self.shared.now());
    }

    fn ping(&self) {
        self.shared.lock().hub.ping(self.id, self.shared.now());
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.shared.lock().hub.leave(self.id, self.departure, self.shared.now());
    }
}

/// Encoding of frames, as the URL of the connection requests.
enum Wire {
    Text,
    Zlib(Deflater),
}

impl Wire {
    /// Parses the query of the URL: `v`, `encoding`, `compress`; each is optional. Of the two transport compressions
    /// only zlib-stream is supported: a client that requests zstd-stream could not read anything else, so it is refused
    /// at once.
    fn agree(query: &str, compression: bool) -> Result<Self, Close> {
        let mut wire = Self::Text;
        for (key, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            match (key, value) {
                ("v", version) if version != "10" => return Err(Close::INVALID_VERSION),
                ("encoding", encoding) if encoding != "json" => return Err(Close::ENCODING),
                ("compress", "zlib-stream") if compression => wire = Self::Zlib(Deflater::new()),
                ("compress", "zlib-stream" | "") => {}
                ("compress", _) => return Err(Close::COMPRESSION),
                _ => {}
            }
        }
        Ok(wire)
    }

    /// Queues all frames on the socket; returns whether there were any.
    fn queue(&mut self, socket: &mut Socket, outbound: &Outbound) -> Result<bool, Error> {
        // One allocation for the whole batch: each frame is a part of it.
        let size = outbound.events.iter().map(|(_, event)| event.data.len() + 96).sum::<usize>();
        let mut buffer = BytesMut::with_capacity(size + outbound.controls.len() * 128);
        let mut socket = Pin::new(socket);
        for control in &outbound.controls {
            control.write(&mut buffer);
            socket.as_mut().start_send(self.message(buffer.split().freeze()))?;
        }
        for (sequence, event) in &outbound.events {
            frame::write_event(&mut buffer, *sequence, event);
            socket.as_mut().start_send(self.message(buffer.split().freeze()))?;
        }
        Ok(!outbound.controls.is_empty() || !outbound.events.is_empty())
    }

    fn message(&mut self, text: Bytes) -> Message {
        match self {
            Self::Text => Message::text(text),
            Self::Zlib(deflater) => Message::binary(deflater.message(&text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_says_how_frames_stand_on_the_wire() {
        assert!(matches!(Wire::agree("", true), Ok(Wire::Text)));
        assert!(matches!(Wire::agree("v=10&encoding=json", true), Ok(Wire::Text)));
        assert!(matches!(Wire::agree("v=10&encoding=json&compress=zlib-stream", true), Ok(Wire::Zlib(_))));
        assert!(matches!(Wire::agree("v=10&encoding=json&compress=zlib-stream", false), Ok(Wire::Text)));
        assert!(matches!(Wire::agree("v=7", true), Err(Close::INVALID_VERSION)));
        assert!(matches!(Wire::agree("v=10&encoding=etf", true), Err(Close::ENCODING)));
        assert!(matches!(Wire::agree("v=10&compress=zstd-stream", true), Err(Close::COMPRESSION)));
    }
}
