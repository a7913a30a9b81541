//! Serves an app on a socket, within limits.

use std::{fmt, io, net::TcpListener, sync::Arc, time::Duration};

use actix_http::{HttpService, Request, Response};
use actix_server::Server;
use actix_service::{
    IntoServiceFactory, Service, ServiceFactory, ServiceFactoryExt as _, apply_fn_factory, fn_service, map_config,
};
use actix_web::{
    Error,
    body::{BoxBody, MessageBody},
    dev::AppConfig,
};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use super::acceptor::Acceptor;
use super::connection::{ConnectionTimeouts, HttpConnection};
use super::connection_limit::ConnectionLimit;
use super::connection_state::{HttpConnectionState, TrackedBody};
use crate::api::listener::edge_config::EdgeConfig;

/// Probes, scrapes and calls are small; the daemon's cores belong to its shards.
const WORKERS: usize = 2;
/// How long a connection may take to close. A rejected request may still be arriving: the response is lost if the
/// connection closes before that.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// actix-http counts from a cached time that it updates twice a second: without this, timeouts would expire too early
/// by as much.
const CLOCK_RESOLUTION: Duration = Duration::from_millis(500);
/// Maximum duration of a stop. The caller stops waiting earlier.
const STOP_TIMEOUT_SECONDS: u64 = 600;

/// Serves an app on the connections that the limit permits. When `drained` becomes true, connections are closed after
/// their current request.
pub(crate) fn serve<F, I, S, B>(
    socket: TcpListener,
    config: EdgeConfig,
    limit: Arc<ConnectionLimit>,
    tls: Option<TlsAcceptor>,
    drained: watch::Receiver<bool>,
    app: F,
) -> io::Result<Server>
where
    F: Fn() -> I + Clone + Send + 'static,
    I: IntoServiceFactory<S, Request>,
    S: ServiceFactory<Request, Config = AppConfig> + 'static,
    S::Error: Into<Error> + 'static,
    S::InitError: fmt::Debug,
    S::Response: Into<Response<B>> + 'static,
    S::Service: 'static,
    B: MessageBody + Unpin + 'static,
{
    // Rejected connections hold a permit for a moment as well.
    let max_connections = limit.max();
    // The first request of a connection is timed out by actix-http, which responds with 408.
    let header = config.header_timeout + CLOCK_RESOLUTION;
    let timeouts = ConnectionTimeouts { header, write: config.write_timeout };
    let acceptor = Acceptor { limit, tls, timeouts };
    let server = Server::build()
        .workers(WORKERS)
        .max_concurrent_connections(max_connections)
        .shutdown_timeout(STOP_TIMEOUT_SECONDS)
        // Signals end the whole daemon in order, not this listener first.
        .disable_signals()
        .listen("api", socket, move || {
            let (acceptor, drained) = (acceptor.clone(), drained.clone());
            let app = app().into_factory().map_err(|error| error.into().error_response());
            let app = map_config(app, |()| AppConfig::default());
            let app = apply_fn_factory(app, |request: Request, app| {
                let answering = request.conn_data::<HttpConnectionState>().map(HttpConnectionState::start_request);
                let answer = app.call(request);
                async move {
                    let answer: Response<B> = answer.await?.into();
                    Ok(answer.map_body(|_, body| TrackedBody { body, _request: answering }))
                }
            });
            let http = http(app, config, drained);
            fn_service(move |stream: TcpStream| acceptor.clone().accept(stream)).and_then(http)
        })?
        .run();
    Ok(server)
}

/// HTTP over connections, answered by this app.
fn http<S, B>(app: S, config: EdgeConfig, drained: watch::Receiver<bool>) -> HttpService<HttpConnection, S, B>
where
    S: ServiceFactory<Request, Config = ()>,
    S::Error: Into<Response<BoxBody>> + 'static,
    S::InitError: fmt::Debug,
    S::Response: Into<Response<B>> + 'static,
    <S::Service as Service<Request>>::Future: 'static,
    B: MessageBody + 'static,
{
    HttpService::<HttpConnection, S, B>::build()
        .graceful_shutdown_signal(move || wait_for_drain(drained.clone()))
        .keep_alive(config.keep_alive + CLOCK_RESOLUTION)
        .client_request_timeout(config.header_timeout + CLOCK_RESOLUTION)
        .client_disconnect_timeout(DISCONNECT_TIMEOUT + CLOCK_RESOLUTION)
        .on_connect_ext(|connection: &HttpConnection, about| {
            about.insert(connection.state());
            about.insert(connection.abort());
        })
        .finish(app)
}

/// Waits until the value becomes true.
async fn wait_for_drain(mut drained: watch::Receiver<bool>) {
    if drained.wait_for(|drained| *drained).await.is_err() {
        // The sender was dropped, so it never becomes true.
        std::future::pending::<()>().await;
    }
}
