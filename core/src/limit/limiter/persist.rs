//! Saves and restores state that must survive a restart.
//!
//! Of a bucket, only the time until which it is closed is saved. Only Discord knows how much of the others was used.
//! Therefore each object starts with a probe, for as long as calls of the previous process may count, even if that
//! process did not save the hash. If it ended suddenly, it may have closed more buckets than it had saved: then each
//! object waits until no bucket can be used up any more, unless that takes long. Those that take long are saved soon.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use super::Limiter;
use crate::limit::SavedLimiter;
use crate::limit::route_table::{HashId, RouteLimit};
use crate::limit::saved_state::{
    MAX_BLOCKS, MAX_CLOSED, MAX_PAST, MAX_ROUTES, MAX_TEXT, SavedBlock, SavedBucket, SavedHash, SavedRoute,
    SavedSublimit,
};
use crate::limit::sublimit::Sublimit;
use crate::limit::wait_queue::{QueueLimit, SublimitKey, WaitQueue, WaitQueueKey};
use crate::response::Credential;
use crate::route::{RouteKey, TopLevelId};
use crate::snapshot::{ShutdownKind, SnapshotAge, Urgency, duration_ms};
use crate::time::Timestamp;

/// State that stays closed for longer than this should be saved soon. A new gate sends nothing for about as long
/// anyway.
pub(super) const SAVE_SOON_ABOVE: Duration = Duration::from_secs(2);

/// The same for a bucket that was merely used up, which happens often.
pub(super) const SAVE_BUCKET_SOON_ABOVE: Duration = Duration::from_secs(5);

impl Limiter {
    /// Marks state as changed since the last save.
    pub(super) fn mark_unsaved(&mut self, urgency: Urgency) {
        self.unsaved = self.unsaved.max(Some(urgency));
    }

    /// Records that a limit is closed until `until`.
    pub(super) fn mark_closed(&mut self, until: Timestamp, now: Timestamp) {
        if until.since(now) > SAVE_SOON_ABOVE {
            self.mark_unsaved(Urgency::Soon);
        }
    }

    /// Whether state has changed since the last call of this method, and how soon it should be saved.
    pub fn take_unsaved(&mut self) -> Option<Urgency> {
        self.unsaved.take()
    }

    /// Returns the state that must survive a restart.
    #[must_use]
    pub fn save(&self, now: Timestamp) -> SavedLimiter {
        let mut hashes = HashIndex { limiter: self, indexes: HashMap::new(), hashes: Vec::new() };
        let mut routes: Vec<(HashId, Credential, &RouteKey)> = self.routes.hashed_routes().collect();
        routes.sort_unstable_by_key(|(hash, credential, route)| (Reverse(*hash), *credential, *route));
        routes.truncate(MAX_ROUTES);
        let routes = routes
            .into_iter()
            .map(|(hash, credential, route)| SavedRoute {
                credential,
                route: route.as_str().to_owned(),
                hash: hashes.index_of(hash),
            })
            .collect();
        let mut closed: Vec<SavedBucket> =
            self.queues.iter().filter_map(|queue| self.saved_bucket(queue, &mut hashes, now)).collect();
        closed.sort_by_key(|bucket| Reverse(bucket.lasting_ms));
        closed.truncate(MAX_CLOSED);
        let mut doors: Vec<SavedSublimit> =
            self.queues.iter().filter_map(|queue| self.saved_sublimit(queue, now)).collect();
        doors.sort_by_key(|saved| Reverse(saved.past_ms.iter().copied().chain([saved.lasting_ms]).max()));
        doors.truncate(MAX_CLOSED);
        let blocks = self.blocks.iter().filter(|(_, until)| *until > now);
        let blocks = blocks.map(|(credential, until)| SavedBlock {
            credential: *credential,
            lasting_ms: duration_ms(until.since(now)),
        });
        SavedLimiter { blocks: blocks.take(MAX_BLOCKS).collect(), hashes: hashes.hashes, routes, closed, doors }
    }

    fn saved_bucket(&self, queue: &WaitQueue, hashes: &mut HashIndex<'_>, now: Timestamp) -> Option<SavedBucket> {
        let (WaitQueueKey::Bucket(credential_id, hash, major), QueueLimit::Bucket(bucket)) = (&queue.key, &queue.limit)
        else {
            return None;
        };
        let until = bucket.closed_until(now)?;
        Some(SavedBucket {
            credential: self.routes.credential(*credential_id),
            hash: hashes.index_of(*hash),
            major: major.parts(),
            lasting_ms: duration_ms(until.since(now)),
        })
    }

    fn saved_sublimit(&self, queue: &WaitQueue, now: Timestamp) -> Option<SavedSublimit> {
        let (WaitQueueKey::Sublimit(key), QueueLimit::Sublimit(sublimit)) = (&queue.key, &queue.limit) else {
            return None;
        };
        let (closed, past) = sublimit.state(now)?;
        let remaining_ms = |until: Timestamp| duration_ms(until.since(now));
        Some(SavedSublimit {
            credential: self.routes.credential(key.credential_id),
            route: key.route.as_str().to_owned(),
            major: key.major.parts(),
            sub: key.sub,
            lasting_ms: remaining_ms(closed),
            past_ms: past.into_iter().map(remaining_ms).take(MAX_PAST).collect(),
        })
    }

