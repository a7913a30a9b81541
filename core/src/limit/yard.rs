//! All lots, found by what they are for, and no more of them than there is room for.

use std::collections::HashMap;

use super::lot::{Gatekeeper, Lot, LotId, LotKey};
use crate::time::Timestamp;

/// How many lots are looked at to find room for a new one.
const SEARCH: usize = 64;

/// All lots.
#[derive(Debug)]
pub(super) struct Yard {
    lots: Vec<Option<Lot>>,
    by_key: HashMap<LotKey, LotId>,
    vacant: Vec<LotId>,
    /// Where the search for an idle lot goes on.
    hand: usize,
    max: usize,
    /// Lots forgotten for want of room.
    pub(super) evicted: u64,
}

impl Yard {
    pub(super) fn new(max: usize) -> Self {
        Self { lots: Vec::new(), by_key: HashMap::new(), vacant: Vec::new(), hand: 0, max: max.max(1), evicted: 0 }
    }

    pub(super) fn find(&self, key: &LotKey) -> Option<LotId> {
        self.by_key.get(key).copied()
    }

    /// The lot for a key, made if it is new; `None` if there is no room and none that could be forgotten.
    pub(super) fn find_or_make(
        &mut self,
        key: &LotKey,
        now: Timestamp,
        keeper: impl FnOnce() -> Gatekeeper,
    ) -> Option<LotId> {
        if let Some(id) = self.find(key) {
            return Some(id);
        }
        if self.by_key.len() >= self.max {
            self.evict(now);
        }
        if self.by_key.len() >= self.max {
            return None;
        }
        let lot = Lot::new(key.clone(), keeper());
        let id = match self.vacant.pop() {
            Some(id) => {
                self.lots[id as usize] = Some(lot);
                id
            }
            None => {
                self.lots.push(Some(lot));
                LotId::try_from(self.lots.len() - 1).ok()?
            }
        };
        self.by_key.insert(key.clone(), id);
        Some(id)
    }

    pub(super) fn lot(&mut self, id: LotId) -> &mut Lot {
        self.lots[id as usize].as_mut().expect("invariant: a lot that is referred to is not idle, so it is kept")
    }

    /// A lot that may have been forgotten since its id was noted.
    pub(super) fn get(&mut self, id: LotId) -> Option<&mut Lot> {
        self.lots.get_mut(id as usize)?.as_mut()
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Lot> {
        self.lots.iter().flatten()
    }

    /// Forgets idle lots among the next few.
    fn evict(&mut self, now: Timestamp) {
        for _ in 0..SEARCH.min(self.lots.len()) {
            self.hand = (self.hand + 1) % self.lots.len();
            let place = &mut self.lots[self.hand];
            if place.as_ref().is_some_and(|lot| lot.is_idle(now))
                && let Some(lot) = place.take()
            {
                self.by_key.remove(&lot.key);
                self.vacant.push(LotId::try_from(self.hand).expect("invariant: it was given out as an id"));
                self.evicted += 1;
            }
        }
    }
}
