//! The limiter's settings.

use std::time::Duration;

/// How the limiter counts. The default is Discord's.
#[derive(Clone, Debug)]
pub struct LimitConfig {
    /// Calls in any window, for each credential.
    pub global: u32,
    /// The global window.
    pub window: Duration,
    /// Added to the window, for clocks that do not run quite alike.
    pub margin: Duration,
    /// How much longer than a window a fresh gate waits: calls of a process that ended just before may still be on their
    /// way. As long as the slowest way to Discord is thought to be.
    pub settling: Duration,
    /// How long a call that was not answered may still be on its way.
    pub request_timeout: Duration,
    /// Grants of the operation and background lanes that may come at once, before they are spaced.
    pub burst: u32,
    /// One of so many grants belongs to each lane that waits, however busy more urgent ones are.
    pub floor: u32,
    /// Whether interaction endpoints are free of the global limit.
    pub interactions_exempt: bool,
    /// How long a route whose answers carry no bucket is taken to have no limit.
    pub free_for: Duration,
    /// Two resets that differ by no more are one.
    pub agreement: Duration,
    /// How long a route's first call waits for a bucket that it may share.
    pub kin_patience: Duration,
    /// Callers that may wait at once.
    pub max_waiters: usize,
    /// Buckets kept at once.
    pub max_buckets: usize,
    /// Routes remembered at once.
    pub max_routes: usize,
}

impl Default for LimitConfig {
    fn default() -> Self {
        Self {
            global: 50,
            window: Duration::from_secs(1),
            margin: Duration::from_millis(10),
            settling: Duration::from_millis(500),
            request_timeout: Duration::from_secs(15),
            burst: 5,
            floor: 20,
            interactions_exempt: true,
            free_for: Duration::from_secs(600),
            agreement: Duration::from_millis(50),
            kin_patience: Duration::from_secs(15),
            max_waiters: 10_000,
            max_buckets: 100_000,
            max_routes: 10_000,
        }
    }
}
