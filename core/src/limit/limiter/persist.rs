//! Saves and restores state that must survive a restart.
//!
//! Of a bucket, only the time until which it is closed is saved. Only Discord knows how much of the others was used.
//! Therefore each object of a restored hash starts with a probe, for as long as calls of the previous process may
//! count.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use super::Limiter;
use crate::limit::SavedLimiter;
use crate::limit::bucket::Bucket;
use crate::limit::route_table::{HashId, RouteLimit};
use crate::limit::saved_state::{
    MOST_BLOCKS, MOST_CLOSED, MOST_PAST, MOST_ROUTES, MOST_TEXT, SavedBlock, SavedBucket, SavedHash, SavedRoute,
    SavedSublimit,
};
use crate::limit::sublimit::Sublimit;
use crate::limit::wait_queue::{QueueLimit, SublimitKey, WaitQueue, WaitQueueKey};
use crate::response::Credential;
use crate::route::{RouteKey, TopLevelId};
use crate::snapshot::{SnapshotAge, Urgency, lasting_ms};
use crate::time::Timestamp;

/// State that stays closed for longer than this should be saved soon. A new gate sends nothing for about as long
/// anyway.
pub(super) const LASTING: Duration = Duration::from_secs(2);

/// The same for a bucket that was merely used up, which happens often.
pub(super) const LASTING_BUCKET: Duration = Duration::from_secs(5);

impl Limiter {
    /// Marks state as changed since the last save.
    pub(super) fn changed(&mut self, urgency: Urgency) {
        self.unsaved = self.unsaved.max(Some(urgency));
    }

    /// Records that a limit is closed until `until`.
    pub(super) fn closed(&mut self, until: Timestamp, now: Timestamp) {
        if until.since(now) > LASTING {
            self.changed(Urgency::Soon);
        }
    }

    /// Whether state has changed since the last call of this method, and how soon it should be saved.
    pub fn take_unsaved(&mut self) -> Option<Urgency> {
        self.unsaved.take()
    }

    /// Returns the state that must survive a restart.
    #[must_use]
    pub fn remember(&self, now: Timestamp) -> SavedLimiter {
        let mut hashes = HashIndex { limiter: self, places: HashMap::new(), list: Vec::new() };
        let mut routes: Vec<(HashId, Credential, &RouteKey)> = self.book.hashed().collect();
        routes.sort_unstable_by_key(|(hash, credential, route)| (Reverse(*hash), *credential, *route));
        routes.truncate(MOST_ROUTES);
        let routes = routes
            .into_iter()
            .map(|(hash, credential, route)| SavedRoute {
                credential,
                route: route.as_str().to_owned(),
                hash: hashes.place(hash),
            })
            .collect();
        let mut closed: Vec<SavedBucket> =
            self.yard.iter().filter_map(|lot| self.closed_bucket(lot, &mut hashes, now)).collect();
        closed.sort_by_key(|bucket| Reverse(bucket.lasting_ms));
        closed.truncate(MOST_CLOSED);
        let mut doors: Vec<SavedSublimit> = self.yard.iter().filter_map(|lot| self.door(lot, now)).collect();
        doors.sort_by_key(|door| Reverse(door.past_ms.iter().copied().chain([door.lasting_ms]).max()));
        doors.truncate(MOST_CLOSED);
        let blocks = self.blocks.iter().filter(|(_, until)| *until > now);
        let blocks = blocks.map(|(credential, until)| SavedBlock {
            credential: *credential,
            lasting_ms: lasting_ms(until.since(now)),
        });
        SavedLimiter { blocks: blocks.take(MOST_BLOCKS).collect(), hashes: hashes.list, routes, closed, doors }
    }

    fn closed_bucket(&self, lot: &WaitQueue, hashes: &mut HashIndex<'_>, now: Timestamp) -> Option<SavedBucket> {
        let (WaitQueueKey::Bucket(whose, hash, major), QueueLimit::Bucket(bucket)) = (&lot.key, &lot.keeper) else {
            return None;
        };
        let until = bucket.closed_until(now)?;
        Some(SavedBucket {
            credential: self.book.credential(*whose),
            hash: hashes.place(*hash),
            major: major.parts(),
            lasting_ms: lasting_ms(until.since(now)),
        })
    }

