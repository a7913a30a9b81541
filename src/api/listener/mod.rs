//! Binding an address, serving it within limits, and closing it.

pub(crate) mod acceptor;
pub(crate) mod certificates;
pub(crate) mod connection;
pub(crate) mod connection_limit;
pub(crate) mod connection_state;
pub(crate) mod edge_config;
pub(crate) mod serve;

use std::{
    fmt, io,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use actix_http::{Request, Response};
use actix_service::{IntoServiceFactory, ServiceFactory};
use actix_web::{
    App, Error,
    body::MessageBody,
    dev::{AppConfig, ServerHandle},
    middleware::from_fn,
    web::{Data, scope},
};
use guildhall_actors::supervision::{Part, spawn_local};
use metrics_exporter_prometheus::PrometheusHandle;
use socket2::SockRef;
use tokio::{runtime::Handle, sync::watch, time::timeout};

use super::health::HealthState;
use super::readiness::Readiness;
use super::{body, health, openapi};
use crate::api::app_state as control;
use crate::api::app_state::{AppState, Control};
use crate::api::listener::certificates::Certificates;
use crate::api::listener::connection_limit::ConnectionLimit;
use crate::api::listener::edge_config::EdgeConfig;

/// Maximum number of connections that wait to be accepted. The system may have its own limit, which is this by default
/// on Linux.
const BACKLOG: i32 = 4_096;

/// The address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {}", advice(.source, .set))]
pub struct BindError {
    /// The address.
    pub address: SocketAddr,
    /// The setting to change.
    set: &'static str,
    source: io::Error,
}

fn advice(error: &io::Error, set: &str) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("another process holds that port; stop it, or set {set} to another port (0 selects a free one)")
        }
        io::ErrorKind::PermissionDenied => {
            format!("this user has no permission for that port; set {set} to a port from 1024 upwards")
        }
        io::ErrorKind::AddrNotAvailable => format!(
            "this machine has no such address; set {set} to an address that it \
            has"
        ),
        _ => format!("{error}; check {set}"),
    }
}

/// The setting of the API's address, as in messages.
pub const API_BIND: &str = "api.bind (GUILDHALL__API__BIND, --api-bind)";
/// The setting of the address for interactions, as in messages.
pub const INTERACTIONS_BIND: &str = "interactions.bind (GUILDHALL__INTERACTIONS__BIND)";

/// The setting of the address of the REST proxy, as in messages.
pub const EGRESS_BIND: &str = "egress.bind (GUILDHALL__EGRESS__BIND)";

/// Binds the API's address. Nothing is served before [`BoundListener::serve`].
///
/// # Errors
///
/// When the address cannot be bound; the message says what to do.
pub fn bind(address: SocketAddr) -> Result<BoundListener, BindError> {
    bind_for(address, API_BIND)
}

/// Binds an address that comes from the setting `set`. Nothing is served yet.
///
/// # Errors
///
/// When the address cannot be bound; the message says what to do.
pub fn bind_for(address: SocketAddr, set: &'static str) -> Result<BoundListener, BindError> {
    let bound = TcpListener::bind(address).and_then(|listener| {
        // The standard library requests a shorter backlog, and a connection that does not fit waits for seconds, or for
        // ever.
        SockRef::from(&listener).listen(BACKLOG)?;
        Ok((listener.local_addr()?, listener))
    });
    let bound =
        bound.map(|(address, socket)| BoundListener { address, socket, edge: EdgeConfig::default(), tls: None });
    bound.map_err(|source| BindError { address, set, source })
}

/// A bound address that is not served yet.
#[derive(Debug)]
pub struct BoundListener {
    address: SocketAddr,
    socket: TcpListener,
    edge: EdgeConfig,
    tls: Option<Certificates>,
}

impl BoundListener {
    /// The address, with the actual port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the limits for connections.
    #[must_use]
    pub fn with_limits(self, edge: EdgeConfig) -> Self {
        Self { edge, ..self }
    }

    /// Serves TLS with this certificate, if there is one.
    #[must_use]
    pub fn with_tls(self, certificates: Option<Certificates>) -> Self {
        Self { tls: certificates, ..self }
    }

    /// The socket, for a server of another kind.
    pub(crate) fn into_socket(self) -> TcpListener {
        self.socket
    }

    /// Starts serving health and metrics, and the API if `control` is given. Must be called within an actix system, on
    /// the runtime that `/livez` checks and on which the operation service runs.
    ///
    /// # Errors
    ///
    /// When the operating system refuses the socket.
    pub fn serve(
        self,
        readiness: Readiness,
        metrics: PrometheusHandle,
        control: Option<Control>,
    ) -> io::Result<Listener> {
        let ops = Data::new(HealthState { readiness, metrics, runtime: Handle::current() });
        let app_state = control.map(|control| Data::new(AppState::new(control, Handle::current())));
        self.serve_app(Part::ApiListener, move || {
            App::new()
                .wrap(from_fn(connection_state::restrict_to_health))
                .app_data(ops.clone())
                .configure(|config| {
                    if let Some(app_state) = &app_state {
                        control::routes(config, app_state);
                    }
                })
                .service(scope("").wrap(from_fn(body::without_body)).configure(|config| {
                    if app_state.is_some() {
                        openapi::routes(config);
                    }
                    health::routes(config);
                }))
        })
    }

    /// Starts serving this app.
    pub(crate) fn serve_app<F, I, S, B>(self, part: Part, app: F) -> io::Result<Listener>
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
        let Self { address, socket, edge, tls } = self;
        let limit = Arc::new(ConnectionLimit::new(edge.connections, edge.health_connections));
        let (drain, drained) = watch::channel(false);
        let tls = tls.map(|certificates| certificates.acceptor());
        let server = serve::serve(socket, edge, Arc::clone(&limit), tls, drained, app)?;
        let handle = ListenerHandle { server: server.handle(), limit, drain: Arc::new(drain) };
        spawn_local(part, server);
        Ok(Listener { address, handle })
    }
}

/// A running listener.
#[derive(Debug)]
pub struct Listener {
    address: SocketAddr,
    handle: ListenerHandle,
}

impl Listener {
    /// The address, with the actual port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A handle that closes the listener.
    pub fn handle(&self) -> ListenerHandle {
        self.handle.clone()
    }

    /// See [`ListenerHandle::close`].
    pub async fn stop(self, max_wait: Duration) -> bool {
        self.handle.close(max_wait).await
    }
}

/// Closes a listener.
#[derive(Clone, Debug)]
pub struct ListenerHandle {
    server: ServerHandle,
    limit: Arc<ConnectionLimit>,
    drain: Arc<watch::Sender<bool>>,
}

impl ListenerHandle {
    /// Stops accepting connections, and ends the listener once the requests in flight are answered: idle connections
    /// are closed at once, others after their current request, and new ones are rejected with an explanation. Returns
    /// `false` if some were still open after the timeout, and were aborted.
    pub async fn close(&self, max_wait: Duration) -> bool {
        self.limit.close();
        self.drain.send_replace(true);
        let is_empty = timeout(max_wait, self.limit.wait_until_empty()).await.is_ok();
        self.server.stop(false).await;
        is_empty
    }
}
