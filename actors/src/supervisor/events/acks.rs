//! Buffers completed events until sessions are updated. It batches over all guilds of a thread, because locking a
//! session's ledger and returning a shard's credit for each event would cost more than most events do.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use foldhash::fast::RandomState;
use guildhall_core::event::Event;
use tokio::time::Instant;

use crate::guild::events::context::EventContext;
use crate::guild::events::mailbox::GuildMailbox;
use crate::guild::events::routed_event::{CreditReturn, QueuedEvent};
use crate::telemetry::emit;
use crate::telemetry::events::{EventsCompleted, HandlerRan};

/// An empty buffer keeps at most this capacity.
const ROOM: usize = 4_096;

/// Events that guilds have completed.
pub(crate) struct AckBuffer {
    done: RefCell<Vec<QueuedEvent>>,
    /// Total time and number of runs of each handler.
    took: RefCell<HashMap<usize, (Duration, u32), RandomState>>,
    /// Wakes the task that flushes the buffer.
    teller: RefCell<Option<Waker>>,
    tellings: Cell<u64>,
}

impl AckBuffer {
    pub(crate) fn new() -> Self {
        Self { done: RefCell::default(), took: RefCell::default(), teller: RefCell::default(), tellings: Cell::new(0) }
    }

    /// Takes the first `count` events of a mailbox, which all handlers have finished.
    pub(crate) fn put(&self, tray: &GuildMailbox, count: usize) {
        let mut done = self.done.borrow_mut();
        let was_empty = done.is_empty();
        tray.pop(count, &mut done);
        if was_empty && let Some(teller) = &*self.teller.borrow() {
            teller.wake_by_ref();
        }
    }

    /// Records how long a handler took for an event.
    pub(crate) fn took(&self, handler: usize, time: Duration) {
        let mut took = self.took.borrow_mut();
        let (sum, count) = took.entry(handler).or_default();
        (*sum, *count) = (*sum + time, *count + 1);
    }

    /// Sets the waker for new events.
    pub(crate) fn wakes(&self, waker: &Waker) {
        let mut teller = self.teller.borrow_mut();
        if !teller.as_ref().is_some_and(|teller| teller.will_wake(waker)) {
            *teller = Some(waker.clone());
        }
    }

    /// Reports all completed events to sessions, metrics and the observer.
    pub(crate) fn tell(&self, context: &EventContext) {
        let mut done = self.done.take();
        if done.is_empty() {
            return;
        }
        // Events of one session are usually adjacent.
        for of_one in done.chunk_by(|one, next| Arc::ptr_eq(&one.reading.session, &next.reading.session)) {
            let Some(session) = of_one.first().map(|parcel| &parcel.reading.session) else { continue };
            let mut arrived = CreditReturn::default();
            of_one.iter().filter(|parcel| parcel.routed.counts).for_each(|parcel| arrived.add(parcel.event()));
            session.done(of_one.iter().map(|parcel| parcel.event().origin.seq), arrived);
        }
        context
            .load
            .on_interactions_finished(done.iter().filter(|parcel| parcel.event().interaction.is_some()).count());
        self.tell_meters(&done, context);
        if let Some(watch) = &context.observer {
            watch.done(&mut done.iter().map(|parcel| -> &Event { parcel.event() }));
        }
        done.clear();
        if done.capacity() <= ROOM {
            *self.done.borrow_mut() = done;
        }
    }

    fn tell_meters(&self, done: &[QueuedEvent], context: &EventContext) {
        let (now, telling) = (Instant::now(), self.tellings.get() + 1);
        self.tellings.set(telling);
        for parcel in done {
            if parcel.reading.told.replace(telling) != telling {
                emit(EventsCompleted { meters: &context.meters, took: now.duration_since(parcel.reading.read_at) });
            }
        }
        for (number, (sum, count)) in self.took.borrow_mut().drain() {
            emit(HandlerRan { meters: context.handlers.meters(number), took: sum / count });
        }
    }
}
