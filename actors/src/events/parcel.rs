//! An event on its way to its handlers, and the session that waits for it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::Shared;
use guildhall_core::event::Event;
use guildhall_core::session::Ledger;
use tokio::time::Instant;

use super::answers::AnswerFuture;
use super::feed::Credit;

/// A gateway session of this process.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: Arc<str>,
    pub(super) shard: u32,
    pub(super) resume_url: Option<String>,
    credit: Arc<Credit>,
    ledger: Mutex<Ledger>,
}

impl Session {
    pub(super) fn new(
        id: Arc<str>,
        shard: u32,
        resume_url: Option<String>,
        confirmed: u64,
        credit: Arc<Credit>,
    ) -> Arc<Self> {
        Arc::new(Self { id, shard, resume_url, credit, ledger: Mutex::new(Ledger::new(confirmed)) })
    }

    /// How far it is.
    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Others may be on their way instead.
    pub(super) fn give_back(&self, events: usize, bytes: usize) {
        self.credit.give_back(events, bytes);
    }
}

/// What tells how deferring an interaction went, to however many want to know.
pub(super) type Deferring = Shared<AnswerFuture>;

/// An event, and who wants to hear of it.
#[derive(Clone, Debug)]
pub(super) struct Parcel {
    pub(super) event: Event,
    /// Its handlers, in order.
    pub(super) to: Arc<[usize]>,
    /// Those of them that are done with it, or that it broke.
    pub(super) not_to: Vec<usize>,
    pub(super) session: Arc<Session>,
    /// Whether the event counts against the shard's credit; what this process says itself does not.
    pub(super) counts: bool,
    pub(super) deferring: Option<Deferring>,
    /// When it was read, or soon after.
    pub(super) read_at: Instant,
}

impl Parcel {
    /// Handlers that are still to hear of it.
    pub(super) fn left(&self) -> impl Iterator<Item = usize> + '_ {
        self.to.iter().copied().filter(|handler| !self.not_to.contains(handler))
    }
}

/// All handlers are done with these.
pub(super) fn done(parcels: &[Arc<Parcel>]) {
    // They are nearly always of one session.
    for of_one in parcels.chunk_by(|one, next| Arc::ptr_eq(&one.session, &next.session)) {
        let Some(session) = of_one.first().map(|parcel| &parcel.session) else { continue };
        let mut ledger = session.ledger();
        for parcel in of_one {
            ledger.on_done(parcel.event.origin.seq);
        }
        drop(ledger);
        let counted = || of_one.iter().filter(|parcel| parcel.counts);
        session.give_back(counted().count(), counted().map(|parcel| parcel.event.text.bytes()).sum());
    }
}
