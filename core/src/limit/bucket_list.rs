//! Lists all buckets, in pages.

use std::collections::HashMap;
use std::time::Duration;

use serde::Serialize;

use super::limiter::Limiter;
use super::readiness::Readiness;
use super::route_table::HashId;
use super::wait_queue::{QueueLimit, WaitQueueKey};
use crate::response::Credential;
use crate::route::{RouteKey, TopLevelId};
use crate::time::Timestamp;

/// Maximum number of wait queues that one page scans, so that a list request does not delay callers.
const MAX_SCANNED: usize = 20_000;

/// Maximum number of routes in a row.
const MAX_ROUTES: usize = 10;

/// A bucket in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BucketRow {
    /// The credential whose calls it counts.
    pub credential: Credential,
    /// The routes that share it; empty if they were evicted.
    pub routes: Vec<RouteKey>,
    /// Discord's name of the bucket; `None` for a sublimit.
    pub bucket: Option<String>,
    /// The top-level object that it belongs to.
    pub major: TopLevelId,
    /// Total number of slots, if known.
    pub limit: Option<u32>,
    /// Free slots.
    pub left: Option<u32>,
    /// Time until all slots are free; `None` if they are free now, or if it depends on responses.
    pub resets_in: Option<Duration>,
    /// Number of callers that wait for a slot.
    pub waiting: usize,
}

/// A page of buckets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BucketPage {
    /// The buckets.
    pub buckets: Vec<BucketRow>,
    /// Start of the next page; `None` if this is the last one.
    pub next: Option<u32>,
}

impl Limiter {
    /// Lists buckets and sublimits, starting at an id: at most `max` of them. A page may have fewer and still not be
    /// the last one.
    #[must_use]
    pub fn list(&self, from: u32, max: usize, now: Timestamp) -> BucketPage {
        let mut routes: HashMap<(HashId, Credential), Vec<RouteKey>> = HashMap::new();
        for (hash, credential, route) in self.routes.hashed_routes() {
            routes.entry((hash, credential)).or_default().push(route.clone());
        }
        for named in routes.values_mut() {
            named.sort_unstable();
            named.truncate(MAX_ROUTES);
        }
        let mut buckets = Vec::new();
        for (scanned, (queue_id, queue)) in self.queues.iter_from(from).enumerate() {
            if scanned >= MAX_SCANNED || buckets.len() >= max {
                return BucketPage { buckets, next: Some(queue_id) };
            }
            let Some(queue) = queue.filter(|queue| queue.is_listed(now)) else { continue };
            let waiting = queue.waiting();
            match (&queue.key, &queue.limit) {
                (WaitQueueKey::Bucket(credential_id, hash, major), QueueLimit::Bucket(bucket)) => {
                    let credential = self.routes.credential(*credential_id);
                    let (left, full) = bucket.availability(now);
                    buckets.push(BucketRow {
                        credential,
                        routes: routes.get(&(*hash, credential)).cloned().unwrap_or_default(),
                        bucket: Some(self.routes.name(*hash).to_owned()),
                        major: *major,
                        limit: Some(bucket.view().limit),
                        left: Some(left),
                        resets_in: full.map(|full| full.since(now)),
                        waiting,
                    });
                }
                (WaitQueueKey::Sublimit(key), QueueLimit::Sublimit(sublimit)) => buckets.push(BucketRow {
                    credential: self.routes.credential(key.credential_id),
                    routes: vec![key.route.clone()],
                    bucket: None,
                    major: key.major,
                    limit: None,
                    left: None,
                    resets_in: match sublimit.next_readiness(now) {
                        Readiness::At(then) => Some(then.since(now)),
                        Readiness::Now | Readiness::OnResponse => None,
                    },
                    waiting,
                }),
                // Nothing else is listed, and each limit has a key of its kind.
                _ => {}
            }
        }
        BucketPage { buckets, next: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::Lane;
    use crate::limit::{AcquireOutcome, CallerId, LimitConfig, PermitRequest};
    use crate::response::{RateHeaders, ResponseClass, ResponseInfo};
    use crate::route::Route;

    const BOT: Credential = Credential::Application(42);

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    /// Creates a limiter that knows a bucket of four slots, one of them used, for each of `guilds` guilds.
    fn limiter_with_buckets(guilds: u64) -> Limiter {
        let mut limiter = Limiter::new(LimitConfig { global: 10_000, ..LimitConfig::default() }, at(0));
        for guild in 1..=guilds {
            let now = at(10_000 + guild);
            let route = Route::parse("GET", &format!("/guilds/{guild}/roles"), 42, 0);
            let request = PermitRequest {
                credential: BOT,
                route,
                lane: Lane::Interactive,
                caller: CallerId::NONE,
                deadline: now,
            };
            let AcquireOutcome::Granted(permit) = limiter.acquire(request, now) else { panic!("no permit") };
            let rate = RateHeaders {
                bucket: "abc".into(),
                limit: 4,
                remaining: 3,
                reset_after: Duration::from_secs(1),
                reset_ms: 1_700_000_000_000 + guild,
            };
            limiter.on_response(permit, &ResponseInfo { class: ResponseClass::Success, rate: Some(rate) }, now);
        }
        limiter
    }

    #[test]
    fn row_has_routes_object_and_remaining_slots() {
        let limiter = limiter_with_buckets(1);
        let listing = limiter.list(0, 10, at(10_001));
        let expected = BucketRow {
            credential: BOT,
            routes: vec![RouteKey::new("GET /guilds/{id}/roles")],
            bucket: Some("abc".to_owned()),
            major: TopLevelId::of(1),
            limit: Some(4),
            left: Some(3),
            resets_in: Some(Duration::from_secs(1)),
            waiting: 0,
        };
        assert_eq!(listing, BucketPage { buckets: vec![expected], next: None });
        let mut limiter = limiter;
        assert_eq!(limiter.snapshot(at(10_001)).known, 1, "an unknown route is not counted");
        let later = limiter.list(0, 10, at(60_000));
        assert_eq!((later.buckets[0].left, later.buckets[0].resets_in), (Some(4), None));
    }

    #[test]
    fn pages_hold_every_bucket_once() {
        let limiter = limiter_with_buckets(2_500);
        let (mut from, mut seen, mut pages) = (0, Vec::new(), 0);
        loop {
            let listing = limiter.list(from, 100, at(60_000));
            assert!(listing.buckets.len() <= 100);
            seen.extend(listing.buckets.iter().map(|row| row.major.id()));
            pages += 1;
            match listing.next {
                Some(next) => from = next,
                None => break,
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, (1..=2_500).collect::<Vec<u64>>());
        assert!(pages >= 25, "{pages}");
        assert_eq!(limiter.list(u32::MAX, 100, at(60_000)), BucketPage { buckets: vec![], next: None });
    }
}