    fn door(&self, lot: &WaitQueue, now: Timestamp) -> Option<SavedSublimit> {
        let (WaitQueueKey::Side(key), QueueLimit::Side(side)) = (&lot.key, &lot.keeper) else { return None };
        let (closed, past) = side.standing(now)?;
        let left = |until: Timestamp| lasting_ms(until.since(now));
        Some(SavedSublimit {
            credential: self.book.credential(key.whose),
            route: key.route.as_str().to_owned(),
            major: key.major.parts(),
            sub: key.sub,
            lasting_ms: left(closed),
            past_ms: past.into_iter().map(left).take(MOST_PAST).collect(),
        })
    }

    /// Restores the state that a previous process saved. This never makes a limit less strict. Must be called before
    /// the first [`Limiter::acquire`], and after [`Limiter::share`] if limits are shared.
    pub fn recall(&mut self, memory: &SavedLimiter, age: SnapshotAge, now: Timestamp) {
        for SavedBlock { credential, lasting_ms } in memory.blocks.iter().take(MOST_BLOCKS) {
            if let Some(left) = age.left(*lasting_ms) {
                // Other processes are not notified again: the shared state includes the block.
                self.note_block(*credential, now + left, now);
            }
        }
        let hashes: Vec<Option<HashId>> = memory
            .hashes
            .iter()
            .take(MOST_ROUTES + MOST_CLOSED)
            .map(|hash| if hash.name.len() > MOST_TEXT { None } else { self.book.hash(&hash.name, hash.traits()) })
            .collect();
        let hash_at = |place: usize| hashes.get(place).copied().flatten();
        self.book.recalled(now + self.config.settling);
        // The newest routes come first. They are added last, so that they are not evicted.
        for SavedRoute { credential, route, hash } in memory.routes.iter().take(MOST_ROUTES).rev() {
            let route = RouteKey::new(route);
            if let Some(hash) = hash_at(*hash)
                && route.as_str().len() <= MOST_TEXT
                && self.book.of(*credential, &route, now) == RouteLimit::Unknown
            {
                self.book.learn(*credential, &route, RouteLimit::Hash(hash));
            }
        }
        for bucket in memory.closed.iter().take(MOST_CLOSED) {
            if let (Some(hash), Some(left)) = (hash_at(bucket.hash), age.left(bucket.lasting_ms)) {
                self.recall_closed(bucket, hash, now + left, now);
            }
        }
        for door in memory.doors.iter().take(MOST_CLOSED).filter(|door| door.route.len() <= MOST_TEXT) {
            self.recall_door(door, age, now);
        }
        self.settle(now);
    }

    fn recall_closed(&mut self, closed: &SavedBucket, hash: HashId, until: Timestamp, now: Timestamp) {
        let Some(whose) = self.book.whose(closed.credential) else { return };
        let key = WaitQueueKey::Bucket(whose, hash, TopLevelId::from_parts(closed.major));
        let traits = self.book.traits(hash);
        let Some(lot) = self.yard.find_or_make(&key, now, || QueueLimit::Bucket(Bucket::unseen(traits))) else {
            return;
        };
        if let QueueLimit::Bucket(bucket) = &mut self.yard.lot(lot).keeper {
            bucket.close(until);
        }
        self.review(lot, now);
    }

    fn recall_door(&mut self, door: &SavedSublimit, age: SnapshotAge, now: Timestamp) {
        let closed = age.left(door.lasting_ms).map(|left| now + left);
        let past: Vec<Timestamp> =
            door.past_ms.iter().take(MOST_PAST).filter_map(|ms| Some(now + age.left(*ms)?)).collect();
        if closed.is_none() && past.is_empty() {
            return;
        }
        let Some(whose) = self.book.whose(door.credential) else { return };
        let route = RouteKey::new(&door.route);
        let key = SublimitKey { whose, route, major: TopLevelId::from_parts(door.major), sub: door.sub };
        let make = || QueueLimit::Side(Sublimit::new(door.sub));
        let Some(lot) = self.yard.find_or_make(&WaitQueueKey::Side(Box::new(key)), now, make) else { return };
        self.sides = self.sides.max(1);
        if let QueueLimit::Side(side) = &mut self.yard.lot(lot).keeper {
            side.recall(closed.unwrap_or(Timestamp::ZERO), past);
        }
        self.review(lot, now);
    }
}

/// The hashes that the saved state refers to.
struct HashIndex<'a> {
    limiter: &'a Limiter,
    places: HashMap<HashId, usize>,
    list: Vec<SavedHash>,
}

impl HashIndex<'_> {
    fn place(&mut self, hash: HashId) -> usize {
        *self.places.entry(hash).or_insert_with(|| {
            let book = &self.limiter.book;
            self.list.push(SavedHash::new(book.name(hash), book.traits(hash)));
            self.list.len() - 1
        })
    }
}
