//! Settings of the limiter.

use std::time::Duration;

/// How the limiter counts. The defaults are Discord's limits.
#[derive(Clone, Debug)]
pub struct LimitConfig {
    /// Calls per window, for each credential.
    pub global: u32,
    /// Length of the global window.
    pub window: Duration,
    /// Added to the window, because clocks do not run at exactly the same speed.
    pub margin: Duration,
    /// How much longer than one window a new gate waits. Calls of a process that ended just before may still be in
    /// transit, so this is as long as the slowest path to Discord is assumed to take.
    pub settling: Duration,
    /// How long a call without a response may still be in transit.
    pub request_timeout: Duration,
    /// Grants of the operation and background lanes that may be given at once, before they are spaced.
    pub burst: u32,
    /// Each waiting lane gets at least one of this many grants, regardless of the load of more urgent lanes.
    pub floor: u32,
    /// Whether interaction endpoints are exempt from the global limit.
    pub interactions_exempt: bool,
    /// How long a route whose responses carry no bucket is assumed to have no limit.
    pub free_for: Duration,
    /// Two resets that differ by at most this are the same reset.
    pub reset_tolerance: Duration,
    /// How long the first call of a route waits for a bucket that the route may share.
    pub shared_bucket_timeout: Duration,
    /// Maximum number of waiting callers.
    pub max_waiters: usize,
    /// Maximum number of buckets in memory.
    pub max_buckets: usize,
    /// Maximum number of routes in memory.
    pub max_routes: usize,
    /// Maximum number of global limits of tokens of callers.
    pub max_token_domains: usize,
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
            reset_tolerance: Duration::from_millis(50),
            shared_bucket_timeout: Duration::from_secs(15),
            max_waiters: 10_000,
            max_buckets: 100_000,
            max_routes: 10_000,
            max_token_domains: 2_048,
        }
    }
}
