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
const RETAINED_CAPACITY: usize = 4_096;

/// Events that guilds have completed.
pub(crate) struct AckBuffer {
    done: RefCell<Vec<QueuedEvent>>,
    /// Total time and number of runs of each handler.
    elapsed: RefCell<HashMap<usize, (Duration, u32), RandomState>>,
    /// Wakes the task that flushes the buffer.
    waker: RefCell<Option<Waker>>,
    reports: Cell<u64>,
}

impl AckBuffer {
    pub(crate) fn new() -> Self {
        Self { done: RefCell::default(), elapsed: RefCell::default(), waker: RefCell::default(), reports: Cell::new(0) }
    }

    /// Takes the first `count` events of a mailbox, which all handlers have finished.
    pub(crate) fn complete(&self, mailbox: &GuildMailbox, count: usize) {
        let mut done = self.done.borrow_mut();
        let was_empty = done.is_empty();
        mailbox.pop(count, &mut done);
        if was_empty && let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// Records how long a handler took for an event.
    pub(crate) fn elapsed(&self, handler: usize, time: Duration) {
        let mut elapsed = self.elapsed.borrow_mut();
        let (sum, count) = elapsed.entry(handler).or_default();
        (*sum, *count) = (*sum + time, *count + 1);
    }

    /// Sets the waker for new events.
    pub(crate) fn set_waker(&self, waker: &Waker) {
        let mut current = self.waker.borrow_mut();
        if !current.as_ref().is_some_and(|current| current.will_wake(waker)) {
            *current = Some(waker.clone());
        }
    }

    /// Reports all completed events to sessions, metrics and the observer.
    pub(crate) fn flush(&self, context: &EventContext) {
        let mut done = self.done.take();
        if done.is_empty() {
            return;
        }
        // Events of one session are usually adjacent.
        for group in done.chunk_by(|one, next| Arc::ptr_eq(&one.read_batch.session, &next.read_batch.session)) {
            let Some(session) = group.first().map(|queued| &queued.read_batch.session) else { continue };
            let mut credit = CreditReturn::default();
            group.iter().filter(|queued| queued.routed.uses_credit).for_each(|queued| credit.add(queued.event()));
            session.complete(group.iter().map(|queued| queued.event().origin.seq), credit);
        }
        context
            .load
            .on_interactions_finished(done.iter().filter(|queued| queued.event().interaction.is_some()).count());
        self.report_meters(&done, context);
        if let Some(observer) = &context.observer {
            observer.on_completed(&mut done.iter().map(|queued| -> &Event { queued.event() }));
        }
        done.clear();
        if done.capacity() <= RETAINED_CAPACITY {
            *self.done.borrow_mut() = done;
        }
    }

    fn report_meters(&self, done: &[QueuedEvent], context: &EventContext) {
        let (now, report) = (Instant::now(), self.reports.get() + 1);
        self.reports.set(report);
        for queued in done {
            if queued.read_batch.last_report.replace(report) != report {
                emit(EventsCompleted {
                    meters: &context.meters,
                    elapsed: now.duration_since(queued.read_batch.read_at),
                });
            }
        }
        for (number, (sum, count)) in self.elapsed.borrow_mut().drain() {
            emit(HandlerRan { meters: context.handlers.meters(number), elapsed: sum / count });
        }
    }
}
