//! Transfers frames between a connection and the gateway state, which makes all decisions.

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
use super::frame;
use super::gateway_state::{ConnectionId, DisconnectReason, Ending, Outbound};
use super::zlib::Deflater;
use crate::state::{Core, Shared};

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// Events taken from the gateway state at a time.
const BATCH_SIZE: usize = 256;

/// How long a client may take to respond to a close frame.
const CLOSE_GRACE: Duration = Duration::from_secs(2);

/// Serves one gateway connection until it ends.
pub(crate) async fn serve(shared: Arc<Shared>, mut socket: Socket, query: &str) {
    let mut encoding = match FrameEncoding::negotiate(query, shared.config.gateway.compression) {
        Ok(encoding) => encoding,
        Err(close) => {
            shared.lock().gateway.record_refused(close);
            return close_socket(&mut socket, close).await;
        }
    };
    let url = shared.urls.gateway.clone();
    let (id, wakeup) = shared.lock().gateway.open(shared.now());
    let mut connection = ConnectionGuard { shared, id, reason: DisconnectReason::Lost };
    let mut outbound = Outbound::default();
    let mut has_unsent = false;
    loop {
        // A socket with unsent data gets no more events, but everything else.
        connection.take_outbound(if has_unsent { 0 } else { BATCH_SIZE }, &mut outbound);
        has_unsent |= match encoding.queue(&mut socket, &outbound) {
            Ok(queued) => queued,
            Err(_) => return,
        };
        match outbound.ending {
            Some(Ending::Close(close)) => {
                connection.reason = DisconnectReason::ClosedByGateway;
                return close_socket(&mut socket, close).await;
            }
            Some(Ending::Cut) => {
                connection.reason = DisconnectReason::ClosedByGateway;
                return;
            }
            None => {}
        }
        let timeout = outbound.due.since(connection.shared.now());
        let event = tokio::select! {
            biased;
            event = poll_fn(|cx| poll_socket(&mut socket, has_unsent, cx)) => event,
            () = wakeup.notified() => continue,
            () = tokio::time::sleep(timeout) => continue,
        };
        match event {
            SocketEvent::Flushed => has_unsent = false,
            SocketEvent::Received(Some(Ok(message))) if message.is_close() => {
                let code = message.as_close().map_or(1005, |(code, _)| u16::from(code));
                connection.reason = DisconnectReason::ClosedByClient(code);
                let _ = tokio::time::timeout(CLOSE_GRACE, drain(&mut socket)).await;
                return;
            }
            SocketEvent::Received(Some(Ok(message))) => {
                if message.is_text() || message.is_binary() {
                    connection.handle_frame(message.as_payload(), &url);
                } else if message.is_ping() {
                    connection.handle_ping();
                }
            }
            SocketEvent::Received(Some(Err(error))) => {
                tracing::debug!(%error, "gateway connection failed");
                // The protocol's own close frame, for frames that are too long or malformed, is queued at this point.
                let _ = tokio::time::timeout(CLOSE_GRACE, drain(&mut socket)).await;
                return;
            }
            SocketEvent::Received(None) => return,
        }
    }
}

/// What happened on a socket.
enum SocketEvent {
    /// Everything queued is written.
    Flushed,
    Received(Option<Result<Message, Error>>),
}

fn poll_socket(socket: &mut Socket, has_unsent: bool, cx: &mut Context<'_>) -> Poll<SocketEvent> {
    if let Poll::Ready(received) = Pin::new(&mut *socket).poll_next(cx) {
        return Poll::Ready(SocketEvent::Received(received));
    }
    if !has_unsent {
        return Poll::Pending;
    }
    match Pin::new(socket).poll_flush(cx) {
        Poll::Ready(Ok(())) => Poll::Ready(SocketEvent::Flushed),
        Poll::Ready(Err(error)) => Poll::Ready(SocketEvent::Received(Some(Err(error)))),
        Poll::Pending => Poll::Pending,
    }
}

/// Sends a close frame and waits briefly for the response.
async fn close_socket(socket: &mut Socket, close: Close) {
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

/// A connection's entry in the gateway state, removed on drop.
struct ConnectionGuard {
    shared: Arc<Shared>,
    id: ConnectionId,
    reason: DisconnectReason,
}

impl ConnectionGuard {
    fn take_outbound(&self, room: usize, outbound: &mut Outbound) {
        let mut core = self.shared.lock();
        let Core { world, gateway, .. } = &mut *core;
        gateway.take_outbound(world, self.id, room, outbound, self.shared.now());
    }

    fn handle_frame(&self, frame: &[u8], url: &str) {
        let mut core = self.shared.lock();
        let Core { world, gateway, .. } = &mut *core;
        gateway.handle_frame(world, self.id, frame, url, self.shared.now());
    }

    fn handle_ping(&self) {
        self.shared.lock().gateway.handle_ping(self.id, self.shared.now());
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.shared.lock().gateway.remove_connection(self.id, self.reason, self.shared.now());
    }
}

/// Encoding of frames, as the URL of the connection requests.
enum FrameEncoding {
    Text,
    Zlib(Deflater),
}

impl FrameEncoding {
    /// Parses the query of the URL: `v`, `encoding`, `compress`; each is optional. Of the two transport compressions
    /// only zlib-stream is supported: a client that requests zstd-stream could not read anything else, so it is refused
    /// at once.
    fn negotiate(query: &str, compression: bool) -> Result<Self, Close> {
        let mut selected = Self::Text;
        for (key, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            match (key, value) {
                ("v", version) if version != "10" => return Err(Close::INVALID_VERSION),
                ("encoding", encoding) if encoding != "json" => return Err(Close::ENCODING),
                ("compress", "zlib-stream") if compression => selected = Self::Zlib(Deflater::new()),
                ("compress", "zlib-stream" | "") => {}
                ("compress", _) => return Err(Close::COMPRESSION),
                _ => {}
            }
        }
        Ok(selected)
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
    fn url_selects_the_frame_encoding() {
        assert!(matches!(FrameEncoding::negotiate("", true), Ok(FrameEncoding::Text)));
        assert!(matches!(FrameEncoding::negotiate("v=10&encoding=json", true), Ok(FrameEncoding::Text)));
        assert!(matches!(
            FrameEncoding::negotiate("v=10&encoding=json&compress=zlib-stream", true),
            Ok(FrameEncoding::Zlib(_))
        ));
        assert!(matches!(
            FrameEncoding::negotiate("v=10&encoding=json&compress=zlib-stream", false),
            Ok(FrameEncoding::Text)
        ));
        assert!(matches!(FrameEncoding::negotiate("v=7", true), Err(Close::INVALID_VERSION)));
        assert!(matches!(FrameEncoding::negotiate("v=10&encoding=etf", true), Err(Close::ENCODING)));
        assert!(matches!(FrameEncoding::negotiate("v=10&compress=zstd-stream", true), Err(Close::COMPRESSION)));
    }
}
