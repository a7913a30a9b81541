//! Settings of a divided limit.

use std::time::Duration;

/// How a limit is divided among the processes of a store.
#[derive(Clone, Debug)]
pub struct DivisionConfig {
    /// Calls per window, over all processes.
    pub limit: u32,
    /// Length of the window, including its margin.
    pub window: Duration,
    /// How long the calls of a process that is certainly dead may still be in flight.
    pub settling: Duration,
    /// How long a call without a response may still be in flight.
    pub request_timeout: Duration,
    /// How long a process may send after it last renewed its row.
    pub lease: Duration,
    /// How long a process may hold its token while others have none, because there are more processes than tokens.
    pub rotate_after: Duration,
    /// How long to wait after a refused reservation.
    pub retry_after: Duration,
}

impl Default for DivisionConfig {
    fn default() -> Self {
        Self {
            limit: 50,
            window: Duration::from_millis(1_010),
            settling: Duration::from_millis(500),
            request_timeout: Duration::from_secs(15),
            lease: Duration::from_secs(10),
            rotate_after: Duration::from_secs(5),
            retry_after: Duration::from_millis(100),
        }
    }
}

impl DivisionConfig {
    /// How long a row is valid after its last renewal. The process that owns the row states this to the others.
    #[must_use]
    pub fn hold(&self) -> Duration {
        self.lease + self.request_timeout + self.window
    }

    /// How long a row is valid after its process has left.
    #[must_use]
    pub fn hold_after_leave(&self, in_flight: u32) -> Duration {
        self.window + if in_flight == 0 { self.settling } else { self.request_timeout }
    }

    /// How long a row is valid after its process is known to be dead.
    #[must_use]
    pub fn hold_after_death(&self) -> Duration {
        self.window + self.settling
    }
}
