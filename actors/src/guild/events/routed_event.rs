//! An event on its way to its handlers, and the session that waits for it.
//!
//! ```text
//!  router ──RoutedBatch: events read together──▶ supervisor ──QueuedEvent, in the mailbox of its guild──▶ guild
//! ```

use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::Shared;
use guildhall_core::event::Event;
use guildhall_core::session::SessionLedger;
use tokio::time::Instant;

use super::handler_set::HandlerSet;
use super::interaction_recorder::RecordingFuture;
use crate::ports::RespondFuture;
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

    /// How far it is.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, SessionLedger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everybody is done with these numbers, and so many events and bytes have arrived.
    pub(crate) fn done(&self, numbers: impl Iterator<Item = u64>, arrived: CreditReturn) {
        let mut ledger = self.ledger();
        numbers.for_each(|seq| ledger.on_done(seq));
        drop(ledger);
        self.give_back(arrived);
    }

    /// Others may be on their way instead.
    pub(crate) fn give_back(&self, CreditReturn { events, bytes }: CreditReturn) {
        if events > 0 {
            self.credit.give_back(events, bytes);
        }
    }
}

/// How much has arrived of what counts against a shard's credit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CreditReturn {
    events: usize,
    bytes: usize,
}

impl CreditReturn {
    /// An event is among it.
    pub(crate) fn add(&mut self, event: &Event) {
        self.events += 1;
        self.bytes += event.text.bytes();
    }
}

/// What tells how deferring an interaction went, to however many want to know.
pub(crate) type DeferralFuture = Shared<RespondFuture>;

/// An event, and who wants to hear of it.
#[derive(Clone, Debug)]
pub(crate) struct RoutedEvent {
    pub(crate) event: Arc<Event>,
    /// Its handlers but those that are done with it, or that it broke.
    pub(crate) to: HandlerSet,
    /// Whether the event counts against the shard's credit; what this process says itself does not.
    pub(crate) counts: bool,
    pub(crate) deferring: Option<Box<DeferralFuture>>,
    /// The recording of its interaction; handlers wait for it.
    pub(crate) recording: Option<Box<RecordingFuture>>,
}

/// What events have in common that were read together.
#[derive(Debug)]
pub(crate) struct ReadBatch {
    pub(crate) session: Arc<GatewaySession>,
    /// When they were read, or soon after.
    pub(crate) read_at: Instant,
    /// When it was last told how long some of them took: the number of that telling.
    pub(crate) told: Cell<u64>,
}

/// Events that were read together and go to their guilds together.
#[derive(Debug)]
pub(crate) struct RoutedBatch {
    pub(crate) reading: ReadBatch,
    pub(crate) routed: Vec<RoutedEvent>,
}

impl RoutedBatch {
    /// Nothing yet of what was read of a session at this time, with room for so many.
    pub(crate) fn new(session: &Arc<GatewaySession>, read_at: Instant, most: usize) -> Self {
        let reading = ReadBatch { session: Arc::clone(session), read_at, told: Cell::new(0) };
        Self { reading, routed: Vec::with_capacity(most) }
    }
}

/// An event in the mailbox of its guild. What it shares is counted by one thread.
#[derive(Clone, Debug)]
pub(crate) struct QueuedEvent {
    pub(crate) routed: RoutedEvent,
    pub(crate) reading: Rc<ReadBatch>,
}

impl QueuedEvent {
    pub(crate) fn event(&self) -> &Arc<Event> {
        &self.routed.event
    }
}
