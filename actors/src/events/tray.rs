//! What waits for a guild: filled by the router, emptied by the guild, and still there if the guild breaks.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use guildhall_core::time::UnixMs;
use tokio::sync::Notify;

use super::parcel::Parcel;

/// What waits for a guild.
#[derive(Debug)]
pub(super) struct Tray {
    inner: Mutex<Inner>,
    filled: Notify,
    /// The event that is under way, by its number, and its handler; 0 if none is. Only the guild writes it, and it is read when
    /// the guild is gone.
    executing: AtomicU64,
    handler: AtomicUsize,
}

/// A tray keeps room for so many, however long it has had nothing to do.
const ROOM: usize = 8;

#[derive(Debug)]
struct Inner {
    waiting: VecDeque<Arc<Parcel>>,
    /// Since when there has been nothing to do; nothing while there is.
    idle_since: Option<UnixMs>,
    closed: bool,
}

impl Tray {
    pub(super) fn new(now: UnixMs) -> Arc<Self> {
        let inner = Inner { waiting: VecDeque::new(), idle_since: Some(now), closed: false };
        let (executing, handler) = (AtomicU64::new(0), AtomicUsize::new(0));
        Arc::new(Self { inner: Mutex::new(inner), filled: Notify::new(), executing, handler })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, parcel: Parcel) {
        let mut inner = self.inner();
        inner.waiting.push_back(Arc::new(parcel));
        if inner.idle_since.take().is_some() {
            drop(inner);
            self.filled.notify_one();
        }
    }

    /// Waits for the first that wait, at most so many; they stay where they are. Nothing once it is closed.
    pub(super) async fn first(&self, most: usize, now: impl Fn() -> UnixMs) -> Option<Vec<Arc<Parcel>>> {
        loop {
            {
                let mut inner = self.inner();
                if inner.closed {
                    return None;
                }
                if !inner.waiting.is_empty() {
                    return Some(inner.waiting.iter().take(most).cloned().collect());
                }
                inner.idle_since.get_or_insert_with(&now);
            }
            self.filled.notified().await;
        }
    }

    /// The first, so many of them, are done.
    pub(super) fn pop(&self, count: usize) {
        self.inner().waiting.drain(..count);
    }

    /// This event goes to this handler now.
    pub(super) fn executes(&self, seq: u64, handler: usize) {
        self.handler.store(handler, Ordering::Relaxed);
        self.executing.store(seq, Ordering::Release);
    }

    /// Nothing is under way.
    pub(super) fn rests(&self) {
        self.executing.store(0, Ordering::Release);
    }

    /// What was under way when the guild broke. That handler does not hear of the event again.
    pub(super) fn take_poison(&self) -> Option<(Arc<Parcel>, usize)> {
        let seq = self.executing.swap(0, Ordering::AcqRel);
        let handler = self.handler.load(Ordering::Relaxed);
        let mut inner = self.inner();
        let parcel = inner.waiting.iter_mut().find(|parcel| seq != 0 && parcel.event.origin.seq == seq)?;
        Arc::make_mut(parcel).not_to.push(handler);
        Some((Arc::clone(parcel), handler))
    }

    pub(super) fn len(&self) -> usize {
        self.inner().waiting.len()
    }

    /// Closes it if there has been nothing to do since then; only whoever fills it may.
    pub(super) fn close_if_idle_since(&self, then: UnixMs) -> bool {
        let mut inner = self.inner();
        if inner.waiting.is_empty() && inner.waiting.capacity() > ROOM {
            inner.waiting = VecDeque::new();
        }
        let idle = inner.waiting.is_empty() && inner.idle_since.is_some_and(|since| since <= then);
        inner.closed |= idle;
        let closed = inner.closed;
        drop(inner);
        if closed {
            self.filled.notify_one();
        }
        closed
    }
}
