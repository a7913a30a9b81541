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
const DISCONNECT_WITHIN: Duration = Duration::from_secs(1);
/// actix-http counts from a cached time that it updates twice a second: without this, timeouts would expire too early
/// by as much.
const LOOKED_UP_EVERY: Duration = Duration::from_millis(500);
/// Maximum duration of a stop. The caller stops waiting earlier.
const STOP_SECONDS: u64 = 600;

/// Serves an app on the connections that the limit permits. When `drained` becomes true, connections are closed after
/// their current request.
pub(crate) fn serve<F, I, S, B>(
    socket: TcpListener,
    config: EdgeConfig,
    doors: Arc<ConnectionLimit>,
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
    let most = doors.most();
    // The first request of a connection is timed out by actix-http, which responds with 408.
    let header = config.header_within + LOOKED_UP_EVERY;
    let patience = ConnectionTimeouts { header, write: config.write_within };
    let porter = Acceptor { doors, tls, patience };
    let server = Server::build()
        .workers(WORKERS)
        .max_concurrent_connections(most)
        .shutdown_timeout(STOP_SECONDS)
        // Signals end the whole daemon in order, not this listener first.
        .disable_signals()
        .listen("api", socket, move || {
            let (porter, drained) = (porter.clone(), drained.clone());
            let app = app().into_factory().map_err(|error| error.into().error_response());
            let app = map_config(app, |()| AppConfig::default());
            let app = apply_fn_factory(app, |request: Request, app| {
                let answering = request.conn_data::<HttpConnectionState>().map(HttpConnectionState::begin);
                let answer = app.call(request);
                async move {
                    let answer: Response<B> = answer.await?.into();
                    Ok(answer.map_body(|_, body| TrackedBody { body, _answering: answering }))
                }
            });
            let http = http(app, config, drained);
            fn_service(move |stream: TcpStream| porter.clone().admit(stream)).and_then(http)
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
        .graceful_shutdown_signal(move || begins(drained.clone()))
        .keep_alive(config.keep_alive + LOOKED_UP_EVERY)
        .client_request_timeout(config.header_within + LOOKED_UP_EVERY)
        .client_disconnect_timeout(DISCONNECT_WITHIN + LOOKED_UP_EVERY)
        .on_connect_ext(|connection: &HttpConnection, about| {
            about.insert(connection.visit());
            about.insert(connection.line());
        })
        .finish(app)
}

/// Waits until the value becomes true.
async fn begins(mut said: watch::Receiver<bool>) {
    if said.wait_for(|said| *said).await.is_err() {
        // The sender was dropped, so it never becomes true.
        std::future::pending::<()>().await;
    }
}
