//! Binding the address, serving it within bounds, and letting go of it.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use actix_web::{
    App, HttpServer,
    dev::{Server, ServerHandle},
    middleware::from_fn,
    web::{Data, scope},
};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::{runtime::Handle, task::JoinHandle};

use super::{
    body,
    control::{self, Control, Served},
    health::{self, Ops},
    line::Line,
    openapi,
    readiness::Readiness,
};

/// Probes, scrapes and calls are small; the daemon's cores belong to its shards.
const WORKERS: usize = 2;
const CONNECTIONS_PER_WORKER: usize = 256;
/// How long a client may take to send its request, so that slow ones cannot hold all connections.
const REQUEST_WITHIN: Duration = Duration::from_secs(5);
const DISCONNECT_WITHIN: Duration = Duration::from_secs(1);
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How long a stop waits for requests under way. They take milliseconds; who is still there only keeps a connection.
const DRAIN_SECONDS: u64 = 1;

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

/// Takes the API's address. Nothing is answered before [`Bound::serve`].
///
/// # Errors
///
/// When the address cannot be had; the message says what to do.
pub fn bind(address: SocketAddr) -> Result<Bound, BindError> {
    bind_for(address, API_BIND)
}

/// Takes an address that this sets. Nothing is answered on it yet.
///
/// # Errors
///
/// When the address cannot be had; the message says what to do.
pub fn bind_for(address: SocketAddr, set: &'static str) -> Result<Bound, BindError> {
    let bound = TcpListener::bind(address).and_then(|listener| Ok((listener.local_addr()?, listener)));
    bound.map(|(address, listener)| Bound { address, listener }).map_err(|source| BindError { address, set, source })
}

/// An address that is ours.
#[derive(Debug)]
pub struct Bound {
    address: SocketAddr,
    listener: TcpListener,
}

impl Bound {
    /// The address, with the real port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn into_parts(self) -> (SocketAddr, TcpListener) {
        (self.address, self.listener)
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
        let ops = Data::new(Ops { readiness, metrics, runtime: Handle::current() });
        let served = control.map(|control| Data::new(Served::new(control, Handle::current())));
        let server = HttpServer::new(move || {
            App::new()
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
        .on_connect(|connection, extensions| {
            if let Some(line) = Line::of(connection) {
                extensions.insert(line);
            }
        })
        .workers(WORKERS)
        .max_connections(CONNECTIONS_PER_WORKER)
        .client_request_timeout(REQUEST_WITHIN)
        .client_disconnect_timeout(DISCONNECT_WITHIN)
        .keep_alive(KEEP_ALIVE)
        .shutdown_timeout(DRAIN_SECONDS)
        // Signals end the whole daemon in order, not this listener first.
        .disable_signals()
        .listen(self.listener)?
        .run();
        Ok(Listener::of(self.address, server))
    }
}

/// A listener that answers.
#[derive(Debug)]
pub struct Listener {
    address: SocketAddr,
    handle: ServerHandle,
    task: JoinHandle<io::Result<()>>,
}

impl Listener {
    pub(super) fn of(address: SocketAddr, server: Server) -> Self {
        let handle = server.handle();
        Self { address, handle, task: actix_rt::spawn(server) }
    }

    /// Where it listens, with the real port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until it has ended by itself, which it never should.
    pub async fn ended(&mut self) -> io::Result<()> {
        (&mut self.task).await.unwrap_or_else(|panic| Err(io::Error::other(panic)))
    }

    /// Accepts nothing new, and ends once the requests under way are answered.
    pub async fn stop(self) {
        self.handle.stop(true).await;
    }
}
