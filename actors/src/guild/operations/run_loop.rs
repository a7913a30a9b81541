//! The loop of a guild.
//!
//! ```text
//!  load ─▶ next step ─▶ resolve ─▶ execute ─────────────────────────────────────────────▶ decide ─┐
//!              ▲                        └▶ permit ─▶ record [end of the last, start of this] ─▶ send │
//!              └─────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! The outcome of one operation and the start of the next are saved together, so an operation costs one commit. A call
//! with an effect is sent once it is stored that it may be in flight; see `execution`.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use guildhall_core::guild::OrderStep;
use guildhall_core::time::UnixMs;
use tokio::sync::oneshot;
use tokio::task::coop::consume_budget;
use tokio::time::timeout;

use super::persist::add;
use super::queue_state::QueueState;
use super::{GuildSpec, StopMode, StopResult};
use crate::failpoint;
use crate::ports::OperationUpdate;
use crate::supervision::Part;
use crate::supervisor::operations::wakeups::ReleasedConditions;
use crate::telemetry::emit;
use crate::telemetry::operations::{GuildFenced, OperationsReleased};

/// Maximum wait, because clocks can be changed.
const LONGEST_REST: Duration = Duration::from_secs(60);
/// How often an ending process tries to release a queue before it leaves that to the expiry of its lease.
const RELEASES: u32 = 3;

/// The guild has lost its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fenced;

/// A request to stop, and the channel for its result.
#[derive(Debug)]
struct StopRequest {
    how: StopMode,
    answer: oneshot::Sender<StopResult>,
}

/// The worker of a guild.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) seat: GuildSpec,
    pub(super) book: RefCell<QueueState>,
    pub(super) paused: Cell<bool>,
    /// Whether it stops without a request.
    gives_up: Cell<bool>,
    leaving: RefCell<Option<StopRequest>>,
}

impl Worker {
    pub(super) fn new(seat: GuildSpec) -> Self {
        let right = seat.store.right(seat.queue, seat.fence);
        let book = RefCell::new(QueueState::new(seat.queue, seat.fence, right, &seat.config));
        let paused = Cell::new(seat.paused);
        Self { seat, book, paused, gives_up: Cell::new(false), leaving: RefCell::default() }
    }

    pub(super) const fn seat(&self) -> &GuildSpec {
        &self.seat
    }

    pub(super) const fn book(&self) -> &RefCell<QueueState> {
        &self.book
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused.get()
    }

    pub(super) fn pause(&self, paused: bool) {
        self.paused.set(paused);
        if paused {
            self.seat.vitals.nudge();
        } else {
            // The gate is asked again, whatever delayed the operations.
            self.seat.vitals.release(&ReleasedConditions::All);
        }
    }

    /// Requests that it stops.
    pub(super) fn ask_to_leave(&self, how: StopMode) -> oneshot::Receiver<StopResult> {
        let (answer, answered) = oneshot::channel();
        if how == StopMode::IfIdle && self.seat.vitals.resting_since().is_none() {
            let _ = answer.send(StopResult::Busy);
            return answered;
        }
        // The sender of an earlier request no longer waits.
        let before = self.leaving.replace(Some(StopRequest { how, answer }));
        if let Some(StopRequest { answer, .. }) = before {
            let _ = answer.send(StopResult::Busy);
        }
        self.seat.vitals.nudge();
        answered
    }

    /// Runs until the queue is released or lost.
    pub(super) async fn work(&self) {
        if self.go_on().await == Err(Fenced) {
            emit(GuildFenced { queue: self.seat.queue });
            self.answer(StopResult::Released);
        }
        self.seat.vitals.end();
    }

