//! State of the limiter, for the API.

use std::cmp::Reverse;
use std::time::Duration;

use serde::Serialize;

use super::bucket::BucketView;
use super::division::DivisionView;
use super::limiter::Limiter;
use super::shared::MemberView;
use super::wait_queue::{QueueLimit, WaitQueueKey};
use crate::response::Credential;
use crate::time::Timestamp;

/// Maximum number of wait queues in a view; those with the most waiters are included.
const MAX_BUSIEST: usize = 20;

/// The limiter at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct LimiterView {
    /// Calls per window, for each credential that is not shared.
    pub limit: u32,
    /// How the limit is divided among the processes of a store, if it is.
    pub division: Option<DivisionView>,
    /// Length of a window.
    pub window_ms: u64,
    /// The global limit of each credential.
    pub credentials: Vec<CredentialView>,
    /// Number of waiting callers.
    pub waiting: usize,
    /// Number of waiting callers by lane, the most urgent first.
    pub lanes: [usize; 3],
    /// Calls in flight.
    pub under_way: usize,
    /// Wait queues in memory, including those of unknown routes and of routes without a limit.
    pub buckets: usize,
    /// Wait queues that a list includes.
    pub known: usize,
    /// Routes in the route table.
    pub routes: usize,
    /// Buckets evicted for lack of space.
    pub buckets_evicted: u64,
    /// Routes evicted for lack of space.
    pub routes_forgotten: u64,
    /// The queues with the most waiters.
    pub busiest: Vec<WaitingView>,
}

/// The global limit of one credential.
#[derive(Clone, Debug, Serialize)]
pub struct CredentialView {
    /// The credential.
    pub credential: Credential,
    /// Calls per window.
    pub limit: u32,
    /// Calls that could be sent now: free tokens, or none while no call is granted.
    pub available: u32,
    /// Calls without a response.
    pub in_flight: u32,
    /// No call is granted before this time.
    pub closed_until: Timestamp,
    /// Time until `closed_until`.
    pub closed_ms: u64,
    /// How the limit is shared with other processes, if it is.
    pub shared: Option<MemberView>,
}

/// A queue with waiting callers.
#[derive(Clone, Debug, Serialize)]
pub struct WaitingView {
    /// The top-level object, or the route.
    pub place: String,
    /// Number of waiting callers.
    pub waiting: usize,
    /// The bucket, if the queue belongs to one.
    pub bucket: Option<BucketView>,
}

impl Limiter {
    /// Returns the current state of the limiter.
    pub fn snapshot(&mut self, now: Timestamp) -> LimiterView {
        let mut credentials = Vec::new();
        for domain in &mut self.domains {
            if let Some(global) = &mut domain.global {
                credentials.push(CredentialView {
                    credential: domain.credential,
                    limit: global.limit(),
                    available: global.available(now),
                    in_flight: global.in_flight(),
                    closed_until: global.closed_until(),
                    closed_ms: millis(global.closed_until().since(now)),
                    shared: global.member().map(|member| member.view(now)),
                });
            }
        }
        credentials.sort_unstable_by_key(|view| view.credential);
        let mut busiest: Vec<WaitingView> = self
            .queues
            .iter()
            .filter(|queue| queue.waiting() > 0)
            .map(|queue| WaitingView {
                place: match &queue.key {
                    WaitQueueKey::Unknown(_, template, _) => format!("unknown route {template}"),
                    WaitQueueKey::Bucket(_, _, major) => format!("bucket of {major}"),
                    WaitQueueKey::Free(_, route) => format!("route {route}"),
                    WaitQueueKey::Sublimit(key) => format!("sublimit of {} for {}", key.route, key.major),
                },
                waiting: queue.waiting(),
                bucket: match &queue.limit {
                    QueueLimit::Bucket(bucket) => Some(bucket.view()),
                    QueueLimit::Probe { .. } | QueueLimit::Open | QueueLimit::Sublimit(_) => None,
                },
            })
            .collect();
        busiest.sort_by_key(|entry| Reverse(entry.waiting));
        busiest.truncate(MAX_BUSIEST);
        LimiterView {
            limit: self.config.global,
            division: self.division,
            window_ms: millis(self.config.window),
            credentials,
            waiting: self.waiting(),
            lanes: self.waiting_by_lane(),
            under_way: self.in_flight(),
            buckets: self.queues.len(),
            known: self.queues.iter().filter(|queue| queue.is_listed(now)).count(),
            routes: self.routes.len(),
            buckets_evicted: self.queues.evicted,
            routes_forgotten: self.routes.evicted,
            busiest,
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
