//! The listener of the REST proxy. It runs on the runtime of the gate, so that bodies pass without a copy between
//! threads.

use std::{convert::Infallible, io, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use guildhall_actors::supervision::{Part, spawn, spawn_work};
use http::Request;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::events::{AcceptFailed, ConnectionCut, ConnectionEnded, ConnectionOpened, CutReason, EgressStarted};
use super::proxy::Egress;
use super::write_timeout::WriteTimeout;
use crate::api::BoundListener;
use crate::events::emit;
use crate::settings::EgressSettings;

/// Delay before the next accept when one has failed, for example because there are too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Maximum size of the head of a request.
const MAX_HEAD: usize = 64 * 1024;
/// Response to a connection above the limit.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-type: application/json\r\n\
    retry-after: 1\r\nvia: 1.1 guildhall\r\ngenerated-by-proxy: true\r\nx-guildhall-sent: 0\r\n\
    x-guildhall-why: connections_full\r\ncontent-length: 52\r\n\r\n\
    {\"message\":\"too many connections are open\",\"code\":0}";

/// Limits of connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EgressListenerConfig {
    max_connections: usize,
    idle_timeout: Duration,
    write_timeout: Duration,
}

impl From<&EgressSettings> for EgressListenerConfig {
    fn from(settings: &EgressSettings) -> Self {
        Self {
            max_connections: settings.max_connections,
            idle_timeout: settings.idle_timeout,
            write_timeout: settings.write_timeout,
        }
    }
}

/// The running listener.
#[derive(Debug)]
pub(crate) struct EgressListener {
    stop: watch::Sender<bool>,
    slots: Arc<Semaphore>,
    max_connections: usize,
    accepting: JoinHandle<()>,
}

impl EgressListener {
    /// Starts to serve. Must be called on the runtime of the gate.
    pub(crate) fn start(bound: BoundListener, egress: Egress, config: EgressListenerConfig) -> io::Result<Self> {
        let address = bound.address();
        let socket = bound.into_socket();
        socket.set_nonblocking(true)?;
        let listener = TcpListener::from_std(socket)?;
        let (stop, stopped) = watch::channel(false);
        let slots = Arc::new(Semaphore::new(config.max_connections.min(Semaphore::MAX_PERMITS)));
        let server = Server { egress: Arc::new(egress), config, slots: Arc::clone(&slots), stopped };
        let accepting = spawn(Part::EgressListener, server.accept(listener));
        emit(EgressStarted { address });
        Ok(Self { stop, slots, max_connections: config.max_connections, accepting })
    }

    /// Accepts no more connections, and waits until the calls in progress are answered, but at most this long.
    pub(crate) async fn stop(self, max_wait: Duration) {
        self.stop.send_replace(true);
        let all = u32::try_from(self.max_connections).unwrap_or(u32::MAX);
        // What is not answered by then is cut when the process ends.
        drop(timeout(max_wait, self.slots.acquire_many(all)).await);
        self.accepting.abort();
    }
}

/// Serves connections.
#[derive(Clone, Debug)]
struct Server {
    egress: Arc<Egress>,
    config: EgressListenerConfig,
    slots: Arc<Semaphore>,
    stopped: watch::Receiver<bool>,
}

/// A connection, until this is dropped.
struct OpenConnection {
    _slot: OwnedSemaphorePermit,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        emit(ConnectionEnded);
    }
}

impl Server {
    async fn accept(self, listener: TcpListener) {
        let mut stopped = self.stopped.clone();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = stopped.wait_for(|stopped| *stopped) => break,
            };
            let (socket, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    emit(AcceptFailed { reason: &error.to_string() });
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            match Arc::clone(&self.slots).try_acquire_owned() {
                Ok(slot) => {
                    emit(ConnectionOpened);
                    let connection = OpenConnection { _slot: slot };
                    // A panic ends this connection only.
                    spawn_work(self.clone().serve(socket, peer, connection));
                }
                Err(_) => {
                    emit(ConnectionCut { reason: CutReason::Full });
                    // Without waiting: there may be many of them.
                    let _ = socket.try_write(FULL);
                }
            }
        }
        drop(listener);
        // The part ends with the process.
        std::future::pending::<()>().await;
    }

    async fn serve(self, socket: TcpStream, peer: SocketAddr, connection: OpenConnection) {
        // Responses are written whole: nothing is gained by waiting for more to send.
        let _ = socket.set_nodelay(true);
        let (egress, stopped) = (Arc::clone(&self.egress), self.stopped.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            let (egress, is_stopping) = (Arc::clone(&egress), *stopped.borrow());
            async move { Ok::<_, Infallible>(egress.handle(request, peer.ip(), is_stopping).await) }
        });
        let io = TokioIo::new(WriteTimeout::new(socket, self.config.write_timeout));
        let mut served = pin!(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(self.config.idle_timeout)
                .max_buf_size(MAX_HEAD)
                .serve_connection(io, service)
        );
        let mut stopped = self.stopped.clone();
        tokio::select! {
            _ = &mut served => return,
            _ = stopped.wait_for(|stopped| *stopped) => served.as_mut().graceful_shutdown(),
        }
        let _ = served.await;
        drop(connection);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_of_the_rejection_is_that_of_its_body() {
        let text = std::str::from_utf8(FULL).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("content-length: {}", body.len())), "{text}");
    }
}
