//! Starts and stops a simulator.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::config::SimConfig;
use crate::http;
use crate::state::Shared;
use crate::tls::Tls;

/// The simulator. Start one with [`Sim::start`].
#[derive(Debug)]
pub struct Sim;

/// A running simulator. Dropping it stops it and cuts its connections.
#[derive(Debug)]
pub struct SimHandle {
    pub(crate) shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    acceptor: JoinHandle<()>,
    /// In PEM, with [`SimConfig::tls`].
    authority: Option<String>,
}

impl Sim {
    /// Starts a simulator on the current Tokio runtime.
    ///
    /// # Errors
    ///
    /// When the address cannot be bound, or no certificate can be generated.
    pub async fn start(config: SimConfig) -> io::Result<SimHandle> {
        let listener = listen(config.bind)?;
        let address = listener.local_addr()?;
        let (tls, authority) = match config.tls.then(|| Tls::generate(address)).transpose()? {
            Some(Tls { acceptor, authority }) => (Some(acceptor), Some(authority)),
            None => (None, None),
        };
        let shared = Arc::new(Shared::new(config, address));
        let (stop, stopped) = watch::channel(false);
        let acceptor = tokio::spawn(http::serve(listener, tls, Arc::clone(&shared), stopped));
        Ok(SimHandle { shared, stop, acceptor, authority })
    }
}

/// Connections that may wait to be accepted. Large, so that a burst of connections gets responses instead of lost
/// packets and a retransmission after a second.
const BACKLOG: u32 = 4_096;

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

impl SimHandle {
    /// Address that it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// Its URL: `http://127.0.0.1:PORT`, or `https://…` with [`SimConfig::tls`].
    #[must_use]
    pub fn url(&self) -> String {
        self.shared.urls.http.clone()
    }

    /// Base URL of its REST API: `http://127.0.0.1:PORT/api/v10`.
    #[must_use]
    pub fn api_url(&self) -> String {
        format!("{}/api/v10", self.shared.urls.http)
    }

    /// URL of its gateway: `ws://127.0.0.1:PORT`.
    #[must_use]
    pub fn gateway_url(&self) -> String {
        self.shared.urls.gateway.clone()
    }

    /// The generated certificate that clients must trust, in PEM; `None` without [`SimConfig::tls`].
    #[must_use]
    pub fn certificate(&self) -> Option<&str> {
        self.authority.as_deref()
    }

    /// Stops accepting connections, cuts the open ones, and waits until the port is free.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        let _ = self.acceptor.await;
    }
}
