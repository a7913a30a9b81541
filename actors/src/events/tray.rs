//! What waits for a guild: filled by the router, emptied by the guild, and still there if the guild breaks.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use guildhall_core::time::UnixMs;
use tokio::sync::Notify;

use super::parcel::Parcel;

/// What waits for a guild.
#[derive(Debug)]
pub(super) struct Tray {
    inner: Mutex<Inner>,
    filled: Notify,
}

#[derive(Debug)]
struct Inner {
    waiting: VecDeque<Arc<Parcel>>,
    /// The event and the handler that are under way.
    executing: Option<(u64, usize)>,
    /// Since when there has been nothing to do; nothing while there is.
    idle_since: Option<UnixMs>,
    closed: bool,
}

impl Tray {
    pub(super) fn new(now: UnixMs) -> Arc<Self> {
        let inner = Inner { waiting: VecDeque::new(), executing: None, idle_since: Some(now), closed: false };
        Arc::new(Self { inner: Mutex::new(inner), filled: Notify::new() })
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

    /// The first is done.
    pub(super) fn pop(&self) {
        self.inner().waiting.pop_front();
    }

    pub(super) fn execute(&self, what: Option<(u64, usize)>) {
        self.inner().executing = what;
    }

    /// What was under way when the guild broke. That handler does not hear of the event again.
    pub(super) fn take_poison(&self) -> Option<(Arc<Parcel>, usize)> {
        let mut inner = self.inner();
        let (seq, handler) = inner.executing.take()?;
        let parcel = inner.waiting.iter_mut().find(|parcel| parcel.event.origin.seq == seq)?;
        Arc::make_mut(parcel).not_to.push(handler);
        Some((Arc::clone(parcel), handler))
    }

    pub(super) fn len(&self) -> usize {
        self.inner().waiting.len()
    }

    /// Closes it if there has been nothing to do since then; only whoever fills it may.
    pub(super) fn close_if_idle_since(&self, then: UnixMs) -> bool {
        let mut inner = self.inner();
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