    async fn go_on(&self) -> Result<(), Fenced> {
        let mut unsaved = Vec::new();
        loop {
            // If the store and Discord respond at once, other guilds must still get their turn.
            consume_budget().await;
            self.listen(&mut unsaved);
            if self.has_to_leave() {
                self.save(&mut unsaved).await?;
                self.depart().await;
                return Ok(());
            }
            let now = self.seat.clock.now();
            let step = self.book.borrow_mut().line().next(now);
            let due = match step {
                OrderStep::Run(_) if self.paused.get() => None,
                OrderStep::Run(seq) => {
                    self.stay();
                    failpoint::message(Part::OperationGuild);
                    self.turn(seq, &mut unsaved).await?;
                    continue;
                }
                OrderStep::Expire(seq) => {
                    add(&mut unsaved, self.book.borrow_mut().expire(seq, now));
                    self.save_if_many(&mut unsaved).await?;
                    continue;
                }
                OrderStep::Park(seq) => {
                    add(&mut unsaved, self.book.borrow().park(seq, now));
                    continue;
                }
                OrderStep::Join => {
                    self.save(&mut unsaved).await?;
                    self.stay();
                    self.join().await;
                    continue;
                }
                OrderStep::NeedMore => {
                    self.save(&mut unsaved).await?;
                    self.stay();
                    self.load(&mut unsaved).await?;
                    continue;
                }
                OrderStep::WaitUntil(due) => Some(due),
                OrderStep::Idle => None,
            };
            self.save(&mut unsaved).await?;
            if self.has_to_leave() {
                // It was requested while the store was busy.
                continue;
            }
            if self.leaves_idle(due).await {
                return Ok(());
            }
            self.rest(due).await;
        }
    }

    /// Applies pending signals.
    pub(super) fn listen(&self, unsaved: &mut Vec<OperationUpdate>) {
        let Some(heard) = self.seat.vitals.listen() else { return };
        let now = self.seat.clock.now();
        let mut book = self.book.borrow_mut();
        book.line().on_woken();
        for word in heard.words {
            book.hear(word, now);
        }
        let released = book.release(&heard.released, now);
        if !released.is_empty() {
            emit(OperationsReleased { queue: self.seat.queue, count: released.len() });
        }
        released.into_iter().for_each(|change| add(unsaved, Some(change)));
    }

    async fn rest(&self, due: Option<UnixMs>) {
        let GuildSpec { vitals, clock, .. } = &self.seat;
        let wait = due.map_or(LONGEST_REST, |due| clock.until(due)).min(LONGEST_REST);
        vitals.rest(clock.now(), due);
        if !vitals.is_woken() {
            // Waits for a signal or the timeout.
            let _ = timeout(wait, vitals.nudged()).await;
        }
        // A request to stop does not end its idle time.
        if vitals.is_woken() || due.is_some_and(|due| due <= clock.now()) {
            vitals.work();
        }
    }

    /// There is work: a pending request to stop if idle is rejected.
    fn stay(&self) {
        self.seat.vitals.work();
        if self.leaving.borrow().as_ref().is_some_and(|leaving| leaving.how == StopMode::IfIdle) {
            self.answer(StopResult::Busy);
        }
    }

    /// Stops without a request, as soon as no operation runs.
    pub(super) fn give_up(&self) {
        self.gives_up.set(true);
    }

    pub(super) fn has_to_leave(&self) -> bool {
        let told = self.leaving.borrow().as_ref().is_some_and(|leaving| match leaving.how {
            StopMode::Now | StopMode::AtEnd => true,
            StopMode::IfIdle => false,
        });
        self.gives_up.get() || told
    }

    /// Stops if that was requested and there is nothing to do. Returns `true` if it has stopped.
    async fn leaves_idle(&self, due: Option<UnixMs>) -> bool {
        let GuildSpec { vitals, clock, config, .. } = &self.seat;
        if self.leaving.borrow().is_none() {
            return false;
        }
        let soon = due.is_some_and(|due| clock.until(due) <= config.long_wait);
        if vitals.is_woken() || soon {
            self.answer(StopResult::Busy);
            return false;
        }
        self.depart().await;
        true
    }

    /// Releases the queue, whatever is left in it. From the first attempt on, another process may own it, whatever the
    /// store replies, so this cannot be undone. It is retried, because nothing else would release the queue while this
    /// process runs.
    async fn depart(&self) {
        let GuildSpec { store, queue, fence, .. } = &self.seat;
        let mut tried = 0;
        while let Err(error) = self.ask(store.release(*queue, *fence)).await {
            tried += 1;
            if tried >= RELEASES && self.is_at_end() {
                return self.answer(StopResult::Unreleased);
            }
            self.back_off("release", &error, tried).await;
        }
        self.answer(StopResult::Released);
    }

    /// Whether the process is ending.
    fn is_at_end(&self) -> bool {
        self.leaving.borrow().as_ref().is_some_and(|leaving| leaving.how == StopMode::AtEnd)
    }

    fn answer(&self, departure: StopResult) {
        if let Some(StopRequest { answer, .. }) = self.leaving.take() {
            let _ = answer.send(departure);
        }
    }
}
