//! The listener of the REST proxy: TCP, with TLS if it is configured, and a Unix socket. It runs on the runtime of the
//! gate, so that bodies pass without a copy between threads.

use std::{
    convert::Infallible,
    future::poll_fn,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use guildhall_actors::supervision::{Part, spawn, spawn_work};
use http::Request;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::{Semaphore, watch},
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

use super::connection_table::{ConnectionTable, OpenConnection};
use super::events::{AcceptFailed, ConnectionCut, CutReason, EgressStarted};
use super::held_body::HeldBody;
use super::proxy::Egress;
use super::unix_socket::BoundSocket;
use super::write_timeout::WriteTimeout;
use crate::api::{BoundListener, Certificates};
use crate::events::emit;
use crate::settings::EgressSettings;

/// Delay before the next accept when one has failed, for example because there are too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Maximum size of the head of a request.
const MAX_HEAD: usize = 32 * 1024;
/// Size of the system's buffer for responses of a connection: what a client that does not read can hold there.
const SEND_BUFFER: usize = 256 * 1024;
/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection that makes room for another one may still write, before it is looked at again.
const CLOSE_GRACE: Duration = Duration::from_millis(100);
/// How many connections above the limit are refused at once with a response that is sure to arrive.
const MAX_REFUSING: usize = 256;
/// How long a connection that is closed is read.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// How many bytes of it are read.
const MAX_DRAINED_BYTES: u64 = 64 * 1024 * 1024;
/// Response to a connection above the limit.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-type: application/json\r\n\
    retry-after: 1\r\nvia: 1.1 guildhall\r\ngenerated-by-proxy: true\r\nx-guildhall-sent: 0\r\n\
    x-guildhall-why: connections_full\r\ncontent-length: 52\r\n\r\n\
    {\"message\":\"too many connections are open\",\"code\":0}";

/// Limits of connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EgressListenerConfig {
    max_connections: usize,
    max_connections_per_address: usize,
    idle_timeout: Duration,
    write_timeout: Duration,
    min_download_rate: u64,
}

impl From<&EgressSettings> for EgressListenerConfig {
    fn from(settings: &EgressSettings) -> Self {
        Self {
            max_connections: settings.max_connections,
            max_connections_per_address: settings.max_connections_per_address,
            idle_timeout: settings.idle_timeout,
            write_timeout: settings.write_timeout,
            min_download_rate: settings.min_download_rate,
        }
    }
}

/// What the proxy listens on.
#[derive(Debug)]
pub(crate) struct BoundEgress {
    pub(crate) tcp: BoundListener,
    /// For TCP.
    pub(crate) certificates: Option<Certificates>,
    pub(crate) socket: Option<BoundSocket>,
}

/// The running listener.
#[derive(Debug)]
pub(crate) struct EgressListener {
    stop: watch::Sender<bool>,
    table: Arc<ConnectionTable>,
    accepting: JoinHandle<()>,
}

impl EgressListener {
    /// Starts to serve. Must be called on the runtime of the gate.
    pub(crate) fn start(bound: BoundEgress, egress: Egress, config: EgressListenerConfig) -> io::Result<Self> {
        let BoundEgress { tcp, certificates, socket } = bound;
        let address = tcp.address();
        let tcp = tcp.into_socket();
        tcp.set_nonblocking(true)?;
        let tcp = TcpListener::from_std(tcp)?;
        let path = socket.as_ref().map(|socket| socket.path().display().to_string()).unwrap_or_default();
        let unix = socket.map(BoundSocket::listen).transpose()?;
        let (stop, stopped) = watch::channel(false);
        let table = ConnectionTable::new(config.max_connections, config.max_connections_per_address);
        emit(EgressStarted { address, tls: certificates.is_some(), socket: &path });
        let server = Server {
            egress: Arc::new(egress),
            config,
            tls: certificates.map(|certificates| certificates.acceptor()),
            table: Arc::clone(&table),
            refusing: Arc::new(Semaphore::new(MAX_REFUSING)),
            stopped,
        };
        let accepting = spawn(Part::EgressListener, server.accept(tcp, unix));
        Ok(Self { stop, table, accepting })
    }

    /// Accepts no more connections, and waits until the calls in progress are answered, but at most this long.
    pub(crate) async fn stop(self, max_wait: Duration) {
        self.stop.send_replace(true);
        // What is not answered by then is cut when the process ends.
        drop(timeout(max_wait, self.table.wait_until_empty()).await);
        self.accepting.abort();
    }
}

/// An accepted connection.
enum Accepted {
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream),
}

/// Serves connections.
#[derive(Clone)]
struct Server {
    egress: Arc<Egress>,
    config: EgressListenerConfig,
    tls: Option<TlsAcceptor>,
    table: Arc<ConnectionTable>,
    refusing: Arc<Semaphore>,
    stopped: watch::Receiver<bool>,
}