    /// Restores the state that a previous process saved, and that ended in this way. This never makes a limit less
    /// strict. Must be called before the first [`Limiter::acquire`], and after [`Limiter::share`] if limits are shared.
    pub fn restore(&mut self, saved_state: &SavedLimiter, age: SnapshotAge, ending: ShutdownKind, now: Timestamp) {
        self.routes.set_predecessor(now + self.config.settling, ending);
        for SavedBlock { credential, lasting_ms } in saved_state.blocks.iter().take(MAX_BLOCKS) {
            if let Some(remaining) = age.remaining(*lasting_ms) {
                // Other processes are not notified again: the shared state includes the block.
                self.record_block(*credential, now + remaining, now);
            }
        }
        let hashes: Vec<Option<HashId>> = saved_state
            .hashes
            .iter()
            .take(MAX_ROUTES + MAX_CLOSED)
            .map(
                |hash| if hash.name.len() > MAX_TEXT { None } else { self.routes.intern_hash(&hash.name, hash.spec()) },
            )
            .collect();
        let hash_at = |index: usize| hashes.get(index).copied().flatten();
        // The newest routes come first. They are added last, so that they are not evicted.
        for SavedRoute { credential, route, hash } in saved_state.routes.iter().take(MAX_ROUTES).rev() {
            let route = RouteKey::new(route);
            if let Some(hash) = hash_at(*hash)
                && route.as_str().len() <= MAX_TEXT
                && self.routes.limit_of(*credential, &route, now) == RouteLimit::Unknown
            {
                self.routes.observe(*credential, &route, RouteLimit::Hash(hash));
            }
        }
        for bucket in saved_state.closed.iter().take(MAX_CLOSED) {
            if let (Some(hash), Some(remaining)) = (hash_at(bucket.hash), age.remaining(bucket.lasting_ms)) {
                self.restore_bucket(bucket, hash, now + remaining, now);
            }
        }
        for saved in saved_state.doors.iter().take(MAX_CLOSED).filter(|saved| saved.route.len() <= MAX_TEXT) {
            self.restore_sublimit(saved, age, now);
        }
        self.advance(now);
    }

    fn restore_bucket(&mut self, closed: &SavedBucket, hash: HashId, until: Timestamp, now: Timestamp) {
        let Some(credential_id) = self.routes.credential_id(closed.credential) else { return };
        let key = WaitQueueKey::Bucket(credential_id, hash, TopLevelId::from_parts(closed.major));
        let routes = &self.routes;
        let Some(queue_id) = self.queues.find_or_insert(&key, now, || QueueLimit::Bucket(routes.new_bucket(hash, now)))
        else {
            return;
        };
        if let QueueLimit::Bucket(bucket) = &mut self.queues.queue(queue_id).limit {
            bucket.close(until);
        }
        self.review(queue_id, now);
    }

    fn restore_sublimit(&mut self, saved: &SavedSublimit, age: SnapshotAge, now: Timestamp) {
        let closed = age.remaining(saved.lasting_ms).map(|remaining| now + remaining);
        let past: Vec<Timestamp> =
            saved.past_ms.iter().take(MAX_PAST).filter_map(|ms| Some(now + age.remaining(*ms)?)).collect();
        if closed.is_none() && past.is_empty() {
            return;
        }
        let Some(credential_id) = self.routes.credential_id(saved.credential) else { return };
        let route = RouteKey::new(&saved.route);
        let key = SublimitKey { credential_id, route, major: TopLevelId::from_parts(saved.major), sub: saved.sub };
        let unsaved = self.routes.unsaved_calls();
        let make = || QueueLimit::Sublimit(Sublimit::after(saved.sub, unsaved));
        let Some(queue_id) = self.queues.find_or_insert(&WaitQueueKey::Sublimit(Box::new(key)), now, make) else {
            return;
        };
        self.sublimits = self.sublimits.max(1);
        if let QueueLimit::Sublimit(sublimit) = &mut self.queues.queue(queue_id).limit {
            sublimit.restore(closed.unwrap_or(Timestamp::ZERO), past);
        }
        self.review(queue_id, now);
    }
}

/// The hashes that the saved state refers to.
struct HashIndex<'a> {
    limiter: &'a Limiter,
    indexes: HashMap<HashId, usize>,
    hashes: Vec<SavedHash>,
}

impl HashIndex<'_> {
    fn index_of(&mut self, hash: HashId) -> usize {
        *self.indexes.entry(hash).or_insert_with(|| {
            let routes = &self.limiter.routes;
            self.hashes.push(SavedHash::new(routes.name(hash), routes.spec(hash)));
            self.hashes.len() - 1
        })
    }
}
