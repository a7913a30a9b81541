//! Accepts connections, limits their number, and routes their requests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;

use super::{files, rest, upgrade};
use crate::control;
use crate::state::Shared;

/// A complete HTTP response.
pub(crate) type HttpResponse = Response<Full<Bytes>>;

/// A connection that a fault cuts instead of a response.
#[derive(Debug, thiserror::Error)]
#[error("the connection was dropped by a fault")]
pub(crate) struct Dropped;

/// Delay before the next accept when the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `stop` becomes true or its sender is dropped; open connections end then. With `tls`, connections must
/// use it.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    shared: Arc<Shared>,
    mut stop: watch::Receiver<bool>,
) {
    let slots = Arc::new(Semaphore::new(shared.config.max_connections));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        let (socket, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection; raise the limit of open files if this continues");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&slots).try_acquire_owned() else {
            tokio::spawn(reject(socket));
            continue;
        };
        let (shared, tls) = (Arc::clone(&shared), tls.clone());
        let mut stop = stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = accept(socket, peer, tls, shared) => {}
                _ = stop.wait_for(|stop| *stop) => {}
            }
            drop(permit);
        });
    }
}

/// Responds 503 because of the connection limit, without reading the request.
async fn reject(mut socket: TcpStream) {
    const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-type: text/plain\r\n\
        content-length: 49\r\n\r\nThe simulator has reached its connection limit.\r\n";
    let _ = tokio::time::timeout(Duration::from_secs(1), socket.write_all(FULL)).await;
}

async fn accept(socket: TcpStream, peer: SocketAddr, tls: Option<TlsAcceptor>, shared: Arc<Shared>) {
    let _ = socket.set_nodelay(true);
    let Some(tls) = tls else { return connection(socket, peer, shared).await };
    match tokio::time::timeout(shared.config.idle_timeout, tls.accept(socket)).await {
        Ok(Ok(socket)) => connection(socket, peer, shared).await,
        Ok(Err(error)) => tracing::info!(%peer, %error, "TLS handshake failed"),
        Err(_) => tracing::info!(%peer, "TLS handshake timed out"),
    }
}

async fn connection(
    socket: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    peer: SocketAddr,
    shared: Arc<Shared>,
) {
    let idle = shared.config.idle_timeout;
    let (upgraded, mut gateway) = tokio::sync::mpsc::channel(1);
    let service = {
        let shared = Arc::clone(&shared);
        service_fn(move |request: Request<Incoming>| {
            let shared = Arc::clone(&shared);
            let upgraded = upgraded.clone();
            async move { handle_request(request, peer, shared, upgraded).await }
        })
    };
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(idle)
        .max_buf_size(64 * 1024)
        .serve_connection(TokioIo::new(socket), service)
        .with_upgrades()
        .await;
    if let Err(error) = served {
        tracing::debug!(%peer, %error, "connection ended");
    }
    // The gateway runs in this task, so that a connection is one task, with or without an upgrade.
    if let Ok(pending) = gateway.try_recv() {
        upgrade::run(pending, shared).await;
    }
}

async fn handle_request(
    request: Request<Incoming>,
    peer: SocketAddr,
    shared: Arc<Shared>,
    upgraded: tokio::sync::mpsc::Sender<upgrade::Pending>,
) -> Result<HttpResponse, Dropped> {
    if upgrade::is_requested(&request) {
        return Ok(upgrade::accept(request, &upgraded));
    }
    let path = request.uri().path();
    if rest::is_api(path) {
        return rest::handle(shared, peer.ip(), request).await;
    }
    if files::is_file(path) {
        return Ok(files::handle(&shared, request.method(), path));
    }
    if control::is_control(path) {
        return Ok(control::handle_request(shared, request).await);
    }
    let message =
        "404: the REST API is under /api/v10, the gateway takes WebSockets, and GET /sim lists the control API";
    Ok(json(hyper::StatusCode::NOT_FOUND, serde_json::json!({ "message": message, "code": 0 }).to_string()))
}

/// A JSON response of the simulator itself.
pub(crate) fn json(status: hyper::StatusCode, body: impl Into<Bytes>) -> HttpResponse {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    answer
        .headers_mut()
        .insert(hyper::header::CONTENT_TYPE, hyper::header::HeaderValue::from_static("application/json"));
    answer
}
