//! Binding the address, serving it within bounds, and letting go of it.

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

use super::{
    body,
    control::{self, AppState, Control},
    edge::{self, Certificates, ConnectionLimit, EdgeConfig},
    health::{self, HealthState},
    openapi,
    readiness::Readiness,
};

/// How many connections the system keeps until they are looked at. It may have its own bound, which is this by default on Linux.
const BACKLOG: i32 = 4_096;

/// The address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {}", advice(.source, .set))]
pub struct BindError {
    /// The address.
    pub address: SocketAddr,
    /// What sets it.
    set: &'static str,
    source: io::Error,
}

fn advice(error: &io::Error, set: &str) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("another process holds that port; stop it, or set {set} to another port (0 takes a free one)")
        }
        io::ErrorKind::PermissionDenied => {
            format!("this user may not use that port; set {set} to one from 1024 upwards")
        }
        io::ErrorKind::AddrNotAvailable => format!("this machine has no such address; set {set} to one it has"),
        _ => format!("{error}; check {set}"),
    }
}

/// What sets where the API is.
pub const API_BIND: &str = "api.bind (GUILDHALL__API__BIND, --api-bind)";
/// What sets where interactions are taken.
pub const INTERACTIONS_BIND: &str = "interactions.bind (GUILDHALL__INTERACTIONS__BIND)";

/// Takes the API's address. Nothing is answered before [`BoundListener::serve`].
///
/// # Errors
///
/// When the address cannot be had; the message says what to do.
pub fn bind(address: SocketAddr) -> Result<BoundListener, BindError> {
    bind_for(address, API_BIND)
}

/// Takes an address that this sets. Nothing is answered on it yet.
///
/// # Errors
///
/// When the address cannot be had; the message says what to do.
pub fn bind_for(address: SocketAddr, set: &'static str) -> Result<BoundListener, BindError> {
    let bound = TcpListener::bind(address).and_then(|listener| {
        // The standard library asks for less, and whom the system has no place for waits for seconds, or for ever.
        SockRef::from(&listener).listen(BACKLOG)?;
        Ok((listener.local_addr()?, listener))
    });
    let bound =
        bound.map(|(address, socket)| BoundListener { address, socket, edge: EdgeConfig::default(), tls: None });
    bound.map_err(|source| BindError { address, set, source })
}

/// An address that is ours.
#[derive(Debug)]
pub struct BoundListener {
    address: SocketAddr,
    socket: TcpListener,
    edge: EdgeConfig,
    tls: Option<Certificates>,
}

impl BoundListener {
    /// The address, with the real port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Keeps connections within these bounds.
    #[must_use]
    pub fn within(self, edge: EdgeConfig) -> Self {
        Self { edge, ..self }
    }

    /// Speaks TLS with this certificate.
    #[must_use]
    pub fn with_tls(self, certificates: Option<Certificates>) -> Self {
        Self { tls: certificates, ..self }
    }

    /// Starts answering: health and metrics, and the API if there is to be one. Must be called within an actix system, on
    /// the runtime whose pulse `/livez` takes and on which the desk is asked.
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
        let served = control.map(|control| Data::new(AppState::new(control, Handle::current())));
        self.open(Part::ApiListener, move || {
            App::new()
                .wrap(from_fn(edge::only_health_on_the_doorstep))
                .app_data(ops.clone())
                .configure(|config| {
                    if let Some(served) = &served {
                        control::routes(config, served);
                    }
                })
                .service(scope("").wrap(from_fn(body::without_body)).configure(|config| {
                    if served.is_some() {
                        openapi::routes(config);
                    }
                    health::routes(config);
                }))
        })
    }

    /// Starts answering with this app.
    pub(super) fn open<F, I, S, B>(self, part: Part, app: F) -> io::Result<Listener>
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
        let doors = Arc::new(ConnectionLimit::new(edge.connections, edge.doorstep));
        let (drain, drained) = watch::channel(false);
        let tls = tls.map(|certificates| certificates.acceptor());
        let server = edge::serve(socket, edge, Arc::clone(&doors), tls, drained, app)?;
        let closer = ListenerHandle { handle: server.handle(), doors, drain: Arc::new(drain) };
        spawn_local(part, server);
        Ok(Listener { address, closer })
    }
}

/// A listener that answers.
#[derive(Debug)]
pub struct Listener {
    address: SocketAddr,
    closer: ListenerHandle,
}

impl Listener {
    /// Where it listens, with the real port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What ends it, for somebody else.
    pub fn closer(&self) -> ListenerHandle {
        self.closer.clone()
    }

    /// See [`ListenerHandle::close`].
    pub async fn stop(self, within: Duration) -> bool {
        self.closer.close(within).await
    }
}

/// What ends a listener.
#[derive(Clone, Debug)]
pub struct ListenerHandle {
    handle: ServerHandle,
    doors: Arc<ConnectionLimit>,
    drain: Arc<watch::Sender<bool>>,
}

impl ListenerHandle {
    /// Has the listener accept nothing new, and ends it once the requests under way are answered: unused connections end at
    /// once, others with the request that they are at, and new ones are told. `false` if some were still there after so long,
    /// and were cut.
    pub async fn close(&self, within: Duration) -> bool {
        self.doors.close();
        self.drain.send_replace(true);
        let left = timeout(within, self.doors.empty()).await.is_ok();
        self.handle.stop(false).await;
        left
    }
}