impl Server {
    async fn accept(self, tcp: TcpListener, unix: Option<UnixListener>) {
        let mut stopped = self.stopped.clone();
        loop {
            let accepted = tokio::select! {
                accepted = accept_any(&tcp, unix.as_ref()) => accepted,
                _ = stopped.wait_for(|stopped| *stopped) => break,
            };
            match accepted {
                // A panic ends this connection only.
                Ok(Accepted::Tcp(socket, peer)) => match self.table.open(Some(peer.ip())) {
                    Some(connection) => drop(spawn_work(self.clone().serve_tcp(socket, peer.ip(), connection))),
                    None => self.refuse(socket, self.tls.is_some()),
                },
                Ok(Accepted::Unix(socket)) => match self.table.open(None) {
                    Some(connection) => {
                        let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
                        drop(spawn_work(self.clone().serve(socket, local, connection)));
                    }
                    None => self.refuse(socket, false),
                },
                Err(error) => {
                    emit(AcceptFailed { reason: &error.to_string() });
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop((tcp, unix));
        // The part ends with the process.
        std::future::pending::<()>().await;
    }

    /// Refuses a connection with the reason, if it is not encrypted. Without waiting: there may be many of them.
    fn refuse(&self, socket: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, is_encrypted: bool) {
        emit(ConnectionCut { reason: CutReason::Full });
        if let Ok(permit) = Arc::clone(&self.refusing).try_acquire_owned()
            && !is_encrypted
        {
            spawn_work(async move {
                let _permit = permit;
                drop(timeout(DRAIN_TIMEOUT, send_and_close(socket)).await);
            });
        }
    }

    async fn serve_tcp(self, socket: TcpStream, peer: IpAddr, connection: OpenConnection) {
        // Responses are written whole: nothing is gained by waiting for more to send.
        let _ = socket.set_nodelay(true);
        let _ = SockRef::from(&socket).set_send_buffer_size(SEND_BUFFER);
        let Some(tls) = self.tls.clone() else { return self.serve(socket, peer, connection).await };
        let mut stopped = self.stopped.clone();
        let handshake = tokio::select! {
            handshake = timeout(HANDSHAKE_TIMEOUT, tls.accept(socket)) => handshake,
            () = connection.closed_for_room() => return,
            _ = stopped.wait_for(|stopped| *stopped) => return,
        };
        match handshake {
            Ok(Ok(stream)) => self.serve(stream, peer, connection).await,
            Ok(Err(_)) | Err(_) => emit(ConnectionCut { reason: CutReason::Handshake }),
        }
    }

    async fn serve<T>(self, stream: T, peer: IpAddr, connection: OpenConnection)
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (egress, begin_call, stopped) = (Arc::clone(&self.egress), connection.calls(), self.stopped.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            let (egress, call, is_stopping) = (Arc::clone(&egress), begin_call(), *stopped.borrow());
            Box::pin(async move {
                let response = egress.handle(request, peer, is_stopping).await;
                Ok::<_, Infallible>(response.map(|body| HeldBody::new(body, call)))
            })
        });
        let io = TokioIo::new(WriteTimeout::new(stream, self.config.write_timeout, self.config.min_download_rate));
        let mut http = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.config.idle_timeout)
            .max_buf_size(MAX_HEAD)
            .serve_connection(io, service);
        let mut stopped = self.stopped.clone();
        let ended = tokio::select! {
            ended = poll_fn(|cx| http.poll_without_shutdown(cx)) => Some(ended),
            () = connection.closed_for_room() => {
                Pin::new(&mut http).graceful_shutdown();
                // It ends at once, unless a part of a request has arrived, or a response is still being written.
                loop {
                    match timeout(CLOSE_GRACE, poll_fn(|cx| http.poll_without_shutdown(cx))).await {
                        Ok(ended) => break Some(ended),
                        Err(_) if connection.is_busy() => {}
                        Err(_) => return,
                    }
                }
            }
            // The guard of the value is not kept: other branches wait.
            () = async { drop(stopped.wait_for(|stopped| *stopped).await) } => {
                Pin::new(&mut http).graceful_shutdown();
                None
            }
        };
        let ended = match ended {
            Some(ended) => ended,
            None => poll_fn(|cx| http.poll_without_shutdown(cx)).await,
        };
        if ended.is_ok() {
            drop(timeout(DRAIN_TIMEOUT, close(http.into_parts().io.into_inner())).await);
        }
    }
}

async fn accept_any(tcp: &TcpListener, unix: Option<&UnixListener>) -> io::Result<Accepted> {
    let tcp = async { tcp.accept().await.map(|(socket, peer)| Accepted::Tcp(socket, peer)) };
    let Some(unix) = unix else { return tcp.await };
    tokio::select! {
        accepted = tcp => accepted,
        accepted = unix.accept() => accepted.map(|(socket, _)| Accepted::Unix(socket)),
    }
}

/// Sends the response to a connection above the limit, and closes it.
async fn send_and_close(mut socket: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    socket.write_all(FULL).await?;
    close(socket).await
}

/// Closes a connection, and reads what its client still sends: a connection that is closed with unread data is reset, and
/// the client could lose the response.
async fn close(mut socket: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    socket.shutdown().await?;
    tokio::io::copy(&mut socket.take(MAX_DRAINED_BYTES), &mut tokio::io::sink()).await.map(drop)
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
