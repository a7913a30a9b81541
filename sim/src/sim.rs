//! Starting and stopping a simulator.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::config::SimConfig;
use crate::http;
use crate::state::Shared;

/// The simulator. [`Sim::start`] is all there is to it.
#[derive(Debug)]
pub struct Sim;

/// A running simulator; dropping it stops it and cuts its connections.
#[derive(Debug)]
pub struct SimHandle {
    pub(crate) shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    accepting: JoinHandle<()>,
}

impl Sim {
    /// Starts a simulator on the current Tokio runtime.
    ///
    /// # Errors
    ///
    /// When the address cannot be bound.
    pub async fn start(config: SimConfig) -> io::Result<SimHandle> {
        let listener = listen(config.bind)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::new(config, address));
        let (stop, stopped) = watch::channel(false);
        let accepting = tokio::spawn(http::serve(listener, Arc::clone(&shared), stopped));
        Ok(SimHandle { shared, stop, accepting })
    }
}

/// Connections that may wait to be accepted. A flood of them should find an answer, not a lost packet and a second's wait.
const BACKLOG: u32 = 4_096;

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

impl SimHandle {
    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// The base of its REST API: `http://127.0.0.1:PORT/api/v10`.
    #[must_use]
    pub fn api_url(&self) -> String {
        format!("http://{}/api/v10", self.shared.address)
    }

    /// The gateway's URL: `ws://127.0.0.1:PORT`.
    #[must_use]
    pub fn gateway_url(&self) -> String {
        format!("ws://{}", self.shared.address)
    }

    /// Stops accepting, cuts every connection, and waits until the port is free.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        let _ = self.accepting.await;
    }
}
