//! Which events wait in the inbox, for which handlers. Later events of the same lane wait behind them.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::handler_runner::HandlerTask;
use super::registry::HandlerRegistry;
use crate::ports::InboxKey;

/// The events that wait in the inbox, and webhook calls that started before their events were put there.
pub(crate) struct InboxBacklog {
    handlers: Arc<HandlerRegistry>,
    entries: Mutex<Entries>,
    /// The number of entries, for a check on every event without the lock.
    len: AtomicUsize,
    added: Notify,
    removed: Notify,
}

#[derive(Default)]
struct Entries {
    /// By lane and handler queue.
    waiting: HashMap<(i64, usize), usize>,
    keys: HashSet<InboxKey>,
    calls: HashMap<InboxKey, (usize, HandlerTask)>,
}

impl InboxBacklog {
    pub(crate) fn new(handlers: Arc<HandlerRegistry>) -> Self {
        Self {
            handlers,
            entries: Mutex::default(),
            len: AtomicUsize::new(0),
            added: Notify::new(),
            removed: Notify::new(),
        }
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a handler has events of this lane in the inbox. Later events must wait behind them.
    pub(crate) fn is_waiting(&self, lane: i64, handler: usize) -> bool {
        self.len.load(Ordering::Acquire) > 0
            && self.entries().waiting.contains_key(&(lane, self.handlers.queue(handler)))
    }

    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// How many of the events are interactions.
    pub(crate) fn interactions(&self) -> usize {
        self.entries().waiting.iter().filter(|((lane, _), _)| *lane < 0).map(|(_, count)| count).sum()
    }

    /// Adds an event that waits in the inbox, or is about to. Call this before it is stored: the inbox may have finished with
    /// it before the store responds. Returns `false` if it was added before.
    pub(crate) fn add(&self, lane: i64, handler: usize, key: &InboxKey, call: Option<HandlerTask>) -> bool {
        let mut entries = self.entries();
        entries.calls.extend(call.map(|call| (key.clone(), (handler, call))));
        let is_new = entries.keys.insert(key.clone());
        if is_new {
            *entries.waiting.entry((lane, self.handlers.queue(handler))).or_default() += 1;
            self.len.store(entries.keys.len(), Ordering::Release);
        }
        is_new
    }

    /// Removes an event that has left the inbox, or was never stored there.
    pub(crate) fn remove(&self, lane: i64, handler: usize, key: &InboxKey) {
        let slot = (lane, self.handlers.queue(handler));
        let mut entries = self.entries();
        entries.calls.remove(key);
        if entries.keys.remove(key)
            && let Some(count) = entries.waiting.get_mut(&slot)
        {
            *count -= 1;
            if *count == 0 {
                entries.waiting.remove(&slot);
            }
        }
        self.len.store(entries.keys.len(), Ordering::Release);
        drop(entries);
        self.removed.notify_waiters();
    }

    /// Removes an event whose handler does not exist any more: nothing waits behind it.
    pub(crate) fn abandon(&self, lane: i64, key: &InboxKey) {
        if let Some(handler) = self.handlers.queue_named(&key.handler) {
            self.remove(lane, handler, key);
        }
    }

    /// Takes the call that started before the event was put into the inbox.
    pub(crate) fn take_call(&self, key: &InboxKey) -> Option<HandlerTask> {
        self.entries().calls.remove(key).map(|(_, call)| call)
    }

    /// The handler of an entry: the one that was called for it already, or the one that has its name now.
    pub(crate) fn handler_of(&self, key: &InboxKey) -> Option<usize> {
        let called = self.entries().calls.get(key).map(|(handler, _)| *handler);
        called.or_else(|| self.handlers.number(&key.handler))
    }

    /// Wakes the inbox: there are new entries, or other handlers.
    pub(crate) fn wake(&self) {
        self.added.notify_one();
    }

    /// Resolves when the inbox is [woken](Self::wake).
    pub(crate) async fn woken(&self) {
        self.added.notified().await;
    }

    /// Waits until there are fewer than `max` entries.
    pub(crate) async fn has_room(&self, max: usize) {
        loop {
            let removed = self.removed.notified();
            if self.len() < max {
                return;
            }
            removed.await;
        }
    }
}
