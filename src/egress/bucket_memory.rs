//! The last rate limit headers of each route, for the responses that Guildhall gives instead of Discord.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use guildhall_core::route::RouteKey;
use http::{HeaderMap, HeaderName, HeaderValue};

/// Maximum number of routes. Route keys are bounded by themselves; this bounds what a caller can invent.
const MAX_ROUTES: usize = 4_096;

pub(super) const BUCKET: HeaderName = HeaderName::from_static("x-ratelimit-bucket");
pub(super) const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");

/// A route's bucket and its limit, as Discord last reported them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KnownBucket {
    pub(super) bucket: HeaderValue,
    pub(super) limit: HeaderValue,
}

/// Remembers the buckets of routes.
#[derive(Debug, Default)]
pub(super) struct BucketMemory(Mutex<HashMap<RouteKey, KnownBucket>>);

impl BucketMemory {
    /// A response of Discord has arrived.
    pub(super) fn observe(&self, route: &RouteKey, headers: &HeaderMap) {
        let (Some(bucket), Some(limit)) = (headers.get(BUCKET), headers.get(LIMIT)) else { return };
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get_mut(route) {
            if known.bucket != bucket || known.limit != limit {
                *known = KnownBucket { bucket: bucket.clone(), limit: limit.clone() };
            }
            return;
        }
        if known.len() >= MAX_ROUTES {
            known.clear();
        }
        known.insert(route.clone(), KnownBucket { bucket: bucket.clone(), limit: limit.clone() });
    }

    /// The bucket of a route, if Discord has reported it.
    pub(super) fn find(&self, route: &RouteKey) -> Option<KnownBucket> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(route).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_bucket_of_a_route_is_remembered_within_bounds() {
        let memory = BucketMemory::default();
        let headers = |bucket: &'static str| {
            HeaderMap::from_iter([(BUCKET, HeaderValue::from_static(bucket)), (LIMIT, HeaderValue::from_static("5"))])
        };
        let route = RouteKey::new("GET /users/@me");
        memory.observe(&route, &headers("one"));
        memory.observe(&route, &headers("two"));
        memory.observe(&route, &HeaderMap::new());
        assert_eq!(memory.find(&route).unwrap().bucket, "two");
        for number in 0..MAX_ROUTES + 1 {
            memory.observe(&RouteKey::new(&format!("GET /{number}")), &headers("x"));
        }
        assert!(memory.0.lock().unwrap().len() <= MAX_ROUTES);
    }
}
