//! What waits for a guild: filled by the event supervisor, emptied by the guild, and still there if the guild breaks. All of
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

/// What waits for a guild.
pub(crate) struct GuildMailbox {
    waiting: RefCell<VecDeque<QueuedEvent>>,
    /// The guild, if it waits to be woken.
    guild: Cell<Option<Waker>>,
    /// Since when it is known that there is nothing to do; nothing while there is.
    idle_since: Cell<Option<UnixMs>>,
    closed: Cell<bool>,
    /// The event that is under way, by its place, and its handler.
    executing: Cell<Option<(usize, usize)>>,
}

/// A mailbox keeps room for so many, however long it has had nothing to do.
const ROOM: usize = 8;

impl GuildMailbox {
    pub(crate) fn new() -> Rc<Self> {
        Rc::new(Self {
            waiting: RefCell::default(),
            guild: Cell::new(None),
            idle_since: Cell::new(None),
            closed: Cell::new(false),
            executing: Cell::new(None),
        })
    }

    pub(crate) fn push(&self, parcel: QueuedEvent) {
        self.waiting.borrow_mut().push_back(parcel);
        self.idle_since.set(None);
        self.wake();
    }

    fn wake(&self) {
        if let Some(guild) = self.guild.take() {
            guild.wake();
        }
    }

    /// Waits until something is there. `false` once it is closed.
    pub(crate) async fn filled(&self) -> bool {
        poll_fn(|cx| {
            if self.closed.get() {
                return Poll::Ready(false);
            }
            if !self.waiting.borrow().is_empty() {
                return Poll::Ready(true);
            }
            self.guild.set(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await
    }

    /// All that waits, the first first. Nothing may be put there or taken as long as somebody looks.
    pub(crate) fn waiting(&self) -> Ref<'_, VecDeque<QueuedEvent>> {
        self.waiting.borrow()
    }

    /// The event of a place.
    pub(crate) fn event(&self, place: usize) -> Option<Arc<Event>> {
        self.waiting.borrow().get(place).map(|parcel| Arc::clone(parcel.event()))
    }

    /// The first, so many of them, are done: they go there.
    pub(crate) fn pop(&self, count: usize, to: &mut Vec<QueuedEvent>) {
        to.extend(self.waiting.borrow_mut().drain(..count));
    }

    /// The event of this place goes to this handler now.
    pub(crate) fn executes(&self, place: usize, handler: usize) {
        self.executing.set(Some((place, handler)));
    }

    /// Nothing is under way.
    pub(crate) fn rests(&self) {
        self.executing.set(None);
    }

    /// What was under way when the guild broke. That handler does not hear of the event again.
    pub(crate) fn take_poison(&self) -> Option<(Arc<Event>, usize)> {
        let (place, handler) = self.executing.take()?;
        let mut waiting = self.waiting.borrow_mut();
        let parcel = waiting.get_mut(place)?;
        parcel.routed.to.remove(handler);
        Some((Arc::clone(parcel.event()), handler))
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.borrow().len()
    }

    /// Closes it if there has been nothing to do since then, as far as was seen; only who fills it may.
    pub(crate) fn close_if_idle_since(&self, then: UnixMs, now: UnixMs) -> bool {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.is_empty() {
            return false;
        }
        if waiting.capacity() > ROOM {
            *waiting = VecDeque::new();
        }
        let since = self.idle_since.get().unwrap_or(now);
        self.idle_since.set(Some(since));
        if since <= then {
            self.closed.set(true);
            self.wake();
        }
        self.closed.get()
    }
}
