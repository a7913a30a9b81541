//! Mailbox of a guild. The event supervisor fills it and the guild empties it. It survives a crash of the guild. All of
//! them run on one thread.

use std::cell::{Cell, Ref, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use guildhall_core::event::Event;
use guildhall_core::time::UnixMs;

use super::routed_event::QueuedEvent;

/// Events that wait for a guild.
pub(crate) struct GuildMailbox {
    waiting: RefCell<VecDeque<QueuedEvent>>,
    /// Wakes the guild while it waits for events.
    waker: Cell<Option<Waker>>,
    /// Since when the mailbox is known to be empty. `None` while it has events.
    idle_since: Cell<Option<UnixMs>>,
    closed: Cell<bool>,
    /// Position of the event that is being handled, and its handler.
    executing: Cell<Option<(usize, usize)>>,
}

/// An empty mailbox keeps at most this capacity.
const RETAINED_CAPACITY: usize = 8;

impl GuildMailbox {
    pub(crate) fn new() -> Rc<Self> {
        Rc::new(Self {
            waiting: RefCell::default(),
            waker: Cell::new(None),
            idle_since: Cell::new(None),
            closed: Cell::new(false),
            executing: Cell::new(None),
        })
    }

    pub(crate) fn push(&self, queued: QueuedEvent) {
        self.waiting.borrow_mut().push_back(queued);
        self.idle_since.set(None);
        self.wake();
    }

    fn wake(&self) {
        if let Some(guild) = self.waker.take() {
            guild.wake();
        }
    }

    /// Waits until there is an event. Returns `false` once the mailbox is closed.
    pub(crate) async fn wait_for_event(&self) -> bool {
        poll_fn(|cx| {
            if self.closed.get() {
                return Poll::Ready(false);
            }
            if !self.waiting.borrow().is_empty() {
                return Poll::Ready(true);
            }
            self.waker.set(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await
    }

    /// All waiting events in order. The mailbox must not change while the reference is held.
    pub(crate) fn waiting(&self) -> Ref<'_, VecDeque<QueuedEvent>> {
        self.waiting.borrow()
    }

    /// Event at this position.
    pub(crate) fn event(&self, position: usize) -> Option<Arc<Event>> {
        self.waiting.borrow().get(position).map(|queued| Arc::clone(queued.event()))
    }

    /// Moves the first `count` events into `to`.
    pub(crate) fn pop(&self, count: usize, to: &mut Vec<QueuedEvent>) {
        to.extend(self.waiting.borrow_mut().drain(..count));
    }

    /// Records that this handler receives the event at this position now.
    pub(crate) fn set_executing(&self, position: usize, handler: usize) {
        self.executing.set(Some((position, handler)));
    }

    /// Records that no event is being handled.
    pub(crate) fn clear_executing(&self) {
        self.executing.set(None);
    }

    /// Event and handler that were executing when the guild crashed. Removes that handler from the event.
    pub(crate) fn take_poison(&self) -> Option<(Arc<Event>, usize)> {
        let (position, handler) = self.executing.take()?;
        let mut waiting = self.waiting.borrow_mut();
        let queued = waiting.get_mut(position)?;
        queued.routed.handlers.remove(handler);
        Some((Arc::clone(queued.event()), handler))
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.borrow().len()
    }

    /// Closes the mailbox if it is known to have been empty at least since the first time. Only its producer may call
    /// this.
    pub(crate) fn close_if_idle_since(&self, cutoff: UnixMs, now: UnixMs) -> bool {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.is_empty() {
            return false;
        }
        if waiting.capacity() > RETAINED_CAPACITY {
            *waiting = VecDeque::new();
        }
        let since = self.idle_since.get().unwrap_or(now);
        self.idle_since.set(Some(since));
        if since <= cutoff {
            self.closed.set(true);
            self.wake();
        }
        self.closed.get()
    }
}
