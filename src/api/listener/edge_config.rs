//! Connections, before they carry requests: the limit on their number, timeouts, and TLS.
//!
//! ```text
//!  connection ─▶ ConnectionLimit ─▶ TLS, if configured ─▶ timeouts ─▶ HTTP ─▶ app
//!                  ├─ a few above the limit: health and metrics only
//!                  └─ more, or shutting down: rejected and closed
//! ```

use std::time::Duration;

/// Limits for connections.
#[derive(Clone, Copy, Debug)]
pub struct EdgeConfig {
    /// How many are served at once.
    pub connections: usize,
    /// How many more may request health and metrics.
    pub health_connections: usize,
    /// How long a request may take to arrive up to its body, and a TLS handshake.
    pub header_timeout: Duration,
    /// How long a client may read nothing of a response.
    pub write_timeout: Duration,
    /// How long an idle connection stays open for the next request.
    pub keep_alive: Duration,
}

impl Default for EdgeConfig {
    fn default() -> Self {
        Self {
            connections: 1_024,
            health_connections: 16,
            header_timeout: Duration::from_secs(5),
            write_timeout: Duration::from_secs(10),
            keep_alive: Duration::from_secs(15),
        }
    }
}
