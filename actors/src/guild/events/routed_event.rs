//! An event on its way to its handlers, and its gateway session.
//!
//! ```text
//!  router ──RoutedBatch: events read together──▶ supervisor ──QueuedEvent, in the mailbox of its guild──▶ guild
//! ```

use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::{BoxFuture, Shared};
use guildhall_core::event::Event;
use guildhall_core::session::SessionLedger;
use tokio::time::Instant;

use super::handler_set::HandlerSet;
use super::interaction_recorder::RecordingFuture;
use crate::ports::ResponseResult;
use crate::shard::Credit;

/// A gateway session of this process.
#[derive(Debug)]
pub(crate) struct GatewaySession {
    pub(crate) id: Arc<str>,
    pub(crate) shard: u32,
    pub(crate) resume_url: Option<String>,
    credit: Arc<Credit>,
    ledger: Mutex<SessionLedger>,
}

impl GatewaySession {
    pub(crate) fn new(
        id: Arc<str>,
        shard: u32,
        resume_url: Option<String>,
        confirmed: u64,
        credit: Arc<Credit>,
    ) -> Arc<Self> {
        Arc::new(Self { id, shard, resume_url, credit, ledger: Mutex::new(SessionLedger::new(confirmed)) })
    }

    /// Which events are received, and up to which one the session is confirmed.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, SessionLedger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks these events as handled by all their handlers, and returns their credit.
    pub(crate) fn complete(&self, numbers: impl Iterator<Item = u64>, credit: CreditReturn) {
        let mut ledger = self.ledger();
        numbers.for_each(|seq| ledger.on_done(seq));
        drop(ledger);
        self.return_credit(credit);
    }

    /// Returns credit, so that the shard may forward more events.
    pub(crate) fn return_credit(&self, CreditReturn { events, bytes }: CreditReturn) {
        if events > 0 {
            self.credit.release(events, bytes);
        }
    }
}

/// Events and bytes to return to a shard's credit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CreditReturn {
    events: usize,
    bytes: usize,
}

impl CreditReturn {
    /// Adds an event.
    pub(crate) fn add(&mut self, event: &Event) {
        self.events += 1;
        self.bytes += event.text.bytes();
    }
}

/// First response to an interaction that its router sends: a deferral, or the text for a cooldown.
#[derive(Clone, Debug)]
pub(crate) struct FirstResponse {
    pub(crate) result: ResponseResult,
    /// Handlers whose cooldown is the response. They do not run if Discord accepted it.
    pub(crate) cooling_down: Arc<[usize]>,
}

/// A first response that is being sent, for any number of waiters.
pub(crate) type FirstResponseFuture = Shared<BoxFuture<'static, FirstResponse>>;

/// An event and its handlers.
#[derive(Clone, Debug)]
pub(crate) struct RoutedEvent {
    pub(crate) event: Arc<Event>,
    /// Its handlers, without those that have finished with it or crashed on it.
    pub(crate) handlers: HandlerSet,
    /// Whether the event uses the shard's credit. Events that this process creates do not.
    pub(crate) uses_credit: bool,
    pub(crate) first_response: Option<Box<FirstResponseFuture>>,
    /// Recording of its interaction. Handlers wait for it.
    pub(crate) recording: Option<Box<RecordingFuture>>,
}

/// What events that were read together have in common.
#[derive(Debug)]
pub(crate) struct ReadBatch {
    pub(crate) session: Arc<GatewaySession>,
    /// Approximate time at which they were read.
    pub(crate) read_at: Instant,
    /// Number of the last report that includes one of these events.
    pub(crate) last_report: Cell<u64>,
}

/// Events that were read together and are sent to their guilds together.
#[derive(Debug)]
pub(crate) struct RoutedBatch {
    pub(crate) read_batch: ReadBatch,
    pub(crate) routed: Vec<RoutedEvent>,
}

impl RoutedBatch {
    /// Creates an empty batch with room for this many events of the session.
    pub(crate) fn new(session: &Arc<GatewaySession>, read_at: Instant, capacity: usize) -> Self {
        let read_batch = ReadBatch { session: Arc::clone(session), read_at, last_report: Cell::new(0) };
        Self { read_batch, routed: Vec::with_capacity(capacity) }
    }
}

/// An event in the mailbox of its guild. Only one thread uses its reference counts.
#[derive(Clone, Debug)]
pub(crate) struct QueuedEvent {
    pub(crate) routed: RoutedEvent,
    pub(crate) read_batch: Rc<ReadBatch>,
}

impl QueuedEvent {
    pub(crate) fn event(&self) -> &Arc<Event> {
        &self.routed.event
    }
}
