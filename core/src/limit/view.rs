//! What a snapshot of the limiter shows.

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

/// Wait queues with the most waiters that a snapshot names.
const SHOWN: usize = 20;

/// The limiter at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct LimiterView {
    /// Calls in any window, for each credential that is alone.
    pub limit: u32,
    /// How the limit is divided among the processes of a store, if it is.
    pub division: Option<DivisionView>,
    /// How long a window is.
    pub window_ms: u64,
    /// By credential: the global limit.
    pub credentials: Vec<CredentialView>,
    /// Callers that wait.
    pub waiting: usize,
    /// The same by lane, the most urgent first.
    pub lanes: [usize; 3],
    /// Calls under way.
    pub under_way: usize,
    /// Buckets and the like that are kept, what is not known yet or has no limit among them.
    pub buckets: usize,
    /// Those that a list shows.
    pub known: usize,
    /// Routes of which something is known.
    pub routes: usize,
    /// Buckets forgotten for want of room.
    pub buckets_evicted: u64,
    /// Routes forgotten for want of room.
    pub routes_forgotten: u64,
    /// Where most wait.
    pub busiest: Vec<WaitingView>,
}

/// The global limit of one credential.
#[derive(Clone, Debug, Serialize)]
pub struct CredentialView {
    /// Whose.
    pub credential: Credential,
    /// Calls in any window.
    pub limit: u32,
    /// Tokens that are free.
    pub available: u32,
    /// Calls without an answer.
    pub in_flight: u32,
    /// Nothing goes before then.
    pub closed_until: Timestamp,
    /// How long that is from now.
    pub closed_ms: u64,
    /// How it is shared with other processes, if it is.
    pub shared: Option<MemberView>,
}

/// A place where callers wait.
#[derive(Clone, Debug, Serialize)]
pub struct WaitingView {
    /// The top-level object, or the route.
    pub place: String,
    /// How many.
    pub waiting: usize,
    /// The bucket, if it is one.
    pub bucket: Option<BucketView>,
}

impl Limiter {
    /// The limiter at this moment.
    pub fn snapshot(&mut self, now: Timestamp) -> LimiterView {
        let mut credentials = Vec::new();
        for domain in &mut self.domains {
            if let Some(global) = &mut domain.global {
                credentials.push(CredentialView {
                    credential: domain.credential,
                    limit: global.limit(),
                    available: if now < global.closed_until() { 0 } else { global.free(now) },
                    in_flight: global.in_flight(),
                    closed_until: global.closed_until(),
                    closed_ms: millis(global.closed_until().since(now)),
                    shared: global.member().map(|member| member.view(now)),
                });
            }
        }
        credentials.sort_unstable_by_key(|view| view.credential);
        let mut busiest: Vec<WaitingView> = self
            .yard
            .iter()
            .filter(|lot| lot.waiting() > 0)
            .map(|lot| WaitingView {
                place: match &lot.key {
                    WaitQueueKey::Unknown(_, template, _) => format!("unknown route {template}"),
                    WaitQueueKey::Bucket(_, _, major) => format!("bucket of {major}"),
                    WaitQueueKey::Free(_, route) => format!("route {route}"),
                    WaitQueueKey::Side(side) => format!("limit within {} of {}", side.route, side.major),
                },
                waiting: lot.waiting(),
                bucket: match &lot.keeper {
                    QueueLimit::Bucket(bucket) => Some(bucket.view()),
                    QueueLimit::Probe { .. } | QueueLimit::Open | QueueLimit::Side(_) => None,
                },
            })
            .collect();
        busiest.sort_by_key(|place| Reverse(place.waiting));
        busiest.truncate(SHOWN);
        LimiterView {
            limit: self.config.global,
            division: self.division,
            window_ms: millis(self.config.window),
            credentials,
            waiting: self.waiting(),
            lanes: self.waiting_by_lane(),
            under_way: self.under_way(),
            buckets: self.yard.len(),
            known: self.yard.iter().filter(|lot| lot.is_listed(now)).count(),
            routes: self.book.len(),
            buckets_evicted: self.yard.evicted,
            routes_forgotten: self.book.forgotten,
            busiest,
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
