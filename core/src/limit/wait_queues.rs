//! All wait queues, found by key, in bounded memory.

use std::collections::HashMap;

use super::route_table::CredentialId;
use super::wait_queue::{QueueLimit, WaitQueue, WaitQueueId, WaitQueueKey};
use crate::time::Timestamp;

/// Wait queues that are allocated together. A single list would be copied each time it grows, and could then have twice
/// the capacity that is needed.
const PAGE_SIZE: usize = 1_024;

/// Number of wait queues that are checked to find space for a new one.
const MAX_EVICTION_SCAN: usize = 64;

/// All wait queues.
#[derive(Debug)]
pub(super) struct WaitQueues {
    /// Every slot of each page but the last is either used or vacant.
    pages: Vec<Vec<Option<WaitQueue>>>,
    by_key: HashMap<WaitQueueKey, WaitQueueId>,
    vacant: Vec<WaitQueueId>,
    /// Wait queues that must not be evicted now, idle or not.
    held: Vec<WaitQueueId>,
    /// Where the search for an idle wait queue continues.
    hand: usize,
    max: usize,
    /// Wait queues evicted for lack of space.
    pub(super) evicted: u64,
}

impl WaitQueues {
    pub(super) fn new(max: usize) -> Self {
        Self {
            pages: Vec::new(),
            by_key: HashMap::new(),
            vacant: Vec::new(),
            held: Vec::new(),
            hand: 0,
            max: max.max(1),
            evicted: 0,
        }
    }

    pub(super) fn find(&self, key: &WaitQueueKey) -> Option<WaitQueueId> {
        self.by_key.get(key).copied()
    }

    /// Returns the wait queue for a key and creates it if needed; `None` if there is no space and no queue can be
    /// evicted.
    pub(super) fn find_or_insert(
        &mut self,
        key: &WaitQueueKey,
        now: Timestamp,
        limit: impl FnOnce() -> QueueLimit,
    ) -> Option<WaitQueueId> {
        if let Some(id) = self.find(key) {
            return Some(id);
        }
        if self.by_key.len() >= self.max {
            self.evict(now);
        }
        if self.by_key.len() >= self.max {
            return None;
        }
        let queue = WaitQueue::new(key.clone(), limit());
        let id = match self.vacant.pop() {
            Some(id) => {
                *self.slot(id as usize)? = Some(queue);
                id
            }
            None => {
                let id = WaitQueueId::try_from(self.slot_count()).ok()?;
                match self.pages.last_mut() {
                    Some(page) if page.len() < PAGE_SIZE => page.push(Some(queue)),
                    Some(_) | None => {
                        let mut page = Vec::with_capacity(PAGE_SIZE);
                        page.push(Some(queue));
                        self.pages.push(page);
                    }
                }
                id
            }
        };
        self.by_key.insert(key.clone(), id);
        Some(id)
    }

    pub(super) fn queue(&mut self, id: WaitQueueId) -> &mut WaitQueue {
        self.get(id).expect("invariant: a wait queue that is referred to is not idle, so it is not evicted")
    }

    /// A wait queue that may have been evicted since its id was stored.
    pub(super) fn get(&mut self, id: WaitQueueId) -> Option<&mut WaitQueue> {
        self.slot(id as usize)?.as_mut()
    }

    fn slot(&mut self, at: usize) -> Option<&mut Option<WaitQueue>> {
        self.pages.get_mut(at / PAGE_SIZE)?.get_mut(at % PAGE_SIZE)
    }

    /// Number of slots, used or vacant.
    fn slot_count(&self) -> usize {
        self.pages.last().map_or(0, |last| (self.pages.len() - 1) * PAGE_SIZE + last.len())
    }

    /// Protects a wait queue from eviction until it is released as often as it was held.
    pub(super) fn hold(&mut self, id: WaitQueueId) {
        self.held.push(id);
    }

    pub(super) fn release(&mut self, id: WaitQueueId) {
        if let Some(index) = self.held.iter().rposition(|held| *held == id) {
            self.held.swap_remove(index);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &WaitQueue> {
        self.pages.iter().flatten().flatten()
    }

    /// Wait queues in the order of their ids, starting at `first`.
    pub(super) fn iter_from(&self, first: WaitQueueId) -> impl Iterator<Item = (WaitQueueId, Option<&WaitQueue>)> {
        let last = WaitQueueId::try_from(self.slot_count()).unwrap_or(WaitQueueId::MAX);
        (first..last).map(|id| {
            let at = id as usize;
            (id, self.pages[at / PAGE_SIZE][at % PAGE_SIZE].as_ref())
        })
    }

    /// Removes the wait queues of a credential without calls.
    pub(super) fn forget_credential(&mut self, credential_id: CredentialId) {
        for at in 0..self.slot_count() {
            let is_its = |queue: &mut WaitQueue| queue.key.credential_id() == credential_id && queue.queues.is_none();
            let id = WaitQueueId::try_from(at).expect("invariant: every slot has an id");
            if let Some(queue) = self.slot(at).and_then(|slot| slot.take_if(is_its)) {
                self.by_key.remove(&queue.key);
                self.vacant.push(id);
            }
        }
    }

    /// Evicts idle wait queues among the next few.
    fn evict(&mut self, now: Timestamp) {
        let slots = self.slot_count();
        for _ in 0..MAX_EVICTION_SCAN.min(slots) {
            self.hand = (self.hand + 1) % slots;
            let id = WaitQueueId::try_from(self.hand).expect("invariant: every slot has an id");
            if self.held.contains(&id) {
                continue;
            }
            if let Some(queue) = self.slot(self.hand).and_then(|slot| slot.take_if(|queue| queue.is_idle(now))) {
                self.by_key.remove(&queue.key);
                self.vacant.push(id);
                self.evicted += 1;
            }
        }
    }
}
