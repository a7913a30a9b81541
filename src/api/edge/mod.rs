//! Connections, before anything is a request: how many, how slow, and whether they are encrypted.
//!
//! ```text
//!  connection ─▶ Doors: room? ─▶ TLS, if it is set ─▶ not too slow ─▶ HTTP ─▶ app
//!                  ├─ for a few more: health and metrics alone
//!                  └─ none, or the process is ending: told so, and closed
//! ```

mod acceptor;
mod certificates;
mod connection;
mod connection_limit;
mod connection_state;
mod serve;

use std::time::Duration;

pub use self::certificates::{Certificates, CertificatesError, CheckedCertificate};
pub(super) use self::{connection_limit::ConnectionLimit, connection_state::only_health_on_the_doorstep, serve::serve};

/// What connections may cost.
#[derive(Clone, Copy, Debug)]
pub struct EdgeConfig {
    /// How many are served at once.
    pub connections: usize,
    /// How many more may ask for health and metrics.
    pub doorstep: usize,
    /// How long a request may take to arrive up to its body, and a TLS handshake.
    pub header_within: Duration,
    /// How long nothing may be taken of an answer.
    pub write_within: Duration,
    /// How long a connection is kept for the next request.
    pub keep_alive: Duration,
}

impl Default for EdgeConfig {
    fn default() -> Self {
        Self {
            connections: 1_024,
            doorstep: 16,
            header_within: Duration::from_secs(5),
            write_within: Duration::from_secs(10),
            keep_alive: Duration::from_secs(15),
        }
    }
}
